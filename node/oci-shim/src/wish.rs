//! Which devices a container asks for, and whether it may.

use std::fmt;

use gantry_cdi::DeviceName;

use crate::{Container, Error, Policy};

/// The variable with which images and pods ask for GPUs.
pub(crate) const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// The variable that asks for channels between nodes.
const IMEX_CHANNELS: &str = "NVIDIA_IMEX_CHANNELS";

/// Channels are numbered below this: the driver has 2^20 at most.
const MAX_CHANNEL: u32 = 1 << 20;

/// The most devices that one container can ask for.
const MAX_DEVICES: usize = 1024;

/// What a container gets, besides what the node agent decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wish {
    /// CDI devices of the annotations, in the order of their keys.
    pub annotated: Asked,
    /// What else it asks for.
    pub rest: Asked,
    /// Whether the driver is asked for without a GPU.
    pub driver: bool,
    /// Why something that it asks for is not given.
    pub refused: Option<String>,
}

/// Devices, and where they are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// The field, for messages, such as `process.env[NVIDIA_VISIBLE_DEVICES]`.
    pub field: String,
    /// Each once, in order.
    pub devices: Vec<Device>,
}

/// A device that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// By its full CDI name.
    Cdi(DeviceName),
    /// By index, UUID, `0:1` or `all`: a name within the kinds of GPUs.
    Gpu(String),
    /// A channel of an IMEX domain.
    Channel(String),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cdi(name) => name.fmt(f),
            Self::Gpu(name) => f.write_str(name),
            Self::Channel(name) => write!(f, "imex/{name}"),
        }
    }
}

impl Wish {
    /// What a container asks for: annotations before marker mounts before the environment, as far as policy goes. What the node agent
    /// knows of a container's slots goes before mounts and environment.
    ///
    /// # Errors
    /// Where something is asked for in a form that no device has, or policy is strict about what it does not allow.
    pub fn of(container: &Container, policy: &Policy) -> Result<Self, Error> {
        let annotated = annotated(container, policy)?;
        let decided = container.has_slots()
            || container.brought
            || annotated
                .devices
                .iter()
                .any(|device| matches!(device, Device::Cdi(name) if policy.is_gpu(name)));
        let mut wish = Self { annotated, ..Self::default() };
        if decided {
            return Ok(wish);
        }
        if !container.markers.is_empty() {
            if policy.accept_volume_mounts {
                wish.rest = marked(container)?;
                return Ok(wish);
            }
            wish.refused = Some(format!(
                "mounts below {} are not honoured: accept-volume-mounts is false in {}",
                crate::container::MARKERS,
                policy.source_of_mounts.display()
            ));
            return wish.or_fail(policy);
        }
        let value = container.environment.get(VISIBLE_DEVICES).map_or("", String::as_str);
        // NVIDIA's plugin says with the folder's path that mounts count.
        if matches!(value, "" | "void") || value == crate::container::MARKERS {
            return Ok(wish);
        }
        // What the kubelet granted may stand there: the device plugin can say it that way.
        if !container.privileged && !policy.accept_environment && !container.is_granted(value) {
            wish.refused = Some(format!(
                "{VISIBLE_DEVICES}={} is not honoured: the container is unprivileged, and every image can set the variable; \
                 request GPUs in resources.limits, or set accept-env-when-unprivileged in {}",
                shortened(value).escape_debug(),
                policy.source_of_environment.display()
            ));
            return wish.or_fail(policy);
        }
        if value == "none" {
            wish.driver = true;
            return Ok(wish);
        }
        let field = format!("process.env[{VISIBLE_DEVICES}]");
        let mut asked = Asked { field: field.clone(), devices: Vec::new() };
        for text in value.split(',').filter(|text| !text.is_empty()) {
            asked.add(&field, text, device(&field, text)?)?;
        }
        let channels = container.environment.get(IMEX_CHANNELS).map_or("", String::as_str);
        for text in channels.split(',').filter(|text| !text.is_empty()) {
            let field = format!("process.env[{IMEX_CHANNELS}]");
            asked.add(&field, text, channel(&field, text)?)?;
        }
        wish.rest = asked;
        Ok(wish)
    }

