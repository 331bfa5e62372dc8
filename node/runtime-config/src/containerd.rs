//! containerd: `config.toml`, versions 1 to 4, and drop-ins.
//!
//! Formats: <https://github.com/containerd/containerd/blob/main/docs/cri/config.md> and its `docs/man/containerd-config.toml.5.md`.

use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, TableLike, value};

use crate::Error;
use crate::plan::{HEADER, Options, Plan, Read, change, note_program};
use crate::toml::{add_to_list, follow, parse, set, table, table_mut};

const CONFIG: &str = "/etc/containerd/config.toml";
const DROP_IN: &str = "/etc/containerd/conf.d/99-nvidia.toml";

/// The runtime that others are modelled on.
const MODEL: &str = "runc";
const TYPE: &str = "io.containerd.runc.v2";

/// Annotations of containers, which the kubelet makes from answers of device plugins, that the OCI runtime is to see. Those of pods are not
/// passed on: whoever writes a pod writes them.
const ANNOTATIONS: [&str; 2] = ["cdi.k8s.io/*", "gantry.dev/*"];

/// The CRI plugin in a version of the configuration, and whether imported files are merged with the main one.
struct Layout {
    version: i64,
    plugin: &'static str,
    merges: bool,
}

impl Layout {
    fn of(path: &Path, document: &dyn TableLike) -> Result<Option<Self>, Error> {
        let version = match document.get("version") {
            None => return Ok(None),
            Some(item) => item.as_integer().ok_or_else(|| Error::Value {
                path: path.to_path_buf(),
                key: "version".to_owned(),
                expected: "a number",
            })?,
        };
        Self::numbered(version).map(Some).ok_or_else(|| Error::Version { path: path.to_path_buf(), version })
    }

    fn numbered(version: i64) -> Option<Self> {
        let (plugin, merges) = match version {
            1 => ("cri", false),
            2 => ("io.containerd.grpc.v1.cri", false),
            3 | 4 => ("io.containerd.cri.v1.runtime", true),
            _ => return None,
        };
        Some(Self { version, plugin, merges })
    }

    fn section<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        [&["plugins", self.plugin], rest].concat()
    }
}

