//! Listeners: TCP with TLS, and a Unix socket.

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
        let connections = Connections::new(cancel);
        while let Some((stream, _)) = connections.next(|| listener.accept()).await {
            let service = ApiService::new(self.clone(), Some(User::admin()));
            let connections = connections.clone();
            tokio::spawn(async move { connections.serve(stream, service).await });
        }
        connections.drain().await;
        let _ = std::fs::remove_file(path);
        Ok(())
    }
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
