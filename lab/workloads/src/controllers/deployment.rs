//! Deployment: one ReplicaSet for each template, and a rollout from the old ones to the new one.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::rollout::{DESIRED, MAX, REVISION, Set, Strategy, roll, scale};
use crate::json::{
    Fields as _, controller_reference, entry, normal_form, seconds_between, set, stamp, status_diff,
    string_map, template_hash, without_zeros,
};
use crate::kinds::Kind;
use crate::plan::{Create, Delete, Failure, Note, Patch, Plan, Step};
use crate::store::Ref;

/// The label that tells the ReplicaSets of a Deployment apart.
pub(crate) const HASH_LABEL: &str = "pod-template-hash";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// Annotations of a Deployment that are not copied to its ReplicaSets.
const OWN_ANNOTATIONS: [&str; 5] =
    ["kubectl.kubernetes.io/last-applied-configuration", REVISION, HISTORY, DESIRED, MAX];

/// What is observed of a Deployment.
pub(crate) struct Observed<'a> {
    pub(crate) deployment: &'a Value,
    /// The ReplicaSets it controls.
    pub(crate) sets: Vec<Arc<Value>>,
    /// ReplicaSets that match its selector and that nobody controls.
    pub(crate) orphans: Vec<Arc<Value>>,
    /// Whether a ReplicaSet still has pods that have not ended.
    pub(crate) has_pods: &'a dyn Fn(&Value) -> bool,
    pub(crate) failure: Option<&'a Failure>,
}

/// What to do for a Deployment.
pub(crate) fn plan(observed: Observed<'_>, now: Timestamp) -> Plan {
    let mut rollout = Rollout::new(observed, now);
    rollout.run();
    rollout.plan
}

struct Rollout<'a> {
    deployment: &'a Value,
    id: Ref,
    strategy: Strategy,
    new: Option<Set>,
    old: Vec<Set>,
    has_pods: &'a dyn Fn(&Value) -> bool,
    failure: Option<&'a Failure>,
    orphans: Vec<Arc<Value>>,
    now: Timestamp,
    /// Conditions as planned so far.
    conditions: Vec<Value>,
    collisions: i64,
    plan: Plan,
}

impl<'a> Rollout<'a> {
    fn new(observed: Observed<'a>, now: Timestamp) -> Self {
        let deployment = observed.deployment;
        let wanted = comparable(deployment.at("/spec/template"));
        let mut sets: Vec<Set> = observed.sets.into_iter().map(Set::new).collect();
        sets.sort_by_key(|set| (set.object.created(), set.object.name().to_owned()));
        let position = sets.iter().position(|set| comparable(set.object.at("/spec/template")) == wanted);
        let new = position.map(|position| sets.remove(position));
        Self {
            deployment,
            id: Ref::new(deployment.namespace(), deployment.name()),
            strategy: Strategy::of(deployment),
            new,
            old: sets,
            has_pods: observed.has_pods,
            failure: observed.failure,
            orphans: observed.orphans,
            now,
            conditions: deployment.list("/status/conditions").to_vec(),
            collisions: deployment.int("/status/collisionCount").unwrap_or(0),
            plan: Plan::default(),
        }
    }

    fn run(&mut self) {
        if self.deployment.is_deleting() {
            self.write_status();
            return;
        }
        self.adopt();
        self.note_pause();
        let paused = self.deployment.flag("/spec/paused");
        if paused || self.is_resized() {
            self.revise(false);
            scale(&self.strategy, self.deployment, self.new.as_mut(), &mut self.old);
            self.apply_scales();
            if paused {
                self.clean_up();
            }
        } else if self.strategy.rolling {
            self.revise(true);
            if let Some(new) = &mut self.new {
                roll(&self.strategy, new, &mut self.old);
                self.apply_scales();
            }
            self.clean_up_when_complete();
        } else {
            self.recreate();
        }
        self.write_status();
    }

    /// Old pods end before new ones start.
    fn recreate(&mut self) {
        self.revise(false);
        for set in &mut self.old {
            set.replicas = 0;
        }
        let shrinks = self.old.iter().any(|set| set.stored() != 0);
        self.apply_scales();
        if shrinks || self.old.iter().any(|set| (self.has_pods)(&set.object)) {
            return;
        }
        self.revise(true);
        if let Some(new) = &mut self.new {
            new.replicas = self.strategy.replicas;
        }
        self.apply_scales();
        self.clean_up_when_complete();
    }

