//! The socket on which `gantry-runtime` asks which GPUs a container gets, for nodes whose runtime does not speak NRI.
//!
//! ```text
//!   gantry-runtime ──Request──▶ here ──▶ the node's pods as they are watched (the assignment) ──▶ Handle::create_container
//!                  ◀─Answer────                                                               ◀─────┘
//! ```
//!
//! Root alone can connect. What the request says of the pod is what the runtime wrote down; the assignment is the API server's word,
//! and the request's only while that does not answer. The same watch tells that a pod may have ended (`ended`).

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_api::ASSIGNMENT_ANNOTATION;
use gantry_cdi::ContainerEdits;
use gantry_driver::{Capabilities, ContainerRequest, ImageLayout, LibC};
use gantry_kit::CancellationToken;
use gantry_model::PodKey;
use gantry_shim::{Answer, MAX_LINE, Request};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use crate::pods::Found;
use crate::{ContainerIdentity, Error, Handle};

/// How long a conversation may take. The other side waits two seconds.
const DEADLINE: Duration = Duration::from_millis(1900);

/// How long a pod is waited for that the API server has not told of yet.
const PATIENCE: Duration = Duration::from_millis(1200);

/// Serves `gantry-runtime` on a socket, usually [`gantry_shim::AGENT_SOCKET`], until cancelled. An agent that does not know the API server
/// reads assignments from requests, and frees nothing.
///
/// # Errors
/// Where the socket cannot be made.
pub async fn serve_shim(socket: PathBuf, handle: Handle, cancel: CancellationToken) -> Result<(), Error> {
    let listener = listen(&socket)?;
    handle.0.log.write(format!("Answering gantry-runtime on {}", socket.display()));
    let serving = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let handle = handle.clone();
                    tokio::spawn(async move {
                        // A caller that says nothing is left; it has its own deadline.
                        let _ = timeout(DEADLINE, converse(stream, &handle)).await;
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
    }
    let _ = std::fs::remove_file(&socket);
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

async fn converse(mut stream: UnixStream, handle: &Handle) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut line = Vec::new();
    BufReader::new(reader.take(MAX_LINE as u64 + 1)).read_until(b'\n', &mut line).await?;
    let answer = match Request::decode(&line) {
        Ok(request) => answer(&request, handle).await.unwrap_or_else(Answer::Refused),
        Err(error) => Answer::Refused(error.to_string()),
    };
    if let Answer::Refused(text) = &answer {
        tracing::warn!("refused gantry-runtime: {text}");
    }
    let line = answer.encode().unwrap_or_default();
    writer.write_all(&line).await
}

async fn answer(request: &Request, handle: &Handle) -> Result<Answer, String> {
    let pod = PodKey {
        namespace: request.pod.namespace.as_str().into(),
        name: request.pod.name.as_str().into(),
        uid: request.pod.uid.as_str().into(),
    };
    let (pods, knows) = (&handle.0.pods, handle.0.choice.pods);
    let none = || format!("pod {pod}: the API server knows none with UID {} on this node", pod.uid);
    let told = request.annotations.get(ASSIGNMENT_ANNOTATION).cloned();
    let assignment = if knows {
        match pods.find(&pod.uid, PATIENCE).await {
            Found::Pod(assignment) => assignment,
            Found::None => return Err(none()),
            // The runtime's word is as good as it was when the pod began.
            Found::Unknown if told.is_some() => told,
            Found::Unknown => {
                return Err(format!("pod {pod}: the API server does not tell its assignment; trying again"));
            }
        }
    } else {
        told
    };
    let identity = ContainerIdentity {
        pod: pod.clone(),
        annotations: assignment.map(|text| (ASSIGNMENT_ANNOTATION.to_owned(), text)).into_iter().collect(),
        name: request.container.clone(),
        devices: request.devices.clone(),
    };
    let adjustment = handle.create_container(&identity).map_err(|error| error.to_string())?;
    // A pod may end meanwhile; what it has is freed when its other containers have ended, too.
    if knows && !pods.ended(std::slice::from_ref(&pod.uid)).is_empty() {
        return Err(none());
    }
    let devices: Vec<String> = adjustment.cdi_devices.iter().map(ToString::to_string).collect();
    if devices.is_empty() {
        return Ok(Answer::Devices(devices));
    }
    let edits = edits(request, &devices, handle)?;
    Ok(Answer::Edits(devices, Box::new(edits)))
}

/// What these devices mean for a container: the parts of the driver that it asks for, once its requirements are met.
fn edits(request: &Request, devices: &[String], handle: &Handle) -> Result<ContainerEdits, String> {
    let machine = handle.machine().ok_or_else(|| {
        let why = handle.cdi_error().unwrap_or_else(|| "the node agent has just started".to_owned());
        format!("the driver is not described: {why}; trying again")
    })?;
    let supported = match &request.supported_capabilities {
        Some(list) => Capabilities::parse(list).map_err(|error| format!("settings: {error}"))?,
        None => Capabilities::ALL,
    };
    let image = request.image.as_ref().map(|image| ImageLayout {
        library_folder: image.library_folder.clone(),
        library_folder_32: image.library_folder_32.clone(),
        lib_c: if image.musl { LibC::Musl } else { LibC::Gnu },
    });
    let wish = ContainerRequest { env: &request.env, devices, image: image.as_ref(), supported };
    machine.container_edits(&wish).map_err(|error| error.to_string())
}
