//! The two files of settings.
//!
//! Our own file is read strictly: a key that is not known is an error. Of NVIDIA's, the keys that mean something here are read as strictly,
//! and the others are theirs. Ours goes before theirs, and theirs before the built-in values.

use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml_edit::{Document, Item, Table, TableLike};

use crate::policy::{CONFIG_FILE, Level, LogTarget, NVIDIA_CONFIG_FILE};
use crate::{Error, Policy};

/// The most bytes of a file of settings that are read.
const MAX_FILE: u64 = 1 << 20;

/// The keys of our own file.
const KEYS: [&str; 14] = [
    "runtimes",
    "accept-env-when-unprivileged",
    "accept-volume-mounts",
    "refused",
    "annotation-prefixes",
    "spec-dirs",
    "kinds",
    "disable-require",
    "supported-driver-capabilities",
    "agent-socket",
    "log",
    "log-level",
    "nvidia-config",
    "version",
];

/// Reads the settings. `variable` looks into the environment.
///
/// # Errors
/// Where a file that is there cannot be read, is not TOML, or has a value that means nothing.
pub fn load(variable: &dyn Fn(&str) -> Option<String>) -> Result<Policy, Error> {
    let own = variable("GANTRY_RUNTIME_CONFIG").map_or_else(|| PathBuf::from(CONFIG_FILE), PathBuf::from);
    let text = read(&own)?.unwrap_or_default();
    let theirs = nvidia_path(&own, &text)?.or_else(|| {
        // As NVIDIA's runtime finds it.
        let below = |folder: String| PathBuf::from(folder).join("nvidia-container-runtime/config.toml");
        let named = variable("NVIDIA_CTK_CONFIG_FILE_PATH").map(PathBuf::from);
        Some(named.or_else(|| variable("XDG_CONFIG_HOME").map(below)).unwrap_or(NVIDIA_CONFIG_FILE.into()))
    });
    let mut policy = Policy::default();
    if let Some(path) = theirs.filter(|path| path != Path::new(""))
        && let Some(text) = read(&path)?
    {
        parse_nvidia(&mut policy, &path, &text)?;
    }
    parse_own(&mut policy, &own, &text)?;
    Ok(policy)
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    let io = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io(std::io::Error::other("more than 1 MiB of settings")));
    }
    Ok(Some(text))
}

fn nvidia_path(path: &Path, text: &str) -> Result<Option<PathBuf>, Error> {
    let document = document(path, text)?;
    Ok(Reader::new(path, text, document.as_table()).text("nvidia-config")?.map(PathBuf::from))
}

/// Takes over our own file.
pub(crate) fn parse_own(policy: &mut Policy, path: &Path, text: &str) -> Result<(), Error> {
    let document = document(path, text)?;
    let reader = Reader::new(path, text, document.as_table());
    reader.only(&KEYS)?;
    if let Some(version) = reader.value("version", "must be 1", Item::as_integer)?
        && version != 1
    {
        let span = document.get("version").and_then(Item::span);
        let rule = format!("{version} is not known: this program reads version 1");
        return Err(reader.refuse("version", span, rule));
    }
    set(&mut policy.runtimes, reader.names("runtimes")?);
    if let Some(value) = reader.boolean("accept-env-when-unprivileged")? {
        policy.accept_environment = value;
        policy.source_of_environment = path.to_path_buf();
    }
    if let Some(value) = reader.boolean("accept-volume-mounts")? {
        policy.accept_volume_mounts = value;
        policy.source_of_mounts = path.to_path_buf();
    }
    let refused = reader.choice("refused", &[("start", false), ("fail", true)])?;
    set(&mut policy.strict, refused);
    set(&mut policy.annotation_prefixes, reader.names("annotation-prefixes")?);
    set(&mut policy.spec_dirs, reader.paths("spec-dirs")?);
    set(&mut policy.kinds, reader.kinds("kinds")?);
    set(&mut policy.disable_require, reader.boolean("disable-require")?);
    if let Some(list) = reader.text("supported-driver-capabilities")? {
        policy.supported_capabilities = Some(list);
    }
    set(&mut policy.agent_socket, reader.path("agent-socket")?);
    set(&mut policy.log, reader.log("log")?);
    set(&mut policy.log_level, reader.level("log-level")?);
    reader.text("nvidia-config")?;
    Ok(())
}

