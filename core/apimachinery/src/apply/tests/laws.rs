//! What holds for any objects and sets.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Kind, Story, VERSION, object};
use crate::apply::compare::compare;
use crate::apply::extract::{faults, field_set};
use crate::apply::merge::{merge, remove};
use crate::apply::{FieldSet, ManagedFields};

/// The fields of the usual kind.
const NAMES: [&str; 8] = ["replicas", "image", "args", "tags", "ports", "selector", "options", "free"];

/// Specs of the usual kind, with few names and values, so that two often meet. Lists and maps have items: an empty one
/// is a leaf of another kind.
fn spec() -> impl Strategy<Value = Value> {
    let text = || prop::sample::select(vec!["a", "b", "c"]);
    let texts = prop::collection::btree_map(text(), text(), 1..3);
    let free = prop_oneof![
        text().prop_map(|text| json!(text)),
        texts.clone().prop_map(|texts| json!(texts)),
        prop::collection::vec(text(), 0..3).prop_map(|list| json!(list)),
        texts.clone().prop_map(|texts| json!({"in": texts})),
    ];
    let port =
        (1..4_u8, prop::option::of(prop::sample::select(vec!["TCP", "UDP"])), prop::option::of(text()))
            .prop_map(|(port, protocol, name)| {
                let mut item = json!({"port": port});
                if let Some(protocol) = protocol {
                    item["protocol"] = protocol.into();
                }
                if let Some(name) = name {
                    item["name"] = name.into();
                }
                item
            });
    let ports = prop::collection::vec(port, 1..4).prop_map(|ports| {
        let mut seen = Vec::new();
        let mut kept = Vec::new();
        for port in ports {
            let key = (port["port"].clone(), port.get("protocol").cloned().unwrap_or(json!("TCP")));
            if !seen.contains(&key) {
                seen.push(key);
                kept.push(port);
            }
        }
        json!(kept)
    });
    let fields = (
        prop::option::of((0..3_u8).prop_map(|n| json!(n))),
        prop::option::of(text().prop_map(|text| json!(text))),
        prop::option::of(prop::collection::vec(text(), 0..3).prop_map(|list| json!(list))),
        prop::option::of(prop::collection::btree_set(text(), 1..3).prop_map(|set| json!(set))),
        prop::option::of(ports),
        prop::option::of(texts.clone().prop_map(|texts| json!(texts))),
        prop::option::of(texts.prop_map(|texts| json!(texts))),
        prop::option::of(free),
    );
    fields.prop_map(|(replicas, image, args, tags, ports, selector, options, free)| {
        let values = [replicas, image, args, tags, ports, selector, options, free];
        let fields: Map<String, Value> = NAMES
            .into_iter()
            .zip(values)
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
        Value::Object(fields)
    })
}

fn set() -> impl Strategy<Value = FieldSet> {
    spec().prop_map(|spec| field_set(Kind::usual().schema.apply(), &object(spec)))
}

