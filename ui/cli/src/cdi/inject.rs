//! `gantry cdi inject`.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use gantry_cdi::{Cache, DeviceName};
use serde_json::Value;

use super::{Inject, generate};
use crate::{hint, output};

pub(crate) fn run(options: &Inject) -> anyhow::Result<()> {
    let names = options.devices.iter().map(|name| name.parse()).collect::<Result<Vec<DeviceName>, _>>()?;
    let standard_input = options.config == Path::new("-");
    if standard_input && options.in_place {
        bail!(hint::error(
            "--in-place needs a file",
            "gantry cdi inject --config config.json --in-place DEVICE"
        ));
    }
    let mut text = String::new();
    if standard_input {
        std::io::stdin().read_to_string(&mut text).context("read standard input")?;
    } else {
        text = fs::read_to_string(&options.config)
            .with_context(|| format!("read {}", options.config.display()))?;
    }
    let source =
        if standard_input { "standard input".to_owned() } else { options.config.display().to_string() };
    let mut config: Value = serde_json::from_str(&text).with_context(|| format!("{source} is not JSON"))?;
    let cache = Cache::load(&options.folders.folders);
    cache.inject(&mut config, &names).map_err(|error| {
        let folders: Vec<_> =
            options.folders.folders.iter().map(|folder| folder.display().to_string()).collect();
        hint::error(error.to_string(), format!("gantry cdi list --spec-dir {}", folders.join(",")))
    })?;
    if options.in_place {
        let text = format!("{}\n", serde_json::to_string_pretty(&config)?);
        generate::replace(&options.config, text.as_bytes())?;
        outln!("{source}: {} devices injected", names.len());
        return Ok(());
    }
    output::json(&config)
}
