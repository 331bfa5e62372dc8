//! Who the server is and how its clients prove who they are: a CA of its own, certificates and a kubeconfig.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::{Error, kubeconfig};

/// The names under which clients in and outside the cluster reach the server.
const DNS_NAMES: &[&str] = &[
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The cluster's certificate authority, the server's certificate and the administrator's.
///
/// All are PEM. `load_or_create` keeps them in a folder so that kubeconfigs stay valid across restarts.
#[derive(Clone)]
pub struct ServerIdentity {
    ca: Pair,
    server: Pair,
    admin: Pair,
}

/// A certificate and its key, PEM.
#[derive(Clone)]
struct Pair {
    certificate: String,
    key: String,
}

impl std::fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerIdentity").finish_non_exhaustive()
    }
}

fn failed(action: &'static str) -> impl Fn(rcgen::Error) -> Error {
    move |error| Error::Pki { action, problem: error.to_string() }
}

impl ServerIdentity {
    /// A new identity for `localhost` and the cluster's own names.
    pub fn generate() -> Result<Self, Error> {
        let ca_key = KeyPair::generate().map_err(failed("generate the CA's key"))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name("gantry-ca", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca = params.self_signed(&ca_key).map_err(failed("sign the CA's certificate"))?;
        let ca_pem = ca.pem();
        let ca_key_pem = ca_key.serialize_pem();
        let issuer = Issuer::new(params, ca_key);

        let mut server =
            CertificateParams::new(DNS_NAMES.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
                .map_err(failed("name the server"))?;
        server.distinguished_name = name("kube-apiserver", None);
        let addresses: [IpAddr; 3] =
            [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), Ipv4Addr::new(10, 96, 0, 1).into()];
        server.subject_alt_names.extend(addresses.map(SanType::IpAddress));
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];

        let mut admin = CertificateParams::default();
        admin.distinguished_name = name("system:admin", Some("system:masters"));
        admin.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];

        Ok(Self {
            server: signed(server, &issuer)?,
            admin: signed(admin, &issuer)?,
            ca: Pair { certificate: ca_pem, key: ca_key_pem },
        })
    }

    /// The identity kept in `dir`, or a new one that is put there.
    pub fn load_or_create(dir: &Path) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
        // The file written last says that all are there.
        if !dir.join("admin.key").exists() {
            let identity = Self::generate()?;
            for (name, pair) in
                [("ca", &identity.ca), ("server", &identity.server), ("admin", &identity.admin)]
            {
                write_private(&dir.join(format!("{name}.crt")), &pair.certificate)?;
                write_private(&dir.join(format!("{name}.key")), &pair.key)?;
            }
            return Ok(identity);
        }
        let read = |name: String| {
            let path = dir.join(name);
            fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))
        };
        let pair = |name: &str| -> Result<Pair, Error> {
            Ok(Pair { certificate: read(format!("{name}.crt"))?, key: read(format!("{name}.key"))? })
        };
        Ok(Self { ca: pair("ca")?, server: pair("server")?, admin: pair("admin")? })
    }

    /// The CA's certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca.certificate
    }

    /// A kubeconfig with which the administrator reaches the server at `url`, as in `https://127.0.0.1:6443`.
    pub fn kubeconfig(&self, cluster: &str, url: &str) -> String {
        // JSON is YAML, and this way nothing needs quoting rules of its own.
        let config = self.config(cluster, url);
        serde_json::to_string_pretty(&config).expect("invariant: a JSON value has string keys") + "\n"
    }

    fn config(&self, cluster: &str, url: &str) -> Value {
        let encode = |pem: &str| STANDARD.encode(pem);
        let user = kubeconfig::user(cluster);
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": {
                "server": url, "certificate-authority-data": encode(&self.ca.certificate),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": encode(&self.admin.certificate),
                "client-key-data": encode(&self.admin.key),
            }}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user, "namespace": "default"}}],
            "current-context": cluster,
        })
    }

    /// Puts cluster, user and context of [`Self::kubeconfig`] into a file that only its owner can read afterwards,
    /// and makes the context the current one. All else that the file holds stays.
    ///
    /// # Errors
    /// The file cannot be read as a kubeconfig, and is left as it is, or cannot be written.
    pub fn write_kubeconfig(&self, path: &Path, cluster: &str, url: &str) -> Result<(), Error> {
        kubeconfig::merge(path, &self.config(cluster, url))
    }

    /// TLS settings: HTTP/2 and HTTP/1.1, client certificates of this CA accepted but not demanded.
    pub(crate) fn tls(&self) -> Result<Arc<rustls::ServerConfig>, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let problem = |action: &'static str| {
            move |error: &dyn std::fmt::Display| Error::Pki { action, problem: error.to_string() }
        };
        let certificates: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(self.server.certificate.as_bytes())
                .collect::<Result<_, _>>()
                .map_err(|e| problem("read the server's certificate")(&e))?;
        let key = PrivateKeyDer::from_pem_slice(self.server.key.as_bytes())
            .map_err(|e| problem("read the server's key")(&e))?;
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.ca.certificate.as_bytes())
            .map_err(|e| problem("read the CA's certificate")(&e))?;
        roots.add(ca).map_err(|e| problem("trust the CA's certificate")(&e))?;
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()
                .map_err(|e| problem("verify client certificates")(&e))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| problem("choose TLS versions")(&e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates, key)
            .map_err(|e| problem("use the server's certificate")(&e))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

fn signed(mut params: CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Result<Pair, Error> {
    let key = KeyPair::generate().map_err(failed("generate a key"))?;
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, issuer).map_err(failed("sign a certificate"))?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|e| Error::io("write", path, e))
}
