//! `gantry down` and `gantry clusters`: the clusters that other processes run.

use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::poll;
use crate::args::DownOptions;
use crate::hint;
use crate::instance::{self, Held};

/// How long a cluster may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stops clusters, whether they are ready or not, and returns when they are gone.
pub(crate) fn down(options: &DownOptions) -> anyhow::Result<()> {
    let held = instance::held()?;
    let chosen: Vec<&Held> = match &options.name {
        Some(name) => held.iter().filter(|held| held.name == *name).collect(),
        None => held.iter().collect(),
    };
    if let (None, false, [first, _, ..]) = (&options.name, options.all, chosen.as_slice()) {
        let names: Vec<&str> = held.iter().map(|held| held.name.as_str()).collect();
        return Err(hint::error(
            format!("{} clusters run here ({}): say which", names.len(), names.join(", ")),
            format!("gantry down {}", first.name),
        ));
    }
    if chosen.is_empty() {
        if let Some(name) = &options.name {
            return Err(hint::error(format!("no cluster {name} runs here"), "gantry clusters"));
        }
        eprintln!("no cluster runs here");
        return Ok(());
    }
    chosen.into_iter().try_for_each(stop)
}

fn stop(held: &Held) -> anyhow::Result<()> {
    let name = &held.name;
    let again = || format!("gantry down {name}");
    let pid =
        held.pid.ok_or_else(|| hint::error(format!("cluster {name} starts at this moment"), again()))?;
    kill(Pid::from_raw(pid), Signal::SIGTERM)
        .with_context(|| format!("signal process {pid} of cluster {name}"))?;
    let folder = instance::folder(name)?;
    if !poll(PATIENCE, || Ok(!instance::is_held(&folder)?))? {
        return Err(hint::error(
            format!("cluster {name} did not stop within {} s", PATIENCE.as_secs()),
            format!("kill -9 {pid}"),
        ));
    }
    instance::sweep(name)?;
    outln!("cluster {name} is stopped");
    Ok(())
}

/// Prints the clusters that run here.
pub(crate) fn list() -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = instance::held()?
        .into_iter()
        .map(|held| {
            let pid = held.pid.map_or_else(String::new, |pid| pid.to_string());
            let (server, kubeconfig) = match held.info {
                Some(info) => (info.server, info.kubeconfig.display().to_string()),
                None => ("<starting>".to_owned(), "<none>".to_owned()),
            };
            vec![held.name, pid, server, kubeconfig]
        })
        .collect();
    if rows.is_empty() {
        eprintln!("no cluster runs here\nhint: gantry up --detach");
    } else {
        crate::output::table(Some(&["NAME", "PID", "SERVER", "KUBECONFIG"]), &rows);
    }
    Ok(())
}
