//! What `nvidia-smi` prints: command lines, tables and lists over readings of GPUs.
//!
//! ```text
//!   arguments ──▶ Command::parse ──▶ Command::run(source) ──▶ text and exit code
//!                                        ▲ readings: of simulated containers, or of a library with NVML's interface
//! ```
//!
//! Layouts, texts and exit codes follow NVIDIA's tool of the 550 series (`nvidia-smi --help` and its manual page list
//! options and return values): 0 success, 2 an invalid argument, 6 no such device, 15 a GPU fell off the bus.

mod query;
mod report;

use std::time::Duration;

use gantry_model::LinkKind;
use jiff::Timestamp;

/// Where readings come from.
pub trait Source {
    /// The driver.
    fn driver(&self) -> Driver;
    /// Every GPU that is seen, in index order.
    fn gpus(&self) -> Vec<GpuReading>;
    /// How two GPUs are connected, by minor number.
    fn link(&self, a: u32, b: u32) -> Option<LinkKind>;
    /// The time that reports carry.
    fn now(&self) -> Timestamp;
}

/// Versions of a node's driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Such as `550.54.15`.
    pub version: String,
    /// The newest CUDA that it serves, such as `12.4`.
    pub cuda: String,
}

/// What the driver tells about one GPU at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuReading {
    /// The number in `/dev/nvidia<minor>`.
    pub minor: u32,
    /// NVML's UUID.
    pub uuid: String,
    /// NVML's product name.
    pub name: String,
    /// PCI address such as `00000000:07:00.0`.
    pub bus_id: String,
    /// The NUMA node, where the machine says so.
    pub numa_node: Option<u32>,
    /// Total memory in MiB.
    pub memory_total_mib: u64,
    /// Used memory in MiB.
    pub memory_used_mib: u64,
    /// Share of the last sample period in which a kernel ran, in percent.
    pub utilization_gpu: u32,
    /// Share of the last sample period in which memory was read or written, in percent.
    pub utilization_memory: u32,
    /// Core temperature in degrees Celsius.
    pub temperature_c: u32,
    /// Power draw in milliwatts.
    pub power_draw_mw: u64,
    /// Power limit in milliwatts.
    pub power_limit_mw: u64,
    /// Fan speed in percent; `None` for a passively cooled card.
    pub fan: Option<u32>,
    /// Performance state; 0 is the fastest, 8 and more are idle.
    pub performance_state: u8,
    /// Multiprocessor clock in MHz.
    pub sm_clock_mhz: u32,
    /// The highest multiprocessor clock in MHz.
    pub sm_clock_max_mhz: u32,
    /// Memory clock in MHz.
    pub memory_clock_mhz: u32,
    /// The highest memory clock in MHz.
    pub memory_clock_max_mhz: u32,
    /// The PCIe generation that card and slot can do.
    pub pcie_generation_max: u32,
    /// PCI device number and vendor number, as in `0x20B210DE`.
    pub pci_device_id: u32,
    /// Version of the video BIOS.
    pub vbios: String,
    /// CUDA compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Whether the memory has ECC switched on; `None` where it has none.
    pub ecc: Option<bool>,
    /// Whether the card is in MIG mode; `None` where it cannot be.
    pub mig: Option<bool>,
    /// Corrected and uncorrected memory errors since the driver was loaded.
    pub ecc_errors: (u64, u64),
    /// Reasons for lowered clocks, as the bits of NVML, beside the rest of an idle card.
    pub throttle: u64,
    /// Its MIG devices.
    pub mig_devices: Vec<MigReading>,
    /// What runs on it, as far as this process may see it.
    pub processes: Vec<ProcessReading>,
    /// Whether the card still answers. A lost card makes `nvidia-smi` fail.
    pub lost: bool,
}

/// What the driver tells about a MIG device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MigReading {
    /// Its index on its GPU.
    pub index: u32,
    /// NVML's UUID.
    pub uuid: String,
    /// NVIDIA's name such as `3g.20gb`.
    pub profile: String,
    /// The GPU instance's id.
    pub gpu_instance: u32,
    /// The compute instance's id.
    pub compute_instance: u32,
    /// Total memory in MiB.
    pub memory_total_mib: u64,
    /// Used memory in MiB.
    pub memory_used_mib: u64,
    /// Multiprocessors; copy, encoder, decoder, optical flow and JPEG engines.
    pub engines: [u32; 6],
}

