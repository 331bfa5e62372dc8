//! What becomes of configurations: golden files, and what must never happen.

use std::cell::RefCell;
use std::path::Path;

use gantry_cdi::{Cache, ContainerEdits, DeviceNode};
use gantry_oci_shim::{Level, Outcome, Policy, World, edit};
use gantry_shim::{Answer, Image, Request};
use serde_json::{Value, json};

use crate::{config, fixture};

/// A machine with the specifications beside the tests, and an agent that answers as it is told.
struct Machine {
    answer: Result<Answer, String>,
    asked: RefCell<Vec<Request>>,
}

impl Machine {
    fn new() -> Self {
        Self::answering(Err("nobody listens".to_owned()))
    }

    fn answering(answer: Result<Answer, String>) -> Self {
        Self { answer, asked: RefCell::default() }
    }
}

impl World for Machine {
    fn specifications(&self, _: &Policy) -> Cache {
        let folder = tempfile::tempdir().unwrap();
        for name in ["nvidia.com-gpu.json", "imex.json"] {
            std::fs::copy(fixture(name), folder.path().join(name)).unwrap();
        }
        Cache::load(&[folder.path()])
    }

    fn image(&self, config: &Value) -> Option<Image> {
        config["root"]["path"].as_str().map(|path| Image {
            library_folder: format!("/{path}/lib"),
            library_folder_32: None,
            musl: false,
        })
    }

    fn ask(&self, _: &Policy, request: &Request) -> Result<Answer, String> {
        self.asked.borrow_mut().push(request.clone());
        self.answer.clone()
    }
}

fn open() -> Policy {
    Policy { accept_environment: true, ..Policy::default() }
}

fn edited(mut value: Value, policy: &Policy, machine: &Machine) -> (Value, Outcome) {
    let outcome = edit(&mut value, policy, machine).unwrap();
    (value, outcome)
}

fn refused(mut value: Value, policy: &Policy, machine: &Machine) -> String {
    let before = value.clone();
    let error = edit(&mut value, policy, machine).unwrap_err();
    assert_eq!(value, before, "nothing is changed");
    error.to_string()
}

fn with_env(mut value: Value, variables: &[&str]) -> Value {
    let env = value["process"]["env"].as_array_mut().unwrap();
    env.extend(variables.iter().map(|variable| json!(variable)));
    value
}

fn granted(name: &str, devices: &str) -> Value {
    let mut value = config(name);
    value["annotations"]["gantry.dev/devices.nvidia.com_gpu"] = json!(devices);
    value
}

fn marker(id: &str) -> Value {
    json!({ "destination": format!("/var/run/nvidia-container-devices/{id}"), "type": "bind",
            "source": "/dev/null", "options": ["rbind", "ro"] })
}

fn with_markers(mut value: Value, ids: &[&str]) -> Value {
    value["mounts"].as_array_mut().unwrap().extend(ids.iter().map(|id| marker(id)));
    value
}

