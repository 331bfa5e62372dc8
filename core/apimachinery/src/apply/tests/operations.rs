//! What applies and updates do, case by case.

use serde_json::{Value, json};

use super::{Kind, Story, VERSION, object};
use crate::apply::{ApplyError, FieldSet, ManagedFields, Operation, Writer};

fn message(result: Result<crate::apply::Applied, ApplyError>) -> String {
    result.unwrap_err().message()
}

#[test]
fn an_applier_owns_what_it_names_and_no_more() {
    let mut story = Story::new();
    story.apply(
        "a",
        json!({"replicas": 1, "tags": ["x"], "args": ["-v"], "selector": {"k": "v"},
        "ports": [{"port": 80, "name": "web"}], "options": {"o": "1"}, "free": {"deep": [1]}}),
    );
    assert_eq!(
        story.owners(),
        [(
            "a".to_owned(),
            json!({
                "f:args": {}, "f:free": {"f:deep": {}}, "f:options": {"f:o": {}},
                "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}}},
                "f:replicas": {}, "f:selector": {}, "f:tags": {"v:\"x\"": {}},
            })
        )]
    );
    assert_eq!(story.managed.entries()[0].operation, Operation::Apply);
}

#[test]
fn a_creator_owns_the_objects_too_that_hold_its_fields() {
    let mut story = Story::new();
    story.update(
        "kubectl",
        json!({"replicas": 1, "options": {"o": "1"}, "ports": [{"port": 80, "protocol": "UDP"}]}),
    );
    assert_eq!(
        story.owners(),
        [(
            "kubectl".to_owned(),
            json!({
                ".": {}, "f:replicas": {}, "f:options": {".": {}, "f:o": {}},
                "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"UDP\"}": {".": {}, "f:port": {}, "f:protocol": {}}},
            })
        )]
    );
}

#[test]
fn what_is_no_longer_applied_goes_unless_somebody_else_owns_it() {
    let mut story = Story::new();
    story.apply(
        "a",
        json!({"replicas": 1, "image": "i", "options": {"x": "1", "y": "2"}, "tags": ["p", "q"]}),
    );
    story.apply("b", json!({"image": "i", "options": {"y": "2"}, "tags": ["q"]}));
    story.apply("a", json!({"replicas": 1}));
    assert_eq!(story.spec(), &json!({"replicas": 1, "image": "i", "options": {"y": "2"}, "tags": ["q"]}));
    story.apply("b", json!({"image": "i"}));
    assert_eq!(
        story.spec(),
        &json!({"replicas": 1, "image": "i"}),
        "lists and maps go with the last of their items"
    );
    story.apply("b", json!({}));
    assert_eq!(story.spec(), &json!({"replicas": 1}));
    assert_eq!(story.owners(), [("a".to_owned(), json!({"f:replicas": {}})), ("b".to_owned(), json!({}))]);
}

#[test]
fn what_an_updater_wrote_is_kept_and_what_nobody_owned_too() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1, "options": {"x": "1"}}));
    story.update("b", json!({"replicas": 1, "options": {"x": "1", "z": "3"}}));
    story.apply("a", json!({"replicas": 1}));
    assert_eq!(story.spec(), &json!({"replicas": 1, "options": {"z": "3"}}));
    // A default, for example.
    story.object["spec"]["options"]["nobody"] = "4".into();
    story.apply("a", json!({"replicas": 1, "image": "i"})).apply("a", json!({"image": "i"}));
    assert_eq!(story.spec(), &json!({"image": "i", "options": {"z": "3", "nobody": "4"}}));
}

#[test]
fn a_change_of_somebody_elses_field_is_a_conflict_and_force_takes_it() {
    let mut story = Story::new();
    story.update("kubectl-scale", json!({"replicas": 1, "image": "i"}));
    let refused = story.try_apply("a", json!({"replicas": 2}), false);
    assert_eq!(
        message(refused.clone()),
        "Apply failed with 1 conflict: conflict with \"kubectl-scale\" using example.com/v1: .spec.replicas"
    );
    let Err(ApplyError::Conflicts(conflicts)) = refused else { panic!("no conflict") };
    assert_eq!(
        conflicts[0].to_cause(),
        json!({"reason": "FieldManagerConflict", "message": "conflict with \"kubectl-scale\" using example.com/v1",
            "field": ".spec.replicas"})
    );
    assert_eq!(
        message(story.try_apply("a", json!({"replicas": 2, "image": "j"}), false)),
        "Apply failed with 2 conflicts: conflicts with \"kubectl-scale\" using example.com/v1:\n- .spec.image\n- .spec.replicas"
    );
    story.force("a", json!({"replicas": 2}));
    assert_eq!(story.spec(), &json!({"replicas": 2, "image": "i"}));
    assert_eq!(
        story.owners(),
        [
            ("a".to_owned(), json!({"f:replicas": {}})),
            ("kubectl-scale".to_owned(), json!({".": {}, "f:image": {}})),
        ]
    );
}

