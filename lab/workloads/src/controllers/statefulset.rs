//! StatefulSet: pods with stable names, started and replaced in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::revisions::{self, REVISION_LABEL, Revision};
use crate::json::{Fields as _, controller_reference, entry, status_diff, string_map, without_zeros};
use crate::kinds::Kind;
use crate::plan::{Create, Delete, Failure, Note, Patch, Plan};
use crate::pod::{Pod, from_template};
use crate::store::Ref;

/// What is observed of a StatefulSet.
pub(crate) struct Observed<'a> {
    pub(crate) set: &'a Value,
    /// The pods it controls.
    pub(crate) pods: &'a [Arc<Pod>],
    /// The ControllerRevisions it controls.
    pub(crate) revisions: &'a [Arc<Value>],
    /// Whether a claim of this name exists.
    pub(crate) has_claim: &'a dyn Fn(&str) -> bool,
    pub(crate) failure: Option<&'a Failure>,
}

/// What to do for a StatefulSet.
pub(crate) fn plan(observed: &Observed<'_>, now: Timestamp) -> Plan {
    let set = observed.set;
    let mut plan = Plan::default();
    let update = revisions::settle(Kind::StatefulSet, set, observed.revisions, observed.failure, &mut plan);
    let current = Some(set.text("/status/currentRevision"))
        .filter(|current| !current.is_empty())
        .unwrap_or(&update.name)
        .to_owned();
    let run =
        Run { observed, now, update, current, min_ready: set.int("/spec/minReadySeconds").unwrap_or(0) };
    let status = run.status();
    if !set.is_deleting() {
        run.manage(&mut plan);
    }
    let waits = observed.pods.iter().filter_map(|pod| pod.seconds_to_available(run.min_ready, now));
    if let Some(soonest) = waits.filter(|seconds| *seconds > 0).min() {
        plan.again_in(soonest);
    }
    if let Some(patch) = status_diff(set, &status) {
        plan.patch(Patch::status(Kind::StatefulSet, &Ref::new(set.namespace(), set.name()), patch));
    }
    let in_use = |revision: &Value| {
        let name = revision.name();
        name == run.update.name
            || name == run.current
            || observed.pods.iter().any(|pod| pod.label(REVISION_LABEL) == name)
    };
    revisions::truncate(set, observed.revisions, &in_use, &mut plan);
    plan
}

struct Run<'a> {
    observed: &'a Observed<'a>,
    now: Timestamp,
    update: Revision,
    /// The name of the revision that a finished rollout left.
    current: String,
    min_ready: i64,
}

