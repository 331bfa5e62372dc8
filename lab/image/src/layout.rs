//! From what was asked for to the archive.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::libraries::Libraries;
use crate::tar::{self, Entry};
use crate::{Error, Image, Item, Reference, Source};

/// An image that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its full name, as a container runtime lists it after the import.
    pub reference: String,
    /// The digest of its manifest, `sha256:…`; the same for the same content.
    pub digest: String,
    /// Bytes of its layers, as stored.
    pub layer_bytes: u64,
    /// Files in it, without folders and links, as `path` and bytes.
    pub files: BTreeMap<String, u64>,
}

/// The processor of this machine as Go names it.
pub(crate) fn this_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
    }
}

struct Blob {
    digest: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(content: Vec<u8>) -> Self {
        Self { digest: hex(&Sha256::digest(&content)), content }
    }

    fn json(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": format!("sha256:{}", self.digest), "size": self.content.len() })
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn write(image: Image, archive: &Path) -> Result<Written, Error> {
    let reference: Reference = image.reference.parse()?;
    let mut libraries = Libraries::default();
    let mut files = BTreeMap::new();
    let (mut layers, mut diff_ids, mut descriptors) = (Vec::new(), Vec::new(), Vec::new());
    let media_type = if image.compress {
        "application/vnd.oci.image.layer.v1.tar+gzip"
    } else {
        "application/vnd.oci.image.layer.v1.tar"
    };
    for items in &image.layers {
        let entries = layer(items, &mut libraries)?;
        if entries.is_empty() {
            continue;
        }
        for (path, entry) in &entries {
            if let Entry::File { content, .. } = entry {
                files.insert(format!("/{path}"), content.len() as u64);
            }
        }
        let (diff_id, blob) = pack(&entries, image.compress);
        diff_ids.push(format!("sha256:{diff_id}"));
        descriptors.push(blob.descriptor(media_type));
        layers.push(blob);
    }
    let architecture = match (&image.architecture, libraries.architecture) {
        (Some(name), _) => name.clone(),
        (None, Some(name)) => name.to_owned(),
        (None, None) => this_architecture().to_owned(),
    };
    let config = Blob::json(&config(&image, &architecture, &diff_ids));
    let manifest = Blob::json(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
        "layers": descriptors,
    }));
    let mut descriptor = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
    descriptor["platform"] = json!({ "architecture": architecture, "os": "linux" });
    descriptor["annotations"] = json!({
        "io.containerd.image.name": reference.to_string(),
        "org.opencontainers.image.ref.name": reference.tag,
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [descriptor],
    });
    let blob_path = |blob: &Blob| format!("blobs/sha256/{}", blob.digest);
    let docker = json!([{
        "Config": blob_path(&config),
        "RepoTags": [reference.to_string()],
        "Layers": layers.iter().map(blob_path).collect::<Vec<_>>(),
    }]);
    let written = Written {
        reference: reference.to_string(),
        digest: format!("sha256:{}", manifest.digest),
        layer_bytes: layers.iter().map(|blob| blob.content.len() as u64).sum(),
        files,
    };
    let text = |value: Value| Entry::File { content: value.to_string().into_bytes(), mode: 0o644 };
    let mut out = BTreeMap::from([
        ("oci-layout".to_owned(), text(json!({ "imageLayoutVersion": "1.0.0" }))),
        ("index.json".to_owned(), text(index)),
        ("manifest.json".to_owned(), text(docker)),
        ("blobs".to_owned(), Entry::Directory { mode: 0o755 }),
        ("blobs/sha256".to_owned(), Entry::Directory { mode: 0o755 }),
    ]);
    for blob in layers.into_iter().chain([config, manifest]) {
        out.insert(blob_path(&blob), Entry::File { content: blob.content, mode: 0o644 });
    }
    save(&out, archive).map_err(|source| Error::File {
        action: "write",
        path: archive.to_owned(),
        source,
    })?;
    Ok(written)
}

