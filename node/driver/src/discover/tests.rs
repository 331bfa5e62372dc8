use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::*;
use crate::elf::minimal;
use crate::ldcache::write;

const X86: u16 = 62;

/// A root that files are put below.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn library(&self, path: &str, soname: &str) {
        self.put(path, &minimal(soname, X86, true));
    }

    fn link(&self, target: &str, path: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    fn discover(&self, version: Option<&str>) -> Result<Driver, Error> {
        let running = Running { version: version.map(str::to_owned), ..Running::default() };
        discover(&Root::mounted("/run/nvidia/driver", self.0.path()), &running)
    }
}

/// The places of files, one on each line.
fn places(driver: &Driver) -> Vec<String> {
    let text = |file: &DriverFile| match &file.place {
        Place::Library { below, names, is_64_bit } => {
            let names = names.iter().cloned().collect::<Vec<_>>().join(" ");
            format!("{}{below}[{names}] {}", if *is_64_bit { "" } else { "32:" }, file.capabilities)
        }
        Place::File(path) => format!("{path} {}", file.capabilities),
        Place::Socket(path) => format!("socket {path} {}", file.capabilities),
    };
    driver.files.iter().map(text).collect()
}

#[test]
fn everything_is_found_and_tagged() {
    let disk = Disk::new();
    let lib = "/usr/lib/x86_64-linux-gnu";
    disk.library(&format!("{lib}/libcuda.so.550.54.15"), "libcuda.so.1");
    disk.link("libcuda.so.550.54.15", &format!("{lib}/libcuda.so.1"));
    disk.library(&format!("{lib}/libnvidia-ml.so.550.54.15"), "libnvidia-ml.so.1");
    disk.library(&format!("{lib}/libnvidia-gpucomp.so.550.54.15"), "libnvidia-gpucomp.so.550.54.15");
    disk.library(&format!("{lib}/libGLX_nvidia.so.550.54.15"), "libGLX_nvidia.so.0");
    disk.library(&format!("{lib}/libnvidia-brandnew.so.550.54.15"), "libnvidia-brandnew.so.1");
    disk.library(&format!("{lib}/libnvidia-egl-gbm.so.1.1.1"), "libnvidia-egl-gbm.so.1");
    disk.link("libnvidia-egl-gbm.so.1.1.1", &format!("{lib}/libnvidia-egl-gbm.so.1"));
    disk.library(&format!("{lib}/vdpau/libvdpau_nvidia.so.550.54.15"), "libvdpau_nvidia.so.1");
    disk.link("../libGLX_nvidia.so.550.54.15", &format!("{lib}/gbm/nvidia-drm_gbm.so"));
    disk.put("/usr/lib/i386-linux-gnu/libcuda.so.550.54.15", &minimal("libcuda.so.1", 3, false));
    // An earlier driver's, which nobody removed, and somebody else's.
    disk.library(&format!("{lib}/libcuda.so.470.57.02"), "libcuda.so.1");
    disk.library(&format!("{lib}/libc.so.6"), "libc.so.6");
    disk.put("/usr/bin/nvidia-smi", b"");
    disk.put("/opt/bin/nvidia-debugdump", b"");
    disk.put("/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin", b"");
    disk.put("/lib/firmware/nvidia/470.57.02/gsp.bin", b"");
    disk.put("/etc/vulkan/icd.d/nvidia_icd.json", b"{}");
    disk.put("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", b"{}");
    disk.put("/etc/OpenCL/vendors/nvidia.icd", b"libnvidia-opencl.so.1");
    disk.put("/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.550.54.15", b"");
    fs::create_dir_all(disk.path("/tmp/nvidia-mps")).unwrap();
    fs::create_dir_all(disk.path("/run/nvidia-persistenced")).unwrap();
    let _socket = UnixListener::bind(disk.path("/run/nvidia-persistenced/socket")).unwrap();
    disk.put("/run/nvidia-fabricmanager/socket", b"a file is no socket");

    let driver = disk.discover(Some("550.54.15")).unwrap();
    assert_eq!((driver.version.as_str(), driver.cuda), ("550.54.15", Some((12, 4))));
    assert_eq!(
        (driver.library_folder.as_str(), driver.library_folder_32.as_str()),
        (lib, "/usr/lib/i386-linux-gnu")
    );
    assert_eq!(
        places(&driver),
        [
            "[libGLX_indirect.so.0 libGLX_nvidia.so.0 libGLX_nvidia.so.550.54.15] graphics",
            "32:[libcuda.so libcuda.so.1 libcuda.so.550.54.15] compute",
            "[libcuda.so libcuda.so.1 libcuda.so.550.54.15] compute",
            "[libnvidia-brandnew.so.1 libnvidia-brandnew.so.550.54.15] all",
            "[libnvidia-egl-gbm.so.1 libnvidia-egl-gbm.so.1.1.1] graphics",
            "[libnvidia-gpucomp.so.550.54.15] compute,graphics,video",
            "[libnvidia-ml.so.1 libnvidia-ml.so.550.54.15] utility",
            "gbm[nvidia-drm_gbm.so] graphics",
            "vdpau[libvdpau_nvidia.so.550.54.15] video",
            "/etc/OpenCL/vendors/nvidia.icd compute",
            "/etc/vulkan/icd.d/nvidia_icd.json graphics",
            "/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin all",
            "/usr/bin/nvidia-debugdump utility",
            "/usr/bin/nvidia-smi utility",
            "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.550.54.15 display",
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json graphics",
            "socket /run/nvidia-persistenced/socket utility",
            "socket /tmp/nvidia-mps compute",
        ]
    );
    assert!(driver.problems.is_empty(), "{:?}", driver.problems);
    let cuda = driver.files.iter().find(|file| file.host_path.ends_with("libcuda.so.550.54.15")).unwrap();
    assert!(cuda.host_path.starts_with("/run/nvidia/driver/usr/lib/"), "{}", cuda.host_path);
    // Without a word from kernel or NVML the newest counts.
    assert_eq!(disk.discover(None).unwrap().version, driver.version);
    assert_eq!(disk.discover(Some("470.57.02")).unwrap().files.len(), 11);
}

