//! `fake-nvml-ctl`: faults, readings and partitions of simulated GPUs, and driver roots with them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gantry_fake_nvml::{Error, Fault, InstallOptions, Node, Paths, Process, State, install};
use serde_json::Value;

/// Changes simulated GPUs while programs use them.
#[derive(Parser)]
#[command(name = "fake-nvml-ctl")]
struct Cli {
    /// The driver root whose GPUs are meant. Otherwise MOCK_NVML_CONFIG or /etc/gantry/fake-nvml.yaml says.
    #[arg(long, global = true)]
    root: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lay out a driver root: libraries, nvidia-smi, what the kernel shows of the driver.
    Install(Install),
    /// Put a fault on a GPU.
    Fail {
        /// What goes wrong.
        fault: Kind,
        /// The XID, the number of memory errors, milliseconds, or reasons as bits; for the faults that have one.
        value: Option<u64>,
        /// The GPU's index.
        #[arg(long)]
        gpu: u32,
        /// The GPU instance and compute instance that an XID is about, as in 7/0.
        #[arg(long, value_parser = instance)]
        instance: Option<(u32, u32)>,
    },
    /// Take all faults off a GPU, or off every GPU.
    Recover {
        /// The GPU's index; every GPU if absent.
        #[arg(long)]
        gpu: Option<u32>,
    },
    /// Set values as in the configuration, such as thermal.temperature_gpu_c=80.
    Set {
        /// The GPU's index.
        #[arg(long)]
        gpu: u32,
        /// Path and value.
        #[arg(required = true)]
        values: Vec<String>,
    },
    /// Functions that answer that this driver does not have them; none, if none are named.
    Missing {
        /// Names such as nvmlDeviceGetMemoryInfo_v2.
        functions: Vec<String>,
    },
    /// Say what a process does on a GPU.
    Process {
        /// The GPU's index.
        #[arg(long)]
        gpu: u32,
        /// The process.
        #[arg(long)]
        pid: u32,
        /// Its program.
        #[arg(long, default_value = "python")]
        name: String,
        /// Memory that it uses in MiB.
        #[arg(long, default_value_t = 0)]
        memory_mib: u64,
        /// Share of time in which its kernels run.
        #[arg(long, default_value_t = 0)]
        utilization: u32,
        /// The GPU instance that it runs on.
        #[arg(long)]
        gpu_instance: Option<u32>,
        /// The process has ended.
        #[arg(long)]
        end: bool,
    },
    /// Print the state as JSON.
    Show,
}

#[derive(Args)]
struct Install {
    /// The root to lay out.
    folder: PathBuf,
    /// The model of every GPU.
    #[arg(long, required_unless_present = "config")]
    model: Option<String>,
    /// How many GPUs.
    #[arg(long)]
    count: Option<usize>,
    /// A configuration, instead of model and count.
    #[arg(long)]
    config: Option<PathBuf>,
    /// The library; the one beside this program if absent.
    #[arg(long)]
    library: Option<PathBuf>,
    /// The program; the one beside this program if absent.
    #[arg(long)]
    nvidia_smi: Option<PathBuf>,
    /// A function that the library lacks, as that of an older driver; can be repeated.
    #[arg(long)]
    without: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Lost,
    FallenOffBus,
    Xid,
    EccSingle,
    EccDouble,
    RemapPending,
    RemapFailed,
    Throttle,
    Garbage,
    Slow,
    Hang,
}

fn instance(text: &str) -> Result<(u32, u32), String> {
    let parsed =
        text.split_once('/').and_then(|(gpu, compute)| Some((gpu.parse().ok()?, compute.parse().ok()?)));
    parsed.ok_or_else(|| "use the numbers of a GPU instance and a compute instance, as in 7/0".to_owned())
}

fn fault(kind: Kind, value: Option<u64>, instance: Option<(u32, u32)>) -> Result<Fault, String> {
    Ok(match kind {
        Kind::Lost => Fault::Lost,
        Kind::FallenOffBus => Fault::FallenOffBus,
        Kind::Xid => Fault::Xid(value.ok_or("fail xid: say which, as in `fail xid 48 --gpu 0`")?, instance),
        Kind::EccSingle => Fault::EccSingle(value.unwrap_or(1)),
        Kind::EccDouble => Fault::EccDouble(value.unwrap_or(1)),
        Kind::RemapPending => Fault::RemapPending,
        Kind::RemapFailed => Fault::RemapFailed,
        // Slowed down by hardware because of heat.
        Kind::Throttle => Fault::Throttle(value.unwrap_or(0x40)),
        Kind::Garbage => Fault::Garbage,
        Kind::Slow => {
            Fault::Slow(value.ok_or("fail slow: say how many milliseconds, as in `fail slow 500 --gpu 0`")?)
        }
        Kind::Hang => Fault::Hang,
    })
}

