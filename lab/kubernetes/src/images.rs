//! Images of a cluster, made of files of this machine and imported without a registry.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use gantry_image::Image;

use crate::build::{Artefacts, digest};
use crate::cache::Cache;
use crate::machine::Machine;
use crate::pause;
use crate::plan::RUNTIME_SOCKET;
use crate::registry::Registry;

/// How often containerd is asked whether it takes images, before its answer is an error.
const ATTEMPTS: u32 = 200;

/// What runs in place of the work that an image of this name would do: it says so, and waits.
const WORKLOAD: &str = r#"#!/bin/sh
echo "this program stands in for the image's own: $*"
trap 'exit 0' TERM
sleep infinity &
wait
"#;

/// Stands in for Python: answers how many GPUs there are, where it is asked, and then waits too.
const PYTHON: &str = r#"#!/bin/sh
case "$*" in *device_count*) ls /dev | grep -c '^nvidia[0-9]' ;; esac
exec workload python "$@"
"#;

/// Debian's busybox is built without it.
const PRINTENV: &str = r#"#!/bin/sh
for name; do env | sed -n "s/^$name=//p"; done
"#;

/// What a cluster's nodes run without the world outside.
#[derive(Debug)]
pub(crate) struct Images {
    /// Archives that every node has from the start: `localhost/pause:1` for sandboxes, `localhost/busybox:1`.
    pub(crate) archives: Vec<PathBuf>,
    /// Has one image for all others: busybox with the C library that programs such as nvidia-smi are linked against.
    pub(crate) registry: Arc<Registry>,
}

/// Writes the images, unless they are there.
pub(crate) fn prepare(cache: &Cache, artefacts: &Artefacts) -> anyhow::Result<Images> {
    let busybox = artefacts.debian.join("bin/busybox");
    let packages = artefacts.debian.display().to_string();
    // What the images are made of; the layout of each stands below.
    let parts = ["3", &packages, WORKLOAD, PYTHON, PRINTENV].map(str::as_bytes);
    let folder = cache.built(&format!("images-{}", digest(&parts)), |folder| {
        let listed = Command::new(&busybox).arg("--list").output();
        let listed = listed.with_context(|| format!("start {}", busybox.display()))?;
        let base = |name: &str| {
            let mut image = Image::new(name)
                .uncompressed()
                .file(&busybox, "/bin/busybox")
                .directory("/tmp", 0o1777)
                .directory("/root", 0o700)
                .bytes("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644)
                .bytes("/etc/group", "root:x:0:\n", 0o644)
                .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
            for applet in String::from_utf8_lossy(&listed.stdout).lines().filter(|name| *name != "busybox") {
                image = image.symlink(format!("/bin/{applet}"), "busybox");
            }
            image
        };
        base("localhost/pause:1").entrypoint(["/bin/sleep", "infinity"]).write(&folder.join("pause.tar"))?;
        base("localhost/busybox:1").command(["/bin/sh"]).write(&folder.join("busybox.tar"))?;
        let own = std::env::current_exe().context("find this program")?;
        base("localhost/workload:1")
            .command(["workload"])
            .bytes("/usr/local/bin/workload", WORKLOAD, 0o755)
            .bytes("/usr/bin/python", PYTHON, 0o755)
            .symlink("/usr/bin/python3", "python")
            .bytes("/usr/bin/printenv", PRINTENV, 0o755)
            .libraries_of(own)
            .library("libm.so.6")
            .library("libdl.so.2")
            .write(&folder.join("workload.tar"))?;
        Ok(())
    })?;
    let archives = ["pause", "busybox"].map(|name| folder.join(format!("{name}.tar"))).into();
    Ok(Images { archives, registry: Arc::new(Registry::of(&folder.join("workload.tar"))?) })
}

/// Imports images into a node whose containerd has just been started.
pub(crate) fn import_all(machine: &Machine, images: &[PathBuf]) -> anyhow::Result<()> {
    let ready = (0..ATTEMPTS).any(|_| {
        let listening = machine.enter(["test", "-S", RUNTIME_SOCKET]).status();
        let ready = listening.is_ok_and(|status| status.success());
        if !ready {
            pause(25);
        }
        ready
    });
    ensure!(
        ready,
        "containerd of {} does not listen; see {}",
        machine.plan.name,
        machine.plan.log("containerd").display()
    );
    images.iter().try_for_each(|image| import(&mut machine.enter::<_, &str>([]), image))
}

/// Imports one archive with a command that enters the node.
pub(crate) fn import(enter: &mut Command, archive: &Path) -> anyhow::Result<()> {
    // The label makes it the kubelet's as well as containerd's.
    let label = "io.cri-containerd.image=managed";
    enter
        .args(["ctr", "--namespace", "k8s.io", "images", "import", "--local", "--label", label])
        .arg(archive);
    let output = enter.stdin(Stdio::null()).output().context("start nsenter")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "import {}: {}", archive.display(), text.trim());
    Ok(())
}
