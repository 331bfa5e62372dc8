//! The interfaces of kubelet and container runtime, as checked-in code that `cargo xtask codegen` writes from `proto/`.
//!
//! ```text
//!   kubelet.sock ◀── Registration.Register ── agent            deviceplugin, v1beta1
//!   nvidia-gpu.sock ◀── ListAndWatch, Allocate, … ── kubelet   deviceplugin, v1beta1
//!   plugins_registry/*.sock ◀── GetInfo, … ── kubelet          pluginregistration, v1
//!   pod-resources/kubelet.sock ◀── List, Get, … ── agent       podresources, v1
//!   nri.sock ◀── RegisterPlugin ── agent                       nri, v1alpha1, by ttrpc
//!   nri.sock ── CreateContainer, … ──▶ agent                   nri, v1alpha1, by ttrpc
//! ```
//!
//! Field numbers and names are those of `k8s.io/kubelet/pkg/apis`, `containerd/nri` and `containerd/ttrpc`. Sockets are Unix sockets; a client must send
//! the authority `localhost` (tonic's `unix:` endpoints do), because an HTTP/2 server refuses a path in its place.

/// Device plugins: `k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1`.
pub mod deviceplugin {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
    include!("gen/deviceplugin.rs");

    /// The version that [`RegisterRequest`] names.
    pub const VERSION: &str = "v1beta1";
    /// [`Device::health`] of a device that may be handed out.
    pub const HEALTHY: &str = "Healthy";
    /// [`Device::health`] of a device that may not.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// The kubelet's registration socket in the device-plugins folder.
    pub const KUBELET_SOCKET: &str = "kubelet.sock";
}

/// Registration of plugins that the kubelet finds by watching a folder: `k8s.io/kubelet/pkg/apis/pluginregistration/v1`.
pub mod pluginregistration {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
    include!("gen/pluginregistration.rs");
}

/// Which devices the kubelet gave to which container: `k8s.io/kubelet/pkg/apis/podresources/v1`.
pub mod podresources {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
    include!("gen/podresources.rs");
}

/// How a container runtime asks its plugins: `containerd/nri/pkg/api`. Carried by [`ttrpc`].
pub mod nri {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
    include!("gen/nri.rs");

    /// The service that the runtime serves.
    pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
    /// The service that a plugin serves.
    pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
    /// The multiplexed connection of [`PLUGIN_SERVICE`].
    pub const PLUGIN_CONNECTION: u32 = 1;
    /// The multiplexed connection of [`RUNTIME_SERVICE`].
    pub const RUNTIME_CONNECTION: u32 = 2;
    /// The socket of runtimes that nobody has configured otherwise.
    pub const SOCKET: &str = "/var/run/nri/nri.sock";
}

/// The messages of containerd's RPC protocol: `containerd/ttrpc`.
pub mod ttrpc {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
    include!("gen/ttrpc.rs");
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::{deviceplugin, nri, podresources, ttrpc};

    #[test]
    fn nri_and_ttrpc_have_the_numbers_of_containerd() {
        let register = nri::RegisterPluginRequest {
            plugin_name: "g".into(),
            plugin_idx: "10".into(),
            nri_version: "v".into(),
        };
        assert_eq!(register.encode_to_vec(), b"\x0a\x01g\x12\x0210\x1a\x01v");
        assert_eq!(nri::ConfigureResponse { events: 8 }.encode_to_vec(), b"\x10\x08", "events is field 2");
        let adjust = nri::ContainerAdjustment {
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            env: vec![nri::KeyValue { key: "k".into(), value: "v".into() }],
            cdi_devices: vec![nri::CdiDevice { name: "n".into() }],
            ..Default::default()
        };
        let expected = b"\x12\x06\x0a\x01a\x12\x01b\x22\x06\x0a\x01k\x12\x01v\x42\x03\x0a\x01n";
        assert_eq!(adjust.encode_to_vec(), expected);
        let container =
            nri::Container { cdi_devices: vec![nri::CdiDevice { name: "n".into() }], ..Default::default() };
        assert_eq!(container.encode_to_vec(), b"\xa2\x01\x03\x0a\x01n", "field 20");
        let response = ttrpc::Response {
            status: Some(ttrpc::Status { code: 9, message: "m".into() }),
            payload: Vec::new(),
        };
        assert_eq!(response.encode_to_vec(), b"\x0a\x05\x08\x09\x12\x01m");
    }

    #[test]
    fn a_registration_has_the_bytes_that_the_kubelet_reads() {
        let request = deviceplugin::RegisterRequest {
            version: deviceplugin::VERSION.into(),
            endpoint: "nvidia-gpu.sock".into(),
            resource_name: "nvidia.com/gpu".into(),
            options: Some(deviceplugin::DevicePluginOptions {
                pre_start_required: false,
                get_preferred_allocation_available: true,
            }),
        };
        let expected = b"\x0a\x07v1beta1\x12\x0fnvidia-gpu.sock\x1a\x0envidia.com/gpu\x22\x02\x10\x01";
        assert_eq!(request.encode_to_vec(), expected);
    }

    #[test]
    fn cdi_devices_and_claims_keep_their_field_numbers() {
        let answer = deviceplugin::ContainerAllocateResponse {
            cdi_devices: vec![deviceplugin::CdiDevice { name: "n".into() }],
            ..Default::default()
        };
        assert_eq!(answer.encode_to_vec(), b"\x2a\x03\x0a\x01n");
        let claim = podresources::DynamicResource { claim_name: "c".into(), ..Default::default() };
        assert_eq!(claim.encode_to_vec(), b"\x12\x01c", "claim_name is field 2: field 1 was given up");
    }

    #[test]
    fn unknown_fields_of_newer_kubelets_are_skipped() {
        let bytes = b"\x0a\x01a\xfa\x3f\x01z";
        assert_eq!(podresources::GetPodResourcesRequest::decode(&bytes[..]).unwrap().pod_name, "a");
        assert!(podresources::GetPodResourcesRequest::decode(&b"\x0a\xff"[..]).is_err());
    }
}
