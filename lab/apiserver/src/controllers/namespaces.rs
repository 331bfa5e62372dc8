//! Equips namespaces with the account that every pod may use, and ends them: deletes what is in them, tells what
//! remains, and lets them go when nothing does.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::delete;
use crate::Status;
use crate::http::Call;
use crate::json::{items, map_at, text};
use crate::registry::Resource;
use crate::server::Inner;
use crate::store::{ObjectKey, ResourceId};
use crate::verbs::{Owners, Part, create_object, finalizers, modify, now};

/// The ServiceAccount of pods that name none.
pub(super) const DEFAULT_ACCOUNT: &str = "default";

/// Creates the `default` ServiceAccount of a namespace that stays.
pub(super) async fn ensure_account(server: &Arc<Inner>, namespace: &str) -> Result<(), Status> {
    let key = ObjectKey::new("", namespace);
    let stays =
        server.store.get(&ResourceId::from("namespaces"), &key).is_some_and(|ns| !is_terminating(&ns.value));
    let served = server.registry.served();
    let Some(accounts) = served.by_kind("v1", "ServiceAccount") else { return Ok(()) };
    if !stays || server.store.get(&accounts.id, &ObjectKey::new(namespace, DEFAULT_ACCOUNT)).is_some() {
        return Ok(());
    }
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT_ACCOUNT, "namespace": namespace},
    });
    let call = Call::internal(server, accounts, namespace, "");
    create_object(&call, account, &[], Owners::Tracked).await.map(drop)
}

/// What keeps a namespace, with how many objects each.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remains {
    /// By resource, as in `pods.` or `deployments.apps`.
    resources: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
}

pub(super) fn is_terminating(namespace: &Value) -> bool {
    !namespace["metadata"]["deletionTimestamp"].is_null()
}

/// One step towards the end of a namespace; called again whenever something in it changes.
pub(super) async fn terminate(server: &Arc<Inner>, name: &str) -> Result<(), Status> {
    let served = server.registry.served();
    let Some(namespaces) = served.by_kind("v1", "Namespace") else { return Ok(()) };
    let Some(namespace) = server.store.get(&ResourceId::from("namespaces"), &ObjectKey::new("", name)) else {
        return Ok(());
    };
    if !is_terminating(&namespace.value) {
        return Ok(());
    }
    let contents: Vec<Arc<Resource>> =
        served.stored().into_iter().filter(|resource| resource.namespaced).collect();
    for resource in &contents {
        for object in list(server, resource, name) {
            if object.value["metadata"]["deletionTimestamp"].is_null() {
                delete(server, resource, name, object.meta("name"), object.meta("uid"), "Background").await?;
            }
        }
    }
    let mut remains = Remains::default();
    for resource in &contents {
        for object in list(server, resource, name) {
            *remains.resources.entry(format!("{}.{}", resource.plural, resource.group)).or_default() += 1;
            for finalizer in finalizers(&object.value) {
                *remains.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
    }
    let call = Call::internal(server, namespaces, "", name);
    let time = now(&server.options.clock);
    let done = remains.resources.is_empty();
    modify(&call, Part::Everything, &[], |current, _| {
        let mut new = current.clone();
        if new["metadata"]["uid"] != namespace.value["metadata"]["uid"] {
            return Ok(new.into());
        }
        if done {
            let kept =
                items(&new["spec"]["finalizers"]).iter().filter(|f| *f != "kubernetes").cloned().collect();
            map_at(&mut new, &["spec"]).insert("finalizers".to_owned(), Value::Array(kept));
        }
        let conditions = conditions(&remains, &current["status"]["conditions"], &time);
        map_at(&mut new, &["status"]).insert("conditions".to_owned(), conditions);
        Ok(new.into())
    })
    .await
    .map(drop)
}

fn list(server: &Inner, resource: &Resource, namespace: &str) -> Vec<Arc<crate::store::Object>> {
    server.store.list(&resource.id, Some(namespace), None).map(|(objects, _)| objects).unwrap_or_default()
}

/// The conditions with which `kubectl describe namespace` explains why it is still there.
fn conditions(remains: &Remains, old: &Value, now: &str) -> Value {
    let counts = |map: &BTreeMap<String, usize>, word: &str| {
        map.iter()
            .map(|(name, n)| format!("{name} {word} {n} resource instances"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let content = if remains.resources.is_empty() {
        ("False", "ContentRemoved", "All content successfully removed".to_owned())
    } else {
        let text = format!("Some resources are remaining: {}", counts(&remains.resources, "has"));
        ("True", "SomeResourcesRemain", text)
    };
    let finalizers = if remains.finalizers.is_empty() {
        ("False", "ContentHasNoFinalizers", "All content-preserving finalizers finished".to_owned())
    } else {
        let text = format!(
            "Some content in the namespace has finalizers remaining: {}",
            counts(&remains.finalizers, "in")
        );
        ("True", "SomeFinalizersRemain", text)
    };
    let fine = |reason, message: &str| ("False", reason, message.to_owned());
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            fine("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            fine("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            fine("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        ("NamespaceContentRemaining", content),
        ("NamespaceFinalizersRemaining", finalizers),
    ];
    rows.into_iter()
        .map(|(kind, (status, reason, message))| {
            let before = items(old).iter().find(|c| c["type"] == kind && c["status"] == status);
            let since = before.map_or(now, |condition| text(&condition["lastTransitionTime"]));
            json!({
                "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conditions_of_a_namespace_tell_what_keeps_it() {
        let remains = Remains {
            resources: [("pods.".to_owned(), 2), ("things.x.io".to_owned(), 1)].into(),
            finalizers: [("x.io/keep".to_owned(), 1)].into(),
        };
        let first = conditions(&remains, &Value::Null, "t1");
        let condition = |list: &Value, kind: &str| items(list).iter().find(|c| c["type"] == kind).cloned();
        assert_eq!(
            condition(&first, "NamespaceContentRemaining"),
            Some(json!({
                "type": "NamespaceContentRemaining", "status": "True", "reason": "SomeResourcesRemain",
                "message": "Some resources are remaining: pods. has 2 resource instances, things.x.io has 1 resource instances",
                "lastTransitionTime": "t1",
            }))
        );
        let second = conditions(&remains, &first, "t2");
        assert_eq!(second, first);
        let last = conditions(&Remains::default(), &second, "t3");
        let finalizers = condition(&last, "NamespaceFinalizersRemaining").unwrap_or_default();
        assert_eq!(
            (&finalizers["status"], &finalizers["lastTransitionTime"]),
            (&json!("False"), &json!("t3"))
        );
    }
}
