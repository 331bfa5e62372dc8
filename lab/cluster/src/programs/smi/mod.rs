//! `nvidia-smi` over the GPUs that the container sees.
//!
//! Layouts, texts and exit codes follow NVIDIA's tool of the 550 series (`nvidia-smi --help` and its manual page list
//! options and return values): 0 success, 2 an invalid argument, 6 no such device, 15 a GPU fell off the bus.

mod query;
mod report;

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::Process;
use crate::runtime::GpuReading;

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

/// Whether these arguments make the tool run until it is killed.
#[cfg(feature = "fuzzing")]
pub(super) fn is_loop(args: &[String]) -> bool {
    parse(args).is_ok_and(|options| options.period.is_some())
}

fn split(list: &str) -> Vec<String> {
    list.split(',').map(|item| item.trim().to_owned()).collect()
}

pub(super) fn main(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        let options = match parse(process.args()) {
            Ok(options) => options,
            Err(text) => {
                process.stdout.line(text);
                return INVALID_ARGUMENT;
            }
        };
        let mut first = true;
        loop {
            let code = once(process, &options, first);
            let Some(period) = options.period.filter(|_| code == 0) else { return code };
            first = false;
            tokio::time::sleep(period).await;
        }
    }
    .boxed()
}

/// Prints once. Later rounds of a loop leave out the header of a CSV.
fn once(process: &Process, options: &Options, first: bool) -> i32 {
    let (view, out) = (&process.view, &process.stdout);
    match &options.mode {
        Mode::Help => {
            out.write(report::HELP);
            return 0;
        }
        Mode::HelpQuery => {
            out.write(query::help());
            return 0;
        }
        Mode::Version => {
            out.write(report::version(&view.driver()));
            return 0;
        }
        _ => {}
    }
    let all = view.gpus();
    if all.is_empty() {
        out.line("No devices were found");
        return NOT_FOUND;
    }
    let gpus = match select(&all, &options.ids) {
        Ok(gpus) => gpus,
        Err(text) => {
            out.line(text);
            return NOT_FOUND;
        }
    };
    if let Some((_, lost)) = gpus.iter().find(|(_, gpu)| gpu.lost) {
        out.line(format!(
            "Unable to determine the device handle for GPU{}: {}: GPU is lost.  Reboot the system to recover this GPU",
            lost.minor, lost.bus_id
        ));
        return GPU_LOST;
    }
    let text = match &options.mode {
        Mode::List => report::list(&gpus),
        Mode::Report => report::full(&gpus, all.len(), &view.driver(), view.now()),
        Mode::Topology => report::topology(&gpus, |a, b| view.link(a, b)),
        Mode::QueryGpu(fields) | Mode::QueryApps(fields) => {
            let Some(format) = options.format else { return INVALID_ARGUMENT };
            let table = if matches!(options.mode, Mode::QueryApps(_)) {
                query::APP_FIELDS
            } else {
                query::GPU_FIELDS
            };
            let context = query::Context { driver: view.driver(), now: view.now(), count: all.len() };
            // A container's process namespace hides every compute process, so there are no application rows.
            let rows = if matches!(options.mode, Mode::QueryApps(_)) { &[][..] } else { &gpus[..] };
            match query::csv(table, fields, rows, &context, format, first) {
                Ok(text) => text,
                Err(text) => {
                    out.line(text);
                    return INVALID_ARGUMENT;
                }
            }
        }
        _ => report::summary(&gpus, &view.driver(), view.now()),
    };
    out.write(text);
    0
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
