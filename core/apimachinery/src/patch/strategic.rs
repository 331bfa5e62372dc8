//! Strategic merge patches: lists of objects are merged item by item, with directives inside the patch.
//!
//! | directive | effect |
//! | --- | --- |
//! | `$patch: replace` | in an object: the rest of the patch replaces it; in a list: the other items of the patch replace the list |
//! | `$patch: delete` | in an object: empties it; in an item of a list: removes the item with this merge key |
//! | `$patch: merge` | in an object: what happens without a directive |
//! | `$retainKeys: […]` | fields of the object that are not named go away |
//! | `$deleteFromPrimitiveList/f: […]` | removes these values from the list `f` |
//! | `$setElementOrder/f: […]` | the order of the list `f` afterwards |
//!
//! Semantics are those of `k8s.io/apimachinery/pkg/util/strategicpatch`.

use serde_json::{Map, Value};

use super::merge_schema::{MergeField, MergeSchema};
use super::order::{Identity, arrange};
use crate::{Error, FieldPath};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch to an object of the given type (as `schema` names it). The patch must be an object.
///
/// ```
/// use gantry_apimachinery::{MergeField, MergeSchema, strategic_merge_patch};
/// use serde_json::json;
///
/// struct Pods;
/// impl MergeSchema for Pods {
///     fn field(&self, _type_name: &str, field: &str) -> Option<MergeField<'_>> {
///         (field == "containers")
///             .then_some(MergeField { type_name: Some("Container"), merge: true, merge_key: Some("name") })
///     }
/// }
/// let pod = json!({"containers": [{"name": "a", "image": "v1"}, {"name": "b"}]});
/// let patch = json!({"containers": [{"name": "a", "image": "v2"}]});
/// let patched = strategic_merge_patch(&Pods, "PodSpec", &pod, &patch)?;
/// assert_eq!(patched, json!({"containers": [{"name": "a", "image": "v2"}, {"name": "b"}]}));
/// # Ok::<(), gantry_apimachinery::Error>(())
/// ```
pub fn strategic_merge_patch(
    schema: &dyn MergeSchema,
    type_name: &str,
    object: &Value,
    patch: &Value,
) -> Result<Value, Error> {
    let root = FieldPath::root();
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(malformed(&root, "a strategic merge patch is a JSON object"));
    };
    let merged = Merger { schema }.objects(object.clone(), patch.clone(), Some(type_name), &root)?;
    Ok(Value::Object(merged))
}

fn malformed(path: &FieldPath, reason: impl Into<String>) -> Error {
    Error::MalformedPatch { path: path.as_str().to_owned(), reason: reason.into() }
}

struct Merger<'s> {
    schema: &'s dyn MergeSchema,
}