fn devices(value: &Value) -> Vec<&str> {
    let list = value["linux"]["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|device| device["path"].as_str().unwrap()).collect()
}

/// `BLESS=1` writes the files anew; what has changed is then to be read.
fn golden(name: &str, value: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = format!("{}\n", serde_json::to_string_pretty(value).unwrap());
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
}

#[test]
fn configurations_of_every_runtime_become_what_the_golden_files_say() {
    let mut annotated = config("containerd.json");
    annotated["annotations"]["cdi.k8s.io/nvidia-device-plugin_1"] =
        json!("nvidia.com/gpu=GPU-1,nvidia.com/gpu=0:1");
    let slots = granted("crio.json", "slot-2");
    let agent = Machine::answering(Ok(Answer::Devices(vec!["nvidia.com/gpu=GPU-1".into()])));
    let mut privileged = config("containerd.json");
    privileged["process"]["capabilities"]["bounding"] = json!(["CAP_SYS_ADMIN"]);
    let alone = with_env(config("docker.json"), &["NVIDIA_VISIBLE_DEVICES=none"]);
    let marked =
        with_markers(config("containerd.json"), &["GPU-1", "cdi/nvidia.com/gpu/0:1", "imex/0", "GPU-1"]);
    let machine = Machine::new();
    for (name, value, policy, machine) in [
        ("containerd-annotations.json", annotated, Policy::default(), &machine),
        ("containerd-mounts.json", marked, Policy::default(), &machine),
        ("containerd-privileged.json", privileged, Policy::default(), &machine),
        ("crio-slots.json", slots, Policy::default(), &agent),
        ("docker-environment.json", config("docker.json"), open(), &machine),
        ("docker-driver-alone.json", alone, open(), &machine),
    ] {
        let (once, outcome) = edited(value, &policy, machine);
        assert!(outcome.changed, "{name}");
        golden(name, &once);
        let mut twice = once.clone();
        assert!(!edit(&mut twice, &policy, machine).unwrap().changed, "{name}: a second time");
        assert_eq!(twice, once);
    }
    let asked = agent.asked.borrow();
    assert_eq!((asked[0].pod.name.as_str(), asked[0].container.as_str()), ("train-0", "main"));
    assert_eq!(asked[0].devices, ["slot-2"]);
    assert_eq!(asked[0].annotations.keys().collect::<Vec<_>>(), ["gantry.dev/assignment"]);
}

#[test]
fn an_image_that_asks_for_all_gpus_gets_none_unless_the_settings_say_so() {
    let machine = Machine::new();
    let (value, outcome) = edited(config("containerd.json"), &Policy::default(), &machine);
    assert_eq!(value, config("containerd.json"));
    assert!(!outcome.changed);
    let told = "container ml/train-0/main: NVIDIA_VISIBLE_DEVICES=all is not honoured: the container is unprivileged, and every image can set \
                the variable; request GPUs in resources.limits, or set accept-env-when-unprivileged in /etc/gantry/runtime.toml";
    assert_eq!(outcome.notes, [(Level::Warning, told.to_owned())]);
    let strict = Policy { strict: true, ..Policy::default() };
    assert!(
        refused(config("containerd.json"), &strict, &machine)
            .starts_with("NVIDIA_VISIBLE_DEVICES=all is not honoured")
    );
    let (value, _) = edited(config("containerd.json"), &open(), &machine);
    assert_eq!(devices(&value), ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]);
}

#[test]
fn nothing_is_asked_for_where_nothing_is_said() {
    for value in ["", "void", "/var/run/nvidia-container-devices"] {
        let config = with_env(config("containerd.json"), &[&format!("NVIDIA_VISIBLE_DEVICES={value}")]);
        let (after, outcome) = edited(config.clone(), &Policy { strict: true, ..open() }, &Machine::new());
        assert_eq!((after, outcome), (config, Outcome::default()), "{value:?}");
    }
    let bare = json!({ "ociVersion": "1.0.0" });
    assert_eq!(edited(bare.clone(), &open(), &Machine::new()), (bare, Outcome::default()));
}

#[test]
fn each_form_goes_before_the_next() {
    let machine = Machine::new();
    // Mounts before the environment.
    let (value, _) = edited(with_markers(config("containerd.json"), &["0"]), &open(), &machine);
    assert_eq!(devices(&value), ["/dev/nvidiactl", "/dev/nvidia0"]);
    // Annotations before mounts, which are taken away nevertheless.
    let mut both = with_markers(config("containerd.json"), &["0"]);
    both["annotations"]["cdi.k8s.io/a"] = json!("nvidia.com/gpu=1");
    let (value, _) = edited(both, &open(), &machine);
    assert_eq!(devices(&value), ["/dev/nvidiactl", "/dev/nvidia1"]);
    assert!(!value.to_string().contains("nvidia-container-devices"));
    // Slots before mounts and environment, beside annotations.
    let agent = Machine::answering(Ok(Answer::Devices(vec!["nvidia.com/gpu=GPU-1".into()])));
    let both = with_markers(granted("containerd.json", "slot-0"), &["0"]);
    let (value, _) = edited(both, &open(), &agent);
    assert_eq!(devices(&value), ["/dev/nvidiactl", "/dev/nvidia1"]);
    // A network card in an annotation leaves the GPUs of the environment alone.
    let mut network = config("containerd.json");
    network["annotations"]["cdi.k8s.io/a"] = json!("nvidia.com/imex-channel=0");
    let (value, _) = edited(network, &open(), &machine);
    assert_eq!(devices(&value), ["/dev/nvidia-caps-imex-channels/channel0"], "a device of NVIDIA's decides");
    // An agent that gives nothing: no GPU, and nothing of the environment either.
    let empty = Machine::answering(Ok(Answer::Devices(Vec::new())));
    let (value, _) = edited(granted("containerd.json", "slot-0"), &open(), &empty);
    assert_eq!(devices(&value), [""; 0]);
}

