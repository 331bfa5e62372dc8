//! `--query-gpu`: a table of fields.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::{Driver, GpuReading};

/// `--format=csv[,noheader][,nounits]`, in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Format {
    noheader: bool,
    nounits: bool,
}

impl Format {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut format = Self::default();
        let mut csv = false;
        for item in text.split(',').map(str::trim) {
            match item {
                "csv" => csv = true,
                "noheader" => format.noheader = true,
                "nounits" => format.nounits = true,
                other => {
                    return Err(format!(
                        "\"{other}\" is not a valid format option. Use csv, noheader, nounits."
                    ));
                }
            }
        }
        if csv { Ok(format) } else { Err("\"csv\" is required in \"--format=\".".to_owned()) }
    }
}

/// What a value may need besides the GPU.
pub(crate) struct Context {
    pub(crate) driver: Driver,
    pub(crate) now: Timestamp,
    pub(crate) count: usize,
}

/// A queryable field: its names (the first is the header), its unit, and its value; `None` where the GPU has none.
pub(crate) struct Field {
    names: &'static [&'static str],
    unit: &'static str,
    help: &'static str,
    /// The number is the GPU's index, or that of a process on the GPU.
    value: fn(&GpuReading, usize, &Context) -> Option<String>,
}

macro_rules! fields {
    ($($names:expr, $unit:literal, $help:literal, $value:expr;)*) => {
        &[$(Field { names: &$names, unit: $unit, help: $help, value: $value }),*]
    };
}

fn watts(milliwatts: u64) -> String {
    format!("{}.{:02}", milliwatts / 1_000, milliwatts % 1_000 / 10)
}

fn on_off(state: bool) -> String {
    if state { "Enabled" } else { "Disabled" }.to_owned()
}

fn active(state: bool) -> String {
    if state { "Active" } else { "Not Active" }.to_owned()
}

fn is_idle(gpu: &GpuReading) -> bool {
    gpu.utilization_gpu == 0
}

/// Every model that is simulated has sixteen lanes.
const PCIE_LANES: &str = "16";

/// Cards that rest in a low performance state lower their link as well.
fn link_generation(gpu: &GpuReading) -> String {
    if gpu.performance_state >= 8 { 1 } else { gpu.pcie_generation_max }.to_string()
}

/// Cards before Ampere retire pages; later ones remap rows, and the tool has no answer for them.
fn retires_pages(gpu: &GpuReading) -> bool {
    gpu.ecc == Some(true) && gpu.compute_capability.0 < 8
}

