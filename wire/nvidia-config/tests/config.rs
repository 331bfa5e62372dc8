//! What is read from files, environment and flags, and what is refused.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_nvidia_config::{
    AllocationPolicy, Config, DeviceIdStrategy, DeviceListStrategy, DeviceRef, Error, Kind, MigStrategy,
    SETTINGS, Setting, SharedDevices, SharingKind, Treatment,
};

fn pairs(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn file(text: &str) -> Result<Config, Error> {
    Config::load(&BTreeMap::new(), &BTreeMap::new(), Some(text))
}

#[test]
fn without_anything_the_defaults_are_those_of_nvidia() {
    let config = Config::load(&BTreeMap::new(), &BTreeMap::new(), None).unwrap();
    assert_eq!(config, file("version: v1").unwrap());
    assert_eq!(config.mig_strategy, MigStrategy::None);
    assert!(config.fail_on_init_error && config.use_node_feature_api);
    assert!(!config.gds && !config.mofed && !config.gdrcopy && !config.plugin.pass_device_specs);
    assert_eq!((config.driver_root.to_str(), config.dev_root.to_str()), (Some("/"), Some("/")));
    assert_eq!(
        config.plugin.device_list_strategies.iter().collect::<Vec<_>>(),
        [&DeviceListStrategy::Envvar]
    );
    assert_eq!(config.plugin.device_id_strategy, DeviceIdStrategy::Uuid);
    assert_eq!(config.plugin.cdi_annotation_prefix, "cdi.k8s.io/");
    assert_eq!(config.plugin.allocation_policy, AllocationPolicy::Distributed);
    assert_eq!(config.gfd.sleep_interval, Some(Duration::from_secs(60)));
    assert_eq!((config.sharing, config.mps_root, config.kubelet_socket), (None, None, None));
}

#[test]
fn every_key_of_the_file_arrives() {
    let config = file(
        r#"
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  nvidiaDriverRoot: /run/nvidia/driver
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: yes
  useNodeFeatureAPI: null
  deviceDiscoveryStrategy: nvml
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: my.domain/
    nvidiaCTKPath: /opt/ctk
    containerDriverRoot: /host
    sharedDevicesAllocationPolicy: packed
  gfd:
    oneshot: true
    noTimestamp: true
    sleepInterval: 1m30s
    outputFile: ""
    machineTypeFile: /tmp/machine
resources:
  gpus:
  - pattern: "*A100*"
    name: a100
  mig:
  - pattern: 1g.*
    name: nvidia.com/small
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 4
    - name: mig-1g.5gb
      rename: tiny
      devices: ["0:1", 2, GPU-b1028956-cfa2-0990-bf4a-5da9abb51763]
      replicas: 10
    - name: a100
      devices: 3
      replicas: 2
imex:
  channelIDs: [0]
  required: true
"#,
    )
    .unwrap();
    assert_eq!(config.mig_strategy, MigStrategy::Mixed);
    assert!(!config.fail_on_init_error && config.use_node_feature_api);
    assert!(config.gds && config.mofed && config.gdrcopy && config.plugin.pass_device_specs);
    assert_eq!(config.dev_root.to_str(), Some("/run/nvidia/driver"), "as the driver's where it is not set");
    assert_eq!(config.plugin.device_list_strategies.len(), 2);
    assert_eq!(config.plugin.device_id_strategy, DeviceIdStrategy::Index);
    assert_eq!(config.plugin.cdi_annotation_prefix, "my.domain/");
    assert_eq!(config.plugin.allocation_policy, AllocationPolicy::Packed);
    assert_eq!(config.gfd.sleep_interval, Some(Duration::from_secs(90)));
    assert_eq!(config.gfd.output_file, None);
    assert_eq!(config.resources.gpus[0].name.as_str(), "nvidia.com/a100");
    assert!(config.resources.mig[0].pattern.matches("1g.10gb+me"));
    assert_eq!((config.imex.channel_ids, config.imex.required), (vec![0], true));
    let sharing = config.sharing.unwrap();
    assert_eq!((sharing.kind, sharing.fail_requests_greater_than_one), (SharingKind::TimeSlicing, true));
    let offered: Vec<_> = sharing.resources.iter().map(|shared| shared.offered_as().as_str()).collect();
    assert_eq!(offered, ["nvidia.com/gpu.shared", "nvidia.com/tiny", "nvidia.com/a100.shared"]);
    assert_eq!(sharing.resources[2].devices, SharedDevices::Count(3));
    let uuid = DeviceRef::Uuid("GPU-b1028956-cfa2-0990-bf4a-5da9abb51763".to_owned());
    let list = vec![DeviceRef::Partition(0, 1), DeviceRef::Gpu(2), uuid];
    assert_eq!(sharing.resources[1].devices, SharedDevices::List(list));
}

#[test]
fn a_flag_counts_more_than_the_environment_and_that_more_than_the_file() {
    let text = "version: v1\nflags: {migStrategy: single, gdsEnabled: true, mpsRoot: /a}";
    let env = pairs(&[("MIG_STRATEGY", "mixed"), ("GDS_ENABLED", "F"), ("MPS_ROOT", "")]);
    let flags = pairs(&[("mig-strategy", "none")]);
    let config = Config::load(&flags, &env, Some(text)).unwrap();
    assert_eq!((config.mig_strategy, config.gds), (MigStrategy::None, false));
    assert_eq!(config.mps_root.unwrap().to_str(), Some("/a"), "an empty variable is none");
    let config = Config::load(&BTreeMap::new(), &env, Some(text)).unwrap();
    assert_eq!(config.mig_strategy, MigStrategy::Mixed);
    let both = pairs(&[("MIG_STRATEGY", "mixed"), ("GFD_MIG_STRATEGY", "single")]);
    let config = Config::load(&BTreeMap::new(), &both, None).unwrap();
    assert_eq!(config.mig_strategy, MigStrategy::Single, "feature discovery's own variable comes first");
    let flags = pairs(&[("nvidia-driver-root", "/d"), ("device-list-strategy", "cdi-cri,envvar")]);
    let config = Config::load(&flags, &pairs(&[("KUBELET_SOCKET", "")]), None).unwrap();
    assert_eq!(config.driver_root.to_str(), Some("/d"), "by an alias");
    assert_eq!(config.plugin.device_list_strategies.len(), 2);
    assert_eq!(config.kubelet_socket, Some(None), "no registration");
}

#[test]
fn an_enabled_xid_is_looked_at_even_where_all_are_disabled() {
    let load = |disable, enable| {
        let env = pairs(&[("DP_DISABLE_HEALTHCHECKS", disable), ("DP_ENABLE_HEALTHCHECKS", enable)]);
        Config::load(&BTreeMap::new(), &env, None).unwrap().health_checks
    };
    assert!(!load("all", "79").ignores(79, false));
    assert!(load("all", "79").ignores(48, false));
    assert!(load("48, 94", "").ignores(94, false) && !load("48", "").ignores(79, false));
    assert!(load("", "").ignores(31, true) && !load("", "31").ignores(31, true));
}

#[test]
fn every_default_is_a_value_that_its_setting_takes() {
    for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
        let flags = pairs(&[(setting.flag, setting.default)]);
        assert!(Config::load(&flags, &BTreeMap::new(), None).is_ok(), "{}", setting.flag);
        assert_eq!(setting.is_switch(), setting.kind == Kind::Bool);
    }
}

