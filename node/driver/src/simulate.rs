//! A driver that is installed for a simulated machine: libraries with a name and nothing else, and programs that say so.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::elf::minimal;

/// The libraries of a compute driver, with the names that they are loaded by.
const LIBRARIES: [(&str, &str); 8] = [
    ("libcuda.so", "libcuda.so.1"),
    ("libcudadebugger.so", "libcudadebugger.so.1"),
    ("libnvidia-cfg.so", "libnvidia-cfg.so.1"),
    ("libnvidia-ml.so", "libnvidia-ml.so.1"),
    ("libnvidia-nvvm.so", "libnvidia-nvvm.so.4"),
    ("libnvidia-opencl.so", "libnvidia-opencl.so.1"),
    ("libnvidia-ptxjitcompiler.so", "libnvidia-ptxjitcompiler.so.1"),
    ("libnvidia-gpucomp.so", ""),
];

const PROGRAMS: [&str; 5] = [
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
];

/// Lays out a driver below `root` as Debian has it: enough to find and to mount it, and nothing that runs. What is there stays.
///
/// # Errors
/// Where a file or folder cannot be made.
pub fn install_simulated(root: &Path, version: &str) -> io::Result<()> {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let programs = root.join("usr/bin");
    fs::create_dir_all(&libraries)?;
    fs::create_dir_all(&programs)?;
    let put = |path: &Path, bytes: &[u8]| if path.exists() { Ok(()) } else { fs::write(path, bytes) };
    for program in PROGRAMS {
        let (path, text) = (
            programs.join(program),
            format!("#!/bin/sh\necho \"{program}: this driver {version} is simulated\" >&2\nexit 1\n"),
        );
        put(&path, text.as_bytes())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    // libcuda last: whoever sees it sees the others.
    for (name, soname) in LIBRARIES.iter().rev() {
        let file = format!("{name}.{version}");
        let soname = if soname.is_empty() { file.as_str() } else { soname };
        put(&libraries.join(&file), &minimal(soname, 62, true))?;
    }
    Ok(())
}