/// A process with a context on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessReading {
    /// Its pid.
    pub pid: u32,
    /// Its program.
    pub name: String,
    /// Used memory in MiB.
    pub memory_mib: u64,
    /// The GPU instance that it runs on, in MIG mode.
    pub gpu_instance: Option<u32>,
}

/// What the tool answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The exit code.
    pub code: i32,
    /// Standard output, with its last line ended.
    pub text: String,
}

/// A supplied argument or flag is invalid.
const INVALID_ARGUMENT: i32 = 2;
/// A query to find an object was unsuccessful.
const NOT_FOUND: i32 = 6;
/// The GPU has fallen off the bus or has otherwise become inaccessible.
const GPU_LOST: i32 = 15;

/// What to print.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    Summary,
    List,
    QueryGpu(Vec<String>),
    QueryApps(Vec<String>),
    Report,
    Topology,
    Help,
    HelpQuery,
    Version,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Options {
    mode: Mode,
    /// Index, UUID or bus id of the GPUs asked for; empty for all.
    ids: Vec<String>,
    /// Repeat with this period.
    period: Option<Duration>,
    format: Option<query::Format>,
}

/// A refused command line: the text that the real tool prints.
type Refusal = String;

/// A command line that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command(Options);

fn parse(args: &[String]) -> Result<Options, Refusal> {
    let mut options = Options { mode: Mode::Summary, ids: Vec::new(), period: None, format: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (flag, inline) = match arg.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        let mut value = |what: &str| {
            inline
                .clone()
                .or_else(|| args.next().cloned())
                .ok_or_else(|| format!("Option {what} requires a value."))
        };
        match flag {
            "-L" | "--list-gpus" => options.mode = Mode::List,
            "-q" | "--query" => options.mode = Mode::Report,
            "-h" | "--help" => options.mode = Mode::Help,
            "--help-query-gpu" => options.mode = Mode::HelpQuery,
            "--version" => options.mode = Mode::Version,
            "topo" => match args.next().map(String::as_str) {
                Some("-m" | "--matrix") => options.mode = Mode::Topology,
                _ => return Err("topo: only -m (--matrix) is simulated".to_owned()),
            },
            "--query-gpu" => options.mode = Mode::QueryGpu(split(&value(flag)?)),
            "--query-compute-apps" => options.mode = Mode::QueryApps(split(&value(flag)?)),
            "--format" => options.format = Some(query::Format::parse(&value(flag)?)?),
            "-i" | "--id" => options.ids = split(&value(flag)?),
            "-l" | "--loop" | "-lms" | "--loop-ms" => {
                let text = value(flag)?;
                let number: u64 =
                    text.parse().map_err(|_| format!("Invalid argument '{text}' for option {flag}."))?;
                let millis = if flag.ends_with("ms") { number } else { number.saturating_mul(1_000) };
                // The tool's own floor; zero would be a busy loop.
                options.period = Some(Duration::from_millis(millis.clamp(100, 1 << 40)));
            }
            // The short form with the value attached, as in -i0.
            short if short.starts_with("-i") && short.len() > 2 => options.ids = split(&short[2..]),
            "-d" | "-x" | "-f" | "-pm" | "-mig" | "-pl" | "-r" | "dmon" | "pmon" | "mig" | "nvlink"
            | "daemon" => {
                return Err(format!(
                    "{flag}: this option is not simulated. Simulated are the summary, -L, -q, -i, -l, topo -m, \
                     --query-gpu and --query-compute-apps."
                ));
            }
            _ => {
                return Err(format!(
                    "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n('{arg}' is not known)"
                ));
            }
        }
    }
    if matches!(options.mode, Mode::QueryGpu(_) | Mode::QueryApps(_)) && options.format.is_none() {
        return Err("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.".to_owned());
    }
    Ok(options)
}

fn split(list: &str) -> Vec<String> {
    list.split(',').map(|item| item.trim().to_owned()).collect()
}

