//! The file: which keys may stand where, and what is in them.

use std::collections::BTreeMap;

use crate::config::{
    DeviceRef, ResourceRule, Resources, SharedDevices, SharedResource, Sharing, SharingKind,
};
use crate::error::{meant, short};
use crate::settings::{by_path, keys_below};
use crate::yaml::{Key, Node, Value};
use crate::{At, Error, Pattern, ResourceName};

/// The most shares of one device: beyond any use, and little enough that a node's list fits into a message to the kubelet.
const MOST_REPLICAS: i128 = 1000;

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// Values by the path of their key.
    pub(crate) settings: BTreeMap<&'static str, (At, Value)>,
    pub(crate) resources: Resources,
    pub(crate) sharing: Option<(At, Sharing)>,
}

/// A node and its path.
#[derive(Clone)]
struct Place<'a> {
    path: String,
    node: &'a Node,
}

impl<'a> Place<'a> {
    fn at(&self) -> At {
        At::File { path: self.path.clone(), line: self.node.line }
    }

    fn is_null(&self) -> bool {
        self.node.value == Value::Null
    }

    fn wrong(&self, wanted: &'static str) -> Error {
        Error::Type { at: self.at(), found: self.node.value.describe(), wanted }
    }

    fn invalid(&self, value: &str, rule: impl Into<String>) -> Error {
        Error::Invalid { at: self.at(), value: short(value), rule: rule.into() }
    }

