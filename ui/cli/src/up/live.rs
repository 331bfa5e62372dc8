//! The line that tells how the cluster is.

use std::fmt::Write as _;
use std::time::Duration;

use gantry_view::Summary;
use kube::Client;

/// How often the line is made anew.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows one line that follows the cluster, for ever: in place on a terminal, a new line at each change elsewhere.
pub(crate) async fn show(client: Client, terminal: bool) {
    let started = tokio::time::Instant::now();
    let mut last = String::new();
    loop {
        // A failed look is no news: the next one is a second away.
        if let Ok(summary) = Summary::load(&client).await {
            let line = text(&summary);
            if terminal {
                let elapsed = started.elapsed().as_secs();
                out!("\r\x1b[2K{line} · up {}:{:02}:{:02}", elapsed / 3600, elapsed / 60 % 60, elapsed % 60);
            } else if line != last {
                outln!("{line}");
            }
            last = line;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn text(summary: &Summary) -> String {
    let mut line = format!(
        "nodes {}/{} ready · GPUs {}/{} assigned",
        summary.nodes_ready, summary.nodes, summary.gpus_assigned, summary.gpus
    );
    if summary.gpus_unhealthy > 0 {
        let _ = write!(line, ", {} unhealthy", summary.gpus_unhealthy);
    }
    let _ = write!(line, " · pods {} running, {} pending", summary.pods_running, summary.pods_pending);
    if summary.pods_failed > 0 {
        let _ = write!(line, ", {} failed", summary.pods_failed);
    }
    line
}
