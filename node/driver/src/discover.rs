//! Finding what is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use crate::elf::{self, SharedLibrary};
use crate::tables::{
    BELOW, CONFIG_FOLDERS, CONFIGS, DEFAULT_FOLDERS, FIRMWARE_FOLDERS, LIBRARY_FOLDERS, PROGRAM_FOLDERS,
    PROGRAMS, SOCKETS, UNVERSIONED, XORG, XORG_FOLDERS, library,
};
use crate::{CachedLibrary, Capabilities, DriverVersion, Error, Root, ldcache};

/// A driver as it is installed: everything that a container may need of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Its version.
    pub version: DriverVersion,
    /// The newest CUDA version that it runs, where it is known.
    pub cuda: Option<(u32, u32)>,
    /// The folder that containers have its 64-bit libraries in, unless their image asks for another.
    pub library_folder: String,
    /// The same for 32-bit programs.
    pub library_folder_32: String,
    /// The files by kind, then by path.
    pub files: Vec<DriverFile>,
    /// What GPUDirect Storage needs besides its devices: paths for the container runtime, and in the container.
    pub storage: Vec<(String, String)>,
    /// Files that were found and cannot be used, one sentence each.
    pub problems: Vec<String>,
    /// The folders below the root in which it was found, without links: one that changes may hold another driver.
    pub folders: Vec<String>,
}

/// A file of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverFile {
    /// Where containers have it.
    pub place: Place,
    /// The file itself on the machine, without links, for the container runtime.
    pub host_path: String,
    /// Whom it is for: a container that asks for one of these.
    pub capabilities: Capabilities,
}

/// Where containers have a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the image's folder of libraries.
    Library {
        /// The folder below that one, mostly empty.
        below: String,
        /// Its file name, the name that the loader asks for, and other names that programs use.
        names: BTreeSet<String>,
        /// Whether it is for 64-bit programs.
        is_64_bit: bool,
    },
    /// At a path of its own, read-only.
    File(String),
    /// At a path of its own, to talk through.
    Socket(String),
}

/// What is known of the driver besides its files.
#[derive(Debug, Clone, Default)]
pub struct Running {
    /// The text of `/proc/driver/nvidia/version`, where there is one.
    pub module: Option<String>,
    /// What NVML says.
    pub version: Option<String>,
    /// What NVML says of CUDA.
    pub cuda: Option<(u32, u32)>,
}

impl Running {
    /// Asks the kernel.
    pub fn of_kernel(proc: &Path) -> Self {
        let module = fs::read_to_string(proc.join("driver/nvidia/version")).ok();
        Self { module, ..Self::default() }
    }

    /// The version that runs: the kernel's word counts, for NVML may be that of a library that was replaced since.
    pub fn driver_version(&self) -> Result<Option<DriverVersion>, Error> {
        let module = self.module.as_deref().and_then(DriverVersion::of_module);
        match (module, &self.version) {
            (None, Some(version)) => version.parse().map(Some),
            (module, _) => Ok(module),
        }
    }
}

/// Finds the driver that is installed below a root: the one that runs, or the newest if that is not known.
///
/// # Errors
/// [`Error::NoDriver`] where there is none, [`Error::Mismatch`] where another one is installed than runs.
pub fn discover(root: &Root, running: &Running) -> Result<Driver, Error> {
    let wanted = running.driver_version()?;
    let mut problems = Vec::new();
    let cached = cache(root, &mut problems);
    let folders = Folder::all(root, &cached);
    let versions: BTreeSet<DriverVersion> = folders.iter().flat_map(Folder::versions).collect();
    let version = match wanted {
        Some(wanted) if versions.contains(&wanted) => wanted,
        Some(running) if !versions.is_empty() => {
            let found = versions.into_iter().rev().collect();
            return Err(Error::Mismatch { running, found, root: root.path().to_path_buf() });
        }
        _ => versions.last().cloned().ok_or_else(|| Error::NoDriver { root: root.path().to_path_buf() })?,
    };
    let mut found =
        Found { root, version: version.as_str(), files: BTreeMap::new(), problems, machines: Vec::new() };
    for folder in &folders {
        found.libraries(folder);
    }
    found.others();
    let folder_of = |wide: bool| {
        let first = found.machines.iter().find(|(_, library)| library.is_64_bit == wide);
        first.map_or_else(String::new, |(folder, library)| container_folder(folder, library.machine))
    };
    Ok(Driver {
        cuda: running.cuda.or_else(|| version.cuda()),
        library_folder: folder_of(true),
        library_folder_32: folder_of(false),
        folders: folders
            .iter()
            .filter(|folder| folder.versions().any(|v| v == version))
            .map(|f| f.path.clone())
            .collect(),
        files: found
            .files
            .into_iter()
            .map(|(place, (host_path, capabilities))| DriverFile { place, host_path, capabilities })
            .collect(),
        storage: ["/etc/cufile.json", "/run/udev"]
            .iter()
            .filter_map(|path| Some((root.host(&root.resolve(path).ok()?), (*path).to_owned())))
            .collect(),
        problems: found.problems,
        version,
    })
}