/// `a.b=1` as an object.
fn setting(text: &str) -> Result<Value, String> {
    let (path, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text}: use path=value, as in thermal.temperature_gpu_c=80"))?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok(path.rsplit('.').fold(value, |inner, name| serde_json::json!({ name: inner })))
}

fn run(cli: Cli) -> Result<(), String> {
    if let Command::Install(options) = cli.command {
        return lay_out(options);
    }
    let paths = match &cli.root {
        Some(root) => Paths::of_root(root),
        None => Paths::find(None),
    };
    let node = Node::load(&paths.map_err(text)?, None).map_err(text)?;
    let count = node.cards.len();
    let known = |gpu: u32| {
        if (gpu as usize) < count {
            Ok(gpu)
        } else {
            Err(format!("--gpu {gpu}: the node has {count} GPUs, counted from 0"))
        }
    };
    let update = |change: &mut dyn FnMut(&mut State)| {
        node.store
            .update::<_, Error>(|state| {
                change(state);
                Ok(())
            })
            .map_err(text)
    };
    match cli.command {
        Command::Install(_) => unreachable!("invariant: returned above"),
        Command::Fail { fault: kind, value, gpu, instance } => {
            let (gpu, fault) = (known(gpu)?, fault(kind, value, instance)?);
            update(&mut |state| state.fail(gpu, fault))
        }
        Command::Recover { gpu } => {
            let gpus = match gpu {
                Some(gpu) => vec![known(gpu)?],
                None => node.cards.iter().map(|card| card.index).collect(),
            };
            update(&mut |state| gpus.iter().for_each(|gpu| state.recover(*gpu)))
        }
        Command::Set { gpu, values } => {
            let gpu = known(gpu)?;
            let settings = values.iter().map(|text| setting(text)).collect::<Result<Vec<_>, _>>()?;
            let result = node.store.update::<_, Error>(|state| state.set(&node.config, gpu, &settings));
            result.map_err(text)
        }
        Command::Missing { functions } => update(&mut |state| state.missing.clone_from(&functions)),
        Command::Process { gpu, pid, name, memory_mib, utilization, gpu_instance, end } => {
            let gpu = known(gpu)?;
            let process = Process { pid, name, memory_mib, utilization, gpu_instance };
            update(&mut |state| {
                let card = state.card(gpu);
                card.processes.retain(|other| other.pid != pid);
                if !end {
                    card.processes.push(process.clone());
                }
            })
        }
        Command::Show => {
            print(&serde_json::to_string_pretty(&node.state).map_err(|error| error.to_string())?);
            Ok(())
        }
    }
}

fn lay_out(options: Install) -> Result<(), String> {
    let beside = |name: &str| std::env::current_exe().ok().map(|path| path.with_file_name(name));
    let config = match (options.config, options.model) {
        (Some(path), _) => {
            std::fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))?
        }
        (None, Some(model)) => format!("model: {model}\ncount: {}\n", options.count.unwrap_or(8)),
        (None, None) => return Err("install: say --model or --config".to_owned()),
    };
    let installed = install(&InstallOptions {
        root: options.folder,
        library: options
            .library
            .or_else(|| beside("libgantry_fake_nvml.so"))
            .ok_or("install: say --library, where libgantry_fake_nvml.so is")?,
        nvidia_smi: options.nvidia_smi.or_else(|| beside("nvidia-smi").filter(|path| path.exists())),
        config,
        without: options.without,
    });
    print(&installed.map_err(text)?.library.display().to_string());
    Ok(())
}

/// An error with its causes.
fn text(error: Error) -> String {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

#[expect(clippy::print_stdout, reason = "the program's output")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "the program's errors")]
fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fake-nvml-ctl: {error}");
            ExitCode::FAILURE
        }
    }
}
