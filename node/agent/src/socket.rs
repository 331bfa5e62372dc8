//! The Unix sockets between plugin and kubelet.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_kit::CancellationToken;
use gantry_proto::deviceplugin::registration_client::RegistrationClient;
use gantry_proto::deviceplugin::{DevicePluginOptions, RegisterRequest, VERSION};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::Endpoint;

use crate::Error;

/// The longest path of a Unix socket on Linux, in bytes.
const LONGEST_PATH: usize = 107;

/// How long the kubelet may take to answer a registration.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Which socket file it is: one that was removed and made again differs, even under the same inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketId {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl SocketId {
    /// The socket at a path; `None` if there is none.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let file = std::fs::symlink_metadata(path).ok()?;
        file.file_type().is_socket().then(|| Self {
            device: file.dev(),
            inode: file.ino(),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

/// The socket's file name for a resource: `nvidia-gpu.sock` for `nvidia.com/gpu`, as NVIDIA's plugin calls it.
pub(crate) fn file_name(resource: &str) -> Result<String, Error> {
    let refuse = || Error::Resource(resource.chars().take(80).collect());
    let (vendor, name) = resource.split_once('/').ok_or_else(refuse)?;
    let vendor = vendor.split('.').next().unwrap_or_default();
    if vendor.is_empty() || name.is_empty() || name.contains('/') {
        return Err(refuse());
    }
    Ok(format!("{vendor}-{name}.sock"))
}

/// Checks that a socket can be bound at a path.
pub(crate) fn check_path(path: &Path) -> Result<(), Error> {
    // The temporary name during binding has four bytes more.
    if path.as_os_str().len() + 4 > LONGEST_PATH {
        return Err(Error::SocketPath(path.to_path_buf()));
    }
    Ok(())
}

/// Listens at a path, in place of whatever is there: a reader finds the old socket or the new one, never none.
pub(crate) fn bind(path: &Path) -> Result<(UnixListener, SocketId), Error> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let io = |action| {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    };
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(io("remove a stale socket beside")(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&temporary).map_err(io("bind"))?;
    std::fs::rename(&temporary, path).map_err(io("rename a socket to"))?;
    let id = SocketId::at(path).ok_or_else(|| io("find")(std::io::ErrorKind::NotFound.into()))?;
    Ok((listener, id))
}

/// Tells the kubelet at `kubelet` that `resource` is served by the socket `endpoint` of the same folder.
pub(crate) async fn register(
    kubelet: PathBuf,
    endpoint: String,
    resource: String,
    options: DevicePluginOptions,
) -> Result<(), Error> {
    let call = async {
        // The address only gives the authority: HTTP/2 servers refuse a path there.
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(tower::service_fn(move |_| {
                let path = kubelet.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            }))
            .await?;
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint,
            resource_name: resource,
            options: Some(options),
        };
        let answer = RegistrationClient::new(channel).register(request).await;
        answer.map(drop).map_err(|status| Error::Register(Box::new(status)))
    };
    tokio::time::timeout(REGISTER_TIMEOUT, call)
        .await
        .unwrap_or(Err(Error::RegisterTimeout(REGISTER_TIMEOUT.as_secs())))
}

/// A running gRPC server. Dropping it ends its streams and closes its connections.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: SocketId,
    stop: CancellationToken,
}

impl Server {
    /// Serves `plugin` at a path. `make` is given the token that ends its streams.
    pub(crate) fn start(
        path: &Path,
        make: impl FnOnce(CancellationToken) -> crate::plugin::Plugin,
    ) -> Result<Self, Error> {
        use gantry_proto::deviceplugin::device_plugin_server::DevicePluginServer;
        let (listener, id) = bind(path)?;
        let stop = CancellationToken::new();
        let service = DevicePluginServer::new(make(stop.clone()));
        let ended = stop.clone().cancelled_owned();
        // No keep-alive pings: the death of a peer on a Unix socket is always seen.
        let server = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming_shutdown(tokio_stream::wrappers::UnixListenerStream::new(listener), ended);
        tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::warn!(%error, "device plugin server ended");
            }
        });
        Ok(Self { id, stop })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_named_as_nvidia_names_them() {
        assert_eq!(file_name("nvidia.com/gpu").unwrap(), "nvidia-gpu.sock");
        assert_eq!(file_name("nvidia.com/gpu.shared").unwrap(), "nvidia-gpu.shared.sock");
        for bad in ["gpu", "/gpu", "nvidia.com/", "a/b/c"] {
            assert!(file_name(bad).is_err(), "{bad}");
        }
        assert!(check_path(Path::new(&format!("/{}", "x".repeat(110)))).is_err());
    }

    #[tokio::test]
    async fn binding_replaces_a_stale_socket_and_changes_its_identity() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let (stale, first) = bind(&path).unwrap();
        drop(stale);
        assert_eq!(SocketId::at(&path), Some(first), "a closed socket leaves its file");
        let (_listener, second) = bind(&path).unwrap();
        assert_ne!(first, second);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(SocketId::at(&folder.path().join("file")), None);
    }
}
