//! A container, as its configuration describes it: the parts that decide which GPUs it gets.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::Error;

/// Where NVIDIA's device plugin mounts `/dev/null` under the name of each device, with its strategy `volume-mounts`.
pub(crate) const MARKERS: &str = "/var/run/nvidia-container-devices";

/// What a marker is a mount of.
const MARKER_SOURCE: &str = "/dev/null";

/// What lets a process do what an unprivileged container must not.
const PRIVILEGE: &str = "CAP_SYS_ADMIN";

/// A container that is about to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The environment of its process, with the last value of each name.
    pub environment: BTreeMap<String, String>,
    /// The ids of the devices that Gantry's device plugin granted it, in the kubelet's order.
    pub granted: Vec<String>,
    /// Whether somebody has asked the node agent already, and has brought what it said.
    pub brought: bool,
    /// The annotations that the runtime wrote into the configuration.
    pub annotations: BTreeMap<String, String>,
    /// Whether `CAP_SYS_ADMIN` is in its bounding set: it can reach every device of the host anyway.
    pub privileged: bool,
    /// The paths of its marker mounts below the markers' folder.
    pub markers: Vec<String>,
}

/// Whose container it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The container's name.
    pub container: String,
}

/// The annotations of containerd, and those of CRI-O, which carry the kubelet's own names.
const NAMESPACE: [&str; 2] = ["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"];
const POD: [&str; 2] = ["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"];
const UID: [&str; 2] = ["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"];
const CONTAINER: [&str; 2] = ["io.kubernetes.cri.container-name", "io.kubernetes.container.name"];

impl Container {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Where a part that counts has another form than the OCI runtime specification gives it.
    pub fn parse(config: &Value) -> Result<Self, Error> {
        let object = config.as_object().ok_or_else(|| field("it", "an object"))?;
        let process = match object.get("process") {
            None | Some(Value::Null) => &Value::Null,
            Some(process) if process.is_object() => process,
            Some(_) => return Err(field("process", "an object")),
        };
        let variables = texts(process.get("env"), "process.env")?;
        let environment = variables
            .iter()
            .filter_map(|variable| variable.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let annotations: BTreeMap<String, String> = match object.get("annotations") {
            None | Some(Value::Null) => BTreeMap::new(),
            Some(Value::Object(map)) => map
                .iter()
                .map(|(key, value)| {
                    let text = value.as_str().ok_or_else(|| {
                        field(
                            &format!("annotations[{}]", key.chars().take(80).collect::<String>()),
                            "a string",
                        )
                    })?;
                    Ok((key.clone(), text.to_owned()))
                })
                .collect::<Result<_, Error>>()?,
            Some(_) => return Err(field("annotations", "an object")),
        };
        let texts_of = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let granted = gantry_shim::granted_devices(texts_of)?;
        let brought = annotations.get(gantry_shim::GPUS_ANNOTATION).is_some_and(|gpus| !gpus.is_empty());
        let capabilities = process.get("capabilities").and_then(|sets| sets.get("bounding"));
        let privileged = texts(capabilities, "process.capabilities.bounding")?.contains(&PRIVILEGE);
        let mounts = match object.get("mounts") {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(list)) => list,
            Some(_) => return Err(field("mounts", "a list")),
        };
        let markers = mounts.iter().filter_map(marker).map(str::to_owned).collect();
        Ok(Self { environment, granted, brought, annotations, privileged, markers })
    }

    /// Whose container it is, as the runtime says.
    ///
    /// # Errors
    /// What is missing.
    pub fn identity(&self) -> Result<Identity, &'static str> {
        let find = |keys: [&str; 2], missing| {
            let found =
                keys.iter().find_map(|key| self.annotations.get(*key)).filter(|text| !text.is_empty());
            found.cloned().ok_or(missing)
        };
        Ok(Identity {
            namespace: find(NAMESPACE, "no pod namespace")?,
            pod: find(POD, "no pod name")?,
            uid: find(UID, "no pod UID")?,
            container: find(CONTAINER, "no container name")?,
        })
    }

    /// Whether the node agent has to say which GPUs the container gets.
    pub fn has_slots(&self) -> bool {
        !self.brought && self.granted.iter().any(|id| gantry_shim::is_slot(id))
    }

    /// Whether the kubelet granted every one of these devices. One that is shared has `::` and a number behind the device's own id.
    pub(crate) fn is_granted(&self, list: &str) -> bool {
        let of = |granted: &String, id: &str| granted.split("::").next() == Some(id);
        list.split(',').all(|id| !id.is_empty() && self.granted.iter().any(|granted| of(granted, id)))
    }

    /// How the container is called in messages.
    pub fn display(&self) -> String {
        match self.identity() {
            Ok(Identity { namespace, pod, container, .. }) => format!("{namespace}/{pod}/{container}"),
            Err(_) => "of no pod".to_owned(),
        }
    }
}