pub(crate) fn plan(options: &Options, read: Read<'_>) -> Result<Plan, Error> {
    let main_path = options.config.clone().unwrap_or_else(|| PathBuf::from(CONFIG));
    let main_text = read(&main_path)?;
    let mut main = parse(&main_path, main_text.as_deref().unwrap_or_default())?;
    let dump_path = Path::new("containerd config dump");
    let dump = options.dump.as_deref().map(|text| parse(dump_path, text)).transpose()?;
    let layout = match (Layout::of(&main_path, main.as_table())?, &dump) {
        (Some(layout), _) => layout,
        // What stands there without a version is of version 1; where nothing stands, containerd says what it reads.
        (None, _) if !main.is_empty() => Layout::numbered(1).expect("invariant: 1 is known"),
        (None, Some(dump)) => Layout::of(dump_path, dump.as_table())?
            .unwrap_or_else(|| Layout::numbered(2).expect("invariant: 2 is known")),
        // Every containerd since 1.3 reads version 2.
        (None, None) => Layout::numbered(2).expect("invariant: 2 is known"),
    };
    let drop_in = match &options.drop_in {
        Some(path) if path.as_os_str().is_empty() => None,
        Some(path) => Some(path.clone()),
        None => layout.merges.then(|| {
            // Beside another main file than the usual one, its own folder.
            if main_path == Path::new(CONFIG) {
                PathBuf::from(DROP_IN)
            } else {
                main_path.with_file_name("conf.d").join("99-nvidia.toml")
            }
        }),
    };
    let mut plan = Plan { changes: Vec::new(), notes: Vec::new(), restart: restart(&main_path) };
    if main_text.as_deref().is_some_and(|text| text.contains("DO NOT EDIT")) {
        plan.notes.push(format!(
            "{} says that it is written anew at each start: what is added here must also stand in its template",
            main_path.display()
        ));
    }
    let disabled = main.get("disabled_plugins").and_then(Item::as_array);
    let is_cri = |name: &str| name == "cri" || name == layout.plugin;
    if disabled.is_some_and(|list| list.iter().filter_map(toml_edit::Value::as_str).any(is_cri)) {
        plan.notes.push(format!(
            "{} disables the CRI plugin in disabled_plugins, as Docker's package does: Kubernetes needs it",
            main_path.display()
        ));
    }
    let Some(drop_in) = drop_in else {
        let model = model(&layout, &main, dump.as_ref(), &main_path, &options.name)?;
        if options.remove {
            remove(&layout, &mut main, options, &main_path, &mut plan)?;
        } else {
            note_program(&mut plan.notes, model.as_ref().and_then(program));
            add(&layout, &mut main, options, &main_path, model.as_ref())?;
        }
        let after = (main_text.is_some() || !main.is_empty()).then(|| main.to_string());
        plan.changes.push(change(&main_path, main_text, after));
        if !layout.merges
            && !options.remove
            && main.get("imports").and_then(Item::as_array).is_some_and(|list| !list.is_empty())
        {
            plan.notes.push(format!(
                "containerd 1 lets a file of imports replace the whole section plugins.{}: see that none of them has it",
                layout.plugin
            ));
        }
        return Ok(plan);
    };
    let drop_in_text = read(&drop_in)?;
    let mut extra = parse(&drop_in, drop_in_text.as_deref().unwrap_or_default())?;
    let model = model(&layout, &main, dump.as_ref(), &main_path, &options.name)?;
    if options.remove {
        remove(&layout, &mut extra, options, &drop_in, &mut plan)?;
        // What only says its version says nothing.
        let is_empty = extra.iter().all(|(key, item)| key == "version" || is_hollow(item));
        let after = drop_in_text.as_ref().filter(|_| !is_empty).map(|_| extra.to_string());
        plan.changes.push(change(&drop_in, drop_in_text, after));
        plan.notes
            .push(format!("imports in {} stay as they are: other files may need them", main_path.display()));
        return Ok(plan);
    }
    set(extra.as_table_mut(), "version", layout.version);
    if !layout.merges {
        let whole = table(&main_path, main.as_table(), &layout.section(&[]))?;
        if let Some(whole) = whole {
            follow(&drop_in, table_mut(&drop_in, extra.as_table_mut(), &layout.section(&[]))?, whole, &[])?;
        }
    }
    note_program(&mut plan.notes, model.as_ref().and_then(program));
    add(&layout, &mut extra, options, &drop_in, model.as_ref())?;
    // What is imported has to be there first.
    let header = if drop_in_text.is_some() { "" } else { HEADER };
    plan.changes.push(change(&drop_in, drop_in_text, Some(format!("{header}{extra}"))));
    import(&layout, &mut main, &main_path, &drop_in)?;
    plan.changes.push(change(&main_path, main_text, Some(main.to_string())));
    Ok(plan)
}

/// The runtime that ours is to be like: the default one, else runc, as the configuration or the dump has it.
fn model(
    layout: &Layout,
    main: &DocumentMut,
    dump: Option<&DocumentMut>,
    path: &Path,
    name: &str,
) -> Result<Option<toml_edit::Table>, Error> {
    for document in [Some(main), dump].into_iter().flatten() {
        // A dump may be of a later version than the file.
        let layout = Layout::of(path, document.as_table())?.unwrap_or(Layout { ..*layout });
        let Some(containerd) = table(path, document.as_table(), &layout.section(&["containerd"]))? else {
            continue;
        };
        let default =
            containerd.get("default_runtime_name").and_then(Item::as_str).filter(|default| *default != name);
        let Some(runtimes) = table(path, containerd, &["runtimes"])? else { continue };
        let found = [default, Some(MODEL)].into_iter().flatten().find_map(|name| runtimes.get(name));
        if let Some(found) = found.and_then(Item::as_table_like) {
            let mut copy = toml_edit::Table::new();
            follow(path, &mut copy, found, &[])?;
            return Ok(Some(copy));
        }
    }
    Ok(None)
}