impl Command {
    /// Reads the arguments after the program's name. A refusal is the answer to give.
    pub fn parse(args: &[String]) -> Result<Self, Answer> {
        parse(args).map(Self).map_err(|text| answer(INVALID_ARGUMENT, text))
    }

    /// The period with which the command repeats; `None` if it ends after one answer.
    pub fn period(&self) -> Option<Duration> {
        self.0.period
    }

    /// One answer. Later rounds of a command that repeats leave out the header of a CSV.
    pub fn run(&self, source: &dyn Source, first: bool) -> Answer {
        once(&self.0, source, first).unwrap_or_else(|answer| answer)
    }
}

fn answer(code: i32, text: impl Into<String>) -> Answer {
    let mut text = text.into();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Answer { code, text }
}

fn once(options: &Options, source: &dyn Source, first: bool) -> Result<Answer, Answer> {
    let text = match &options.mode {
        Mode::Help => Some(report::HELP.to_owned()),
        Mode::HelpQuery => Some(query::help()),
        Mode::Version => Some(report::version(&source.driver())),
        _ => None,
    };
    if let Some(text) = text {
        return Ok(Answer { code: 0, text });
    }
    let all = source.gpus();
    if all.is_empty() {
        return Err(answer(NOT_FOUND, "No devices were found"));
    }
    let gpus = select(&all, &options.ids).map_err(|text| answer(NOT_FOUND, text))?;
    if let Some((_, lost)) = gpus.iter().find(|(_, gpu)| gpu.lost) {
        let text = format!(
            "Unable to determine the device handle for GPU{}: {}: GPU is lost.  Reboot the system to recover this GPU",
            lost.minor, lost.bus_id
        );
        return Err(answer(GPU_LOST, text));
    }
    let text = match &options.mode {
        Mode::List => report::list(&gpus),
        Mode::Report => report::full(&gpus, all.len(), &source.driver(), source.now()),
        Mode::Topology => report::topology(&gpus, |a, b| source.link(a, b)),
        Mode::QueryGpu(fields) => {
            let format = options.format.unwrap_or_default();
            let context = query::Context { driver: source.driver(), now: source.now(), count: all.len() };
            let rows: Vec<_> = gpus.iter().map(|(index, gpu)| (*gpu, *index)).collect();
            query::csv(query::GPU_FIELDS, fields, &rows, &context, format, first)
                .map_err(|text| answer(INVALID_ARGUMENT, text))?
        }
        Mode::QueryApps(fields) => {
            let format = options.format.unwrap_or_default();
            let context = query::Context { driver: source.driver(), now: source.now(), count: all.len() };
            let rows: Vec<_> = gpus
                .iter()
                .flat_map(|(_, gpu)| gpu.processes.iter().enumerate().map(|(number, _)| (*gpu, number)))
                .collect();
            query::csv(query::APP_FIELDS, fields, &rows, &context, format, first)
                .map_err(|text| answer(INVALID_ARGUMENT, text))?
        }
        _ => report::summary(&gpus, &source.driver(), source.now()),
    };
    Ok(Answer { code: 0, text })
}

/// The GPUs asked for with their index in this container, which the driver counts from 0.
fn select<'a>(all: &'a [GpuReading], ids: &[String]) -> Result<Vec<(usize, &'a GpuReading)>, Refusal> {
    let indexed = || all.iter().enumerate();
    if ids.is_empty() {
        return Ok(indexed().collect());
    }
    let mut chosen = Vec::new();
    for id in ids {
        let found = indexed().find(|(index, gpu)| {
            id.parse() == Ok(*index) || *id == gpu.uuid || gpu.bus_id.eq_ignore_ascii_case(id)
                // The bus id is accepted with a domain of four digits too.
                || gpu.bus_id.get(4..).is_some_and(|short| short.eq_ignore_ascii_case(id))
        });
        match found {
            Some(found) => chosen.push(found),
            None => return Err("No devices were found".to_owned()),
        }
    }
    chosen.sort_by_key(|(index, _)| *index);
    chosen.dedup_by_key(|(index, _)| *index);
    Ok(chosen)
}