/// Every field of `--query-gpu` that is simulated.
pub(crate) const GPU_FIELDS: &[Field] = fields![
    ["timestamp"], "", "when the query was made", |_, _, context| {
        jiff::fmt::strtime::format("%Y/%m/%d %H:%M:%S.%3f", &context.now.to_zoned(TimeZone::UTC)).ok()
    };
    ["driver_version"], "", "version of the NVIDIA driver", |_, _, context| Some(context.driver.version.clone());
    ["count"], "", "number of GPUs that this container sees", |_, _, context| Some(context.count.to_string());
    ["name", "gpu_name"], "", "product name", |gpu, _, _| Some(gpu.name.clone());
    ["serial", "gpu_serial"], "", "serial number", |_, _, _| None;
    ["uuid", "gpu_uuid"], "", "universally unique identifier", |gpu, _, _| Some(gpu.uuid.clone());
    ["pci.bus_id", "gpu_bus_id"], "", "PCI bus id as domain:bus:device.function", |gpu, _, _| Some(gpu.bus_id.clone());
    ["pci.domain"], "", "PCI domain", |gpu, _, _| part(&gpu.bus_id, 0);
    ["pci.bus"], "", "PCI bus", |gpu, _, _| part(&gpu.bus_id, 1);
    ["pci.device"], "", "PCI device", |gpu, _, _| part(&gpu.bus_id, 2);
    ["pci.device_id"], "", "PCI device and vendor", |gpu, _, _| Some(format!("0x{:08X}", gpu.pci_device_id));
    ["pcie.link.gen.current"], "", "generation of the PCIe link now", |gpu, _, _| Some(link_generation(gpu));
    ["pcie.link.gen.gpucurrent"], "", "generation of the PCIe link now, of the GPU", |gpu, _, _| {
        Some(link_generation(gpu))
    };
    ["pcie.link.gen.max"], "", "highest generation of this PCIe link", |gpu, _, _| {
        Some(gpu.pcie_generation_max.to_string())
    };
    ["pcie.link.gen.gpumax"], "", "highest generation that the GPU can do", |gpu, _, _| {
        Some(gpu.pcie_generation_max.to_string())
    };
    ["pcie.link.gen.hostmax"], "", "highest generation that the slot can do", |gpu, _, _| {
        Some(gpu.pcie_generation_max.to_string())
    };
    ["pcie.link.width.current"], "", "PCIe lanes now", |_, _, _| Some(PCIE_LANES.to_owned());
    ["pcie.link.width.max"], "", "most PCIe lanes", |_, _, _| Some(PCIE_LANES.to_owned());
    ["index"], "", "index in this container, from 0", |_, index, _| Some(index.to_string());
    ["compute_cap"], "", "CUDA compute capability", |gpu, _, _| {
        Some(format!("{}.{}", gpu.compute_capability.0, gpu.compute_capability.1))
    };
    ["display_mode"], "", "whether a display is connected", |_, _, _| Some(on_off(false));
    ["display_active"], "", "whether a display is initialised", |_, _, _| Some(on_off(false));
    ["persistence_mode"], "", "whether the driver stays loaded without clients", |_, _, _| Some(on_off(true));
    ["accounting.mode"], "", "whether processes are accounted for", |_, _, _| Some(on_off(false));
    ["accounting.buffer_size"], "", "processes that are accounted for at most", |_, _, _| Some("4000".to_owned());
    ["driver_model.current"], "", "driver model, on Windows", |_, _, _| None;
    ["driver_model.pending"], "", "driver model after the next reboot, on Windows", |_, _, _| None;
    ["vbios_version"], "", "version of the video BIOS", |gpu, _, _| Some(gpu.vbios.clone());
    ["gom.current"], "", "operation mode, of Kepler cards", |_, _, _| None;
    ["gom.pending"], "", "operation mode after the next reboot, of Kepler cards", |_, _, _| None;
    ["compute_mode"], "", "how many contexts may use the GPU", |_, _, _| Some("Default".to_owned());
    ["mig.mode.current"], "", "whether the GPU is partitioned", |gpu, _, _| gpu.mig.map(on_off);
    ["mig.mode.pending"], "", "MIG mode after the next reset", |gpu, _, _| gpu.mig.map(on_off);
    ["fan.speed"], "%", "fan speed", |gpu, _, _| gpu.fan.map(|fan| fan.to_string());
    ["pstate"], "", "performance state, P0 is the fastest", |gpu, _, _| Some(format!("P{}", gpu.performance_state));
    ["clocks_event_reasons.supported", "clocks_throttle_reasons.supported"], "", "what can lower clocks, as bits", |_, _, _| {
        Some("0x00000000000001FF".to_owned())
    };
    ["clocks_event_reasons.active", "clocks_throttle_reasons.active"], "", "what lowers clocks now, as bits", |gpu, _, _| {
        Some(format!("0x{:016X}", gpu.throttle | u64::from(is_idle(gpu))))
    };
    ["clocks_event_reasons.gpu_idle", "clocks_throttle_reasons.gpu_idle"], "", "clocks are low because nothing runs", |gpu, _, _| {
        Some(active(is_idle(gpu)))
    };
    ["clocks_event_reasons.applications_clocks_setting", "clocks_throttle_reasons.applications_clocks_setting"], "",
        "clocks are limited by their setting", |_, _, _| Some(active(false));
    ["clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap"], "",
        "clocks are limited by the power limit", |gpu, _, _| Some(active(gpu.throttle & 4 != 0));
    ["clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown"], "",
        "clocks are limited by hardware", |gpu, _, _| Some(active(gpu.throttle & 8 != 0));
    ["clocks_event_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown"], "",
        "clocks are limited by hardware because of heat", |gpu, _, _| Some(active(gpu.throttle & 64 != 0));
    ["clocks_event_reasons.hw_power_brake_slowdown", "clocks_throttle_reasons.hw_power_brake_slowdown"], "",
        "clocks are limited by hardware because of the power supply", |gpu, _, _| Some(active(gpu.throttle & 128 != 0));
    ["clocks_event_reasons.sw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown"], "",
        "clocks are limited by the driver because of heat", |gpu, _, _| Some(active(gpu.throttle & 32 != 0));
    ["clocks_event_reasons.sync_boost", "clocks_throttle_reasons.sync_boost"], "",
        "clocks follow those of other GPUs", |gpu, _, _| Some(active(gpu.throttle & 16 != 0));
    ["memory.total", "fb_memory.total"], "MiB", "total memory", |gpu, _, _| Some(gpu.memory_total_mib.to_string());
    ["memory.reserved"], "MiB", "memory that the driver keeps for itself", |_, _, _| Some("0".to_owned());
    ["memory.used", "fb_memory.used"], "MiB", "used memory", |gpu, _, _| Some(gpu.memory_used_mib.to_string());
    ["memory.free", "fb_memory.free"], "MiB", "free memory", |gpu, _, _| {
        Some(gpu.memory_total_mib.saturating_sub(gpu.memory_used_mib).to_string())
    };
    ["utilization.gpu"], "%", "share of time in which a kernel ran", |gpu, _, _| {
        // A partitioned card tells no load of the whole.
        (gpu.mig != Some(true)).then(|| gpu.utilization_gpu.to_string())
    };
    ["utilization.memory"], "%", "share of time in which memory was accessed", |gpu, _, _| {
        Some(gpu.utilization_memory.to_string())
    };
    ["utilization.encoder"], "%", "share of time in which video was encoded", |_, _, _| Some("0".to_owned());
    ["utilization.decoder"], "%", "share of time in which video was decoded", |_, _, _| Some("0".to_owned());
    ["utilization.jpeg"], "%", "share of time in which JPEG was decoded", |_, _, _| Some("0".to_owned());
    ["utilization.ofa"], "%", "share of time in which optical flow was computed", |_, _, _| Some("0".to_owned());
    ["encoder.stats.sessionCount"], "", "encoder sessions", |_, _, _| Some("0".to_owned());
    ["encoder.stats.averageFps"], "", "frames a second of the encoder sessions", |_, _, _| Some("0".to_owned());
    ["encoder.stats.averageLatency"], "", "latency of the encoder sessions in microseconds", |_, _, _| Some("0".to_owned());
    ["temperature.gpu"], "", "core temperature in degrees Celsius", |gpu, _, _| Some(gpu.temperature_c.to_string());
    ["temperature.memory"], "", "memory temperature in degrees Celsius", |_, _, _| None;
    ["power.management"], "", "whether power is limited", |_, _, _| Some(on_off(true));
    ["power.draw"], "W", "power draw", |gpu, _, _| Some(watts(gpu.power_draw_mw));
    ["power.draw.average"], "W", "power draw, average of a second", |gpu, _, _| Some(watts(gpu.power_draw_mw));
    ["power.draw.instant"], "W", "power draw at this moment", |gpu, _, _| Some(watts(gpu.power_draw_mw));
    ["power.limit"], "W", "power limit", |gpu, _, _| Some(watts(gpu.power_limit_mw));
    ["enforced.power.limit"], "W", "power limit in force", |gpu, _, _| Some(watts(gpu.power_limit_mw));
    ["power.default_limit"], "W", "power limit after a reset", |gpu, _, _| Some(watts(gpu.power_limit_mw));
    ["power.max_limit"], "W", "highest power limit", |gpu, _, _| Some(watts(gpu.power_limit_mw));
    ["clocks.current.graphics", "clocks.gr"], "MHz", "graphics clock", |gpu, _, _| Some(gpu.sm_clock_mhz.to_string());
    ["clocks.current.sm", "clocks.sm"], "MHz", "multiprocessor clock", |gpu, _, _| Some(gpu.sm_clock_mhz.to_string());
    ["clocks.current.memory", "clocks.mem"], "MHz", "memory clock", |gpu, _, _| Some(gpu.memory_clock_mhz.to_string());
    ["clocks.current.video", "clocks.video"], "MHz", "video clock, which is not simulated", |_, _, _| None;
    ["clocks.applications.graphics", "clocks.applications.gr"], "MHz", "graphics clock that was set, if one was", |_, _, _| None;
    ["clocks.applications.memory", "clocks.applications.mem"], "MHz", "memory clock that was set, if one was", |_, _, _| None;
    ["clocks.max.graphics", "clocks.max.gr"], "MHz", "highest graphics clock", |gpu, _, _| {
        Some(gpu.sm_clock_max_mhz.to_string())
    };
    ["clocks.max.sm"], "MHz", "highest multiprocessor clock", |gpu, _, _| Some(gpu.sm_clock_max_mhz.to_string());
    ["clocks.max.memory", "clocks.max.mem"], "MHz", "highest memory clock", |gpu, _, _| {
        Some(gpu.memory_clock_max_mhz.to_string())
    };
    ["retired_pages.single_bit_ecc.count", "retired_pages.sbe"], "", "pages retired after corrected errors", |gpu, _, _| {
        retires_pages(gpu).then(|| "0".to_owned())
    };
    ["retired_pages.double_bit.count", "retired_pages.dbe"], "", "pages retired after an uncorrected error", |gpu, _, _| {
        retires_pages(gpu).then(|| "0".to_owned())
    };
    ["retired_pages.pending"], "", "whether a page is to be retired", |gpu, _, _| {
        retires_pages(gpu).then(|| "No".to_owned())
    };
    ["ecc.mode.current"], "", "whether ECC is on", |gpu, _, _| gpu.ecc.map(on_off);
    ["ecc.mode.pending"], "", "ECC mode after the next reboot", |gpu, _, _| gpu.ecc.map(on_off);
    ["ecc.errors.corrected.volatile.total"], "", "corrected errors since the driver was loaded", |gpu, _, _| {
        gpu.ecc.filter(|on| *on).map(|_| gpu.ecc_errors.0.to_string())
    };
    ["ecc.errors.uncorrected.volatile.total"], "", "uncorrected errors since the driver was loaded", |gpu, _, _| {
        gpu.ecc.filter(|on| *on).map(|_| gpu.ecc_errors.1.to_string())
    };
    ["ecc.errors.corrected.aggregate.total"], "", "corrected errors over the life of the GPU", |gpu, _, _| {
        gpu.ecc.filter(|on| *on).map(|_| gpu.ecc_errors.0.to_string())
    };
    ["ecc.errors.uncorrected.aggregate.total"], "", "uncorrected errors over the life of the GPU", |gpu, _, _| {
        gpu.ecc.filter(|on| *on).map(|_| gpu.ecc_errors.1.to_string())
    };
];