/// The folder that containers have libraries in: the machine's, where an image's loader looks there without being told, else the
/// one that Debian has for the processor.
fn container_folder(folder: &str, machine: u16) -> String {
    let usual = DEFAULT_FOLDERS.iter().find(|usual| folder.strip_prefix(**usual).is_some_and(begins));
    let usual = usual.copied().unwrap_or(match machine {
        3 if folder == "/usr/lib" => "/usr/lib",
        183 => "/usr/lib/aarch64-linux-gnu",
        3 => "/usr/lib/i386-linux-gnu",
        _ => "/usr/lib/x86_64-linux-gnu",
    });
    usual.to_owned()
}

fn begins(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

/// What the loader's cache below the root names; nothing where there is none.
fn cache(root: &Root, problems: &mut Vec<String>) -> Vec<CachedLibrary> {
    let path = "/etc/ld.so.cache";
    let Ok(real) = root.resolve(path) else { return Vec::new() };
    let mut bytes = Vec::new();
    let read = File::open(root.here(&real))
        .and_then(|file| file.take(ldcache::MAX_CACHE).read_to_end(&mut bytes))
        .map_err(|source| Error::Io { action: "read", path: root.here(&real), source });
    match read.and_then(|_| ldcache::parse(&bytes)) {
        Ok(libraries) => libraries,
        Err(error) => {
            problems.push(error.to_string());
            Vec::new()
        }
    }
}

/// A folder of libraries.
struct Folder {
    /// Inside the root, without links.
    path: String,
    names: Vec<String>,
}

impl Folder {
    /// The folders in which the loader knows libraries of a driver, then the usual ones; each once.
    fn all(root: &Root, cached: &[CachedLibrary]) -> Vec<Self> {
        let of_driver = |library: &&CachedLibrary| {
            ["libcuda.so", "libnvidia-", "libEGL_nvidia", "libGLX_nvidia"]
                .iter()
                .any(|begin| library.name.starts_with(begin))
        };
        let named =
            cached.iter().filter(of_driver).filter_map(|library| Some(library.path.rsplit_once('/')?.0));
        let mut seen = BTreeSet::new();
        let mut folders = Vec::new();
        // What the loader knows may be a link to where the driver's files are, as with Debian's alternatives.
        let targets = cached.iter().filter(of_driver).filter_map(|library| root.resolve(&library.path).ok());
        let targets: Vec<String> =
            targets.filter_map(|path| Some(path.rsplit_once('/')?.0.to_owned())).collect();
        let names = named.map(str::to_owned).chain(targets);
        for path in names.chain(LIBRARY_FOLDERS.map(str::to_owned)) {
            if let Ok(path) = root.resolve(&path)
                && seen.insert(path.clone())
            {
                folders.push(Self { names: root.names(&path), path });
            }
        }
        folders
    }

    /// The versions of the driver that have a library here.
    fn versions(&self) -> impl Iterator<Item = DriverVersion> {
        let version = |name: &String| {
            ["libcuda.so.", "libnvidia-ml.so."]
                .iter()
                .find_map(|begin| name.strip_prefix(begin)?.parse().ok())
        };
        self.names.iter().filter_map(version)
    }
}

struct Found<'a> {
    root: &'a Root,
    version: &'a str,
    /// By place: host path and capabilities. The first that is found stays.
    files: BTreeMap<Place, (String, Capabilities)>,
    problems: Vec<String>,
    /// The folders in which libraries were found, with one of them.
    machines: Vec<(String, SharedLibrary)>,
}

