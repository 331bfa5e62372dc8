//! What each part may do in the cluster is what it does there: everything it needs, and nothing else.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use gantry_agent::{Agent, IdentityMode};
use gantry_apiserver::{ApiServer, ApiService, User};
use gantry_gpu::{Profile, SimGpus};
use gantry_kit::{CancellationToken, SeededIds, SystemClock};
use gantry_scheduler::Scheduler;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tower::Service;

use crate::manifests::{create, objects, server};

/// Group, resource with subresource, verb.
type Right = (String, String, String);

/// A service account's way to the server: tells who asks, writes down what for.
#[derive(Clone)]
struct Account {
    service: ApiService,
    token: String,
    used: Arc<Mutex<BTreeSet<Right>>>,
    refused: Arc<Mutex<Vec<String>>>,
    /// Bindings that fail before one gets through.
    failing: Arc<AtomicUsize>,
    /// Whether requests are never answered, nor seen by the server.
    cut: Arc<AtomicBool>,
    /// Bindings that reached the server.
    bindings: Arc<AtomicUsize>,
}

impl Account {
    fn new(server: &ApiServer, name: &str) -> Self {
        let user = format!("system:serviceaccount:gantry-system:{name}");
        let groups =
            ["system:serviceaccounts", "system:serviceaccounts:gantry-system", "system:authenticated"];
        server.add_token(name, User::new(&user, &groups));
        Self {
            service: server.service(),
            token: name.to_owned(),
            used: Arc::default(),
            refused: Arc::default(),
            failing: Arc::default(),
            cut: Arc::default(),
            bindings: Arc::default(),
        }
    }

    fn client(&self) -> Client {
        Client::new(self.clone(), "gantry-system")
    }

    /// That everything was allowed, and nothing is that was not asked for.
    fn is_held_to(&self, granted: &BTreeSet<Right>) {
        assert_eq!(*self.refused.lock().unwrap(), Vec::<String>::new());
        assert_eq!(*self.used.lock().unwrap(), *granted, "used (left) and granted (right) differ");
    }
}

impl Service<Request<Body>> for Account {
    type Response = Response<gantry_apiserver::Body>;
    type Error = Infallible;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request.headers_mut().insert("authorization", format!("Bearer {}", self.token).parse().unwrap());
        let right = right(request.method(), request.uri().path(), request.uri().query().unwrap_or_default());
        let (mut service, refused, what) =
            (self.service.clone(), self.refused.clone(), format!("{} {}", request.method(), request.uri()));
        let (mut binding, mut broken) = (false, false);
        if let Some(right) = right {
            binding = right.1 == "pods/binding";
            self.used.lock().unwrap().insert(right);
            let fails = |left: usize| left.checked_sub(1);
            if binding && self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
                broken = true;
                *request.uri_mut() = "/broken".parse().unwrap();
            }
        }
        let (cut, bindings) = (self.cut.clone(), self.bindings.clone());
        Box::pin(async move {
            if cut.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            bindings.fetch_add(binding.into(), Ordering::SeqCst);
            let response = service.call(request).await?;
            if response.status() == StatusCode::FORBIDDEN && !broken {
                refused.lock().unwrap().push(what);
            }
            Ok(response)
        })
    }
}

/// What a request asks for, in the words of RBAC; nothing for discovery.
fn right(method: &Method, path: &str, query: &str) -> Option<Right> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, name, sub) = match rest {
        [] => return None,
        [resource] => (*resource, None, None),
        [resource, name] => (*resource, Some(name), None),
        [resource, name, sub, ..] => (*resource, Some(name), Some(sub)),
    };
    let verb = match (method.as_str(), name) {
        ("GET", Some(_)) => "get",
        ("GET", None) if query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1") => "watch",
        ("GET", None) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", Some(_)) => "delete",
        _ => "deletecollection",
    };
    let resource = sub.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}"));
    Some((group.to_owned(), resource, verb.to_owned()))
}