#[test]
fn a_container_with_slots_is_created_with_what_the_agent_says_or_not_at_all() {
    let slots = || granted("containerd.json", "slot-3,slot-0");
    let policy = Policy::default();
    assert_eq!(
        refused(slots(), &policy, &Machine::new()),
        "container main of pod ml/train-0 has slots (slot-3,slot-0), and the node agent that knows their GPUs does not answer at \
         /run/gantry/agent.sock: nobody listens; the container is tried again when the agent runs"
    );
    let says = |answer| Machine::answering(Ok(answer));
    assert_eq!(
        refused(slots(), &policy, &says(Answer::Refused("GPU-1 belongs to pod x/y".into()))),
        "the node agent refuses container main of pod ml/train-0: GPU-1 belongs to pod x/y"
    );
    assert_eq!(
        refused(slots(), &policy, &says(Answer::Devices(vec!["GPU-1".into()]))),
        "\"GPU-1\" is no CDI device name: it has no '='; write vendor/class=name, as in nvidia.com/gpu=0"
    );
    assert_eq!(
        refused(slots(), &policy, &says(Answer::Devices(vec!["nvidia.com/gpu=7".into()]))),
        "unresolvable CDI devices nvidia.com/gpu=7"
    );
    for (key, missing) in [("sandbox-uid", "no pod UID"), ("container-name", "no container name")] {
        let mut unknown = slots();
        unknown["annotations"].as_object_mut().unwrap().remove(&format!("io.kubernetes.cri.{key}"));
        assert_eq!(
            refused(unknown, &policy, &Machine::new()),
            format!(
                "the container has slots (slot-3,slot-0) but {missing} in its annotations: this runtime needs those that containerd and CRI-O write"
            )
        );
    }
}

#[test]
fn what_another_has_brought_is_not_asked_for_again() {
    let mut told = granted("containerd.json", "slot-0");
    told["annotations"]["gantry.dev/gpus"] = json!("GPU-1");
    let (value, outcome) = edited(told.clone(), &open(), &Machine::new());
    assert_eq!(
        (value, outcome),
        (told, Outcome::default()),
        "no agent is asked, and the environment does not count"
    );
    // The kubelet's own choice, which the runtime was told of, or finds in the environment.
    let (value, _) = edited(granted("containerd.json", "GPU-1"), &Policy::default(), &Machine::new());
    assert_eq!(devices(&value), [""; 0]);
    let mut named = with_env(granted("containerd.json", "GPU-1::2"), &["NVIDIA_VISIBLE_DEVICES=GPU-1"]);
    let (value, _) = edited(named.clone(), &Policy::default(), &Machine::new());
    assert_eq!(devices(&value), ["/dev/nvidiactl", "/dev/nvidia1"]);
    named = with_env(named, &["NVIDIA_VISIBLE_DEVICES=GPU-1,0"]);
    let (value, _) = edited(named, &Policy::default(), &Machine::new());
    assert_eq!(devices(&value), [""; 0], "one of them was not granted");
}

