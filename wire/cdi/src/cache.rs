//! The specifications of a machine, by device.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::{ContainerEdits, DeviceName, Error, Spec, apply};

/// A device that two files of one folder describe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The device.
    pub name: DeviceName,
    /// The two files.
    pub files: [PathBuf; 2],
}

/// What the specification folders of a machine said at one moment.
#[derive(Debug, Default)]
pub struct Cache {
    devices: BTreeMap<DeviceName, Entry>,
    conflicts: BTreeMap<DeviceName, Conflict>,
    errors: Vec<Error>,
}

#[derive(Debug, Clone)]
struct Entry {
    file: PathBuf,
    /// The position of its folder: later folders win.
    priority: usize,
    spec: Arc<Spec>,
    /// Position in `spec.devices`.
    device: usize,
}

impl Cache {
    /// Reads every `*.json` and `*.yaml` of the folders, the least important folder first (usually `/etc/cdi`, then
    /// `/var/run/cdi`). A folder that is not there is empty. A file that is not valid is left out and reported.
    pub fn load<P: AsRef<Path>>(folders: &[P]) -> Self {
        let mut cache = Self::default();
        for (priority, folder) in folders.iter().enumerate() {
            for file in specification_files(folder.as_ref(), &mut cache.errors) {
                match read(&file) {
                    Ok(spec) => cache.add(&file, priority, &Arc::new(spec)),
                    Err(error) => cache.errors.push(error),
                }
            }
        }
        for name in cache.conflicts.keys() {
            cache.devices.remove(name);
        }
        cache
    }

    fn add(&mut self, file: &Path, priority: usize, spec: &Arc<Spec>) {
        for (device, entry) in spec.devices.iter().enumerate() {
            let Ok(name) = DeviceName::new(&spec.kind, &entry.name) else {
                continue;
            };
            let entry = Entry { file: file.to_path_buf(), priority, spec: Arc::clone(spec), device };
            match self.devices.get(&name) {
                Some(known) if known.priority == priority => {
                    let files = [known.file.clone(), entry.file];
                    self.conflicts.insert(name.clone(), Conflict { name, files });
                }
                _ => {
                    // A more important folder settles what two files of a lesser one dispute.
                    self.conflicts.remove(&name);
                    self.devices.insert(name, entry);
                }
            }
        }
    }

    /// Every device that can be injected.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceName> {
        self.devices.keys()
    }

    /// Every device that can be injected, with the file that describes it.
    pub fn entries(&self) -> impl Iterator<Item = (&DeviceName, &Path)> {
        self.devices.iter().map(|(name, entry)| (name, entry.file.as_path()))
    }

    /// Devices that cannot be injected, because two files of one folder describe them.
    pub fn conflicts(&self) -> impl Iterator<Item = &Conflict> {
        self.conflicts.values()
    }

    /// What was wrong with the files that were left out.
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// The edits for these devices together: those of each file once, before its first device.
    pub fn edits(&self, names: &[DeviceName]) -> Result<ContainerEdits, Error> {
        if let Some(conflict) = names.iter().find_map(|name| self.conflicts.get(name)) {
            return Err(Error::Conflict(Box::new(conflict.clone())));
        }
        let missing: Vec<_> =
            names.iter().filter(|name| !self.devices.contains_key(name)).map(ToString::to_string).collect();
        if !missing.is_empty() {
            return Err(Error::Unresolved(missing));
        }
        let mut edits = ContainerEdits::default();
        let mut seen: Vec<&Arc<Spec>> = Vec::new();
        for entry in names.iter().filter_map(|name| self.devices.get(name)) {
            if !seen.iter().any(|spec| Arc::ptr_eq(spec, &entry.spec)) {
                seen.push(&entry.spec);
                edits.append(&entry.spec.container_edits);
            }
            edits.append(&entry.spec.devices[entry.device].container_edits);
        }
        Ok(edits)
    }

    /// What every container with a device of a kind needs, without the device. `None` where no device of that kind can be injected.
    pub fn common(&self, kind: &str) -> Option<&ContainerEdits> {
        let entry = self.devices.iter().find(|(name, _)| name.kind() == kind).map(|(_, entry)| entry);
        entry.map(|entry| &entry.spec.container_edits)
    }

    /// Changes an OCI configuration so that the container can use these devices. On an error nothing is changed.
    pub fn inject(&self, config: &mut Value, names: &[DeviceName]) -> Result<(), Error> {
        apply(&self.edits(names)?, config)
    }
}

