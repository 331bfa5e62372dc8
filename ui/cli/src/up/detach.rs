//! `gantry up --detach`: the same command in a process that stays behind.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{groups, poll};
use crate::args::UpOptions;
use crate::hint;
use crate::instance::{self, Claim};

/// How long a process that is told to end may take before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Starts the same command in a process of its own and returns when its cluster is ready.
pub(crate) fn detach(options: &UpOptions, kubeconfig: Option<&Path>) -> anyhow::Result<()> {
    // Bad flags are told here, where a person looks, and not in a log file.
    groups(options)?;
    // The name is fixed here so that parent and child mean the same cluster; the child takes the lock itself.
    let name = {
        let claim = Claim::take(options.name.as_deref())?;
        claim.name().to_owned()
    };
    let folder = instance::folder(&name)?;
    let log_path = folder.with_extension("log");
    let log = fs::File::create(&log_path).with_context(|| format!("create {}", log_path.display()))?;
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.args(["up", "--name", &name, "--port", &options.port.to_string()]);
    if let Some(flag) = &options.nodes {
        command.args(["--nodes", &flag.to_string()]);
    }
    if let Some(file) = &options.file {
        command.arg("--file").arg(std::path::absolute(file)?);
    }
    if let Some(state) = &options.state {
        command.arg("--state").arg(std::path::absolute(state)?);
    }
    if let Some(kubeconfig) = kubeconfig {
        command.arg("--kubeconfig").arg(std::path::absolute(kubeconfig)?);
    }
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // A process group of its own: Ctrl-C in this terminal is not meant for it.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().context("start the cluster's process")?;

    let ready = poll(Duration::from_secs(options.timeout), || {
        if let Some(status) = child.try_wait()? {
            let text = fs::read_to_string(&log_path).unwrap_or_default();
            bail!("the cluster did not start ({status}):\n{}", text.trim_end());
        }
        Ok(folder.join("info.json").exists())
    })?;
    if !ready {
        end(&mut child)?;
        instance::sweep(&name)?;
        return Err(hint::error(
            format!("the cluster was not ready after {} s and is stopped", options.timeout),
            format!("cat {}", log_path.display()),
        ));
    }
    out!("{}", fs::read_to_string(&log_path).unwrap_or_default());
    outln!("stop it with: gantry down {name}");
    Ok(())
}

/// Ends the process: nobody would look after a cluster that was given up.
fn end(child: &mut Child) -> anyhow::Result<()> {
    let pid = i32::try_from(child.id()).context("read the process's number")?;
    // It may have ended by itself.
    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    if !poll(GRACE, || Ok(child.try_wait()?.is_some()))? {
        child.kill().with_context(|| format!("kill process {pid}"))?;
        child.wait()?;
    }
    Ok(())
}
