//! Docker: `daemon.json`, with the order and the text of what is not edited kept.
//!
//! Format: <https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file>.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::json;
use serde_json::value::RawValue;

use crate::Error;
use crate::plan::{Options, Plan, Read, change};

const CONFIG: &str = "/etc/docker/daemon.json";

/// How deep a file is indented that has no indentation of its own.
const INDENT: &str = "    ";

pub(crate) fn plan(options: &Options, read: Read<'_>) -> Result<Plan, Error> {
    if let Some(path) = options.drop_in.as_ref().filter(|path| !path.as_os_str().is_empty()) {
        return Err(Error::Option {
            option: "--drop-in-config",
            value: path.display().to_string(),
            rule: "Docker reads one file; leave it out",
        });
    }
    let path = options.config.clone().unwrap_or_else(|| PathBuf::from(CONFIG));
    let before = read(&path)?;
    let text = before.as_deref().filter(|text| !text.trim().is_empty()).unwrap_or("{}");
    let indent = indentation(text);
    let mut root = Object::parse(&path, "the file", text)?;
    let was = root.clone();
    let name = options.name.as_str();
    let mut notes = Vec::new();
    if options.remove {
        if let Some(runtimes) = root.get("runtimes") {
            let mut runtimes = Object::parse(&path, "runtimes", runtimes)?;
            runtimes.remove(name);
            if runtimes.0.is_empty() {
                root.remove("runtimes");
            } else {
                root.set("runtimes", runtimes.render(&indent, 1));
            }
        }
        if root.get("default-runtime") == Some(json!(name).to_string().as_str()) {
            root.remove("default-runtime");
            notes.push("the default runtime is Docker's own again, runc".to_owned());
        }
    } else {
        let mut runtimes = match root.get("runtimes") {
            Some(text) => Object::parse(&path, "runtimes", text)?,
            None => Object::default(),
        };
        let mut own = match runtimes.get(name) {
            Some(text) => Object::parse(&path, &format!("runtimes.{name}"), text)?,
            None => Object(vec![("args".to_owned(), "[]".to_owned())]),
        };
        own.set("path", json!(options.path.to_string_lossy()).to_string());
        runtimes.set_unless_same(name, own.render(&indent, 2));
        root.set_unless_same("runtimes", runtimes.render(&indent, 1));
        if options.default {
            root.set("default-runtime", json!(name).to_string());
        }
        if options.cdi {
            let mut features = match root.get("features") {
                Some(text) => Object::parse(&path, "features", text)?,
                None => Object::default(),
            };
            features.set("cdi", "true".to_owned());
            root.set_unless_same("features", features.render(&indent, 1));
        }
    }
    let after = if root == was { before.clone() } else { Some(root.render(&indent, 0) + "\n") };
    Ok(Plan { changes: vec![change(&path, before, after)], notes, restart: "systemctl restart docker" })
}

/// The spaces before the first key.
fn indentation(text: &str) -> String {
    let line = text.lines().skip(1).find(|line| line.trim_start().starts_with('"'));
    let spaces: String = line.unwrap_or_default().chars().take_while(|c| matches!(c, ' ' | '\t')).collect();
    if spaces.is_empty() { INDENT.to_owned() } else { spaces }
}

/// An object in its order, each value as its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Object(Vec<(String, String)>);

impl Object {
    fn parse(path: &Path, what: &str, text: &str) -> Result<Self, Error> {
        serde_json::from_str(text).map_err(|error| {
            let name = if what == "the file" { String::new() } else { format!("{what}: ") };
            // What serde_json says ends with the place, which stands at the beginning already.
            let detail = error.to_string();
            let detail = detail.split(" at line ").next().unwrap_or_default();
            let (line, column) = (error.line().max(1), error.column().max(1));
            Error::Syntax {
                path: path.to_path_buf(),
                line,
                column,
                detail: format!("{name}not a JSON object: {detail}"),
            }
        })
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, text)| text.as_str())
    }

    fn set(&mut self, key: &str, text: String) {
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => *known = text,
            None => self.0.push((key.to_owned(), text)),
        }
    }

    /// Keeps a text that means the same.
    fn set_unless_same(&mut self, key: &str, text: String) {
        let means = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        if self.get(key).and_then(means) != means(&text) {
            self.set(key, text);
        }
    }

    fn remove(&mut self, key: &str) {
        self.0.retain(|(known, _)| known != key);
    }

    fn render(&self, indent: &str, depth: usize) -> String {
        if self.0.is_empty() {
            return "{}".to_owned();
        }
        let (inner, outer) = (indent.repeat(depth + 1), indent.repeat(depth));
        let lines: Vec<String> =
            self.0.iter().map(|(key, text)| format!("{inner}{}: {text}", json!(key))).collect();
        format!("{{\n{}\n{outer}}}", lines.join(",\n"))
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut object = Object::default();
                while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    object.set(&key, value.get().to_owned());
                }
                Ok(object)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}
