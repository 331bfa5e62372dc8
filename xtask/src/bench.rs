//! `cargo xtask bench`: benchmarks live in `lab/testkit/src/bin/bench.rs`, where a whole cluster is at hand.

use crate::cargo::cargo;

/// Which benchmark, and how to print it.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The benchmark; all of them if absent.
    name: Option<String>,
    /// `table`, or `json`: one object a line with name, value, unit, baseline and ratio.
    #[arg(short, long, default_value = "table", value_parser = ["table", "json"])]
    output: String,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut arguments = vec![
        "run",
        "--release",
        "--quiet",
        "--package",
        "gantry-testkit",
        "--bin",
        "bench",
        "--",
        "-o",
        &options.output,
    ];
    arguments.extend(options.name.as_deref());
    cargo(&arguments)
}
