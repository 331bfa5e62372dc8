//! `nvidia-smi` over whatever `libnvidia-ml.so.1` the dynamic loader finds, as NVIDIA's tool finds it.

mod nvml;

use std::io::Write as _;
use std::process::ExitCode;

use gantry_model::LinkKind;
use gantry_smi::{Answer, Command, Driver, GpuReading, Source};
use jiff::Timestamp;

use nvml::Nvml;

/// Exit codes of NVIDIA's tool: the driver is not loaded, the library is not there.
const NOT_LOADED: u32 = 9;
const NO_LIBRARY: i32 = 12;

impl Source for Nvml {
    fn driver(&self) -> Driver {
        let cuda = self.cuda_version();
        Driver { version: self.driver_version(), cuda: format!("{}.{}", cuda / 1_000, cuda % 1_000 / 10) }
    }

    fn gpus(&self) -> Vec<GpuReading> {
        (0..self.count()).map(|index| self.reading(index)).collect()
    }

    fn link(&self, a: u32, b: u32) -> Option<LinkKind> {
        Nvml::link(self, a, b)
    }

    #[expect(clippy::disallowed_methods, reason = "a program of its own, in real time")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

fn code(number: i32) -> ExitCode {
    ExitCode::from(u8::try_from(number).unwrap_or(255))
}

/// Prints an answer; whether somebody still reads.
fn print(answer: &Answer) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(answer.text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

#[expect(clippy::disallowed_methods, reason = "a program of its own, in real time")]
fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let command = match Command::parse(&args) {
        Ok(command) => command,
        Err(refusal) => {
            print(&refusal);
            return code(refusal.code);
        }
    };
    let nvml = match Nvml::open() {
        Ok(nvml) => nvml,
        Err(nvml::Missing::Library(reason)) => {
            let text = format!(
                "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display \
                 Driver is properly installed and present in your system.\nPlease also try adding directory that contains \
                 libnvidia-ml.so to your system PATH.\n{reason}\n"
            );
            print(&Answer { code: NO_LIBRARY, text });
            return code(NO_LIBRARY);
        }
        Err(nvml::Missing::Driver(number, reason)) => {
            let text = if number == NOT_LOADED {
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest \
                 NVIDIA driver is installed and running.\n"
                    .to_owned()
            } else {
                format!("Failed to initialize NVML: {reason}\n")
            };
            let number = i32::try_from(number).unwrap_or(255);
            print(&Answer { code: number, text });
            return code(number);
        }
    };
    let mut first = true;
    loop {
        let answer = command.run(&nvml, first);
        let read = print(&answer);
        let Some(period) = command.period().filter(|_| answer.code == 0 && read) else {
            return code(answer.code);
        };
        first = false;
        std::thread::sleep(period);
    }
}
