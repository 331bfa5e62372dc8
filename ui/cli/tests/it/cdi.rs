//! `gantry cdi`: files for container runtimes, without a cluster.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};

use gantry_gpu::{Profile, SimGpus};
use serde_json::{Value, json};

use crate::place::Place;

/// A machine's disk with a driver.
fn disk() -> (Place, String) {
    let place = Place::new();
    let root = place.path().join("driver");
    SimGpus::new(Profile::named("a100-40").unwrap(), 1, "n", 1).unwrap().install_driver(&root).unwrap();
    let root = root.to_str().unwrap().to_owned();
    (place, root)
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn names(spec: &Value) -> Vec<String> {
    spec["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["name"].as_str().unwrap().to_owned())
        .collect()
}

fn with_input(place: &Place, arguments: &[&str], input: &str) -> Output {
    let mut command = place.command(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn generate_writes_what_runtimes_read() {
    let (place, root) = disk();
    let generate = |rest: &[&str]| {
        let first = ["cdi", "generate", "--driver-root", &root, "--simulate", "a100-40:2"];
        place.ok(&[&first, rest].concat())
    };
    let text = generate(&[]);
    assert!(
        text.starts_with("cdiVersion: \"0.5.0\"\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n"),
        "{text}"
    );
    assert_eq!(yaml(&text), serde_json::from_str::<Value>(&generate(&["--format", "json"])).unwrap());
    assert_eq!(names(&yaml(&text)).len(), 5);
    let named = yaml(&generate(&[
        "--device-name-strategy",
        "type-index",
        "--vendor",
        "example.com",
        "--class",
        "card",
    ]));
    assert_eq!(
        (names(&named), &named["kind"]),
        (vec!["gpu0".into(), "gpu1".into(), "all".into()], &json!("example.com/card"))
    );
    let mounts = |spec: &Value| spec["containerEdits"]["mounts"].as_array().unwrap().len();
    let utility = yaml(&generate(&["--driver-capabilities", "utility"]));
    assert!(mounts(&utility) < mounts(&yaml(&text)));

    let file = place.path().join("out/nvidia.json");
    let path = file.to_str().unwrap();
    let told = generate(&["--output", path]);
    assert_eq!(told, format!("{path}: 5 devices of kind nvidia.com/gpu, driver 550.54.15\n"));
    assert_eq!(serde_json::from_str::<Value>(&fs::read_to_string(&file).unwrap()).unwrap(), yaml(&text));
    assert_eq!(place.ok(&["cdi", "validate", path]), format!("{path}: valid, kind nvidia.com/gpu\n"));
}

#[test]
fn generate_describes_the_gpus_of_a_file() {
    let (place, root) = disk();
    let file = place.path().join("gpus.yaml");
    fs::write(
        &file,
        "gpus:\n- {uuid: GPU-a, index: 0, minor: 1, pciBusId: \"00000000:07:00.0\"}\n- uuid: GPU-b\n  index: 1\n  mig: []\n",
    )
    .unwrap();
    let arguments = ["cdi", "generate", "--driver-root", &root, "--driver-version", "550.54.15", "--devices"];
    let gpus = file.to_str().unwrap();
    let with = [&arguments[..], &[gpus]].concat();
    let output = place.run(&with);
    let spec = yaml(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(names(&spec), ["0", "GPU-a", "all"]);
    let node = &spec["devices"][0]["containerEdits"]["deviceNodes"][0];
    assert_eq!(node["path"], "/dev/nvidia1");
    for (text, expected) in [
        (
            "gpus: []",
            "error: no device for nvidia.com/gpu: no GPU that answers, or only GPUs in MIG mode without MIG devices",
        ),
        (
            "gpus: [{uuid: \"a b\", index: 0}]",
            "gpus.yaml: \"a b\" is no GPU id: use 1 to 63 letters, digits or '-'",
        ),
        ("gpus: [{uuid: a, index: 0, minr: 1}]", "unknown field `minr`"),
        ("cards: []", "hint: the file's form: gpus: [{uuid: GPU-…, index: 0"),
    ] {
        fs::write(&file, text).unwrap();
        let told = place.refused(&with);
        assert!(told.contains(expected), "{told}");
    }
    assert!(
        place
            .refused(&[&arguments[..], &["/nowhere"]].concat())
            .starts_with("error: read /nowhere: No such file")
    );
}

#[test]
fn generate_says_what_is_missing() {
    let (place, root) = disk();
    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let told =
        place.refused(&["cdi", "generate", "--driver-root", empty.to_str().unwrap(), "--simulate", "t4"]);
    assert!(told.starts_with(&format!("error: no NVIDIA driver below {}: ", empty.display())), "{told}");
    assert!(told.ends_with("hint: gantry cdi generate --driver-root /run/nvidia/driver\n"), "{told}");
    let told = place.refused(&[
        "cdi",
        "generate",
        "--driver-root",
        &root,
        "--simulate",
        "t4",
        "--driver-version",
        "570.86.15",
    ]);
    assert!(told.contains("driver version mismatch: the running driver is 570.86.15, and below"), "{told}");
    for (arguments, expected) in [
        (&["--simulate", "t5"][..], "GPU model \"t5\" is not known: use one of a100-40"),
        (&["--simulate", "t4:x"], "\"x\" is no number of GPUs"),
        (&["--device-name-strategy", "name"], "use index, uuid or type-index"),
        (&["--driver-capabilities", "gpu"], "unknown driver capability \"gpu\": use all, or some of compute"),
        (&["--mode", "csv"], "possible values: auto, nvml, management, gds"),
        (
            &["--simulate", "t4", "--vendor", "9"],
            "kind: invalid value \"9/gpu\": the vendor must begin with a letter",
        ),
        (
            &["--simulate", "t4", "--mode", "gds"],
            "no device for nvidia.com/gds: no device file /dev/nvidia-fs*",
        ),
    ] {
        let told = place.refused(&[&["cdi", "generate", "--driver-root", &root], arguments].concat());
        assert!(told.contains(expected), "{told}");
    }
}

/// Two folders: a good file, the same device twice, a damaged file.
fn folders(place: &Place, root: &str) -> String {
    let (etc, run) = (place.path().join("etc"), place.path().join("run"));
    let output = run.join("nvidia.yaml");
    place.ok(&[
        "cdi",
        "generate",
        "--driver-root",
        root,
        "--simulate",
        "a100-40",
        "--output",
        output.to_str().unwrap(),
    ]);
    fs::create_dir(&etc).unwrap();
    let spec = |kind: &str| json!({ "cdiVersion": "0.3.0", "kind": kind, "devices": [{ "name": "x", "containerEdits": { "env": ["A=1"] } }] });
    fs::write(etc.join("a.json"), spec("vendor.com/net").to_string()).unwrap();
    fs::write(etc.join("b.json"), spec("vendor.com/net").to_string()).unwrap();
    fs::write(etc.join("broken.json"), r#"{"cdiVersion":"0.3.0","kind":"a/b","devices":[]}"#).unwrap();
    format!("{},{}", etc.display(), run.display())
}

#[test]
fn list_tells_devices_files_and_conflicts() {
    let (place, root) = disk();
    let folders = folders(&place, &root);
    let output = place.run(&["cdi", "list", "--spec-dir", &folders]);
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["DEVICE", "STATE", "FILE"]);
    assert_eq!(lines.len(), 5, "{table}");
    assert_eq!(lines[1][..2], ["nvidia.com/gpu=0", "ok"]);
    assert!(lines[1][2].ends_with("/run/nvidia.yaml"), "{table}");
    assert_eq!(lines[4][..2], ["vendor.com/net=x", "conflict"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("broken.json: devices: invalid value \"[]\": must have at least one device"),
        "{told}"
    );
    assert!(
        told.contains("warning: runtimes refuse devices that two files of one folder describe"),
        "{told}"
    );
    let document: Value =
        serde_json::from_str(&place.ok(&["cdi", "list", "--spec-dir", &folders, "-o", "json"])).unwrap();
    assert_eq!(document["devices"].as_array().unwrap().len(), 3);
    assert_eq!(document["conflicts"][0]["name"], "vendor.com/net=x");
    assert_eq!(document["errors"].as_array().unwrap().len(), 1);
    let names = place.ok(&["cdi", "list", "--spec-dir", &folders, "-o", "name"]);
    assert_eq!(names.lines().next(), Some("nvidia.com/gpu=0"));
    let none = place.run(&["cdi", "list", "--spec-dir", "/nowhere"]);
    assert!(none.status.success() && none.stdout.is_empty());
    assert_eq!(
        String::from_utf8(none.stderr).unwrap(),
        "no CDI devices found\nhint: gantry cdi generate --output /var/run/cdi/nvidia.yaml\n"
    );
}

#[test]
fn validate_names_file_field_and_rule() {
    let (place, root) = disk();
    folders(&place, &root);
    let (etc, run) = (place.path().join("etc"), place.path().join("run"));
    assert!(
        place
            .ok(&["cdi", "validate", run.to_str().unwrap()])
            .ends_with("nvidia.yaml: valid, kind nvidia.com/gpu\n")
    );
    let output = place.run(&["cdi", "validate", etc.to_str().unwrap(), run.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8(output.stdout).unwrap();
    let bad = format!(
        "{}/broken.json: devices: invalid value \"[]\": must have at least one device",
        etc.display()
    );
    assert!(lines.lines().any(|line| line == bad), "{lines}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "error: 1 of 4 files are not valid\n");
    let output = place.run(&["cdi", "validate", "-o", "json", etc.join("broken.json").to_str().unwrap()]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document[0]["valid"], &document[0]["error"]), (&json!(false), &json!(bad)));
    assert!(place.refused(&["cdi", "validate", "/nowhere.json"]).contains("1 of 1 files are not valid"));
}

#[test]
fn inject_applies_devices_to_a_configuration() {
    let (place, root) = disk();
    let folders = folders(&place, &root);
    let config =
        json!({ "ociVersion": "1.2.0", "process": { "env": ["PATH=/bin"] }, "vendorField": 1 }).to_string();
    let output = with_input(&place, &["cdi", "inject", "nvidia.com/gpu=0", "--spec-dir", &folders], &config);
    assert!(output.status.success(), "{output:?}");
    let changed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(changed["linux"]["devices"].as_array().unwrap().len(), 5);
    assert_eq!((&changed["vendorField"], changed.get("hooks")), (&json!(1), None));
    let file = place.path().join("config.json");
    let path = file.to_str().unwrap();
    fs::write(&file, &config).unwrap();
    let arguments = ["cdi", "inject", "nvidia.com/gpu=0", "--spec-dir", &folders, "--config", path];
    assert_eq!(place.ok(&arguments), String::from_utf8(output.stdout).unwrap());
    assert_eq!(fs::read_to_string(Path::new(path)).unwrap(), config);
    place.ok(&[&arguments[..], &["--in-place"]].concat());
    assert_eq!(serde_json::from_str::<Value>(&fs::read_to_string(&file).unwrap()).unwrap(), changed);
    for (device, expected) in [
        (
            "nvidia.com/gpu=9",
            "error: unresolvable CDI devices nvidia.com/gpu=9\nhint: gantry cdi list --spec-dir ",
        ),
        ("vendor.com/net=x", "error: unresolvable CDI devices vendor.com/net=x: "),
        ("gpu0", "error: \"gpu0\" is no CDI device name: it has no '='; write vendor/class=name"),
    ] {
        let told = place.refused(&["cdi", "inject", device, "--spec-dir", &folders, "--config", path]);
        assert!(told.starts_with(expected), "{told}");
    }
    let output = with_input(&place, &["cdi", "inject", "nvidia.com/gpu=0", "--spec-dir", &folders], "{");
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: standard input is not JSON: EOF"));
}
