//! A registry that has every image: whatever a node's runtime asks for, it gets the image of test workloads.
//!
//! Manifests name images of the whole world, and this machine has none of them. As much of the distribution API as a pull takes:
//! <https://github.com/opencontainers/distribution-spec/blob/main/spec.md>.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::machine::in_network;

/// The port on each node's loopback.
pub(crate) const PORT: u16 = 5000;

/// The longest line of a request that is read.
const LINE: u64 = 16 << 10;

/// The blobs of one image.
#[derive(Debug)]
pub(crate) struct Registry {
    manifest: String,
    media_type: String,
    blobs: HashMap<String, Vec<u8>>,
}

impl Registry {
    /// Reads an image archive: a tar of an OCI layout.
    pub(crate) fn of(archive: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(archive).with_context(|| format!("read {}", archive.display()))?;
        let files = entries(&bytes).with_context(|| format!("read {}", archive.display()))?;
        let index = files.get("index.json").context("no index.json")?;
        let index: Value = serde_json::from_slice(index)?;
        let text = |field: &str| {
            let value = index["manifests"][0][field].as_str();
            value.map(str::to_owned).with_context(|| format!("index.json: manifests[0].{field}"))
        };
        let (manifest, media_type) = (text("digest")?, text("mediaType")?);
        let blobs = files
            .into_iter()
            .filter_map(|(name, bytes)| Some((name.strip_prefix("blobs/sha256/")?.to_owned(), bytes)))
            .map(|(digest, bytes)| (format!("sha256:{digest}"), bytes))
            .collect();
        Ok(Self { manifest, media_type, blobs })
    }

    /// Serves in the network of process `pid`, until this process ends.
    pub(crate) fn serve(self: &Arc<Self>, pid: u32) -> anyhow::Result<()> {
        let registry = Arc::clone(self);
        let listen =
            || TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).context("listen in the node's network");
        in_network(pid, listen, move |listener| {
            for stream in listener.incoming().flatten() {
                let registry = Arc::clone(&registry);
                std::thread::spawn(move || registry.answer(&stream));
            }
        })
    }

    fn answer(&self, stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut request = String::new();
            if reader.by_ref().take(LINE).read_line(&mut request)? == 0 {
                return Ok(());
            }
            let mut header = String::new();
            while reader.by_ref().take(LINE).read_line(&mut header)? > 2 {
                header.clear();
            }
            let mut words = request.split(' ');
            let head = words.next() == Some("HEAD");
            let found = self.find(words.next().unwrap_or_default());
            let (status, kind, digest, body) = match &found {
                Some((digest, kind, body)) => ("200 OK", *kind, *digest, *body),
                None => ("404 Not Found", "application/json", "", b"{}".as_slice()),
            };
            let mut answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
                 Docker-Content-Digest: {digest}\r\nDocker-Distribution-Api-Version: registry/2.0\r\n\r\n",
                body.len()
            )
            .into_bytes();
            if !head {
                answer.extend_from_slice(body);
            }
            (&*stream).write_all(&answer)?;
        }
    }

    /// Digest, media type and content of what a path names.
    fn find(&self, path: &str) -> Option<(&str, &str, &[u8])> {
        let path = path.split('?').next().unwrap_or_default().strip_prefix("/v2/")?;
        if path.is_empty() {
            return Some(("", "application/json", b"{}"));
        }
        let mut parts = path.rsplitn(3, '/');
        let (reference, kind) = (parts.next()?, parts.next()?);
        let digest = match kind {
            // By a tag, whichever, or by the digest that the tag led to.
            "manifests" if !reference.starts_with("sha256:") || reference == self.manifest => &self.manifest,
            "manifests" => return None,
            "blobs" => reference,
            _ => return None,
        };
        let (digest, bytes) = self.blobs.get_key_value(digest)?;
        let media_type = if *digest == self.manifest { &self.media_type } else { "application/octet-stream" };
        Some((digest, media_type, bytes))
    }
}

/// The regular files of a tar in the ustar format, by name.
fn entries(mut tar: &[u8]) -> anyhow::Result<HashMap<String, Vec<u8>>> {
    const BLOCK: usize = 512;
    let mut files = HashMap::new();
    while let Some(header) = tar.get(..BLOCK).filter(|header| header.iter().any(|byte| *byte != 0)) {
        let text = |range: std::ops::Range<usize>| {
            let field = &header[range];
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).trim().to_owned()
        };
        let size = usize::from_str_radix(&text(124..136), 8).context("a size that is no octal number")?;
        let body =
            tar.get(BLOCK..).and_then(|rest| rest.get(..size)).context("ends in the middle of a file")?;
        let prefix = text(345..500);
        let name = if prefix.is_empty() { text(0..100) } else { format!("{prefix}/{}", text(0..100)) };
        if matches!(header[156], b'0' | 0) {
            files.insert(name, body.to_vec());
        }
        tar = tar.get(BLOCK + size.next_multiple_of(BLOCK)..).unwrap_or_default();
    }
    ensure!(!files.is_empty(), "no file in it");
    Ok(files)
}

#[cfg(test)]
mod tests {
    use gantry_image::Image;

    use super::*;

    #[test]
    fn every_name_leads_to_the_one_image_and_its_blobs() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("image.tar");
        let image = Image::new("localhost/workload:1").uncompressed().architecture("amd64");
        image.bytes("/bin/program", "x", 0o755).write(&archive).unwrap();
        let registry = Registry::of(&archive).unwrap();
        let (digest, _, manifest) = registry.find("/v2/pytorch/pytorch/manifests/2.4-cuda12.4").unwrap();
        assert_eq!(digest, registry.manifest);
        let manifest: Value = serde_json::from_slice(manifest).unwrap();
        for blob in [&manifest["config"]["digest"], &manifest["layers"][0]["digest"]] {
            let path = format!("/v2/a/blobs/{}", blob.as_str().unwrap());
            assert!(registry.find(&path).is_some(), "{path}");
        }
        assert!(registry.find("/v2/").is_some());
        for none in ["/", "/v2/a", "/v2/a/manifests/sha256:00", "/v2/a/blobs/latest", "/v2/a/tags/list"] {
            assert!(registry.find(none).is_none(), "{none}");
        }
    }

    #[test]
    fn a_broken_archive_is_an_error() {
        for bytes in [b"".as_slice(), &[b'x'; 512], &[b'7'; 600]] {
            assert!(entries(bytes).is_err());
        }
    }
}
