//! Which pods have ended, though nobody said so.
//!
//! ```text
//!   API server    it has a terminal phase, or is not there ──────────────────────┐
//!   with NRI      the runtime has no container of it ───────────────────────┐    │
//!   without       podresources: the kubelet counts no device as its own ─┐  ├────┴─▶ its GPUs are free
//!                 kubelet's pods/<UID> is gone, if the pod is not there ─┴──┘
//! ```
//!
//! The API server forgets a pod that is deleted with `--force` while its containers still run, and so does podresources: the kubelet
//! lists the pods that it should run. The pod's folder stays until its containers have ended. A runtime with NRI knows best; one that
//! has restarted tells no more of the sandboxes that it had before.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_model::PodKey;
use tokio::time::sleep;

use crate::handle::Shared;
use crate::podresources;

/// How often it is looked at while a pod has ended that still has GPUs.
const PACE: Duration = Duration::from_secs(1);

/// After how many questions it is worth a line of the log that a pod still has them.
const LONG: u32 = 15;

/// What of the kubelet tells that containers have ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kubelet {
    /// The socket of its podresources service.
    pub(crate) pod_resources: Option<PathBuf>,
    /// The folder in which each pod has one, named by its UID.
    pub(crate) pods: Option<PathBuf>,
}

/// Frees the GPUs of pods that have ended, until dropped.
pub(crate) async fn free(shared: &Shared) {
    let (mut changes, mut revision) = (shared.pods.changes(), shared.revision.subscribe());
    let mut told = Told::default();
    loop {
        if look(shared, &mut told).await {
            sleep(PACE).await;
            continue;
        }
        let changed = tokio::select! {
            changed = changes.changed() => changed,
            changed = revision.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// What has been said, so that it is said once.
#[derive(Debug, Default)]
struct Told {
    /// How often a pod was found to have GPUs still.
    waits: BTreeMap<Arc<str>, u32>,
    error: String,
}

/// Frees what can be freed; whether there is more.
async fn look(shared: &Shared, told: &mut Told) -> bool {
    let owners: Vec<PodKey> = shared.state().pods().map(|pod| pod.key.clone()).collect();
    let uids: Vec<Arc<str>> = owners.iter().map(|key| Arc::clone(&key.uid)).collect();
    let ended: BTreeSet<&Arc<str>> = shared.pods.ended(&uids).into_iter().collect();
    if ended.is_empty() {
        *told = Told::default();
        return false;
    }
    let owners = owners.iter().filter(|key| ended.contains(&key.uid));
    let verdicts: Vec<(&PodKey, Option<String>)> = if shared.choice.nri {
        owners.map(|key| (key, running_for_the_runtime(shared, &key.uid))).collect()
    } else {
        match running_for_the_kubelet(shared).await {
            Ok(running) => owners.map(|key| (key, running(key))).collect(),
            Err(error) => {
                if error != told.error {
                    shared.say(format!(
                        "Could not ask the kubelet whether pods have ended: {error}; until it answers, their GPUs stay theirs"
                    ));
                    told.error = error;
                }
                return true;
            }
        }
    };
    told.error.clear();
    told.waits.retain(|uid, _| ended.contains(uid));
    let mut more = false;
    for (key, running) in verdicts {
        let Some(why) = running else {
            if shared.remove_pod(&key.uid) {
                shared.log.write(format!("Freed the GPUs of pod {key}, which has ended"));
            }
            continue;
        };
        more = true;
        let waits = told.waits.entry(Arc::clone(&key.uid)).or_default();
        *waits += 1;
        if *waits == LONG {
            shared.say(format!("Pod {key} has ended for the API server, but its GPUs stay its own: {why}"));
        }
    }
    more
}

/// What speaks against a pod's end on a node whose container runtime has NRI.
fn running_for_the_runtime(shared: &Shared, uid: &str) -> Option<String> {
    if !shared.nri.borrow().is_connected() {
        return Some("the container runtime does not answer".to_owned());
    }
    let containers = shared.containers();
    let running = containers.iter().find(|(_, of)| *of == uid);
    running.map(|(id, _)| format!("the container runtime still has its container {id}"))
}

/// What speaks against a pod's end on a node whose container runtime has no NRI.
async fn running_for_the_kubelet(shared: &Shared) -> Result<impl Fn(&PodKey) -> Option<String>, String> {
    let mut listed = BTreeSet::new();
    if let Some(socket) = &shared.kubelet.pod_resources {
        let list = podresources::list(socket, &podresources::resources(shared)).await?;
        listed.extend(list.into_iter().map(|listed| (listed.namespace, listed.pod)));
    }
    Ok(move |key: &PodKey| {
        // The kubelet tells names: they may be those of another pod by now.
        let renamed = shared.pods.uid(&key.namespace, &key.name).is_some_and(|uid| *uid != *key.uid);
        let named = !renamed && listed.contains(&(key.namespace.to_string(), key.name.to_string()));
        let folder = shared.kubelet.pods.as_deref().filter(|_| !shared.pods.is_there(&key.uid));
        running(named, folder, &key.uid)
    })
}

/// What speaks against a pod's end: that podresources names it, or its folder, where it has to be looked for.
fn running(named: bool, folder: Option<&Path>, uid: &str) -> Option<String> {
    if named {
        return Some("the kubelet's podresources service still names it".to_owned());
    }
    let folder = folder?;
    let own = folder.join(uid);
    match std::fs::symlink_metadata(&own) {
        Ok(_) => {
            return Some(format!(
                "the kubelet still has {}, so that containers of it may run; the kubelet's log tells why",
                own.display()
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Some(format!("look at {}: {error}", own.display())),
    }
    let missing = std::fs::metadata(folder).err()?;
    Some(format!("look at {}: {missing}; mount the kubelet's folder of pods there", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_ended_when_nothing_speaks_against_it() {
        let pods = tempfile::tempdir().unwrap();
        std::fs::create_dir(pods.path().join("there")).unwrap();
        let folder = pods.path();
        let said = |named, folder, uid| running(named, folder, uid).unwrap_or_default();
        assert_eq!(said(false, None, "there"), "");
        assert_eq!(said(false, Some(folder), "gone"), "");
        assert_eq!(said(true, None, "gone"), "the kubelet's podresources service still names it");
        assert!(said(false, Some(folder), "there").contains("containers of it may run"));
        let nowhere = folder.join("nowhere");
        assert!(said(false, Some(&nowhere), "gone").ends_with("mount the kubelet's folder of pods there"));
    }
}