/// Fields of `--query-compute-apps`. A container's process namespace hides processes: rows are for those that are seen.
pub(crate) const APP_FIELDS: &[Field] = fields![
    ["timestamp"], "", "when the query was made", |_, _, context| {
        jiff::fmt::strtime::format("%Y/%m/%d %H:%M:%S.%3f", &context.now.to_zoned(TimeZone::UTC)).ok()
    };
    ["gpu_name"], "", "product name", |gpu, _, _| Some(gpu.name.clone());
    ["gpu_bus_id"], "", "PCI bus id", |gpu, _, _| Some(gpu.bus_id.clone());
    ["gpu_uuid"], "", "UUID of the GPU", |gpu, _, _| Some(gpu.uuid.clone());
    ["pid"], "", "process id", |gpu, number, _| Some(gpu.processes.get(number)?.pid.to_string());
    ["process_name", "name"], "", "program", |gpu, number, _| Some(gpu.processes.get(number)?.name.clone());
    ["used_gpu_memory", "used_memory"], "MiB", "memory used by the process", |gpu, number, _| {
        Some(gpu.processes.get(number)?.memory_mib.to_string())
    };
];

/// One part of a PCI address as the tool prints it, such as `0x07`.
fn part(bus_id: &str, number: usize) -> Option<String> {
    bus_id
        .split([':', '.'])
        .nth(number)
        .map(|part| format!("0x{}", part.get(part.len().saturating_sub(4)..).unwrap_or(part)))
}

