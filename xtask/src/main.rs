//! Workspace chores: `cargo xtask <task>`.
//!
//! ```text
//!   test ─┬─ fmt, tidy (layers, sizes, docs, purity), clippy
//!         ├─ unit, property and in-process tests of every crate
//!         ├─ generated code is what its sources give; fuzz targets hold over their seeds
//!         └─ end-to-end tests on the embedded cluster, with every kubectl that is found
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks through them")]

mod bench;
mod cargo;
#[cfg(feature = "codegen")]
mod codegen;
mod generated;
mod image;
mod tests;
mod tidy;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Workspace chores")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run everything that CI runs.
    Test(tests::Options),
    /// Check the structure: layers, file sizes, docs, purity of core/, generated files.
    Tidy,
    /// Regenerate the gRPC code in wire/proto.
    Codegen {
        /// Change nothing; fail if a checked-in file differs.
        #[arg(long)]
        check: bool,
    },
    /// Regenerate the CRDs in charts/ from the types in wire/api.
    Crds {
        /// Change nothing; fail if a checked-in file differs.
        #[arg(long)]
        check: bool,
    },
    /// Start, stop and enter real Kubernetes on this machine; `cargo xtask kubernetes help` lists how.
    Kubernetes {
        /// What to do.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build the container image, as an archive for `ctr images import`. Needs no container engine.
    Image(image::Options),
    /// Run benchmarks in a release build and print each figure beside its baseline.
    Bench(bench::Options),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().task {
        Task::Test(options) => tests::run(&options),
        Task::Tidy => tidy::run().and_then(|()| generated::check()),
        Task::Codegen { check } => generated::code(check),
        Task::Crds { check } => generated::crds(check),
        Task::Kubernetes { arguments } => {
            cargo::kubernetes(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        }
        Task::Image(options) => image::run(&options),
        Task::Bench(options) => bench::run(&options),
    }
}
