//! Which configuration a node has: one file for all, or one of a folder of them, as a ConfigMap is mounted, by the node's label. The rules
//! are those of NVIDIA's config-manager; unlike there, a configuration that cannot be used leaves the last good one in force.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_nvidia_config::Config;

use crate::Error;

/// The node's label whose value names a configuration.
pub const CONFIG_LABEL: &str = "nvidia.com/device-plugin.config";

/// The configuration that [`Fallback::Named`] looks for.
const NAMED: &str = "default";

/// A configuration is a few lines; a file that is longer is something else.
const LONGEST: u64 = 1 << 20;

/// Where the last good configuration is kept, for a start at which the one that the node should have is missing or broken.
const LAST_GOOD: &str = "nvidia-config.last-good";

/// Where the configuration of a node comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSource {
    /// Flags that were given, by name without hyphens.
    pub flags: BTreeMap<String, String>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// One file for all nodes (`CONFIG_FILE`). Not used where there is a folder.
    pub file: Option<PathBuf>,
    /// A folder with one file for each configuration, named after it (`CONFIG_FILE_SRCDIR`).
    pub folder: Option<PathBuf>,
    /// The configuration of nodes without the label (`DEFAULT_CONFIG`).
    pub default: Option<String>,
    /// What to try for nodes without the label where no default is set (`FALLBACK_STRATEGIES`).
    pub fallbacks: Vec<Fallback>,
}

/// What a node without label and default gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The configuration `default`.
    Named,
    /// The only configuration, if there is but one.
    Single,
    /// None: what flags and environment say.
    Empty,
}

impl Default for ConfigSource {
    /// Neither file nor folder.
    fn default() -> Self {
        Self {
            flags: BTreeMap::new(),
            env: BTreeMap::new(),
            file: None,
            folder: None,
            default: None,
            fallbacks: vec![Fallback::Named, Fallback::Single],
        }
    }
}

impl ConfigSource {
    /// What NVIDIA's flags and environment variables say: those of the device plugin, and `CONFIG_FILE_SRCDIR`, `DEFAULT_CONFIG` and
    /// `FALLBACK_STRATEGIES` of its config-manager. An empty variable is none.
    ///
    /// # Errors
    /// A fallback that does not exist.
    pub fn from_env(flags: BTreeMap<String, String>, env: BTreeMap<String, String>) -> Result<Self, Error> {
        let get = |name: &str| env.get(name).filter(|value| !value.is_empty());
        let mut source = Self {
            file: Config::file(&flags, &env),
            folder: get("CONFIG_FILE_SRCDIR").map(PathBuf::from),
            default: get("DEFAULT_CONFIG").cloned(),
            ..Self::default()
        };
        if let Some(text) = get("FALLBACK_STRATEGIES") {
            let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
            source.fallbacks = words.map(fallback).collect::<Result<_, _>>()?;
        }
        source.flags = flags;
        source.env = env;
        Ok(source)
    }

    /// What is known of the configuration when an agent starts, before the API server tells the node's label: that of the last run where
    /// the label names one. Of it come the settings that are read once.
    ///
    /// # Errors
    /// Where flags, environment or file break a rule.
    pub fn at_start(&self, state_dir: &Path) -> Result<Arc<Config>, Error> {
        let loaded = match (&self.folder, self.last_good(state_dir)) {
            (Some(_), Some(last)) => last,
            (Some(_), None) => self.parse("configuration".to_owned(), None)?,
            (None, _) => self.load(None)?,
        };
        Ok(loaded.config)
    }

    /// Reads the configuration for a label.
    pub(crate) fn load(&self, label: Option<&str>) -> Result<Loaded, Error> {
        let Some(folder) = &self.folder else {
            let name = match &self.file {
                Some(file) => format!("configuration file {}", file.display()),
                None => "configuration".to_owned(),
            };
            let text = self.file.as_deref().map(read).transpose()?;
            return self.parse(name, text);
        };
        let names = names(folder)?;
        let chosen = choose(label, &names, self.default.as_deref(), &self.fallbacks).map_err(|cause| {
            Error::Config { name: format!("configurations in {}", folder.display()), cause }
        })?;
        match chosen {
            Some(name) => {
                let text = read(&folder.join(&name))?;
                self.parse(format!("configuration {name}"), Some(text))
            }
            None => self.parse("empty configuration".to_owned(), None),
        }
    }

    fn parse(&self, name: String, text: Option<String>) -> Result<Loaded, Error> {
        match Config::load(&self.flags, &self.env, text.as_deref()) {
            Ok(config) => Ok(Loaded { name, text, config: Arc::new(config) }),
            Err(error) => Err(Error::Config { name, cause: error.to_string() }),
        }
    }

    /// The last good configuration of an earlier run.
    pub(crate) fn last_good(&self, state_dir: &Path) -> Option<Loaded> {
        let kept = fs::read_to_string(state_dir.join(LAST_GOOD)).ok()?;
        let (name, text) = kept.strip_prefix("# ")?.split_once('\n')?;
        let text = (!text.is_empty()).then(|| text.to_owned());
        self.parse(name.to_owned(), text).ok()
    }
}

/// A configuration that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// For people.
    pub(crate) name: String,
    text: Option<String>,
    pub(crate) config: Arc<Config>,
}

impl Loaded {
    /// Keeps it for later starts.
    pub(crate) fn keep(&self, state_dir: &Path) -> Result<(), Error> {
        let path = state_dir.join(LAST_GOOD);
        let text = format!("# {}\n{}", self.name, self.text.as_deref().unwrap_or_default());
        if fs::read_to_string(&path).is_ok_and(|known| known == text) {
            return Ok(());
        }
        crate::files::replace(&path, text)
    }
}

