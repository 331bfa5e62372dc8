//! Building Kubernetes and what it needs: Go modules from the module proxy, five Debian packages, nothing else.

use std::fs;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use sha2::{Digest as _, Sha256};

use crate::cache::Cache;

/// A Kubernetes version that can be built. Its module in `go/` pins what it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// As people name it, such as `1.37`.
    pub name: &'static str,
    /// In full, without the `v`.
    pub full: &'static str,
    /// Whether its API server knows `Workload` and `PodGroup`, which the scheduler places as one.
    pub gangs: bool,
    /// Whether its kubelet has a policy for images that it has pulled with credentials; older ones refuse to be told one.
    pub pull_policy: bool,
}

/// The versions, newest first. The newest module brings etcd, containerd and runc for all.
pub const VERSIONS: [Version; 2] = [
    Version { name: "1.37", full: "1.37.2", gangs: true, pull_policy: true },
    Version { name: "1.34", full: "1.34.4", gangs: false, pull_policy: false },
];

/// Programs of Kubernetes in the one that a module builds.
const KUBERNETES: [&str; 6] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"];

/// Programs that only the newest module's program contains.
const RUNTIME: [&str; 3] = ["etcd", "containerd", "ctr"];

const CONTAINERD: &str = "2.4.2";
const RUNC: &str = "1.5.3";

/// Helm's own version, and the minor version of Kubernetes that it is made for, as in `go/tools/go.mod`.
const HELM: &str = "3.22.0";
const HELM_KUBERNETES: u32 = 37;

/// What else a node runs, from the newest module.
const NODE: [&str; 5] = [
    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    "github.com/containernetworking/plugins/plugins/main/bridge",
    "github.com/containernetworking/plugins/plugins/main/loopback",
    "github.com/containernetworking/plugins/plugins/ipam/host-local",
    "sigs.k8s.io/cri-tools/cmd/crictl",
];

/// busybox for images, the seccomp library for runc, nftables with its libraries for kube-proxy.
const PACKAGES: [&str; 7] =
    ["busybox-static", "libseccomp-dev", "nftables", "libnftables1", "libnftnl11", "libjansson4", "libmnl0"];

impl Version {
    /// The version of this name, or the newest for `latest`.
    ///
    /// # Errors
    /// Where there is none; the message lists those there are.
    pub fn named(name: &str) -> anyhow::Result<Self> {
        let known = || VERSIONS.map(|version| version.name).join(", ");
        VERSIONS
            .into_iter()
            .find(|version| name == "latest" || name == version.name)
            .with_context(|| format!("Kubernetes {name:?} is not built here: choose one of {}", known()))
    }
}

/// Folders with programs.
#[derive(Debug, Clone)]
pub(crate) struct Artefacts {
    /// Kubernetes', etcd's and containerd's programs by their names, the shim, runc, crictl.
    pub(crate) bin: PathBuf,
    /// Network plugins.
    pub(crate) cni: PathBuf,
    /// Unpacked Debian packages.
    pub(crate) debian: PathBuf,
}

impl Artefacts {
    /// Builds what is not built yet. The first time takes about ten minutes on two cores, and tells how far it is.
    pub(crate) fn build(cache: &Cache, version: Version) -> anyhow::Result<Self> {
        let go = Go::new(cache)?;
        let debian =
            cache.built(&format!("debian-{}", digest(&[PACKAGES.join(" ").as_bytes()])), packages)?;
        let newest = VERSIONS[0];
        let main = go.program(cache, newest)?;
        let kubernetes = if version == newest { main.clone() } else { go.program(cache, version)? };
        let node = go.node(cache, newest)?;
        let runc = go.runc(cache, newest, &debian)?;
        let parts = [&main, &kubernetes, &node, &runc].map(|path| path.display().to_string()).join("\n");
        let bin =
            cache.built(&format!("node-v{}-{}", version.name, digest(&[parts.as_bytes()])), |folder| {
                let link = |program: &Path, name: &str| {
                    std::os::unix::fs::symlink(program, folder.join(name))
                        .with_context(|| format!("link {name}"))
                };
                KUBERNETES.iter().try_for_each(|name| link(&kubernetes.join("program"), name))?;
                RUNTIME.iter().try_for_each(|name| link(&main.join("program"), name))?;
                for name in ["containerd-shim-runc-v2", "crictl"] {
                    link(&node.join(name), name)?;
                }
                link(&runc.join("runc"), "runc")
            })?;
        Ok(Self { bin, cni: node, debian })
    }