#[test]
fn the_same_value_is_shared_without_a_conflict() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1})).apply("b", json!({"replicas": 1}));
    assert_eq!(
        story.owners(),
        [("b".to_owned(), json!({"f:replicas": {}})), ("a".to_owned(), json!({"f:replicas": {}}))]
    );
    assert_eq!(story.managed.entries()[0].time, None, "an apply that changes nothing has no time");
    assert_eq!(
        message(story.try_apply("a", json!({"replicas": 3}), false)),
        "Apply failed with 1 conflict: conflict with \"b\": .spec.replicas"
    );
}

#[test]
fn an_update_takes_what_it_changes_from_all_and_what_it_removes_has_no_owner() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1, "image": "i", "tags": ["x", "y"]}));
    story.update("b", json!({"replicas": 2, "tags": ["y"]}));
    assert_eq!(
        story.owners(),
        [("a".to_owned(), json!({"f:tags": {"v:\"y\"": {}}})), ("b".to_owned(), json!({"f:replicas": {}})),]
    );
}

#[test]
fn items_of_lists_are_merged_by_their_keys_in_the_applied_order() {
    let mut story = Story::new();
    story.update("u", json!({"ports": [
        {"port": 1, "protocol": "TCP", "name": "one"}, {"port": 2, "protocol": "TCP"}, {"port": 3, "protocol": "TCP"},
    ]}));
    // Port 1 over UDP is another item; TCP is what an item is that does not say.
    story.apply(
        "a",
        json!({"ports": [{"port": 3}, {"port": 1, "protocol": "UDP"}, {"port": 1, "labels": {"k": "v"}}]}),
    );
    assert_eq!(
        story.spec()["ports"],
        json!([
            {"port": 2, "protocol": "TCP"},
            {"port": 3, "protocol": "TCP"},
            {"port": 1, "protocol": "UDP"},
            {"port": 1, "protocol": "TCP", "name": "one", "labels": {"k": "v"}},
        ])
    );
    story.apply("a", json!({"ports": [{"port": 3}]}));
    assert_eq!(
        story.spec()["ports"],
        json!([{"port": 2, "protocol": "TCP"}, {"port": 3, "protocol": "TCP"}, {"port": 1, "protocol": "TCP", "name": "one"}])
    );
}

#[test]
fn atomic_lists_and_maps_have_one_owner_as_a_whole() {
    let mut story = Story::new();
    story.apply("a", json!({"args": ["-a"], "selector": {"k": "v"}}));
    assert_eq!(
        message(story.try_apply("b", json!({"args": ["-b"], "selector": {"l": "w"}}), false)),
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .spec.args\n- .spec.selector"
    );
    story.force("b", json!({"selector": {"l": "w"}}));
    assert_eq!(story.spec(), &json!({"args": ["-a"], "selector": {"l": "w"}}));
}

#[test]
fn fields_of_an_object_that_was_never_tracked_belong_to_before_first_apply() {
    let mut story = Story::new();
    story.object = object(json!({"replicas": 1, "image": "i"}));
    assert_eq!(
        message(story.try_apply("a", json!({"replicas": 2}), false)),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using example.com/v1: .spec.replicas"
    );
    story.apply("a", json!({"image": "i"}));
    let managers: Vec<String> = story.owners().into_iter().map(|(manager, _)| manager).collect();
    assert_eq!(managers, ["a", "before-first-apply"]);
}

#[test]
fn an_object_that_nobody_tracks_stays_so_under_updates() {
    let kind = Kind::usual();
    let (old, new) = (object(json!({"replicas": 1})), object(json!({"replicas": 2})));
    assert!(kind.update(&ManagedFields::NONE, Some(&old), &new, "a").is_empty());
}

#[test]
fn a_write_without_effect_changes_no_owner_and_no_time() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1}));
    let before = story.managed.clone();
    let writer = Kind::writer("a", 60);
    let again = story
        .managed
        .apply(&story.object, &object(json!({"replicas": 1})), &writer, false, &story.kind)
        .unwrap();
    assert_eq!((&again.object, &again.managed), (&story.object, &before));
    assert_eq!(story.managed.update(Some(&story.object), &story.object, &writer, &story.kind), before);
}

#[test]
fn fields_of_another_path_are_nobodys() {
    let kind = Kind::usual();
    let mut config = object(json!({"replicas": 1}));
    config["status"] = json!({"ready": true});
    let live = json!({"apiVersion": VERSION, "kind": "Thing"});
    let applied = ManagedFields::NONE.apply(&live, &config, &Kind::writer("a", 0), false, &kind).unwrap();
    assert_eq!(applied.managed.entries()[0].fields, FieldSet::of_fields("spec.replicas"));
    let created = kind.update(&ManagedFields::NONE, None, &config, "a");
    assert!(!created.entries()[0].fields.to_fields_v1().contains("status"));
}