/// Takes over what NVIDIA's file says.
pub(crate) fn parse_nvidia(policy: &mut Policy, path: &Path, text: &str) -> Result<(), Error> {
    let document = document(path, text)?;
    let reader = Reader::new(path, text, document.as_table());
    if let Some(value) = reader.boolean("accept-nvidia-visible-devices-envvar-when-unprivileged")? {
        policy.accept_environment = value;
        policy.source_of_environment = path.to_path_buf();
    }
    if let Some(value) = reader.boolean("accept-nvidia-visible-devices-as-volume-mounts")? {
        policy.accept_volume_mounts = value;
        policy.source_of_mounts = path.to_path_buf();
    }
    set(&mut policy.disable_require, reader.boolean("disable-require")?);
    if let Some(list) = reader.text("supported-driver-capabilities")? {
        policy.supported_capabilities = Some(list);
    }
    if let Some(runtime) = reader.table("nvidia-container-runtime")? {
        set(&mut policy.runtimes, runtime.names("runtimes")?);
        set(&mut policy.log_level, runtime.level("log-level")?);
        if let Some(file) = runtime.path("debug")? {
            policy.log = LogTarget::File(file);
        }
        if let Some(modes) = runtime.table("modes")?
            && let Some(cdi) = modes.table("cdi")?
        {
            set(&mut policy.annotation_prefixes, cdi.names("annotation-prefixes")?);
            set(&mut policy.spec_dirs, cdi.paths("spec-dirs")?);
            if let Some(kind) = cdi.kind("default-kind")? {
                // What is generated for a node still goes first.
                policy.kinds.retain(|known| *known != kind);
                policy.kinds.insert(usize::from(!policy.kinds.is_empty()), kind);
            }
        }
    }
    Ok(())
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn document<'a>(path: &Path, text: &'a str) -> Result<Document<&'a str>, Error> {
    Document::parse(text).map_err(|error| {
        let (line, column) = position(text, error.span().map_or(0, |span| span.start));
        let detail = error.message().lines().next().unwrap_or_default().to_owned();
        Error::Toml { path: path.to_path_buf(), line, column, detail }
    })
}

/// Line and column, both from 1, of a byte.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at.min(text.len())).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// A table of a file, and where it is.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    /// The names of the tables around it, each with a dot behind.
    prefix: String,
    table: &'a dyn TableLike,
}

impl<'a> Reader<'a> {
    fn new(path: &'a Path, text: &'a str, table: &'a Table) -> Self {
        Self { path, text, prefix: String::new(), table }
    }

    fn refuse(&self, key: &str, span: Option<Range<usize>>, rule: String) -> Error {
        let (line, _) = position(self.text, span.map_or(0, |span| span.start));
        Error::Setting { path: self.path.to_path_buf(), line, key: format!("{}{key}", self.prefix), rule }
    }

    /// Refuses keys that are not in the list.
    fn only(&self, known: &[&str]) -> Result<(), Error> {
        if let Some((key, item)) = self.table.iter().find(|(key, _)| !known.contains(key)) {
            let span = self.table.key(key).and_then(toml_edit::Key::span).or(item.span());
            return Err(self.refuse(key, span, format!("unknown key; known are {}", known.join(", "))));
        }
        Ok(())
    }