    /// Helm, which only some tests need.
    pub(crate) fn helm(cache: &Cache) -> anyhow::Result<PathBuf> {
        let go = Go::new(cache)?;
        let helm = "helm.sh/helm/v3";
        // What it takes for the cluster's version where it has no cluster; without, it is a Kubernetes of long ago.
        let set = ["pkg/lint/rules", "pkg/chartutil"].into_iter().flat_map(|package| {
            [("Major", 1), ("Minor", HELM_KUBERNETES)]
                .map(|(part, number)| format!("{helm}/{package}.k8sVersion{part}={number}"))
        });
        let set = set.chain([format!("{helm}/internal/version.version=v{HELM}")]).collect();
        let build =
            Build { module: "tools", packages: &["helm.sh/helm/v3/cmd/helm"], set, ..Build::default() };
        Ok(go.build(cache, "helm", &build)?.join("helm"))
    }
}

/// One call of `go build`.
#[derive(Default)]
struct Build<'a> {
    /// The folder below `go/`.
    module: &'a str,
    packages: &'a [&'a str],
    /// Values for `-X`.
    set: Vec<String>,
    tags: &'a str,
    /// More flags for the linker.
    link: &'a str,
    environment: Vec<(&'a str, String)>,
    /// The result's name where it is not that of the package.
    output: Option<&'a str>,
}

struct Go {
    sources: PathBuf,
    modules: PathBuf,
    builds: PathBuf,
    version: String,
}

impl Go {
    fn new(cache: &Cache) -> anyhow::Result<Self> {
        let output = Command::new("go").args(["env", "GOVERSION"]).output();
        let output = output.context("Kubernetes is built with Go, and there is no `go` on the PATH")?;
        ensure!(output.status.success(), "go env failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(Self {
            sources: Path::new(env!("CARGO_MANIFEST_DIR")).join("go"),
            modules: cache.path("gomod"),
            builds: cache.path("gocache"),
            version: String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        })
    }

    /// Kubernetes of a version as one program.
    fn program(&self, cache: &Cache, version: Version) -> anyhow::Result<PathBuf> {
        let package = "k8s.io/component-base/version";
        let mut numbers = version.full.split('.');
        let mut number = || numbers.next().unwrap_or_default();
        let set = vec![
            format!("{package}.gitVersion=v{}", version.full),
            format!("{package}.gitMajor={}", number()),
            format!("{package}.gitMinor={}", number()),
            format!("{package}.gitTreeState=clean"),
            format!("github.com/containerd/containerd/v2/version.Version=v{CONTAINERD}"),
        ];
        let module = format!("v{}", version.name);
        let build =
            Build { module: &module, packages: &["."], set, output: Some("program"), ..Build::default() };
        self.build(cache, &format!("kubernetes-v{}", version.name), &build)
    }

    fn node(&self, cache: &Cache, newest: Version) -> anyhow::Result<PathBuf> {
        let module = format!("v{}", newest.name);
        self.build(cache, "node", &Build { module: &module, packages: &NODE, ..Build::default() })
    }

    /// runc with seccomp, without which no pod starts, and linked statically: it runs in any container's file system.
    fn runc(&self, cache: &Cache, newest: Version, debian: &Path) -> anyhow::Result<PathBuf> {
        let module = format!("v{}", newest.name);
        let libraries = debian.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
        let build = Build {
            module: &module,
            packages: &["github.com/opencontainers/runc"],
            set: vec![format!("main.version={RUNC}")],
            tags: "seccomp urfave_cli_no_docs",
            link: "-extldflags -static",
            environment: vec![
                ("CGO_ENABLED", "1".to_owned()),
                ("PKG_CONFIG_PATH", libraries.join("pkgconfig").display().to_string()),
                ("CGO_CFLAGS", format!("-I{}", debian.join("usr/include").display())),
                ("CGO_LDFLAGS", format!("-L{}", libraries.display())),
            ],
            ..Build::default()
        };
        self.build(cache, "runc", &build)
    }

    /// The folder with the results of a build, which is made if there is none of the same sources.
    fn build(&self, cache: &Cache, name: &str, build: &Build<'_>) -> anyhow::Result<PathBuf> {
        let module = self.sources.join(build.module);
        let mut parts = vec![self.version.clone().into_bytes()];
        for file in ["go.mod", "go.sum", "main.go"] {
            parts.push(fs::read(module.join(file)).unwrap_or_default());
        }
        let Build { packages, set, tags, link, .. } = build;
        parts.push(format!("{packages:?} {set:?} {tags} {link}").into_bytes());
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        cache.built(&format!("{name}-{}", digest(&parts)), |folder| {
            let total =
                self.packages(&module, build).with_context(|| format!("fetch the modules of {name}"))?;
            let mut flags = format!("-s -w {link}");
            for value in set {
                flags.push_str(" -X ");
                flags.push_str(value);
            }
            let output = build.output.map_or_else(|| folder.to_path_buf(), |output| folder.join(output));
            let mut command = self.command(&module, build);
            command
                .args(["build", "-v", "-tags", tags, "-ldflags", &flags, "-o"])
                .arg(output)
                .args(*packages);
            watch(command, name, total)
        })
    }

    /// Fetches the modules and counts the packages that there are to compile.
    fn packages(&self, module: &Path, build: &Build<'_>) -> anyhow::Result<usize> {
        let mut command = self.command(module, build);
        let output = command.args(["list", "-deps", "-tags", build.tags]).args(build.packages).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).lines().count())
    }

    fn command(&self, module: &Path, build: &Build<'_>) -> Command {
        let mut command = Command::new("go");
        command
            .current_dir(module)
            .env("GOMODCACHE", &self.modules)
            .env("GOCACHE", &self.builds)
            .env("GOTOOLCHAIN", "local")
            .env("GOWORK", "off")
            .env("GOFLAGS", "-mod=readonly -modcacherw -buildvcs=false -trimpath")
            .env("CGO_ENABLED", "0")
            .envs(build.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }
}

