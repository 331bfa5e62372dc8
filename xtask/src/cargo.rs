//! Calling cargo, and what cargo knows about the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    // Asked when it runs: two clones that build into one folder share this program.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    xtask.parent().map_or_else(|| xtask.clone(), Path::to_path_buf)
}

/// Runs cargo in the workspace's root and fails if it fails.
pub(crate) fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    // Standard output belongs to what is run: it may be data.
    eprintln!("$ cargo {}", arguments.join(" "));
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .status()
        .with_context(|| format!("start cargo {}", arguments.join(" ")))?;
    if !status.success() {
        bail!("cargo {} failed: {status}", arguments.join(" "));
    }
    Ok(())
}

/// Runs the program that starts and stops real Kubernetes.
pub(crate) fn kubernetes(arguments: &[&str]) -> anyhow::Result<()> {
    let fixed = ["run", "--quiet", "--locked", "--package", "gantry-kubernetes", "--"];
    cargo(&[fixed.as_slice(), arguments].concat())
}

/// A member of the workspace.
#[derive(Deserialize)]
pub(crate) struct Package {
    /// The crate's name.
    pub(crate) name: String,
    /// The path of its `Cargo.toml`.
    pub(crate) manifest_path: PathBuf,
    /// What it depends on directly, of every kind.
    pub(crate) dependencies: Vec<Dependency>,
}

/// A direct dependency.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    /// The crate's name.
    pub(crate) name: String,
    /// `None` for an ordinary dependency, else `dev` or `build`.
    pub(crate) kind: Option<String>,
    /// Set for a member of the workspace.
    pub(crate) path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

/// The members of the workspace with their direct dependencies.
pub(crate) fn members() -> anyhow::Result<Vec<Package>> {
    Ok(metadata()?.packages)
}

/// Where cargo builds.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    Ok(metadata()?.target_directory)
}

fn metadata() -> anyhow::Result<Metadata> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .context("start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("read cargo metadata")
}