    fn value<T>(
        &self,
        key: &str,
        rule: &str,
        read: impl Fn(&'a Item) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(item) = self.table.get(key) else { return Ok(None) };
        match read(item) {
            Some(value) => Ok(Some(value)),
            None => Err(self.refuse(key, item.span(), rule.to_owned())),
        }
    }

    fn table(&self, key: &str) -> Result<Option<Reader<'a>>, Error> {
        let found = self.value(key, "must be a table", Item::as_table_like)?;
        let prefix = format!("{}{key}.", self.prefix);
        Ok(found.map(|table| Reader { path: self.path, text: self.text, prefix, table }))
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, Error> {
        self.value(key, "must be true or false", Item::as_bool)
    }

    fn text(&self, key: &str) -> Result<Option<String>, Error> {
        Ok(self.value(key, "must be a string", Item::as_str)?.map(str::to_owned))
    }

    fn path(&self, key: &str) -> Result<Option<PathBuf>, Error> {
        let absolute = |item: &'a Item| item.as_str().filter(|text| text.starts_with('/')).map(PathBuf::from);
        self.value(key, "must be an absolute path", absolute)
    }

    /// A list of texts that are not empty, with at least one.
    fn names(&self, key: &str) -> Result<Option<Vec<String>>, Error> {
        let list = |item: &'a Item| {
            let texts: Option<Vec<String>> = item
                .as_array()?
                .iter()
                .map(|value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned))
                .collect();
            texts.filter(|texts| !texts.is_empty())
        };
        self.value(key, "must be a list of at least one string, none of them empty", list)
    }

    fn paths(&self, key: &str) -> Result<Option<Vec<PathBuf>>, Error> {
        let span = self.table.get(key).and_then(Item::span);
        let Some(list) = self.names(key)? else { return Ok(None) };
        if let Some(relative) = list.iter().find(|path| !path.starts_with('/')) {
            return Err(self.refuse(key, span, format!("{relative:?} must be an absolute path")));
        }
        Ok(Some(list.into_iter().map(PathBuf::from).collect()))
    }

    fn kinds(&self, key: &str) -> Result<Option<Vec<String>>, Error> {
        let span = self.table.get(key).and_then(Item::span);
        let Some(list) = self.names(key)? else { return Ok(None) };
        match list.iter().find(|kind| !is_kind(kind)) {
            Some(kind) => {
                Err(self.refuse(key, span, format!("{kind:?} must be vendor/class, as in nvidia.com/gpu")))
            }
            None => Ok(Some(list)),
        }
    }

    fn kind(&self, key: &str) -> Result<Option<String>, Error> {
        let kind = |item: &'a Item| item.as_str().filter(|kind| is_kind(kind)).map(str::to_owned);
        self.value(key, "must be vendor/class, as in nvidia.com/gpu", kind)
    }

    fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>, Error> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let rule = format!("must be one of {}", names.join(", "));
        let find = |item: &'a Item| {
            let text = item.as_str()?;
            choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
        };
        self.value(key, &rule, find)
    }

    fn level(&self, key: &str) -> Result<Option<Level>, Error> {
        // Those of NVIDIA's logger; what it tells apart above an error and below debugging is one here.
        let levels = [
            ("error", Level::Error),
            ("warning", Level::Warning),
            ("warn", Level::Warning),
            ("info", Level::Info),
            ("debug", Level::Debug),
            ("trace", Level::Debug),
            ("fatal", Level::Error),
            ("panic", Level::Error),
        ];
        self.choice(key, &levels)
    }

    fn log(&self, key: &str) -> Result<Option<LogTarget>, Error> {
        let target = |item: &'a Item| match item.as_str()? {
            "syslog" => Some(LogTarget::Syslog),
            "none" => Some(LogTarget::None),
            path if path.starts_with('/') => Some(LogTarget::File(path.into())),
            _ => None,
        };
        self.value(key, "must be syslog, none or an absolute path", target)
    }
}

