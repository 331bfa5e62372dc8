//! Certificates, keys and kubeconfigs of a cluster: one authority, made anew each time that a cluster starts.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

/// Clients of the API server: file name, user and group.
const CLIENTS: [(&str, &str, Option<&str>); 6] = [
    ("admin", "kubernetes-admin", Some("system:masters")),
    ("apiserver-kubelet-client", "kube-apiserver-kubelet-client", Some("system:masters")),
    ("kube-controller-manager", "system:kube-controller-manager", None),
    ("kube-scheduler", "system:kube-scheduler", None),
    ("kube-proxy", "system:kube-proxy", None),
    // The API server itself, towards servers that extend it.
    ("front-proxy", "front-proxy-client", None),
];

/// The folder with a cluster's certificates.
#[derive(Debug, Clone)]
pub(crate) struct Pki(PathBuf);

impl Pki {
    /// The folder as an earlier [`Self::create`] filled it.
    pub(crate) fn at(folder: &Path) -> Self {
        Self(folder.to_path_buf())
    }

    /// Makes everything that a cluster with these nodes, as name and address, needs. `server` is the API server's URL inside.
    pub(crate) fn create(folder: &Path, nodes: &[(String, Ipv4Addr)], server: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let pki = Self::at(folder);
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name("gantry-kubernetes", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca = params.self_signed(&key)?;
        pki.write("ca.crt", &ca.pem())?;
        pki.write("ca.key", &key.serialize_pem())?;
        let issuer = Issuer::new(params, key);

        let mut addresses: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(10, 96, 0, 1).into()];
        addresses.extend(nodes.first().map(|(_, address)| IpAddr::from(*address)));
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        pki.issue(&issuer, "apiserver", name("kube-apiserver", None), Some((&names, &addresses)))?;
        for (file, user, group) in CLIENTS {
            pki.issue(&issuer, file, name(user, group), None)?;
            pki.kubeconfig(file, server)?;
        }
        for (node, address) in nodes {
            let user = format!("system:node:{node}");
            pki.issue(&issuer, node, name(&user, Some("system:nodes")), None)?;
            pki.kubeconfig(node, server)?;
            let serving = format!("{node}-serving");
            let addresses = [IpAddr::from(*address), Ipv4Addr::LOCALHOST.into()];
            pki.issue(&issuer, &serving, name(&user, Some("system:nodes")), Some((&[node], &addresses)))?;
        }
        // Tokens of service accounts are signed with a key of their own.
        let key = KeyPair::generate()?;
        pki.write("sa.key", &key.serialize_pem())?;
        pki.write("sa.pub", &key.public_key_pem())?;
        Ok(pki)
    }

    /// A file of the folder.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The administrator's kubeconfig for a server at another URL, with everything inside.
    pub(crate) fn kubeconfig_for(&self, client: &str, server: &str) -> anyhow::Result<String> {
        let read = |file: &str| {
            let path = self.0.join(file);
            fs::read(&path)
                .with_context(|| format!("read {}", path.display()))
                .map(|pem| STANDARD.encode(pem))
        };
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "kubernetes",
            "clusters": [{"name": "kubernetes", "cluster": {
                "server": server, "certificate-authority-data": read("ca.crt")?}}],
            "users": [{"name": client, "user": {
                "client-certificate-data": read(&format!("{client}.crt"))?,
                "client-key-data": read(&format!("{client}.key"))?}}],
            "contexts": [{"name": "kubernetes", "context": {
                "cluster": "kubernetes", "user": client, "namespace": "default"}}],
        });
        Ok(serde_json::to_string_pretty(&config)? + "\n")
    }

    fn kubeconfig(&self, client: &str, server: &str) -> anyhow::Result<()> {
        self.write(&format!("{client}.kubeconfig"), &self.kubeconfig_for(client, server)?)
    }

    fn issue(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        file: &str,
        subject: DistinguishedName,
        server: Option<(&[&str], &[IpAddr])>,
    ) -> anyhow::Result<()> {
        let (names, addresses) = server.unwrap_or_default();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = subject;
        params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match server {
            Some(_) => ExtendedKeyUsagePurpose::ServerAuth,
            None => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, issuer).with_context(|| format!("sign {file}.crt"))?;
        self.write(&format!("{file}.crt"), &certificate.pem())?;
        self.write(&format!("{file}.key"), &key.serialize_pem())
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.0.join(name);
        fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("write {}", path.display()))
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
