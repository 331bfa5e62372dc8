//! The same with real files.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use gantry_runtime_config::{Engine, Options, Plan, plan};

use crate::{before, options};

#[test]
fn a_file_is_replaced_whole_with_its_mode_and_its_first_form_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("real.toml"), before("gke-v2.toml")).unwrap();
    fs::set_permissions(at("real.toml"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink(at("real.toml"), at("config.toml")).unwrap();
    let options = Options { config: Some(at("config.toml")), ..options(Engine::Containerd) };
    let planned = plan(&options, &Plan::read_file).unwrap();
    assert_eq!(planned.apply().unwrap(), [at("real.toml.gantry-backup")]);
    assert_eq!(fs::read_to_string(at("real.toml.gantry-backup")).unwrap(), before("gke-v2.toml"));
    assert!(fs::symlink_metadata(at("config.toml")).unwrap().is_symlink());
    assert_eq!(fs::metadata(at("real.toml")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(plan(&options, &Plan::read_file).unwrap().changes, []);
    let remove = Options { remove: true, ..options };
    assert_eq!(plan(&remove, &Plan::read_file).unwrap().apply().unwrap().len(), 0, "the first form stays");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn nothing_but_the_drop_in_lies_in_a_folder_of_drop_ins() {
    let folder = tempfile::tempdir().unwrap();
    let drop_ins = folder.path().join("crio.conf.d");
    let drop_in = drop_ins.join("99-nvidia.toml");
    let options = |path: &str| Options {
        config: Some(folder.path().join("crio.conf")),
        drop_in: Some(drop_in.clone()),
        path: path.into(),
        ..options(Engine::Crio)
    };
    plan(&options("/a"), &Plan::read_file).unwrap().apply().unwrap();
    let backups = plan(&options("/b"), &Plan::read_file).unwrap().apply().unwrap();
    assert_eq!(backups, [folder.path().join("99-nvidia.toml.gantry-backup")]);
    assert_eq!(fs::read_dir(&drop_ins).unwrap().count(), 1);
    plan(&Options { remove: true, ..options("/b") }, &Plan::read_file).unwrap().apply().unwrap();
    assert_eq!(fs::read_dir(&drop_ins).unwrap().count(), 0);
}

#[test]
fn a_file_that_changed_since_it_was_read_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("daemon.json");
    fs::write(&path, "{}").unwrap();
    let planned =
        plan(&Options { config: Some(path.clone()), ..options(Engine::Docker) }, &Plan::read_file).unwrap();
    fs::write(&path, "{\"debug\": true}").unwrap();
    let error = planned.apply().unwrap_err().to_string();
    assert_eq!(error, format!("replace {}: it has changed meanwhile; run the command again", path.display()));
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"debug\": true}");
}
