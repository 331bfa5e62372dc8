//! `cargo xtask image`: the container image of the `gantry` program.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use gantry_image::Image;

use crate::cargo::{cargo, target};

/// What to build.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The image's name.
    #[arg(long, default_value = concat!("gantry:", env!("CARGO_PKG_VERSION")))]
    reference: String,
    /// Cargo's profile: release, or dev for tries, which is large and slow and soon built.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Put this program into it instead of building one, and the gantry-runtime beside it.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Do not compress the layers: larger, and much sooner written. For archives that stay on this machine.
    #[arg(long)]
    uncompressed: bool,
    /// The archive. Default: gantry-image.tar in the target folder.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What NVML opens or is linked against: a driver's library brings nothing of the C library along.
const NVML_NEEDS: [&str; 4] = ["libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"];

/// The user of everything that needs nothing of its node; the agent's pod asks for root.
const USER: &str = "65532:65532";

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let target = target()?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            let packages = ["build", "--package", "gantry-cli", "--package", "gantry-oci-shim", "--locked"];
            cargo(&[&packages[..], &["--profile", &options.profile]].concat())?;
            let folder = if options.profile == "dev" { "debug" } else { &options.profile };
            target.join(folder).join("gantry")
        }
    };
    let output = options.output.clone().unwrap_or_else(|| target.join("gantry-image.tar"));
    let image = image(&options.reference, &program, &program.with_file_name("gantry-runtime"));
    let image = if options.uncompressed { image.uncompressed() } else { image };
    let written = image.write(&output).context("write the image")?;
    eprintln!("{} files, {} MiB in layers", written.files.len(), written.layer_bytes >> 20);
    eprintln!("import it on each node: ctr --namespace k8s.io images import {}", output.display());
    println!("{} {} {}", output.display(), written.reference, written.digest);
    Ok(())
}

/// Linked dynamically, because NVML is opened at run time: a static program cannot.
fn image(reference: &str, program: &Path, runtime: &Path) -> Image {
    let mut image = Image::new(reference).libraries_of(program).libraries_of(runtime);
    for library in NVML_NEEDS {
        image = image.library(library);
    }
    image
        .bytes("/etc/passwd", "root:x:0:0::/:/\ngantry:x:65532:65532::/:/\n", 0o644)
        .bytes("/etc/group", "root:x:0:\ngantry:x:65532:\n", 0o644)
        .directory("/tmp", 0o1777)
        .layer()
        .file(program, "/usr/bin/gantry")
        // For nodes: `gantry runtime install` copies it there.
        .file(runtime, "/usr/bin/gantry-runtime")
        .entrypoint(["/usr/bin/gantry"])
        .env("PATH", "/usr/bin")
        .user(USER)
        .working_dir("/")
        .label("org.opencontainers.image.title", "gantry")
        .label(
            "org.opencontainers.image.description",
            "GPUs in Kubernetes: node agent, scheduler, controllers",
        )
        .label("org.opencontainers.image.licenses", "Apache-2.0")
        .label("org.opencontainers.image.version", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_the_program_what_it_is_linked_against_and_what_nvml_needs() {
        let program = std::env::current_exe().expect("this program has a path");
        let folder = std::env::temp_dir().join(format!("gantry-image-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        let archive = folder.join("image.tar");
        let written = image("gantry:test", &program, &program).uncompressed().write(&archive);
        let _ = std::fs::remove_dir_all(&folder);
        let written = written.expect("the image is written");
        assert_eq!(written.reference, "docker.io/library/gantry:test");
        let has = |end: &str| written.files.keys().any(|path| path.ends_with(end));
        assert!(
            has("/usr/bin/gantry")
                && has("/usr/bin/gantry-runtime")
                && has("/libc.so.6")
                && has("/etc/passwd"),
            "{written:?}"
        );
        assert!(NVML_NEEDS.iter().all(|library| has(library)), "{written:?}");
    }
}
