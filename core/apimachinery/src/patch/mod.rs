//! The patches of an API server. Each takes the object by reference and gives the patched one: a patch that fails changes nothing.
//!
//! | content type | function |
//! | --- | --- |
//! | `application/json-patch+json` (RFC 6902) | [`json_patch`] |
//! | `application/merge-patch+json` (RFC 7396) | [`merge_patch`] |
//! | `application/strategic-merge-patch+json` | [`strategic_merge_patch`] |

mod merge_schema;
mod order;
mod strategic;

use json_patch::PatchOperation;
use serde_json::Value;

pub use merge_schema::{MergeField, MergeSchema};
pub use strategic::strategic_merge_patch;

use crate::Error;

/// The API server's own limits: operations of one JSON patch, and bytes that its `copy` operations may add together.
const MAX_OPERATIONS: usize = 10_000;
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Applies a JSON patch: a list of `add`, `remove`, `replace`, `move`, `copy` and `test` operations, all or none.
///
/// [`Error::MalformedPatch`] when the patch itself has no meaning, [`Error::PatchFailed`] when it does not fit the object.
pub fn json_patch(object: &Value, patch: &Value) -> Result<Value, Error> {
    let malformed = |reason: String| Error::MalformedPatch { path: String::new(), reason };
    let operations: Vec<PatchOperation> = serde_json::from_value(patch.clone())
        .map_err(|error| malformed(format!("not a JSON patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        let count = operations.len();
        return Err(malformed(format!("{count} operations; the most that is allowed is {MAX_OPERATIONS}")));
    }
    let (mut patched, mut copied) = (object.clone(), 0);
    for (index, operation) in operations.iter().enumerate() {
        let failed =
            |reason: String| Error::PatchFailed { index, path: operation.path().to_string(), reason };
        if let PatchOperation::Copy(copy) = operation {
            copied += patched.pointer(copy.from.as_str()).map_or(0, |value| value.to_string().len());
            if copied > MAX_COPIED_BYTES {
                return Err(failed(format!("the copies of this patch exceed {MAX_COPIED_BYTES} bytes")));
            }
        }
        json_patch::patch(&mut patched, std::slice::from_ref(operation))
            .map_err(|error| failed(error.kind.to_string()))?;
    }
    Ok(patched)
}

/// Applies a merge patch: objects are merged, null removes a field, everything else replaces. The patch must be an object.
pub fn merge_patch(object: &Value, patch: &Value) -> Result<Value, Error> {
    if !patch.is_object() {
        return Err(Error::MalformedPatch {
            path: String::new(),
            reason: "a merge patch is a JSON object".to_owned(),
        });
    }
    let mut patched = object.clone();
    json_patch::merge(&mut patched, patch);
    Ok(patched)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_json_patch_applies_wholly_or_not_at_all() {
        let object = json!({"metadata": {"labels": {"a": "1"}}, "list": [1, 2]});
        let patch = json!([
            {"op": "test", "path": "/metadata/labels/a", "value": "1"},
            {"op": "add", "path": "/metadata/labels/x.y~1z", "value": "2"},
            {"op": "remove", "path": "/list/0"},
        ]);
        let expected = json!({"metadata": {"labels": {"a": "1", "x.y/z": "2"}}, "list": [2]});
        assert_eq!(json_patch(&object, &patch), Ok(expected));

        let patch = json!([{"op": "remove", "path": "/list"}, {"op": "test", "path": "/metadata/labels/a", "value": "9"}]);
        assert_eq!(
            json_patch(&object, &patch).unwrap_err().to_string(),
            "operation 1 of the patch failed at \"/metadata/labels/a\": value did not match"
        );
    }

    #[test]
    fn a_json_patch_that_has_no_meaning_is_told_from_one_that_does_not_fit() {
        let refuse = |patch: Value| json_patch(&json!({}), &patch).unwrap_err();
        assert!(matches!(refuse(json!({})), Error::MalformedPatch { .. }));
        assert!(matches!(refuse(json!([{"op": "burn", "path": "/a"}])), Error::MalformedPatch { .. }));
        assert!(matches!(
            refuse(json!([{"op": "remove", "path": "/a"}])),
            Error::PatchFailed { index: 0, .. }
        ));
        let many = vec![json!({"op": "add", "path": "/a", "value": 1}); MAX_OPERATIONS + 1];
        assert!(matches!(refuse(Value::Array(many)), Error::MalformedPatch { .. }));
    }

    #[test]
    fn copies_cannot_make_an_object_grow_without_bound() {
        let patch: Vec<Value> =
            (0..64).map(|n| json!({"op": "copy", "from": "", "path": format!("/{n}")})).collect();
        let error = json_patch(&json!({"a": "x".repeat(100)}), &Value::Array(patch)).unwrap_err();
        assert!(error.to_string().contains("exceed 3145728 bytes"), "{error}");
    }

    #[test]
    fn a_merge_patch_merges_objects_and_replaces_the_rest() {
        let object = json!({"a": {"b": 1, "c": 2}, "l": [1, 2], "z": 1});
        let patched =
            merge_patch(&object, &json!({"a": {"b": null, "d": {"e": null}}, "l": [3], "z": {"y": 1}}));
        assert_eq!(patched, Ok(json!({"a": {"c": 2, "d": {}}, "l": [3], "z": {"y": 1}})));
        assert!(merge_patch(&object, &json!([])).is_err());
    }
}