/// Runs a build that names each package as it compiles it, and tells how far it is.
#[expect(clippy::print_stderr, reason = "whoever waits minutes wants to see that something moves")]
#[expect(clippy::disallowed_methods, reason = "tells a person how long it took; nothing depends on it")]
fn watch(mut command: Command, name: &str, total: usize) -> anyhow::Result<()> {
    let start = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("start go build")?;
    let lines = BufReader::new(child.stderr.take().context("invariant: standard error is piped")?).lines();
    let (mut compiled, mut talk, mut told) = (0, Vec::new(), Duration::ZERO);
    for line in lines.map_while(Result::ok) {
        // A package's path has neither a space nor a colon; whatever else go says may be why it fails.
        if line.contains([' ', ':', '#']) {
            talk.push(line);
        } else {
            compiled += 1;
        }
        let elapsed = start.elapsed();
        if elapsed.saturating_sub(told) > Duration::from_secs(if terminal { 1 } else { 30 }) {
            told = elapsed;
            let end = if terminal { "\r" } else { "\n" };
            eprint!("building {name}: {compiled} of at most {total} packages, {} s {end}", elapsed.as_secs());
            let _ = std::io::stderr().flush();
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("go build of {name} failed:\n{}", talk.join("\n"));
    }
    eprintln!("built {name}: {compiled} packages, {} s", start.elapsed().as_secs());
    Ok(())
}

/// Downloads and unpacks the Debian packages.
fn packages(folder: &Path) -> anyhow::Result<()> {
    let run = |command: &mut Command| -> anyhow::Result<()> {
        let output = command.output().with_context(|| format!("start {command:?}"))?;
        ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    let debs = folder.join("debs");
    fs::create_dir(&debs)?;
    let download = || run(Command::new("apt-get").arg("download").args(PACKAGES).current_dir(&debs));
    // On a fresh machine apt knows no package before it has read the lists.
    if download().is_err() {
        run(Command::new("apt-get").arg("update"))?;
        download()?;
    }
    for package in fs::read_dir(&debs)? {
        run(Command::new("dpkg").arg("--extract").arg(package?.path()).arg(folder))?;
    }
    fs::remove_dir_all(debs)?;
    Ok(())
}

/// Eight hexadecimal digits that stand for these bytes.
pub(crate) fn digest(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let bytes: [u8; 32] = hash.finalize().into();
    let [a, b, c, d, ..] = bytes;
    format!("{:08x}", u32::from_be_bytes([a, b, c, d]))
}