impl<'s> Merger<'s> {
    fn field(&self, type_name: Option<&str>, field: &str) -> MergeField<'s> {
        type_name.and_then(|type_name| self.schema.field(type_name, field)).unwrap_or_default()
    }

    fn objects(
        &self,
        mut object: Map<String, Value>,
        mut patch: Map<String, Value>,
        type_name: Option<&str>,
        path: &FieldPath,
    ) -> Result<Map<String, Value>, Error> {
        match patch.remove(PATCH) {
            None => {}
            Some(Value::String(directive)) if directive == "merge" => {}
            Some(Value::String(directive)) if directive == "replace" => return Ok(patch),
            Some(Value::String(directive)) if directive == "delete" => return Ok(Map::new()),
            Some(other) => return Err(unknown_directive(path, &other)),
        }
        if let Some(retained) = patch.remove(RETAIN_KEYS) {
            retain_keys(&mut object, &patch, &retained, path)?;
        }
        self.ordered_lists(&mut object, &mut patch, type_name, path)?;
        for (key, value) in patch {
            if let Some(list) = key.strip_prefix(DELETE_FROM) {
                delete_from_list(&mut object, list, &value, path)?;
                continue;
            }
            let path = path.child(&key);
            let merged = match (object.remove(&key), value) {
                (_, Value::Null) => None,
                (Some(Value::Object(old)), Value::Object(new)) => Some(Value::Object(self.objects(
                    old,
                    new,
                    self.field(type_name, &key).type_name,
                    &path,
                )?)),
                (Some(Value::Array(old)), Value::Array(new)) => {
                    Some(Value::Array(self.lists(&old, new, self.field(type_name, &key), &path)?))
                }
                (_, new) => plain(new),
            };
            if let Some(merged) = merged {
                object.insert(key, merged);
            }
        }
        Ok(object)
    }

    /// Handles each `$setElementOrder/f` with its list `f`, and takes both out of the patch.
    fn ordered_lists(
        &self,
        object: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
        type_name: Option<&str>,
        path: &FieldPath,
    ) -> Result<(), Error> {
        let directives: Vec<String> =
            patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
        for directive in directives {
            let list = directive[SET_ORDER.len()..].to_owned();
            let order_path = path.child(&directive);
            let Some(Value::Array(order)) = patch.remove(&directive) else {
                return Err(malformed(&order_path, "the order of a list is a list"));
            };
            let field = self.field(type_name, &list);
            let identity = Identity(field.merge_key);
            // Deletions from the list come first, so that they cannot disturb the order that is asked for.
            if let Some(deleted) = patch.remove(&format!("{DELETE_FROM}{list}")) {
                delete_from_list(object, &list, &deleted, path)?;
            }
            let is_list = |value: Option<&Value>| matches!(value, Some(Value::Array(_)));
            if !is_list(object.get(&list)) && !is_list(patch.get(&list)) {
                continue;
            }
            let old = match object.remove(&list) {
                Some(Value::Array(old)) => old,
                _ => Vec::new(),
            };
            let new = match patch.get(&list) {
                Some(Value::Array(_)) => patch.remove(&list),
                None => None,
                // The patch removes the list, or makes something else of it: the order has nothing to say.
                Some(_) => continue,
            };
            let Some(Value::Array(new)) = new else {
                object.insert(list, Value::Array(arrange(old.clone(), &order, &old, identity)));
                continue;
            };
            let unlisted = new
                .iter()
                .find(|item| item.get(PATCH).is_none() && identity.position(&order, item).is_none());
            if let Some(item) = unlisted {
                return Err(malformed(
                    &order_path,
                    format!("the item {item} of the patch is missing in the order"),
                ));
            }
            let merged = self.lists(&old, new, field, &path.child(&list))?;
            object.insert(list, Value::Array(arrange(merged, &order, &old, identity)));
        }
        Ok(())
    }

    fn lists(
        &self,
        old: &[Value],
        new: Vec<Value>,
        field: MergeField<'_>,
        path: &FieldPath,
    ) -> Result<Vec<Value>, Error> {
        if !field.merge {
            return Ok(new.into_iter().filter_map(plain).collect());
        }
        let are_objects = old.iter().chain(&new).filter(|item| item.is_object()).count();
        match field.merge_key {
            _ if are_objects == 0 => Ok(merge_scalars(old, &new)),
            _ if are_objects != old.len() + new.len() => {
                Err(malformed(path, "the items of a merged list are all objects or all plain values"))
            }
            Some(merge_key) => self.keyed_lists(old, new, field.type_name, merge_key, path),
            None => Err(malformed(path, "cannot merge lists of objects without a merge key")),
        }
    }

    fn keyed_lists(
        &self,
        old: &[Value],
        new: Vec<Value>,
        type_name: Option<&str>,
        merge_key: &str,
        path: &FieldPath,
    ) -> Result<Vec<Value>, Error> {
        let identity = Identity(Some(merge_key));
        let (mut merged, mut wanted, mut replaces) = (old.to_vec(), Vec::new(), false);
        for (index, mut item) in new.into_iter().enumerate() {
            let path = path.index(index);
            let directive = item.as_object_mut().and_then(|item| item.remove(PATCH));
            let has_key = item.get(merge_key).is_some_and(|key| !key.is_null());
            let needs_key = directive.as_ref().is_none_or(|directive| directive == "delete");
            if needs_key && !has_key {
                return Err(malformed(
                    &path,
                    format!("the item does not contain the merge key {merge_key:?}"),
                ));
            }
            match directive {
                None => wanted.push(item),
                Some(Value::String(directive)) if directive == "delete" => {
                    merged.retain(|candidate| candidate.get(merge_key) != item.get(merge_key));
                }
                Some(Value::String(directive)) if directive == "replace" => replaces = true,
                Some(other) => return Err(unknown_directive(&path, &other)),
            }
        }
        if replaces {
            return Ok(wanted.into_iter().filter_map(plain).collect());
        }
        for (index, item) in wanted.iter().enumerate() {
            match (identity.position(&merged, item), item) {
                (Some(place), Value::Object(item)) => {
                    let Value::Object(current) = merged[place].take() else { continue };
                    let changed = self.objects(current, item.clone(), type_name, &path.index(index))?;
                    merged[place] = Value::Object(changed);
                }
                _ => merged.extend(plain(item.clone())),
            }
        }
        Ok(arrange(merged, &wanted, old, identity))
    }
}