/// The CSV for `fields` of `gpus`; an unknown field is refused in the words of the real tool.
pub(crate) fn csv(
    table: &[Field],
    fields: &[String],
    rows: &[(&GpuReading, usize)],
    context: &Context,
    format: Format,
    first: bool,
) -> Result<String, String> {
    let mut chosen = Vec::new();
    for name in fields {
        let field = table
            .iter()
            .find(|field| field.names.contains(&name.as_str()))
            .ok_or_else(|| format!("Field \"{name}\" is not a valid field to query.\n"))?;
        chosen.push(field);
    }
    let mut text = String::new();
    if first && !format.noheader {
        let names: Vec<String> = chosen
            .iter()
            .map(|field| match field.unit {
                "" => field.names[0].to_owned(),
                unit => format!("{} [{unit}]", field.names[0]),
            })
            .collect();
        text.push_str(&names.join(", "));
        text.push('\n');
    }
    for (gpu, number) in rows {
        let values: Vec<String> = chosen
            .iter()
            .map(|field| match (field.value)(gpu, *number, context) {
                None => "[N/A]".to_owned(),
                Some(value) if field.unit.is_empty() || format.nounits => value,
                Some(value) => format!("{value} {}", field.unit),
            })
            .collect();
        text.push_str(&values.join(", "));
        text.push('\n');
    }
    Ok(text)
}

/// The list of `--help-query-gpu`.
pub(crate) fn help() -> String {
    let mut text = "List of valid properties to query for the switch \"--query-gpu=\":\n\n".to_owned();
    for field in GPU_FIELDS {
        let names: Vec<String> = field.names.iter().map(|name| format!("\"{name}\"")).collect();
        let _ = writeln!(text, "{}\n{}.\n", names.join(" or "), field.help);
    }
    text
}
