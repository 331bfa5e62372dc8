//! What is wanted, and what has to change for it.

use std::path::{Path, PathBuf};

use crate::{Error, containerd, crio, docker};

/// A container runtime, or engine as NVIDIA calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// containerd, for Kubernetes through its CRI plugin.
    Containerd,
    /// CRI-O.
    Crio,
    /// Docker.
    Docker,
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Whose configuration.
    pub engine: Engine,
    /// Its main file; the usual one by default.
    pub config: Option<PathBuf>,
    /// The file of its own for what is added; the usual one by default, where there is one. Empty: the main file.
    pub drop_in: Option<PathBuf>,
    /// What the runtime says is its whole configuration, where it was asked: version and defaults are read from it then.
    pub dump: Option<String>,
    /// The name of the OCI runtime, and of the handler in a RuntimeClass.
    pub name: String,
    /// The program.
    pub path: PathBuf,
    /// Whether containers get it that do not ask for another.
    pub default: bool,
    /// Whether the runtime's own support of CDI is switched on.
    pub cdi: bool,
    /// Take away instead of adding.
    pub remove: bool,
}

/// A file that is to be another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub path: PathBuf,
    /// Its text; `None` where it is not there.
    pub before: Option<String>,
    /// What it is to be; `None` where it is to go.
    pub after: Option<String>,
}

/// What has to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Files in the order in which they are written. Empty: everything is as it should be.
    pub changes: Vec<Change>,
    /// What a person should know.
    pub notes: Vec<String>,
    /// The command after which it counts.
    pub restart: &'static str,
}

/// How a file is read: `None` where it is not there.
pub(crate) type Read<'a> = &'a dyn Fn(&Path) -> Result<Option<String>, Error>;

/// Finds out what has to change.
///
/// # Errors
/// Where an option or a file cannot be understood. Nothing is written in any case.
pub fn plan(options: &Options, read: Read<'_>) -> Result<Plan, Error> {
    check(options)?;
    let mut plan = match options.engine {
        Engine::Containerd => containerd::plan(options, read)?,
        Engine::Crio => crio::plan(options, read)?,
        Engine::Docker => docker::plan(options, read)?,
    };
    plan.changes.retain(|change| change.before != change.after);
    Ok(plan)
}

fn check(options: &Options) -> Result<(), Error> {
    let name = &options.name;
    let is_label = matches!(name.len(), 1..=63)
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    let refuse = |option, value: &str, rule| {
        Err(Error::Option { option, value: value.chars().take(120).collect(), rule })
    };
    if !is_label {
        return refuse(
            "--nvidia-runtime-name",
            name,
            "must be lower case letters, digits and '-', as a RuntimeClass's handler is",
        );
    }
    if matches!(name.as_str(), "runc" | "crun") {
        return refuse(
            "--nvidia-runtime-name",
            name,
            "is the runtime that does the work; choose another, such as nvidia",
        );
    }
    if !options.path.is_absolute() {
        return refuse("--nvidia-runtime-path", &options.path.to_string_lossy(), "must be an absolute path");
    }
    Ok(())
}

/// The text of a file and what is to become of it.
pub(crate) fn change(path: &Path, before: Option<String>, after: Option<String>) -> Change {
    Change { path: path.to_path_buf(), before, after }
}

/// What a file begins with that is ours alone.
pub(crate) const HEADER: &str =
    "# Written by `gantry runtime configure`, which keeps it as it should be; `--remove` takes it away.\n\n";

/// Where `gantry-runtime` looks for runc whatever its `PATH` is.
const USUAL: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Tells of a runtime that containers had so far and that `gantry-runtime` would not find.
pub(crate) fn note_program(notes: &mut Vec<String>, program: Option<&str>) {
    let Some(program) = program.filter(|program| !program.is_empty()) else { return };
    let (folder, name) = program.rsplit_once('/').unwrap_or(("", program));
    let is_found = name == "runc" && (folder.is_empty() || USUAL.contains(&folder));
    if !is_found {
        notes.push(format!(
            "containers ran with {program} so far: write runtimes = [\"{program}\"] into /etc/gantry/runtime.toml, or gantry-runtime takes runc"
        ));
    }
}