/// Three values of a setting that differ from each other and from its default, as far as there are so many.
fn samples(setting: &Setting) -> [String; 3] {
    let own = |texts: [&str; 3]| texts.map(str::to_owned);
    match (setting.flag, setting.kind) {
        ("kubelet-socket", _) => own(["/a/kubelet.sock", "/b/kubelet.sock", "/c/kubelet.sock"]),
        ("cdi-annotation-prefix", _) => own(["a.b/", "b.b/", "c.b/"]),
        ("imex-channel-ids", _) => own(["0", "0", "0"]),
        ("device-discovery-strategy", _) => own(["nvml", "auto", "nvml"]),
        (_, Kind::Bool) => {
            let other = (setting.default != "true").to_string();
            [other.clone(), setting.default.to_owned(), other]
        }
        (_, Kind::Word(words) | Kind::Words(words)) => {
            [words[1], words[0], words[words.len() - 1]].map(str::to_owned)
        }
        (_, Kind::Path) => own(["/a", "/b", "/c"]),
        (_, Kind::Duration) => own(["1s", "2m", "infinite"]),
        (_, Kind::Text | Kind::Texts | Kind::Numbers) => own(["7", "8", "9"]),
    }
}

/// A file with one key.
fn file_with(path: &str, value: &str) -> String {
    let keys: Vec<&str> = path.split('.').collect();
    format!("version: v1\n{}: {value}{}", keys.join(": {"), "}".repeat(keys.len() - 1))
}