#[test]
fn mounts_count_only_where_policy_says_so() {
    let policy = Policy { accept_volume_mounts: false, ..Policy::default() };
    let marked = with_markers(config("crio.json"), &["0"]);
    let (value, outcome) = edited(marked.clone(), &policy, &Machine::new());
    assert_eq!(value["mounts"], marked["mounts"]);
    assert_eq!(devices(&value), [""; 0]);
    assert_eq!(
        outcome.notes[0].1,
        "container ml/train-0/main: mounts below /var/run/nvidia-container-devices are not honoured: accept-volume-mounts is false in /etc/gantry/runtime.toml"
    );
}

#[test]
fn a_legacy_hook_goes_and_others_stay() {
    let (value, outcome) = edited(config("crio.json"), &Policy::default(), &Machine::new());
    assert_eq!(value["hooks"], json!({ "poststop": config("crio.json")["hooks"]["poststop"] }));
    assert_eq!(
        outcome.notes,
        [(Level::Info, "container ml/train-0/main: NVIDIA's legacy hook is taken out".into())]
    );
}

#[test]
fn what_a_runtime_has_resolved_already_is_not_brought_twice() {
    let machine = Machine::new();
    let mut annotated = config("containerd.json");
    annotated["annotations"]["cdi.k8s.io/a"] = json!("nvidia.com/gpu=0");
    let names = ["nvidia.com/gpu=0".parse().unwrap()];
    machine.specifications(&Policy::default()).inject(&mut annotated, &names).unwrap();
    let (value, outcome) = edited(annotated.clone(), &Policy::default(), &machine);
    assert_eq!(value, annotated);
    assert!(!outcome.changed);
}

#[test]
fn hostile_requests_are_refused_by_field() {
    let machine = Machine::new();
    let grammar = "write an index, a UUID, GPU:PARTITION, all, none, void or a CDI name";
    let name = "the name must begin and end with a letter or digit and have only letters, digits, '_', '-', '.' and ':' between";
    for (value, text) in [
        ("..", format!("process.env[NVIDIA_VISIBLE_DEVICES]: \"..\": {grammar}")),
        ("0\n1", format!("process.env[NVIDIA_VISIBLE_DEVICES]: \"0\\n1\": {grammar}")),
        ("0, 1", format!("process.env[NVIDIA_VISIBLE_DEVICES]: \" 1\": {grammar}")),
        ("../../etc/passwd", "process.env[NVIDIA_VISIBLE_DEVICES]: \"../../etc/passwd\": it has no '='".to_owned()),
        ("nvidia.com/gpu=../0", format!("process.env[NVIDIA_VISIBLE_DEVICES]: \"nvidia.com/gpu=../0\": {name}")),
        (
            "7",
            "process.env[NVIDIA_VISIBLE_DEVICES]: no CDI specification in /etc/cdi, /var/run/cdi describes 7; known: nvidia.com/gpu=0, \
             nvidia.com/gpu=0:1, nvidia.com/gpu=1, nvidia.com/gpu=GPU-1, nvidia.com/gpu=all, nvidia.com/imex-channel=0"
                .to_owned(),
        ),
    ] {
        let config = with_env(config("containerd.json"), &[&format!("NVIDIA_VISIBLE_DEVICES={value}")]);
        assert_eq!(refused(config, &open(), &machine), text);
    }
    let folder = "mounts[/var/run/nvidia-container-devices]";
    let form = "write <id>, cdi/<vendor>/<class>/<name> or imex/<number>";
    let channel = "a channel is a number from 0 to 1048575";
    for (id, text) in [
        ("../../../etc", format!("{folder}: \"../../../etc\": {form}")),
        ("..", format!("{folder}: \"..\": {grammar}")),
        ("cdi/nvidia.com/gpu", format!("{folder}: \"cdi/nvidia.com/gpu\": {form}")),
        ("cdi/nvidia.com/gpu/..", format!("{folder}: \"cdi/nvidia.com/gpu/..\": {name}")),
        ("imex/1048576", format!("{folder}: \"1048576\": {channel}")),
        ("imex/-1", format!("{folder}: \"-1\": {channel}")),
        ("imex/99999999999999999999", format!("{folder}: \"99999999999999999999\": {channel}")),
        ("a/b", format!("{folder}: \"a/b\": {form}")),
        ("GPU-1\u{0}", format!("{folder}: \"GPU-1\\0\": {grammar}")),
    ] {
        assert_eq!(
            refused(with_markers(config("containerd.json"), &[id]), &Policy::default(), &machine),
            text
        );
    }
    let mut annotated = config("containerd.json");
    annotated["annotations"]["cdi.k8s.io/a"] = json!("nvidia.com/gpu");
    assert_eq!(
        refused(annotated, &Policy::default(), &machine),
        "annotations[cdi.k8s.io/a]: \"nvidia.com/gpu\": it has no '='"
    );
}

