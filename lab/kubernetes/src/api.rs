//! As much of an HTTPS client as starting a cluster takes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;

/// An administrator's connection to the API server on a port of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    port: u16,
    tls: Arc<rustls::ClientConfig>,
}

impl Api {
    pub(crate) fn new(pki: &Path, port: u16) -> anyhow::Result<Self> {
        let file = |name: &str| pki.join(name);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file("ca.crt"))?)?;
        let certificate = CertificateDer::from_pem_file(file("admin.crt"))?;
        let key = PrivateKeyDer::from_pem_file(file("admin.key"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)?;
        Ok(Self { port, tls: Arc::new(tls) })
    }

    /// What the server answers to GET, if it answers with success.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let mut tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        tcp.set_read_timeout(Some(Duration::from_secs(5)))?;
        let name = ServerName::try_from("localhost").context("invariant: a valid name")?;
        let mut session = rustls::ClientConnection::new(Arc::clone(&self.tls), name)?;
        let mut stream = rustls::Stream::new(&mut session, &mut tcp);
        // Version 1.0: the answer is not cut into chunks and ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\r\n")?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => {}
        }
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").context("no answer")?;
        let body = answer.split_off(end + 4);
        let head = String::from_utf8_lossy(&answer);
        let status = head.split(' ').nth(1).unwrap_or_default();
        ensure!(status == "200", "{path}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }

    /// Whether the server says that it is ready.
    pub(crate) fn ready(&self) -> anyhow::Result<()> {
        self.get("/readyz").map(drop)
    }

    /// Whether every one of these nodes is ready and pods can be created.
    pub(crate) fn nodes_ready(&self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            let node: Value = serde_json::from_slice(&self.get(&format!("/api/v1/nodes/{name}"))?)?;
            let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
            match ready {
                Some(ready) if ready["status"] == "True" => {}
                Some(ready) => bail!("node {name}: {}", ready["message"]),
                None => bail!("node {name} has not told its state yet"),
            }
        }
        self.get("/api/v1/namespaces/default/serviceaccounts/default").map(drop)
    }
}
