//! The server as its owner sees it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use gantry_kit::{SharedClock, SharedIds};
use serde_json::{Value, json};

use crate::auth::{Authenticator, default_objects};
use crate::http::ApiService;
use crate::registry::Registry;
use crate::remote::NodeBackend;
use crate::store::Store;
use crate::user::User;
use crate::webhook::{WebhookServices, Webhooks};
use crate::{Error, crd, verbs};

/// What a server is made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where time stamps come from.
    pub clock: SharedClock,
    /// Where UIDs and generated names come from.
    pub ids: SharedIds,
    /// Where the state is kept across runs; `None` keeps it in memory only.
    pub state_dir: Option<PathBuf>,
    /// The version that `/version` reports, as in `v1.34.0`. Some kubectl wrappers choose their binary by it.
    pub version: String,
    /// The webhooks of this process that `service` references find.
    pub webhook_services: WebhookServices,
    /// How many changes each resource remembers for watches and paged lists.
    pub history: usize,
}

impl Options {
    /// A server in memory with the usual settings.
    pub fn new(clock: SharedClock, ids: SharedIds) -> Self {
        Self {
            clock,
            ids,
            state_dir: None,
            version: "v1.33.0+gantry".to_owned(),
            webhook_services: WebhookServices::default(),
            history: 4096,
        }
    }
}

/// An embedded Kubernetes API server. Clones share one state.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) store: Store,
    pub(crate) registry: Registry,
    /// Held while a Service's addresses are chosen and stored.
    pub(crate) allocations: Mutex<()>,
    pub(crate) webhooks: Webhooks,
    pub(crate) authenticator: Authenticator,
    node_backend: RwLock<Option<Arc<dyn NodeBackend>>>,
}

impl Inner {
    pub(crate) fn node_backend(&self) -> Option<Arc<dyn NodeBackend>> {
        self.node_backend.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Loads the state and creates what every cluster starts with: the system namespaces, the `kubernetes`
    /// Service and the built-in priority classes.
    pub fn new(options: Options) -> Result<Self, Error> {
        let store = Store::open(options.state_dir.as_deref(), options.history)?;
        let (services, ids) = (options.webhook_services.clone(), options.ids.clone());
        let inner = Inner {
            options,
            store,
            registry: Registry::new(),
            webhooks: Webhooks::new(services, ids),
            allocations: Mutex::default(),
            authenticator: Authenticator::new(),
            node_backend: RwLock::default(),
        };
        let server = Self { inner: Arc::new(inner) };
        crd::register_all(&server.inner);
        for object in first_objects().into_iter().chain(default_objects()) {
            verbs::bootstrap(&server.inner, object)?;
        }
        Ok(server)
    }

    /// Names who answers for the containers of all nodes; until then there are no logs and no `exec`.
    pub fn set_node_backend(&self, backend: Arc<dyn NodeBackend>) {
        *self.inner.node_backend.write().unwrap_or_else(PoisonError::into_inner) = Some(backend);
    }

    /// Lets whoever shows this bearer token be `user`. What they may do is granted by RBAC objects.
    pub fn add_token(&self, token: &str, user: User) {
        self.inner.authenticator.insert(token, user);
    }

    /// A client in this process, without socket or TLS, that may do everything. Call within a tokio runtime.
    pub fn client(&self) -> kube::Client {
        self.client_for(User::admin())
    }

    /// A client in this process that acts as somebody else. Call within a tokio runtime.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> kube::Client {
        self.client_for(User::new(user, groups))
    }

    /// A client in this process for a component of the cluster, which may do everything. What it writes is its own by this name,
    /// unless a request says otherwise; what it reads has no `metadata.managedFields`, which are for people and for who applies.
    /// Call within a tokio runtime.
    pub fn component_client(&self, name: &'static str) -> kube::Client {
        kube::Client::new(ApiService::for_component(self.clone(), User::admin(), name), "default")
    }

    fn client_for(&self, user: User) -> kube::Client {
        kube::Client::new(ApiService::new(self.clone(), Some(user)), "default")
    }

    /// The server as a service whose every request is the administrator's.
    pub fn admin_service(&self) -> ApiService {
        ApiService::new(self.clone(), Some(User::admin()))
    }

    /// The server as a service for any HTTP transport; it authenticates each request.
    pub fn service(&self) -> ApiService {
        ApiService::new(self.clone(), None)
    }
}

fn first_objects() -> Vec<Value> {
    let namespaces = ["default", "kube-system", "kube-public", "kube-node-lease"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    let priority_class = |name: &str, value: u32, description: &str| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description,
        })
    };
    let mut objects = Vec::from(namespaces);
    objects.push(priority_class(
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ));
    objects.push(priority_class(
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ));
    objects.push(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": "10.96.0.1", "type": "ClusterIP",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
    }));
    objects
}
