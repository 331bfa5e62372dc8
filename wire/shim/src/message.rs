//! The two messages.

use std::collections::BTreeMap;

use gantry_cdi::ContainerEdits;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::granted::{RULE, is_id};
use crate::{Error, MAX_DEVICES};

/// The most bytes of a message, its line end included. An assignment, the largest part, has at most 64 KiB.
pub const MAX_LINE: usize = 256 << 10;

const CURRENT: u64 = 1;

/// The most bytes of a name. Kubernetes' own limit is 253.
const MAX_NAME: usize = 253;

/// Whose container is about to be created, and what the kubelet granted it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    v: u64,
    /// Its pod.
    pub pod: Pod,
    /// The container's name.
    pub container: String,
    /// The ids of the devices, in the kubelet's order.
    pub devices: Vec<String>,
    /// The annotations of `gantry.dev` that reached `config.json`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Its variables that speak of the driver, as `NAME=value`, each name once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// The driver capabilities that it can have at most, joined by commas; `None` = all.
    #[serde(rename = "supportedCapabilities", default, skip_serializing_if = "Option::is_none")]
    pub supported_capabilities: Option<String>,
    /// Where its image wants libraries; `None` = nothing tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
}

/// Where an image's loader looks for libraries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// The folder for 64-bit programs.
    pub library_folder: String,
    /// The folder for 32-bit programs, if the image runs any.
    #[serde(rename = "libraryFolder32", default, skip_serializing_if = "Option::is_none")]
    pub library_folder_32: Option<String>,
    /// Whether its C library is musl rather than GNU's.
    pub musl: bool,
}

/// A pod, as the runtime knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What the agent says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The CDI devices that the container gets, each `vendor/class=name`, in the order in which it sees them.
    Devices(Vec<String>),
    /// The same, with what they mean for this container: the parts of the driver that it asks for, where its image wants them.
    Edits(Vec<String>, Box<ContainerEdits>),
    /// Why the container must not be created.
    Refused(String),
}

#[derive(Deserialize)]
struct Version {
    v: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireAnswer {
    v: u64,
    #[serde(rename = "cdiDevices", default, skip_serializing_if = "Option::is_none")]
    devices: Option<Vec<String>>,
    #[serde(rename = "containerEdits", default, skip_serializing_if = "Option::is_none")]
    edits: Option<Box<ContainerEdits>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

impl Request {
    /// A request of this version.
    pub fn new(
        pod: Pod,
        container: String,
        devices: Vec<String>,
        annotations: BTreeMap<String, String>,
    ) -> Self {
        let (env, supported_capabilities, image) = (Vec::new(), None, None);
        Self { v: CURRENT, pod, container, devices, annotations, env, supported_capabilities, image }
    }

    /// The message with its line end.
    ///
    /// # Errors
    /// Where it is one that nobody would read.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        self.check()?;
        line(self)
    }

    /// The message in a line, with or without its end.
    ///
    /// # Errors
    /// Where it is not what [`Self::encode`] of this version writes.
    pub fn decode(line: &[u8]) -> Result<Self, Error> {
        let request: Self = read(line)?;
        request.check()?;
        Ok(request)
    }

    fn check(&self) -> Result<(), Error> {
        for (field, value) in [
            ("pod.namespace", &self.pod.namespace),
            ("pod.name", &self.pod.name),
            ("pod.uid", &self.pod.uid),
            ("container", &self.container),
        ] {
            let good = matches!(value.len(), 1..=MAX_NAME)
                && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            if !good {
                return Err(invalid(field, value, "must have 1 to 253 letters, digits, '-', '_' and '.'"));
            }
        }
        if self.devices.len() > MAX_DEVICES {
            return Err(invalid("devices", &self.devices.len().to_string(), "must be at most 1024"));
        }
        match self.devices.iter().find(|id| !is_id(id)) {
            Some(id) => Err(invalid("devices", id, RULE)),
            None => Ok(()),
        }
    }
}

impl Answer {
    /// The message with its line end. A refusal that is too long is cut.
    ///
    /// # Errors
    /// Where it has more devices than a line holds.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        let (devices, edits, refused) = match self {
            Self::Devices(devices) => (Some(devices.clone()), None, None),
            Self::Edits(devices, edits) => (Some(devices.clone()), Some(edits.clone()), None),
            Self::Refused(text) => (None, None, Some(text.chars().take(4096).collect())),
        };
        line(&WireAnswer { v: CURRENT, devices, edits, refused })
    }

    /// The message in a line, with or without its end.
    ///
    /// # Errors
    /// Where it is not what [`Self::encode`] of this version writes.
    pub fn decode(line: &[u8]) -> Result<Self, Error> {
        match read::<WireAnswer>(line)? {
            WireAnswer { devices: Some(devices), edits: None, refused: None, .. } => {
                Ok(Self::Devices(devices))
            }
            WireAnswer { devices: Some(devices), edits: Some(edits), refused: None, .. } => {
                Ok(Self::Edits(devices, edits))
            }
            WireAnswer { devices: None, edits: None, refused: Some(text), .. } => Ok(Self::Refused(text)),
            WireAnswer { .. } => Err(invalid("answer", "", "must have either cdiDevices or refused")),
        }
    }
}