    fn adopt(&mut self) {
        let patches = self.orphans.iter().map(|orphan| {
            let mut references = orphan.list("/metadata/ownerReferences").to_vec();
            references.push(controller_reference(Kind::Deployment, self.deployment));
            let metadata = json!({"uid": orphan.uid(), "ownerReferences": references});
            let id = Ref::new(orphan.namespace(), orphan.name());
            Patch::new(Kind::ReplicaSet, &id, json!({"metadata": metadata}))
        });
        let patches = patches.collect();
        self.plan.patches(patches);
    }

    /// Whether the Deployment's size changed since its ReplicaSets were last scaled.
    fn is_resized(&self) -> bool {
        let mut active = self.old.iter().chain(&self.new).filter(|set| set.stored() > 0);
        active.any(|set| set.number(DESIRED).is_some_and(|desired| desired != self.strategy.replicas))
    }

    /// Finds or makes the new ReplicaSet and numbers it.
    fn revise(&mut self, create: bool) {
        let last = self.old.iter().map(Set::revision).max().unwrap_or(0);
        match &mut self.new {
            Some(new) => {
                let revision = new.revision().max(last + 1);
                let mut patch = json!({});
                let annotations = copied_annotations(self.deployment, &new.object);
                if new.revision() != revision {
                    let annotations = entry(entry(&mut patch, "metadata"), "annotations");
                    annotations[REVISION] = revision.to_string().into();
                    if new.revision() > 0 {
                        let before = new.object.annotation(HISTORY).unwrap_or("");
                        let mut history: Vec<&str> = before.split(',').filter(|h| !h.is_empty()).collect();
                        let known = new.revision().to_string();
                        history.push(&known);
                        annotations[HISTORY] = history.join(",").into();
                    }
                }
                for (key, value) in annotations {
                    entry(entry(&mut patch, "metadata"), "annotations")[key] = value.into();
                }
                let min_ready = self.deployment.int("/spec/minReadySeconds").unwrap_or(0);
                if new.object.int("/spec/minReadySeconds").unwrap_or(0) != min_ready {
                    entry(&mut patch, "spec")["minReadySeconds"] = min_ready.into();
                }
                if patch != json!({}) {
                    let id = Ref::new(new.object.namespace(), new.object.name());
                    self.plan.patch(Patch::new(Kind::ReplicaSet, &id, patch));
                }
                self.number_deployment(revision);
                let name = self.new.as_ref().map_or("", |new| new.object.name()).to_owned();
                if self.has_deadline() && self.condition("Progressing").is_none() {
                    let message = format!("Found new replica set \"{name}\"");
                    self.set_condition("Progressing", "True", "FoundNewReplicaSet", &message);
                }
            }
            None if create => {
                if self.failure.is_some_and(|failure| failure.already_exists) {
                    self.collisions += 1;
                }
                self.make_new(last + 1);
                self.number_deployment(last + 1);
            }
            None => {}
        }
    }

    fn number_deployment(&mut self, revision: i64) {
        let revision = revision.to_string();
        if self.deployment.annotation(REVISION) != Some(&revision) {
            let patch = json!({"metadata": {"annotations": {REVISION: revision}}});
            self.plan.patch(Patch::new(Kind::Deployment, &self.id, patch));
        }
    }

