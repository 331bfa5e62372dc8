//! What others say of who has which device: the runtime of containers that run, the kubelet of what it has granted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gantry_model::{GpuId, PodKey};
use gantry_shim::is_slot;

use super::{Container, Held, Pod, State};
use crate::{ContainerIdentity, Error, IdentityMode};

/// A container with devices, as the kubelet lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    /// The ids that it was granted.
    pub(crate) devices: Vec<String>,
}

impl State {
    /// Whether these devices of a container that is about to be created have to be told apart by its pod: whether they are slots.
    ///
    /// # Errors
    /// Where one was never offered or is out of service, or nobody says which GPU a slot means.
    pub(crate) fn pre_start(&self, ids: &[String]) -> Result<bool, Error> {
        let slots = ids.iter().any(|id| is_slot(id));
        if slots && self.mode == IdentityMode::Kubelet {
            let id = ids.iter().find(|id| is_slot(id)).cloned().unwrap_or_default();
            return Err(Error::OrphanedSlot { id });
        }
        for id in ids {
            let position = self.granted(id)?.position();
            if let Some(fault) = self.fault(position) {
                return Err(Error::UnhealthyDevice {
                    id: id.clone(),
                    gpu: self.device_id(position).clone(),
                    fault: fault.clone(),
                });
            }
        }
        Ok(slots)
    }

    /// Records a container that runs, with the GPUs that it was given. `false` where that is known.
    ///
    /// # Errors
    /// Where another pod has one of them, or the node never had it.
    pub(crate) fn learn(&mut self, container: &ContainerIdentity, gpus: &[GpuId]) -> Result<bool, Error> {
        let ContainerIdentity { pod, name, devices, .. } = container;
        let known = self.pods.get(&pod.uid).and_then(|pod| pod.containers.get(name));
        if known.is_some_and(|known| known.devices == *devices) {
            return Ok(false);
        }
        // Whole GPUs first: what else was granted says itself what it means.
        let mut behind = gpus.iter();
        let mut held = Vec::with_capacity(devices.len());
        let mut swaps = Vec::new();
        for id in devices {
            let hold = if is_slot(id) {
                let Some(gpu) = behind.next() else { break };
                let position = self.gpus.iter().position(|known| known.id == *gpu);
                let position = position.ok_or_else(|| Error::NoSuchGpu {
                    pod: Box::new(pod.clone()),
                    container: name.clone(),
                    gpu: gpu.clone(),
                    node: self.node.to_string(),
                })?;
                swaps.push((id, position));
                Held { resource: Arc::clone(&self.primary), device: gpu.clone(), replica: None }
            } else {
                self.held_as(id)?
            };
            if let Some(owner) = self.other_owner(&pod.uid, &hold) {
                return Err(Error::Taken {
                    gpu: hold.device,
                    pod: Box::new(pod.clone()),
                    owner: Box::new(owner.clone()),
                });
            }
            held.push(hold);
        }
        for (id, position) in swaps {
            let from = self.slots.iter().position(|behind| *behind == Some(position));
            let to = self.granted(id).ok().and_then(|unit| unit.slot);
            if let (Some(from), Some(to)) = (from, to) {
                self.slots.swap(from, to);
            }
        }
        self.record(pod.clone(), name.clone(), Container { devices: devices.clone(), held });
        self.arrange();
        Ok(true)
    }

