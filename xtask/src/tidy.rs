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
    "std::net",
    "std::thread",
    "rand::",
    "RandomState",
    "tokio::",
    "kube::",
];

/// Crates that must not enter the graph.
const BANNED: &[&str] =
    &["aws-lc-rs", "aws-lc-sys", "openssl-sys", "native-tls", "serde_yaml", "serde_yml", "protobuf-src"];

/// Longest file, in lines, that needs no reason.
const LONGEST: usize = 1_000;

/// A file longer than [`LONGEST`] says why in a comment that starts with this.
const LONG_REASON: &str = "tidy: long because";

pub(crate) fn run() -> anyhow::Result<()> {
    let root = cargo::root();
    let sources = sources(&root)?;
    let mut findings = Vec::new();
    edges(&root, &cargo::members()?, &mut findings);
    for (path, text) in &sources {
        length(path, text, &mut findings);
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

/// The Rust files that git knows or would add, with their text; paths are relative to the root.
fn sources(root: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
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
        bail!("git ls-files named no Rust file in {}: is this a git checkout?", root.display());
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
            let Some(path) = &dependency.path else { continue };
            let to = path.strip_prefix(root).unwrap_or(path).to_path_buf();
            let development = dependency.kind.as_deref() == Some("dev");
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
            "{}: {lines} lines: split it, or say why not in a comment `// {LONG_REASON} …`",
            path.display()
        ));
    }
}

fn crate_doc(path: &Path, text: &str, findings: &mut Vec<String>) {
    let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
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

fn banned(root: &Path, findings: &mut Vec<String>) -> anyhow::Result<()> {
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("read Cargo.lock")?;
    for name in BANNED {
        if lock.contains(&format!("name = \"{name}\"")) {
            findings.push(format!("Cargo.lock: {name} is banned: deny.toml says why"));
        }
    }
    Ok(())
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
        assert_eq!(count(package("core/engine", "kit", Some("dev"))), 0);
        assert_eq!(count(package("node/agent", "control/scheduler", None)), 1);
        assert_eq!(count(package("lab/apiserver", "wire/api", None)), 1);
        assert_eq!(count(package("lab/cluster", "wire/api", None)), 0);
    }
}
