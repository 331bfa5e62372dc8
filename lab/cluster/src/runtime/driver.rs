//! The files of a driver installation: names without content, enough for the node agent to find and mount them.

use std::path::Path;

use crate::Error;

/// The folder of libraries on Debian and Ubuntu machines.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Libraries that end in the driver's version.
const VERSIONED: &[&str] = &[
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-cfg.so",
    "libnvidia-ml.so",
    "libnvidia-nvvm.so",
    "libnvidia-opencl.so",
    "libnvidia-ptxjitcompiler.so",
];

/// Programs in `usr/bin`.
const PROGRAMS: &[&str] = &[
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
];

/// Makes the files of driver `version` below `root`; those that are there stay.
pub(crate) fn install(root: &Path, version: &str) -> Result<(), Error> {
    let libraries = VERSIONED.iter().map(|name| format!("{LIBRARIES}/{name}.{version}"));
    let programs = PROGRAMS.iter().map(|name| format!("usr/bin/{name}"));
    for folder in [LIBRARIES, "usr/bin"] {
        let folder = root.join(folder);
        std::fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
    }
    for file in libraries.chain(programs) {
        let path = root.join(file);
        if !path.exists() {
            std::fs::write(&path, b"").map_err(Error::file("create", &path))?;
        }
    }
    Ok(())
}
