//! The summary table, the list, the long report and the topology matrix.

use std::fmt::Write as _;

use gantry_model::LinkKind;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::{Driver, GpuReading};

/// A GPU with its index in the container.
type Indexed<'a> = (usize, &'a GpuReading);

pub(crate) const HELP: &str = "\
NVIDIA System Management Interface (simulated by Gantry)

    nvidia-smi                      summary of the GPUs that this container sees
    nvidia-smi -L                   list of GPUs
    nvidia-smi -q                   long report
    nvidia-smi topo -m              how the GPUs are connected
    nvidia-smi --query-gpu=FIELD,… --format=csv[,noheader][,nounits]
                                    chosen fields; --help-query-gpu lists them
    nvidia-smi --query-compute-apps=FIELD,… --format=csv
    -i ID,…                         only these GPUs: index, UUID or bus id
    -l SECONDS, -lms MILLISECONDS   repeat
";

pub(crate) fn version(driver: &Driver) -> String {
    format!(
        "NVIDIA-SMI version  : {0}\nNVML version        : {1}\nDRIVER version      : {0}\nCUDA Version        : {2}\n",
        driver.version,
        driver.version.split('.').take(2).collect::<Vec<_>>().join("."),
        driver.cuda
    )
}

fn time(now: Timestamp) -> String {
    jiff::fmt::strtime::format("%a %b %e %H:%M:%S %Y", &now.to_zoned(TimeZone::UTC)).unwrap_or_default()
}

