//! The real `kubectl`, in every version that is found on this machine.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

/// A kubectl binary.
#[derive(Debug, Clone)]
pub struct Kubectl {
    /// Its minor version: 33 for 1.33.
    pub minor: u32,
    path: PathBuf,
}

/// What a command gave: kubectl itself, or one in a container.
#[derive(Debug)]
pub struct Output {
    /// The exit code; `None` if it was stopped.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output, or an error that tells what the command said.
    pub fn ok(self) -> anyhow::Result<String> {
        anyhow::ensure!(
            self.code == Some(0),
            "ended with {:?}: {}{}",
            self.code,
            self.stderr.trim(),
            self.stdout.trim()
        );
        Ok(self.stdout)
    }
}

impl Kubectl {
    /// Runs kubectl with `arguments` and waits for its end, for at most half a minute.
    pub async fn run<S: AsRef<OsStr>>(&self, kubeconfig: &Path, arguments: &[S]) -> anyhow::Result<Output> {
        self.run_for(kubeconfig, arguments, Duration::from_secs(30)).await
    }

    /// Runs kubectl and stops it after `limit`: for `-w` and `-f`, which do not end by themselves.
    pub async fn run_for<S: AsRef<OsStr>>(
        &self,
        kubeconfig: &Path,
        arguments: &[S],
        limit: Duration,
    ) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.path);
        command.args(arguments);
        Self::finish(command, kubeconfig, limit).await
    }

    /// Runs kubectl at a terminal of its own, which the program `script` of util-linux makes; `None` where there is none.
    /// Lines of the output then end as a terminal has them, and standard error is among them.
    pub async fn run_at_a_terminal(
        &self,
        kubeconfig: &Path,
        arguments: &[String],
    ) -> anyhow::Result<Option<Output>> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join("script").is_file()) {
            return Ok(None);
        }
        let words = std::iter::once(self.path.display().to_string()).chain(arguments.iter().cloned());
        let quoted: Vec<String> = words.map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
        let mut command = Command::new("script");
        command.args(["-q", "-e", "-c", &quoted.join(" "), "/dev/null"]);
        Self::finish(command, kubeconfig, Duration::from_secs(30)).await.map(Some)
    }

    async fn finish(mut command: Command, kubeconfig: &Path, limit: Duration) -> anyhow::Result<Output> {
        let mut child = command
            .env_clear()
            .env("KUBECONFIG", kubeconfig)
            // kubectl caches discovery under HOME; a folder of our own keeps clusters apart.
            .env("HOME", kubeconfig.parent().context("a kubeconfig lies in a folder")?)
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("KUBE_EDITOR", "sed -i s/edited-before/edited-after/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start kubectl")?;
        let mut stdout = child.stdout.take().context("its output is piped")?;
        let mut stderr = child.stderr.take().context("its output is piped")?;
        let out = tokio::spawn(async move {
            let mut text = Vec::new();
            let _ = stdout.read_to_end(&mut text).await;
            String::from_utf8_lossy(&text).into_owned()
        });
        let err = tokio::spawn(async move {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text).await;
            String::from_utf8_lossy(&text).into_owned()
        });
        let code = match tokio::time::timeout(limit, child.wait()).await {
            Ok(status) => status?.code(),
            Err(_) => {
                child.kill().await?;
                None
            }
        };
        Ok(Output { code, stdout: out.await?, stderr: err.await? })
    }
}

/// Every kubectl on this machine, oldest first: on `PATH`, and beside the one on `PATH` under names such as
/// `kubectl.1.33`, where distributions keep several.
pub fn kubectls() -> Vec<Kubectl> {
    let mut found = BTreeMap::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&path) {
        let Ok(main) = folder.join("kubectl").canonicalize() else { continue };
        let Some(home) = main.parent() else { continue };
        for entry in home.read_dir().into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(minor) = name
                .to_str()
                .and_then(|name| name.strip_prefix("kubectl.1."))
                .and_then(|minor| minor.parse::<u32>().ok())
            else {
                continue;
            };
            found.entry(minor).or_insert_with(|| Kubectl { minor, path: entry.path() });
        }
        // Beside others the plain one may be a dispatcher that only starts them; alone it is the one there is.
        if found.is_empty()
            && let Some(minor) = ask(&main)
        {
            found.insert(minor, Kubectl { minor, path: main });
        }
    }
    found.into_values().collect()
}

fn ask(path: &Path) -> Option<u32> {
    let output =
        std::process::Command::new(path).args(["version", "--client", "-o", "json"]).output().ok()?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    answer["clientVersion"]["minor"].as_str()?.trim_end_matches('+').parse().ok()
}