#[test]
fn huge_requests_are_bounded_and_their_refusals_short() {
    let machine = Machine::new();
    let many: Vec<String> = (0..1_000).map(|number| number.to_string()).collect();
    let text = refused(
        with_env(config("containerd.json"), &[&format!("NVIDIA_VISIBLE_DEVICES={}", many.join(","))]),
        &open(),
        &machine,
    );
    assert!(
        text.contains("describes 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 988 more; known: ") && text.len() < 1_000,
        "{text}"
    );
    let more: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
    let text = refused(
        with_env(config("containerd.json"), &[&format!("NVIDIA_VISIBLE_DEVICES={}", more.join(","))]),
        &open(),
        &machine,
    );
    assert_eq!(
        text,
        "process.env[NVIDIA_VISIBLE_DEVICES]: \"1024\": a container can have 1024 devices at most"
    );
    let long = "x".repeat(1_000_000);
    let (_, outcome) = edited(
        with_env(config("containerd.json"), &[&format!("NVIDIA_VISIBLE_DEVICES={long}")]),
        &Policy::default(),
        &machine,
    );
    assert!(outcome.notes[0].1.len() < 500);
}

#[test]
fn what_the_agent_describes_is_brought_in_and_it_is_told_what_the_image_says() {
    let edits = ContainerEdits {
        env: vec!["FROM=agent".into()],
        device_nodes: vec![DeviceNode {
            path: "/dev/nvidia5".into(),
            kind: Some("c".into()),
            major: Some(195),
            minor: Some(5),
            ..DeviceNode::default()
        }],
        ..ContainerEdits::default()
    };
    // No file describes the device: none is needed.
    let answer = Answer::Edits(vec!["k8s.device-plugin.nvidia.com/gpu=GPU-5".into()], Box::new(edits));
    let agent = Machine::answering(Ok(answer));
    let value = with_env(granted("containerd.json", "slot-2"), &["NVIDIA_DISABLE_REQUIRE=false"]);
    let policy = Policy {
        disable_require: true,
        supported_capabilities: Some("utility,compute".to_owned()),
        ..Policy::default()
    };
    let (value, outcome) = edited(value, &policy, &agent);
    assert_eq!(devices(&value), ["/dev/nvidia5"]);
    assert!(value["process"]["env"].as_array().unwrap().contains(&json!("FROM=agent")));
    let told = "container ml/train-0/main: gets k8s.device-plugin.nvidia.com/gpu=GPU-5".to_owned();
    assert_eq!(outcome.notes, [(Level::Info, told)]);
    let asked = &agent.asked.borrow()[0];
    assert_eq!(
        asked.env,
        [
            "CUDA_VERSION=12.8.0",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            "NVIDIA_REQUIRE_CUDA=cuda>=12.8",
            "NVIDIA_VISIBLE_DEVICES=all",
            "NVIDIA_DISABLE_REQUIRE=true"
        ]
    );
    assert_eq!(asked.supported_capabilities.as_deref(), Some("utility,compute"));
    assert_eq!(asked.image.as_ref().unwrap().library_folder, "/rootfs/lib");
}
