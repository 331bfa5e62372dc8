//! `gantry runtime`: the container runtime of this machine learns of `gantry-runtime`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use gantry_runtime_config::{Engine, Options, Plan, plan};

use crate::files;
use crate::hint::{self, WithHint as _};

#[derive(Subcommand)]
pub(crate) enum Runtime {
    /// Add gantry-runtime to the configuration of containerd, CRI-O or Docker; a second run changes nothing.
    Configure(Box<Configure>),
    /// Put gantry-runtime where the container runtime of the node finds it; a second time changes nothing.
    Install(Install),
}

/// The program's name.
const PROGRAM: &str = "gantry-runtime";

#[derive(clap::Args)]
pub(crate) struct Install {
    /// The folder, which is made.
    #[arg(value_name = "DIR", default_value = "/usr/local/gantry")]
    folder: PathBuf,
    /// The program. Default: the gantry-runtime beside this one.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// The flags are those of `nvidia-ctk runtime configure`.
#[derive(clap::Args)]
pub(crate) struct Configure {
    /// Whose configuration.
    #[arg(long, value_name = "NAME")]
    runtime: EngineName,
    /// Its main file. Default: the usual one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file of its own for what is added; empty for the main file. Default: the main file up to version 2 of containerd's
    /// configuration, and for Docker; else conf.d/99-nvidia.toml.
    #[arg(long, value_name = "FILE")]
    drop_in_config: Option<PathBuf>,
    /// Where version and defaults are read: the file, or the command that prints what the runtime has understood.
    #[arg(long, value_name = "SOURCE", default_value = "file")]
    config_source: Source,
    /// Containers get it that do not ask for another.
    #[arg(long, alias = "set-as-default")]
    nvidia_set_as_default: bool,
    /// The name by which a RuntimeClass asks for it.
    #[arg(long, value_name = "NAME", alias = "runtime-name", default_value = "nvidia")]
    nvidia_runtime_name: String,
    /// Where gantry-runtime is.
    #[arg(long, value_name = "FILE", alias = "runtime-path", default_value = "/usr/bin/gantry-runtime")]
    nvidia_runtime_path: PathBuf,
    /// Switch on the runtime's own support of CDI.
    #[arg(long = "cdi.enabled", alias = "enable-cdi")]
    cdi_enabled: bool,
    /// Take it away again.
    #[arg(long)]
    remove: bool,
    /// Print what would change, as a unified diff, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineName {
    Containerd,
    Crio,
    Docker,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Source {
    File,
    Command,
}

/// Does what the subcommand says.
pub(crate) fn run(command: &Runtime) -> anyhow::Result<()> {
    match command {
        Runtime::Configure(options) => configure(options),
        Runtime::Install(options) => install(options),
    }
}

fn install(options: &Install) -> anyhow::Result<()> {
    let from = match &options.from {
        Some(from) => from.clone(),
        None => std::env::current_exe().context("find this program")?.with_file_name(PROGRAM),
    };
    let program = fs::read(&from).with_context(|| format!("read {}", from.display()));
    let program = program.hint(|| format!("--from FILE, where {PROGRAM} is"))?;
    let to = options.folder.join(PROGRAM);
    let written = replace(&to, &program).with_context(|| format!("write {}", to.display()));
    if written.hint(|| "run it as root, or name another folder".to_owned())? {
        outln!("{} written", to.display());
    } else {
        eprintln!("nothing to change");
    }
    Ok(())
}

/// Puts a program in a place where it may be running: whole, or not at all. Whether it was another.
fn replace(to: &Path, program: &[u8]) -> io::Result<bool> {
    const MODE: u32 = 0o755;
    let same =
        fs::metadata(to).is_ok_and(|there| there.is_file() && there.permissions().mode() & 0o777 == MODE);
    if same && fs::read(to)? == program {
        return Ok(false);
    }
    files::replace(to, program, fs::Permissions::from_mode(MODE)).map(|()| true)
}

fn configure(options: &Configure) -> anyhow::Result<()> {
    let (engine, dump) = match options.runtime {
        EngineName::Containerd => (Engine::Containerd, Some(["containerd", "config", "dump"])),
        EngineName::Crio => (Engine::Crio, Some(["crio", "status", "config"])),
        EngineName::Docker => (Engine::Docker, None),
    };
    let dump = match (options.config_source, dump) {
        (Source::Command, Some(words)) => Some(output(words)?),
        (Source::Command, None) => {
            return Err(hint::error(
                "Docker has no command that prints its configuration",
                "--config-source file",
            ));
        }
        (Source::File, _) => None,
    };
    let wanted = Options {
        engine,
        config: options.config.clone(),
        drop_in: options.drop_in_config.clone(),
        dump,
        name: options.nvidia_runtime_name.clone(),
        path: options.nvidia_runtime_path.clone(),
        default: options.nvidia_set_as_default,
        cdi: options.cdi_enabled,
        remove: options.remove,
    };
    let planned = plan(&wanted, &Plan::read_file)?;
    for note in &planned.notes {
        eprintln!("note: {note}");
    }
    if planned.changes.is_empty() {
        eprintln!("nothing to change");
        return Ok(());
    }
    if options.dry_run {
        out!("{}", planned.diff());
        return Ok(());
    }
    if !options.remove && !options.nvidia_runtime_path.exists() {
        // A runtime that names a program that is not there refuses every container of its class.
        return Err(hint::error(
            format!("{} is not there", options.nvidia_runtime_path.display()),
            "--nvidia-runtime-path FILE, or put gantry-runtime there first",
        ));
    }
    let written = planned.apply().map_err(anyhow::Error::from);
    let backups = written.hint(|| "run it as root, or see what would change with --dry-run".to_owned())?;
    for change in &planned.changes {
        outln!("{} {}", change.path.display(), if change.after.is_some() { "written" } else { "removed" });
    }
    for backup in backups {
        outln!("{} has what was there before", backup.display());
    }
    eprintln!("it counts after: {}", planned.restart);
    Ok(())
}

fn output(words: [&str; 3]) -> anyhow::Result<String> {
    let line = words.join(" ");
    let output = Command::new(words[0]).args(&words[1..]).output().with_context(|| line.clone())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(hint::error(format!("{line}: {}", text.trim()), "--config-source file"));
    }
    String::from_utf8(output.stdout).with_context(|| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_replaced_whole_and_only_by_another() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("made/gantry-runtime");
        assert!(replace(&to, b"one").unwrap());
        assert!(!replace(&to, b"one").unwrap());
        let old = fs::File::open(&to).unwrap();
        assert!(replace(&to, b"two").unwrap());
        assert_eq!(io::read_to_string(old).unwrap(), "one", "what runs goes on");
        assert_eq!(fs::read(&to).unwrap(), b"two");
        fs::set_permissions(&to, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(replace(&to, b"two").unwrap(), "it cannot be run");
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(to.parent().unwrap()).unwrap().count(), 1, "nothing is left behind");
    }
}
