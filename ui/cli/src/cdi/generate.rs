//! `gantry cdi generate`.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use gantry_driver::{
    Class, DeviceFiles, MANAGEMENT_VENDOR, Machine, MigMinors, Root, Running, VENDOR, Wish, discover,
};

use super::{Generate, SpecFormat, devices};
use crate::{files, hint};

pub(crate) fn run(options: &Generate) -> anyhow::Result<()> {
    let class = options.mode.class();
    let machine = machine(options, class)?;
    let vendor = options.vendor.as_deref().unwrap_or(if class == Class::Management {
        MANAGEMENT_VENDOR
    } else {
        VENDOR
    });
    let kind = format!("{vendor}/{}", options.class.as_deref().unwrap_or(class.name()));
    let usual = Wish::usual();
    let wish = Wish {
        names: &options.device_name_strategy,
        capabilities: options.driver_capabilities.unwrap_or(usual.capabilities),
        image: None,
    };
    let spec = machine.spec(class, &kind, &wish)?;
    for problem in machine.problems() {
        eprintln!("warning: {problem}");
    }
    let ending = options.output.extension().and_then(|ending| ending.to_str());
    let text = match options.format {
        Some(SpecFormat::Json) => json(&spec)?,
        Some(SpecFormat::Yaml) => gantry_cdi::to_yaml(&spec)?,
        None if ending == Some("json") => json(&spec)?,
        None => gantry_cdi::to_yaml(&spec)?,
    };
    if options.output == Path::new("-") {
        out!("{text}");
        return Ok(());
    }
    replace(&options.output, text.as_bytes())?;
    outln!(
        "{}: {} devices of kind {kind}, driver {}",
        options.output.display(),
        spec.devices.len(),
        machine.driver.version
    );
    if !matches!(ending, Some("json" | "yaml")) {
        eprintln!("warning: runtimes read files that end in .yaml or .json only");
    }
    Ok(())
}

fn json(spec: &gantry_cdi::Spec) -> anyhow::Result<String> {
    Ok(format!("{}\n", serde_json::to_string_pretty(spec)?))
}

fn machine(options: &Generate, class: Class) -> anyhow::Result<Machine> {
    let (proc, sys) = (options.procfs.as_path(), options.sysfs.as_path());
    let root = Root::new(&options.driver_root);
    let mut running = match options.simulate {
        Some(_) => Running::default(),
        None => Running::of_kernel(proc),
    };
    if options.driver_version.is_some() {
        running.module = None;
    }
    running.version.clone_from(&options.driver_version);
    if let (None, Some(simulated)) = (&running.version, &options.simulate) {
        running.version = Some(simulated.driver_version()?);
    }
    let driver = discover(&root, &running).map_err(|error| match error {
        gantry_driver::Error::NoDriver { .. } => {
            hint::error(error.to_string(), "gantry cdi generate --driver-root /run/nvidia/driver")
        }
        error => error.into(),
    })?;
    let gpus = match (&options.simulate, &options.devices) {
        (Some(simulated), _) => simulated.gpus()?,
        (None, Some(file)) => devices::of_file(file)?,
        (None, None) if class == Class::Gpu => devices::of_driver(options)?,
        (None, None) => Vec::new(),
    };
    if options.simulate.is_some() {
        return Ok(Machine { driver, devices: DeviceFiles::assumed(), minors: MigMinors::assumed(), gpus });
    }
    let dev = options.dev_root.as_ref().map_or(root, Root::new);
    let devices = DeviceFiles::scan(&dev, proc, sys);
    Ok(Machine { driver, devices, minors: MigMinors::of_kernel(proc)?, gpus })
}

/// Replaces a file, which keeps its mode.
pub(crate) fn replace(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    let mode = fs::metadata(path).map_or_else(|_| readable(), |file| file.permissions());
    files::replace(path, text, mode).with_context(|| format!("write {}", path.display()))
}

fn readable() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}
