//! From flags, environment and file to one configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::config::{
    AllocationPolicy, Config, DeviceIdStrategy, DeviceListStrategy, DiscoveryStrategy, Gfd, HealthChecks,
    Imex, MigStrategy, Plugin, SharingKind,
};
use crate::error::{meant, short};
use crate::file::{self, File};
use crate::settings::{
    DISCOVERIES, ID_STRATEGIES, LIST_STRATEGIES, MIG_STRATEGIES, POLICIES, SETTINGS, Setting,
};
use crate::yaml::Value;
use crate::{At, Error, Kind, Notice, Treatment};

/// XIDs that are ignored, and those that are not in spite of it; NVIDIA's plugin has no flags for them.
const HEALTH_CHECKS: [&str; 2] = ["DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"];

impl Config {
    /// The file that flags or environment name.
    pub fn file(flags: &BTreeMap<String, String>, env: &BTreeMap<String, String>) -> Option<PathBuf> {
        let setting = Values::setting("config-file");
        let variables = setting.env.iter().filter_map(|name| env.get(*name));
        flags.get(setting.flag).into_iter().chain(variables).find(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// Whether somebody has set what this flag sets, by flag, environment or file.
    pub fn is_set(&self, flag: &str) -> bool {
        self.given.contains_key(flag)
    }

    /// The settings that are read at the start alone and are not as they were in `earlier`.
    pub fn changed_since_start(&self, earlier: &Self) -> Vec<&'static Setting> {
        let at_start = SETTINGS.iter().filter(|setting| setting.treatment == Treatment::AtStart);
        at_start.filter(|setting| self.given.get(setting.flag) != earlier.given.get(setting.flag)).collect()
    }

    /// Merges flags, environment, file and defaults, in this order of importance, and checks the result.
    ///
    /// `flags` are those that were given, by name without hyphens; `env` may be the whole environment. Of variables, those that are
    /// empty count as not set, but for `KUBELET_SOCKET`.
    ///
    /// # Errors
    /// The first fault: it names key and line, variable or flag, the value, the rule and the fix.
    pub fn load(
        flags: &BTreeMap<String, String>,
        env: &BTreeMap<String, String>,
        file: Option<&str>,
    ) -> Result<Self, Error> {
        let mut by_setting: BTreeMap<&'static str, (At, Value)> = BTreeMap::new();
        for (name, value) in flags {
            let setting = SETTINGS
                .iter()
                .find(|setting| setting.flag == name || setting.aliases.contains(&name.as_str()));
            let at = At::Flag(short(name));
            let Some(setting) = setting else {
                let known: Vec<_> = SETTINGS.iter().map(|setting| setting.flag).collect();
                return Err(Error::Unknown { at, meant: meant(name, &known), known });
            };
            if let Some((other, _)) = by_setting.get(setting.flag) {
                let rule = format!("is another name of {other}; give one of them");
                return Err(Error::Conflict { at, rule });
            }
            by_setting.insert(setting.flag, (at, Value::Text(value.clone())));
        }
        let File { mut settings, resources, sharing } = file.map(file::read).transpose()?.unwrap_or_default();
        for setting in SETTINGS {
            if by_setting.contains_key(setting.flag) {
                continue;
            }
            let counts = |value: &&String| !value.is_empty() || setting.flag == "kubelet-socket";
            let from_env = setting.env.iter().find_map(|name| {
                let value = env.get(*name).filter(counts)?;
                Some((At::Env((*name).to_owned()), Value::Text(value.clone())))
            });
            let from_file = setting.path.and_then(|path| settings.remove(path));
            if let Some(value) = from_env.or(from_file) {
                by_setting.insert(setting.flag, value);
            }
        }
        let values = Values(by_setting);
        values.check_treatment()?;
        let config = Self {
            mig_strategy: match values.word("mig-strategy", MIG_STRATEGIES)? {
                "single" => MigStrategy::Single,
                "mixed" => MigStrategy::Mixed,
                _ => MigStrategy::None,
            },
            fail_on_init_error: values.bool("fail-on-init-error")?,
            mps_root: values.path("mps-root")?,
            driver_root: values.path("driver-root")?.unwrap_or_else(|| "/".into()),
            dev_root: match values.path("dev-root")? {
                Some(root) => root,
                None => values.path("driver-root")?.unwrap_or_else(|| "/".into()),
            },
            gdrcopy: values.bool("gdrcopy-enabled")?,
            gds: values.bool("gds-enabled")?,
            mofed: values.bool("mofed-enabled")?,
            use_node_feature_api: values.bool("use-node-feature-api")?,
            discovery: match values.word("device-discovery-strategy", DISCOVERIES)? {
                "nvml" => DiscoveryStrategy::Nvml,
                "tegra" => DiscoveryStrategy::Tegra,
                "vfio" => DiscoveryStrategy::Vfio,
                _ => DiscoveryStrategy::Auto,
            },
            plugin: values.plugin()?,
            gfd: Gfd {
                oneshot: values.bool("oneshot")?,
                no_timestamp: values.bool("no-timestamp")?,
                sleep_interval: values.duration("sleep-interval")?,
                output_file: values.path("output-file")?,
                machine_type_file: values.path("machine-type-file")?.unwrap_or_default(),
            },
            resources,
            sharing: sharing.as_ref().map(|(_, sharing)| sharing.clone()),
            imex: Imex {
                channel_ids: values.channels("imex-channel-ids")?,
                required: values.bool("imex-required")?,
            },
            kubelet_socket: match values.0.get("kubelet-socket") {
                None => None,
                Some(_) => Some(values.kubelet_socket()?),
            },
            health_checks: health_checks(env)?,
            notices: values.notices(),
            given: values.0.iter().map(|(flag, (_, value))| (*flag, value.text())).collect(),
        };
        if let Some((at, sharing)) = sharing
            && sharing.kind == SharingKind::Mps
        {
            values.check_mps(&config, at)?;
        }
        Ok(config)
    }
}

/// What was set, by flag.
struct Values(BTreeMap<&'static str, (At, Value)>);

impl Values {
    fn setting(flag: &str) -> &'static Setting {
        let found = SETTINGS.iter().find(|setting| setting.flag == flag);
        found.expect("invariant: only flags of the table are asked for")
    }

    /// What was set, else the default.
    fn get(&self, flag: &'static str) -> (At, Value) {
        self.0.get(flag).cloned().unwrap_or_else(|| {
            (At::Flag(flag.to_owned()), Value::Text(Self::setting(flag).default.to_owned()))
        })
    }

    /// Refuses words that nothing here could follow.
    fn check_treatment(&self) -> Result<(), Error> {
        for setting in SETTINGS {
            let Treatment::Only(words, why) = setting.treatment else { continue };
            let Some((at, Value::Text(text))) = self.0.get(setting.flag) else { continue };
            let Kind::Word(known) = setting.kind else { continue };
            if known.contains(&text.as_str()) && !words.contains(&text.as_str()) {
                let rule = format!("must be one of {}: {why}", words.join(", "));
                return Err(Error::Invalid { at: at.clone(), value: short(text), rule });
            }
        }
        Ok(())
    }

    /// What was set and changes nothing, in the table's order.
    fn notices(&self) -> Vec<Notice> {
        let unneeded = SETTINGS.iter().filter_map(|setting| match setting.treatment {
            Treatment::Unneeded(why) => Some((self.0.get(setting.flag)?.0.clone(), why)),
            _ => None,
        });
        let mut notices: Vec<Notice> = unneeded.map(|(at, why)| Notice { at, why }).collect();
        if let Some((at, _)) = self.0.get("output-file")
            && self.0.contains_key("use-node-feature-api")
            && self.bool("use-node-feature-api").is_ok_and(|into_object| into_object)
        {
            let why = "labels go into a NodeFeature object, as useNodeFeatureAPI has it";
            notices.push(Notice { at: at.clone(), why });
        }
        notices
    }

    fn bool(&self, flag: &'static str) -> Result<bool, Error> {
        let (at, value) = self.get(flag);
        match (&at, value) {
            (_, Value::Bool(value)) => Ok(value),
            (At::Flag(_) | At::Env(_), Value::Text(text)) => match text.as_str() {
                "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
                "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
                _ => {
                    Err(Error::Invalid { at, value: short(&text), rule: "must be true or false".to_owned() })
                }
            },
            (_, value) => Err(Error::Type { at, found: value.describe(), wanted: "true or false" }),
        }
    }

    fn text(&self, flag: &'static str, wanted: &'static str) -> Result<(At, String), Error> {
        match self.get(flag) {
            (at, Value::Text(text)) => Ok((at, text)),
            (at, value) => Err(Error::Type { at, found: value.describe(), wanted }),
        }
    }

    /// A path that begins at the root; `None` where it is empty.
    fn path(&self, flag: &'static str) -> Result<Option<PathBuf>, Error> {
        let (at, text) = self.text(flag, "a path")?;
        if text.is_empty() {
            return Ok(None);
        }
        let rule = if !text.starts_with('/') {
            "must be an absolute path; begin it with /"
        } else if text.contains('\0') {
            "must not have a zero byte"
        } else {
            return Ok(Some(PathBuf::from(text)));
        };
        Err(Error::Invalid { at, value: short(&text), rule: rule.to_owned() })
    }

    /// The kubelet listens on a name that is always the same, and looks for plugins beside it.
    fn kubelet_socket(&self) -> Result<Option<PathBuf>, Error> {
        let path = self.path("kubelet-socket")?;
        if let Some(path) = path.as_ref().filter(|path| path.file_name() != Some("kubelet.sock".as_ref())) {
            let (at, value) = (self.get("kubelet-socket").0, short(&path.to_string_lossy()));
            let rule = "must end with /kubelet.sock, which is the kubelet's name for it; name its folder";
            return Err(Error::Invalid { at, value, rule: rule.to_owned() });
        }
        Ok(path)
    }

    fn word(&self, flag: &'static str, words: &'static [&'static str]) -> Result<&'static str, Error> {
        let (at, text) = self.text(flag, "one word")?;
        word(&at, &text, words)
    }

    /// Texts of a list, or separated by commas.
    fn texts(&self, flag: &'static str) -> Result<Vec<(At, String)>, Error> {
        match self.get(flag) {
            (at, Value::Text(text)) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                Ok(parts.map(|part| (at.clone(), part.to_owned())).collect())
            }
            (at, Value::List(list)) => list
                .into_iter()
                .enumerate()
                .map(|(i, node)| {
                    let at = match &at {
                        At::File { path, .. } => At::File { path: format!("{path}[{i}]"), line: node.line },
                        other => other.clone(),
                    };
                    match node.value {
                        Value::Text(text) => Ok((at, text)),
                        Value::Integer(number) => Ok((at, number.to_string())),
                        value => {
                            Err(Error::Type { at, found: value.describe(), wanted: "a text or a number" })
                        }
                    }
                })
                .collect(),
            (at, value) => Err(Error::Type { at, found: value.describe(), wanted: "a list" }),
        }
    }

    fn plugin(&self) -> Result<Plugin, Error> {
        let mut device_list_strategies = BTreeSet::new();
        for (at, text) in self.texts("device-list-strategy")? {
            device_list_strategies.insert(match word(&at, &text, LIST_STRATEGIES)? {
                "volume-mounts" => DeviceListStrategy::VolumeMounts,
                "cdi-annotations" => DeviceListStrategy::CdiAnnotations,
                "cdi-cri" => DeviceListStrategy::CdiCri,
                _ => DeviceListStrategy::Envvar,
            });
        }
        if device_list_strategies.is_empty() {
            let (at, _) = self.get("device-list-strategy");
            let rule = format!(
                "containers would get no device; write one or more of {}",
                LIST_STRATEGIES.join(", ")
            );
            return Err(Error::Invalid { at, value: String::new(), rule });
        }
        let plain = |texts: Vec<(At, String)>| texts.into_iter().map(|(_, text)| text).collect();
        Ok(Plugin {
            pass_device_specs: self.bool("pass-device-specs")?,
            device_list_strategies,
            device_id_strategy: match self.word("device-id-strategy", ID_STRATEGIES)? {
                "index" => DeviceIdStrategy::Index,
                _ => DeviceIdStrategy::Uuid,
            },
            cdi_annotation_prefix: self.annotation_prefix()?,
            ctk_path: self.path("nvidia-cdi-hook-path")?.unwrap_or_default(),
            container_driver_root: self.path("driver-root-ctr-path")?.unwrap_or_default(),
            allocation_policy: match self.word("shared-devices-allocation-policy", POLICIES)? {
                "packed" => AllocationPolicy::Packed,
                _ => AllocationPolicy::Distributed,
            },
            cdi_feature_flags: plain(self.texts("cdi-feature-flags")?),
            cdi_disable_hooks: plain(self.texts("cdi-disable-hooks")?),
        })
    }

    /// The first part of an annotation's key: a DNS subdomain and a slash.
    fn annotation_prefix(&self) -> Result<String, Error> {
        let (at, text) = self.text("cdi-annotation-prefix", "a text")?;
        let domain = text.strip_suffix('/').unwrap_or_default();
        let label = |label: &str| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        if domain.len() > 253 || !domain.split('.').all(label) {
            let rule = "must be a domain and a slash, as in cdi.k8s.io/".to_owned();
            return Err(Error::Invalid { at, value: short(&text), rule });
        }
        Ok(text)
    }

    fn channels(&self, flag: &'static str) -> Result<Vec<u32>, Error> {
        let mut channels: Vec<u32> = Vec::new();
        for (at, text) in self.texts(flag)? {
            match text.parse() {
                Ok(0) if channels.is_empty() => channels.push(0),
                _ => {
                    let rule = "the only channel that can be injected is 0, once; write [0] or []".to_owned();
                    return Err(Error::Invalid { at, value: short(&text), rule });
                }
            }
        }
        Ok(channels)
    }

    fn duration(&self, flag: &'static str) -> Result<Option<Duration>, Error> {
        let (at, text) = self.text(flag, "a time with its unit, such as 60s, or infinite")?;
        if text == "infinite" {
            return Ok(None);
        }
        match duration(&text) {
            Some(time) if !time.is_zero() => Ok(Some(time)),
            _ => {
                let rule =
                    "must be a time above zero with its unit, such as 60s or 1m30s, or infinite".to_owned();
                Err(Error::Invalid { at, value: short(&text), rule })
            }
        }
    }

    fn check_mps(&self, config: &Config, at: At) -> Result<(), Error> {
        if config.mig_strategy == MigStrategy::Mixed {
            let (strategy, _) = self.get("mig-strategy");
            let rule = format!(
                "MPS cannot share partitions, and {strategy} is mixed; set it to none, or use timeSlicing"
            );
            return Err(Error::Conflict { at, rule });
        }
        if config.mps_root.is_none() {
            let rule = "MPS needs the folder of its control daemon; set flags.mpsRoot, as in /run/nvidia/mps";
            return Err(Error::Conflict { at, rule: rule.to_owned() });
        }
        Ok(())
    }
}

fn word(at: &At, text: &str, words: &'static [&'static str]) -> Result<&'static str, Error> {
    words.iter().find(|word| **word == text).copied().ok_or_else(|| Error::Invalid {
        at: at.clone(),
        value: short(text),
        rule: match meant(text, words) {
            Some(meant) => format!("must be one of {}; did you mean {meant}?", words.join(", ")),
            None => format!("must be one of {}", words.join(", ")),
        },
    })
}

/// A time as Go's `time.ParseDuration` reads it, without sign.
fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("μs", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let mut rest = text;
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (_, factor) = UNITS.iter().find(|(unit, _)| *unit == &rest[..end])?;
        seconds += number * factor;
        rest = &rest[end..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

fn health_checks(env: &BTreeMap<String, String>) -> Result<HealthChecks, Error> {
    let mut checks = HealthChecks::default();
    for name in HEALTH_CHECKS {
        let disables = name == HEALTH_CHECKS[0];
        let words = env.get(name).map(String::as_str).unwrap_or_default().split(',').map(str::trim);
        for text in words.filter(|text| !text.is_empty()) {
            if disables && (text == "all" || text == "xids") {
                checks.all_disabled = true;
                continue;
            }
            let Ok(xid) = text.parse::<u32>() else {
                let rule = if disables {
                    "must be all, xids, or numbers of XIDs, as in 48,79"
                } else {
                    "must be numbers of XIDs, as in 48,79"
                };
                let at = At::Env(name.to_owned());
                return Err(Error::Invalid { at, value: short(text), rule: rule.to_owned() });
            };
            if disables {
                checks.disabled.insert(xid);
            } else {
                checks.enabled.insert(xid);
            }
        }
    }
    Ok(checks)
}