#[test]
fn of_every_setting_a_flag_counts_more_than_its_variables_and_these_more_than_the_file() {
    let none = BTreeMap::new();
    for setting in SETTINGS {
        let [by_flag, by_env, by_file] = samples(setting);
        let flags = pairs(&[(setting.flag, &by_flag)]);
        // The most important variable says something else than all that follow.
        let mut env: BTreeMap<String, String> =
            setting.env.iter().map(|name| ((*name).to_owned(), by_file.clone())).collect();
        env.insert(setting.env[0].to_owned(), by_env.clone());
        let first = pairs(&[(setting.env[0], &by_env)]);
        let file = setting.path.map(|path| match setting.kind {
            Kind::Numbers => file_with(path, &format!("[{by_file}]")),
            _ => file_with(path, &by_file),
        });
        let load = |flags, env, file: Option<&String>| {
            Config::load(flags, env, file.map(String::as_str)).unwrap_or_else(|error| panic!("{error}"))
        };
        let name = setting.flag;
        assert_eq!(load(&flags, &env, file.as_ref()), load(&flags, &none, None), "--{name}");
        assert_eq!(load(&none, &env, file.as_ref()), load(&none, &first, None), "variables of {name}");
        for config in [load(&flags, &none, None), load(&none, &first, None)] {
            assert!(config.is_set(name) && config != load(&none, &none, None), "{name} arrives");
        }
        if file.is_some() {
            assert!(load(&none, &none, file.as_ref()).is_set(name), "{name} arrives from the file");
        }
        let changed = load(&flags, &none, None).changed_since_start(&load(&none, &none, None)).len();
        assert_eq!(changed, usize::from(setting.treatment == Treatment::AtStart), "{name}");
    }
}

#[test]
fn what_changes_nothing_is_said_wherever_it_was_set() {
    let flags = pairs(&[("nvidia-ctk-path", "/usr/bin/nvidia-ctk"), ("gds-enabled", "true")]);
    let env = pairs(&[("CDI_FEATURE_FLAGS", "a"), ("KUBE_API_QPS", "5")]);
    let text = "version: v1\nflags:\n  plugin:\n    nvidiaCTKPath: /a";
    let told = |config: Config| config.notices.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        told(Config::load(&flags, &env, Some(text)).unwrap()),
        [
            "flag --nvidia-ctk-path: changes nothing: no program runs in containers by Gantry's CDI files; leave it out",
            "environment variable CDI_FEATURE_FLAGS: changes nothing: Gantry's CDI files are its own, and no generator of NVIDIA's runs; leave it out",
            "environment variable KUBE_API_QPS: changes nothing: the agent watches, and writes only what has changed; leave it out",
        ]
    );
    assert_eq!(
        told(file(text).unwrap()),
        [
            "flags.plugin.nvidiaCTKPath (line 4): changes nothing: no program runs in containers by Gantry's CDI files; leave it out"
        ]
    );
}

