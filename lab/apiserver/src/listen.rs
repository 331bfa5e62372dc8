//! Listeners: TCP with TLS, and a Unix socket.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use gantry_kit::CancellationToken;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

use crate::http::ApiService;
use crate::pki::ServerIdentity;
use crate::server::ApiServer;
use crate::{Error, User};

/// How long open requests may take to end after a listener was told to stop. Watches never end by themselves.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(1);
/// A client that connects and says nothing is let go.
const HANDSHAKE: std::time::Duration = std::time::Duration::from_secs(10);

impl ApiServer {
    /// Serves HTTPS until cancelled: HTTP/2 and HTTP/1.1, client certificates and bearer tokens.
    pub async fn serve_tls(
        &self,
        listener: TcpListener,
        identity: &ServerIdentity,
        cancel: CancellationToken,
    ) -> Result<(), Error> {
        let acceptor = TlsAcceptor::from(identity.tls()?);
        let connections = Connections::new(cancel);
        while let Some((stream, _)) = connections.next(|| listener.accept()).await {
            let _ = stream.set_nodelay(true);
            let (server, acceptor, connections) = (self.clone(), acceptor.clone(), connections.clone());
            tokio::spawn(async move {
                let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
                    return;
                };
                let user = stream
                    .get_ref()
                    .1
                    .peer_certificates()
                    // The CA has signed one client certificate: the administrator's.
                    .map(|_| User::admin());
                connections.serve(stream, ApiService::new(server, user)).await;
            });
        }
        connections.drain().await;
        Ok(())
    }

    /// Serves HTTP on a Unix socket until cancelled. Whoever may open the socket is the administrator.
    pub async fn serve_unix(&self, path: &Path, cancel: CancellationToken) -> Result<(), Error> {
        let failed = |source| Error::Listen { address: path.display().to_string(), source };
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let ours = file_number(path);
        let connections = Connections::new(cancel);
        while let Some((stream, _)) = connections.next(|| listener.accept()).await {
            let service = ApiService::new(self.clone(), Some(User::admin()));
            let connections = connections.clone();
            tokio::spawn(async move { connections.serve(stream, service).await });
        }
        connections.drain().await;
        // A successor may listen there by now, and its socket must stay.
        if ours.is_some() && file_number(path) == ours {
            let _ = std::fs::remove_file(path);
        }
        Ok(())
    }
}

/// What tells the file at `path` from another that came to its place.
fn file_number(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// The open connections of one listener.
#[derive(Clone)]
struct Connections {
    cancel: CancellationToken,
    open: Arc<tokio::sync::Semaphore>,
}

/// More connections than this at once have never been seen; the count only serves to wait for their end.
const MOST: u32 = 1 << 20;

impl Connections {
    fn new(cancel: CancellationToken) -> Self {
        Self { cancel, open: Arc::new(tokio::sync::Semaphore::new(MOST as usize)) }
    }

    /// What `accept` gives next; `None` once cancelled.
    async fn next<T, F>(&self, accept: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = std::io::Result<T>>,
    {
        loop {
            let accepted = tokio::select! {
                () = self.cancel.cancelled() => return None,
                accepted = accept() => accepted,
            };
            if let Ok(connection) = accepted {
                return Some(connection);
            }
            // Running out of file descriptors must not end the server; the backlog waits.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    async fn serve<S>(&self, stream: S, service: ApiService)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(_open) = self.open.acquire().await else { return };
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // A watch is a stream: a client with many informers has many on one connection.
        builder.http2().max_concurrent_streams(1000);
        let connection =
            builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service));
        tokio::pin!(connection);
        tokio::select! {
            _ = &mut connection => {}
            () = self.cancel.cancelled() => {
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(DRAIN, connection).await;
            }
        }
    }

    /// Waits for the connections to end; each bounds its own end.
    async fn drain(&self) {
        let _ = self.open.acquire_many(MOST).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use gantry_kit::{SeededIds, SystemClock};
    use http::Request;
    use k8s_openapi::api::core::v1::Namespace;
    use kube::Api;
    use kube::api::ListParams;
    use tokio::net::UnixStream;

    use super::*;
    use crate::Options;

    /// A client that connects anew for each request.
    fn client(path: PathBuf) -> kube::Client {
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let path = path.clone();
            async move {
                let stream = UnixStream::connect(path).await?;
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                Ok::<_, tower::BoxError>(sender.send_request(request).await?)
            }
        });
        kube::Client::new(service, "default")
    }

    async fn count_namespaces(client: &kube::Client) -> Result<usize, kube::Error> {
        Ok(Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await?.items.len())
    }

    async fn until_served(client: &kube::Client) -> usize {
        loop {
            if let Ok(count) = count_namespaces(client).await {
                return count;
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_unix_socket_is_served_and_that_of_a_successor_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        // What an earlier process left behind.
        std::fs::write(&path, "stale").unwrap();
        let server =
            ApiServer::new(Options::new(Arc::new(SystemClock), Arc::new(SeededIds::new(1)))).unwrap();
        let start = || {
            let (server, path, cancel) = (server.clone(), path.clone(), CancellationToken::new());
            let token = cancel.clone();
            (cancel, tokio::spawn(async move { server.serve_unix(&path, token).await }))
        };
        let client = client(path.clone());
        let (cancel_first, first) = start();
        assert_eq!(until_served(&client).await, 4);

        let before = file_number(&path);
        let (cancel_second, second) = start();
        while file_number(&path) == before || file_number(&path).is_none() {
            tokio::task::yield_now().await;
        }
        cancel_first.cancel();
        first.await.unwrap().unwrap();
        assert_eq!(count_namespaces(&client).await.unwrap(), 4, "the successor's socket must stay");

        cancel_second.cancel();
        second.await.unwrap().unwrap();
        assert!(!path.exists(), "nobody listens here any more");
        let deep = dir.path().join("no/such/folder");
        let error = server.serve_unix(&deep, CancellationToken::new()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("cannot listen on {}", deep.display()));
    }
}
