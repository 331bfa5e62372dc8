//! Container images without a container engine: an archive that `ctr images import` takes, from files of this machine.
//!
//! ```text
//!   Image::new("gantry:dev") ── program(host, path) ──▶ the ELF file, its loader and its libraries ─┐
//!                            ├─ file, bytes, directory, symlink ────────────────────────────────────┤
//!                            └─ entrypoint, user, env, label ──▶ configuration                      ▼
//!                                                       write(archive): tar of an OCI layout, one tar a layer
//! ```
//!
//! Nothing is read before [`Image::write`], which tells every failure. The same input gives the same archive, byte by byte: entries are
//! sorted, belong to root and date from 1970, so that the digest tells whether anything has changed.
//!
//! Formats: [OCI image layout](https://github.com/opencontainers/image-spec/blob/main/image-layout.md), with the annotation
//! `io.containerd.image.name` that containerd names an imported image after, and Docker's `manifest.json` for `docker load`.

mod elf;
mod layout;
mod libraries;
mod reference;
mod tar;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use elf::{Elf, ElfError};
pub use layout::Written;
pub use reference::Reference;

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of the image.
    #[error("image reference {text:?}: {rule}")]
    Reference {
        /// What was given.
        text: String,
        /// What it breaks.
        rule: &'static str,
    },
    /// A path within the image.
    #[error("path {path:?} in the image: {rule}")]
    Path {
        /// What was given.
        path: String,
        /// What it breaks.
        rule: &'static str,
    },
    /// Two different things at the same place of a layer.
    #[error("path {path:?} in the image: given twice, with different content")]
    Twice {
        /// The place.
        path: String,
    },
    /// A file of this machine.
    #[error("{action} {}", path.display())]
    File {
        /// What was to be done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A program or library that is none.
    #[error("read {} as a program", path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ElfError,
    },
    /// A library that is not on this machine.
    #[error("{}: needs the library {library}, which is in none of {}; install it, or build where it is", user.display(), searched.join(", "))]
    NoLibrary {
        /// Who needs it.
        user: PathBuf,
        /// What is missing.
        library: String,
        /// Where it was looked for.
        searched: Vec<String>,
    },
    /// Programs for different processors.
    #[error("{} is for {found}, the image for {expected}", path.display())]
    Architecture {
        /// The program.
        path: PathBuf,
        /// Its architecture.
        found: &'static str,
        /// That of the image.
        expected: String,
    },
}

/// What an entry of a layer is made from.
#[derive(Debug, Clone)]
enum Source {
    Host(PathBuf),
    Bytes { content: Vec<u8>, mode: u32 },
    Directory { mode: u32 },
    Symlink(String),
}

/// Something that is put into the layer when the image is written.
#[derive(Debug, Clone)]
enum Item {
    /// A file, folder or link at this path.
    Entry(String, Source),
    /// The loader and the libraries of the ELF file on this machine, at the paths where they are here.
    Libraries(PathBuf),
    /// A library by its name, as a program opens it at run time, with those that it needs.
    Library(String),
}

/// An image to be. Methods add; [`Image::write`] makes it.
#[derive(Debug, Clone)]
pub struct Image {
    reference: String,
    layers: Vec<Vec<Item>>,
    compress: bool,
    architecture: Option<String>,
    entrypoint: Vec<String>,
    command: Vec<String>,
    env: Vec<String>,
    user: Option<String>,
    working_dir: Option<String>,
    labels: BTreeMap<String, String>,
}

impl Image {
    /// An empty image of this name, such as `gantry:dev` (which is `docker.io/library/gantry:dev`) or `registry.example/team/gantry:1.0`.
    pub fn new(reference: impl Into<String>) -> Self {
        Self {
            reference: reference.into(),
            layers: vec![Vec::new()],
            compress: true,
            architecture: None,
            entrypoint: Vec::new(),
            command: Vec::new(),
            env: Vec::new(),
            user: None,
            working_dir: None,
            labels: BTreeMap::new(),
        }
    }

    /// Begins another layer: what rarely changes is best put before what often does.
    pub fn layer(mut self) -> Self {
        self.layers.push(Vec::new());
        self
    }

    fn item(mut self, item: Item) -> Self {
        if let Some(layer) = self.layers.last_mut() {
            layer.push(item);
        }
        self
    }

    fn entry(self, path: impl Into<String>, source: Source) -> Self {
        self.item(Item::Entry(path.into(), source))
    }

    /// A file of this machine at `path`; executable if it is so here. Links are followed.
    pub fn file(self, host: impl Into<PathBuf>, path: impl Into<String>) -> Self {
        self.entry(path, Source::Host(host.into()))
    }

    /// An ELF program of this machine at `path`, with its loader and every library that it is linked against.
    pub fn program(self, host: impl Into<PathBuf>, path: impl Into<String>) -> Self {
        let host = host.into();
        self.libraries_of(host.clone()).file(host, path)
    }

    /// The loader and libraries of an ELF program of this machine, at the paths that they have here, without the program.
    pub fn libraries_of(self, host: impl Into<PathBuf>) -> Self {
        self.item(Item::Libraries(host.into()))
    }

    /// A library by name, such as `libdl.so.2`, and those that it needs: for what is opened at run time and stands in no ELF header.
    /// Looked for where the libraries of the layer's programs are.
    pub fn library(self, name: impl Into<String>) -> Self {
        self.item(Item::Library(name.into()))
    }

    /// A file with this content and these permissions, such as `0o644`.
    pub fn bytes(self, path: impl Into<String>, content: impl Into<Vec<u8>>, mode: u32) -> Self {
        self.entry(path, Source::Bytes { content: content.into(), mode })
    }

    /// A folder with these permissions. Folders above files are there without being told, with `0o755`.
    pub fn directory(self, path: impl Into<String>, mode: u32) -> Self {
        self.entry(path, Source::Directory { mode })
    }

    /// A symbolic link at `path` to `target`.
    pub fn symlink(self, path: impl Into<String>, target: impl Into<String>) -> Self {
        self.entry(path, Source::Symlink(target.into()))
    }

    /// What runs.
    pub fn entrypoint<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.entrypoint = words.into_iter().map(Into::into).collect();
        self
    }

    /// The arguments of what runs, unless the user gives others.
    pub fn command<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    /// One environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push(format!("{name}={value}"));
        self
    }

    /// Who runs it, as `UID:GID`; root by default.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The working folder.
    pub fn working_dir(mut self, path: impl Into<String>) -> Self {
        self.working_dir = Some(path.into());
        self
    }

    /// One label, such as `org.opencontainers.image.title`.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// The processor as Go names it (`amd64`, `arm64`). By default that of the programs, or of this machine.
    pub fn architecture(mut self, name: impl Into<String>) -> Self {
        self.architecture = Some(name.into());
        self
    }

    /// Layers without gzip: larger and much faster to write, for images that stay on this machine.
    pub fn uncompressed(mut self) -> Self {
        self.compress = false;
        self
    }

    /// Reads everything and writes the archive, which then replaces what was at `archive`.
    ///
    /// # Errors
    /// For a name or path that is none, a file that cannot be read or written, a library that is missing.
    pub fn write(self, archive: &Path) -> Result<Written, Error> {
        layout::write(self, archive)
    }
}