/// The union of two lists of plain values.
fn merge_scalars(old: &[Value], new: &[Value]) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::with_capacity(old.len() + new.len());
    for item in old.iter().chain(new) {
        if !merged.contains(item) {
            merged.push(item.clone());
        }
    }
    arrange(merged, new, old, Identity(None))
}

fn delete_from_list(
    object: &mut Map<String, Value>,
    list: &str,
    deleted: &Value,
    path: &FieldPath,
) -> Result<(), Error> {
    let Value::Array(deleted) = deleted else {
        return Err(malformed(
            &path.child(&format!("{DELETE_FROM}{list}")),
            "the values to delete are a list",
        ));
    };
    if let Some(Value::Array(items)) = object.get_mut(list) {
        items.retain(|item| !deleted.contains(item));
    }
    Ok(())
}

fn retain_keys(
    object: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    retained: &Value,
    path: &FieldPath,
) -> Result<(), Error> {
    let names = retained.as_array().map(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let Some(Some(names)) = names else {
        return Err(malformed(&path.child(RETAIN_KEYS), "the fields to retain are a list of names"));
    };
    let is_set = |(key, value): &(&String, &Value)| !value.is_null() && !key.starts_with('$');
    if let Some((key, _)) = patch.iter().filter(is_set).find(|(key, _)| !names.contains(&key.as_str())) {
        let rule = format!("the patch sets the field {key:?}, which is not among those to retain");
        return Err(malformed(&path.child(RETAIN_KEYS), rule));
    }
    object.retain(|key, _| names.contains(&key.as_str()));
    Ok(())
}

/// What a part of the patch leaves where the object has nothing to merge it into: no directives and no nulls.
fn plain(value: Value) -> Option<Value> {
    match value {
        Value::Object(mut map) => {
            if map.remove(PATCH).is_some_and(|directive| directive == "delete") {
                return None;
            }
            let fields = map.into_iter().filter(|(key, value)| {
                let is_directive =
                    key == RETAIN_KEYS || key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER);
                !is_directive && !value.is_null()
            });
            Some(Value::Object(fields.filter_map(|(key, value)| Some((key, plain(value)?))).collect()))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(plain).collect())),
        other => Some(other),
    }
}

