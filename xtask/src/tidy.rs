//! `cargo xtask tidy`: the structure that ARCHITECTURE.md promises.
//!
//! Every check collects findings rather than stopping at the first, so that one run shows all there is to mend.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::{self, Package};

/// The layers from left to right: a crate may use its own layer and those before it.
const LAYERS: &[&[&str]] =
    &[&["core"], &["wire"], &["kit"], &["node", "control"], &["lab"], &["ui"], &["xtask"]];

/// Pairs of folders that never use each other although the order of layers would allow it.
const STRANGERS: &[(&str, &str, &str)] = &[
    ("node", "control", "they meet only through what is written in the cluster"),
    ("lab/apiserver", "wire/api", "the API server learns our CRDs from YAML, as a real one does"),
];

/// What the pure crates may not mention.
const IMPURE: &[&str] = &[
    "SystemTime",
    "Instant::now",
    "Timestamp::now",
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "rand::",
    "RandomState",
    "tokio::",
    "kube::",
];

/// What the pure crates may not depend on.
const IMPURE_CRATES: &[&str] =
    &["tokio", "kube", "k8s-openapi", "tonic", "hyper", "rand", "getrandom", "tempfile", "nix"];

/// Longest file, in lines, that needs no reason.
const LONGEST: usize = 1_000;

/// A file longer than [`LONGEST`] says why in a comment that starts with this.
const LONG_REASON: &str = "tidy: long because";

pub(crate) fn run() -> anyhow::Result<()> {
    let root = cargo::root();
    let sources = sources(&root)?;
    let mut findings = Vec::new();
    let members = cargo::members()?;
    edges(&root, &members, &mut findings);
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).context("read ARCHITECTURE.md")?;
    code_map(&root, &members, &map, &mut findings);
    for (path, text) in &sources {
        length(path, text, &mut findings);
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        crate_doc(path, text, &mut findings);
        purity(path, text, &mut findings);
        unwraps(path, text, &mut findings);
    }
    banned(&root, &mut findings)?;
    if findings.is_empty() {
        println!("tidy: {} files, nothing to mend", sources.len());
        return Ok(());
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    bail!("tidy: {} findings", findings.len())
}

/// Files that people write, by their names' ends.
const WRITTEN: &[&str] = &["*.rs", "*.md", "*.types", "*.proto", "*.py", "*.sh"];

/// The files that git knows or would add and that people write, with their text; paths are relative to the root.
fn sources(root: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .args(WRITTEN)
        .current_dir(root)
        .output()
        .context("start git ls-files")?;
    let mut files = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // A file that was deleted but not yet staged is still listed.
        let Ok(text) = fs::read_to_string(root.join(line)) else { continue };
        files.push((PathBuf::from(line), text));
    }
    if files.is_empty() {
        bail!("git ls-files named no file in {}: is this a git checkout?", root.display());
    }
    Ok(files)
}

fn layer(folder: &Path) -> Option<usize> {
    let first = folder.components().next()?.as_os_str().to_str()?.to_owned();
    LAYERS.iter().position(|folders| folders.contains(&first.as_str()))
}

fn edges(root: &Path, members: &[Package], findings: &mut Vec<String>) {
    for member in members {
        let from = folder(root, &member.manifest_path);
        let Some(from_layer) = layer(&from) else {
            findings.push(format!("{}: lies in no layer of xtask/src/tidy.rs", from.display()));
            continue;
        };
        for dependency in &member.dependencies {
            let development = dependency.kind.as_deref() == Some("dev");
            if from.starts_with("core") && !development && IMPURE_CRATES.contains(&dependency.name.as_str()) {
                findings.push(format!("{}: {} has no place in core/", from.display(), dependency.name));
            }
            let Some(path) = &dependency.path else { continue };
            let to = path.strip_prefix(root).unwrap_or(path).to_path_buf();
            // Tests may reach to the right, for a cluster to run in: they ship to nobody.
            if !development && layer(&to).is_none_or(|to_layer| to_layer > from_layer) {
                findings.push(format!(
                    "{}: {} may not use {}: layers point left",
                    from.display(),
                    member.name,
                    dependency.name
                ));
            }
            for (a, b, why) in STRANGERS {
                let between = |x: &str, y: &str| from.starts_with(x) && to.starts_with(y);
                if !development && (between(a, b) || between(b, a)) {
                    findings.push(format!(
                        "{}: {} may not use {}: {why}",
                        from.display(),
                        member.name,
                        dependency.name
                    ));
                }
            }
            if dependency.name == "gantry-testkit" && !development {
                findings.push(format!("{}: gantry-testkit is a dev-dependency only", from.display()));
            }
        }
    }
}