    fn make_new(&mut self, revision: i64) {
        let mut template = self.deployment.at("/spec/template").clone();
        let hash = template_hash(&template, self.collisions);
        let name = format!("{}-{hash}", self.deployment.name());
        entry(entry(&mut template, "metadata"), "labels")[HASH_LABEL] = hash.clone().into();
        let mut selector = self.deployment.at("/spec/selector").clone();
        entry(&mut selector, "matchLabels")[HASH_LABEL] = hash.into();
        let old_total: i64 = self.old.iter().map(|set| set.replicas).sum();
        let replicas = self.strategy.new_replicas(0, old_total);
        let mut annotations = copied_annotations(self.deployment, &Value::Null);
        annotations.insert(DESIRED.to_owned(), self.strategy.replicas.to_string());
        annotations.insert(MAX.to_owned(), (self.strategy.replicas + self.strategy.max_surge).to_string());
        annotations.insert(REVISION.to_owned(), revision.to_string());
        let mut spec = json!({"replicas": replicas, "selector": selector, "template": template});
        if let Some(seconds) = self.deployment.int("/spec/minReadySeconds") {
            spec["minReadySeconds"] = seconds.into();
        }
        let object = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": name, "namespace": self.deployment.namespace(),
                "labels": template.at("/metadata/labels"), "annotations": annotations,
                "ownerReferences": [controller_reference(Kind::Deployment, self.deployment)],
            },
            "spec": spec,
        });
        let success = (replicas > 0).then(|| {
            let message = format!("Scaled up replica set {name} from 0 to {replicas}");
            Note::normal("ScalingReplicaSet", message)
        });
        let message = format!("Failed to create new replica set \"{name}\": {{error}}");
        let failure = Some(Note::warning("ReplicaSetCreateError", message));
        let create = Create { success, failure, ..Create::new(Kind::ReplicaSet, object.clone()) };
        if let Some(failure) = self.failure.filter(|failure| failure.on_create && !failure.already_exists) {
            let message = format!("Failed to create new replica set \"{name}\": {}", failure.message);
            self.set_condition("Progressing", "False", "ReplicaSetCreateError", &message);
        } else if self.has_deadline() {
            let message = format!("Created new replica set \"{name}\"");
            self.set_condition("Progressing", "True", "NewReplicaSetCreated", &message);
        }
        self.plan.create(create);
        self.new = Some(Set { object: Arc::new(object), replicas });
    }

    /// Writes the sizes that were planned.
    fn apply_scales(&mut self) {
        let max = self.strategy.replicas + self.strategy.max_surge;
        let (desired, max) = (self.strategy.replicas.to_string(), max.to_string());
        let mut patches = Vec::new();
        for set in self.old.iter_mut().chain(&mut self.new) {
            let is_new_object = set.object.uid().is_empty();
            let marked =
                set.object.annotation(DESIRED) == Some(&desired) && set.object.annotation(MAX) == Some(&max);
            let resized = set.stored() != set.replicas;
            if is_new_object || !(resized || (set.replicas > 0 && !marked)) {
                continue;
            }
            let patch = json!({
                "metadata": {"annotations": {DESIRED: desired, MAX: max}},
                "spec": {"replicas": set.replicas},
            });
            let id = Ref::new(set.object.namespace(), set.object.name());
            let mut patch = Patch::new(Kind::ReplicaSet, &id, patch);
            if resized {
                let way = if set.replicas > set.stored() { "up" } else { "down" };
                let (name, from, to) = (set.object.name(), set.stored(), set.replicas);
                let message = format!("Scaled {way} replica set {name} from {from} to {to}");
                patch.success = Some(Note::normal("ScalingReplicaSet", message));
            }
            patches.push(patch);
            // What the status is made of below is what will be stored.
            let mut object = (*set.object).clone();
            object["spec"]["replicas"] = set.replicas.into();
            set.object = Arc::new(object);
        }
        self.plan.patches(patches);
    }

    fn clean_up_when_complete(&mut self) {
        let status = self.counts();
        if self.is_complete(&status) {
            self.clean_up();
        }
    }

    /// Deletes the oldest of the empty ReplicaSets above the limit.
    fn clean_up(&mut self) {
        let Some(limit) = self.deployment.int("/spec/revisionHistoryLimit").or(Some(10)) else { return };
        let mut empty: Vec<&Set> = self
            .old
            .iter()
            .filter(|set| {
                let observed = set.object.int("/status/observedGeneration").unwrap_or(0);
                !set.object.is_deleting()
                    && set.stored() == 0
                    && set.current() == 0
                    && set.object.generation() <= observed
            })
            .collect();
        empty.sort_by_key(|set| set.revision());
        let surplus = empty.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        let deletes = empty.iter().take(surplus).map(|set| {
            let id = Ref::new(set.object.namespace(), set.object.name());
            Delete::new(Kind::ReplicaSet, &id, set.object.uid())
        });
        let deletes = deletes.collect();
        self.plan.deletes(deletes);
    }

    fn has_deadline(&self) -> bool {
        self.deadline().is_some()
    }

    /// Seconds without progress after which a rollout has failed.
    fn deadline(&self) -> Option<i64> {
        let seconds = self.deployment.int("/spec/progressDeadlineSeconds").unwrap_or(600);
        (seconds != i64::from(i32::MAX)).then_some(seconds)
    }

    fn condition(&self, kind: &str) -> Option<&Value> {
        self.conditions.iter().find(|condition| condition.text("/type") == kind)
    }

    fn set_condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let now = stamp(self.now);
        let before = self.condition(kind);
        if before.is_some_and(|c| c.text("/status") == status && c.text("/reason") == reason) {
            return;
        }
        let since = before
            .filter(|before| before.text("/status") == status)
            .map_or(now.as_str(), |before| before.text("/lastTransitionTime"));
        let condition = json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": since,
        });
        self.conditions.retain(|condition| condition.text("/type") != kind);
        self.conditions.push(condition);
    }

    /// As `set_condition`, but counts as a new sign of life even if nothing else changed.
    fn refresh_condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        self.set_condition(kind, status, reason, message);
        let now = stamp(self.now);
        if let Some(condition) = self.conditions.iter_mut().find(|c| c.text("/type") == kind) {
            set(condition, "lastUpdateTime", now.into());
            set(condition, "message", message.into());
        }
    }

    /// Waiting while paused is no failure to progress.
    fn note_pause(&mut self) {
        if !self.has_deadline() {
            return;
        }
        let reason = self.condition("Progressing").map_or("", |condition| condition.text("/reason"));
        if reason == "ProgressDeadlineExceeded" {
            return;
        }
        let (paused, was_paused) = (self.deployment.flag("/spec/paused"), reason == "DeploymentPaused");
        if paused && !was_paused {
            self.set_condition("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused");
        } else if !paused && was_paused {
            self.set_condition("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed");
        }
    }

    fn counts(&self) -> Counts {
        let all = || self.old.iter().chain(&self.new);
        let available: i64 = all().map(Set::available).sum();
        Counts {
            replicas: all().map(Set::current).sum(),
            updated: self.new.as_ref().map_or(0, Set::current),
            ready: all().map(Set::ready).sum(),
            available,
            unavailable: (all().map(|set| set.replicas).sum::<i64>() - available).max(0),
        }
    }

    fn is_complete(&self, counts: &Counts) -> bool {
        counts.updated == self.strategy.replicas
            && counts.replicas == self.strategy.replicas
            && counts.available == self.strategy.replicas
    }

    fn judge_progress(&mut self, counts: &Counts) {
        let Some(deadline) = self.deadline() else {
            self.conditions.retain(|condition| condition.text("/type") != "Progressing");
            return;
        };
        let reason = |rollout: &Self| {
            rollout.condition("Progressing").map_or(String::new(), |c| c.text("/reason").to_owned())
        };
        if counts.replicas == counts.updated && reason(self) == "NewReplicaSetAvailable" {
            return;
        }
        let subject = match &self.new {
            Some(new) => format!("ReplicaSet \"{}\"", new.object.name()),
            None => format!("Deployment \"{}\"", self.deployment.name()),
        };
        let before = Counts::stored(self.deployment);
        let progressed = counts.updated > before.updated
            || counts.replicas - counts.updated < before.replicas - before.updated
            || counts.ready > before.ready
            || counts.available > before.available;
        if self.is_complete(counts) {
            let message = format!("{subject} has successfully progressed.");
            self.refresh_condition("Progressing", "True", "NewReplicaSetAvailable", &message);
        } else if progressed {
            let message = format!("{subject} is progressing.");
            self.refresh_condition("Progressing", "True", "ReplicaSetUpdated", &message);
        } else {
            let kind = reason(self);
            if matches!(
                kind.as_str(),
                "NewReplicaSetAvailable" | "ProgressDeadlineExceeded" | "DeploymentPaused"
            ) {
                return;
            }
            let last = self.condition("Progressing").and_then(|condition| condition.time("/lastUpdateTime"));
            let Some(last) = last else { return };
            let left = deadline - seconds_between(last, self.now);
            if left < 0 {
                let message = format!("{subject} has timed out progressing.");
                self.set_condition("Progressing", "False", "ProgressDeadlineExceeded", &message);
            } else {
                self.plan.again_in(left + 1);
            }
        }
    }

    fn write_status(&mut self) {
        let counts = self.counts();
        if counts.available >= self.strategy.replicas - self.strategy.max_unavailable {
            let message = "Deployment has minimum availability.";
            self.set_condition("Available", "True", "MinimumReplicasAvailable", message);
        } else {
            let message = "Deployment does not have minimum availability.";
            self.set_condition("Available", "False", "MinimumReplicasUnavailable", message);
        }
        if !self.deployment.is_deleting() && !self.deployment.flag("/spec/paused") {
            self.judge_progress(&counts);
        }
        let failure = |set: &Set| set.object.condition("ReplicaFailure").cloned();
        let failure = self.new.iter().chain(&self.old).find_map(failure);
        match failure {
            Some(failure) => {
                let (reason, message) = (failure.text("/reason"), failure.text("/message"));
                self.set_condition("ReplicaFailure", failure.text("/status"), reason, message);
            }
            None => self.conditions.retain(|condition| condition.text("/type") != "ReplicaFailure"),
        }
        let mut status = without_zeros(json!({
            "observedGeneration": self.deployment.generation(),
            "replicas": counts.replicas, "updatedReplicas": counts.updated, "readyReplicas": counts.ready,
            "availableReplicas": counts.available, "unavailableReplicas": counts.unavailable,
            "collisionCount": self.collisions,
        }));
        status.insert("conditions".to_owned(), self.conditions.clone().into());
        if let Some(patch) = status_diff(self.deployment, &Value::Object(status)) {
            // Before the write that failed and may fail again, or nobody would hear of it.
            let position = if self.failure.is_some() { 0 } else { self.plan.steps.len() };
            let patch = Patch::status(Kind::Deployment, &self.id, patch);
            self.plan.steps.insert(position, Step::Patch(vec![patch]));
        }
    }
}

