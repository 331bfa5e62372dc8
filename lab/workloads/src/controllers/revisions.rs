//! ControllerRevisions: the templates that a StatefulSet or DaemonSet has had, for rollouts and their undoing.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::json::{Fields as _, controller_reference, normal_form, string_map, template_hash};
use crate::kinds::Kind;
use crate::plan::{Create, Delete, Failure, Patch, Plan};
use crate::store::Ref;

/// The label of pods that tells their revision.
pub(crate) const REVISION_LABEL: &str = "controller-revision-hash";

/// The revision of the template that is wanted now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Revision {
    pub(crate) name: String,
    pub(crate) hash: String,
    pub(crate) template: Value,
    pub(crate) collisions: i64,
}

/// Finds, renumbers or creates the revision of the owner's template. What `kubectl rollout undo` reads is `data`:
/// a patch of the owner that puts the template back.
pub(crate) fn settle(
    kind: Kind,
    owner: &Value,
    known: &[Arc<Value>],
    failure: Option<&Failure>,
    plan: &mut Plan,
) -> Revision {
    let template = owner.at("/spec/template").clone();
    let wanted = normal_form(&template);
    let mut sorted: Vec<&Arc<Value>> = known.iter().collect();
    sorted.sort_by_key(|revision| (number(revision), revision.name().to_owned()));
    let last = sorted.last().map_or(0, |revision| number(revision));
    let mut collisions = owner.int("/status/collisionCount").unwrap_or(0);
    let equal = sorted.iter().rev().find(|revision| normal_form(&self::template(revision)) == wanted);
    if let Some(revision) = equal {
        if number(revision) < last {
            let id = Ref::new(revision.namespace(), revision.name());
            plan.patch(Patch::new(Kind::ControllerRevision, &id, json!({"revision": last + 1})));
        }
        let name = revision.name().to_owned();
        let hash = revision.label(REVISION_LABEL).unwrap_or("").to_owned();
        return Revision { name, hash, template, collisions };
    }
    if failure.is_some_and(|failure| failure.already_exists) {
        collisions += 1;
    }
    let hash = template_hash(&template, collisions);
    let name = format!("{}-{hash}", owner.name());
    let mut labels = string_map(template.at("/metadata/labels"));
    labels.insert(REVISION_LABEL.to_owned(), hash.clone());
    labels.insert("controller.kubernetes.io/hash".to_owned(), hash.clone());
    let mut data = template.clone();
    data["$patch"] = "replace".into();
    let mut annotations = string_map(owner.at("/metadata/annotations"));
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    plan.create(Create::new(
        Kind::ControllerRevision,
        json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision",
            "metadata": {
                "name": name, "namespace": owner.namespace(), "labels": labels, "annotations": annotations,
                "ownerReferences": [controller_reference(kind, owner)],
            },
            "data": {"spec": {"template": data}},
            "revision": last + 1,
        }),
    ));
    Revision { name, hash, template, collisions }
}

/// The template that a revision keeps.
pub(crate) fn template(revision: &Value) -> Value {
    let mut template = revision.at("/data/spec/template").clone();
    if let Some(fields) = template.as_object_mut() {
        fields.remove("$patch");
    }
    template
}

fn number(revision: &Value) -> i64 {
    revision.int("/revision").unwrap_or(0)
}

/// Deletes the oldest revisions above the limit, except those that are in use.
pub(crate) fn truncate(
    owner: &Value,
    known: &[Arc<Value>],
    in_use: &dyn Fn(&Value) -> bool,
    plan: &mut Plan,
) {
    let limit = usize::try_from(owner.int("/spec/revisionHistoryLimit").unwrap_or(10)).unwrap_or(0);
    let mut unused: Vec<&Arc<Value>> = known.iter().filter(|revision| !in_use(revision)).collect();
    unused.sort_by_key(|revision| number(revision));
    let surplus = unused.len().saturating_sub(limit);
    let deletes = unused.iter().take(surplus).map(|revision| {
        let id = Ref::new(revision.namespace(), revision.name());
        Delete::new(Kind::ControllerRevision, &id, revision.uid())
    });
    plan.deletes(deletes.collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::read::{created, deleted, lines};

    fn owner(image: &str) -> Value {
        json!({
            "metadata": {"name": "db", "namespace": "ml", "uid": "o"},
            "spec": {"revisionHistoryLimit": 1, "template": {"spec": {"containers": [{"image": image}]}}},
        })
    }

    fn revision(image: &str, number: i64) -> Arc<Value> {
        let mut plan = Plan::default();
        settle(Kind::StatefulSet, &owner(image), &[], None, &mut plan);
        let mut revision = created(&plan)[0].clone();
        revision["revision"] = number.into();
        Arc::new(revision)
    }

    #[test]
    fn a_template_is_kept_once_and_taken_back_with_a_new_number() {
        let known = [revision("a", 1), revision("b", 2)];
        let mut plan = Plan::default();
        let current = settle(Kind::StatefulSet, &owner("b"), &known, None, &mut plan);
        assert_eq!((current.name.as_str(), plan), (known[1].name(), Plan::default()));
        let mut plan = Plan::default();
        settle(Kind::StatefulSet, &owner("a"), &known, None, &mut plan);
        let expect = format!("patch ControllerRevision {} {{\"revision\":3}}", known[0].name());
        assert_eq!(lines(&plan), [expect]);
        assert_eq!(known[0]["data"]["spec"]["template"]["$patch"], "replace");
        assert_eq!(template(&known[0]), owner("a")["spec"]["template"]);
    }

    #[test]
    fn old_revisions_above_the_limit_go_unless_they_are_in_use() {
        let known = [revision("a", 1), revision("b", 2), revision("c", 3)];
        let mut plan = Plan::default();
        truncate(&owner("c"), &known, &|revision| number(revision) == 3, &mut plan);
        assert_eq!(deleted(&plan), [known[0].name()]);
    }
}