/// What the roles among these objects grant.
fn granted(objects: &[Value]) -> BTreeSet<Right> {
    let words = |rule: &Value, key: &str| -> Vec<String> {
        rule[key].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for object in objects.iter().filter(|object| object["kind"].as_str().unwrap().ends_with("Role")) {
        for rule in object["rules"].as_array().unwrap() {
            for group in words(rule, "apiGroups") {
                for resource in words(rule, "resources") {
                    for verb in words(rule, "verbs") {
                        rights.insert((group.clone(), resource.clone(), verb));
                    }
                }
            }
        }
    }
    rights
}

/// A cluster with our definitions and one part's accounts and roles; the part's name is its account's.
async fn cluster(part: &str) -> (ApiServer, Account, BTreeSet<Right>) {
    cluster_with(part, &[]).await
}

async fn cluster_with(part: &str, values: &[&str]) -> (ApiServer, Account, BTreeSet<Right>) {
    let server = server();
    let parts = format!("crds,{part}");
    let manifests = objects(&[&["--only", &parts], values].concat());
    create(&server.client(), &manifests).await;
    let account = Account::new(&server, &format!("gantry-{part}"));
    (server, account, granted(&manifests))
}

async fn until<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) {
    let waited = timeout(Duration::from_secs(60), async {
        while !check().await {
            sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: not within a minute");
}

async fn get(client: &Client, path: &str) -> Option<Value> {
    match client.request::<Value>(Request::get(path).body(Vec::new()).unwrap()).await {
        Ok(value) => Some(value),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("{path}: {error}"),
    }
}

fn node(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } })
}