fn line(message: &impl Serialize) -> Result<Vec<u8>, Error> {
    let mut line =
        serde_json::to_vec(message).expect("invariant: strings, lists and maps with string keys serialise");
    line.push(b'\n');
    if line.len() > MAX_LINE { Err(Error::Size) } else { Ok(line) }
}

fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T, Error> {
    if line.len() > MAX_LINE {
        return Err(Error::Size);
    }
    // The version first: what a later version adds is not a syntax error of this one.
    let Version { v } = serde_json::from_slice(line).map_err(Error::Syntax)?;
    if v != CURRENT {
        return Err(Error::Version(v));
    }
    serde_json::from_slice(line).map_err(Error::Syntax)
}

fn invalid(field: &'static str, value: &str, rule: &'static str) -> Error {
    Error::Invalid { field, value: value.chars().take(80).collect(), rule }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let pod = Pod { namespace: "ml".into(), name: "train-0".into(), uid: "7f3c".into() };
        let annotations = BTreeMap::from([("gantry.dev/assignment".to_owned(), "{}".to_owned())]);
        Request::new(pod, "main".into(), vec!["slot-3".into()], annotations)
    }

    #[test]
    fn messages_are_these_lines() {
        let text = "{\"v\":1,\"pod\":{\"namespace\":\"ml\",\"name\":\"train-0\",\"uid\":\"7f3c\"},\"container\":\"main\",\
                    \"devices\":[\"slot-3\"],\"annotations\":{\"gantry.dev/assignment\":\"{}\"}}\n";
        assert_eq!(request().encode().unwrap(), text.as_bytes());
        assert_eq!(Request::decode(text.as_bytes()).unwrap(), request());
        let mut more = request();
        more.env = vec!["NVIDIA_DRIVER_CAPABILITIES=utility".into()];
        more.supported_capabilities = Some("utility,compute".into());
        more.image = Some(Image { library_folder: "/usr/lib".into(), library_folder_32: None, musl: true });
        let text = text.replace(
            "}}\n",
            "},\"env\":[\"NVIDIA_DRIVER_CAPABILITIES=utility\"],\"supportedCapabilities\":\"utility,compute\",\
             \"image\":{\"libraryFolder\":\"/usr/lib\",\"musl\":true}}\n",
        );
        assert_eq!(String::from_utf8(more.encode().unwrap()).unwrap(), text);
        assert_eq!(Request::decode(text.as_bytes()).unwrap(), more);
        let edits = ContainerEdits { env: vec!["A=1".into()], ..ContainerEdits::default() };
        for (answer, text) in [
            (
                Answer::Devices(vec!["nvidia.com/gpu=0".into()]),
                "{\"v\":1,\"cdiDevices\":[\"nvidia.com/gpu=0\"]}\n",
            ),
            (Answer::Devices(Vec::new()), "{\"v\":1,\"cdiDevices\":[]}\n"),
            (
                Answer::Edits(vec!["nvidia.com/gpu=0".into()], Box::new(edits)),
                "{\"v\":1,\"cdiDevices\":[\"nvidia.com/gpu=0\"],\"containerEdits\":{\"env\":[\"A=1\"]}}\n",
            ),
            (Answer::Refused("no".into()), "{\"v\":1,\"refused\":\"no\"}\n"),
        ] {
            assert_eq!(answer.encode().unwrap(), text.as_bytes());
            assert_eq!(Answer::decode(text.as_bytes()).unwrap(), answer);
        }
    }

    #[test]
    fn refusals() {
        let names = "must have 1 to 253 letters, digits, '-', '_' and '.'";
        let whole = String::from_utf8(request().encode().unwrap()).unwrap();
        for (line, text) in [
            ("", "not a message: EOF while parsing a value at line 1 column 0".to_owned()),
            ("[]", "not a message: invalid length 0, expected struct Version with 1 element at line 1 column 2".to_owned()),
            ("{\"v\":2}", "version 2 is not known: this program speaks version 1; update gantry-runtime and the node agent together".to_owned()),
            ("{\"v\":1}", "not a message: missing field `pod` at line 1 column 7".to_owned()),
            (&whole.replace("7f3c", ""), format!("pod.uid: invalid value \"\": {names}")),
            (&whole.replace("train-0", "a/b"), format!("pod.name: invalid value \"a/b\": {names}")),
            (&whole.replace("slot-3", "a b"), format!("devices: invalid value \"a b\": {RULE}")),
            (&whole.replace("devices", "device"), "not a message: unknown field `device`, expected one of `v`, `pod`, `container`, `devices`, `annotations`, `env`, `supportedCapabilities`, `image` at line 1 column 89".to_owned()),
            (&" ".repeat(MAX_LINE + 1), "a message of more than 262144 bytes is refused".to_owned()),
        ] {
            assert_eq!(Request::decode(line.as_bytes()).unwrap_err().to_string(), text, "{line:.80}");
        }
        for line in
            ["{\"v\":1}", "{\"v\":1,\"containerEdits\":{}}", "{\"v\":1,\"cdiDevices\":[],\"refused\":\"x\"}"]
        {
            let error = Answer::decode(line.as_bytes()).unwrap_err();
            assert_eq!(
                error.to_string(),
                "answer: invalid value \"\": must have either cdiDevices or refused"
            );
        }
        let mut large = request();
        large.annotations.insert("a".into(), "x".repeat(MAX_LINE));
        assert_eq!(large.encode().unwrap_err().to_string(), "a message of more than 262144 bytes is refused");
    }
}
