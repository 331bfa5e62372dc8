//! The `Registration` service on `kubelet.sock`.

use gantry_apimachinery::is_extended_resource;
use gantry_proto::deviceplugin::registration_server::{Registration, RegistrationServer};
use gantry_proto::deviceplugin::{Empty, KUBELET_SOCKET, RegisterRequest, VERSION};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::DeviceManager;
use super::sockets::listen;
use crate::Error;

/// Serves until the kubelet stops.
pub(super) fn serve(manager: DeviceManager) -> Result<(), Error> {
    let path = manager.0.options.plugins_dir().join(KUBELET_SOCKET);
    let listener = listen(&path)?;
    let tasks = manager.0.tasks.clone();
    let stopped = tasks.token().clone().cancelled_owned();
    tasks.spawn(async move {
        let served = Server::builder()
            .add_service(RegistrationServer::new(Service(manager)))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped)
            .await;
        if let Err(error) = served {
            tracing::warn!(%error, "the registration service ended");
        }
    });
    Ok(())
}

struct Service(DeviceManager);

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        check(&request).map_err(Status::invalid_argument)?;
        let socket = self.0.0.options.plugins_dir().join(&request.endpoint);
        let socket = socket
            .to_str()
            .ok_or_else(|| Status::invalid_argument("the plugin folder is not valid UTF-8"))?;
        self.0.add_plugin(request.resource_name, socket.to_owned(), request.options.unwrap_or_default());
        Ok(Response::new(Empty {}))
    }
}

/// What the kubelet refuses, in its words.
pub(super) fn check(request: &RegisterRequest) -> Result<(), String> {
    if request.version != VERSION {
        return Err(format!(
            "requested API version {:?} is not supported by kubelet. Supported version is [{VERSION:?}]",
            request.version
        ));
    }
    let name = &request.resource_name;
    if !is_extended_resource(name) {
        return Err(format!("the ResourceName {name:?} is invalid"));
    }
    if matches!(request.endpoint.as_str(), "" | "." | "..") || request.endpoint.contains(['/', '\0']) {
        return Err(format!(
            "the endpoint {:?} is invalid: it must be the name of a socket in the plugin folder",
            request.endpoint
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_registrations_are_refused() {
        let good = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: "a.sock".to_owned(),
            resource_name: "nvidia.com/gpu".to_owned(),
            options: None,
        };
        assert_eq!(check(&good), Ok(()));
        for (bad, expected) in [
            (
                RegisterRequest { version: "v1alpha".to_owned(), ..good.clone() },
                "Supported version is [\"v1beta1\"]",
            ),
            (
                RegisterRequest { resource_name: "gpu".to_owned(), ..good.clone() },
                "the ResourceName \"gpu\" is invalid",
            ),
            (RegisterRequest { resource_name: "kubernetes.io/gpu".to_owned(), ..good.clone() }, "is invalid"),
            // The API server would refuse the node's whole status for such a name, again and again.
            (RegisterRequest { resource_name: "nvidia.com/my gpu".to_owned(), ..good.clone() }, "is invalid"),
            (RegisterRequest { resource_name: "nvidia.com/gpu\n".to_owned(), ..good.clone() }, "is invalid"),
            (RegisterRequest { resource_name: "requests.x.io/gpu".to_owned(), ..good.clone() }, "is invalid"),
            (RegisterRequest { endpoint: "../a.sock".to_owned(), ..good.clone() }, "the endpoint"),
            (RegisterRequest { endpoint: "..".to_owned(), ..good.clone() }, "the endpoint"),
        ] {
            let error = check(&bad).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