pub(crate) fn list(gpus: &[Indexed<'_>]) -> String {
    let mut text = String::new();
    for (index, gpu) in gpus {
        let _ = writeln!(text, "GPU {index}: {} (UUID: {})", gpu.name, gpu.uuid);
        for mig in &gpu.mig_devices {
            let _ = writeln!(text, "  MIG {:<12}Device {:>2}: (UUID: {})", mig.profile, mig.index, mig.uuid);
        }
    }
    text
}

/// Inner width of the box.
const WIDTH: usize = 89;

/// The table that `nvidia-smi` prints without arguments. Its widths are those of the 550 series.
pub(crate) fn summary(gpus: &[Indexed<'_>], driver: &Driver, now: Timestamp) -> String {
    let bar = |left: char, fill: &str, right: char| {
        format!("{left}{}+{}+{}{right}\n", fill.repeat(41), fill.repeat(24), fill.repeat(22))
    };
    let full = |ends: char, fill: &str| format!("{ends}{}{ends}\n", fill.repeat(WIDTH));
    let row = |a: &str, b: &str, c: &str| format!("|{a:<41}|{b:<24}|{c:<22}|\n");

    let mut text = format!("{}       \n", time(now));
    text += &full('+', "-");
    let _ = writeln!(
        text,
        "| NVIDIA-SMI {:<23}Driver Version: {:<15}CUDA Version: {:<9}|",
        driver.version, driver.version, driver.cuda
    );
    text += &bar('|', "-", '+');
    text +=
        &row(" GPU  Name                 Persistence-M", " Bus-Id          Disp.A", " Volatile Uncorr. ECC");
    text +=
        &row(" Fan  Temp   Perf          Pwr:Usage/Cap", "           Memory-Usage", " GPU-Util  Compute M.");
    text += &row("", "", "               MIG M.");
    text += &bar('|', "=", '|');
    for (index, gpu) in gpus {
        let ecc = match gpu.ecc {
            Some(true) => gpu.ecc_errors.1.to_string(),
            Some(false) => "Off".to_owned(),
            None => "N/A".to_owned(),
        };
        let mig = match gpu.mig {
            Some(true) => "Enabled",
            Some(false) => "Disabled",
            None => "N/A",
        };
        let fan = gpu.fan.map_or("N/A".to_owned(), |fan| format!("{fan}%"));
        // Rounded as the tool does: whole watts.
        let (draw, limit) = ((gpu.power_draw_mw + 500) / 1_000, (gpu.power_limit_mw + 500) / 1_000);
        text += &row(
            &format!(" {index:>3}  {:<31.29}On ", gpu.name),
            &format!("   {:<16} Off", gpu.bus_id),
            &format!("{ecc:>21}"),
        );
        text += &row(
            &format!(
                " {fan:>3} {:>4}C    {:<2}{:>16} / {:>5}",
                gpu.temperature_c,
                format!("P{}", gpu.performance_state),
                format!("{draw}W"),
                format!("{limit}W")
            ),
            &format!("{:>8}MiB / {:>6}MiB", gpu.memory_used_mib, gpu.memory_total_mib),
            &match gpu.mig {
                // A partitioned card tells no load of the whole.
                Some(true) => format!("{:>8}      Default", "N/A"),
                _ => format!("{:>7}%      Default", gpu.utilization_gpu),
            },
        );
        text += &row("", "", &format!("{mig:>21}"));
        text += &bar('+', "-", '+');
    }
    let _ = writeln!(text, "{:WIDTH$}", "");
    text += &mig_devices(gpus);
    text += &full('+', "-");
    let line = |content: &str| format!("|{content:<WIDTH$}|\n");
    text += &line(" Processes:");
    text += &line("  GPU   GI   CI        PID   Type   Process name                              GPU Memory");
    text += &line("        ID   ID                                                               Usage");
    text += &full('|', "=");
    let mut none = true;
    for (index, gpu) in gpus {
        for process in &gpu.processes {
            none = false;
            let instance = process.gpu_instance.map_or("N/A".to_owned(), |id| id.to_string());
            let compute = process.gpu_instance.map_or("N/A", |_| "0");
            text += &line(&format!(
                "{index:>5}  {instance:>4} {compute:>4} {:>10} {:>6}   {:<37.37} {:>10}MiB ",
                process.pid, "C", process.name, process.memory_mib
            ));
        }
    }
    if none {
        text += &line("  No running processes found");
    }
    text += &full('+', "-");
    text
}

/// The table of MIG devices; nothing where there are none.
fn mig_devices(gpus: &[Indexed<'_>]) -> String {
    const RULE: &str =
        "+------------------+----------------------------------+-----------+-----------------------+\n";
    if gpus.iter().all(|(_, gpu)| gpu.mig_devices.is_empty()) {
        return String::new();
    }
    let mut text = format!("+{}+\n|{:<WIDTH$}|\n{RULE}", "-".repeat(WIDTH), " MIG devices:");
    text += "| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |\n";
    text += "|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |\n";
    text += "|                  |                                  |        ECC|                       |\n";
    text += "|==================+==================================+===========+=======================|\n";
    for (index, gpu) in gpus {
        for mig in &gpu.mig_devices {
            let [sm, copy, encoders, decoders, ofa, jpeg] = mig.engines;
            let memory = format!("{}MiB / {}MiB", mig.memory_used_mib, mig.memory_total_mib);
            let _ = writeln!(
                text,
                "|{index:>3} {:>4} {:>3} {:>3}  |{memory:>31}   |{sm:>3}{:>7} |{copy:>3} {encoders:>3} {decoders:>4} {ofa:>4} {jpeg:>4} |",
                mig.gpu_instance, mig.compute_instance, mig.index, gpu.ecc_errors.1
            );
            text += RULE;
        }
    }
    let _ = writeln!(text, "{:WIDTH$}", "");
    text
}

/// A short form of `nvidia-smi -q`.
pub(crate) fn full(gpus: &[Indexed<'_>], attached: usize, driver: &Driver, now: Timestamp) -> String {
    let mut text = format!("\n==============NVSMI LOG==============\n\n{:<42}: {}\n", "Timestamp", time(now));
    let mut top = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<42}: {value}");
    };
    top("Driver Version", &driver.version);
    top("CUDA Version", &driver.cuda);
    text.push('\n');
    let _ = writeln!(text, "{:<42}: {attached}", "Attached GPUs");
    for (_, gpu) in gpus {
        let _ = writeln!(text, "GPU {}", gpu.bus_id);
        let mut entry = |depth: usize, name: &str, value: &str| {
            let name = format!("{}{name}", " ".repeat(depth * 4));
            let _ = if value.is_empty() {
                writeln!(text, "{name}")
            } else {
                writeln!(text, "{name:<42}: {value}")
            };
        };
        let state = |value: Option<bool>| match value {
            Some(true) => "Enabled",
            Some(false) => "Disabled",
            None => "N/A",
        };
        entry(1, "Product Name", &gpu.name);
        entry(1, "Persistence Mode", "Enabled");
        entry(1, "MIG Mode", "");
        entry(2, "Current", state(gpu.mig));
        entry(1, "GPU UUID", &gpu.uuid);
        entry(1, "Minor Number", &gpu.minor.to_string());
        entry(1, "VBIOS Version", &gpu.vbios);
        entry(1, "PCI", "");
        entry(2, "Device Id", &format!("0x{:08X}", gpu.pci_device_id));
        entry(2, "Bus Id", &gpu.bus_id);
        entry(1, "Fan Speed", &gpu.fan.map_or("N/A".to_owned(), |fan| format!("{fan} %")));
        entry(1, "Performance State", &format!("P{}", gpu.performance_state));
        entry(1, "FB Memory Usage", "");
        entry(2, "Total", &format!("{} MiB", gpu.memory_total_mib));
        entry(2, "Used", &format!("{} MiB", gpu.memory_used_mib));
        entry(2, "Free", &format!("{} MiB", gpu.memory_total_mib.saturating_sub(gpu.memory_used_mib)));
        entry(1, "Compute Mode", "Default");
        entry(1, "Utilization", "");
        entry(2, "Gpu", &format!("{} %", gpu.utilization_gpu));
        entry(2, "Memory", &format!("{} %", gpu.utilization_memory));
        entry(1, "ECC Mode", "");
        entry(2, "Current", state(gpu.ecc));
        entry(1, "Temperature", "");
        entry(2, "GPU Current Temp", &format!("{} C", gpu.temperature_c));
        entry(1, "GPU Power Readings", "");
        entry(2, "Power Draw", &format!("{:.2} W", gpu.power_draw_mw as f64 / 1_000.0));
        entry(2, "Current Power Limit", &format!("{:.2} W", gpu.power_limit_mw as f64 / 1_000.0));
        for (title, sm, memory) in [
            ("Clocks", gpu.sm_clock_mhz, gpu.memory_clock_mhz),
            ("Max Clocks", gpu.sm_clock_max_mhz, gpu.memory_clock_max_mhz),
        ] {
            entry(1, title, "");
            entry(2, "Graphics", &format!("{sm} MHz"));
            entry(2, "SM", &format!("{sm} MHz"));
            entry(2, "Memory", &format!("{memory} MHz"));
        }
        entry(1, "Processes", if gpu.processes.is_empty() { "None" } else { "" });
        for process in &gpu.processes {
            entry(2, "Process ID", &process.pid.to_string());
            entry(3, "Name", &process.name);
            entry(3, "Used GPU Memory", &format!("{} MiB", process.memory_mib));
        }
    }
    text.push('\n');
    text
}

/// `nvidia-smi topo -m`.
pub(crate) fn topology(gpus: &[Indexed<'_>], link: impl Fn(u32, u32) -> Option<LinkKind>) -> String {
    let mut text = String::from("\t");
    for (index, _) in gpus {
        let _ = write!(text, "GPU{index}\t");
    }
    text.push_str("CPU Affinity\tNUMA Affinity\tGPU NUMA ID\n");
    for (index, gpu) in gpus {
        let _ = write!(text, "GPU{index}\t");
        for (_, other) in gpus {
            let name = if gpu.minor == other.minor {
                " X ".to_owned()
            } else {
                match link(gpu.minor, other.minor) {
                    Some(LinkKind::NvLink(lanes)) => format!("NV{lanes}"),
                    Some(LinkKind::SingleSwitch) => "PIX".to_owned(),
                    Some(LinkKind::MultiSwitch) => "PXB".to_owned(),
                    Some(LinkKind::HostBridge) => "PHB".to_owned(),
                    Some(LinkKind::Node) => "NODE".to_owned(),
                    Some(LinkKind::System) | None => "SYS".to_owned(),
                }
            };
            let _ = write!(text, "{name}\t");
        }
        let numa = gpu.numa_node.map_or("N/A".to_owned(), |node| node.to_string());
        let _ = writeln!(text, "N/A\t{numa}\t\tN/A");
    }
    text.push_str(LEGEND);
    text
}

const LEGEND: &str = "
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
";
