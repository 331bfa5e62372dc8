//! The table of what can be set by flag, by environment and in the file.

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`; in flags and environment also `1`, `t`, `0`, `f` and capitals.
    Bool,
    /// Any text.
    Text,
    /// A path.
    Path,
    /// One of these words.
    Word(&'static [&'static str]),
    /// One or several of these words, separated by commas.
    Words(&'static [&'static str]),
    /// Texts, separated by commas.
    Texts,
    /// Whole numbers, separated by commas.
    Numbers,
    /// A time as Go writes it (`1m30s`), or `infinite`.
    Duration,
}

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The flag's name without hyphens.
    pub flag: &'static str,
    /// Other names of the flag.
    pub aliases: &'static [&'static str],
    /// Environment variables, the most important first.
    pub env: &'static [&'static str],
    /// The key in the file; without one it can be set by flag and environment alone.
    pub path: Option<&'static str>,
    /// What a value is.
    pub kind: Kind,
    /// NVIDIA's value where nothing is set, as it would be written in a flag.
    pub default: &'static str,
    /// What Gantry does where nothing is set, if that is something else.
    pub own_default: Option<&'static str>,
    /// What becomes of it.
    pub treatment: Treatment,
    /// What it does, in one line.
    pub help: &'static str,
}

/// What becomes of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It is followed, at once whenever a configuration comes into force.
    Followed,
    /// It is read once, when the agent starts.
    AtStart,
    /// It is taken, and changes nothing: why.
    Unneeded(&'static str),
    /// Only these words are followed; others are refused: why, and what to do.
    Only(&'static [&'static str], &'static str),
}

pub(crate) const MIG_STRATEGIES: &[&str] = &["none", "single", "mixed"];
pub(crate) const LIST_STRATEGIES: &[&str] = &["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"];
pub(crate) const ID_STRATEGIES: &[&str] = &["uuid", "index"];
pub(crate) const POLICIES: &[&str] = &["distributed", "packed"];
pub(crate) const DISCOVERIES: &[&str] = &["auto", "nvml", "tegra", "vfio"];

const fn row(
    flag: &'static str,
    aliases: &'static [&'static str],
    env: &'static [&'static str],
    path: Option<&'static str>,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> Setting {
    let (own_default, treatment) = (None, Treatment::Followed);
    Setting { flag, aliases, env, path, kind, default, own_default, treatment, help }
}

impl Setting {
    const fn treated(mut self, treatment: Treatment) -> Self {
        self.treatment = treatment;
        self
    }

    const fn at_start(self) -> Self {
        self.treated(Treatment::AtStart)
    }

    const fn unneeded(self, why: &'static str) -> Self {
        self.treated(Treatment::Unneeded(why))
    }

    const fn else_ours(mut self, own: &'static str) -> Self {
        self.own_default = Some(own);
        self
    }

    /// Whether the flag needs no value: `--gds-enabled` alone means true.
    pub fn is_switch(&self) -> bool {
        self.kind == Kind::Bool
    }

    /// Whether the flag may be given several times.
    pub fn is_list(&self) -> bool {
        matches!(self.kind, Kind::Words(_) | Kind::Texts | Kind::Numbers)
    }
}

/// Every setting, in NVIDIA's order. Feature discovery reads variables that begin with `GFD_` before those of the plugin.
pub const SETTINGS: &[Setting] = &[
    row(
        "mig-strategy",
        &[],
        &["GFD_MIG_STRATEGY", "MIG_STRATEGY"],
        Some("flags.migStrategy"),
        Kind::Word(MIG_STRATEGIES),
        "none",
        "how the partitions of GPUs in MIG mode are offered",
    ),
    row(
        "fail-on-init-error",
        &[],
        &["GFD_FAIL_ON_INIT_ERROR", "FAIL_ON_INIT_ERROR"],
        Some("flags.failOnInitError"),
        Kind::Bool,
        "true",
        "end when the driver cannot be used, instead of waiting for it",
    )
    .at_start()
    .else_ours("false: it waits for the driver"),
    row(
        "driver-root",
        &["nvidia-driver-root"],
        &["NVIDIA_DRIVER_ROOT"],
        Some("flags.nvidiaDriverRoot"),
        Kind::Path,
        "/",
        "where the driver is installed on the host",
    )
    .at_start(),
    row(
        "dev-root",
        &["nvidia-dev-root"],
        &["NVIDIA_DEV_ROOT"],
        Some("flags.nvidiaDevRoot"),
        Kind::Path,
        "",
        "where device files are on the host; the driver's root where this is not set",
    )
    .at_start()
    .else_ours("the driver's root if it has device files, else /"),
    row(
        "pass-device-specs",
        &[],
        &["PASS_DEVICE_SPECS"],
        Some("flags.plugin.passDeviceSpecs"),
        Kind::Bool,
        "false",
        "hand device files to the kubelet too",
    ),
    row(
        "device-list-strategy",
        &[],
        &["DEVICE_LIST_STRATEGY"],
        Some("flags.plugin.deviceListStrategy"),
        Kind::Words(LIST_STRATEGIES),
        "envvar",
        "how the container runtime is told the devices",
    )
    .else_ours("cdi-cri"),
    row(
        "device-id-strategy",
        &[],
        &["DEVICE_ID_STRATEGY"],
        Some("flags.plugin.deviceIDStrategy"),
        Kind::Word(ID_STRATEGIES),
        "uuid",
        "by what the container runtime is told the devices",
    ),
    row(
        "gdrcopy-enabled",
        &[],
        &["GDRCOPY_ENABLED"],
        Some("flags.gdrcopyEnabled"),
        Kind::Bool,
        "false",
        "give containers with a GPU GDRCopy",
    ),
    row(
        "gds-enabled",
        &[],
        &["GDS_ENABLED"],
        Some("flags.gdsEnabled"),
        Kind::Bool,
        "false",
        "give containers with a GPU GPUDirect Storage",
    ),
    row(
        "mofed-enabled",
        &[],
        &["MOFED_ENABLED"],
        Some("flags.mofedEnabled"),
        Kind::Bool,
        "false",
        "give containers with a GPU Mellanox OFED",
    ),
    row(
        "cdi-annotation-prefix",
        &[],
        &["CDI_ANNOTATION_PREFIX"],
        Some("flags.plugin.cdiAnnotationPrefix"),
        Kind::Text,
        "cdi.k8s.io/",
        "what the keys of CDI annotations begin with",
    ),
    row(
        "nvidia-cdi-hook-path",
        &["nvidia-ctk-path"],
        &["NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"],
        Some("flags.plugin.nvidiaCTKPath"),
        Kind::Path,
        "/usr/bin/nvidia-ctk",
        "the program of the hooks in NVIDIA's CDI files",
    )
    .unneeded("no program runs in containers by Gantry's CDI files"),
    row(
        "driver-root-ctr-path",
        &["container-driver-root"],
        &["DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"],
        Some("flags.plugin.containerDriverRoot"),
        Kind::Path,
        "/driver-root",
        "where the driver's root is mounted in the plugin's container",
    )
    .at_start()
    .else_ours("/driver-root where there is one, else the path on the host"),
    row(
        "mps-root",
        &[],
        &["MPS_ROOT"],
        Some("flags.mpsRoot"),
        Kind::Path,
        "",
        "where the MPS control daemon keeps its files on the host",
    ),
    row(
        "shared-devices-allocation-policy",
        &[],
        &["SHARED_DEVICES_ALLOCATION_POLICY"],
        Some("flags.plugin.sharedDevicesAllocationPolicy"),
        Kind::Word(POLICIES),
        "distributed",
        "which devices are preferred for shares and partitions",
    ),
    row(
        "device-discovery-strategy",
        &[],
        &["DEVICE_DISCOVERY_STRATEGY"],
        Some("flags.deviceDiscoveryStrategy"),
        Kind::Word(DISCOVERIES),
        "auto",
        "how devices are found",
    )
    .treated(Treatment::Only(
        &["auto", "nvml"],
        "Gantry finds devices by NVML alone; leave it out on machines with the driver, and keep NVIDIA's programs on others",
    )),
    row(
        "imex-channel-ids",
        &[],
        &["IMEX_CHANNEL_IDS"],
        Some("imex.channelIDs"),
        Kind::Numbers,
        "",
        "IMEX channels for every container with a GPU: 0, or none",
    ),
    row(
        "imex-required",
        &[],
        &["IMEX_REQUIRED"],
        Some("imex.required"),
        Kind::Bool,
        "false",
        "treat an IMEX channel that the node does not have as an error",
    ),
    row(
        "config-file",
        &[],
        &["GFD_CONFIG_FILE", "CONFIG_FILE"],
        None,
        Kind::Path,
        "",
        "a file with settings, read anew whenever it changes",
    ),
    row(
        "kubelet-socket",
        &[],
        &["KUBELET_SOCKET"],
        None,
        Kind::Path,
        "",
        "the kubelet's socket for device plugins, which stand beside it; set to nothing, there is no registration",
    )
    .at_start()
    .else_ours("device-plugins/kubelet.sock in --kubelet-root"),
    row(
        "cdi-feature-flags",
        &[],
        &["CDI_FEATURE_FLAGS"],
        None,
        Kind::Texts,
        "",
        "features of NVIDIA's generator of CDI files",
    )
    .unneeded("Gantry's CDI files are its own, and no generator of NVIDIA's runs"),
    row(
        "cdi-disable-hooks",
        &[],
        &["CDI_DISABLE_HOOKS"],
        None,
        Kind::Texts,
        "",
        "hooks that NVIDIA's generator of CDI files is to leave out",
    )
    .unneeded("Gantry's CDI files have no hooks"),
    row(
        "use-node-feature-api",
        &[],
        &["GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"],
        Some("flags.useNodeFeatureAPI"),
        Kind::Bool,
        "true",
        "write labels into a NodeFeature object (true) or into a file (false)",
    )
    .else_ours("onto the node itself"),
    row(
        "oneshot",
        &[],
        &["GFD_ONESHOT"],
        Some("flags.gfd.oneshot"),
        Kind::Bool,
        "false",
        "write labels once, at the start; the agent goes on with everything else",
    ),
    row(
        "no-timestamp",
        &[],
        &["GFD_NO_TIMESTAMP"],
        Some("flags.gfd.noTimestamp"),
        Kind::Bool,
        "false",
        "leave out the label with the time",
    ),
    row(
        "sleep-interval",
        &[],
        &["GFD_SLEEP_INTERVAL"],
        Some("flags.gfd.sleepInterval"),
        Kind::Duration,
        "60s",
        "how long to wait between two passes over the labels",
    ),
    row(
        "output-file",
        &["output", "o"],
        &["GFD_OUTPUT_FILE"],
        Some("flags.gfd.outputFile"),
        Kind::Path,
        "/etc/kubernetes/node-feature-discovery/features.d/gfd",
        "the file for labels; set to nothing, standard output",
    )
    .else_ours("none"),
    row(
        "machine-type-file",
        &[],
        &["GFD_MACHINE_TYPE_FILE"],
        Some("flags.gfd.machineTypeFile"),
        Kind::Path,
        "/sys/class/dmi/id/product_name",
        "where the machine's name is read",
    ),
    row(
        "kube-api-qps",
        &[],
        &["KUBE_API_QPS"],
        None,
        Kind::Text,
        "5",
        "how many requests a second may go to the API server",
    )
    .unneeded("the agent watches, and writes only what has changed"),
    row(
        "kube-api-burst",
        &[],
        &["KUBE_API_BURST"],
        None,
        Kind::Text,
        "10",
        "how many requests may go to the API server at once",
    )
    .unneeded("the agent watches, and writes only what has changed"),
];

/// The setting of a key in the file.
pub(crate) fn by_path(path: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.path == Some(path))
}

/// The keys right below a path (`flags`, `flags.plugin`, `imex`), in the table's order.
pub(crate) fn keys_below(path: &str) -> Vec<&'static str> {
    let mut keys: Vec<&'static str> = Vec::new();
    for full in SETTINGS.iter().filter_map(|setting| setting.path) {
        let below = full.strip_prefix(path).and_then(|rest| rest.strip_prefix('.'));
        let Some(key) = below.and_then(|rest| rest.split('.').next()) else {
            continue;
        };
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_name_stands_twice() {
        let mut seen = BTreeSet::new();
        for setting in SETTINGS {
            let names = setting.aliases.iter().chain([&setting.flag]).chain(setting.env).chain(&setting.path);
            for name in names {
                assert!(seen.insert(*name), "{name}");
            }
        }
    }

    #[test]
    fn the_keys_of_a_level_are_those_of_the_table() {
        assert_eq!(keys_below("imex"), ["channelIDs", "required"]);
        assert!(keys_below("flags").contains(&"plugin") && keys_below("flags").contains(&"gfd"));
        assert_eq!(by_path("flags.migStrategy").map(|setting| setting.flag), Some("mig-strategy"));
    }
}