#[test]
fn the_oldest_updaters_become_one_when_there_are_more_than_ten() {
    let kind = Kind::usual();
    let mut object = object(json!({"options": {"0": "x"}}));
    let mut managed = kind.update(&ManagedFields::NONE, None, &object, "m0");
    for index in 1..=12 {
        let old = object.clone();
        object["spec"]["options"][index.to_string()] = "x".into();
        let manager = format!("m{index}");
        managed = managed.update(Some(&old), &object, &Kind::writer(&manager, index), &kind);
    }
    let managers: Vec<&str> = managed.entries().iter().map(|entry| entry.manager.as_ref()).collect();
    assert_eq!(managers, ["ancient-changes", "m4", "m5", "m6", "m7", "m8", "m9", "m10", "m11", "m12"]);
    let oldest = FieldSet::of_fields("spec.options.3").union(&FieldSet::of_fields("spec.options.1"));
    assert_eq!(managed.entries()[0].fields.intersection(&oldest), oldest);
}

#[test]
fn kubectl_on_the_server_takes_over_what_kubectl_applied_on_the_client() {
    let mut story = Story::new();
    let spec = json!({"replicas": 1, "image": "i"});
    let mut created = object(spec.clone());
    let last = object(spec).to_string();
    created["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": last});
    story.managed = story.kind.update(&ManagedFields::NONE, None, &created, "kubectl-client-side-apply");
    story.object = created;
    // Not for other managers.
    assert!(story.try_apply("argo", json!({"replicas": 2, "image": "i"}), false).is_err());
    story.apply("kubectl", json!({"replicas": 2, "image": "j"}));
    assert_eq!(story.spec(), &json!({"replicas": 2, "image": "j"}));
    let annotation =
        &story.object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    let last: Value = serde_json::from_str(annotation.as_str().unwrap()).unwrap();
    assert_eq!(last["spec"], json!({"replicas": 2, "image": "j"}), "the annotation follows");
    // What somebody changed since is theirs.
    story.update("hpa", {
        let mut spec = story.spec().clone();
        spec["replicas"] = 7.into();
        spec
    });
    assert_eq!(
        message(story.try_apply("kubectl", json!({"replicas": 3}), false)),
        "Apply failed with 1 conflict: conflict with \"hpa\" using example.com/v1: .spec.replicas"
    );
}

#[test]
fn what_does_not_fit_its_type_is_refused_in_gos_words() {
    let story = Story::new();
    for (spec, expected) in [
        (json!({"replica": 1}), ".spec.replica: field not declared in schema"),
        (json!({"replicas": "1"}), ".spec.replicas: expected numeric (int or float), got string"),
        (json!({"image": 1}), ".spec.image: expected string, got &value.valueUnstructured{Value:1}"),
        (json!({"options": ["a"]}), ".spec.options: expected map, got &{[a]}"),
        (json!({"tags": "a"}), ".spec.tags: expected list, got &{a}"),
        (json!({"tags": ["a", "a"]}), ".spec.tags: duplicate entries for key [=\"a\"]"),
        (
            json!({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}),
            ".spec.ports: duplicate entries for key [port=1,protocol=\"TCP\"]",
        ),
        (
            json!({"ports": [null]}),
            ".spec.ports: element 0: associative list with keys may not have a null element",
        ),
        (
            json!({"replica": 1, "image": 1}),
            "errors:\n  .spec.image: expected string, got &value.valueUnstructured{Value:1}\n  .spec.replica: field not declared in schema",
        ),
    ] {
        assert_eq!(message(story.try_apply("a", spec, true)), expected);
    }
    // Duplicates of a live object are older than the rule.
    let mut story = Story::new();
    story.update("u", json!({"tags": ["a", "a", "b"]}));
    story.apply("a", json!({"tags": ["c"]}));
    assert_eq!(story.spec()["tags"], json!(["a", "a", "b", "c"]));
}

#[test]
fn a_version_that_is_no_longer_served_is_forgotten() {
    let kind = Kind::usual();
    let old = object(json!({"replicas": 1}));
    let writer = Writer { api_version: "example.com/v0", ..Kind::writer("a", 0) };
    let mut entry = kind.update(&ManagedFields::NONE, None, &old, "a").entries()[0].clone();
    entry.api_version = writer.api_version.into();
    let managed = ManagedFields::new(vec![entry]);
    let new = object(json!({"replicas": 2}));
    let managers = kind.update(&managed, Some(&old), &new, "b");
    assert_eq!(managers.entries().len(), 1);
    assert_eq!(managers.entries()[0].manager.as_ref(), "b");
}
