//! `cargo xtask test`: what CI runs, in the order that fails soonest.

use std::time::Instant;

use crate::cargo::cargo;
use crate::{generated, tidy};

/// Which part of the tests to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out the end-to-end tests.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
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
    })?;
    if options.quick {
        println!("end-to-end tests: skipped, because --quick was given");
    } else {
        step("end-to-end tests", || cargo(&["test", "--package", "gantry-testkit", "--locked", "--quiet"]))?;
    }
    println!("all tests passed");
    Ok(())
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