/// Every crate has its row in the code map.
fn code_map(root: &Path, members: &[Package], map: &str, findings: &mut Vec<String>) {
    for member in members {
        let folder = folder(root, &member.manifest_path);
        if !map.contains(&format!("| `{}` |", folder.display())) {
            findings.push(format!("{}: has no row in the code map of ARCHITECTURE.md", folder.display()));
        }
    }
}

fn folder(root: &Path, manifest: &Path) -> PathBuf {
    let folder = manifest.parent().unwrap_or(manifest);
    folder.strip_prefix(root).unwrap_or(folder).to_path_buf()
}

fn generated(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "gen")
}

fn length(path: &Path, text: &str, findings: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > LONGEST && !generated(path) && !text.contains(LONG_REASON) {
        findings.push(format!(
            "{}: {lines} lines: split it, or say why not in a comment `{LONG_REASON} …`",
            path.display()
        ));
    }
}

fn crate_doc(path: &Path, text: &str, findings: &mut Vec<String>) {
    let in_bin = |file: &Path| file.parent().is_some_and(|folder| folder.ends_with("src/bin"));
    let is_root = path.ends_with("src/lib.rs")
        || path.ends_with("src/main.rs")
        || in_bin(path)
        || path.ends_with("main.rs") && path.parent().is_some_and(in_bin);
    if is_root && !text.trim_start().starts_with("//!") {
        findings.push(format!("{}: begins without a crate-level doc (`//! …`)", path.display()));
    }
}

/// The part of a file that ships: everything before its first test module.
fn shipped(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| !line.trim_start().starts_with("#[cfg(test)]"))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| {
        let part = part.as_os_str();
        part == "tests" || part == "tests.rs" || part == "examples" || part == "benches"
    })
}

fn purity(path: &Path, text: &str, findings: &mut Vec<String>) {
    if !path.starts_with("core") || is_test_file(path) {
        return;
    }
    for (number, line) in shipped(text) {
        let line = ungrouped(line);
        for word in IMPURE {
            if line.contains(word) {
                findings.push(format!(
                    "{}:{}: {word} in core/: take time, randomness and I/O as arguments",
                    path.display(),
                    number + 1
                ));
            }
        }
    }
}

/// The line with `std::{env, fs}` written as `std::env, std::fs`.
fn ungrouped(line: &str) -> String {
    let Some((before, rest)) = line.split_once("std::{") else { return line.to_owned() };
    let names = rest.split(['}', ';']).next().unwrap_or_default().split(',');
    names.fold(before.to_owned(), |text, name| format!("{text}std::{}, ", name.trim()))
}

fn unwraps(path: &Path, text: &str, findings: &mut Vec<String>) {
    if is_test_file(path) || generated(path) || path.starts_with("xtask") || path.starts_with("lab/testkit") {
        return;
    }
    for (number, line) in shipped(text) {
        if line.contains(".unwrap()") {
            findings.push(format!(
                "{}:{}: unwrap outside tests: return the error, or `expect(\"invariant: …\")`",
                path.display(),
                number + 1
            ));
        }
    }
}

/// Crates that must not enter the graph: those that deny.toml names.
fn banned(root: &Path, findings: &mut Vec<String>) -> anyhow::Result<()> {
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("read Cargo.lock")?;
    let deny = fs::read_to_string(root.join("deny.toml")).context("read deny.toml")?;
    let names: Vec<&str> = denied(&deny).collect();
    if names.is_empty() {
        bail!("deny.toml bans nothing: has its form changed?");
    }
    for name in names {
        if lock.contains(&format!("name = \"{name}\"")) {
            findings.push(format!("Cargo.lock: {name} is banned: deny.toml says why"));
        }
    }
    Ok(())
}

fn denied(deny: &str) -> impl Iterator<Item = &str> {
    deny.lines().filter_map(|line| line.trim().strip_prefix("{ name = \"")?.split('"').next())
}

