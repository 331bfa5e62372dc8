//! Kubeconfig files: entries of a cluster of ours put into a file that may be somebody's, and taken out again.
//!
//! Format: <https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/>. What is not ours is kept as it is,
//! including fields that nobody here knows; comments are lost, as they are with kubectl.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Error;

/// The lists of named entries.
const LISTS: [&str; 3] = ["clusters", "users", "contexts"];
const CURRENT: &str = "current-context";

/// Puts the entries of `ours`, a whole kubeconfig, into the file, replacing those of the same names, and makes its
/// current context the file's. A file that is not there is made.
pub(crate) fn merge(path: &Path, ours: &Value) -> Result<(), Error> {
    let path = target(path)?;
    let Some((mut file, form)) = read(&path)? else {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            fs::create_dir_all(parent).map_err(|error| Error::io("create", parent, error))?;
        }
        return write(&path, ours, Form::Json);
    };
    for list in LISTS {
        let added = ours[list].as_array().map(Vec::as_slice).unwrap_or_default();
        let entries = entries(&mut file, list, &path)?;
        entries.retain(|entry| !added.iter().any(|new| new["name"] == entry["name"]));
        entries.extend(added.iter().cloned());
    }
    for (field, value) in [("apiVersion", "v1"), ("kind", "Config")] {
        if file[field].is_null() {
            file[field] = value.into();
        }
    }
    file[CURRENT] = ours[CURRENT].clone();
    write(&path, &file, form)
}

/// Takes the cluster `cluster` with its user and context out of the file, as [`merge`] put them in. A file that is
/// not there stays so.
///
/// # Errors
/// The file cannot be read as a kubeconfig, and is left as it is, or cannot be written.
pub fn remove_from_kubeconfig(path: &Path, cluster: &str) -> Result<(), Error> {
    let path = target(path)?;
    let Some((mut file, form)) = read(&path)? else { return Ok(()) };
    let before = file.clone();
    for (list, name) in LISTS.into_iter().zip([cluster, &user(cluster), cluster]) {
        if !file[list].is_null() {
            entries(&mut file, list, &path)?.retain(|entry| entry["name"] != name);
        }
    }
    if file[CURRENT] == cluster {
        file[CURRENT] = "".into();
    }
    if file == before { Ok(()) } else { write(&path, &file, form) }
}

/// The name of the administrator of a cluster.
pub(crate) fn user(cluster: &str) -> String {
    format!("{cluster}-admin")
}

/// The form in which a file is written again: that in which it was found.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Yaml,
}

/// The file that is meant: a link stays one.
fn target(path: &Path) -> Result<PathBuf, Error> {
    match fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

fn read(path: &Path) -> Result<Option<(Value, Form)>, Error> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path, error)),
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    // JSON is YAML, but whoever wrote JSON may read it with nothing else.
    let (file, form): (Value, Form) = match serde_json::from_str(&text) {
        Ok(file) => (file, Form::Json),
        Err(_) => match serde_saphyr::from_str(&text) {
            Ok(file) => (file, Form::Yaml),
            Err(error) => return Err(unusable(path, error.to_string())),
        },
    };
    if file.is_object() { Ok(Some((file, form))) } else { Err(unusable(path, "it is no object".to_owned())) }
}

fn entries<'a>(file: &'a mut Value, list: &str, path: &Path) -> Result<&'a mut Vec<Value>, Error> {
    let value = &mut file[list];
    if value.is_null() {
        *value = json!([]);
    }
    value.as_array_mut().ok_or_else(|| unusable(path, format!("{list} is no list")))
}

fn unusable(path: &Path, problem: String) -> Error {
    Error::Kubeconfig { path: path.to_owned(), problem }
}

