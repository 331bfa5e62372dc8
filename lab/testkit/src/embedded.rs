//! The embedded tier: everything in this process.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use gantry_apiserver::pki::ServerIdentity;
use gantry_apiserver::{ExecRequest, Exit, PodTarget, Streams};
use gantry_cluster::{Cluster, ClusterOptions, NodeGroup};
use gantry_kit::{CancellationToken, RandomIds, SystemClock};
use tokio::net::TcpListener;

use crate::Output;

/// A cluster in this process, with a TLS endpoint.
pub(crate) struct Embedded {
    pub(crate) cluster: Cluster,
    pub(crate) kubeconfig: PathBuf,
    cancel: CancellationToken,
}

impl Embedded {
    pub(crate) async fn start(nodes: Vec<NodeGroup>, folder: &Path) -> anyhow::Result<Self> {
        let cancel = CancellationToken::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let server = format!("https://{}", listener.local_addr()?);
        let identity = ServerIdentity::load_or_create(&folder.join("pki"))?;
        let kubeconfig = folder.join("kubeconfig");
        identity.write_kubeconfig(&kubeconfig, "lab", &server)?;
        let cluster = Cluster::start(
            ClusterOptions {
                nodes,
                dir: folder.join("run"),
                state_dir: None,
                clock: Arc::new(SystemClock),
                ids: Arc::new(RandomIds::default()),
            },
            cancel.clone(),
        )
        .await?;
        let api = cluster.api().clone();
        tokio::spawn({
            let cancel = cancel.clone();
            async move { api.serve_tls(listener, &identity, cancel).await }
        });
        cluster.ready().await?;
        Ok(Self { cluster, kubeconfig, cancel })
    }

    /// Asks the node as the API server does; the way through sockets is kubectl's, and the matrix tests it.
    pub(crate) async fn exec(&self, target: PodTarget, command: &[&str]) -> anyhow::Result<Output> {
        let streams = Streams { stdout: true, stderr: true, ..Streams::default() };
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let backend = self.cluster.node_backend();
        let session = backend.exec(ExecRequest { target, command, streams }).await?;
        drop((session.stdin, session.resize));
        let (stdout, stderr, exit) =
            tokio::join!(all_of(session.stdout), all_of(session.stderr), session.exit);
        match exit.context("the node gave no exit code")? {
            Exit::Code(code) => Ok(Output { code: Some(code), stdout, stderr }),
            Exit::Failed(problem) => bail!("{problem}"),
        }
    }

    pub(crate) async fn stop(self) {
        self.cluster.shutdown().await;
        self.cancel.cancel();
    }
}

async fn all_of(mut stream: tokio::sync::mpsc::Receiver<bytes::Bytes>) -> String {
    let mut text = Vec::new();
    while let Some(piece) = stream.recv().await {
        text.extend_from_slice(&piece);
    }
    String::from_utf8_lossy(&text).into_owned()
}
