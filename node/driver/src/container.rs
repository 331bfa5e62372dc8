//! What one container gets, given what its image and pod ask for.

use std::collections::BTreeMap;

use gantry_cdi::ContainerEdits;

use crate::capability::CAPABILITIES_VARIABLE;
use crate::machine::{
    Class, MANAGEMENT_VENDOR, Machine, NameStrategy, PLUGIN_VENDOR, RUNTIME_VENDOR, Unit, VENDOR, Wish,
};
use crate::require::{Facts, legacy_cuda, requirements};
use crate::{Capabilities, Error, ImageLayout};

/// The container that is about to be created.
#[derive(Debug, Clone, Copy)]
pub struct ContainerRequest<'a> {
    /// Its environment, the image's included, as `NAME=value`. Of a name that comes twice the last counts.
    pub env: &'a [String],
    /// Its devices: a GPU's index, `0:1` for a MIG device, a UUID, `gpu0`, `mig0:1`, `all`, or a CDI name of one of these. `none` alone
    /// asks for the driver without a device.
    pub devices: &'a [String],
    /// What was found out about its image; `None` = the machine's own layout.
    pub image: Option<&'a ImageLayout>,
    /// The capabilities that it can have at most.
    pub supported: Capabilities,
}

impl Machine {
    /// The edits that give a container its devices and those parts of the driver that it asks for, after its requirements have been
    /// checked against driver and GPUs. Nothing is asked of the machine: call it as often as containers are created.
    ///
    /// # Errors
    /// [`Error::Capability`], [`Error::Constraint`] for what cannot be read, [`Error::Unsupported`] for capabilities that are not to be
    /// had, [`Error::Unsatisfied`] for what the image requires and the node does not have, [`Error::UnknownDevice`] for devices that it
    /// does not have.
    pub fn container_edits(&self, request: &ContainerRequest<'_>) -> Result<ContainerEdits, Error> {
        let env: BTreeMap<&str, &str> =
            request.env.iter().filter_map(|variable| variable.split_once('=')).collect();
        let capabilities = match env.get(CAPABILITIES_VARIABLE) {
            Some(value) => Capabilities::asked(value, request.supported)?,
            // Images that are older than the variable were made for all of the driver.
            None if legacy_cuda(&env).is_some() => request.supported,
            None => Capabilities::usual().within(request.supported),
        };
        let required = requirements(&env)?;
        let wish = Wish {
            names: &[NameStrategy::Index, NameStrategy::Uuid, NameStrategy::TypeIndex],
            capabilities,
            image: request.image,
        };
        let driver_only = matches!(request.devices, [only] if is_none(only));
        let mut edits = ContainerEdits::default();
        let mut units = Vec::new();
        let mut unknown = Vec::new();
        let mut seen = Vec::new();
        for name in request.devices.iter().filter(|_| !driver_only) {
            match split(name) {
                None => unknown.push(name.clone()),
                Some((Class::Gpu, device)) => match self.named(device) {
                    Some(found) => units.extend(found),
                    None => unknown.push(name.clone()),
                },
                Some((class, device)) if !seen.contains(&(class, device)) => {
                    seen.push((class, device));
                    match self.other(class, device, &wish) {
                        Ok(Some(found)) => edits.append(&found),
                        Ok(None) | Err(Error::NoDevices { .. }) => unknown.push(name.clone()),
                        Err(error) => return Err(error),
                    }
                }
                Some(_) => {}
            }
        }
        if !unknown.is_empty() {
            return Err(Error::UnknownDevice { names: unknown, known: self.known() });
        }
        let facts = |gpu| Facts { driver: &self.driver.version, cuda: self.driver.cuda, gpu };
        for requirement in &required {
            if units.is_empty() {
                requirement.check(&facts(None))?;
            }
            units.iter().try_for_each(|unit| requirement.check(&facts(Some(unit.gpu))))?;
        }
        if units.is_empty() && !driver_only {
            return Ok(edits);
        }
        let mut whole = self.common(&wish);
        whole.append(&self.nodes(&units, capabilities));
        whole.append(&edits);
        unique(&mut whole);
        Ok(whole)
    }

    /// The GPUs and MIG devices that a name means.
    fn named(&self, name: &str) -> Option<Vec<Unit<'_>>> {
        let strategies = [NameStrategy::Index, NameStrategy::Uuid, NameStrategy::TypeIndex];
        let wanted =
            |unit: &Unit<'_>| name == "all" || strategies.iter().any(|strategy| unit.name(*strategy) == name);
        let units: Vec<_> = self.units().filter(wanted).collect();
        (!units.is_empty()).then_some(units)
    }

    /// The edits of a device that is no GPU.
    fn other(&self, class: Class, device: &str, wish: &Wish<'_>) -> Result<Option<ContainerEdits>, Error> {
        let spec = self.spec(class, &format!("nvidia.com/{}", class.name()), wish)?;
        let found = spec.devices.iter().find(|known| known.name == device);
        Ok(found.map(|found| {
            let mut edits = spec.container_edits.clone();
            edits.append(&found.container_edits);
            edits
        }))
    }

    /// What devices there are, in one line.
    fn known(&self) -> String {
        let names: Vec<_> = self.units().map(|unit| unit.name(NameStrategy::Index)).collect();
        if names.is_empty() { "no GPU that answers".to_owned() } else { format!("GPUs {}", names.join(", ")) }
    }
}

/// The class and the name of a device that is asked for; `None` for a CDI name of somebody else's.
fn split(name: &str) -> Option<(Class, &str)> {
    let Some((kind, device)) = name.split_once('=') else { return Some((Class::Gpu, name)) };
    let (vendor, class) = kind.split_once('/')?;
    match (vendor, class) {
        (MANAGEMENT_VENDOR, "gpu") => Some((Class::Management, device)),
        (VENDOR | PLUGIN_VENDOR | RUNTIME_VENDOR, class) => {
            Class::all().find(|known| known.name() == class).map(|class| (class, device))
        }
        _ => None,
    }
}

/// Whether a name means the driver without a device.
fn is_none(name: &str) -> bool {
    split(name) == Some((Class::Gpu, "none"))
}

/// Leaves each edit once; of variables the first.
fn unique(edits: &mut ContainerEdits) {
    fn keep<T, K: PartialEq>(list: &mut Vec<T>, key: impl Fn(&T) -> K) {
        let mut seen = Vec::new();
        list.retain(|item| {
            let key = key(item);
            let new = !seen.contains(&key);
            if new {
                seen.push(key);
            }
            new
        });
    }
    keep(&mut edits.env, Clone::clone);
    keep(&mut edits.device_nodes, |node| node.path.clone());
    keep(&mut edits.mounts, |mount| mount.container_path.clone());
    keep(&mut edits.additional_gids, |gid| *gid);
}

#[cfg(test)]
mod tests;
