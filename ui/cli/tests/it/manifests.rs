//! What `gantry manifests` prints: objects that an API server takes, and that Helm renders from the same chart.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use gantry_apiserver::{ApiServer, Options};
use gantry_kit::{SeededIds, VirtualClock};
use kube::Client;
use serde_json::{Value, json};

/// What the command prints.
pub(crate) fn manifests(arguments: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_gantry")).arg("manifests").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The objects that it prints.
pub(crate) fn objects(arguments: &[&str]) -> Vec<Value> {
    let list: Value = serde_json::from_str(&manifests(&[arguments, &["-o", "json"]].concat())).unwrap();
    list["items"].as_array().unwrap().clone()
}

fn refusal(arguments: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_gantry")).arg("manifests").args(arguments).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?} is not refused");
    String::from_utf8(output.stderr).unwrap()
}

pub(crate) fn server() -> ApiServer {
    let clock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
    ApiServer::new(Options::new(clock, Arc::new(SeededIds::new(1)))).unwrap()
}

/// Creates objects as `kubectl apply --validate=strict` does: a field that the server does not know is an error.
pub(crate) async fn create(client: &Client, objects: &[Value]) {
    for object in objects {
        let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let prefix = if version.contains('/') { "/apis/" } else { "/api/" };
        let namespace = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("namespaces/{namespace}/"),
            None => String::new(),
        };
        let plural = match kind {
            "RuntimeClass" => "runtimeclasses".to_owned(),
            _ => format!("{}s", kind.to_lowercase()),
        };
        let path = format!("{prefix}{version}/{namespace}{plural}?fieldValidation=Strict");
        let request = http::Request::post(&path).header("content-type", "application/json");
        let request = request.body(object.to_string().into_bytes()).unwrap();
        let created = client.request::<Value>(request).await;
        created.unwrap_or_else(|error| panic!("{path} {}: {error}", object["metadata"]["name"]));
    }
}

#[tokio::test(start_paused = true)]
async fn every_object_is_one_that_the_api_server_takes_to_the_letter() {
    for arguments in [
        &["--set", "controllers.enabled=true"][..],
        &[
            "--set",
            "runtimeClassName=nvidia",
            "--set",
            "config.map.a=version: v1",
            "--set",
            "podAnnotations.a=b",
        ],
        &[
            "--simulate",
            "t4:2",
            "--image",
            "localhost:5000/x/gantry:dev",
            "--config-map",
            "mine",
            "-n",
            "gpu",
        ],
        &["--set", "nfd.enableNodeFeatureApi=true"],
        &["--set", "health.taint=true", "--set", "health.xidResponses=109=suspend"],
        &["--set", "nfd.enableNodeFeatureApi=false"],
        &["--set", "imagePullSecrets={}", "--set", "identity=kubelet", "--set", "scheduler.nodeSelector.a=b"],
        &["--set", "toolkit.enabled=true"],
    ] {
        let server = server();
        create(&server.client(), &objects(arguments)).await;
    }
    let strict = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "x", "namespace": "default" }, "no": 1 });
    let request = http::Request::post("/api/v1/namespaces/default/serviceaccounts?fieldValidation=Strict")
        .header("content-type", "application/json")
        .body(strict.to_string().into_bytes())
        .unwrap();
    assert!(server().client().request::<Value>(request).await.is_err(), "the server is not strict");
}