    /// Takes over what the kubelet lists: frees the pods of `known` that it does not list any more, and records what is new. Gives whether
    /// anything changed, and what contradicts the ledger.
    pub(crate) fn follow(
        &mut self,
        listed: &[Listed],
        known: &BTreeSet<String>,
        uid: impl Fn(&str, &str) -> Option<String>,
    ) -> (bool, Vec<String>) {
        let live: BTreeSet<(&str, &str)> =
            listed.iter().map(|listed| (listed.namespace.as_str(), listed.pod.as_str())).collect();
        let before = self.pods.len();
        self.pods.retain(|uid, pod| {
            !known.contains(&**uid) || live.contains(&(&*pod.key.namespace, &*pod.key.name))
        });
        let mut changed = self.pods.len() != before;
        let mut contradictions = Vec::new();
        for Listed { namespace, pod, container, devices } in listed {
            let named = |known: &&Pod| *known.key.namespace == **namespace && *known.key.name == **pod;
            let key = self.pods.values().find(named).map(|pod| pod.key.clone());
            let key = key.unwrap_or_else(|| PodKey {
                namespace: namespace.as_str().into(),
                name: pod.as_str().into(),
                // The kubelet tells no UIDs. Names are as good as long as nobody else tells one.
                uid: uid(namespace, pod).unwrap_or_else(|| format!("{namespace}/{pod}")).into(),
            });
            let record = self.pods.get(&key.uid).and_then(|pod| pod.containers.get(container));
            if record.is_some_and(|record| same(&record.devices, devices)) {
                continue;
            }
            let held: Result<Vec<Held>, Error> = devices.iter().map(|id| self.held_as(id)).collect();
            let held = match held {
                Ok(held) => held,
                Err(error) => {
                    contradictions.push(format!("pod {key}, container {container}: {error}"));
                    continue;
                }
            };
            let taken = held.iter().find_map(|held| Some((held, self.other_owner(&key.uid, held)?)));
            if let Some((Held { device, .. }, owner)) = taken {
                contradictions
                    .push(format!("the kubelet gave {device} to pod {key}, and it belongs to pod {owner}"));
                continue;
            }
            self.record(key, container.clone(), Container { devices: devices.clone(), held });
            changed = true;
        }
        if changed {
            self.arrange();
        }
        (changed, contradictions)
    }

    /// What an id that the kubelet granted means by itself.
    fn held_as(&self, id: &str) -> Result<Held, Error> {
        let unit = self.granted(id)?;
        let device = self.device_id(unit.position()).clone();
        Ok(Held { resource: unit.resource, device, replica: unit.replica })
    }

    fn record(&mut self, key: PodKey, name: String, container: Container) {
        let uid = Arc::clone(&key.uid);
        let pod = self.pods.entry(uid).or_insert_with(|| Pod { key, containers: BTreeMap::new() });
        pod.containers.insert(name, container);
    }
}

/// Whether two lists name the same devices; the kubelet's is in no order.
fn same(a: &[String], b: &[String]) -> bool {
    a.len() == b.len() && a.iter().collect::<BTreeSet<_>>() == b.iter().collect::<BTreeSet<_>>()
}

#[cfg(test)]
mod tests {
    use gantry_proto::deviceplugin::HEALTHY;

    use super::super::fixture::{container, node, node_in};
    use super::*;

    fn offered(state: &State) -> Vec<String> {
        state.devices().into_iter().map(|device| device.id).collect()
    }

