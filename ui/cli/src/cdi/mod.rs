//! `gantry cdi`: the CDI files of this machine, without a cluster.
//!
//! ```text
//!   driver root, dev root, /proc ─┐
//!   GPUs: NVML, file or profile  ─┴─▶ generate ─▶ FILE or standard output
//!   /etc/cdi, /var/run/cdi ─▶ list, validate          config.json ─▶ inject ─▶ config.json
//! ```

mod devices;
mod files;
mod generate;
mod inject;

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use gantry_driver::{Capabilities, Class, NameStrategy};

use devices::Simulated;

/// Where runtimes look for specifications, the least important folder first.
const FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

#[derive(Subcommand)]
pub(crate) enum Cdi {
    /// Describe the GPUs of this machine for container runtimes, without hooks.
    Generate(Box<Generate>),
    /// List the devices that runtimes find on this machine, and what is wrong with their files.
    List(List),
    /// Check specification files; exits with 1 if one is not valid.
    Validate(Validate),
    /// Apply devices to an OCI runtime configuration (config.json).
    Inject(Inject),
}

/// What is described.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// GPUs and MIG devices.
    #[default]
    Auto,
    /// The same.
    Nvml,
    /// Every device file at once, for what manages GPUs.
    Management,
    /// GPUDirect Storage.
    Gds,
    /// RDMA devices.
    Mofed,
    /// GDRCopy.
    Gdrcopy,
    /// Channels of memory that nodes share.
    Imex,
    /// NVSwitches.
    Nvswitch,
}

impl Mode {
    fn class(self) -> Class {
        match self {
            Self::Auto | Self::Nvml => Class::Gpu,
            Self::Management => Class::Management,
            Self::Gds => Class::Gds,
            Self::Mofed => Class::Mofed,
            Self::Gdrcopy => Class::Gdrcopy,
            Self::Imex => Class::ImexChannel,
            Self::Nvswitch => Class::Nvswitch,
        }
    }
}

/// How a specification is written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SpecFormat {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

#[derive(clap::Args)]
pub(crate) struct Generate {
    /// What to describe.
    #[arg(long, default_value = "auto")]
    pub(crate) mode: Mode,
    /// The root that the driver is installed below, such as /run/nvidia/driver.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) driver_root: PathBuf,
    /// The root whose dev folder has the device files. Default: the driver's root.
    #[arg(long, value_name = "DIR")]
    pub(crate) dev_root: Option<PathBuf>,
    /// Where procfs is mounted.
    #[arg(long, value_name = "DIR", default_value = "/proc", env = "GANTRY_PROCFS")]
    pub(crate) procfs: PathBuf,
    /// Where sysfs is mounted.
    #[arg(long, value_name = "DIR", default_value = "/sys", env = "GANTRY_SYSFS")]
    pub(crate) sysfs: PathBuf,
    /// The vendor in the kind. Default: nvidia.com; management.nvidia.com with --mode management.
    #[arg(long)]
    pub(crate) vendor: Option<String>,
    /// The class in the kind. Default: gpu, or the mode's own.
    #[arg(long)]
    pub(crate) class: Option<String>,
    /// How devices are named: index, uuid, type-index, several joined by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "index,uuid", value_parser = strategy)]
    pub(crate) device_name_strategy: Vec<NameStrategy>,
    /// Which parts of the driver come along: words of NVIDIA_DRIVER_CAPABILITIES. Default: all but compat32.
    #[arg(long, value_name = "LIST", value_parser = capabilities)]
    pub(crate) driver_capabilities: Option<Capabilities>,
    /// YAML or JSON. Default: what the output's name ends in, else YAML.
    #[arg(long)]
    pub(crate) format: Option<SpecFormat>,
    /// Where to write, `-` for standard output. A file is replaced whole or not at all.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
    /// Take the GPUs from this YAML or JSON file rather than from the driver.
    #[arg(long, value_name = "FILE")]
    pub(crate) devices: Option<PathBuf>,
    /// Simulate the GPUs and their device files: PROFILE[:COUNT], as in a100-80:8.
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["devices", "dev_root"])]
    pub(crate) simulate: Option<Simulated>,
    /// The version of the driver, where the kernel does not tell. Default: the newest that is installed.
    #[arg(long, value_name = "VERSION")]
    pub(crate) driver_version: Option<String>,
}

fn strategy(text: &str) -> Result<NameStrategy, String> {
    text.parse()
}

fn capabilities(text: &str) -> Result<Capabilities, String> {
    Capabilities::parse(text).map_err(|error| error.to_string())
}

/// Where to look.
#[derive(clap::Args)]
pub(crate) struct Folders {
    /// Folders of specifications, the least important first, joined by commas.
    #[arg(long = "spec-dir", value_name = "LIST", value_delimiter = ',', default_values = FOLDERS)]
    pub(crate) folders: Vec<PathBuf>,
}

/// How to print.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table.
    #[default]
    Table,
    /// JSON.
    Json,
    /// Names alone.
    Name,
}

#[derive(clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) folders: Folders,
    /// How to print.
    #[arg(short, long, default_value = "table")]
    pub(crate) output: Output,
    /// Leave out the header of a table.
    #[arg(long)]
    pub(crate) no_headers: bool,
}

#[derive(clap::Args)]
pub(crate) struct Validate {
    /// Files, and folders of files. Default: the folders that runtimes look into.
    pub(crate) paths: Vec<PathBuf>,
    /// How to print.
    #[arg(short, long, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(clap::Args)]
pub(crate) struct Inject {
    /// Devices, as in nvidia.com/gpu=0.
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
    #[command(flatten)]
    pub(crate) folders: Folders,
    /// The configuration, `-` for standard input.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(crate) config: PathBuf,
    /// Change the file rather than print the result.
    #[arg(long)]
    pub(crate) in_place: bool,
}

/// Does what is asked for.
pub(crate) fn run(command: &Cdi) -> anyhow::Result<()> {
    match command {
        Cdi::Generate(options) => generate::run(options),
        Cdi::List(options) => files::list(options),
        Cdi::Validate(options) => files::validate(options),
        Cdi::Inject(options) => inject::run(options),
    }
}
