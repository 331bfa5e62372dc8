//! Why something was refused, and what a pod's author should know although it was not.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use crate::{Requirement, SharingVocabulary, Taint};

/// What is the same for every occurrence of a reason or an advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Stable, never given to anything else: `G1` and three digits for placement, `G2` for the pod, `G4` for advice.
    pub code: &'static str,
    /// A name in words; the label in metrics and the address of the reference page.
    pub slug: &'static str,
    /// One sentence: what is the case.
    pub title: &'static str,
    /// What to do about it.
    pub action: &'static str,
}

/// Declares a closed enum together with the table row of each of its variants.
macro_rules! coded {
    (
        $(#[$outer:meta])*
        $name:ident {
            $($code:literal $slug:literal $title:literal $action:literal
              $variant:ident { $($(#[$inner:meta])* $field:ident: $type:ty,)* })*
        }
    ) => {
        $(#[$outer])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $title] $variant { $($(#[$inner])* $field: $type,)* },)*
        }

        impl $name {
            const ENTRIES: &[Entry] =
                &[$(Entry { code: $code, slug: $slug, title: $title, action: $action },)*];

            /// The row of the catalogue.
            pub fn entry(&self) -> &'static Entry {
                match self {
                    $(Self::$variant { .. } => {
                        &Entry { code: $code, slug: $slug, title: $title, action: $action }
                    })*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Entry { code, slug, .. } = self.entry();
                write!(f, "{code} {slug}: {}", self.message())
            }
        }
    };
}

coded! {
    /// Why a pod was refused, by one node, by all of them, or as it is written.
    /// Its `Display` is the code, the slug and [`Reason::message`].
    Reason {
        "G1001" "insufficient-gpu"
        "No node that suits the pod has as many free GPUs as it asks for."
        "Ask for as many GPUs as the message names, wait for pods to end, or add nodes."
        InsufficientGpu {
            /// The GPUs that the pod asks for.
            requested: u32,
            /// The most that one suitable node has free now.
            most_free: u32,
            /// The most that one suitable node has when it is empty.
            most_at_all: u32,
        }
        "G1002" "insufficient-cpu"
        "No node that suits the pod has as much CPU left as it asks for."
        "Lower the CPU request to what the message names, or wait for pods to end."
        InsufficientCpu {
            /// Thousandths of a core that the pod asks for.
            requested_milli: u64,
            /// The most that one suitable node has left.
            most_free_milli: u64,
        }
        "G1003" "insufficient-memory"
        "No node that suits the pod has as much host memory left as it asks for."
        "Lower the memory request to what the message names, or wait for pods to end."
        InsufficientMemory {
            /// Bytes that the pod asks for.
            requested_bytes: u64,
            /// The most that one suitable node has left.
            most_free_bytes: u64,
        }
        "G1004" "insufficient-ephemeral-storage"
        "No node that suits the pod has as much ephemeral storage left as it asks for."
        "Lower the ephemeral-storage request to what the message names, or wait for pods to end."
        InsufficientEphemeralStorage {
            /// Bytes that the pod asks for.
            requested_bytes: u64,
            /// The most that one suitable node has left.
            most_free_bytes: u64,
        }
        "G1005" "too-many-pods"
        "Every node that suits the pod runs as many pods as its kubelet accepts."
        "Wait for pods to end, add nodes, or raise maxPods of the kubelets."
        TooManyPods {
            /// The most pods that one suitable node accepts.
            most_at_all: u64,
        }
        "G1006" "insufficient-extended-resource"
        "No node that suits the pod has as much of an extended resource left as it asks for."
        "Ask for as much as the message names, or wait for pods to end."
        InsufficientResource {
            /// The resource's name.
            resource: Arc<str>,
            /// The amount that the pod asks for.
            requested: u64,
            /// The most that one suitable node has left.
            most_free: u64,
        }
        "G1007" "resource-not-offered"
        "The pod asks for a resource that no node offers."
        "Ask for whole GPUs with nvidia.com/gpu, or install what offers the resource."
        ResourceNotOffered {
            /// The resource's name.
            resource: Arc<str>,
            /// The field of the pod that asks for it.
            field: String,
            /// What the name means, where it is one of GPU sharing.
            vocabulary: Option<SharingVocabulary>,
        }
        "G1008" "node-selector-mismatch"
        "The node selector or the required node affinity of the pod matches no node."
        "Correct the label or its value; the message names what nodes have. `kubectl get nodes --show-labels` lists all."
        NodeSelectorMismatch {
            /// What is required and not there.
            requirement: Requirement,
            /// Values of the same label on the cluster's nodes, at most five.
            offered: Vec<Arc<str>>,
        }
        "G1009" "untolerated-taint"
        "Nodes keep the pod away by a taint that it does not tolerate."
        "Add a toleration for the taint to the pod, or take the taint from the node."
        UntoleratedTaint {
            /// The taint.
            taint: Taint,
        }
        "G1010" "node-cordoned"
        "Nodes that would suit the pod are cordoned."
        "Run `kubectl uncordon NODE` when the node may take new pods again."
        NodeCordoned {}
        "G1011" "node-not-ready"
        "Nodes that would suit the pod are not ready."
        "Look at the conditions in `kubectl describe node NODE`."
        NodeNotReady {}
        "G1012" "gpu-unhealthy"
        "Nodes would have enough free GPUs if all of them were healthy."
        "Look at the fault with `gantry get gpus`; a GPU comes back by itself when its fault is gone."
        GpuUnhealthy {
            /// The GPUs that the pod asks for.
            requested: u32,
            /// Unhealthy GPUs on the node that has most of them.
            unhealthy: u32,
        }
        "G1013" "gpu-use-unknown"
        "A pod on the node uses GPUs, and which ones has not been reported yet."
        "Wait for the node agent's report; see its log if it does not come."
        GpuUseUnknown {}
        "G1014" "node-not-found"
        "The pod names a node that does not exist."
        "Correct spec.nodeName, or leave it out and let the scheduler choose."
        NodeNotFound {
            /// The name in `spec.nodeName`.
            node: Arc<str>,
        }
        "G1015" "no-nodes"
        "The cluster has no node."
        "Add a node."
        NoNodes {}
        "G1016" "scheduling-gated"
        "The pod has scheduling gates."
        "Whoever set a gate takes it away when the pod may be scheduled; see spec.schedulingGates."
        SchedulingGated {
            /// The gates' names.
            gates: Vec<Arc<str>>,
        }
        "G1017" "bind-failed"
        "The API server refused the binding; it will be tried again."
        "Nothing, unless it goes on: then read the message."
        BindFailed {
            /// What the API server said.
            message: String,
        }
        "G1018" "gang-incomplete"
        "The pods of a group are placed together or not at all, and not enough of them fit now."
        "Ask for fewer pods in the group's minimum, or wait for GPUs; the other reasons tell what one more pod lacks."
        GangIncomplete {
            /// The group.
            group: Arc<str>,
            /// Pods that must have a place.
            min_members: u32,
            /// Pods that exist.
            members: u32,
            /// Pods that have a place, or would have one now.
            placed: u32,
        }
        "G1019" "gpu-not-offered"
        "The pod asks for GPUs, and no node of the cluster offers any."
        "See whether the node agent, or NVIDIA's device plugin in its place, runs on the GPU nodes: `kubectl get pods -n kube-system | grep nvidia`."
        GpuNotOffered {
            /// The GPUs that the pod asks for.
            requested: u32,
        }
        "G1020" "node-affinity-empty"
        "The required node affinity of the pod has no requirement in any term, and such terms match no node."
        "Write requirements into nodeSelectorTerms, or leave the affinity out."
        NodeAffinityEmpty {}
        "G2001" "limit-missing"
        "An extended resource is requested without a limit."
        "Write the resource under `limits`; the request defaults to the limit."
        LimitMissing {
            /// The container's resources, such as `spec.containers[0].resources`.
            field: String,
            /// The resource's name.
            resource: Arc<str>,
        }
        "G2002" "request-differs-from-limit"
        "An extended resource has a request that differs from its limit."
        "Leave the request out, or make it equal to the limit: devices cannot be overcommitted."
        RequestDiffersFromLimit {
            /// The container's resources.
            field: String,
            /// The resource's name.
            resource: Arc<str>,
            /// The request as written.
            request: String,
            /// The limit as written.
            limit: String,
        }
        "G2003" "not-an-integer"
        "An extended resource has an amount that is not a whole number."
        "Write a whole number: in this release a pod gets whole GPUs, and no part of one."
        NotAnInteger {
            /// The field with the amount.
            field: String,
            /// The amount as written.
            value: String,
        }
        "G2004" "amount-out-of-range"
        "An amount is negative, or larger than can be counted."
        "Write an amount between 0 and what one node can have."
        AmountOutOfRange {
            /// The field with the amount.
            field: String,
            /// The amount as written.
            value: String,
        }
        "G2005" "invalid-field"
        "A field of the pod has a value that Kubernetes does not accept."
        "Write what the message asks for; `kubectl explain pod.spec` describes the fields."
        InvalidField {
            /// The field.
            field: String,
            /// The value, shortened.
            value: String,
            /// What the field must be.
            rule: String,
        }
    }
}

coded! {
    /// What a pod's author should know although the pod is accepted. Told once per pod.
    Advice {
        "G4001" "memory-is-host-memory"
        "`memory` limits the container's host memory, not the memory of its GPU."
        "A whole GPU comes with all of its memory. To choose a GPU by its memory, select nodes by the label nvidia.com/gpu.memory (MiB). nvidia.com/gpumem (MiB) is the field for a part of it, which this release does not serve."
        MemoryIsHostMemory {
            /// The field with the limit.
            field: String,
            /// The limit as written.
            value: String,
            /// The GPUs of the container.
            gpus: u32,
        }
        "G4002" "device-plugin-replaced"
        "The pod runs NVIDIA's device plugin, and Gantry's node agent already serves nvidia.com/gpu."
        "Remove the DaemonSet: two plugins must not serve one resource."
        DevicePluginReplaced {
            /// The container.
            container: Arc<str>,
            /// Its image.
            image: String,
        }
        "G4003" "devices-set-by-hand"
        "An environment variable that chooses GPUs is set by hand."
        "Remove it: the assigned GPUs are made visible by the container runtime, numbered from 0, and a value written by hand hides or confuses them."
        DevicesSetByHand {
            /// The field with the variable.
            field: String,
            /// The variable's name.
            variable: &'static str,
            /// Its value.
            value: String,
        }
        "G4004" "all-devices-visible"
        "A container can reach every GPU of its node, past any assignment."
        "Remove `privileged: true` or the hostPath mount of /dev, unless the container manages GPUs for others."
        AllDevicesVisible {
            /// The field that gives access.
            field: String,
        }
        "G4005" "gpu-without-cpu-or-memory"
        "A container asks for GPUs and for no CPU or no host memory."
        "Set requests for cpu and memory under `resources.requests` or `resources.limits`: without, the kernel may starve or kill the container that feeds the GPU."
        GpuWithoutCpuOrMemory {
            /// The container's resources.
            field: String,
            /// The resources that are missing.
            missing: &'static str,
        }
        "G4006" "gpu-failed"
        "A GPU that a container of the pod has is out of service."
        "The container keeps it until it ends: save what matters, delete the pod, and let its controller start it again; new pods do not get this GPU."
        GpuFailed {
            /// The container.
            container: Arc<str>,
            /// The GPU.
            gpu: String,
            /// What is wrong with it.
            fault: String,
        }
    }
}

/// Every reason and every advice, by code.
pub fn catalogue() -> impl Iterator<Item = &'static Entry> {
    Reason::ENTRIES.iter().chain(Advice::ENTRIES)
}

impl Reason {
    /// What is the case, with the numbers, and what would fit. Without the code.
    pub fn message(&self) -> String {
        match self {
            Self::InsufficientGpu { requested, most_free, most_at_all } => {
                let mut text = format!("asks for {} ", gpus(*requested));
                if *most_at_all == 0 {
                    text.push_str("on one node, and no suitable node has a GPU");
                } else if requested > most_at_all {
                    let _ = write!(text, "on one node, and the largest suitable node has {most_at_all}");
                } else {
                    let _ = write!(text, "on one node, and the most that one has free is {most_free}");
                }
                if *most_free > 0 {
                    let _ = write!(text, "; nvidia.com/gpu: {most_free} would fit now");
                }
                text
            }
            Self::InsufficientCpu { requested_milli, most_free_milli } => format!(
                "asks for {requested_milli}m CPU, and the most that one suitable node has left is {most_free_milli}m"
            ),
            Self::InsufficientMemory { requested_bytes, most_free_bytes } => format!(
                "asks for {} of host memory, and the most that one suitable node has left is {}",
                mebibytes(*requested_bytes, true),
                mebibytes(*most_free_bytes, false)
            ),
            Self::InsufficientEphemeralStorage { requested_bytes, most_free_bytes } => format!(
                "asks for {} of ephemeral storage, and the most that one suitable node has left is {}",
                mebibytes(*requested_bytes, true),
                mebibytes(*most_free_bytes, false)
            ),
            Self::TooManyPods { most_at_all } => {
                format!("every suitable node runs as many pods as it accepts (at most {most_at_all})")
            }
            Self::InsufficientResource { resource, requested, most_free } => format!(
                "asks for {requested} {resource}, and the most that one suitable node has left is {most_free}"
            ),
            Self::ResourceNotOffered { resource, field, vocabulary } => {
                let mut text = format!("{field}: no node offers {resource}");
                let hint = match vocabulary {
                    None => "check the name, or install the device plugin that offers it",
                    Some(SharingVocabulary::Partition) => {
                        "partitioned GPUs (MIG) are not supported in this release, and no pod can ask for a card to be partitioned: \
                         MIG mode is a switch on the node, set while nothing uses the card"
                    }
                    Some(SharingVocabulary::TimeSlices) => {
                        "time-slicing is not supported in this release; it isolates no memory either: one pod can take all of the \
                         card's, and the others fail"
                    }
                    Some(_) => "shares of a GPU are not supported in this release",
                };
                let _ = write!(text, "; {hint}");
                if vocabulary.is_some() {
                    text.push_str("; ask for a whole GPU with nvidia.com/gpu: 1");
                }
                text
            }
            Self::NodeSelectorMismatch { requirement, offered } => {
                let key = &requirement.key;
                if offered.is_empty() {
                    format!("requires {requirement}, and no node has the label {key}")
                } else {
                    format!("requires {requirement}, and nodes have {key} with {}", offered.join(", "))
                }
            }
            Self::UntoleratedTaint { taint } => format!("does not tolerate the taint {taint}"),
            Self::NodeCordoned {} => "node is cordoned".to_owned(),
            Self::NodeNotReady {} => "node is not ready".to_owned(),
            Self::GpuUnhealthy { requested, unhealthy } => {
                format!("asks for {}, and {unhealthy} of the node's are unhealthy", gpus(*requested))
            }
            Self::GpuUseUnknown {} => {
                "a pod on the node uses GPUs that its agent has not reported yet".to_owned()
            }
            Self::NodeNotFound { node } => format!("spec.nodeName: there is no node {node:?}"),
            Self::NoNodes {} => "the cluster has no node".to_owned(),
            Self::SchedulingGated { gates } => {
                format!("waits for its scheduling gates: {}", gates.join(", "))
            }
            Self::BindFailed { message } => format!("binding failed and will be tried again: {message}"),
            Self::GangIncomplete { group, min_members, members, placed } => {
                if members < min_members {
                    format!("group {group} needs {min_members} pods together, and {members} exist")
                } else {
                    format!("group {group} needs {min_members} pods together, and {placed} fit now")
                }
            }
            Self::GpuNotOffered { requested } => format!(
                "asks for {}, and no node offers nvidia.com/gpu: no node agent or device plugin has registered any; \
                 see `kubectl get pods -n kube-system | grep nvidia`",
                gpus(*requested)
            ),
            Self::NodeAffinityEmpty {} => {
                "requires a node selector term without any requirement, and such a term matches no node"
                    .to_owned()
            }
            Self::LimitMissing { field, resource } => format!(
                "{field}.limits[{resource}]: required: an extended resource needs a limit, and its request defaults to it"
            ),
            Self::RequestDiffersFromLimit { field, resource, request, limit } => format!(
                "{field}.requests[{resource}]: invalid value {request:?}: must equal the limit {limit:?}; leave the request out"
            ),
            Self::NotAnInteger { field, value } => {
                format!("{field}: invalid value {value:?}: must be an integer")
            }
            Self::AmountOutOfRange { field, value } => {
                format!("{field}: invalid value {value:?}: must be an amount from 0 that can be counted")
            }
            Self::InvalidField { field, value, rule } => {
                format!("{field}: invalid value {value}: {rule}")
            }
        }
    }
}

impl Advice {
    /// What is the case in this pod. Without the code.
    pub fn message(&self) -> String {
        let action = self.entry().action;
        match self {
            Self::MemoryIsHostMemory { field, value, gpus: count } => format!(
                "{field}: {value} is host memory; it does not change the GPU memory of the container's {}. {action}",
                gpus(*count)
            ),
            Self::DevicePluginReplaced { container, image } => format!(
                "container {container} runs {image}, and Gantry's node agent already serves nvidia.com/gpu. {action}"
            ),
            Self::DevicesSetByHand { field, variable, value } => {
                format!("{field}: {variable}={value:?} is set by hand. {action}")
            }
            Self::AllDevicesVisible { field } => {
                format!("{field}: the container can reach every GPU of its node. {action}")
            }
            Self::GpuWithoutCpuOrMemory { field, missing } => {
                format!("{field}: GPUs are asked for, and no {missing}. {action}")
            }
            Self::GpuFailed { container, gpu, fault } => {
                format!("container {container} has {gpu}, which failed: {fault}. {action}")
            }
        }
    }
}

fn gpus(count: u32) -> String {
    format!("{count} GPU{}", if count == 1 { "" } else { "s" })
}

/// Bytes in whole MiB; rounded so that what is asked for never looks like less, nor what is left like more.
fn mebibytes(bytes: u64, up: bool) -> String {
    const MIB: u64 = 1 << 20;
    format!("{}Mi", if up { bytes.div_ceil(MIB) } else { bytes / MIB })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_slugs_are_unique_and_ordered() {
        let codes: Vec<_> = catalogue().map(|entry| entry.code).collect();
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
        let mut slugs: Vec<_> = catalogue().map(|entry| entry.slug).collect();
        slugs.sort_unstable();
        assert!(slugs.windows(2).all(|pair| pair[0] < pair[1]), "{slugs:?}");
        assert!(catalogue().all(|entry| entry.title.ends_with('.') && entry.action.ends_with('.')));
    }

    #[test]
    fn a_message_names_what_would_fit() {
        let reason = |requested, most_free, most_at_all| {
            Reason::InsufficientGpu { requested, most_free, most_at_all }.to_string()
        };
        assert_eq!(
            reason(4, 3, 8),
            "G1001 insufficient-gpu: asks for 4 GPUs on one node, and the most that one has free is 3; \
             nvidia.com/gpu: 3 would fit now"
        );
        assert_eq!(
            reason(16, 0, 8),
            "G1001 insufficient-gpu: asks for 16 GPUs on one node, and the largest suitable node has 8"
        );
        assert_eq!(
            reason(1, 0, 0),
            "G1001 insufficient-gpu: asks for 1 GPU on one node, and no suitable node has a GPU"
        );
    }

    #[test]
    fn a_share_is_answered_with_the_field_and_the_fix() {
        let message = |resource: &str, vocabulary| {
            let field = format!("limits[{resource}]");
            Reason::ResourceNotOffered { resource: resource.into(), field, vocabulary }.message()
        };
        assert_eq!(
            message("nvidia.com/gpumem", Some(SharingVocabulary::Memory)),
            "limits[nvidia.com/gpumem]: no node offers nvidia.com/gpumem; shares of a GPU are not supported in this \
             release; ask for a whole GPU with nvidia.com/gpu: 1"
        );
        assert_eq!(
            message("nvidia.com/mig-1g.5gb", Some(SharingVocabulary::Partition)),
            "limits[nvidia.com/mig-1g.5gb]: no node offers nvidia.com/mig-1g.5gb; partitioned GPUs (MIG) are not \
             supported in this release, and no pod can ask for a card to be partitioned: MIG mode is a switch on the \
             node, set while nothing uses the card; ask for a whole GPU with nvidia.com/gpu: 1"
        );
        assert_eq!(
            message("nvidia.com/gpu.shared", Some(SharingVocabulary::TimeSlices)),
            "limits[nvidia.com/gpu.shared]: no node offers nvidia.com/gpu.shared; time-slicing is not supported in \
             this release; it isolates no memory either: one pod can take all of the card's, and the others fail; ask \
             for a whole GPU with nvidia.com/gpu: 1"
        );
        assert_eq!(
            message("example.com/fpga", None),
            "limits[example.com/fpga]: no node offers example.com/fpga; check the name, or install the device plugin \
             that offers it"
        );
    }

    /// What a text tells to do must be possible: nothing but whole GPUs can be asked for. It may name what is not served as such.
    #[test]
    fn no_advice_names_what_this_release_refuses() {
        for entry in catalogue() {
            for refused in ["gpumem", "shares its GPUs", "plugin off", "mig-"] {
                let said = entry
                    .action
                    .split(". ")
                    .any(|part| part.contains(refused) && !part.contains("does not serve"));
                assert!(!said, "{}: {}", entry.code, entry.action);
            }
        }
    }

    #[test]
    fn amounts_are_rounded_to_the_safe_side() {
        assert_eq!((mebibytes(1, true), mebibytes((1 << 21) - 1, false)), ("1Mi".into(), "1Mi".into()));
    }
}
