//! Who decides which GPU a container gets, where that is found out.

use std::sync::Arc;
use std::time::Duration;

use gantry_nri::State as Nri;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::IdentityMode;
use crate::handle::Shared;

/// Who decides which GPU a container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The scheduler's assignment where the container runtime asks the agent, through NRI; the kubelet where it does not.
    Auto,
    /// The scheduler's assignment.
    Assignment,
    /// The kubelet.
    Kubelet,
}

impl From<IdentityMode> for Identity {
    fn from(mode: IdentityMode) -> Self {
        match mode {
            IdentityMode::Assignment => Self::Assignment,
            IdentityMode::Kubelet => Self::Kubelet,
        }
    }
}

/// How long a node that has never run before waits for the runtime: nothing is offered meanwhile.
const FIRST: Duration = Duration::from_secs(5);

/// How long a runtime that has asked before may be away until the kubelet's choice counts. A runtime that restarts, even slowly,
/// must not change what is offered; while it is away no container is created.
const AWAY: Duration = Duration::from_mins(5);

/// Follows the connection to the runtime: into the log, into the state that others wait for, and with [`Identity::Auto`] into the mode.
pub(crate) async fn govern(shared: Arc<Shared>, mut seen: watch::Receiver<Nri>) {
    let auto = shared.choice.auto;
    let mut since = Instant::now();
    let mut told = String::new();
    loop {
        let now = seen.borrow_and_update().clone();
        match &now {
            Nri::Connected { runtime, version } => {
                shared.say(format!("NRI: {runtime} {version} asks this agent which GPUs a container gets"));
                told.clear();
                if auto {
                    shared.set_mode(IdentityMode::Assignment, "the container runtime asks through NRI");
                }
            }
            Nri::Away { why, .. } => {
                if shared.nri.borrow().is_connected() {
                    since = Instant::now();
                }
                if *why != told {
                    shared.say(format!("NRI: away: {why}; trying again"));
                    told.clone_from(why);
                }
            }
        }
        let connected = now.is_connected();
        shared.nri.send_replace(now);
        let undecided = !*shared.decided.borrow();
        let waits = auto && !connected && (undecided || shared.state().mode == IdentityMode::Assignment);
        let limit = since + if undecided { FIRST } else { AWAY };
        tokio::select! {
            changed = seen.changed() => if changed.is_err() { return },
            () = sleep_until(limit), if waits => {
                shared.set_mode(IdentityMode::Kubelet, "the container runtime does not ask through NRI");
            }
        }
    }
}
