//! Events: one kind of object, seen through two groups.

use gantry_apimachinery::{FieldError, FieldPath};
use serde_json::Value;

use super::Hooks;
use crate::json::{map_at, set_default, text};
use crate::registry::Conversion;

pub(crate) const EVENT: Hooks = Hooks {
    default: |event| set_default(event, &["type"], "Normal"),
    validate: |event, errors| {
        let namespace = text(&event["involvedObject"]["namespace"]);
        let own = text(&event["metadata"]["namespace"]);
        // Events of cluster-scoped objects are kept in any namespace that their reporter likes.
        if !namespace.is_empty() && own != namespace {
            let path = FieldPath::new("involvedObject.namespace");
            errors.push(FieldError::invalid(&path, namespace, "does not match event.namespace"));
        }
    },
    ..Hooks::NONE
};

/// Core name first, then the name in `events.k8s.io/v1`.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

pub(crate) const EVENTS_V1: Conversion = Conversion {
    to_storage: |event| rename(event, |(core, new)| (new, core)),
    from_storage: |event| rename(event, |(core, new)| (core, new)),
};

fn rename(event: &mut Value, direction: fn((&'static str, &'static str)) -> (&'static str, &'static str)) {
    let map = map_at(event, &[]);
    for pair in NAMES {
        let (from, to) = direction(pair);
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_has_the_same_content_in_both_groups() {
        let core = json!({"involvedObject": {"kind": "Pod"}, "message": "m", "count": 2, "reason": "r", "reportingComponent": "c"});
        let mut event = core.clone();
        (EVENTS_V1.from_storage)(&mut event);
        assert_eq!(
            event,
            json!({"regarding": {"kind": "Pod"}, "note": "m", "deprecatedCount": 2, "reason": "r", "reportingController": "c"})
        );
        (EVENTS_V1.to_storage)(&mut event);
        assert_eq!(event, core);
    }
}
