//! Logs and streams of a pod's containers: what the node must answer.

use std::sync::Arc;

use http::Response;
use http::request::Parts;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::Status;
use crate::http::{Body, Call};
use crate::json::{items, text};
use crate::registry::Subresource;
use crate::remote::{
    AttachRequest, ExecRequest, LogRequest, NodeBackend, PodTarget, Streams, attach_response, exec_response,
    log_response, port_forward_response,
};
use crate::store::ObjectKey;

const CONTAINER_LISTS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Answers `log`, `exec`, `attach` and `portforward` through the node that runs the pod.
pub(crate) async fn connect(
    call: &Call,
    subresource: &Subresource,
    parts: &mut Parts,
) -> Result<Response<Body>, Status> {
    let key = ObjectKey::new(&call.path.namespace, &call.path.name);
    let pod = call
        .server
        .store
        .get(&call.resource.id, &key)
        .ok_or_else(|| call.resource.not_found(&call.path.name))?;
    let mut target = PodTarget {
        node: text(&pod.value["spec"]["nodeName"]).to_owned(),
        namespace: call.path.namespace.clone(),
        pod: call.path.name.clone(),
        uid: pod.meta("uid").to_owned(),
        container: String::new(),
    };
    if *subresource != Subresource::PortForward {
        target.container = container(call, &pod.value)?;
    }
    if target.node.is_empty() {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", call.path.name)));
    }
    let backend: Arc<dyn NodeBackend> = call
        .server
        .node_backend()
        .ok_or_else(|| Status::service_unavailable("no node answers for containers in this cluster"))?;
    let streams = Streams {
        stdin: call.query.flag("stdin"),
        stdout: call.query.flag("stdout"),
        stderr: call.query.flag("stderr"),
        tty: call.query.flag("tty"),
    };
    match subresource {
        Subresource::Log => log_response(&*backend, log_request(call, target)?).await,
        Subresource::Exec => {
            let command: Vec<String> = call.query.all("command").map(str::to_owned).collect();
            if command.is_empty() {
                return Err(Status::bad_request("you must specify at least one command for the container"));
            }
            exec_response(parts, &*backend, ExecRequest { target, command, streams }).await
        }
        Subresource::Attach => attach_response(parts, &*backend, AttachRequest { target, streams }).await,
        _ => {
            let ports = call.query.all("ports").flat_map(|list| list.split(','));
            let ports: Vec<u16> = ports
                .map(|port| {
                    port.parse()
                        .map_err(|_| Status::bad_request(format!("unable to parse {port:?} as a port")))
                })
                .collect::<Result<_, _>>()?;
            port_forward_response(parts, backend, target, &ports).await
        }
    }
}

/// The container that the user means: the one named, the only one, or the one that the pod calls its default.
fn container(call: &Call, pod: &Value) -> Result<String, Status> {
    let names = |list: &str| items(&pod["spec"][list]).iter().map(|container| text(&container["name"]));
    let name = &call.path.name;
    if let Some(wanted) = call.query.get("container") {
        return if CONTAINER_LISTS.iter().any(|list| names(list).any(|name| name == wanted)) {
            Ok(wanted.to_owned())
        } else {
            Err(Status::bad_request(format!("container {wanted} is not valid for pod {name}")))
        };
    }
    let all: Vec<&str> = names("containers").collect();
    let default = text(&pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]);
    if let [only] = all.as_slice() {
        return Ok((*only).to_owned());
    }
    if all.contains(&default) {
        return Ok(default.to_owned());
    }
    Err(Status::bad_request(format!(
        "a container name must be specified for pod {name}, choose one of: [{}]",
        all.join(" ")
    )))
}

fn log_request(call: &Call, target: PodTarget) -> Result<LogRequest, Status> {
    let number = |name: &str| match call.query.get(name) {
        None => Ok(None),
        Some(given) => given.parse::<u64>().map(Some).map_err(|_| {
            Status::bad_request(format!("{name}: Invalid value: {given:?}: must be a number, 0 or more"))
        }),
    };
    let since_time = match call.query.get("sinceTime") {
        None => None,
        Some(given) => Some(given.parse::<Timestamp>().map_err(|_| {
            Status::bad_request(format!("sinceTime: Invalid value: {given:?}: must be a time in RFC 3339"))
        })?),
    };
    let since = match number("sinceSeconds")? {
        None => since_time,
        Some(seconds) => {
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            let now = call.server.options.clock.now();
            Some(now.saturating_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN))
        }
    };
    Ok(LogRequest {
        target,
        follow: call.query.flag("follow"),
        previous: call.query.flag("previous"),
        timestamps: call.query.flag("timestamps"),
        tail_lines: number("tailLines")?,
        since,
        limit_bytes: number("limitBytes")?,
    })
}