/// Replaces the file as a whole, readable by its owner only: it holds keys.
fn write(path: &Path, file: &Value, form: Form) -> Result<(), Error> {
    let text = match form {
        Form::Json => {
            serde_json::to_string_pretty(file).expect("invariant: a JSON value has string keys") + "\n"
        }
        Form::Yaml => serde_saphyr::to_string(file).map_err(|error| unusable(path, error.to_string()))?,
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::io("write", path, error)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::pki::ServerIdentity;

    const THEIRS: &str = r"# of the user
apiVersion: v1
kind: Config
preferences: {colors: true}
current-context: work
clusters:
- {name: work, cluster: {server: 'https://work:6443', tls-server-name: k8s}}
- {name: gantry, cluster: {server: 'https://127.0.0.1:1'}}
users:
- name: me
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: login, env: null}, future-field: [1, 2]}
contexts:
- {name: work, context: {cluster: work, user: me, extensions: [{name: x, extension: {y: 1}}]}}
";

    fn parsed(path: &Path) -> Value {
        serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    fn names(file: &Value, list: &str) -> Vec<String> {
        file[list].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_cluster_comes_into_a_kubeconfig_and_goes_without_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("config"), dir.path().join("link"));
        fs::write(&path, THEIRS).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let theirs = parsed(&path);
        let identity = ServerIdentity::generate().unwrap();
        for url in ["https://127.0.0.1:2", "https://127.0.0.1:3"] {
            identity.write_kubeconfig(&link, "gantry", url).unwrap();
        }
        let merged = parsed(&path);
        assert_eq!(names(&merged, "clusters"), ["work", "gantry"]);
        assert_eq!(names(&merged, "users"), ["me", "gantry-admin"]);
        assert_eq!(names(&merged, "contexts"), ["work", "gantry"]);
        assert_eq!(merged["clusters"][1]["cluster"]["server"], "https://127.0.0.1:3");
        assert_eq!(merged[CURRENT], "gantry");
        for pointer in ["/preferences", "/clusters/0", "/users/0", "/contexts/0"] {
            assert_eq!(merged.pointer(pointer), theirs.pointer(pointer), "{pointer}");
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing temporary stays");

        remove_from_kubeconfig(&link, "gantry").unwrap();
        let mut left = theirs.clone();
        left["clusters"].as_array_mut().unwrap().remove(1);
        left[CURRENT] = "".into();
        assert_eq!(parsed(&path), left);
    }

    #[test]
    fn another_current_context_stays_when_a_cluster_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        fs::write(&path, THEIRS).unwrap();
        remove_from_kubeconfig(&path, "gantry").unwrap();
        assert_eq!(parsed(&path)[CURRENT], "work");
        remove_from_kubeconfig(&dir.path().join("none"), "gantry").unwrap();
    }

    #[test]
    fn a_missing_or_empty_file_is_made_with_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (deep, empty) = (dir.path().join("a/b/config"), dir.path().join("empty"));
        fs::write(&empty, "\n").unwrap();
        let identity = ServerIdentity::generate().unwrap();
        for path in [&deep, &empty] {
            identity.write_kubeconfig(path, "gantry", "https://127.0.0.1:2").unwrap();
            let text = fs::read_to_string(path).unwrap();
            assert_eq!(text, identity.kubeconfig("gantry", "https://127.0.0.1:2"));
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_as_a_kubeconfig_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let identity = ServerIdentity::generate().unwrap();
        for (text, problem) in [
            ("clusters: [", None),
            ("- a\n", Some("it is no object")),
            ("{\"users\": {\"me\": 1}}", Some("users is no list")),
        ] {
            fs::write(&path, text).unwrap();
            let error = identity.write_kubeconfig(&path, "gantry", "https://127.0.0.1:2").unwrap_err();
            let shown = error.to_string();
            assert!(shown.starts_with(&format!("{} is no kubeconfig: ", path.display())), "{shown}");
            assert!(problem.is_none_or(|problem| shown.contains(problem)), "{shown}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        let error = identity.write_kubeconfig(&path, "gantry", "https://127.0.0.1:2").unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read {}", path.display()));
        assert_eq!(fs::read(&path).unwrap(), [0xff, 0xfe]);
    }
}