fn fallback(word: &str) -> Result<Fallback, Error> {
    match word {
        "named" => Ok(Fallback::Named),
        "single" => Ok(Fallback::Single),
        "empty" => Ok(Fallback::Empty),
        _ => Err(Error::Config {
            name: "environment variable FALLBACK_STRATEGIES".to_owned(),
            cause: format!("invalid value {word:?}: must be one or more of named, single, empty"),
        }),
    }
}

/// The name of the configuration for a label; `None` for the empty one.
fn choose(
    label: Option<&str>,
    names: &BTreeSet<String>,
    default: Option<&str>,
    fallbacks: &[Fallback],
) -> Result<Option<String>, String> {
    let there = || {
        let list: Vec<&str> = names.iter().take(20).map(String::as_str).collect();
        if list.is_empty() { "there is none".to_owned() } else { format!("there are {}", list.join(", ")) }
    };
    let named = |name: &str, source: &str| {
        let found = names.get(name).cloned().map(Some);
        found.ok_or_else(|| format!("{source} names {name:?}, which does not exist; {}", there()))
    };
    if let Some(name) = label.filter(|name| !name.is_empty()) {
        return named(name, &format!("the node's label {CONFIG_LABEL}"));
    }
    if let Some(name) = default {
        return named(name, "the default");
    }
    for fallback in fallbacks {
        match fallback {
            Fallback::Named if names.contains(NAMED) => return Ok(Some(NAMED.to_owned())),
            Fallback::Single if names.len() == 1 => return Ok(names.first().cloned()),
            Fallback::Empty => return Ok(None),
            Fallback::Named | Fallback::Single => {}
        }
    }
    Err(format!(
        "the node has no label {CONFIG_LABEL}, no default is set, and no fallback applies: {}; set the label, or a default",
        there()
    ))
}

/// The names of configurations. What begins with a dot is the mechanics of mounted ConfigMaps.
fn names(folder: &Path) -> Result<BTreeSet<String>, Error> {
    let io = |source| Error::Io {
        action: "read the folder of configurations",
        path: folder.to_path_buf(),
        source,
    };
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // Through the symbolic links that mounted ConfigMaps consist of.
        if !name.starts_with('.') && fs::metadata(entry.path()).is_ok_and(|file| file.is_file()) {
            names.insert(name);
        }
    }
    Ok(names)
}

fn read(path: &Path) -> Result<String, Error> {
    let io = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
    let length = fs::metadata(path).map_err(io)?.len();
    if length > LONGEST {
        return Err(Error::Config {
            name: format!("configuration {}", path.display()),
            cause: format!("has {length} bytes: at most {LONGEST} are read"),
        });
    }
    fs::read_to_string(path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn label_default_and_fallbacks_choose_as_nvidias_config_manager_does() {
        use Fallback::{Empty, Named, Single};
        let both: &[Fallback] = &[Named, Single];
        for (label, names, default, fallbacks, chosen) in [
            (Some("a"), &["a", "b"][..], Some("b"), both, Some("a")),
            (Some(""), &["a", "b"], Some("b"), both, Some("b")),
            (None, &["a", "b"], Some("b"), both, Some("b")),
            (None, &["a", "default"], None, both, Some("default")),
            (None, &["a"], None, both, Some("a")),
            (None, &["a", "b"], None, &[Named, Empty], None),
        ] {
            assert_eq!(choose(label, &set(names), default, fallbacks), Ok(chosen.map(str::to_owned)));
        }
        for (label, names, default, message) in [
            (
                Some("c"),
                &["a", "b"][..],
                None,
                "the node's label nvidia.com/device-plugin.config names \"c\", which does not exist; there are a, b",
            ),
            (None, &[], Some("a"), "the default names \"a\", which does not exist; there is none"),
            (
                None,
                &["a", "b"],
                None,
                "the node has no label nvidia.com/device-plugin.config, no default is set, and no fallback applies: there are a, b; set the label, or a default",
            ),
        ] {
            assert_eq!(choose(label, &set(names), default, both), Err(message.to_owned()));
        }
    }

    #[test]
    fn a_mounted_config_map_is_read_and_the_last_good_one_comes_back() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("configs");
        let data = folder.join("..2026_01_01");
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("shared"), "version: v1\nflags: {migStrategy: mixed}").unwrap();
        std::os::unix::fs::symlink("..2026_01_01", folder.join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/shared", folder.join("shared")).unwrap();
        let env = BTreeMap::from([("CONFIG_FILE_SRCDIR".to_owned(), folder.display().to_string())]);
        let source = ConfigSource::from_env(BTreeMap::new(), env).unwrap();
        let loaded = source.load(None).unwrap();
        assert_eq!(loaded.name, "configuration shared");
        assert_eq!(loaded.config.mig_strategy, gantry_nvidia_config::MigStrategy::Mixed);
        assert_eq!(source.last_good(root.path()), None);
        loaded.keep(root.path()).unwrap();
        fs::write(data.join("shared"), "version: v2").unwrap();
        assert_eq!(
            source.load(Some("shared")).unwrap_err().to_string(),
            "configuration shared: version (line 1): invalid value \"v2\": the only version is v1; write version: v1"
        );
        assert_eq!(source.last_good(root.path()), Some(loaded));
        let bad = BTreeMap::from([("FALLBACK_STRATEGIES".to_owned(), "named,any".to_owned())]);
        assert_eq!(
            ConfigSource::from_env(BTreeMap::new(), bad).unwrap_err().to_string(),
            "environment variable FALLBACK_STRATEGIES: invalid value \"any\": must be one or more of named, single, empty"
        );
    }
}
