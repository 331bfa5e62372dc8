//! `cargo xtask test`: what CI runs, in the order that fails soonest.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};

use crate::cargo::{cargo, root};
use crate::{cargo, generated, tidy};

/// Which part of the tests to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out the end-to-end tests.
    #[arg(long, conflicts_with = "tier")]
    quick: bool,
    /// Only the end-to-end tests, on this kind of cluster.
    #[arg(long)]
    tier: Option<Tier>,
}

/// A kind of cluster on which end-to-end tests run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Tier {
    /// Everything in one process, with simulated nodes.
    Embedded,
    /// Kubernetes' own programs and real containers; needs Go and root.
    Kubernetes,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.tier.is_none() {
        checks()?;
    }
    let tiers = match options.tier {
        _ if options.quick => {
            println!("end-to-end tests: skipped, because --quick was given");
            vec![]
        }
        None => vec![Tier::Embedded, Tier::Kubernetes],
        Some(tier) => vec![tier],
    };
    let mut counts = Vec::new();
    for tier in tiers {
        match (tier, missing()) {
            (Tier::Embedded, _) => {
                let environment = [("GANTRY_TIER", "embedded")];
                step("end-to-end tests, embedded tier", || {
                    counts.push(("embedded", end_to_end(&environment, &[])?));
                    Ok(())
                })?;
            }
            (Tier::Kubernetes, None) => step("end-to-end tests, Kubernetes tier", || {
                counts.push(("Kubernetes", kubernetes()?));
                Ok(())
            })?,
            (Tier::Kubernetes, Some(reason))
                if options.tier.is_some() || std::env::var_os("CI").is_some() =>
            {
                bail!("the Kubernetes tier cannot run: {reason}");
            }
            (Tier::Kubernetes, Some(reason)) => {
                println!("end-to-end tests, Kubernetes tier: skipped: {reason}");
            }
        }
    }
    for (tier, Count { passed, skipped }) in counts {
        println!("{tier} tier: {passed} end-to-end tests passed, {skipped} skipped with the reasons above");
    }
    println!("all tests passed");
    Ok(())
}

/// All that needs no cluster.
fn checks() -> anyhow::Result<()> {
    step("format", || {
        cargo(&["fmt", "--all", "--check"])?;
        cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])
    })?;
    step("tidy", tidy::run)?;
    step("clippy", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"])
    })?;
    step("unit tests", || {
        cargo(&["test", "--workspace", "--exclude", "gantry-testkit", "--locked", "--quiet"])
    })?;
    step("generated code", || generated::code(true))?;
    step("fuzz targets, over their seeds", || {
        cargo(&["test", "--manifest-path", "fuzz/Cargo.toml", "--locked", "--quiet"])
    })
}

/// What the Kubernetes tier lacks on this machine.
fn missing() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !found("go") {
        Some("there is no `go` on the PATH, with which Kubernetes is built; see https://go.dev/doc/install")
    } else if !root {
        Some("nodes are made of namespaces and control groups, which takes root")
    } else if !found("nsenter") || !found("ip") {
        Some("`nsenter` or `ip` is not on the PATH: apt-get install util-linux iproute2")
    } else {
        None
    }
}

/// The end-to-end tests on real Kubernetes, one cluster at a time.
fn kubernetes() -> anyhow::Result<Count> {
    // Programs that the tests start, and find beside themselves.
    let programs = ["gantry-kubernetes", "gantry-cli", "gantry-fake-nvml", "gantry-oci-shim"];
    let packages: Vec<&str> = programs.iter().flat_map(|name| ["--package", *name]).collect();
    cargo(&[["build", "--quiet", "--locked"].as_slice(), packages.as_slice()].concat())?;
    cargo::kubernetes(&["build"])?;
    cargo::kubernetes(&["helm"])?;
    let result = end_to_end(&[("GANTRY_TIER", "kubernetes")], &["--test-threads=1"]);
    // A test that failed leaves its cluster.
    cargo::kubernetes(&["down", "--name", "lab"])?;
    result
}

/// How many tests there were.
#[derive(Default)]
struct Count {
    passed: usize,
    /// Each with its reason, among the lines of output.
    skipped: usize,
}

/// Runs the end-to-end tests and counts them.
fn end_to_end(environment: &[(&str, &str)], arguments: &[&str]) -> anyhow::Result<Count> {
    let fixed = ["test", "--package", "gantry-testkit", "--locked", "--quiet", "--"];
    let words: Vec<&str> = fixed.into_iter().chain(arguments.iter().copied()).collect();
    eprintln!("$ cargo {}", words.join(" "));
    let program = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let mut child = Command::new(program)
        .args(&words)
        .envs(environment.iter().copied())
        .current_dir(root())
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo test")?;
    let (mut count, mut left_out) = (Count::default(), 0);
    let output = child.stdout.take().context("invariant: standard output is piped")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        // Those end well, for the test harness knows no other way to leave one out while it runs.
        if line.starts_with("skipped") {
            left_out += 1;
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            count.passed += number(result, " passed");
            count.skipped += number(result, " ignored");
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("cargo {} failed: {status}", words.join(" "));
    }
    // Counted among those that passed, too.
    count.passed = count.passed.saturating_sub(left_out);
    count.skipped += left_out;
    Ok(count)
}

/// The number before a word, as in `ok. 12 passed; 0 failed`.
fn number(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

#[expect(
    clippy::disallowed_methods,
    reason = "tells a person how long each step took; nothing depends on it"
)]
fn step(name: &str, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    println!("── {name}");
    let start = Instant::now();
    run()?;
    println!("── {name}: {} s", start.elapsed().as_secs());
    Ok(())
}

#[cfg(test)]
mod test {
    use super::number;

    #[test]
    fn results_of_tests_are_counted() {
        let line = "ok. 61 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 87.12s";
        assert_eq!((number(line, " passed"), number(line, " ignored")), (61, 2));
        assert_eq!(number("FAILED. nothing", " passed"), 0);
    }
}