/// Writes beside the target first: a half-written archive must not be taken for a whole one.
fn save(entries: &BTreeMap<String, Entry>, archive: &Path) -> io::Result<()> {
    let mut name = archive.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = archive.with_file_name(name);
    let result = (|| {
        let mut out = io::BufWriter::new(fs::File::create(&part)?);
        for (name, entry) in entries {
            tar::append(&mut out, name, entry)?;
        }
        tar::finish(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?;
        fs::rename(&part, archive)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&part);
    }
    result
}

fn config(image: &Image, architecture: &str, diff_ids: &[String]) -> Value {
    let mut config = json!({});
    let lists = [("Entrypoint", &image.entrypoint), ("Cmd", &image.command), ("Env", &image.env)];
    for (key, list) in lists {
        if !list.is_empty() {
            config[key] = json!(list);
        }
    }
    for (key, text) in [("User", &image.user), ("WorkingDir", &image.working_dir)] {
        if let Some(text) = text {
            config[key] = json!(text);
        }
    }
    if !image.labels.is_empty() {
        config["Labels"] = json!(image.labels);
    }
    json!({
        "created": "1970-01-01T00:00:00Z",
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "history": diff_ids.iter().map(|_| json!({ "created": "1970-01-01T00:00:00Z", "created_by": "gantry-image" })).collect::<Vec<_>>(),
    })
}

/// The entries of one layer by their path without the leading slash, with the folders above them.
fn layer(items: &[Item], libraries: &mut Libraries) -> Result<BTreeMap<String, Entry>, Error> {
    let mut entries = BTreeMap::new();
    let mut told = Vec::new();
    for item in items {
        match item {
            Item::Entry(path, source) => told.push((path.clone(), read(source)?)),
            Item::Libraries(program) => libraries.add_program(program)?,
            Item::Library(name) => libraries.add_named(name)?,
        }
    }
    for path in std::mem::take(&mut libraries.paths).into_keys() {
        let content = fs::read(&path).map_err(|source| Error::File {
            action: "read",
            path: path.clone().into(),
            source,
        })?;
        told.push((path, Entry::File { content, mode: 0o755 }));
    }
    for (path, entry) in told {
        let name = checked(&path)?;
        if let Some(rule) = tar::refusal(name, &entry) {
            return Err(Error::Path { path, rule });
        }
        match entries.get(name) {
            Some(other) if *other != entry => return Err(Error::Twice { path }),
            _ => entries.insert(name.to_owned(), entry),
        };
    }
    let names: Vec<String> = entries.keys().cloned().collect();
    for name in names {
        for (at, _) in name.match_indices('/') {
            let above = entries.entry(name[..at].to_owned()).or_insert(Entry::Directory { mode: 0o755 });
            if !matches!(above, Entry::Directory { .. }) {
                return Err(Error::Path {
                    path: format!("/{name}"),
                    rule: "a file or link cannot have something below it",
                });
            }
        }
    }
    Ok(entries)
}

fn checked(path: &str) -> Result<&str, Error> {
    let refuse = |rule| Err(Error::Path { path: path.to_owned(), rule });
    let Some(name) = path.strip_prefix('/') else { return refuse("must begin with '/'") };
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return refuse("must not have empty parts, '.' or '..'");
    }
    if name.contains('\0') {
        return refuse("must not have a zero byte");
    }
    Ok(name)
}

fn read(source: &Source) -> Result<Entry, Error> {
    Ok(match source {
        Source::Bytes { content, mode } => Entry::File { content: content.clone(), mode: *mode },
        Source::Directory { mode } => Entry::Directory { mode: *mode },
        Source::Symlink(target) => Entry::Symlink { target: target.clone() },
        Source::Host(path) => {
            let failed = |source| Error::File { action: "read", path: path.clone(), source };
            let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
            // What the user's umask made of it must not show in the digest.
            let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
            Entry::File { content: fs::read(path).map_err(failed)?, mode }
        }
    })
}

/// The digest of the layer's tar, and the layer as it is stored.
fn pack(entries: &BTreeMap<String, Entry>, compress: bool) -> (String, Blob) {
    let mut hash = Sha256::new();
    // No name, no time, no operating system: the header is the same everywhere.
    let level = if compress { Compression::default() } else { Compression::none() };
    let mut gzip = GzBuilder::new().operating_system(255).write(Vec::new(), level);
    let mut plain = Vec::new();
    let mut sink = Tee(&mut hash, if compress { Sink::Gzip(&mut gzip) } else { Sink::Plain(&mut plain) });
    let done = entries
        .iter()
        .try_for_each(|(name, entry)| tar::append(&mut sink, name, entry))
        .and_then(|()| tar::finish(&mut sink));
    let stored = done.and_then(|()| if compress { gzip.finish() } else { Ok(plain) });
    (
        hex(&hash.finalize()),
        Blob::new(stored.expect("invariant: names were checked, and memory takes every write")),
    )
}

enum Sink<'a> {
    Gzip(&'a mut flate2::write::GzEncoder<Vec<u8>>),
    Plain(&'a mut Vec<u8>),
}

struct Tee<'a>(&'a mut Sha256, Sink<'a>);

impl Write for Tee<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        match &mut self.1 {
            Sink::Gzip(out) => out.write_all(bytes)?,
            Sink::Plain(out) => out.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