#[test]
fn the_loaders_cache_leads_to_folders_that_nobody_thought_of() {
    let disk = Disk::new();
    disk.library("/gnu/store/nvidia/lib/libcuda.so.570.86.15", "libcuda.so.1");
    disk.library("/opt/elsewhere/libnvidia-ml.so.570.86.15", "libnvidia-ml.so.1");
    disk.link("/gnu/store/nvidia/lib/libcuda.so.570.86.15", "/var/links/libcuda.so.1");
    let library = |name: &str, path: &str| CachedLibrary { name: name.into(), path: path.into() };
    let cache = write(
        &[
            library("libcuda.so.1", "/var/links/libcuda.so.1"),
            library("libnvidia-ml.so.1", "/opt/elsewhere/libnvidia-ml.so.1"),
        ],
        false,
    );
    disk.put("/etc/ld.so.cache", &cache);
    let driver = disk.discover(None).unwrap();
    assert_eq!(driver.files.len(), 2);
    // A folder that means nothing to an image's loader is not what libraries are mounted into.
    assert_eq!(driver.library_folder, "/usr/lib/x86_64-linux-gnu");
    assert_eq!(driver.folders, ["/opt/elsewhere", "/gnu/store/nvidia/lib"]);
    disk.put("/etc/ld.so.cache", b"damaged");
    assert!(matches!(disk.discover(None), Err(Error::NoDriver { .. })));
}

