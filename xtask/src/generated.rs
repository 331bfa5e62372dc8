//! Checked-in files that a program writes.

use anyhow::bail;

use crate::cargo::cargo;

/// Fails if a checked-in file differs from what its sources give.
pub(crate) fn check() -> anyhow::Result<()> {
    code(true)?;
    crds(true)
}

/// The gRPC code in `wire/proto`. The generator is a feature of this crate, because it is slow to build.
pub(crate) fn code(check: bool) -> anyhow::Result<()> {
    #[cfg(feature = "codegen")]
    return crate::codegen::run(check);
    #[cfg(not(feature = "codegen"))]
    {
        let mut arguments =
            vec!["run", "--package", "xtask", "--quiet", "--features", "codegen", "--", "codegen"];
        if check {
            arguments.push("--check");
        }
        cargo(&arguments)
    }
}

/// The CRDs. The crate that owns the types also writes the files: its test compares, and blesses when told to.
pub(crate) fn crds(check: bool) -> anyhow::Result<()> {
    if check {
        return cargo(&["test", "--package", "gantry-api", "--locked", "crd"]);
    }
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(program)
        .args(["test", "--package", "gantry-api", "--locked", "crd"])
        .env("BLESS", "1")
        .current_dir(crate::cargo::root())
        .status()?;
    if !status.success() {
        bail!("writing the CRDs failed: {status}");
    }
    Ok(())
}