fn is_kind(text: &str) -> bool {
    gantry_cdi::DeviceName::new(text, "0").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(text: &str) -> Result<Policy, String> {
        let mut policy = Policy::default();
        let read = parse_own(&mut policy, Path::new("/r.toml"), text);
        read.map(|()| policy).map_err(|error| error.to_string())
    }

    fn nvidia(text: &str) -> Result<Policy, String> {
        let mut policy = Policy::default();
        let read = parse_nvidia(&mut policy, Path::new("/n.toml"), text);
        read.map(|()| policy).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_of_our_own_is_read() {
        let text = r#"
            version = 1
            runtimes = ["/opt/runc", "crun"]
            accept-env-when-unprivileged = true
            accept-volume-mounts = false
            refused = "fail"
            annotation-prefixes = ["cdi.k8s.io/", "nvidia.cdi.k8s.io/"]
            spec-dirs = ["/etc/cdi"]
            kinds = ["nvidia.com/gpu"]
            disable-require = true
            supported-driver-capabilities = "compute,utility"
            agent-socket = "/run/a.sock"
            log = "/var/log/gantry-runtime.log"
            log-level = "debug"
            nvidia-config = ""
        "#;
        for key in KEYS {
            assert!(text.contains(&format!("{key} = ")), "{key}");
        }
        assert_eq!(
            own(text).unwrap(),
            Policy {
                runtimes: vec!["/opt/runc".into(), "crun".into()],
                accept_environment: true,
                source_of_environment: "/r.toml".into(),
                accept_volume_mounts: false,
                source_of_mounts: "/r.toml".into(),
                strict: true,
                annotation_prefixes: vec!["cdi.k8s.io/".into(), "nvidia.cdi.k8s.io/".into()],
                spec_dirs: vec!["/etc/cdi".into()],
                kinds: vec!["nvidia.com/gpu".into()],
                disable_require: true,
                supported_capabilities: Some("compute,utility".into()),
                agent_socket: "/run/a.sock".into(),
                log: LogTarget::File("/var/log/gantry-runtime.log".into()),
                log_level: Level::Debug,
            }
        );
        assert_eq!(own("").unwrap(), Policy::default());
    }

    #[test]
    fn nvidias_file_means_what_it_says_and_its_other_keys_are_its_own() {
        // As `nvidia-ctk config` writes it, with some lines made active.
        let text = r#"
            accept-nvidia-visible-devices-as-volume-mounts = true
            accept-nvidia-visible-devices-envvar-when-unprivileged = true
            disable-require = false
            supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
            #swarm-resource = "DOCKER_RESOURCE_GPU"

            [nvidia-container-cli]
            #debug = "/var/log/nvidia-container-toolkit.log"
            environment = []
            ldconfig = "@/sbin/ldconfig.real"
            load-kmods = true

            [nvidia-container-runtime]
            debug = "/var/log/nvidia-container-runtime.log"
            log-level = "warning"
            mode = "auto"
            runtimes = ["docker-runc", "runc"]

            [nvidia-container-runtime.modes.cdi]
            annotation-prefixes = ["cdi.k8s.io/", "x.io/"]
            default-kind = "management.nvidia.com/gpu"
            spec-dirs = ["/etc/cdi", "/run/cdi"]

            [nvidia-container-runtime.modes.legacy]
            cuda-compat-mode = "ldconfig"

            [nvidia-ctk]
            path = "nvidia-ctk"
        "#;
        let policy = nvidia(text).unwrap();
        assert!(policy.accept_environment && policy.accept_volume_mounts && !policy.disable_require);
        assert_eq!(policy.source_of_environment, Path::new("/n.toml"));
        assert_eq!(policy.runtimes, ["docker-runc", "runc"]);
        assert_eq!(policy.log, LogTarget::File("/var/log/nvidia-container-runtime.log".into()));
        assert_eq!(policy.log_level, Level::Warning);
        assert_eq!(policy.kinds, ["runtime.nvidia.com/gpu", "management.nvidia.com/gpu", "nvidia.com/gpu"]);
        assert_eq!(policy.spec_dirs, [Path::new("/etc/cdi"), Path::new("/run/cdi")]);
        assert_eq!(policy.annotation_prefixes, ["cdi.k8s.io/", "x.io/"]);
    }

    #[test]
    fn our_own_file_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (folder.path().join("r.toml"), folder.path().join("n.toml"));
        let variable = |name: &str| match name {
            "GANTRY_RUNTIME_CONFIG" => Some(ours.display().to_string()),
            "NVIDIA_CTK_CONFIG_FILE_PATH" => Some(theirs.display().to_string()),
            _ => None,
        };
        assert_eq!(load(&variable).unwrap(), Policy::default());
        std::fs::write(
            &theirs,
            "accept-nvidia-visible-devices-envvar-when-unprivileged = true\ndisable-require = true\n",
        )
        .unwrap();
        let policy = load(&variable).unwrap();
        assert!(policy.accept_environment && policy.disable_require);
        assert_eq!(policy.source_of_environment, theirs);
        std::fs::write(&ours, "accept-env-when-unprivileged = false\n").unwrap();
        let policy = load(&variable).unwrap();
        assert!(!policy.accept_environment && policy.disable_require);
        assert_eq!(policy.source_of_environment, ours);
        std::fs::write(&ours, "nvidia-config = ''\n").unwrap();
        assert_eq!(load(&variable).unwrap(), Policy::default(), "theirs is not read");
    }

    #[test]
    fn refusals() {
        let known = KEYS.join(", ");
        for (text, expected) in [
            (
                "runtimes = 1",
                "/r.toml:1: runtimes: must be a list of at least one string, none of them empty".to_owned(),
            ),
            (
                "runtimes = []",
                "/r.toml:1: runtimes: must be a list of at least one string, none of them empty".to_owned(),
            ),
            (
                "runtimes = ['']",
                "/r.toml:1: runtimes: must be a list of at least one string, none of them empty".to_owned(),
            ),
            ("\n\nrefused = 'never'", "/r.toml:3: refused: must be one of start, fail".to_owned()),
            ("log = 'here'", "/r.toml:1: log: must be syslog, none or an absolute path".to_owned()),
            (
                "log-level = 'loud'",
                "/r.toml:1: log-level: must be one of error, warning, warn, info, debug, trace, fatal, panic"
                    .to_owned(),
            ),
            ("agent-socket = 'a.sock'", "/r.toml:1: agent-socket: must be an absolute path".to_owned()),
            (
                "spec-dirs = ['/etc/cdi', 'cdi']",
                "/r.toml:1: spec-dirs: \"cdi\" must be an absolute path".to_owned(),
            ),
            (
                "kinds = ['gpu']",
                "/r.toml:1: kinds: \"gpu\" must be vendor/class, as in nvidia.com/gpu".to_owned(),
            ),
            ("version = 2", "/r.toml:1: version: 2 is not known: this program reads version 1".to_owned()),
            ("# a\naccept = true", format!("/r.toml:2: accept: unknown key; known are {known}")),
            (
                "[runtimes]\n",
                "/r.toml:1: runtimes: must be a list of at least one string, none of them empty".to_owned(),
            ),
            ("a = 1\nb = [1,\n", "/r.toml:2:8: not TOML: unclosed array, expected `]`".to_owned()),
            ("version = 1\nversion = 1\n", "/r.toml:2:1: not TOML: duplicate key".to_owned()),
        ] {
            assert_eq!(own(text).unwrap_err(), expected, "{text:?}");
        }
        for (text, expected) in [
            ("disable-require = 'no'", "/n.toml:1: disable-require: must be true or false"),
            ("nvidia-container-runtime = 1", "/n.toml:1: nvidia-container-runtime: must be a table"),
            (
                "[nvidia-container-runtime]\nlog-level = 3",
                "/n.toml:2: nvidia-container-runtime.log-level: must be one of error, warning, warn, info, debug, trace, fatal, panic",
            ),
            (
                "[nvidia-container-runtime.modes.cdi]\ndefault-kind = 'gpu'",
                "/n.toml:2: nvidia-container-runtime.modes.cdi.default-kind: must be vendor/class, as in nvidia.com/gpu",
            ),
        ] {
            assert_eq!(nvidia(text).unwrap_err(), expected, "{text:?}");
        }
    }
}