/// The rest of the path of a mount that is a marker.
pub(crate) fn marker(mount: &Value) -> Option<&str> {
    let text = |key| mount.get(key).and_then(Value::as_str);
    if text("source") != Some(MARKER_SOURCE) {
        return None;
    }
    // `/run` is what `/var/run` links to; runtimes write what they were given.
    let path = text("destination")?;
    let rest = path.strip_prefix(MARKERS).or_else(|| path.strip_prefix(MARKERS.strip_prefix("/var")?))?;
    rest.strip_prefix('/').filter(|id| !id.is_empty())
}

fn texts<'a>(list: Option<&'a Value>, name: &str) -> Result<Vec<&'a str>, Error> {
    match list {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list
            .iter()
            .enumerate()
            .map(|(at, item)| item.as_str().ok_or_else(|| field(&format!("{name}[{at}]"), "a string")))
            .collect(),
        Some(_) => Err(field(name, "a list")),
    }
}

fn field(name: &str, expected: &'static str) -> Error {
    Error::Field { field: name.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_counts_is_read_as_the_process_will_see_it() {
        let container = Container::parse(&json!({
            "process": {
                "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0", "ODD"],
                "capabilities": { "bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"] }
            },
            "annotations": { "a": "b", "gantry.dev/devices.nvidia.com_gpu": "slot-1" },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/var/run/nvidia-container-devices/GPU-1", "source": "/dev/null" },
                { "destination": "/run/nvidia-container-devices/imex/0", "source": "/dev/null" },
                { "destination": "/var/run/nvidia-container-devices/GPU-2", "source": "/var/lib/kubelet/pods/x" },
                { "destination": "/var/run/nvidia-container-devices", "source": "/dev/null" },
                { "destination": "/var/run/nvidia-container-devices-x/GPU-3", "source": "/dev/null" }
            ]
        }))
        .unwrap();
        assert_eq!(container.environment["NVIDIA_VISIBLE_DEVICES"], "0");
        assert_eq!(container.granted, ["slot-1"]);
        assert!(container.has_slots());
        assert!(container.privileged);
        assert_eq!(container.markers, ["GPU-1", "imex/0"]);
    }

    #[test]
    fn the_owner_is_known_from_either_runtimes_annotations() {
        let container =
            |annotations: Value| Container::parse(&json!({ "annotations": annotations })).unwrap();
        let expected = Identity {
            namespace: "ml".into(),
            pod: "train-0".into(),
            uid: "7f3c".into(),
            container: "main".into(),
        };
        let containerd = container(json!({
            "io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": "train-0",
            "io.kubernetes.cri.sandbox-uid": "7f3c", "io.kubernetes.cri.container-name": "main"
        }));
        let crio = container(json!({
            "io.kubernetes.pod.namespace": "ml", "io.kubernetes.pod.name": "train-0",
            "io.kubernetes.pod.uid": "7f3c", "io.kubernetes.container.name": "main"
        }));
        assert_eq!(containerd.identity(), Ok(expected.clone()));
        assert_eq!(crio.identity(), Ok(expected));
        assert_eq!(container(json!({ "io.kubernetes.pod.namespace": "ml" })).identity(), Err("no pod name"));
        assert_eq!(containerd.display(), "ml/train-0/main");
    }

    #[test]
    fn refusals() {
        for (config, text) in [
            (json!([]), "config.json: it must be an object"),
            (json!({ "process": [] }), "config.json: process must be an object"),
            (json!({ "process": { "env": "A=1" } }), "config.json: process.env must be a list"),
            (json!({ "process": { "env": ["A=1", 2] } }), "config.json: process.env[1] must be a string"),
            (json!({ "annotations": { "a": 1 } }), "config.json: annotations[a] must be a string"),
            (json!({ "annotations": [] }), "config.json: annotations must be an object"),
            (json!({ "mounts": {} }), "config.json: mounts must be a list"),
            (
                json!({ "process": { "capabilities": { "bounding": "CAP_SYS_ADMIN" } } }),
                "config.json: process.capabilities.bounding must be a list",
            ),
            (
                json!({ "annotations": { "gantry.dev/devices.x": "slot-0\nslot-1" } }),
                "config.json: annotation gantry.dev/devices.x: \"slot-0\\nslot-1\" is no device: an id has 1 to 63 letters, digits, '-', '_', '.' and ':'",
            ),
        ] {
            assert_eq!(Container::parse(&config).unwrap_err().to_string(), text);
        }
    }
}