fn unknown_directive(path: &FieldPath, directive: &Value) -> Error {
    malformed(
        &path.child(PATCH),
        format!("unknown patch type {directive}: use \"replace\", \"delete\" or \"merge\""),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    struct Schema;

    impl MergeSchema for Schema {
        fn field(&self, type_name: &str, field: &str) -> Option<MergeField<'_>> {
            let keyed = |type_name, merge_key| MergeField {
                type_name: Some(type_name),
                merge: true,
                merge_key: Some(merge_key),
            };
            match (type_name, field) {
                ("Pod", "spec") => Some(MergeField { type_name: Some("PodSpec"), ..MergeField::default() }),
                ("PodSpec", "containers") => Some(keyed("Container", "name")),
                ("Container", "env") => Some(keyed("EnvVar", "name")),
                ("Pod", "finalizers") => Some(MergeField { merge: true, ..MergeField::default() }),
                ("Pod", "unkeyed") => Some(MergeField { type_name: Some("X"), merge: true, merge_key: None }),
                _ => None,
            }
        }
    }

    fn patched(object: &Value, patch: &Value) -> Result<Value, Error> {
        strategic_merge_patch(&Schema, "Pod", object, patch)
    }

    #[test]
    fn fields_and_lists_merge_as_the_schema_says() {
        let cases = [
            (
                "objects merge, null removes, unknown lists are replaced",
                json!({"a": {"b": 1, "c": 2}, "list": [1, 2]}),
                json!({"a": {"b": null, "d": 3}, "list": [3], "gone": null}),
                json!({"a": {"c": 2, "d": 3}, "list": [3]}),
            ),
            (
                "containers merge by name, their environment too; what is new goes first, as in Kubernetes",
                json!({"spec": {"containers": [{"name": "a", "image": "x", "env": [{"name": "K", "value": "1"}]}, {"name": "b"}]}}),
                json!({"spec": {"containers": [{"name": "a", "env": [{"name": "L", "value": "2"}]}]}}),
                json!({"spec": {"containers": [
                    {"name": "a", "image": "x", "env": [{"name": "L", "value": "2"}, {"name": "K", "value": "1"}]}, {"name": "b"},
                ]}}),
            ),
            (
                "an item is deleted by its key",
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
                json!({"spec": {"containers": [{"$patch": "delete", "name": "a"}]}}),
                json!({"spec": {"containers": [{"name": "b"}]}}),
            ),
            (
                "a list is replaced",
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
                json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}),
                json!({"spec": {"containers": [{"name": "c"}]}}),
            ),
            (
                "an object is replaced",
                json!({"spec": {"nodeName": "n", "containers": []}}),
                json!({"spec": {"$patch": "replace", "hostNetwork": true}}),
                json!({"spec": {"hostNetwork": true}}),
            ),
            (
                "an object is emptied",
                json!({"spec": {"nodeName": "n"}}),
                json!({"spec": {"$patch": "delete"}}),
                json!({"spec": {}}),
            ),
            (
                "merging can be spelt out",
                json!({"spec": {"nodeName": "n"}}),
                json!({"spec": {"$patch": "merge", "hostNetwork": true}}),
                json!({"spec": {"nodeName": "n", "hostNetwork": true}}),
            ),
            (
                "plain values merge as a set",
                json!({"finalizers": ["a", "b"]}),
                json!({"finalizers": ["b", "c"]}),
                json!({"finalizers": ["a", "b", "c"]}),
            ),
            (
                "plain values are deleted",
                json!({"finalizers": ["a", "b", "c"]}),
                json!({"$deleteFromPrimitiveList/finalizers": ["b"], "$setElementOrder/finalizers": ["c", "a"]}),
                json!({"finalizers": ["c", "a"]}),
            ),
            (
                "the order that is asked for holds, others stay near their place",
                json!({"spec": {"containers": [{"name": "a"}, {"name": "server"}, {"name": "b"}]}}),
                json!({"spec": {
                    "$setElementOrder/containers": [{"name": "b"}, {"name": "new"}, {"name": "a"}],
                    "containers": [{"name": "new", "image": "x"}],
                }}),
                json!({"spec": {"containers": [{"name": "server"}, {"name": "b"}, {"name": "new", "image": "x"}, {"name": "a"}]}}),
            ),
            (
                "only the order changes",
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
                json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
                json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
            ),
            (
                "fields that are not retained go",
                json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}),
                json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
                json!({"strategy": {"type": "Recreate"}}),
            ),
            (
                "directives and nulls do not reach a new object",
                json!({}),
                json!({"spec": {
                    "$setElementOrder/containers": [{"name": "a"}], "x": null, "$retainKeys": ["containers"],
                    "containers": [{"name": "a", "y": null}, {"name": "b", "$patch": "delete"}],
                }}),
                json!({"spec": {"containers": [{"name": "a"}]}}),
            ),
            ("a type may change", json!({"a": [1]}), json!({"a": {"b": 1}}), json!({"a": {"b": 1}})),
        ];
        for (name, object, patch, expected) in cases {
            assert_eq!(patched(&object, &patch), Ok(expected), "{name}");
        }
    }

    #[test]
    fn a_patch_without_meaning_is_refused_with_its_place() {
        let object = json!({
            "spec": {"containers": [{"name": "a"}]}, "finalizers": ["a"], "unkeyed": [{"a": 1}], "strategy": {},
        });
        let cases = [
            (json!({"spec": {"$patch": "burn"}}), "spec.$patch", "unknown patch type \"burn\""),
            (
                json!({"spec": {"containers": [{"image": "x"}]}}),
                "spec.containers[0]",
                "does not contain the merge key \"name\"",
            ),
            (
                json!({"spec": {"containers": [{"$patch": "delete"}]}}),
                "spec.containers[0]",
                "merge key \"name\"",
            ),
            (json!({"spec": {"containers": ["x"]}}), "spec.containers", "all objects or all plain values"),
            (
                json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
                "spec.containers[0].$patch",
                "unknown",
            ),
            (json!({"unkeyed": [{"a": 1}]}), "unkeyed", "without a merge key"),
            (
                json!({"$deleteFromPrimitiveList/finalizers": 1}),
                "$deleteFromPrimitiveList/finalizers",
                "are a list",
            ),
            (json!({"$setElementOrder/finalizers": 1}), "$setElementOrder/finalizers", "is a list"),
            (
                json!({"$setElementOrder/finalizers": ["a"], "finalizers": ["b"]}),
                "$setElementOrder/finalizers",
                "\"b\" of the patch is missing in the order",
            ),
            (json!({"strategy": {"$retainKeys": "x"}}), "strategy.$retainKeys", "list of names"),
            (
                json!({"strategy": {"$retainKeys": [], "type": "x"}}),
                "strategy.$retainKeys",
                "sets the field \"type\"",
            ),
            (json!([]), "", "a strategic merge patch is a JSON object"),
        ];
        for (patch, at, rule) in cases {
            match patched(&object, &patch) {
                Err(Error::MalformedPatch { path, reason }) => {
                    assert_eq!(path, at, "{patch}");
                    assert!(reason.contains(rule), "{patch}: {reason}");
                }
                other => panic!("{patch}: {other:?}"),
            }
        }
    }

    fn any_object() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            "[a-c]".prop_map(Value::from)
        ];
        let key = prop_oneof![
            "[a-c]",
            Just("name".to_owned()),
            Just("spec".to_owned()),
            Just("containers".to_owned()),
            Just("finalizers".to_owned()),
            Just(PATCH.to_owned()),
            Just(RETAIN_KEYS.to_owned()),
            Just(format!("{SET_ORDER}containers")),
            Just(format!("{DELETE_FROM}finalizers")),
        ];
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key.clone(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_patch_makes_the_merge_panic(object in any_object(), patch in any_object()) {
            let _ = patched(&object, &patch);
        }

        #[test]
        fn an_empty_patch_changes_nothing(object in any_object()) {
            if object.is_object() {
                prop_assert_eq!(patched(&object, &json!({})), Ok(object));
            }
        }
    }
}