#[cfg(test)]
mod unit {
    use super::*;

    fn found(check: impl Fn(&Path, &str, &mut Vec<String>), path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(Path::new(path), text, &mut findings);
        findings.len()
    }

    #[test]
    fn clocks_in_core_are_found_outside_tests_only() {
        assert_eq!(found(purity, "core/engine/src/lib.rs", "let t = SystemTime::now();"), 1);
        assert_eq!(found(purity, "core/engine/src/lib.rs", "#[cfg(test)]\nlet t = SystemTime::now();"), 0);
        assert_eq!(found(purity, "kit/src/clock.rs", "let t = SystemTime::now();"), 0);
        assert_eq!(found(purity, "core/engine/src/lib.rs", "use std::{collections::BTreeMap, env, fs};"), 2);
        assert_eq!(found(purity, "core/engine/src/lib.rs", "use std::{collections, fmt};"), 0);
    }

    #[test]
    fn an_unwrap_is_found_outside_tests_only() {
        assert_eq!(found(unwraps, "node/agent/src/lib.rs", "x.unwrap();"), 1);
        assert_eq!(found(unwraps, "node/agent/tests/it/main.rs", "x.unwrap();"), 0);
        assert_eq!(found(unwraps, "node/agent/src/lib.rs", "// x.unwrap();"), 0);
    }

    #[test]
    fn a_long_file_needs_a_reason() {
        let long = "line\n".repeat(LONGEST + 1);
        assert_eq!(found(length, "a/src/lib.rs", &long), 1);
        assert_eq!(found(length, "a/src/lib.rs", &format!("// {LONG_REASON} of a table\n{long}")), 0);
        assert_eq!(found(length, "a/src/gen/x.rs", &long), 0);
    }

    #[test]
    fn every_crate_and_program_begins_with_what_it_is() {
        for path in ["kit/src/lib.rs", "ui/cli/src/main.rs", "lab/x/src/bin/a.rs", "lab/x/src/bin/b/main.rs"]
        {
            assert_eq!(found(crate_doc, path, "use std::fmt;"), 1, "{path}");
            assert_eq!(found(crate_doc, path, "//! What it is."), 0, "{path}");
        }
        assert_eq!(found(crate_doc, "lab/x/src/bin/b/part.rs", "use std::fmt;"), 0);
    }

    #[test]
    fn bans_are_read_from_deny_toml() {
        let names: Vec<_> =
            denied("deny = [\n    { name = \"a\", reason = \"x\" },\n    { name = \"b-c\" },\n]").collect();
        assert_eq!(names, ["a", "b-c"]);
    }

    #[test]
    fn an_edge_to_the_right_or_across_is_found() {
        let package = |folder: &str, to: &str, kind: Option<&str>| Package {
            name: folder.replace('/', "-"),
            manifest_path: PathBuf::from(format!("/w/{folder}/Cargo.toml")),
            dependencies: vec![cargo::Dependency {
                name: to.replace('/', "-"),
                kind: kind.map(str::to_owned),
                path: Some(PathBuf::from(format!("/w/{to}"))),
            }],
        };
        let count = |member: Package| {
            let mut findings = Vec::new();
            edges(Path::new("/w"), &[member], &mut findings);
            findings.len()
        };
        assert_eq!(count(package("core/engine", "core/model", None)), 0);
        assert_eq!(count(package("core/engine", "kit", None)), 1);
        let mut impure = package("core/engine", "x", None);
        impure.dependencies[0] = cargo::Dependency { name: "tokio".to_owned(), kind: None, path: None };
        assert_eq!(count(impure), 1);
        let mut unmapped = Vec::new();
        let members = [package("core/engine", "x", None)];
        code_map(Path::new("/w"), &members, "| `core/engines` |", &mut unmapped);
        code_map(Path::new("/w"), &members, "| `core/engine` | it |", &mut unmapped);
        assert_eq!(unmapped.len(), 1);
        assert_eq!(count(package("core/engine", "kit", Some("dev"))), 0);
        assert_eq!(count(package("node/agent", "control/scheduler", None)), 1);
        assert_eq!(count(package("lab/apiserver", "wire/api", None)), 1);
        assert_eq!(count(package("lab/cluster", "wire/api", None)), 0);
    }
}