    fn listed(pod: &str, devices: &[&str]) -> Listed {
        Listed {
            namespace: "default".into(),
            pod: pod.into(),
            container: "main".into(),
            devices: devices.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    fn uids(state: &State) -> BTreeSet<String> {
        state.pods().map(|pod| pod.key.uid.to_string()).collect()
    }

    #[test]
    fn a_change_of_mode_renames_what_is_free_and_keeps_what_is_held() {
        let (mut state, gpus) = node(4);
        let assigned = [("main", vec![gpus[3].clone()])];
        let slot = container("a", "main", &["slot-1"], Some(&assigned));
        state.create(&slot).unwrap();
        state.set_mode(IdentityMode::Kubelet);
        // GPU 3 is behind slot 1 and stays there.
        let expected = ["slot-1".to_owned(), gpus[0].to_string(), gpus[1].to_string(), gpus[2].to_string()];
        assert_eq!(offered(&state), expected);
        let second = state.allocate("nvidia.com/gpu", &[gpus[3].to_string()]);
        assert!(second.is_err(), "the kubelet cannot give it a second time");
        let uuid = container("b", "main", &[gpus[0].as_str()], None);
        assert_eq!(state.create(&uuid).unwrap(), [gpus[0].clone()]);
        // The container with the slot is started again: it is known and keeps its GPU.
        assert_eq!(state.create(&slot).unwrap(), [gpus[3].clone()]);
        assert_eq!(
            state.pre_start(&["slot-1".to_owned()]).unwrap_err().to_string(),
            "device slot-1 was granted while the container runtime asked this agent which GPU it stands for, and the node has \
             changed to the kubelet's choice: delete the pod, or turn NRI on again"
        );
        state.set_mode(IdentityMode::Assignment);
        assert_eq!(offered(&state), ["slot-0", "slot-1", "slot-2", gpus[0].as_str()]);
        assert_eq!(state.create(&uuid).unwrap(), [gpus[0].clone()], "what the kubelet chose stays");
        assert!(
            !state.pre_start(&[gpus[0].to_string()]).unwrap() && state.pre_start(&["slot-1".into()]).unwrap()
        );
        assert!(state.retain(|_| false));
        assert_eq!(offered(&state), ["slot-0", "slot-1", "slot-2", "slot-3"]);
        assert!(state.devices().iter().all(|device| device.health == HEALTHY));
    }

    #[test]
    fn what_the_runtime_says_rebuilds_the_ledger_and_never_overrides_it() {
        let (mut state, gpus) = node(3);
        let running = container("a", "main", &["slot-0"], None);
        assert!(state.learn(&running, &[gpus[2].clone()]).unwrap());
        assert!(!state.learn(&running, &[gpus[2].clone()]).unwrap(), "known");
        assert_eq!(state.slots().next(), Some(Some(&gpus[2])), "the slot stands for it again");
        let second = container("b", "main", &["slot-1"], None);
        let error = state.learn(&second, &[gpus[2].clone()]).unwrap_err().to_string();
        assert!(error.contains("belongs to pod default/a"), "{error}");
        let other = "GPU-other".parse().unwrap();
        let error = state.learn(&second, &[other]).unwrap_err().to_string();
        assert_eq!(error, "pod default/b, container main: no GPU of node node-1 is GPU-other");
        assert_eq!(state.in_use().len(), 1);
    }

    #[test]
    fn the_ledger_follows_what_the_kubelet_lists() {
        let (mut state, gpus) = node_in(IdentityMode::Kubelet, 3);
        let uid = |_: &str, pod: &str| (pod == "b").then(|| "uid-b".to_owned());
        let first = [listed("a", &[gpus[2].as_str(), gpus[0].as_str()]), listed("b", &[gpus[1].as_str()])];
        let known = uids(&state);
        assert_eq!(state.follow(&first, &known, uid), (true, vec![]));
        assert_eq!(state.in_use().len(), 2);
        assert_eq!(uids(&state), ["default/a".to_owned(), "uid-b".to_owned()].into());
        let known = uids(&state);
        let again = [listed("a", &[gpus[0].as_str(), gpus[2].as_str()]), listed("b", &[gpus[1].as_str()])];
        assert_eq!(state.follow(&again, &known, uid), (false, vec![]), "in whatever order");
        // Pod a has ended; a pod of its name comes with another GPU; b shrinks to nothing known.
        let later = [listed("a", &[gpus[0].as_str()]), listed("c", &[gpus[1].as_str(), "GPU-x"])];
        let (changed, contradictions) = state.follow(&later, &known, uid);
        assert!(changed);
        assert_eq!(
            contradictions,
            [format!(
                "pod default/c, container main: unknown device \"GPU-x\": this plugin offers 3 devices as nvidia.com/gpu, {} to {}",
                gpus[0], gpus[2]
            )]
        );
        assert_eq!(state.in_use().iter().map(|used| used.gpus.len()).collect::<Vec<_>>(), [1]);
        let stolen = [later[0].clone(), listed("d", &[gpus[0].as_str()])];
        let known = uids(&state);
        let (changed, contradictions) = state.follow(&stolen, &known, uid);
        assert!(!changed);
        assert_eq!(
            contradictions,
            [format!("the kubelet gave {} to pod default/d, and it belongs to pod default/a", gpus[0])]
        );
        let fresh = container("e", "main", &[gpus[2].as_str()], None);
        state.create(&fresh).unwrap();
        assert_eq!(state.follow(&[], &known, uid), (true, vec![]));
        assert_eq!(uids(&state), ["uid-e".to_owned()].into(), "what came after the question stays");
    }
}
