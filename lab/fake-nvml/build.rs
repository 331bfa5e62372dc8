//! The library's name for the dynamic loader is that of NVIDIA's.

use std::env;
use std::fs;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Containers that the library and its programs are mounted into have glibc and nothing else: the unwinder, which is
    // libgcc_s elsewhere, comes along. A linker script of that name leads to the static archive.
    let folder = env::var("OUT_DIR").unwrap_or_default();
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu")
        && fs::write(Path::new(&folder).join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").is_ok()
    {
        println!("cargo:rustc-link-search=native={folder}");
    }
}