/// The specification folders of a machine, read again only when their files have changed: a runtime asks at each start of a container.
#[derive(Debug)]
pub struct Folders {
    folders: Vec<PathBuf>,
    known: Mutex<Known>,
}

/// What was read last, and which files that was.
type Known = (Vec<(Identity, PathBuf)>, Arc<Cache>);

/// Inode, length, and time of change in seconds and nanoseconds. Specifications are replaced as a whole, which gives them another inode.
type Identity = (u64, u64, i64, i64);

impl Folders {
    /// The folders, the least important first. Nothing is read yet.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders, known: Mutex::default() }
    }

    /// What the folders say now.
    pub fn cache(&self) -> Arc<Cache> {
        let mut ignored = Vec::new();
        let files = self.folders.iter().flat_map(|folder| specification_files(folder, &mut ignored));
        let files: Vec<_> = files.filter_map(|file| Some((identity(&file)?, file))).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != files || !ignored.is_empty() {
            *known = (files, Arc::new(Cache::load(&self.folders)));
        }
        Arc::clone(&known.1)
    }
}

fn identity(file: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec()))
}

/// The specification files of a folder in order: those that a runtime reads. A folder that is not there has none; one that cannot be read
/// is told of in `errors`.
pub fn specification_files(folder: &Path, errors: &mut Vec<Error>) -> Vec<PathBuf> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(source) => {
            errors.push(Error::Io { action: "read", path: folder.to_path_buf(), source });
            return Vec::new();
        }
    };
    let is_specification =
        |path: &PathBuf| path.extension().is_some_and(|end| end == "json" || end == "yaml") && path.is_file();
    let mut files: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_specification).collect();
    files.sort();
    files
}

/// Reads one specification file, JSON or, unless its name ends in `.json`, YAML.
///
/// # Errors
/// Where it cannot be read or is not valid; the text names the file, the field and the rule.
pub fn read(path: &Path) -> Result<Spec, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Io {
        action: "read",
        path: path.to_path_buf(),
        source,
    })?;
    let is_json = path.extension().is_some_and(|end| end == "json");
    parse(&text, is_json).map_err(|message| Error::Syntax { path: path.to_path_buf(), message })
}

