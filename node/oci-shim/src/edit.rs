//! What becomes of a configuration.

use std::collections::{BTreeMap, BTreeSet};

use gantry_cdi::{Cache, ContainerEdits, DeviceName};
use gantry_shim::{Answer, Image, Pod, Request};
use serde_json::Value;

use crate::container::{Identity, marker};
use crate::wish::{Asked, Device, VISIBLE_DEVICES};
use crate::{Container, Error, Level, Policy, Wish};

/// What NVIDIA's own hook is called, in its versions. It would inject a second time, and as root in the container's file system.
const LEGACY_HOOKS: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// Where OCI's two spellings of that point of a container's life have their hooks.
const LEGACY_POINTS: [&str; 2] = ["prestart", "createRuntime"];

/// The classes of a vendor's IMEX channels.
const CHANNEL_CLASS: &str = "imex-channel";

/// Who describes channels when nobody of the kinds of GPUs does.
const CHANNEL_VENDORS: [&str; 2] = ["nvidia.com", "k8s.device-plugin.nvidia.com"];

/// What the names of variables begin with that speak of the driver.
const DRIVER_VARIABLES: &str = "NVIDIA_";

/// The variable of images that are older than those.
const CUDA_VERSION: &str = "CUDA_VERSION";

/// What switches the check of an image's requirements off.
const DISABLE_REQUIRE: &str = "NVIDIA_DISABLE_REQUIRE";

/// Annotations that are meant for the node agent.
const OWN_ANNOTATIONS: &str = "gantry.dev/";

/// The world outside a configuration, so that what is decided can be tested without one.
pub trait World {
    /// The CDI specifications of the machine.
    fn specifications(&self, policy: &Policy) -> Cache;

    /// Where the image of a configuration wants libraries; `None` where nothing tells.
    fn image(&self, config: &Value) -> Option<Image>;

    /// Asks the node agent.
    ///
    /// # Errors
    /// Why there is no answer.
    fn ask(&self, policy: &Policy, request: &Request) -> Result<Answer, String>;
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Whether the configuration is another.
    pub changed: bool,
    /// What there is to tell.
    pub notes: Vec<(Level, String)>,
}

/// Brings the devices that a container gets into its configuration. Doing it twice changes nothing more.
///
/// # Errors
/// Where the container must not be created. Nothing is changed then.
pub fn edit(config: &mut Value, policy: &Policy, world: &dyn World) -> Result<Outcome, Error> {
    let container = Container::parse(config)?;
    let wish = Wish::of(&container, policy)?;
    let mut outcome = Outcome::default();
    let mut note = |level, text: String| {
        outcome.notes.push((level, format!("container {}: {text}", container.display())));
    };
    if let Some(reason) = &wish.refused {
        note(Level::Warning, reason.clone());
    }
    let granted =
        if container.has_slots() { ask(config, &container, policy, world)? } else { Granted::default() };
    let mut edited = config.clone();
    let wanted = !granted.devices.is_empty()
        || wish.driver
        || !wish.annotated.devices.is_empty()
        || !wish.rest.devices.is_empty();
    if wanted {
        let alone =
            granted.edits.is_some() && wish.annotated.devices.is_empty() && wish.rest.devices.is_empty();
        // What the agent has described needs no file.
        let cache = if alone { Cache::default() } else { world.specifications(policy) };
        for error in cache.errors() {
            note(Level::Warning, format!("CDI specification left out: {error}"));
        }
        let mut names = resolve(&wish.annotated, &cache, policy)?;
        if granted.edits.is_none() {
            names.extend(granted.devices.iter().cloned());
        }
        names.extend(resolve(&wish.rest, &cache, policy)?);
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        let mut edits = cache.edits(&names)?;
        if wish.driver {
            edits = driver(&cache, policy)?;
        }
        if let Some(described) = granted.edits {
            edits.append(&described);
            names.extend(granted.devices.into_iter().filter(|name| seen.insert(name.clone())));
        }
        // Everything but hooks is the same when it is applied twice: a runtime may have resolved annotations already.
        edits.hooks.retain(|hook| !has_hook(&edited, hook));
        gantry_cdi::apply(&edits, &mut edited)?;
        let list: Vec<String> = names.iter().map(ToString::to_string).collect();
        note(
            Level::Info,
            if wish.driver {
                "gets the driver alone".to_owned()
            } else {
                format!("gets {}", list.join(", "))
            },
        );
    }
    if policy.accept_volume_mounts
        && !container.markers.is_empty()
        && let Some(mounts) = edited.get_mut("mounts").and_then(Value::as_array_mut)
    {
        mounts.retain(|mount| marker(mount).is_none());
    }
    if strip_legacy_hooks(&mut edited) {
        note(Level::Info, "NVIDIA's legacy hook is taken out".to_owned());
    }
    outcome.changed = edited != *config;
    *config = edited;
    Ok(outcome)
}