fn named(objects: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    objects
        .iter()
        .map(|object| format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"])))
        .collect()
}

#[test]
fn each_part_can_be_had_alone() {
    assert_eq!(
        named(&objects(&["--only", "agent"])),
        [
            "Namespace/gantry-system",
            "ServiceAccount/gantry-agent",
            "ClusterRole/gantry-agent",
            "ClusterRoleBinding/gantry-agent",
            "DaemonSet/gantry-agent"
        ]
    );
    let scheduler = named(&objects(&["--only", "scheduler", "-n", "kube-system"]));
    assert_eq!(scheduler.first().map(String::as_str), Some("Namespace/kube-system"));
    assert_eq!(scheduler.last().map(String::as_str), Some("Deployment/gantry-scheduler"));
    assert_eq!(named(&objects(&["--only", "runtimeclass"])), ["RuntimeClass/nvidia"]);
    assert!(
        named(&objects(&["--only", "crds"]))
            .contains(&"CustomResourceDefinition/gpunodes.gantry.dev".to_owned())
    );
    assert!(
        named(&objects(&["--only", "controllers"])).contains(&"Deployment/gantry-controllers".to_owned())
    );
    let all = named(&objects(&[]));
    assert!(all[0].starts_with("CustomResourceDefinition/"), "definitions come before what needs them");
    assert!(
        !all.iter().any(|name| name.contains("controllers") || name.contains("volcano")),
        "where Volcano runs, its Jobs and their definitions are its own"
    );
    let with = named(&objects(&["--only", "crds,controllers"]));
    assert!(with.contains(&"CustomResourceDefinition/jobs.batch.volcano.sh".to_owned()), "{with:?}");
    assert!(!named(&objects(&["--no-scheduler"])).iter().any(|name| name.contains("scheduler")));
}

fn agent(arguments: &[&str]) -> Value {
    let objects = objects(&[&["--only", "agent"], arguments].concat());
    objects.last().unwrap()["spec"]["template"]["spec"].clone()
}

#[test]
fn the_agent_is_privileged_only_where_nothing_else_opens_device_files() {
    let security = |arguments: &[&str]| agent(arguments)["containers"][0]["securityContext"].clone();
    assert_eq!(security(&[])["privileged"], true);
    for arguments in [
        &["--set", "runtimeClassName=nvidia"][..],
        &["--simulate", "a100-80"],
        &["--set", "privileged=false"],
    ] {
        let context = security(arguments);
        assert_eq!(context["privileged"], Value::Null, "{arguments:?}");
        assert_eq!(
            (&context["allowPrivilegeEscalation"], &context["capabilities"]["drop"]),
            (&json!(false), &json!(["ALL"]))
        );
    }
    let volumes = |arguments: &[&str]| -> Vec<String> {
        let spec = agent(arguments);
        let names = spec["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|volume| volume["name"].as_str().unwrap().to_owned());
        names.collect()
    };
    assert_eq!(
        volumes(&["--simulate", "t4", "--set", "identity=kubelet"]),
        ["device-plugins", "cdi", "state"]
    );
    assert!(!volumes(&["--set", "runtimeClassName=nvidia"]).contains(&"dev".to_owned()));
    assert_eq!(
        volumes(&["--simulate", "t4", "--set", "toolkit.enabled=true"]),
        ["device-plugins", "cdi", "state", "pod-resources", "run", "pods", "toolkit", "runtime-config"]
    );
    assert!(
        !volumes(&["--set", "toolkit.enabled=true", "--set", "identity=nri"]).contains(&"run".to_owned())
    );
}

#[test]
fn the_agent_brings_the_runtime_wrapper_to_its_node_when_asked_to() {
    assert_eq!(agent(&[])["initContainers"], Value::Null);
    let spec = agent(&[
        "--set",
        "toolkit.enabled=true",
        "--set",
        "toolkit.installDir=/opt/gantry",
        "--set",
        "runtimeClass.handler=gpu",
    ]);
    let commands: Vec<&Value> =
        spec["initContainers"].as_array().unwrap().iter().map(|container| &container["args"]).collect();
    assert_eq!(
        commands,
        [
            &json!(["runtime", "install", "/opt/gantry"]),
            &json!([
                "runtime",
                "configure",
                "--runtime=containerd",
                "--config=/etc/containerd/config.toml",
                "--nvidia-runtime-name=gpu",
                "--nvidia-runtime-path=/opt/gantry/gantry-runtime"
            ])
        ]
    );
    let arguments = spec["containers"][0]["args"].as_array().unwrap();
    assert!(arguments.contains(&json!("--identity=shim")), "{arguments:?}");
    assert!(
        refusal(&["--set", "toolkit.enabled=true", "--set", "runtimeClassName=nvidia"])
            .contains("runtimeClassName: the agent installs the runtime that toolkit.enabled asks for")
    );
}

/// The agent's environment, as far as it is plain text.
fn environment(arguments: &[&str]) -> BTreeMap<String, String> {
    let spec = agent(arguments);
    let env = spec["containers"][0]["env"].as_array().unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    env.iter().filter_map(|entry| Some((text(&entry["name"])?, text(&entry["value"])?))).collect()
}

#[test]
fn what_faults_mean_is_set_by_values() {
    let about_health = |arguments: &[&str]| -> Vec<String> {
        let arguments = agent(arguments)["containers"][0]["args"].as_array().unwrap().clone();
        let mut texts =
            arguments.iter().map(|argument| argument.as_str().unwrap().to_owned()).collect::<Vec<_>>();
        texts.retain(|text| ["--health", "--xid", "--taint"].iter().any(|start| text.starts_with(start)));
        texts
    };
    assert_eq!(about_health(&[]), ["--health-profile=gantry"]);
    let all = [
        "--set",
        "health.profile=nvidia",
        "--set",
        "health.xidResponses=63=ignore",
        "--set",
        "health.taint=true",
    ];
    assert_eq!(
        about_health(&all),
        ["--health-profile=nvidia", "--xid-responses=63=ignore", "--taint-unhealthy"]
    );
    let tolerates = |values: &[&str]| agent(values)["tolerations"].to_string().contains("gpu-unhealthy");
    assert!(tolerates(&all) && !tolerates(&[]), "the agent stays on a node that it has tainted");
    assert!(tolerates(&["--set", "tolerations=null", "--set", "health.taint=true"]));
}

#[test]
fn feature_discovery_is_set_by_nvidias_values() {
    let feature_discovery = |arguments: &[&str]| -> Vec<(String, String)> {
        environment(arguments).into_iter().filter(|(name, _)| name.starts_with("GFD_")).collect()
    };
    assert_eq!(feature_discovery(&[]), []);
    let set = |values: &[&'static str]| values.iter().flat_map(|value| ["--set", *value]).collect::<Vec<_>>();
    let all = set(&["gfd.noTimestamp=false", "gfd.sleepInterval=2m", "nfd.enableNodeFeatureApi=false"]);
    let expected =
        [("GFD_NO_TIMESTAMP", "false"), ("GFD_SLEEP_INTERVAL", "2m"), ("GFD_USE_NODE_FEATURE_API", "false")];
    assert_eq!(feature_discovery(&all), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let mounts = |arguments: &[&str]| agent(arguments)["containers"][0]["volumeMounts"].to_string();
    assert!(mounts(&all).contains("features.d"), "a file is written where it is read");
    assert!(!mounts(&[]).contains("features.d"));
    let has_role = |arguments: &[&str]| {
        named(&objects(&[&["--only", "agent"], arguments].concat())).contains(&"Role/gantry-agent".to_owned())
    };
    assert!(has_role(&set(&["nfd.enableNodeFeatureApi=true"])));
    assert!(has_role(&["--config-map", "mine"]), "a file may ask for it");
    assert!(!has_role(&[]) && !has_role(&all));
    assert_eq!(environment(&set(&["failOnInitError=true"]))["FAIL_ON_INIT_ERROR"], "true");
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    for (arguments, expected) in [
        (
            &["-n", "default"][..],
            "error: render the manifests: templates/_helpers.tpl:33: the namespace default is where everybody's pods are: install with --namespace gantry-system --create-namespace, or set allowDefaultNamespace\n",
        ),
        (
            &["--set", "scheduler.replica=3"],
            "error: --set scheduler.replica=3: value scheduler.replica: the chart has none of this name\nhint: there are affinity, enabled, names, nodeSelector, priorityClassName, replicas, resources, tolerations\n",
        ),
        (&["-f", "/no/such/file"], "error: read /no/such/file: No such file or directory (os error 2)\n"),
    ] {
        assert_eq!(refusal(arguments), expected);
    }
    assert!(
        refusal(&["--set", "gfd.enabled=false"]).contains("gfd.enabled: the agent writes the labels itself")
    );
}

/// Helm, where it has been built or installed.
fn helm() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let built = cache.into_iter().flat_map(|cache| std::fs::read_dir(cache.join("gantry/kubernetes/bin")));
    let built = built.flatten().flatten().map(|entry| entry.path().join("helm"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    built.chain(std::env::split_paths(&path).map(|folder| folder.join("helm"))).find(|path| path.is_file())
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let keys = named(&objects);
    keys.into_iter().zip(objects).collect()
}

/// Objects from YAML, without what tells who has rendered them.
fn parsed(text: &str) -> Vec<Value> {
    let text = text.replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: gantry");
    let documents = format!("\n{text}");
    let documents = documents.split("\n---").map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    documents.filter(|value| !value.is_null()).collect()
}

#[test]
#[expect(clippy::print_stderr, reason = "what is skipped says so")]
fn helm_renders_the_same_objects() {
    let Some(helm) = helm() else {
        eprintln!("skipped: no helm here; cargo xtask kubernetes helm builds one");
        return;
    };
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/gantry");
    let run = |arguments: &[&str]| {
        let output = Command::new(&helm).args(arguments).output().unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success(), text)
    };
    let (fine, text) = run(&["lint", "--strict", "--namespace", "gantry-system", chart]);
    assert!(fine, "{text}");
    let folder = tempfile::tempdir().unwrap();
    let values = folder.path().join("values.yaml");
    std::fs::write(
        &values,
        "config:\n  map:\n    default: |\n      version: v1\n      sharing:\n        timeSlicing:\n          resources: [{name: nvidia.com/gpu, replicas: 2}]\n  default: default\nresources: {limits: {cpu: 1}}\nnodeSelector: {a/b: \"true\"}\npodAnnotations: {x: '1'}\n",
    )
    .unwrap();
    let values = values.to_str().unwrap();
    for arguments in [
        &[][..],
        &[
            "--set",
            "controllers.enabled=true",
            "--set",
            "scheduler.names={a,b}",
            "--set",
            "scheduler.replicas=1",
        ],
        &["--set", "runtimeClassName=nvidia", "--set", "runtimeClass.create=false", "--set", "affinity=null"],
        &["--set", "simulate=t4:2", "--set", "identity=kubelet", "--set", "fullnameOverride=gpus"],
        &["--set", "nameOverride=x", "--set", "privileged=false", "--set", "tolerations=null"],
        &["--set", "nfd.enableNodeFeatureApi=false", "--set", "gfd.noTimestamp=true"],
        &["--set", "nfd.enableNodeFeatureApi=true", "--set", "gfd.sleepInterval=5m"],
        &["--set", "health.profile=nvidia", "--set", "health.xidResponses=109=suspend"],
        &["--set", "health.taint=true", "--set", "tolerations=null"],
        &["--values", values, "--set", "image.tag=dev"],
        &[
            "--set",
            "toolkit.enabled=true",
            "--set",
            "toolkit.runtime=crio",
            "--set",
            "toolkit.configDir=/etc/crio",
        ],
        &["--set", "identity=shim"],
    ] {
        let (fine, text) = run(&[
            &[
                "template",
                "gantry",
                chart,
                "--namespace",
                "gantry-system",
                "--include-crds",
                "--kube-version",
                "1.34.0",
            ],
            arguments,
        ]
        .concat());
        assert!(fine, "{text}");
        let mut ours = parsed(&manifests(arguments));
        ours.retain(|object| object["kind"] != "Namespace");
        let (ours, mut helms) = (by_name(ours), by_name(parsed(&text)));
        if !arguments.contains(&"controllers.enabled=true") {
            // Helm leaves definitions alone that are there, and has no condition for them.
            helms.retain(|name, _| !name.ends_with(".volcano.sh"));
        }
        assert_eq!(ours.keys().collect::<Vec<_>>(), helms.keys().collect::<Vec<_>>(), "{arguments:?}");
        for (name, object) in &ours {
            assert_eq!(object, &helms[name], "{arguments:?}: {name}");
        }
    }
    for (arguments, expected) in [
        (&["--set", "scheduler.replica=1"][..], "replica"),
        (&["--namespace", "default"], "the namespace default is where everybody's pods are"),
        (&["--set", "logFormat=xml"], "logFormat"),
        (&["--set", "health.profile=any"], "profile"),
    ] {
        let (fine, text) =
            run(&[&["template", "gantry", chart, "--kube-version", "1.34.0"], arguments].concat());
        assert!(!fine && text.contains(expected), "{arguments:?}: {text}");
    }
}
