//! The annotations that carry what a container was granted.
//!
//! They are those of the container, not of its pod: the kubelet makes them from the device plugin's answer to `Allocate`, and whoever
//! writes a pod cannot. A runtime brings them into `config.json` where its configuration says so (`container_annotations` of containerd).

use std::collections::BTreeSet;

use crate::Error;

/// What the keys begin with under which the answer to `Allocate` says what it grants: `gantry.dev/devices.nvidia.com_gpu`. Its value
/// is ids separated by commas, in the kubelet's order.
pub const DEVICES_ANNOTATION: &str = "gantry.dev/devices.";

/// The key under which the answer to `Allocate` says which devices of a resource it grants. Each resource has its own: of two answers
/// with the same key the kubelet keeps one.
pub fn devices_annotation(resource: &str) -> String {
    format!("{DEVICES_ANNOTATION}{}", resource.replace('/', "_"))
}

/// The annotation that tells which GPUs a container was given, ids separated by commas in the order of its devices: somebody has asked the agent already, and has brought them.
pub const GPUS_ANNOTATION: &str = "gantry.dev/gpus";

/// The most devices that one container can be granted: more than any node offers.
pub const MAX_DEVICES: usize = 1024;

/// What the ids of slots begin with.
const SLOT: &str = "slot-";

/// Whether an id is that of a slot: which GPU it stands for is the agent's decision. Other ids are of GPUs, and the runtime has been told of
/// them by the kubelet.
pub fn is_slot(id: &str) -> bool {
    id.strip_prefix(SLOT)
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The devices that a container's annotations grant, in the order of the keys.
///
/// # Errors
/// Where a value is not what the device plugin writes, or a device is granted twice.
pub fn granted_devices<'a>(
    annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<String>, Error> {
    let mut devices = Vec::new();
    let mut seen = BTreeSet::new();
    for (key, value) in annotations {
        if key.strip_prefix(DEVICES_ANNOTATION).is_none_or(str::is_empty) || value.is_empty() {
            continue;
        }
        let key = || key.chars().take(120).collect();
        for id in value.split(',') {
            if !is_id(id) {
                return Err(Error::Device { key: key(), id: id.chars().take(80).collect() });
            }
            if devices.len() == MAX_DEVICES {
                return Err(Error::TooMany { key: key() });
            }
            if !seen.insert(id) {
                return Err(Error::Twice { key: key(), id: id.to_owned() });
            }
            devices.push(id.to_owned());
        }
    }
    Ok(devices)
}

/// The rule for ids: those of Kubernetes have 63 bytes at most.
pub(crate) const RULE: &str = "an id has 1 to 63 letters, digits, '-', '_', '.' and ':'";

pub(crate) fn is_id(text: &str) -> bool {
    matches!(text.len(), 1..=63)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GPU: &str = "gantry.dev/devices.nvidia.com_gpu";

    #[test]
    fn each_resource_has_a_key_that_kubernetes_takes() {
        assert_eq!(devices_annotation("nvidia.com/gpu"), GPU);
        assert_eq!(devices_annotation("nvidia.com/gpu.shared"), "gantry.dev/devices.nvidia.com_gpu.shared");
    }

    #[test]
    fn devices_of_several_resources_come_together() {
        let annotations = [
            ("gantry.dev/assignment", "{}"),
            ("gantry.dev/devices.", "slot-9"),
            (GPU, "slot-3,slot-0"),
            ("gantry.dev/devices.nvidia.com_mig-1g.5gb", "MIG-1"),
            ("gantry.dev/devices.nvidia.com_none", ""),
        ];
        assert_eq!(granted_devices(annotations).unwrap(), ["slot-3", "slot-0", "MIG-1"]);
        for (id, slot) in
            [("slot-0", true), ("slot-12", true), ("slot-", false), ("slot-x", false), ("GPU-1", false)]
        {
            assert_eq!(is_slot(id), slot, "{id}");
        }
    }

    #[test]
    fn refusals() {
        let long = "s".repeat(64);
        let many = (0..=MAX_DEVICES).map(|number| format!("slot-{number}")).collect::<Vec<_>>().join(",");
        for (value, text) in [
            ("slot-0,", format!("annotation {GPU}: \"\" is no device: {RULE}")),
            ("a b", format!("annotation {GPU}: \"a b\" is no device: {RULE}")),
            ("../x", format!("annotation {GPU}: \"../x\" is no device: {RULE}")),
            ("a\nb", format!("annotation {GPU}: \"a\\nb\" is no device: {RULE}")),
            (&long, format!("annotation {GPU}: \"{long}\" is no device: {RULE}")),
            (
                "slot-0,slot-0",
                format!("annotation {GPU}: slot-0 stands there twice: a device is granted once"),
            ),
            (&many, format!("annotation {GPU}: more than 1024 devices")),
        ] {
            assert_eq!(granted_devices([(GPU, value)]).unwrap_err().to_string(), text);
        }
        let twice = granted_devices([(GPU, "a"), ("gantry.dev/devices.x", "a")]).unwrap_err();
        assert_eq!(
            twice.to_string(),
            "annotation gantry.dev/devices.x: a stands there twice: a device is granted once"
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(ids in proptest::collection::btree_set("[a-z0-9:._-]{1,63}", 0..20)) {
            let ids: Vec<String> = ids.into_iter().collect();
            prop_assert_eq!(granted_devices([(GPU, ids.join(",").as_str())]).unwrap(), ids);
        }
    }
}