impl Run<'_> {
    fn replicas(&self) -> i64 {
        self.observed.set.int("/spec/replicas").unwrap_or(1)
    }

    fn first(&self) -> i64 {
        self.observed.set.int("/spec/ordinals/start").unwrap_or(0)
    }

    fn ordinal(&self, pod: &Pod) -> Option<i64> {
        let (parent, ordinal) = pod.id.name.rsplit_once('-')?;
        (parent == self.observed.set.name()).then(|| ordinal.parse().ok()).flatten()
    }

    fn is_available(&self, pod: &Pod) -> bool {
        !pod.deleting && pod.is_available(self.min_ready, self.now)
    }

    fn manage(&self, plan: &mut Plan) {
        let set = self.observed.set;
        let in_order = set.text("/spec/podManagementPolicy") != "Parallel";
        let wanted = self.first()..self.first() + self.replicas();
        let mut slots: BTreeMap<i64, &Arc<Pod>> = BTreeMap::new();
        let mut surplus: Vec<(i64, &Arc<Pod>)> = Vec::new();
        for pod in self.observed.pods {
            match self.ordinal(pod) {
                Some(ordinal) if wanted.contains(&ordinal) => {
                    slots.insert(ordinal, pod);
                }
                Some(ordinal) => surplus.push((ordinal, pod)),
                None => {}
            }
        }
        let (mut creates, mut claims) = (Vec::new(), Vec::new());
        for ordinal in wanted {
            match slots.get(&ordinal) {
                None => {
                    let name = format!("{}-{ordinal}", set.name());
                    claims.extend(self.claims(&name));
                    creates.push(self.create(ordinal, &name));
                }
                Some(pod) if pod.has_ended() && !pod.deleting => {
                    let (namespace, name, pod_name) = (set.namespace(), set.name(), &pod.id.name);
                    let message =
                        format!("StatefulSet {namespace}/{name} is recreating failed Pod {pod_name}");
                    plan.event(Note::warning("RecreatingFailedPod", message));
                    plan.deletes(vec![self.delete(pod)]);
                }
                Some(pod) if self.is_available(pod) => continue,
                Some(_) => {}
            }
            if in_order {
                plan.creates(claims);
                plan.creates(creates);
                return;
            }
        }
        let quiet = creates.is_empty();
        plan.creates(claims);
        plan.creates(creates);
        surplus.sort_by_key(|(ordinal, _)| -ordinal);
        for (_, pod) in surplus {
            if !pod.deleting {
                plan.deletes(vec![self.delete(pod)]);
            }
            if in_order {
                return;
            }
        }
        if quiet {
            self.roll(&slots, plan);
        }
    }

    /// Replaces pods of another revision, from the last to the partition, one at a time.
    fn roll(&self, slots: &BTreeMap<i64, &Arc<Pod>>, plan: &mut Plan) {
        if self.observed.set.text("/spec/updateStrategy/type") == "OnDelete" {
            return;
        }
        let until = self.first() + self.partition();
        for (_, pod) in slots.range(until..).rev() {
            if pod.label(REVISION_LABEL) != self.update.name {
                if !pod.deleting {
                    plan.deletes(vec![self.delete(pod)]);
                }
                return;
            }
            if !self.is_available(pod) {
                return;
            }
        }
    }

    fn partition(&self) -> i64 {
        self.observed.set.int("/spec/updateStrategy/rollingUpdate/partition").unwrap_or(0)
    }

    /// The revision that a pod of this ordinal is made from.
    fn revision(&self, ordinal: i64) -> (String, Value) {
        if ordinal < self.first() + self.partition() && self.current != self.update.name {
            let known = self.observed.revisions.iter().find(|revision| revision.name() == self.current);
            if let Some(revision) = known {
                return (self.current.clone(), revisions::template(revision));
            }
        }
        (self.update.name.clone(), self.update.template.clone())
    }

    fn create(&self, ordinal: i64, name: &str) -> Create {
        let set = self.observed.set;
        let (revision, template) = self.revision(ordinal);
        let owner = controller_reference(Kind::StatefulSet, set);
        let mut pod = from_template(&template, set.namespace(), &owner);
        let metadata = entry(&mut pod, "metadata");
        metadata["name"] = name.into();
        let labels = entry(metadata, "labels");
        labels[REVISION_LABEL] = revision.into();
        labels["statefulset.kubernetes.io/pod-name"] = name.into();
        labels["apps.kubernetes.io/pod-index"] = ordinal.to_string().into();
        let spec = entry(&mut pod, "spec");
        spec["hostname"] = name.into();
        if !set.text("/spec/serviceName").is_empty() {
            spec["subdomain"] = set.text("/spec/serviceName").into();
        }
        let claimed: Vec<&str> = set.list("/spec/volumeClaimTemplates").iter().map(Value::name).collect();
        if !claimed.is_empty() {
            let others = spec.list("/volumes").iter();
            let others = others.filter(|volume| !claimed.contains(&volume.text("/name"))).cloned();
            let ours = claimed.iter().map(|claim| {
                json!({"name": claim, "persistentVolumeClaim": {"claimName": format!("{claim}-{name}")}})
            });
            let volumes: Vec<Value> = ours.chain(others).collect();
            spec["volumes"] = volumes.into();
        }
        let sets = set.name();
        Create {
            success: Some(Note::normal(
                "SuccessfulCreate",
                format!("create Pod {name} in StatefulSet {sets} successful"),
            )),
            failure: Some(Note::warning(
                "FailedCreate",
                format!("create Pod {name} in StatefulSet {sets} failed error: {{error}}"),
            )),
            ..Create::new(Kind::Pod, pod)
        }
    }

    /// The claims that a pod needs and that are not there.
    fn claims(&self, pod: &str) -> Vec<Create> {
        let set = self.observed.set;
        let owned = set.text("/spec/persistentVolumeClaimRetentionPolicy/whenDeleted") == "Delete";
        let missing = set.list("/spec/volumeClaimTemplates").iter().filter_map(|template| {
            let name = format!("{}-{pod}", template.name());
            if (self.observed.has_claim)(&name) {
                return None;
            }
            let mut labels = string_map(template.at("/metadata/labels"));
            labels.extend(string_map(set.at("/spec/selector/matchLabels")));
            let mut claim = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": name, "namespace": set.namespace(), "labels": labels,
                    "annotations": string_map(template.at("/metadata/annotations")),
                },
                "spec": template.at("/spec"),
            });
            if owned {
                claim["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": set.name(), "uid": set.uid(),
                }]);
            }
            let sets = set.name();
            Some(Create {
                may_exist: true,
                success: Some(Note::normal(
                    "SuccessfulCreate",
                    format!("create Claim {name} Pod {pod} in StatefulSet {sets} success"),
                )),
                failure: Some(Note::warning(
                    "FailedCreate",
                    format!(
                        "create Claim {name} for Pod {pod} in StatefulSet {sets} failed error: {{error}}"
                    ),
                )),
                ..Create::new(Kind::PersistentVolumeClaim, claim)
            })
        });
        missing.collect()
    }

    fn delete(&self, pod: &Pod) -> Delete {
        let sets = self.observed.set.name();
        Delete {
            success: Some(Note::normal(
                "SuccessfulDelete",
                format!("delete Pod {} in StatefulSet {sets} successful", pod.id.name),
            )),
            failure: Some(Note::warning(
                "FailedDelete",
                format!("delete Pod {} in StatefulSet {sets} failed error: {{error}}", pod.id.name),
            )),
            ..Delete::new(Kind::Pod, &pod.id, &pod.uid)
        }
    }

    fn status(&self) -> Value {
        let set = self.observed.set;
        let pods = self.observed.pods;
        let count = |test: &dyn Fn(&Pod) -> bool| pods.iter().filter(|pod| test(pod)).count();
        let of = |revision: &str| count(&|pod| !pod.deleting && pod.label(REVISION_LABEL) == revision);
        let ready = count(&|pod| pod.ready);
        let updated = of(&self.update.name);
        let wanted = usize::try_from(self.replicas()).unwrap_or(0);
        let rolled_out = self.current == self.update.name
            || (updated == pods.len() && ready == wanted && pods.len() == wanted);
        let current = if rolled_out { &self.update.name } else { &self.current };
        let mut status = without_zeros(json!({
            "observedGeneration": set.generation(),
            "readyReplicas": ready, "currentReplicas": of(current), "updatedReplicas": updated,
            "currentRevision": current, "updateRevision": self.update.name,
        }));
        status.insert("replicas".to_owned(), pods.len().into());
        status.insert("availableReplicas".to_owned(), count(&|pod| self.is_available(pod)).into());
        status.insert("collisionCount".to_owned(), self.update.collisions.into());
        Value::Object(status)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pods::make;
    use super::*;
    use crate::plan::read::{created, deleted, lines, status};

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    fn set(replicas: i64, image: &str, spec: Value) -> Value {
        let mut set = json!({
            "metadata": {"name": "db", "namespace": "ml", "uid": "s", "generation": 1},
            "spec": {
                "replicas": replicas, "serviceName": "dbs",
                "selector": {"matchLabels": {"app": "db"}},
                "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"image": image}]}},
            },
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            set["spec"][key] = value.clone();
        }
        set
    }

    fn revision(set: &Value) -> Arc<Value> {
        let mut plan = Plan::default();
        revisions::settle(Kind::StatefulSet, set, &[], None, &mut plan);
        Arc::new(created(&plan)[0].clone())
    }

    fn run(set: &Value, pods: &[Arc<Pod>], revisions: &[Arc<Value>]) -> Plan {
        plan(&Observed { set, pods, revisions, has_claim: &|_| false, failure: None }, now())
    }

    fn pods_created(plan: &Plan) -> Vec<&str> {
        created(plan).into_iter().filter(|o| o.text("/kind") == "Pod").map(Value::name).collect()
    }

    fn ready(name: &str, revision: &Value) -> Arc<Pod> {
        make::ready(name, json!({REVISION_LABEL: revision.name()}))
    }

    fn unready(name: &str, revision: &Value) -> Arc<Pod> {
        make::in_phase(name, json!({REVISION_LABEL: revision.name()}), "Pending")
    }

    #[test]
    fn pods_start_in_order_each_when_the_one_before_is_ready() {
        let set = set(3, "a", json!({}));
        let r = revision(&set);
        for (pods, expect) in [
            (vec![], vec!["db-0"]),
            (vec![unready("db-0", &r)], vec![]),
            (vec![ready("db-0", &r)], vec!["db-1"]),
            (vec![ready("db-0", &r), ready("db-2", &r)], vec!["db-1"]),
        ] {
            assert_eq!(pods_created(&run(&set, &pods, std::slice::from_ref(&r))), expect);
        }
        let parallel = self::set(3, "a", json!({"podManagementPolicy": "Parallel"}));
        assert_eq!(pods_created(&run(&parallel, &[], &[r])), ["db-0", "db-1", "db-2"]);
    }

    #[test]
    fn a_pod_has_a_stable_name_and_its_own_claim() {
        let claims = json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"size": 1}}]});
        let set = set(1, "a", claims);
        let plan = run(&set, &[], &[revision(&set)]);
        let objects = created(&plan);
        assert_eq!(objects[0]["metadata"]["name"], "data-db-0");
        let pod = objects[1];
        assert_eq!(pod["spec"]["hostname"], "db-0");
        assert_eq!(pod["spec"]["subdomain"], "dbs");
        assert_eq!(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "data-db-0");
        assert_eq!(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "0");
    }

    #[test]
    fn surplus_pods_go_from_the_last_and_one_at_a_time() {
        let set = set(1, "a", json!({}));
        let r = revision(&set);
        let pods = [ready("db-0", &r), ready("db-1", &r), ready("db-2", &r)];
        assert_eq!(deleted(&run(&set, &pods, &[r])), ["db-2"]);
    }

    #[test]
    fn an_update_goes_from_the_last_pod_to_the_partition() {
        let (old, new) = (set(3, "a", json!({})), set(3, "b", json!({})));
        let (a, b) = (revision(&old), revision(&new));
        let mut b = (*b).clone();
        b["revision"] = 2.into();
        let b = Arc::new(b);
        let revisions = [a.clone(), b.clone()];
        let all_old = [ready("db-0", &a), ready("db-1", &a), ready("db-2", &a)];
        let mut updating = new;
        updating["status"]["currentRevision"] = a.name().into();
        assert_eq!(deleted(&run(&updating, &all_old, &revisions)), ["db-2"]);
        let half = [ready("db-0", &a), ready("db-1", &a), unready("db-2", &b)];
        assert!(deleted(&run(&updating, &half, &revisions)).is_empty());
        let done = [ready("db-0", &a), ready("db-1", &a), ready("db-2", &b)];
        assert_eq!(deleted(&run(&updating, &done, &revisions)), ["db-1"]);
        updating["spec"]["updateStrategy"] = json!({"rollingUpdate": {"partition": 2}});
        assert!(deleted(&run(&updating, &done, &revisions)).is_empty());
        // Below the partition, a pod is made anew from the old template.
        let lost = [ready("db-1", &a), ready("db-2", &b)];
        let again = run(&updating, &lost, &revisions);
        assert_eq!(created(&again)[0]["spec"]["containers"][0]["image"], "a");
        let status = status(&again).expect("a status");
        assert_eq!(status["currentRevision"], Value::Null, "stays what it was");
        assert_eq!(status["updateRevision"], b.name());
    }

    #[test]
    fn a_finished_update_makes_the_new_revision_the_current_one() {
        let mut set = set(1, "b", json!({}));
        set["status"]["currentRevision"] = "db-old".into();
        let r = revision(&set);
        let plan = run(&set, &[ready("db-0", &r)], std::slice::from_ref(&r));
        let status = status(&plan).expect("a status");
        assert_eq!(status["currentRevision"], r.name());
        assert_eq!(status["currentReplicas"], 1);
    }

    #[test]
    fn a_failed_pod_is_replaced() {
        let set = set(1, "a", json!({}));
        let r = revision(&set);
        let plan = run(&set, &[make::in_phase("db-0", json!({}), "Failed")], &[r]);
        let event = "event RecreatingFailedPod StatefulSet ml/db is recreating failed Pod db-0";
        assert_eq!(lines(&plan)[..2], [event, "delete Pod db-0"]);
    }
}
