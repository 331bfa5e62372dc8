//! What runs in a cluster: nodes, their programs and command lines.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::build::{Artefacts, Version};
use crate::cgroups::Cgroup;
use crate::cluster::NodeOptions;
use crate::pki::Pki;

/// The API server's port in its node's network.
pub(crate) const API_PORT: u16 = 6443;

/// Everything that pid 1 of a node has to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NodePlan {
    /// The node's name.
    pub(crate) name: String,
    /// Its place among the machines: 0 is the control plane's, nodes follow.
    pub(crate) index: u8,
    /// A folder for what the node keeps on disk, below which `control.sock` and `log/` lie too.
    pub(crate) folder: PathBuf,
    /// Its groups.
    pub(crate) cgroups: Vec<Cgroup>,
    /// Device files of GPUs that the node has: minor numbers.
    pub(crate) gpus: Vec<u32>,
    /// What every program of the node is started with.
    pub(crate) environment: BTreeMap<String, String>,
    /// Files that the node finds at these paths.
    pub(crate) files: BTreeMap<PathBuf, String>,
    /// Folders of the machine that the node sees at other paths too.
    pub(crate) binds: BTreeMap<PathBuf, PathBuf>,
}

/// Where a node's containerd listens.
pub(crate) const RUNTIME_SOCKET: &str = "/run/containerd/containerd.sock";

/// A program that runs until it is stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// What it is called: the name of its log, too.
    pub name: String,
    /// The command line; the first word is a path or is looked up.
    pub command: Vec<String>,
    /// Variables beside those of the node.
    pub environment: BTreeMap<String, String>,
    /// The socket without which it ends at once: it is started when somebody listens there, or a while later in any case.
    #[serde(default)]
    pub after: Option<PathBuf>,
}

impl Program {
    /// A program without variables of its own.
    pub fn new(name: &str, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            name: name.to_owned(),
            command: command.into_iter().map(Into::into).collect(),
            environment: BTreeMap::new(),
            after: None,
        }
    }
}

impl NodePlan {
    /// The node's address.
    pub(crate) fn address(&self) -> Ipv4Addr {
        address(self.index)
    }

    /// Where pid 1 takes orders.
    pub(crate) fn control(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    /// The log of a program.
    pub(crate) fn log(&self, program: &str) -> PathBuf {
        self.folder.join("log").join(format!("{program}.log"))
    }
}

/// The address of a node.
pub(crate) fn address(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 30, 0, index + 1)
}

/// The addresses of a node's pods.
pub(crate) fn pod_network(index: u8) -> String {
    format!("10.244.{index}.0/24")
}