proptest! {
    #[test]
    fn sets_are_an_algebra(a in set(), b in set(), c in set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
        prop_assert_eq!(a.union(&a), a.clone());
        prop_assert_eq!(a.difference(&b).intersection(&b), FieldSet::default());
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert_eq!(a.difference(&a), FieldSet::default());
        prop_assert_eq!(a.recursive_difference(&b).intersection(&b), FieldSet::default());
        for path in a.members() {
            prop_assert!(a.contains(&path));
            prop_assert_eq!(a.difference(&b).contains(&path), !b.contains(&path));
        }
        let paths = a.members();
        let from_paths = paths.iter().map(|path| FieldSet::of_path(path));
        prop_assert_eq!(from_paths.fold(FieldSet::default(), |all, one| all.union(&one)), a);
    }

    #[test]
    fn a_set_is_read_as_it_was_written(set in set()) {
        let text = set.to_fields_v1();
        let read = FieldSet::from_fields_v1(&serde_json::from_str(&text).unwrap()).unwrap();
        prop_assert_eq!(&read, &set);
        prop_assert_eq!(read.to_fields_v1(), text);
    }

    #[test]
    fn a_comparison_is_empty_for_the_same_and_turns_round(a in spec(), b in spec()) {
        let kind = Kind::usual();
        let schema = kind.schema.apply();
        let (a, b) = (object(a), object(b));
        prop_assert!(compare(schema, &a, &a).is_same());
        let (there, back) = (compare(schema, &a, &b), compare(schema, &b, &a));
        prop_assert_eq!(&there.added, &back.removed);
        prop_assert_eq!(&there.removed, &back.added);
        prop_assert_eq!(there.modified, back.modified);
    }

    #[test]
    fn what_is_merged_names_all_that_was_applied_and_nothing_else_than_both(a in spec(), b in spec()) {
        let kind = Kind::usual();
        let schema = kind.schema.apply();
        let (a, b) = (object(a), object(b));
        prop_assert_eq!(faults(schema, &b), Vec::<String>::new());
        let merged = merge(schema, &a, &b);
        prop_assert_eq!(&merge(schema, &merged, &b), &merged, "once is enough");
        prop_assert_eq!(&merge(schema, &a, &json!({})), &a);
        let (of_a, of_b, of_both) = (field_set(schema, &a), field_set(schema, &b), field_set(schema, &merged));
        // A field may change its shape: then what was in the old one is in the result no longer.
        if a["spec"].get("free").is_none() || b["spec"].get("free").is_none() {
            // Empty objects and lists are leaves only while nothing is in them.
            let lost = of_a.union(&of_b).difference(&of_both);
            prop_assert!(
                lost.members().iter().all(|path| !compare(schema, &merged, &a).modified.contains(path)),
                "{:?}", lost
            );
            prop_assert_eq!(of_both.difference(&of_a.union(&of_b)), FieldSet::default());
        }
    }

    #[test]
    fn without_its_own_fields_nothing_is_left_of_an_object(a in spec()) {
        let kind = Kind::usual();
        let schema = kind.schema.apply();
        let a = object(a);
        let all = field_set(schema, &a).with_named_fields(Some(schema));
        prop_assert_eq!(remove(schema, &a, &all), Value::Null);
        prop_assert_eq!(remove(schema, &a, &FieldSet::default()), a);
    }

    #[test]
    fn an_apply_is_done_after_one_time(live in spec(), config in spec()) {
        let mut story = Story::new();
        story.update("before", live);
        story.force("me", config.clone());
        let (object, managed) = (story.object.clone(), story.managed.clone());
        story.apply("me", config);
        prop_assert_eq!(story.object, object);
        prop_assert_eq!(story.managed, managed);
    }

    #[test]
    fn managers_of_different_fields_never_conflict(
        mine in spec(), theirs in spec(), mine_again in spec(), share in prop::sample::subsequence(NAMES.to_vec(), 0..8),
    ) {
        let only = |spec: Value, is_mine: bool| -> Value {
            let fields = spec.as_object().unwrap().clone();
            Value::Object(fields.into_iter().filter(|(name, _)| share.contains(&name.as_str()) == is_mine).collect())
        };
        let (mine, theirs, mine_again) = (only(mine, true), only(theirs, false), only(mine_again, true));
        let mut story = Story::new();
        story.apply("a", mine);
        story.apply("b", theirs.clone());
        story.apply("a", mine_again);
        // And what the other owns is as it left it.
        for (name, value) in theirs.as_object().unwrap() {
            prop_assert_eq!(&story.spec()[name], value);
        }
    }

    #[test]
    fn who_applies_nothing_any_more_leaves_to_others_what_is_theirs(mine in spec(), theirs in spec()) {
        // An object that is empty again is null, as in Kubernetes.
        prop_assume!(theirs.as_object().is_some_and(|fields| !fields.is_empty()));
        // A field that becomes another shape takes with it what was in it, as in Kubernetes.
        prop_assume!(mine.get("free").is_none() || theirs.get("free").is_none());
        let mut story = Story::new();
        story.apply("b", theirs.clone());
        let before = story.object.clone();
        if story.try_apply("a", mine.clone(), false).is_ok() {
            story.apply("a", mine);
            story.apply("a", json!({}));
            let schema = story.kind.schema.apply();
            let kept = merge(schema, &story.object, &before);
            prop_assert!(compare(schema, &kept, &story.object).is_same(), "{} {}", before, story.object);
        }
    }

    #[test]
    fn every_field_of_a_created_object_is_its_creators(spec in spec()) {
        let kind = Kind::usual();
        let created = object(spec);
        let managed = kind.update(&ManagedFields::NONE, None, &created, "me");
        let own = field_set(kind.schema.apply(), &created);
        let tracked = managed.entries().first().map(|entry| entry.fields.clone()).unwrap_or_default();
        let missed = own.difference(&tracked);
        prop_assert!(missed.members().iter().all(|path| path[0].to_string() != ".spec"), "{:?}", missed);
        prop_assert!(managed.entries().iter().all(|entry| entry.api_version.as_ref() == VERSION));
    }
}
