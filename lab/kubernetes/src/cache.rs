//! Where things are kept: builds by what they were made of, clusters by name.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg};

/// The folder in which everything lies that outlives a checkout.
#[derive(Debug, Clone)]
pub struct Cache(PathBuf);

impl Cache {
    /// `$GANTRY_KUBERNETES_CACHE`, else `gantry/kubernetes` in the user's cache folder.
    ///
    /// # Errors
    /// Where the environment names no home.
    pub fn of_user() -> anyhow::Result<Self> {
        let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = folder("GANTRY_KUBERNETES_CACHE")
            .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("gantry/kubernetes")))
            .or_else(|| folder("HOME").map(|home| home.join(".cache/gantry/kubernetes")))
            .context("nowhere to keep builds: set HOME or GANTRY_KUBERNETES_CACHE")?;
        Ok(Self(root))
    }

    /// A path below the folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The folder of a cluster.
    pub(crate) fn cluster(&self, name: &str) -> PathBuf {
        self.path("run").join(name)
    }

    /// Waits until nobody else holds the lock of this name, and holds it.
    pub(crate) fn lock(&self, name: &str) -> anyhow::Result<Flock<File>> {
        fs::create_dir_all(&self.0).with_context(|| format!("create {}", self.0.display()))?;
        let path = self.path(format!("{name}.lock"));
        let open = || File::options().create(true).truncate(false).write(true).open(&path);
        let file = open().with_context(|| format!("open {}", path.display()))?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| errno)
            .with_context(|| format!("lock {}", path.display()))
    }

    /// The folder of a build: made by `make` in a folder that takes this name once it is whole.
    pub(crate) fn built(
        &self,
        name: &str,
        make: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<PathBuf> {
        let folder = self.path("bin").join(name);
        if folder.is_dir() {
            return Ok(folder);
        }
        let _lock = self.lock("build")?;
        if folder.is_dir() {
            return Ok(folder);
        }
        let unfinished = folder.with_extension("unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).with_context(|| format!("remove {}", unfinished.display()))?;
        }
        fs::create_dir_all(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
        make(&unfinished)?;
        fs::rename(&unfinished, &folder).with_context(|| format!("name {}", folder.display()))?;
        Ok(folder)
    }
}