/// Files that are refused, and what is said.
const REFUSALS: &[(&str, &str)] = &[
    ("", "configuration (line 1): version is missing; begin the file with \"version: v1\""),
    ("flags: {}", "configuration (line 1): version is missing; begin the file with \"version: v1\""),
    ("version: v2", "version (line 1): invalid value \"v2\": the only version is v1; write version: v1"),
    ("version: 1", "version (line 1): the number 1 where v1 is wanted"),
    ("- a", "configuration (line 1): a list where a map that begins with \"version: v1\" is wanted"),
    ("version: v1\nsharign: {}", "sharign (line 2): unknown; did you mean sharing?"),
    ("Version: v1", "Version (line 1): unknown; did you mean version?"),
    (
        "version: v1\nother: {}",
        "other (line 2): unknown; known here: version, flags, resources, sharing, imex",
    ),
    (
        "version: v1\nflags:\n  plugin:\n    passDeviceSpec: true",
        "flags.plugin.passDeviceSpec (line 4): unknown; did you mean passDeviceSpecs?",
    ),
    (
        "version: v1\nflags:\n  passDeviceSpecs: true",
        "flags.passDeviceSpecs (line 3): unknown; known here: migStrategy, failOnInitError, nvidiaDriverRoot, nvidiaDevRoot, plugin, gdrcopyEnabled, gdsEnabled, mofedEnabled, mpsRoot, deviceDiscoveryStrategy, useNodeFeatureAPI, gfd",
    ),
    (
        "version: v1\nversion: v1",
        "version (line 2): stands here for the second time, the first is in line 1; remove one of them",
    ),
    (
        "version: v1\nflags:\n  gdsEnabled: true\n  migStrategy: none\n  gdsEnabled: false",
        "flags.gdsEnabled (line 5): stands here for the second time, the first is in line 3; remove one of them",
    ),
    (
        "version: v1\nflags:\n  migStrategy: Single",
        "flags.migStrategy (line 3): invalid value \"Single\": must be one of none, single, mixed; did you mean single?",
    ),
    (
        "version: v1\nflags:\n  migStrategy: everything",
        "flags.migStrategy (line 3): invalid value \"everything\": must be one of none, single, mixed",
    ),
    (
        "version: v1\nflags:\n  migStrategy: [none]",
        "flags.migStrategy (line 3): a list where one word is wanted",
    ),
    (
        "version: v1\nflags:\n  failOnInitError: \"true\"",
        "flags.failOnInitError (line 3): the text \"true\" where true or false is wanted",
    ),
    (
        "version: v1\nflags:\n  nvidiaDriverRoot: run/nvidia",
        "flags.nvidiaDriverRoot (line 3): invalid value \"run/nvidia\": must be an absolute path; begin it with /",
    ),
    (
        "version: v1\nflags:\n  deviceDiscoveryStrategy: tegra",
        "flags.deviceDiscoveryStrategy (line 3): invalid value \"tegra\": must be one of auto, nvml: Gantry finds devices by NVML alone; leave it out on machines with the driver, and keep NVIDIA's programs on others",
    ),
    ("version: v1\nflags: 5", "flags (line 2): the number 5 where a map is wanted"),
    (
        "version: v1\nflags:\n  plugin:\n    deviceListStrategy: [envvar, cdi]",
        "flags.plugin.deviceListStrategy[1] (line 4): invalid value \"cdi\": must be one of envvar, volume-mounts, cdi-annotations, cdi-cri",
    ),
    (
        "version: v1\nflags:\n  plugin:\n    deviceListStrategy: []",
        "flags.plugin.deviceListStrategy (line 4): invalid value \"\": containers would get no device; write one or more of envvar, volume-mounts, cdi-annotations, cdi-cri",
    ),
    (
        "version: v1\nflags:\n  plugin:\n    cdiAnnotationPrefix: cdi.k8s.io",
        "flags.plugin.cdiAnnotationPrefix (line 4): invalid value \"cdi.k8s.io\": must be a domain and a slash, as in cdi.k8s.io/",
    ),
    (
        "version: v1\nflags:\n  gfd:\n    sleepInterval: 60",
        "flags.gfd.sleepInterval (line 4): the number 60 where a time with its unit, such as 60s, or infinite is wanted",
    ),
    (
        "version: v1\nflags:\n  gfd:\n    sleepInterval: 0s",
        "flags.gfd.sleepInterval (line 4): invalid value \"0s\": must be a time above zero with its unit, such as 60s or 1m30s, or infinite",
    ),
    (
        "version: v1\nimex:\n  channelIDs: [0, 1]",
        "imex.channelIDs[1] (line 3): invalid value \"1\": the only channel that can be injected is 0, once; write [0] or []",
    ),
    (
        "version: v1\nresources:\n  gpus:\n  - name: gpu",
        "resources.gpus[0] (line 4): pattern is missing; add the models that are meant, as in pattern: \"*A100*\"",
    ),
    (
        "version: v1\nresources:\n  gpus:\n  - pattern: \"*\"\n    name: amd.com/gpu",
        "resources.gpus[0].name (line 5): invalid value \"amd.com/gpu\": only resources of nvidia.com can be named; write nvidia.com/<name>",
    ),
    (
        "version: v1\nresources:\n  mig:\n  - pattern: \"*\"\n    name: GPU_1",
        "resources.mig[0].name (line 5): invalid value \"GPU_1\": must be lower case letters, digits, '-' and '.', begin and end with a letter or digit; as in nvidia.com/gpu",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing: {}",
        "sharing.timeSlicing (line 3): resources is missing; add what is shared, as in resources: [{name: nvidia.com/gpu, replicas: 4}]",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: gpu\n      replicas: 1",
        "sharing.timeSlicing.resources[0].replicas (line 6): invalid value \"1\": must be 2 or more; to give each device to one container alone, remove the entry",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: gpu\n      replicas: 4000000000",
        "sharing.timeSlicing.resources[0].replicas (line 6): invalid value \"4000000000\": must be 1000 or less",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: gpu\n      replicas: four",
        "sharing.timeSlicing.resources[0].replicas (line 6): the text \"four\" where a whole number, such as 4, is wanted",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: gpu",
        "sharing.timeSlicing.resources[0] (line 5): replicas is missing; add how many share a device, as in replicas: 4",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 2, device: all}",
        "sharing.timeSlicing.resources[0].device (line 5): unknown; did you mean devices?",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 2}\n    - {name: nvidia.com/gpu, replicas: 3}",
        "sharing.timeSlicing.resources[1] (line 6): nvidia.com/gpu is shared by an earlier entry; merge the two",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 2, rename: a}\n    - {name: b, replicas: 3, rename: a}",
        "sharing.timeSlicing.resources[1] (line 6): an earlier entry has the name nvidia.com/a for its shares too; rename one of them",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: gpu, replicas: 2}]\n  mps:\n    resources: [{name: gpu, replicas: 2}]",
        "sharing.mps (line 6): only one kind of sharing is possible, and sharing.timeSlicing (line 4) has another; remove one of them",
    ),
    (
        "version: v1\nsharing:\n  mps:\n    resources: [{name: gpu, replicas: 2}]",
        "sharing.mps (line 4): MPS needs the folder of its control daemon; set flags.mpsRoot, as in /run/nvidia/mps",
    ),
    (
        "version: v1\nflags: {migStrategy: mixed, mpsRoot: /mps}\nsharing:\n  mps:\n    resources: [{name: gpu, replicas: 2}]",
        "sharing.mps (line 5): MPS cannot share partitions, and flags.migStrategy (line 2) is mixed; set it to none, or use timeSlicing",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: gpu, replicas: 2, devices: some}]",
        "sharing.timeSlicing.resources[0].devices (line 4): invalid value \"some\": must be all, a number of devices, or a list of them",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: gpu, replicas: 2, devices: [GPU-1]}]",
        "sharing.timeSlicing.resources[0].devices[0] (line 4): invalid value \"GPU-1\": must be the index of a GPU (\"0\"), of a partition (\"0:1\"), or a UUID (GPU-…, MIG-…)",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: gpu, replicas: 2, devices: [1, \"1\"]}]",
        "sharing.timeSlicing.resources[0].devices[1] (line 4): stands in the list twice; remove one of them",
    ),
    (
        "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: gpu, replicas: 2, devices: 0}]",
        "sharing.timeSlicing.resources[0].devices (line 4): invalid value \"0\": must be 1 or more; write all for every device",
    ),
];

