//! CRI-O: a drop-in below `crio.conf.d`.
//!
//! Format: <https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.5.md>. Files of the folder are merged by key.

use std::path::{Path, PathBuf};

use toml_edit::{Item, Table};

use crate::Error;
use crate::plan::{HEADER, Options, Plan, Read, change, note_program};
use crate::toml::{follow, parse, set, table, table_mut};

const CONFIG: &str = "/etc/crio/crio.conf";
const DROP_IN: &str = "/etc/crio/conf.d/99-nvidia.toml";
const RUNTIMES: [&str; 3] = ["crio", "runtime", "runtimes"];

/// Runtimes that ours can be like, where no default is named. CRI-O's own default is crun.
const MODELS: [&str; 2] = ["crun", "runc"];

pub(crate) fn plan(options: &Options, read: Read<'_>) -> Result<Plan, Error> {
    let config = options.config.clone().unwrap_or_else(|| PathBuf::from(CONFIG));
    let path = match &options.drop_in {
        Some(path) if path.as_os_str().is_empty() => config.clone(),
        Some(path) => path.clone(),
        None => PathBuf::from(DROP_IN),
    };
    let (source, source_path) = match &options.dump {
        Some(dump) => (dump.clone(), Path::new("crio status config")),
        None => (read(&config)?.unwrap_or_default(), config.as_path()),
    };
    let source = parse(source_path, &source)?;
    let before = read(&path)?;
    let mut document = parse(&path, before.as_deref().unwrap_or_default())?;
    let root = document.as_table_mut();
    let mut notes = Vec::new();
    let own = [&RUNTIMES[..], &[&options.name]].concat();
    if options.remove {
        if table(&path, root, &["crio", "runtime"])?.is_some() {
            let runtime = table_mut(&path, root, &["crio", "runtime"])?;
            if runtime.get("default_runtime").and_then(Item::as_str) == Some(&options.name) {
                runtime.remove("default_runtime");
            }
        }
        if table(&path, root, &RUNTIMES)?.is_some() {
            table_mut(&path, root, &RUNTIMES)?.remove(&options.name);
        }
    } else {
        let entry = table_mut(&path, root, &own)?;
        if let Some(model) = model(source.as_table(), source_path, &options.name)? {
            follow(&path, entry, &model, &["runtime_path"])?;
            note_program(&mut notes, model.get("runtime_path").and_then(Item::as_str));
        }
        set(entry, "runtime_path", options.path.to_string_lossy().into_owned());
        if !entry.contains_key("runtime_type") {
            set(entry, "runtime_type", "oci");
        }
        if options.default {
            set(table_mut(&path, root, &["crio", "runtime"])?, "default_runtime", options.name.as_str());
        }
    }
    let hollow = document.iter().all(|(_, item)| is_hollow(item));
    let header = if before.is_some() { "" } else { HEADER };
    let after = (!hollow || path == config && before.is_some()).then(|| format!("{header}{document}"));
    if options.cdi {
        notes.push("CRI-O resolves CDI devices without being told".to_owned());
    }
    Ok(Plan { changes: vec![change(&path, before, after)], notes, restart: "systemctl restart crio" })
}

fn model(source: &Table, path: &Path, name: &str) -> Result<Option<Table>, Error> {
    let Some(runtimes) = table(path, source, &RUNTIMES)? else { return Ok(None) };
    let default = source
        .get("crio")
        .and_then(|crio| crio.get("runtime"))
        .and_then(|runtime| runtime.get("default_runtime"));
    let names =
        default.and_then(Item::as_str).into_iter().chain(MODELS).filter(|candidate| *candidate != name);
    let Some(found) = names.filter_map(|name| runtimes.get(name)).find_map(Item::as_table_like) else {
        return Ok(None);
    };
    let mut copy = Table::new();
    follow(path, &mut copy, found, &[])?;
    Ok(Some(copy))
}

fn is_hollow(item: &Item) -> bool {
    item.as_table_like().is_some_and(|table| table.iter().all(|(_, item)| is_hollow(item)))
}
