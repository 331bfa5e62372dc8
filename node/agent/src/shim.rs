//! The socket on which `gantry-runtime` asks which GPUs a container gets, for nodes whose runtime does not speak NRI.
//!
//! ```text
//!   gantry-runtime ──Request──▶ here ──▶ pod of the API server (its assignment) ──▶ Handle::create_container
//!                  ◀─Answer────                                                      ◀─────┘
//! ```
//!
//! Root alone can connect. What the request says of the pod is what the runtime wrote down; the assignment is read from the API server,
//! and from the request only while that does not answer.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_api::ASSIGNMENT_ANNOTATION;
use gantry_kit::CancellationToken;
use gantry_model::PodKey;
use gantry_shim::{Answer, MAX_LINE, Request};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use crate::pods::{has_ended, on_node, uids};
use crate::{ContainerIdentity, Error, Handle};

/// How long a conversation may take. The other side waits two seconds.
const DEADLINE: Duration = Duration::from_millis(1900);

/// How long the API server may take of that.
const API_DEADLINE: Duration = Duration::from_millis(1200);

/// How often the owners of GPUs are compared with the pods of the node: nothing else tells that a pod has ended.
const COMPARE: Duration = Duration::from_secs(5);

/// Where `gantry-runtime` asks, and who knows the pods.
#[derive(Clone)]
pub struct ShimOptions {
    /// The socket, usually [`gantry_shim::AGENT_SOCKET`].
    pub socket: PathBuf,
    /// The API server. Without, assignments are read from requests, and GPUs of pods that have ended are not freed.
    pub client: Option<kube::Client>,
}

impl std::fmt::Debug for ShimOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShimOptions").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Serves `gantry-runtime` until cancelled.
///
/// # Errors
/// Where the socket cannot be made.
pub async fn serve_shim(
    options: ShimOptions,
    handle: Handle,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let listener = listen(&options.socket)?;
    handle.0.log.write(format!("Answering gantry-runtime on {}", options.socket.display()));
    let serving = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (handle, client) = (handle.clone(), options.client.clone());
                    tokio::spawn(async move {
                        // A caller that says nothing is left; it has its own deadline.
                        let _ = timeout(DEADLINE, converse(stream, &handle, client.as_ref())).await;
                    });
                }
                // Too many open files, for instance.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept gantry-runtime");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = serving => {}
        () = free_ended(&handle, options.client.as_ref()) => {}
    }
    let _ = std::fs::remove_file(&options.socket);
    Ok(())
}

fn listen(path: &Path) -> Result<UnixListener, Error> {
    crate::socket::check_path(path)?;
    let io = |action: &'static str, path: &Path| {
        let path = path.to_path_buf();
        move |source: io::Error| Error::Io { action, path, source }
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io("create", folder))?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io("replace", path)(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(io("listen on", path))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(io("protect", path))?;
    Ok(listener)
}

async fn converse(mut stream: UnixStream, handle: &Handle, client: Option<&kube::Client>) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut line = Vec::new();
    BufReader::new(reader.take(MAX_LINE as u64 + 1)).read_until(b'\n', &mut line).await?;
    let answer = match Request::decode(&line) {
        Ok(request) => answer(&request, handle, client).await.unwrap_or_else(Answer::Refused),
        Err(error) => Answer::Refused(error.to_string()),
    };
    if let Answer::Refused(text) = &answer {
        tracing::warn!("refused gantry-runtime: {text}");
    }
    let line = answer.encode().unwrap_or_default();
    writer.write_all(&line).await
}

async fn answer(request: &Request, handle: &Handle, client: Option<&kube::Client>) -> Result<Answer, String> {
    let pod = PodKey {
        namespace: request.pod.namespace.as_str().into(),
        name: request.pod.name.as_str().into(),
        uid: request.pod.uid.as_str().into(),
    };
    let told = request.annotations.get(ASSIGNMENT_ANNOTATION).cloned();
    let assignment = match client {
        None => told,
        Some(client) => match timeout(API_DEADLINE, known(client, &pod)).await {
            Ok(Ok(assignment)) => assignment,
            Ok(Err(Unknown::Pod(text))) => return Err(text),
            // The runtime's word is as good as it was when the pod began.
            Ok(Err(Unknown::Api(_))) | Err(_) if told.is_some() => told,
            Ok(Err(Unknown::Api(text))) => return Err(text),
            Err(_) => return Err(format!("pod {pod}: the API server does not tell its assignment in time")),
        },
    };
    let identity = ContainerIdentity {
        pod,
        annotations: assignment.map(|text| (ASSIGNMENT_ANNOTATION.to_owned(), text)).into_iter().collect(),
        name: request.container.clone(),
        devices: request.devices.clone(),
    };
    let adjustment = handle.create_container(&identity).map_err(|error| error.to_string())?;
    Ok(Answer::Devices(adjustment.cdi_devices.iter().map(ToString::to_string).collect()))
}

/// Why the API server does not tell of a pod.
enum Unknown {
    Pod(String),
    Api(String),
}

/// The pod's assignment, if it has one.
async fn known(client: &kube::Client, pod: &PodKey) -> Result<Option<String>, Unknown> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    // A list of one, for listing pods is all that the agent may do with them.
    let one = ListParams::default().fields(&format!("metadata.name={}", pod.name));
    let found = pods.list(&one).await.map_err(|error| {
        Unknown::Api(format!("pod {pod}: the API server does not tell its assignment: {error}"))
    })?;
    match found.items.into_iter().find(|found| uids(found).any(|uid| *uid == *pod.uid)) {
        Some(found) => Ok(found.metadata.annotations.and_then(|mut all| all.remove(ASSIGNMENT_ANNOTATION))),
        None => Err(Unknown::Pod(format!("pod {pod}: the API server knows none with UID {}", pod.uid))),
    }
}

/// Frees the GPUs of pods that have ended, for ever.
async fn free_ended(handle: &Handle, client: Option<&kube::Client>) {
    let Some(client) = client else { return std::future::pending().await };
    let pods: Api<Pod> = Api::all(client.clone());
    loop {
        sleep(COMPARE).await;
        let (node, owners) = {
            let state = handle.0.state();
            let owners: Vec<Arc<str>> = state.pods().map(|pod| Arc::clone(&pod.key.uid)).collect();
            (Arc::clone(&state.node), owners)
        };
        if owners.is_empty() {
            continue;
        }
        // What was created since the owners were read is not among them, and stays.
        match pods.list(&ListParams::default().fields(&on_node(&node))).await {
            Ok(list) => {
                let live: BTreeSet<&str> =
                    list.items.iter().filter(|pod| !has_ended(pod)).flat_map(uids).collect();
                owners.iter().filter(|uid| !live.contains(&***uid)).for_each(|uid| handle.remove_pod(uid));
            }
            Err(error) => tracing::debug!(%error, "cannot compare owners with the node's pods"),
        }
    }
}