#[test]
fn what_is_wrong_in_a_file_is_said_with_key_line_value_rule_and_fix() {
    for (text, message) in REFUSALS {
        let error = file(text).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some(*message), "{text}");
    }
    let error = file("version: v1\nflags: {a: b\n").unwrap_err().to_string();
    assert!(error.starts_with("configuration (line ") && error.contains("not valid YAML"), "{error}");
    assert!(file("a: *b").is_err() && file("version: v1\n---\nversion: v1").is_err());
}

#[test]
fn what_is_wrong_in_flags_and_environment_names_them() {
    let load = |flags: &[(&str, &str)], env: &[(&str, &str)]| {
        Config::load(&pairs(flags), &pairs(env), None).unwrap_err().to_string()
    };
    assert_eq!(
        load(&[("mig-strategi", "none")], &[]),
        "flag --mig-strategi: unknown; did you mean mig-strategy?"
    );
    assert_eq!(
        load(&[("dev-root", "/a"), ("nvidia-dev-root", "/b")], &[]),
        "flag --nvidia-dev-root: is another name of flag --dev-root; give one of them"
    );
    assert_eq!(
        load(&[], &[("PASS_DEVICE_SPECS", "maybe")]),
        "environment variable PASS_DEVICE_SPECS: invalid value \"maybe\": must be true or false"
    );
    assert_eq!(
        load(&[], &[("DEVICE_LIST_STRATEGY", "envvar,cdi_cri")]),
        "environment variable DEVICE_LIST_STRATEGY: invalid value \"cdi_cri\": must be one of envvar, volume-mounts, cdi-annotations, cdi-cri; did you mean cdi-cri?"
    );
    assert_eq!(
        load(&[("kubelet-socket", "/run/k.sock")], &[]),
        "flag --kubelet-socket: invalid value \"/run/k.sock\": must end with /kubelet.sock, which is the kubelet's name for it; name its folder"
    );
    assert_eq!(
        load(&[("imex-channel-ids", "1")], &[]),
        "flag --imex-channel-ids: invalid value \"1\": the only channel that can be injected is 0, once; write [0] or []"
    );
    assert_eq!(
        load(&[], &[("DP_DISABLE_HEALTHCHECKS", "48,some")]),
        "environment variable DP_DISABLE_HEALTHCHECKS: invalid value \"some\": must be all, xids, or numbers of XIDs, as in 48,79"
    );
}