    /// The entries of a map whose keys are all in `known`, each once.
    fn entries(
        &self,
        known: &[&'static str],
        wanted: &'static str,
    ) -> Result<Vec<(&'static str, Place<'a>)>, Error> {
        let map: &[(Key, Node)] = match &self.node.value {
            Value::Map(map) => map,
            _ => return Err(self.wrong(wanted)),
        };
        let mut seen: Vec<(&'static str, u64)> = Vec::new();
        let mut entries = Vec::new();
        for (key, node) in map {
            let path = match self.path.as_str() {
                "" => short(&key.name),
                parent => format!("{parent}.{}", short(&key.name)),
            };
            let at = At::File { path: path.clone(), line: key.line };
            let Some(name) = known.iter().find(|known| **known == key.name) else {
                return Err(Error::Unknown { at, meant: meant(&key.name, known), known: known.to_vec() });
            };
            if let Some((_, first)) = seen.iter().find(|(seen, _)| seen == name) {
                return Err(Error::Duplicate { at, first: *first });
            }
            seen.push((*name, key.line));
            // A value that begins on a later line is looked for at its key.
            entries.push((*name, Place { path, node }));
        }
        Ok(entries)
    }

    fn list(&self, wanted: &'static str) -> Result<Vec<Place<'a>>, Error> {
        let Value::List(list) = &self.node.value else {
            return Err(self.wrong(wanted));
        };
        Ok(list
            .iter()
            .enumerate()
            .map(|(i, node)| Place { path: format!("{}[{i}]", self.path), node })
            .collect())
    }

    fn text(&self, wanted: &'static str) -> Result<&'a str, Error> {
        match &self.node.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong(wanted)),
        }
    }

    fn bool(&self) -> Result<bool, Error> {
        match self.node.value {
            Value::Bool(value) => Ok(value),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn resource(&self) -> Result<ResourceName, Error> {
        let text = self.text("the name of a resource, such as nvidia.com/gpu,")?;
        ResourceName::new(text).map_err(|rule| self.invalid(text, rule))
    }
}

/// Reads a file.
pub(crate) fn read(text: &str) -> Result<File, Error> {
    let root = crate::yaml::parse(text)?;
    let root = Place { path: String::new(), node: &root };
    let at = root.at();
    let no_version = Error::Missing { at, key: "version", fix: "begin the file with \"version: v1\"" };
    if root.is_null() {
        return Err(no_version);
    }
    let known = ["version", "flags", "resources", "sharing", "imex"];
    let entries = root.entries(&known, "a map that begins with \"version: v1\"")?;
    let version = entries.iter().find(|(key, _)| *key == "version").ok_or(no_version)?;
    match &version.1.node.value {
        Value::Text(text) if text == "v1" => {}
        Value::Text(text) => {
            return Err(version.1.invalid(text, "the only version is v1; write version: v1"));
        }
        _ => return Err(version.1.wrong("v1")),
    }
    let mut file = File::default();
    for (key, place) in entries {
        if place.is_null() {
            continue;
        }
        match key {
            "resources" => file.resources = resources(&place)?,
            "sharing" => file.sharing = sharing(&place)?,
            "version" => {}
            _ => settings(&place, &mut file.settings)?,
        }
    }
    Ok(file)
}

/// Collects the settings below a key.
fn settings(place: &Place<'_>, into: &mut BTreeMap<&'static str, (At, Value)>) -> Result<(), Error> {
    for (_, below) in place.entries(&keys_below(&place.path), "a map")? {
        // As if it did not stand there: so do templates that have no value for it.
        if below.is_null() {
            continue;
        }
        match by_path(&below.path).and_then(|setting| setting.path) {
            Some(path) => {
                into.insert(path, (below.at(), below.node.value.clone()));
            }
            None => settings(&below, into)?,
        }
    }
    Ok(())
}

fn resources(place: &Place<'_>) -> Result<Resources, Error> {
    let mut resources = Resources::default();
    for (key, rules) in place.entries(&["gpus", "mig"], "a map of gpus and mig")? {
        if rules.is_null() {
            continue;
        }
        let rules: Vec<_> =
            rules.list("a list of pattern and name")?.iter().map(resource_rule).collect::<Result<_, _>>()?;
        if key == "gpus" {
            resources.gpus = rules;
        } else {
            resources.mig = rules;
        }
    }
    Ok(resources)
}

fn resource_rule(place: &Place<'_>) -> Result<ResourceRule, Error> {
    let (mut pattern, mut name) = (None, None);
    for (key, value) in place.entries(&["pattern", "name"], "a map of pattern and name")? {
        if key == "pattern" {
            let text = value.text("a pattern, such as \"*A100*\",")?;
            if text.is_empty() {
                return Err(value.invalid(text, "matches nothing; write \"*\" for every model"));
            }
            pattern = Some(Pattern::new(text));
        } else {
            name = Some(value.resource()?);
        }
    }
    let missing = |key, fix| Error::Missing { at: place.at(), key, fix };
    Ok(ResourceRule {
        pattern: pattern
            .ok_or_else(|| missing("pattern", "add the models that are meant, as in pattern: \"*A100*\""))?,
        name: name.ok_or_else(|| missing("name", "add the resource, as in name: nvidia.com/a100"))?,
    })
}

fn sharing(place: &Place<'_>) -> Result<Option<(At, Sharing)>, Error> {
    let mut found: Option<(At, Sharing)> = None;
    for (key, value) in place.entries(&["timeSlicing", "mps"], "a map of timeSlicing or mps")? {
        if value.is_null() {
            continue;
        }
        let kind = if key == "mps" { SharingKind::Mps } else { SharingKind::TimeSlicing };
        let sharing = shared(&value, kind)?;
        if let Some((other, _)) = found {
            let rule =
                format!("only one kind of sharing is possible, and {other} has another; remove one of them");
            return Err(Error::Conflict { at: value.at(), rule });
        }
        found = Some((value.at(), sharing));
    }
    Ok(found)
}

fn shared(place: &Place<'_>, kind: SharingKind) -> Result<Sharing, Error> {
    let known = ["renameByDefault", "failRequestsGreaterThanOne", "resources"];
    let entries = place.entries(&known, "a map with resources")?;
    let mut rename = false;
    // The defaults of NVIDIA's plugin: clients of MPS cannot be on several GPUs.
    let mut fail = kind == SharingKind::Mps;
    let mut list: Vec<Place<'_>> = Vec::new();
    for (key, value) in entries {
        match key {
            _ if value.is_null() => {}
            "renameByDefault" => rename = value.bool()?,
            "failRequestsGreaterThanOne" => fail = value.bool()?,
            _ => list = value.list("a list of name and replicas")?,
        }
    }
    if list.is_empty() {
        let fix = "add what is shared, as in resources: [{name: nvidia.com/gpu, replicas: 4}]";
        return Err(Error::Missing { at: place.at(), key: "resources", fix });
    }
    let mut resources: Vec<SharedResource> = Vec::new();
    for place in &list {
        let resource = shared_resource(place, rename)?;
        if resources.iter().any(|known| known.name == resource.name) {
            let rule = format!("{} is shared by an earlier entry; merge the two", resource.name);
            return Err(Error::Conflict { at: place.at(), rule });
        }
        if resources.iter().any(|known| known.offered_as() == resource.offered_as()) {
            let rule = format!(
                "an earlier entry has the name {} for its shares too; rename one of them",
                resource.offered_as()
            );
            return Err(Error::Conflict { at: place.at(), rule });
        }
        resources.push(resource);
    }
    Ok(Sharing { kind, fail_requests_greater_than_one: fail, resources })
}

fn shared_resource(place: &Place<'_>, rename_by_default: bool) -> Result<SharedResource, Error> {
    let (mut name, mut rename, mut replicas) = (None, None, None);
    let mut shared = SharedDevices::All;
    for (key, value) in
        place.entries(&["name", "rename", "devices", "replicas"], "a map of name and replicas")?
    {
        match key {
            "name" => name = Some((value.resource()?, value)),
            _ if value.is_null() => {}
            "rename" => rename = Some(value.resource()?),
            "devices" => shared = devices(&value)?,
            _ => replicas = Some(number_of_replicas(&value)?),
        }
    }
    let missing = |key, fix| Error::Missing { at: place.at(), key, fix };
    let (name, named) =
        name.ok_or_else(|| missing("name", "add the resource, as in name: nvidia.com/gpu"))?;
    let replicas =
        replicas.ok_or_else(|| missing("replicas", "add how many share a device, as in replicas: 4"))?;
    if rename.is_none() && rename_by_default {
        rename = Some(name.shared().map_err(|rule| {
            named.invalid(name.as_str(), format!("with .shared behind it, the name {rule}; set rename"))
        })?);
    }
    Ok(SharedResource { name, rename, devices: shared, replicas })
}

fn number_of_replicas(place: &Place<'_>) -> Result<u32, Error> {
    let Value::Integer(number) = place.node.value else {
        return Err(place.wrong("a whole number, such as 4,"));
    };
    let rule = match number {
        ..2 => "must be 2 or more; to give each device to one container alone, remove the entry",
        2..=MOST_REPLICAS => "",
        _ => "must be 1000 or less",
    };
    let count = u32::try_from(number).ok().filter(|_| rule.is_empty());
    count.ok_or_else(|| place.invalid(&number.to_string(), rule))
}

fn devices(place: &Place<'_>) -> Result<SharedDevices, Error> {
    match &place.node.value {
        Value::Text(text) if text == "all" => Ok(SharedDevices::All),
        Value::Text(text) => Err(place.invalid(text, "must be all, a number of devices, or a list of them")),
        Value::Integer(count) => match u32::try_from(*count) {
            Ok(count) if count > 0 => Ok(SharedDevices::Count(count)),
            _ => Err(place.invalid(&count.to_string(), "must be 1 or more; write all for every device")),
        },
        Value::List(list) if list.is_empty() => {
            Err(place.invalid("[]", "names no device; write all for every device, or remove the entry"))
        }
        Value::List(_) => {
            let mut refs = Vec::new();
            for item in place.list("a list of devices")? {
                let device = device(&item)?;
                if refs.contains(&device) {
                    let rule = "stands in the list twice; remove one of them";
                    return Err(Error::Conflict { at: item.at(), rule: rule.to_owned() });
                }
                refs.push(device);
            }
            Ok(SharedDevices::List(refs))
        }
        _ => Err(place.wrong("all, a number of devices, or a list of them")),
    }
}

fn device(place: &Place<'_>) -> Result<DeviceRef, Error> {
    const RULE: &str =
        "must be the index of a GPU (\"0\"), of a partition (\"0:1\"), or a UUID (GPU-…, MIG-…)";
    let text = match &place.node.value {
        Value::Integer(number) => number.to_string(),
        Value::Text(text) => text.clone(),
        _ => return Err(place.wrong("the index or the UUID of a device")),
    };
    let index = |text: &str| -> Option<u32> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| plain)
    };
    let uuid = |text: &str| {
        let plain = text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        text.len() == 36 && plain && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
    };
    let prefixed = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    let found = if prefixed.is_some_and(uuid) {
        Some(DeviceRef::Uuid(text.clone()))
    } else if let Some((gpu, partition)) = text.split_once(':') {
        index(gpu).zip(index(partition)).map(|(gpu, partition)| DeviceRef::Partition(gpu, partition))
    } else {
        index(&text).map(DeviceRef::Gpu)
    };
    found.ok_or_else(|| place.invalid(&text, RULE))
}