/// What the node agent says that the container gets.
#[derive(Debug, Default)]
struct Granted {
    devices: Vec<DeviceName>,
    /// What they mean, where the agent says it.
    edits: Option<Box<ContainerEdits>>,
}

/// The variables of a container that speak of the driver.
fn variables(container: &Container, policy: &Policy) -> Vec<String> {
    let all = container.environment.iter();
    let driver = all.filter(|(name, _)| name.starts_with(DRIVER_VARIABLES) || *name == CUDA_VERSION);
    let others = driver.filter(|(name, _)| !policy.disable_require || *name != DISABLE_REQUIRE);
    let mut variables: Vec<String> = others.map(|(name, value)| format!("{name}={value}")).collect();
    if policy.disable_require {
        variables.push(format!("{DISABLE_REQUIRE}=true"));
    }
    variables
}

fn ask(config: &Value, container: &Container, policy: &Policy, world: &dyn World) -> Result<Granted, Error> {
    let slots = container.granted.join(",");
    let Identity { namespace, pod, uid, container: name } =
        container.identity().map_err(|missing| Error::NoIdentity { slots: slots.clone(), missing })?;
    let display = format!("{namespace}/{pod}");
    let annotations: BTreeMap<String, String> = container
        .annotations
        .iter()
        .filter(|(key, _)| {
            key.starts_with(OWN_ANNOTATIONS) && !key.starts_with(gantry_shim::DEVICES_ANNOTATION)
        })
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let pod = Pod { namespace, name: pod, uid };
    let mut request = Request::new(pod, name.clone(), container.granted.clone(), annotations);
    request.env = variables(container, policy);
    request.supported_capabilities.clone_from(&policy.supported_capabilities);
    request.image = world.image(config);
    let names = |devices: Vec<String>| -> Result<Vec<DeviceName>, Error> {
        devices.iter().map(|text| text.parse::<DeviceName>().map_err(Error::from)).collect()
    };
    match world.ask(policy, &request) {
        Ok(Answer::Devices(devices)) => Ok(Granted { devices: names(devices)?, edits: None }),
        Ok(Answer::Edits(devices, edits)) => Ok(Granted { devices: names(devices)?, edits: Some(edits) }),
        Ok(Answer::Refused(reason)) => Err(Error::AgentRefused { pod: display, container: name, reason }),
        Err(cause) => Err(Error::AgentAway {
            pod: display,
            container: name,
            slots,
            socket: policy.agent_socket.clone(),
            cause,
        }),
    }
}