#[test]
fn layouts_of_distributions() {
    for (folder, expected) in [
        ("/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
        ("/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/x86_64-linux-gnu"),
        ("/usr/lib64", "/usr/lib64"),
        ("/usr/lib64/nvidia", "/usr/lib64"),
        ("/usr/lib", "/usr/lib/x86_64-linux-gnu"),
        ("/lib64", "/usr/lib/x86_64-linux-gnu"),
        ("/run/opengl-driver/lib", "/usr/lib/x86_64-linux-gnu"),
    ] {
        let disk = Disk::new();
        disk.library(&format!("{folder}/libcuda.so.550.54.15"), "libcuda.so.1");
        assert_eq!(disk.discover(None).unwrap().library_folder, expected, "{folder}");
    }
    let disk = Disk::new();
    disk.put("/usr/lib/aarch64-linux-gnu/libcuda.so.550.54.15", &minimal("libcuda.so.1", 183, true));
    assert_eq!(disk.discover(None).unwrap().library_folder, "/usr/lib/aarch64-linux-gnu");
    // One folder under several names is one folder.
    let disk = Disk::new();
    disk.library("/usr/lib64/libcuda.so.550.54.15", "libcuda.so.1");
    disk.link("usr/lib64", "/lib64");
    disk.link("/usr/lib64", "/usr/local/nvidia/lib64");
    let driver = disk.discover(None).unwrap();
    assert_eq!((driver.files.len(), driver.folders), (1, vec!["/usr/lib64".to_owned()]));
    // NixOS: links into a store.
    let disk = Disk::new();
    disk.library("/nix/store/abc/lib/libcuda.so.550.54.15", "libcuda.so.1");
    disk.link("/nix/store/abc/lib/libcuda.so.550.54.15", "/nix/store/xyz/lib/libcuda.so.550.54.15");
    disk.link("/nix/store/xyz", "/run/opengl-driver");
    let driver = disk.discover(None).unwrap();
    assert_eq!(driver.files[0].host_path, "/run/nvidia/driver/nix/store/abc/lib/libcuda.so.550.54.15");
}

#[test]
fn no_driver_and_another_driver_are_told_apart() {
    let disk = Disk::new();
    let root = disk.0.path().display();
    assert_eq!(
        disk.discover(Some("550.54.15")).unwrap_err().to_string(),
        format!(
            "no NVIDIA driver below {root}: neither libcuda.so.<version> nor libnvidia-ml.so.<version> in the folders of \
             its /etc/ld.so.cache or in the usual ones; install the driver, or name the root that it is installed below"
        )
    );
    disk.library("/usr/lib64/libcuda.so.550.54.15", "libcuda.so.1");
    disk.library("/usr/lib64/libnvidia-ml.so.470.57.02", "libnvidia-ml.so.1");
    assert_eq!(
        disk.discover(Some("570.86.15")).unwrap_err().to_string(),
        format!(
            "driver version mismatch: the running driver is 570.86.15, and below {root} there are libraries of 550.54.15, \
             470.57.02; install the libraries of 570.86.15, or reload the kernel module"
        )
    );
    let module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13\n".to_owned();
    let running = Running { module: Some(module), version: Some("550.54.15".into()), cuda: Some((11, 4)) };
    let driver = discover(&Root::new(disk.0.path()), &running).unwrap();
    assert_eq!((driver.version.as_str(), driver.cuda), ("470.57.02", Some((11, 4))));
    let running = Running { version: Some("x".into()), ..Running::default() };
    assert!(matches!(discover(&Root::new(disk.0.path()), &running), Err(Error::Version(_))));
}

#[test]
fn what_cannot_be_used_is_told_and_left_out() {
    let disk = Disk::new();
    disk.library("/usr/lib64/libcuda.so.550.54.15", "libcuda.so.1");
    disk.put("/usr/lib64/libnvidia-ml.so.550.54.15", b"");
    disk.link("../../../../etc/passwd", "/usr/lib64/libnvidia-cfg.so.550.54.15");
    disk.link("libnvidia-nvvm.so.550.54.15", "/usr/lib64/libnvidia-nvvm.so.550.54.15");
    disk.link("/../../../bin/sh", "/usr/bin/nvidia-smi");
    disk.library("/usr/lib64/libnvidia-opencl.so.550.54.15", "../../etc/evil.so");
    let driver = disk.discover(None).unwrap();
    assert_eq!(driver.files.len(), 1);
    let root = disk.0.path().display();
    assert_eq!(
        driver.problems,
        [
            format!("/usr/lib64/libnvidia-cfg.so.550.54.15 below {root}: a link on its way leads out of the root"),
            "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.550.54.15: not a shared library: it is too short".to_owned(),
            format!("/usr/lib64/libnvidia-nvvm.so.550.54.15 below {root}: its links go round in a circle"),
            "/run/nvidia/driver/usr/lib64/libnvidia-opencl.so.550.54.15: not a shared library: its name is no plain file name"
                .to_owned(),
            format!("/usr/bin/nvidia-smi below {root}: a link on its way leads out of the root"),
        ]
    );
}
