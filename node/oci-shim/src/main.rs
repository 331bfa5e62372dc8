//! `gantry-runtime`: see the library.
#![expect(clippy::print_stderr, reason = "what a runtime prints is read by its caller")]

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    eprintln!("gantry-runtime: {}", gantry_oci_shim::run(&arguments));
    ExitCode::FAILURE
}
