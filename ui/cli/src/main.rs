//! The `gantry` binary; called through a link named `kubectl-gpu`, it is kubectl's `gpu` plugin.
//!
//! ```text
//!   args ──▶ up, down, fault   a cluster on this machine   (lab)
//!        ├─▶ get, describe, why   any cluster, through kube::Client   (view)
//!        ├─▶ agent, scheduler, controllers   the processes that run in a cluster   (serve)
//!        ├─▶ cdi            this machine, without a cluster     (driver)
//!        └─▶ manifests   what runs them there   (charts/gantry)
//! ```
//!
//! Standard output has what the command was asked for: a table, a document, an explanation, or what an action came to, such as
//! `cluster gantry is stopped`. Everything else is talk and goes to standard error: errors, hints, that something takes a moment, and
//! that there is nothing to show or to do, which is no failure. An error ends with a hint that can be pasted.
#![expect(clippy::print_stderr, reason = "a command-line tool speaks through them")]

/// `print!` for output that may be closed early, as by `| head`: what nobody reads is no failure, and no reason to panic.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// `println!`, as [`out!`] is `print!`.
macro_rules! outln {
    () => { out!("\n") };
    ($($text:tt)*) => { out!("{}\n", format_args!($($text)*)) };
}

mod args;
mod cdi;
mod connect;
mod fault;
mod files;
mod gpus;
mod hint;
mod instance;
mod manifests;
mod output;
mod runtime;
mod serve;
mod up;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Args, Command, Describe, Get};

/// A cluster allocates small pieces of JSON on many threads, on which glibc's allocator spends a third of the time and a fifth more
/// memory (docs/benchmarks.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    gantry_kit::install_crypto();
    let args = Args::parse();
    match run(args) {
        Ok(()) if output::is_complete() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}", hint::report(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match args.command {
        Command::Up(options) if options.detach => up::detach(&options, args.connection.kubeconfig.as_deref()),
        Command::Up(options) => runtime()?.block_on(up::run(&options, args.connection.kubeconfig)),
        Command::Down(options) => up::down(&options),
        Command::Clusters => up::list(),
        Command::Get(Get::Gpus(options)) => runtime()?.block_on(gpus::get(&args.connection, &options)),
        Command::Describe(Describe::Gpu(options)) => {
            runtime()?.block_on(gpus::describe(&args.connection, &options))
        }
        Command::Why(options) => runtime()?.block_on(why::run(&args.connection, &options)),
        Command::Fault(options) => runtime()?.block_on(fault::run(&args.connection, &options)),
        Command::Agent(options) => runtime()?.block_on(serve::agent::run(&args.connection, *options)),
        Command::Scheduler(options) => {
            runtime()?.block_on(serve::control::scheduler(&args.connection, *options))
        }
        Command::Controllers(options) => {
            runtime()?.block_on(serve::control::controllers(&args.connection, *options))
        }
        Command::Cdi(command) => cdi::run(&command),
        Command::Manifests(options) => manifests::run(args.connection.namespace.as_deref(), &options),
        Command::Runtime(command) => runtime::run(&command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "gantry", &mut script);
            out!("{}", String::from_utf8_lossy(&script));
            Ok(())
        }
    }
}
