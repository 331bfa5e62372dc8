//! The annotation that carries an assignment from the scheduler to the node agent.
//!
//! Format, version 1, compact JSON: `{"v":1,"node":"gpu-0","containers":{"main":["GPU-…","GPU-…"]}}`.
//! The order of a container's list is the order in which the container sees its GPUs.

use std::collections::BTreeMap;

use gantry_model::{Assignment, GpuId};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The annotation on a pod, set with its binding.
pub const ASSIGNMENT_ANNOTATION: &str = "gantry.dev/assignment";

const CURRENT: u64 = 1;

/// Enough for 128 containers with 8 GPUs each; the whole metadata of an object may have 256 KiB.
const MAX_BYTES: usize = 64 << 10;

#[derive(Deserialize)]
struct Version {
    v: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire<'a> {
    v: u64,
    #[serde(borrow)]
    node: std::borrow::Cow<'a, str>,
    containers: BTreeMap<String, Vec<String>>,
}

/// The annotation's value.
pub fn encode_assignment(assignment: &Assignment) -> String {
    let ids = |gpus: &Vec<GpuId>| gpus.iter().map(GpuId::to_string).collect();
    let wire = Wire {
        v: CURRENT,
        node: (&*assignment.node).into(),
        containers: assignment.containers.iter().map(|(name, gpus)| (name.to_string(), ids(gpus))).collect(),
    };
    serde_json::to_string(&wire).expect("invariant: strings, lists and maps with string keys serialise")
}

/// The assignment that the annotation's value states.
///
/// # Errors
/// Where the value is not what [`encode_assignment`] of this version writes; the error names what is wrong.
pub fn decode_assignment(text: &str) -> Result<Assignment, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::AssignmentSize { bytes: text.len() });
    }
    // The version first: what a later version adds is not a syntax error of this one.
    let Version { v } = serde_json::from_str(text).map_err(|detail| Error::AssignmentSyntax { detail })?;
    if v != CURRENT {
        return Err(Error::AssignmentVersion { version: v });
    }
    let wire: Wire<'_> = serde_json::from_str(text).map_err(|detail| Error::AssignmentSyntax { detail })?;
    let mut containers = BTreeMap::new();
    for (container, ids) in wire.containers {
        let mut gpus: Vec<GpuId> = Vec::with_capacity(ids.len());
        for (position, id) in ids.iter().enumerate() {
            let gpu: GpuId = id.parse().map_err(|detail| Error::GpuId {
                field: format!("annotation {ASSIGNMENT_ANNOTATION}: containers.{container}[{position}]"),
                detail,
            })?;
            if gpus.contains(&gpu) {
                return Err(Error::AssignmentTwice { container, gpu: gpu.to_string() });
            }
            gpus.push(gpu);
        }
        containers.insert(container.into(), gpus);
    }
    Ok(Assignment { node: (&*wire.node).into(), containers })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_format_is_compact_json() {
        let text = r#"{"v":1,"node":"gpu-0","containers":{"main":["GPU-b","GPU-a"]}}"#;
        let assignment = decode_assignment(text).unwrap();
        assert_eq!(
            assignment.containers["main"].iter().map(GpuId::as_str).collect::<Vec<_>>(),
            ["GPU-b", "GPU-a"]
        );
        assert_eq!(encode_assignment(&assignment), text);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            (
                "",
                "annotation gantry.dev/assignment: not an assignment: EOF while parsing a value at line 1 column 0",
            ),
            (
                r#"{"v":2,"gpus":[]}"#,
                "annotation gantry.dev/assignment: version 2 is not known: this program reads version 1",
            ),
            (
                r#"{"v":1,"node":"n","containers":{"a":["GPU 1"]}}"#,
                "annotation gantry.dev/assignment: containers.a[0]: \"GPU 1\" is no GPU id: use 1 to 63 letters, \
                 digits or '-', as in GPU-6f1c3a52-0d8e-4b7f-9a35-2c1e5d7b9f04",
            ),
            (
                r#"{"v":1,"node":"n","containers":{"a":["GPU-1","GPU-1"]}}"#,
                "annotation gantry.dev/assignment: container a has GPU-1 twice",
            ),
            (
                r#"{"v":1,"node":"n","containers":{},"more":1}"#,
                "annotation gantry.dev/assignment: not an assignment: unknown field `more`, expected one of `v`, \
                 `node`, `containers` at line 1 column 40",
            ),
        ] {
            assert_eq!(decode_assignment(text).unwrap_err().to_string(), expected, "{text}");
        }
        let long = " ".repeat(1 << 20);
        assert!(matches!(decode_assignment(&long), Err(Error::AssignmentSize { bytes: 1_048_576 })));
    }

    proptest! {
        #[test]
        fn every_assignment_survives_the_round_trip(
            node in "[a-z0-9.-]{1,40}",
            containers in prop::collection::btree_map(
                "[a-z0-9-]{1,20}", prop::collection::btree_set("GPU-[0-9a-f]{8}", 0..9), 0..5),
        ) {
            let assignment = Assignment {
                node: node.as_str().into(),
                containers: containers
                    .iter()
                    .map(|(name, ids)| (name.as_str().into(), ids.iter().map(|id| id.parse().unwrap()).collect()))
                    .collect(),
            };
            prop_assert_eq!(decode_assignment(&encode_assignment(&assignment)).unwrap(), assignment);
        }

        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = decode_assignment(&text);
        }
    }
}