/// The specification in a file's text, which is JSON or YAML.
pub(crate) fn parse(text: &str, is_json: bool) -> Result<Spec, String> {
    let spec: Spec = if is_json {
        serde_json::from_str(text).map_err(|error| error.to_string())?
    } else {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())?
    };
    spec.validate().map_err(|error| error.to_string())?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Device, write};

    fn spec(kind: &str, devices: &[&str], value: &str) -> Spec {
        let edits = |text: String| ContainerEdits { env: vec![text], ..ContainerEdits::default() };
        let devices = devices
            .iter()
            .map(|name| Device {
                name: (*name).to_owned(),
                annotations: BTreeMap::new(),
                container_edits: edits(format!("D{name}={value}")),
            })
            .collect();
        Spec::new(kind, devices, edits(format!("COMMON={value}"))).unwrap()
    }

    fn names(list: &[&str]) -> Vec<DeviceName> {
        list.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn edits_of_a_file_come_once_and_devices_in_the_order_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a", &spec("v.com/gpu", &["0", "1"], "x")).unwrap();
        let cache = Cache::load(&[folder.path()]);
        let edits = cache.edits(&names(&["v.com/gpu=1", "v.com/gpu=0"])).unwrap();
        assert_eq!(edits.env, ["COMMON=x", "D1=x", "D0=x"]);
        assert_eq!(cache.common("v.com/gpu").unwrap().env, ["COMMON=x"]);
        assert_eq!(cache.common("v.com/other"), None);
    }

    #[test]
    fn folders_are_read_again_when_a_file_changes_comes_or_goes() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders::new(vec![folder.path().to_path_buf()]);
        assert_eq!(folders.cache().devices().count(), 0);
        write(folder.path(), "a", &spec("vendor.com/a", &["0"], "1")).unwrap();
        let first = folders.cache();
        assert_eq!(first.devices().count(), 1);
        assert!(Arc::ptr_eq(&first, &folders.cache()), "nothing has changed");
        write(folder.path(), "a", &spec("vendor.com/a", &["0", "1"], "1")).unwrap();
        write(folder.path(), "b", &spec("vendor.com/b", &["0"], "1")).unwrap();
        assert_eq!(folders.cache().devices().count(), 3);
        crate::remove(folder.path(), "a").unwrap();
        assert_eq!(folders.cache().devices().count(), 1);
    }

    #[test]
    fn a_later_folder_wins_and_equal_folders_conflict() {
        let (etc, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(etc.path(), "a", &spec("v.com/gpu", &["0", "1"], "etc")).unwrap();
        write(run.path(), "b", &spec("v.com/gpu", &["0", "2"], "run")).unwrap();
        write(run.path(), "c", &spec("v.com/gpu", &["2"], "other")).unwrap();
        let cache = Cache::load(&[etc.path(), run.path()]);
        let value = |name| cache.edits(&names(&[name])).map(|edits| edits.env[0].clone());
        assert_eq!(value("v.com/gpu=0").unwrap(), "COMMON=run");
        assert_eq!(value("v.com/gpu=1").unwrap(), "COMMON=etc");
        let error = value("v.com/gpu=2").unwrap_err().to_string();
        assert!(
            error.starts_with("unresolvable CDI devices v.com/gpu=2: ")
                && error.ends_with("both describe it")
        );
        assert_eq!(cache.devices().count(), 2);
        assert_eq!(cache.conflicts().count(), 1);
    }

    #[test]
    fn a_bad_file_is_reported_and_hides_no_good_one() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "good", &spec("v.com/gpu", &["0"], "x")).unwrap();
        fs::write(folder.path().join("bad.json"), "{").unwrap();
        fs::write(
            folder.path().join("newer.json"),
            r#"{"cdiVersion":"0.3.0","kind":"a/b","devices":[],"x":1}"#,
        )
        .unwrap();
        fs::write(folder.path().join("ignored.txt"), "{").unwrap();
        fs::write(
            folder.path().join("nvidia.yaml"),
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n",
        )
        .unwrap();
        let cache = Cache::load(&[folder.path(), &folder.path().join("missing")]);
        let found: Vec<_> = cache.devices().map(ToString::to_string).collect();
        assert_eq!(found, ["nvidia.com/gpu=0", "v.com/gpu=0"]);
        assert_eq!(cache.errors().len(), 2);
    }

    #[test]
    fn an_unknown_device_leaves_the_configuration_as_it_was() {
        let mut config = json!({ "process": { "env": ["A=1"] } });
        let before = config.clone();
        let error = Cache::default().inject(&mut config, &names(&["a/b=c", "a/b=d"])).unwrap_err();
        assert_eq!(error.to_string(), "unresolvable CDI devices a/b=c, a/b=d");
        assert_eq!(config, before);
    }

    #[test]
    fn writing_leaves_no_temporary_file_and_refuses_bad_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(&folder.path().join("new"), "a", &spec("v.com/gpu", &["0"], "x")).unwrap();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(write(folder.path(), "../a", &spec("v.com/gpu", &["0"], "x")).is_err());
        crate::remove(path.parent().unwrap(), "a").unwrap();
        crate::remove(path.parent().unwrap(), "a").unwrap();
        assert!(!path.exists());
    }
}