/// The program of a runtime, where it names one.
fn program(model: &toml_edit::Table) -> Option<&str> {
    model.get("options").and_then(|options| options.get("BinaryName")).and_then(Item::as_str)
}

fn add(
    layout: &Layout,
    document: &mut DocumentMut,
    options: &Options,
    path: &Path,
    model: Option<&toml_edit::Table>,
) -> Result<(), Error> {
    if document.is_empty() {
        document.insert("version", value(layout.version));
    }
    let root = document.as_table_mut();
    let runtimes = layout.section(&["containerd", "runtimes"]);
    if !layout.merges {
        // containerd 1 forgets its built-in runc once the list of runtimes is written down.
        let runc = [runtimes.as_slice(), &[MODEL]].concat();
        if table(path, root, &runc)?.is_none() {
            set(table_mut(path, root, &runc)?, "runtime_type", TYPE);
        }
    }
    let own = [runtimes.as_slice(), &[options.name.as_str()]].concat();
    let entry = table_mut(path, root, &own)?;
    if let Some(model) = model {
        follow(path, entry, model, &["BinaryName", "container_annotations"])?;
        if let Some(list) = model.get("container_annotations").and_then(Item::as_array) {
            let texts: Vec<&str> = list.iter().filter_map(toml_edit::Value::as_str).collect();
            add_to_list(path, entry, "container_annotations", &texts)?;
        }
    }
    if !entry.contains_key("runtime_type") {
        set(entry, "runtime_type", TYPE);
    }
    add_to_list(path, entry, "container_annotations", &ANNOTATIONS)?;
    let program = options.path.to_string_lossy().into_owned();
    set(table_mut(path, entry, &["options"])?, "BinaryName", program);
    if options.default {
        let containerd = table_mut(path, root, &layout.section(&["containerd"]))?;
        set(containerd, "default_runtime_name", options.name.as_str());
    }
    if options.cdi && layout.version > 1 {
        set(table_mut(path, root, &layout.section(&[]))?, "enable_cdi", true);
    }
    Ok(())
}

fn remove(
    layout: &Layout,
    document: &mut DocumentMut,
    options: &Options,
    path: &Path,
    plan: &mut Plan,
) -> Result<(), Error> {
    let root = document.as_table_mut();
    let containerd = layout.section(&["containerd"]);
    if table(path, root, &containerd)?.is_none() {
        return Ok(());
    }
    let containerd = table_mut(path, root, &containerd)?;
    if containerd.get("default_runtime_name").and_then(Item::as_str) == Some(&options.name) {
        containerd.remove("default_runtime_name");
        plan.notes.push("the default runtime is containerd's own again, runc".to_owned());
    }
    if table(path, containerd, &["runtimes"])?.is_some() {
        table_mut(path, containerd, &["runtimes"])?.remove(&options.name);
    }
    Ok(())
}

/// Whether there is nothing in it but tables that are hollow.
fn is_hollow(item: &Item) -> bool {
    item.as_table_like().is_some_and(|table| table.iter().all(|(_, item)| is_hollow(item)))
}

/// Has the main file import the drop-in, unless it does.
fn import(layout: &Layout, main: &mut DocumentMut, path: &Path, drop_in: &Path) -> Result<(), Error> {
    if main.is_empty() {
        main.insert("version", value(layout.version));
    }
    let pattern = drop_in.with_file_name("*.toml").to_string_lossy().into_owned();
    let exact = drop_in.to_string_lossy();
    let known = main.get("imports").and_then(Item::as_array).is_some_and(|list| {
        list.iter().filter_map(toml_edit::Value::as_str).any(|text| text == pattern || text == exact)
    });
    if known { Ok(()) } else { add_to_list(path, main.as_table_mut(), "imports", &[&pattern]) }
}

fn restart(config: &Path) -> &'static str {
    let text = config.to_string_lossy();
    if text.contains("/k3s/") {
        "systemctl restart k3s || systemctl restart k3s-agent"
    } else if text.contains("/rke2/") {
        "systemctl restart rke2-server || systemctl restart rke2-agent"
    } else if text.contains("/microk8s/") {
        "snap restart microk8s.daemon-containerd"
    } else {
        "systemctl restart containerd"
    }
}
