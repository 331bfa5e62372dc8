//! Programs that nobody simulates: they say so, wait, and exit.

use std::time::Duration;

use super::Sink;
use crate::runtime::ContainerView;

/// What a container's program does instead of its work.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    pub(crate) image: String,
    pub(crate) command: Vec<String>,
    /// `None` is for ever.
    pub(crate) duration: Option<Duration>,
    pub(crate) exit_code: i32,
}

/// Runs to the end and gives the exit code.
pub(crate) async fn run(workload: Workload, view: &ContainerView, stdout: &Sink) -> i32 {
    let Workload { image, command, duration, exit_code } = workload;
    let command = if command.is_empty() { "the image's own".to_owned() } else { format!("{command:?}") };
    let gpus = view.gpus();
    let devices = if gpus.is_empty() {
        "none".to_owned()
    } else {
        let names: Vec<String> = gpus
            .iter()
            .enumerate()
            .map(|(index, gpu)| {
                format!("{index}: {} with {} MiB ({})", gpu.name, gpu.memory_total_mib, gpu.uuid)
            })
            .collect();
        names.join(", ")
    };
    stdout.line(format!("[gantry] this program is simulated, not run: image {image}, command {command}"));
    stdout.line(format!("[gantry] GPUs of this container: {devices}"));
    let Some(duration) = duration else {
        stdout.line("[gantry] it runs until it is stopped (annotation sim.gantry.dev/duration sets an end)");
        return std::future::pending().await;
    };
    stdout.line(format!(
        "[gantry] it runs for {duration:?} and exits with code {exit_code} \
         (annotations sim.gantry.dev/duration and sim.gantry.dev/exit-code)"
    ));
    tokio::time::sleep(duration).await;
    stdout.line(format!("[gantry] done, exit code {exit_code}"));
    exit_code
}
