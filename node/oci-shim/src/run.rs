//! One run of the program.

use std::env;
use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::path::Path;

use gantry_cdi::Cache;
use gantry_driver::{ImageLayout, LibC};
use gantry_shim::{Answer, Image, Request};
use serde_json::Value;

use crate::args::{Bundle, CommandLine};
use crate::bundle::Stored;
use crate::edit::World;
use crate::log::Log;
use crate::policy::Level;
use crate::{Error, Policy, agent, config, edit, lowlevel};

/// The machine that this runs on.
struct Machine<'a> {
    /// The folder of the bundle.
    bundle: &'a Path,
}

impl World for Machine<'_> {
    fn specifications(&self, policy: &Policy) -> Cache {
        Cache::load(&policy.spec_dirs)
    }

    fn image(&self, config: &Value) -> Option<Image> {
        let path = config.get("root")?.get("path")?.as_str()?;
        let root = std::fs::File::open(self.bundle.join(path)).ok()?;
        let layout = ImageLayout::probe(root.as_fd())?;
        Some(Image {
            library_folder: layout.library_folder,
            library_folder_32: layout.library_folder_32,
            musl: layout.lib_c == LibC::Musl,
        })
    }

    fn ask(&self, policy: &Policy, request: &Request) -> Result<Answer, String> {
        agent::ask(&policy.agent_socket, request)
    }
}

/// Does what the arguments ask for, by becoming another runtime. Returns only where that fails; what went wrong stands in the
/// logs then.
pub fn run(arguments: &[OsString]) -> Error {
    let line = CommandLine::parse(arguments);
    let (policy, unreadable) = match config::load(&|name| env::var(name).ok()) {
        Ok(policy) => (policy, None),
        Err(error) => (Policy::default(), Some(error)),
    };
    let log = Log { target: &policy.log, level: policy.log_level, caller: &line };
    let ready = match (&line.creates, unreadable) {
        (Some(_), Some(error)) => Err(error),
        (Some(bundle), None) => prepare(bundle, &policy, &log),
        // What runs must be stopped and deleted even if the settings cannot be read.
        (None, _) => Ok(()),
    };
    let runtime = ready.and_then(|()| lowlevel::find(&policy.runtimes, env::var_os("PATH").as_deref()));
    let error = match runtime {
        Ok(runtime) => lowlevel::become_runtime(&runtime, arguments),
        Err(error) => error,
    };
    log.write(Level::Error, &error.to_string());
    error
}

/// Edits the bundle's configuration.
fn prepare(bundle: &Bundle, policy: &Policy, log: &Log<'_>) -> Result<(), Error> {
    let stored = Stored::read(&bundle.config())?;
    let mut value = stored.value.clone();
    let outcome = edit(&mut value, policy, &Machine { bundle: &bundle.folder })?;
    outcome.notes.iter().for_each(|(level, text)| log.write(*level, text));
    if outcome.changed { stored.replace(&value) } else { Ok(()) }
}