    fn or_fail(self, policy: &Policy) -> Result<Self, Error> {
        match &self.refused {
            Some(reason) if policy.strict => Err(Error::Refused { reason: reason.clone() }),
            _ => Ok(self),
        }
    }
}

impl Asked {
    fn add(&mut self, field: &str, text: &str, device: Device) -> Result<(), Error> {
        if self.devices.contains(&device) {
            return Ok(());
        }
        if self.devices.len() == MAX_DEVICES {
            return Err(refused(field, text, &format!("a container can have {MAX_DEVICES} devices at most")));
        }
        self.devices.push(device);
        Ok(())
    }
}

/// The devices that annotations name: `cdi.k8s.io/<whatever>: <name>,<name>`.
fn annotated(container: &Container, policy: &Policy) -> Result<Asked, Error> {
    let mut asked = Asked::default();
    for (key, value) in &container.annotations {
        if !policy.annotation_prefixes.iter().any(|prefix| key.starts_with(prefix)) {
            continue;
        }
        let field = format!("annotations[{}]", shortened(key));
        for text in value.split(',') {
            let name: DeviceName =
                text.parse().map_err(|error: gantry_cdi::Error| refused(&field, text, &rule(&error)))?;
            asked.add(&field, text, Device::Cdi(name))?;
        }
        asked.field = field;
    }
    Ok(asked)
}

fn marked(container: &Container) -> Result<Asked, Error> {
    let field = format!("mounts[{}]", crate::container::MARKERS);
    let mut asked = Asked { field: field.clone(), devices: Vec::new() };
    for text in &container.markers {
        let parts: Vec<&str> = text.split('/').collect();
        let device = match parts[..] {
            ["cdi", vendor, class, name] => {
                let full = format!("{vendor}/{class}={name}");
                Device::Cdi(full.parse().map_err(|error| refused(&field, text, &rule(&error)))?)
            }
            ["imex", number] => channel(&field, number)?,
            [id] => device(&field, id)?,
            _ => {
                let rule = "write <id>, cdi/<vendor>/<class>/<name> or imex/<number>";
                return Err(refused(&field, text, rule));
            }
        };
        asked.add(&field, text, device)?;
    }
    Ok(asked)
}

/// A CDI name, or a name within the kinds of GPUs.
fn device(field: &str, text: &str) -> Result<Device, Error> {
    if text.contains(['=', '/']) {
        return text.parse().map(Device::Cdi).map_err(|error| refused(field, text, &rule(&error)));
    }
    // Any kind will do: the grammar of the name is the same in all.
    match DeviceName::new("nvidia.com/gpu", text) {
        Ok(name) => Ok(Device::Gpu(name.name().to_owned())),
        Err(_) => {
            Err(refused(field, text, "write an index, a UUID, GPU:PARTITION, all, none, void or a CDI name"))
        }
    }
}

fn channel(field: &str, text: &str) -> Result<Device, Error> {
    let number = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let known =
        text == "all" || number.and_then(|text| text.parse().ok()).is_some_and(|n: u32| n < MAX_CHANNEL);
    if known {
        Ok(Device::Channel(text.to_owned()))
    } else {
        Err(refused(field, text, "a channel is a number from 0 to 1048575"))
    }
}

fn rule(error: &gantry_cdi::Error) -> String {
    match error {
        gantry_cdi::Error::Name { rule, .. } => (*rule).to_owned(),
        other => other.to_string(),
    }
}

fn refused(field: &str, value: &str, rule: &str) -> Error {
    Error::Device { source_field: field.to_owned(), value: shortened(value), rule: rule.to_owned() }
}

fn shortened(text: &str) -> String {
    text.chars().take(120).collect()
}