impl Found<'_> {
    fn libraries(&mut self, folder: &Folder) {
        for name in &folder.names {
            if let Some((_, row)) = library(name, self.version) {
                let capabilities = row.map_or(Capabilities::ALL, |row| row.capabilities);
                let aliases = row.map_or(&[][..], |row| row.aliases);
                self.library(&folder.path, "", name, capabilities, aliases);
            } else if let Some((_, capabilities)) = UNVERSIONED.iter().find(|(known, _)| known == name) {
                self.library(&folder.path, "", name, *capabilities, &[]);
            }
        }
        for (below, wanted, capabilities) in BELOW {
            let path = format!("{}/{below}", folder.path);
            let wanted =
                if wanted.ends_with('.') { format!("{wanted}{}", self.version) } else { wanted.to_owned() };
            if self.root.names(&path).contains(&wanted) {
                self.library(&folder.path, below, &wanted, capabilities, &[]);
            }
        }
    }

    /// Takes a library in. One that cannot be read is told of and left out: a container with half of it would fail later, and far away.
    fn library(
        &mut self,
        folder: &str,
        below: &str,
        name: &str,
        capabilities: Capabilities,
        aliases: &[&str],
    ) {
        let path =
            if below.is_empty() { format!("{folder}/{name}") } else { format!("{folder}/{below}/{name}") };
        let read = self.root.resolve(&path).and_then(|real| {
            let here = self.root.here(&real);
            let file =
                File::open(&here).map_err(|source| Error::Io { action: "open", path: here, source })?;
            Ok((real, elf::read(&file)?))
        });
        let (real, library) = match read {
            Ok(read) => read,
            Err(error @ Error::Elf(_)) => {
                return self.problems.push(format!("{}: {error}", self.root.host(&path)));
            }
            Err(error) => return self.problems.push(error.to_string()),
        };
        let mut names = BTreeSet::from([name.to_owned()]);
        if below.is_empty() {
            // Its own file name too, where it is loaded by a link: libcuda asks for some of its helpers by theirs.
            names.extend(real.rsplit('/').next().map(str::to_owned));
            names.extend(library.soname.clone());
        }
        names.extend(aliases.iter().map(|alias| (*alias).to_owned()));
        let place = Place::Library { below: below.to_owned(), names, is_64_bit: library.is_64_bit };
        if !self.files.keys().any(|known| known.overlaps(&place)) {
            self.files.insert(place, (self.root.host(&real), capabilities));
            if !self.machines.iter().any(|(known, _)| known == folder) {
                self.machines.push((folder.to_owned(), library));
            }
        }
    }

    fn others(&mut self) {
        for (program, capabilities) in PROGRAMS {
            let found = PROGRAM_FOLDERS.iter().find_map(|folder| {
                let path = format!("{folder}/{program}");
                let real = self.regular(&path)?;
                // Where an image has programs; the path of another distribution's store means nothing there.
                let usual = folder.starts_with("/usr/") && !folder.contains("local");
                Some((if usual { path } else { format!("/usr/bin/{program}") }, real))
            });
            if let Some((place, real)) = found {
                self.files.insert(Place::File(place), (real, capabilities));
            }
        }
        for (file, capabilities) in CONFIGS {
            for folder in CONFIG_FOLDERS {
                let path = format!("{folder}/{file}");
                if let Some(real) = self.regular(&path) {
                    let place = path.replacen("/run/opengl-driver/share", "/usr/share", 1);
                    self.files.entry(Place::File(place)).or_insert((real, capabilities));
                }
            }
        }
        for folder in XORG_FOLDERS {
            for module in XORG {
                let path = format!("{folder}/{}", module.replace("VERSION", self.version));
                if let Some(real) = self.regular(&path) {
                    self.files.insert(Place::File(path), (real, Capabilities::DISPLAY));
                }
            }
        }
        for folder in FIRMWARE_FOLDERS {
            let folder = format!("{folder}/{}", self.version);
            let names = self.root.names(&folder);
            let firmware = |name: &&String| {
                name.starts_with("gsp") && Path::new(name).extension().is_some_and(|ending| ending == "bin")
            };
            let places: Vec<_> = names
                .iter()
                .filter(firmware)
                .map(|name| (name, format!("/lib/firmware/nvidia/{}/{name}", self.version)))
                .collect();
            for (name, place) in places {
                if let Some(real) = self.regular(&format!("{folder}/{name}")) {
                    self.files.entry(Place::File(place)).or_insert((real, Capabilities::ALL));
                }
            }
        }
        for (socket, capabilities) in SOCKETS {
            let Ok(real) = self.root.resolve(socket) else { continue };
            let kind = fs::symlink_metadata(self.root.here(&real)).map(|file| file.file_type());
            if kind.is_ok_and(|kind| kind.is_socket() || kind.is_dir()) {
                self.files.insert(Place::Socket(socket.to_owned()), (self.root.host(&real), capabilities));
            }
        }
    }

    /// The regular file that a path leads to, for the container runtime.
    fn regular(&mut self, path: &str) -> Option<String> {
        match self.root.resolve(path) {
            Ok(real) => fs::metadata(self.root.here(&real))
                .is_ok_and(|file| file.is_file())
                .then(|| self.root.host(&real)),
            Err(error @ Error::Link { .. }) => {
                self.problems.push(error.to_string());
                None
            }
            Err(_) => None,
        }
    }
}

impl Place {
    /// Whether two libraries of one folder claim a name.
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Library { below, names, is_64_bit },
                Self::Library { below: other_below, names: other_names, is_64_bit: other_64 },
            ) => below == other_below && is_64_bit == other_64 && !names.is_disjoint(other_names),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