async fn patch(client: &Client, path: &str, body: Value) {
    let request = Request::patch(path).header("content-type", "application/merge-patch+json");
    client.request::<Value>(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
}

/// What Node Feature Discovery installs, as far as an agent writes it.
fn node_feature_definition() -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "nodefeatures.nfd.k8s-sigs.io" },
        "spec": {
            "group": "nfd.k8s-sigs.io", "scope": "Namespaced",
            "names": { "plural": "nodefeatures", "singular": "nodefeature", "kind": "NodeFeature" },
            "versions": [{ "name": "v1alpha1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema } }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_may_do_what_it_does() {
    let (server, account, granted) = cluster_with("agent", &["--config-map", "configs"]).await;
    let admin = server.client();
    create(&admin, &[node("node-1"), node_feature_definition()]).await;
    let folder = tempfile::tempdir().unwrap();
    let gpus = SimGpus::new(Profile::named("t4").unwrap(), 2, "node-1", 0).unwrap();
    std::fs::create_dir(folder.path().join("configs")).unwrap();
    std::fs::write(folder.path().join("configs/usual"), "version: v1\nflags: {useNodeFeatureAPI: true}\n")
        .unwrap();
    let env = [
        ("CONFIG_FILE_SRCDIR", folder.path().join("configs").to_str().unwrap()),
        ("DEFAULT_CONFIG", "usual"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = gantry_agent::ConfigSource::from_env(std::collections::BTreeMap::new(), env.into()).unwrap();
    let (agent, _handle) = Agent::new(gantry_agent::Options {
        node_name: "node-1".to_owned(),
        backend: gpus,
        identity: IdentityMode::Kubelet.into(),
        // Nobody listens there, but whoever is asked through it wants to know the node's pods.
        nri: Some(folder.path().join("nri.sock")),
        pod_resources: None,
        kubelet_pods: None,
        resource: "nvidia.com/gpu".to_owned(),
        config,
        kubelet_dir: folder.path().join("plugins"),
        cdi_dir: folder.path().join("cdi"),
        driver_root: gantry_driver::Root::new(folder.path()),
        devices: None,
        state_dir: folder.path().join("state"),
        client: Some(account.client()),
        clock: Arc::new(SystemClock),
        watch: None,
        features: gantry_agent::FeatureOptions {
            namespace: "gantry-system".to_owned(),
            ..gantry_agent::FeatureOptions::default()
        },
        health: gantry_agent::HealthOptions::default(),
    })
    .unwrap();
    let cancel = CancellationToken::new();
    let running = tokio::spawn(agent.run(cancel.clone()));
    until("the node's GPUs are reported", async || {
        let path = "/apis/gantry.dev/v1alpha1/gpunodes/node-1";
        get(&admin, path)
            .await
            .is_some_and(|node| node["status"]["gpus"].as_array().is_some_and(|gpus| gpus.len() == 2))
    })
    .await;
    let feature =
        "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gantry-system/nodefeatures/nvidia-features-for-node-1";
    let labels = async || get(&admin, feature).await.map(|feature| feature["spec"]["labels"].clone());
    until("Node Feature Discovery is given labels", async || {
        labels().await.is_some_and(|labels| labels["nvidia.com/gpu.count"] == "2")
    })
    .await;
    let file = folder.path().join("configs/usual");
    std::fs::write(&file, "version: v1\nflags: {useNodeFeatureAPI: true, gfd: {noTimestamp: true}}\n")
        .unwrap();
    until("they change with the configuration", async || {
        labels().await.is_some_and(|labels| labels["nvidia.com/gfd.timestamp"].is_null())
    })
    .await;
    std::fs::write(&file, "version: v1\n").unwrap();
    until("the node has labels", async || {
        let node = get(&admin, "/api/v1/nodes/node-1").await.unwrap();
        node["metadata"]["labels"]["nvidia.com/gpu.count"] == "2" && labels().await.is_none()
    })
    .await;
    let label = json!({ "metadata": { "labels": { "nvidia.com/device-plugin.config": "unknown" } } });
    patch(&admin, "/api/v1/nodes/node-1", label).await;
    until("an Event says that there is no such configuration", async || {
        let events = get(&admin, "/api/v1/namespaces/default/events").await.unwrap();
        !events["items"].as_array().unwrap().is_empty()
    })
    .await;
    cancel.cancel();
    running.await.unwrap();
    // What a failing GPU asks for need not be part of this day.
    let failing: Right = (String::new(), "nodes/status".to_owned(), "patch".to_owned());
    account.used.lock().unwrap().insert(failing);
    account.is_held_to(&granted);
}

fn pod(name: &str, gpus: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "schedulerName": "gantry-scheduler",
            "containers": [{ "name": "main", "image": "x", "resources": { "limits": { "nvidia.com/gpu": gpus } } }],
        },
    })
}

#[tokio::test(start_paused = true)]
async fn the_scheduler_may_do_what_it_does() {
    let (server, account, granted) = cluster("scheduler").await;
    let admin = server.client();
    create(&admin, &[node("node-1")]).await;
    let status = json!({ "status": {
        "allocatable": { "cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "2" },
        "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    patch(&admin, "/api/v1/nodes/node-1/status", status).await;
    // One binding fails, and what became of it is looked up.
    account.failing.store(1, Ordering::SeqCst);
    let (cancel, running) = candidate(&account, "me", 3);
    create(&admin, &[pod("fits", 1), pod("never", 99)]).await;
    until("one pod is bound and the other told why not", async || {
        let fits = get(&admin, "/api/v1/namespaces/default/pods/fits").await.unwrap();
        let never = get(&admin, "/api/v1/namespaces/default/pods/never").await.unwrap();
        fits["spec"]["nodeName"] == "node-1" && never["status"]["conditions"][0]["reason"] == "Unschedulable"
    })
    .await;
    // A few renewals of the Lease, and events.
    sleep(Duration::from_secs(10)).await;
    cancel.cancel();
    running.await.unwrap();
    account.is_held_to(&granted);
}

/// A scheduler that stands for election.
fn candidate(
    account: &Account,
    identity: &str,
    seed: u64,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let (clock, ids) = (Arc::new(SystemClock), Arc::new(SeededIds::new(seed)));
    let options = gantry_scheduler::Options::new(account.client(), clock.clone(), ids.clone());
    let text = |text: &str| text.to_owned();
    let election = gantry_leader::Options::new(
        account.client(),
        clock,
        ids,
        text("gantry-system"),
        text("gantry-scheduler"),
        text(identity),
    );
    let cancel = CancellationToken::new();
    let running = tokio::spawn(gantry_leader::lead(election, cancel.clone(), move |term| {
        let (scheduler, _) = Scheduler::new(options.clone()).unwrap();
        scheduler.run(term)
    }));
    (cancel, running)
}

async fn bound(admin: &Client, name: &str) -> bool {
    let pod = get(admin, &format!("/api/v1/namespaces/default/pods/{name}")).await.unwrap();
    pod["spec"]["nodeName"] == "node-1"
}

#[tokio::test(start_paused = true)]
async fn of_two_schedulers_one_binds_and_one_that_lost_the_lead_binds_nothing_any_more() {
    let (server, first, _) = cluster("scheduler").await;
    let second = Account::new(&server, "gantry-scheduler");
    let admin = server.client();
    create(&admin, &[node("node-1")]).await;
    let status = json!({ "status": {
        "allocatable": { "cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8" },
        "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    patch(&admin, "/api/v1/nodes/node-1/status", status).await;
    let counts = || (first.bindings.load(Ordering::SeqCst), second.bindings.load(Ordering::SeqCst));
    let one = candidate(&first, "one", 3);
    create(&admin, &[pod("a", 1)]).await;
    until("the only one binds", async || bound(&admin, "a").await).await;
    let two = candidate(&second, "two", 4);
    sleep(Duration::from_secs(60)).await;
    create(&admin, &[pod("b", 1)]).await;
    until("the leader binds", async || bound(&admin, "b").await).await;
    assert_eq!(counts(), (2, 0));
    // It still sees what is created, and starts a binding that hangs until its term is over.
    first.cut.store(true, Ordering::SeqCst);
    create(&admin, &[pod("c", 1)]).await;
    until("the other takes over", async || bound(&admin, "c").await).await;
    first.cut.store(false, Ordering::SeqCst);
    create(&admin, &[pod("d", 1)]).await;
    until("the other goes on", async || bound(&admin, "d").await).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(counts(), (2, 2));
    for (cancel, running) in [two, one] {
        cancel.cancel();
        running.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_controllers_may_do_what_they_do() {
    let (server, account, granted) = cluster("controllers").await;
    let admin = server.client();
    let (clock, ids) = (Arc::new(SystemClock), Arc::new(SeededIds::new(3)));
    let election = gantry_leader::Options::new(
        account.client(),
        clock.clone(),
        ids,
        "gantry-system".to_owned(),
        "gantry-controllers".to_owned(),
        "me".to_owned(),
    );
    let (cancel, client) = (CancellationToken::new(), account.client());
    let running = tokio::spawn(gantry_leader::lead(election, cancel.clone(), move |term| {
        gantry_controllers::run(client.clone(), gantry_controllers::Options { clock: clock.clone() }, term)
    }));
    let job = json!({
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": { "name": "train", "namespace": "default" },
        "spec": {
            "minAvailable": 1, "schedulerName": "gantry-scheduler",
            "policies": [{ "event": "PodFailed", "action": "RestartJob" }],
            "tasks": [{
                "name": "worker", "replicas": 2,
                "template": { "spec": { "containers": [{ "name": "main", "image": "x" }] } },
            }],
        },
    });
    create(&admin, &[job]).await;
    let count = async || {
        let pods = get(&admin, "/api/v1/namespaces/default/pods").await.unwrap();
        pods["items"].as_array().unwrap().len()
    };
    until("its pods are there", async || count().await == 2).await;
    let path = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs/train";
    let one = json!({ "spec": { "tasks": [{
        "name": "worker", "replicas": 1,
        "template": { "spec": { "containers": [{ "name": "main", "image": "x" }] } },
    }] } });
    patch(&admin, path, one).await;
    until("one is gone", async || {
        let pods = get(&admin, "/api/v1/namespaces/default/pods").await.unwrap();
        let kept = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        pods["items"].as_array().unwrap().iter().filter(kept).count() == 1
    })
    .await;
    sleep(Duration::from_secs(10)).await;
    cancel.cancel();
    running.await.unwrap();
    account.is_held_to(&granted);
}

#[test]
fn requests_are_named_as_rbac_names_them() {
    for (method, path, query, expected) in [
        ("GET", "/api/v1/nodes", "watch=true&x=1", Some(("", "nodes", "watch"))),
        ("GET", "/api/v1/namespaces/n/pods", "", Some(("", "pods", "list"))),
        ("GET", "/api/v1/namespaces/n", "", Some(("", "namespaces", "get"))),
        ("POST", "/api/v1/namespaces/n/pods/p/binding", "", Some(("", "pods/binding", "create"))),
        (
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/n/leases/l",
            "",
            Some(("coordination.k8s.io", "leases", "update")),
        ),
        ("GET", "/apis", "", None),
    ] {
        let method: Method = method.parse().unwrap();
        let right = right(&method, path, query);
        let right =
            right.as_ref().map(|(group, resource, verb)| (group.as_str(), resource.as_str(), verb.as_str()));
        assert_eq!(right, expected, "{method} {path}");
    }
}