/// The full names of devices. GPUs without a kind are all looked for in one kind, the first that has them all: two kinds describe the
/// same driver, and half of each would bring it twice.
fn resolve(asked: &Asked, cache: &Cache, policy: &Policy) -> Result<Vec<DeviceName>, Error> {
    let known: BTreeSet<&DeviceName> =
        cache.devices().chain(cache.conflicts().map(|conflict| &conflict.name)).collect();
    let gpus: Vec<&str> = asked
        .devices
        .iter()
        .filter_map(|device| if let Device::Gpu(name) = device { Some(name.as_str()) } else { None })
        .collect();
    let within =
        |kind: &str, name: &str| DeviceName::new(kind, name).ok().filter(|name| known.contains(name));
    // Where none has them all, that which has most tells best what is missing.
    let found = |kind: &&String| gpus.iter().filter(|gpu| within(kind, gpu).is_some()).count();
    let kind = policy.kinds.iter().rev().max_by_key(found);
    let vendors = policy.kinds.iter().filter_map(|kind| kind.split('/').next()).chain(CHANNEL_VENDORS);
    let channels: Vec<String> = vendors.map(|vendor| format!("{vendor}/{CHANNEL_CLASS}")).collect();
    let mut missing = Vec::new();
    let mut names = Vec::new();
    for device in &asked.devices {
        let found = match device {
            Device::Cdi(name) => Some(name.clone()).filter(|name| known.contains(name)),
            Device::Gpu(name) => kind.and_then(|kind| within(kind, name)),
            Device::Channel(name) => channels.iter().find_map(|kind| within(kind, name)),
        };
        match found {
            Some(name) => names.push(name),
            None => missing.push(device.to_string()),
        }
    }
    if missing.is_empty() {
        return Ok(names);
    }
    Err(unknown(&asked.field, missing, cache, policy))
}

fn unknown(field: &str, mut missing: Vec<String>, cache: &Cache, policy: &Policy) -> Error {
    const SHOWN: usize = 10;
    let cut = |list: &mut Vec<String>| {
        if list.len() > SHOWN {
            let more = format!("{} more", list.len() - SHOWN);
            list.truncate(SHOWN);
            list.push(more);
        }
    };
    let mut known: Vec<String> = cache.devices().map(ToString::to_string).collect();
    cut(&mut known);
    cut(&mut missing);
    let folders: Vec<String> = policy.spec_dirs.iter().map(|folder| folder.display().to_string()).collect();
    Error::Unknown {
        source_field: field.to_owned(),
        missing,
        folders: folders.join(", "),
        known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
    }
}

/// What every container with a GPU needs, without a GPU.
fn driver(cache: &Cache, policy: &Policy) -> Result<ContainerEdits, Error> {
    let common = policy.kinds.iter().find_map(|kind| cache.common(kind));
    common.cloned().ok_or_else(|| {
        unknown(&format!("process.env[{VISIBLE_DEVICES}]"), vec!["none".to_owned()], cache, policy)
    })
}

fn has_hook(config: &Value, hook: &gantry_cdi::Hook) -> bool {
    let list = config.get("hooks").and_then(|hooks| hooks.get(&hook.hook_name)).and_then(Value::as_array);
    let texts = |value: &Value, key: &str| -> Vec<String> {
        let list = value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    list.is_some_and(|list| {
        list.iter().any(|known| {
            known.get("path").and_then(Value::as_str) == Some(&hook.path)
                && texts(known, "args") == hook.args
                && texts(known, "env") == hook.env
        })
    })
}

/// Takes NVIDIA's legacy hook out; whether there was one.
fn strip_legacy_hooks(config: &mut Value) -> bool {
    let Some(hooks) = config.get_mut("hooks").and_then(Value::as_object_mut) else { return false };
    let legacy = |hook: &Value| {
        let path = hook.get("path").and_then(Value::as_str).unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        // NVIDIA's package moves programs that need a library path aside and puts a script in their place.
        LEGACY_HOOKS.contains(&name.strip_suffix(".real").unwrap_or(name))
    };
    let mut found = false;
    for point in LEGACY_POINTS {
        let Some(list) = hooks.get_mut(point).and_then(Value::as_array_mut) else { continue };
        let before = list.len();
        list.retain(|hook| !legacy(hook));
        if list.len() < before {
            found = true;
            if list.is_empty() {
                hooks.remove(point);
            }
        }
    }
    found
}