/// Variables with which programs of a node find each other.
pub(crate) fn environment(artefacts: &Artefacts, pki: &Pki, folder: &Path) -> BTreeMap<String, String> {
    let debian = artefacts.debian.display();
    let libraries = format!("{debian}/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let path =
        format!("{}:{debian}/usr/sbin:{debian}/sbin:/usr/sbin:/usr/bin:/sbin:/bin", artefacts.bin.display());
    [
        ("PATH", path),
        // nft is taken from an unpacked package, its libraries beside it.
        ("LD_LIBRARY_PATH", libraries),
        ("KUBECONFIG", pki.file("admin.kubeconfig")),
        ("KUBECACHEDIR", folder.join("kubectl-cache").display().to_string()),
        ("CONTAINER_RUNTIME_ENDPOINT", format!("unix://{RUNTIME_SOCKET}")),
        ("HOME", "/root".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// etcd and the API server.
pub(crate) fn api(version: Version, pki: &Pki) -> Vec<Program> {
    let file = |name: &str| pki.file(name);
    let etcd = [
        "etcd",
        "--data-dir=/var/lib/etcd/data",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=default=http://127.0.0.1:2380",
        // The cluster does not outlive the machine's next start.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ];
    let mut server = vec![
        "kube-apiserver".to_owned(),
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        "--bind-address=0.0.0.0".to_owned(),
        format!("--advertise-address={}", address(0)),
        format!("--secure-port={API_PORT}"),
        format!("--tls-cert-file={}", file("apiserver.crt")),
        format!("--tls-private-key-file={}", file("apiserver.key")),
        format!("--client-ca-file={}", file("ca.crt")),
        format!("--kubelet-client-certificate={}", file("apiserver-kubelet-client.crt")),
        format!("--kubelet-client-key={}", file("apiserver-kubelet-client.key")),
        format!("--kubelet-certificate-authority={}", file("ca.crt")),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("sa.pub")),
        format!("--service-account-signing-key-file={}", file("sa.key")),
        format!("--requestheader-client-ca-file={}", file("ca.crt")),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!("--proxy-client-cert-file={}", file("front-proxy.crt")),
        format!("--proxy-client-key-file={}", file("front-proxy.key")),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
    ];
    if version.gangs {
        server.push("--feature-gates=GenericWorkload=true".to_owned());
        server.push("--runtime-config=scheduling.k8s.io/v1beta1=true".to_owned());
    }
    vec![Program::new("etcd", etcd), Program::new("kube-apiserver", server)]
}

/// What works on the API server's objects.
pub(crate) fn controllers(version: Version, pki: &Pki) -> Vec<Program> {
    let file = |name: &str| pki.file(name);
    let credentials = |name: &str| {
        let kubeconfig = file(&format!("{name}.kubeconfig"));
        [
            name.to_owned(),
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
        ]
    };
    let mut manager = credentials("kube-controller-manager").to_vec();
    manager.extend([
        format!("--service-account-private-key-file={}", file("sa.key")),
        format!("--root-ca-file={}", file("ca.crt")),
        format!("--cluster-signing-cert-file={}", file("ca.crt")),
        format!("--cluster-signing-key-file={}", file("ca.key")),
        "--use-service-account-credentials=true".to_owned(),
        // It would make this folder on the machine.
        "--flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins".to_owned(),
        // With the default of 20 requests a second its controllers take five seconds to start.
        "--kube-api-qps=1000".to_owned(),
        "--kube-api-burst=2000".to_owned(),
        // Nodes of a test fail and come back in seconds.
        "--node-monitor-period=1s".to_owned(),
        "--node-monitor-grace-period=10s".to_owned(),
    ]);
    let mut scheduler = credentials("kube-scheduler").to_vec();
    if version.gangs {
        let gates = "--feature-gates=GenericWorkload=true".to_owned();
        manager.push(gates.clone());
        scheduler.push(gates);
    }
    vec![Program::new("kube-controller-manager", manager), Program::new("kube-scheduler", scheduler)]
}

/// The main file of the container runtime's configuration.
pub(crate) fn runtime_config(node: &NodePlan) -> PathBuf {
    node.folder.join("containerd.toml")
}

/// The container runtime.
pub(crate) fn runtime(node: &NodePlan) -> Program {
    let config = runtime_config(node);
    Program::new("containerd", ["containerd".to_owned(), format!("--config={}", config.display())])
}

/// A node's kubelet.
pub(crate) fn kubelet(node: &NodePlan, options: &NodeOptions, pki: &Pki) -> Program {
    let labels: Vec<_> = options.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let command = [
        "kubelet".to_owned(),
        format!("--config={}", node.folder.join("kubelet.json").display()),
        format!("--kubeconfig={}", pki.file(&format!("{}.kubeconfig", node.name))),
        format!("--hostname-override={}", node.name),
        format!("--node-ip={}", node.address()),
        format!("--node-labels={}", labels.join(",")),
    ];
    Program { after: Some(RUNTIME_SOCKET.into()), ..Program::new("kubelet", command) }
}

/// Makes the addresses of Services lead to their pods.
pub(crate) fn proxy(node: &NodePlan, pki: &Pki) -> Program {
    let command = [
        "kube-proxy".to_owned(),
        format!("--kubeconfig={}", pki.file("kube-proxy.kubeconfig")),
        "--proxy-mode=nftables".to_owned(),
        format!("--hostname-override={}", node.name),
        "--cluster-cidr=10.244.0.0/16".to_owned(),
        // These are settings of the whole machine.
        "--conntrack-max-per-core=0".to_owned(),
        "--conntrack-tcp-timeout-established=0s".to_owned(),
        "--conntrack-tcp-timeout-close-wait=0s".to_owned(),
    ];
    Program::new("kube-proxy", command)
}

/// The configuration of a node's containerd: configuration version 3, which containerd 2 reads.
pub(crate) fn containerd_config(artefacts: &Artefacts, options: &NodeOptions) -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.tracing.processor.v1.otlp",
]
imports = ["/etc/containerd/conf.d/*.toml"]

[grpc]
  address = "{RUNTIME_SOCKET}"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "localhost/pause:1"
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = "/etc/containerd/certs.d"

[plugins.'io.containerd.cri.v1.runtime']
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  disable_apparmor = true
  # Without the capability CAP_SYS_RESOURCE runc may not set what Kubernetes asks for.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{cni}"]
    conf_dir = "/etc/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{bin}/runc"
        SystemdCgroup = false

[plugins.'io.containerd.nri.v1.nri']
  disable = {without_nri}
  socket_path = "/var/run/nri/nri.sock"
"#,
        cni = artefacts.cni.display(),
        bin = artefacts.bin.display(),
        without_nri = options.without_nri,
    )
}

/// Where containerd looks for images of every registry.
pub(crate) fn registry_config() -> String {
    format!(
        "[host.\"http://127.0.0.1:{}\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
        crate::registry::PORT
    )
}

/// The configuration of a node's kubelet.
pub(crate) fn kubelet_config(version: Version, node: &NodePlan, options: &NodeOptions, pki: &Pki) -> String {
    let mut config = serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "failSwapOn": false,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": format!("unix://{RUNTIME_SOCKET}"),
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki.file("ca.crt")}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki.file(&format!("{}-serving.crt", node.name)),
        "tlsPrivateKeyFile": pki.file(&format!("{}-serving.key", node.name)),
        "resolvConf": "",
        // Nothing is evicted because this machine's disk is full.
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "10s",
        "makeIPTablesUtilChains": false,
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        "clusterDNS": ["10.96.0.10"],
        "registerNode": true,
        "registerWithTaints": options.taints,
        "maxPods": 250,
        "serializeImagePulls": false,
        "logging": {"verbosity": 2},
    });
    if version.pull_policy {
        config["imagePullCredentialsVerificationPolicy"] = "NeverVerify".into();
    }
    config.to_string()
}

/// The network of a node's pods.
pub(crate) fn network_config(node: &NodePlan) -> String {
    serde_json::json!({
        "cniVersion": "1.0.0", "name": "pods", "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
            "ipam": {
                "type": "host-local", "ranges": [[{"subnet": pod_network(node.index)}]],
                "routes": [{"dst": "0.0.0.0/0"}]},
        }],
    })
    .to_string()
}