struct Counts {
    replicas: i64,
    updated: i64,
    ready: i64,
    available: i64,
    unavailable: i64,
}

impl Counts {
    fn stored(deployment: &Value) -> Self {
        let count = |field: &str| deployment.int(&format!("/status/{field}")).unwrap_or(0);
        Self {
            replicas: count("replicas"),
            updated: count("updatedReplicas"),
            ready: count("readyReplicas"),
            available: count("availableReplicas"),
            unavailable: count("unavailableReplicas"),
        }
    }
}

/// A template as two of them are compared: without the label that a ReplicaSet adds.
fn comparable(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH_LABEL);
    }
    normal_form(&template)
}

/// Annotations of the Deployment that `object` should have and does not.
fn copied_annotations(deployment: &Value, object: &Value) -> std::collections::BTreeMap<String, String> {
    let mut annotations = string_map(deployment.at("/metadata/annotations"));
    annotations.retain(|key, value| {
        !OWN_ANNOTATIONS.contains(&key.as_str()) && object.annotation(key) != Some(value)
    });
    annotations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::read::{created, deleted, lines, status};

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    fn deployment(image: &str, spec: Value) -> Value {
        let mut deployment = json!({
            "metadata": {"name": "web", "namespace": "ml", "uid": "d", "generation": 1},
            "spec": {
                "replicas": 4,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": image}]},
                },
            },
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            deployment["spec"][key] = value.clone();
        }
        deployment
    }

    /// The ReplicaSet of an image, with so many pods, all available.
    fn replica_set(image: &str, revision: i64, replicas: i64) -> Arc<Value> {
        let mut template = deployment(image, json!({}))["spec"]["template"].take();
        let hash = template_hash(&template, 0);
        template["metadata"]["labels"][HASH_LABEL] = hash.into();
        Arc::new(json!({
            "metadata": {
                "name": format!("web-{image}"), "namespace": "ml", "uid": image, "generation": 1,
                "annotations": {REVISION: revision.to_string(), DESIRED: "4", MAX: "5"},
            },
            "spec": {"replicas": replicas, "template": template},
            "status": {"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
                       "observedGeneration": 1},
        }))
    }

    fn run(deployment: &Value, sets: Vec<Arc<Value>>, has_pods: bool) -> Plan {
        let has_pods = |_: &Value| has_pods;
        plan(Observed { deployment, sets, orphans: Vec::new(), has_pods: &has_pods, failure: None }, now())
    }

    #[test]
    fn a_new_deployment_gets_a_replica_set_with_its_template_and_hash() {
        let plan = run(&deployment("a", json!({})), Vec::new(), false);
        let set = created(&plan)[0];
        let hash = set["metadata"]["labels"][HASH_LABEL].as_str().expect("a hash");
        assert_eq!(set["metadata"]["name"], format!("web-{hash}"));
        assert_eq!(set["spec"]["selector"]["matchLabels"][HASH_LABEL], hash);
        assert_eq!(set["spec"]["template"]["metadata"]["labels"][HASH_LABEL], hash);
        assert_eq!(set["spec"]["replicas"], 4);
        assert_eq!(set["metadata"]["annotations"][REVISION], "1");
        let conditions = &status(&plan).expect("a status")["conditions"];
        assert_eq!(conditions[0]["reason"], "NewReplicaSetCreated");
        assert_eq!(conditions[1]["reason"], "MinimumReplicasUnavailable");
        assert!(lines(&plan).iter().any(|line| line.contains("\"deployment.kubernetes.io/revision\":\"1\"")));
    }

    #[test]
    fn an_undo_takes_the_old_replica_set_back_with_a_new_revision() {
        let sets = vec![replica_set("a", 1, 0), replica_set("b", 2, 4)];
        let plan = run(&deployment("a", json!({})), sets, false);
        assert!(created(&plan).is_empty());
        let text = lines(&plan).join("\n");
        assert!(text.contains("\"deployment.kubernetes.io/revision\":\"3\""), "{text}");
        assert!(text.contains("\"deployment.kubernetes.io/revision-history\":\"1\""), "{text}");
        assert!(text.contains("patch ReplicaSet web-a"), "{text}");
    }

    #[test]
    fn a_complete_rollout_says_so_in_the_words_that_kubectl_waits_for() {
        let plan = run(&deployment("a", json!({})), vec![replica_set("a", 1, 4)], false);
        let status = status(&plan).expect("a status");
        let text = status.to_string();
        assert!(text.contains("ReplicaSet \\\"web-a\\\" has successfully progressed."), "{text}");
        assert!(text.contains("Deployment has minimum availability."), "{text}");
        assert_eq!(status["observedGeneration"], 1);
        assert_eq!(status["updatedReplicas"], 4);
    }

    #[test]
    fn without_progress_the_deadline_passes() {
        let mut deployment = deployment("a", json!({"progressDeadlineSeconds": 60}));
        let mut set = (*replica_set("a", 1, 4)).clone();
        set["status"] = json!({"replicas": 4});
        deployment["status"] = json!({"replicas": 4, "updatedReplicas": 4, "conditions": [{
            "type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated",
            "lastUpdateTime": "2025-12-31T23:59:30Z",
        }]});
        let waiting = run(&deployment, vec![Arc::new(set.clone())], false);
        assert_eq!(waiting.again_after, Some(std::time::Duration::from_secs(31)));
        deployment["status"]["conditions"][0]["lastUpdateTime"] = "2025-12-31T23:58:00Z".into();
        let late = run(&deployment, vec![Arc::new(set)], false);
        let text = status(&late).expect("a status").to_string();
        assert!(text.contains("ProgressDeadlineExceeded"), "{text}");
        assert!(text.contains("has timed out progressing."), "{text}");
    }

    #[test]
    fn recreate_waits_for_the_last_old_pod() {
        let recreate = deployment("b", json!({"strategy": {"type": "Recreate"}}));
        let text = lines(&run(&recreate, vec![replica_set("a", 1, 4)], true)).join("\n");
        assert!(text.contains("\"replicas\":0") && !text.contains("create ReplicaSet"), "{text}");
        let waiting = run(&recreate, vec![replica_set("a", 1, 0)], true);
        assert!(created(&waiting).is_empty());
        let gone = run(&recreate, vec![replica_set("a", 1, 0)], false);
        assert_eq!(created(&gone)[0]["spec"]["replicas"], 4);
    }

    #[test]
    fn a_paused_deployment_scales_but_does_not_roll() {
        let mut paused = deployment("b", json!({"paused": true}));
        paused["spec"]["replicas"] = 6.into();
        let plan = run(&paused, vec![replica_set("a", 1, 4)], false);
        assert!(created(&plan).is_empty());
        let text = lines(&plan).join("\n");
        assert!(text.contains("\"replicas\":6"), "{text}");
        assert!(text.contains("DeploymentPaused"), "{text}");
    }

    #[test]
    fn empty_replica_sets_above_the_limit_are_deleted_oldest_first() {
        let sets = vec![
            replica_set("c", 3, 0),
            replica_set("a", 1, 0),
            replica_set("b", 2, 0),
            replica_set("d", 4, 4),
        ];
        let plan = run(&deployment("d", json!({"revisionHistoryLimit": 1})), sets, false);
        assert_eq!(deleted(&plan), ["web-a", "web-b"]);
    }

    #[test]
    fn a_second_look_at_a_settled_deployment_writes_nothing() {
        let mut settled = deployment("a", json!({}));
        settled["metadata"]["annotations"] = json!({REVISION: "1"});
        let first = run(&settled, vec![replica_set("a", 1, 4)], false);
        settled["status"] = status(&first).expect("a status").clone();
        assert_eq!(lines(&run(&settled, vec![replica_set("a", 1, 4)], false)), Vec::<String>::new());
    }
}
