//! The command line of an OCI runtime, as far as it says whether a container is created and where its bundle is.
//!
//! The form is that of runc and crun: global flags, a subcommand, its flags, the container's id. Flags have one dash or two, and their
//! value after `=` or as the next argument.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Global flags of runc, crun and youki that take the next argument as their value.
const GLOBAL_WITH_VALUE: [&str; 7] =
    ["cgroup-manager", "criu", "log", "log-format", "log-level", "root", "rootless"];

/// Flags of `create` and `run` that take the next argument as their value.
const CREATE_WITH_VALUE: [&str; 8] =
    ["b", "bundle", "config", "console-socket", "f", "pid-file", "pidfd-socket", "preserve-fds"];

/// What the command line says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The bundle and the configuration's file name in it, where the subcommand creates a container.
    pub creates: Option<Bundle>,
    /// The file in which the caller looks for errors.
    pub log: Option<PathBuf>,
    /// Whether that file has a JSON object on each line.
    pub log_is_json: bool,
}

/// Where a container's configuration is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// The bundle; relative to the working folder where it is not absolute.
    pub folder: PathBuf,
    /// The configuration in it.
    pub file: PathBuf,
}

impl Bundle {
    /// The configuration's path.
    pub fn config(&self) -> PathBuf {
        self.folder.join(&self.file)
    }
}

impl CommandLine {
    /// Reads the arguments that follow the program's name. No arguments are refused: what is not understood is for the runtime to judge.
    pub fn parse(arguments: &[OsString]) -> Self {
        let mut line = Self::default();
        let mut words = arguments.iter().map(OsString::as_os_str);
        let subcommand = loop {
            let Some(word) = words.next() else { return line };
            let Some((name, value)) = flag(word) else { break word };
            let mut value = || value.or_else(|| words.next());
            match name {
                b"log" => line.log = value().map(PathBuf::from),
                b"log-format" => line.log_is_json = value().is_some_and(|format| format == "json"),
                name if takes_value(name, &GLOBAL_WITH_VALUE) => drop(value()),
                b"help" | b"h" | b"version" | b"v" => return line,
                _ => {}
            }
        };
        if subcommand != "create" && subcommand != "run" {
            return line;
        }
        let (mut folder, mut file) = (None, None);
        while let Some(word) = words.next() {
            if word == "--" {
                break;
            }
            let Some((name, value)) = flag(word) else { continue };
            let mut value = || value.or_else(|| words.next()).map(PathBuf::from);
            match name {
                b"b" | b"bundle" => folder = value(),
                b"f" | b"config" => file = value(),
                name if takes_value(name, &CREATE_WITH_VALUE) => drop(value()),
                b"help" | b"h" => return line,
                // crun's short form without a space.
                [b'b', rest @ ..] if !word.as_bytes().starts_with(b"--") => {
                    folder = Some(PathBuf::from(OsStr::from_bytes(rest)));
                }
                _ => {}
            }
        }
        line.creates = Some(Bundle {
            folder: folder.filter(|folder| *folder != Path::new("")).unwrap_or_else(|| PathBuf::from(".")),
            file: file.unwrap_or_else(|| PathBuf::from("config.json")),
        });
        line
    }
}

fn takes_value(name: &[u8], flags: &[&str]) -> bool {
    flags.iter().any(|flag| flag.as_bytes() == name)
}

/// The name and the value, if it follows an `=`, of an argument that is a flag.
fn flag(word: &OsStr) -> Option<(&[u8], Option<&OsStr>)> {
    let bytes = word.as_bytes();
    let text =
        bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")).filter(|text| !text.is_empty())?;
    match text.iter().position(|byte| *byte == b'=') {
        Some(at) => Some((&text[..at], Some(OsStr::from_bytes(&text[at + 1..])))),
        None => Some((text, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> CommandLine {
        CommandLine::parse(
            &text.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect::<Vec<_>>(),
        )
    }

    #[test]
    fn the_bundle_is_found_where_runtimes_are_told_of_it() {
        for (text, bundle) in [
            // containerd's shim, CRI-O's conmon, podman's, docker's by hand, and every way to write a flag.
            (
                "--root /run/containerd/runc/k8s.io --log /run/b/log.json --log-format json --systemd-cgroup create --bundle /run/b --pid-file /run/b/init.pid abc",
                "/run/b/config.json",
            ),
            ("--systemd-cgroup --root=/run/runc create --bundle /b --pid-file /p abc", "/b/config.json"),
            ("create --no-pivot -b /b abc", "/b/config.json"),
            ("create -b=/b abc", "/b/config.json"),
            ("create -bundle /b abc", "/b/config.json"),
            ("create -b/b abc", "/b/config.json"),
            ("create abc --bundle /b", "/b/config.json"),
            ("--debug=true --rootless true run -d --bundle=rel abc", "rel/config.json"),
            ("run abc", "./config.json"),
            ("create --bundle= abc", "./config.json"),
            ("create --bundle /a --bundle /b abc", "/b/config.json"),
            ("create --config other.json -b /b abc", "/b/other.json"),
            ("create --bundle /b -- --bundle", "/b/config.json"),
            ("create --bundle create abc", "create/config.json"),
            ("--log delete --root run create -b /b --preserve-fds 3 run", "/b/config.json"),
        ] {
            let found = parse(text).creates.map(|bundle| bundle.config());
            assert_eq!(found.as_deref(), Some(Path::new(bundle)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_passed_on() {
        for text in [
            "",
            "--version",
            "-v create",
            "--help create",
            "create --help",
            "delete --force create",
            "--root create state create",
            "--log-format create kill create",
            "exec -p /b create",
            "start create",
            "features",
            "--",
            "-",
            "--log",
        ] {
            assert_eq!(parse(text).creates, None, "{text}");
        }
    }

    #[test]
    fn the_callers_log_is_where_it_reads_errors() {
        let line = parse("--log /l --log-format json create -b /b abc");
        assert_eq!((line.log.as_deref(), line.log_is_json), (Some(Path::new("/l")), true));
        let line = parse("--log=/l delete abc");
        assert_eq!((line.log.as_deref(), line.log_is_json), (Some(Path::new("/l")), false));
    }
}
