//! What a driver consists of, and which capability each part belongs to. Whoever adds a library, program or file adds a row here.
//!
//! The division into capabilities is that of NVIDIA's libnvidia-container (`nvc_info.c`); the lists of programs, files and sockets are those
//! of its container toolkit.

use crate::Capabilities;

const COMPUTE: Capabilities = Capabilities::COMPUTE;
const GRAPHICS: Capabilities = Capabilities::GRAPHICS;
const UTILITY: Capabilities = Capabilities::UTILITY;
const VIDEO: Capabilities = Capabilities::VIDEO;
const DISPLAY: Capabilities = Capabilities::DISPLAY;
const NGX: Capabilities = Capabilities::NGX;

/// A library of the driver, by its name up to `.so`.
pub(crate) struct LibraryRow {
    pub(crate) stem: &'static str,
    pub(crate) capabilities: Capabilities,
    /// Names without which some programs do not find it: they are links on the machine.
    pub(crate) aliases: &'static [&'static str],
}

const fn row(stem: &'static str, capabilities: Capabilities, aliases: &'static [&'static str]) -> LibraryRow {
    LibraryRow { stem, capabilities, aliases }
}

/// Libraries whose file name ends in the driver's version. One that is not here belongs to every capability: a container that lacks a
/// library breaks, one that has too many does not.
pub(crate) const LIBRARIES: &[LibraryRow] = &[
    row("libnvidia-ml", UTILITY, &[]),
    row("libnvidia-cfg", UTILITY, &[]),
    row("libnvidia-nscq", UTILITY, &[]),
    row("libnvidia-sandboxutils", UTILITY, &[]),
    row("libcuda", COMPUTE, &["libcuda.so"]),
    row("libcudadebugger", COMPUTE, &[]),
    row("libnvidia-opencl", COMPUTE, &[]),
    row("libnvidia-ptxjitcompiler", COMPUTE, &[]),
    row("libnvidia-fatbinaryloader", COMPUTE, &[]),
    row("libnvidia-compiler", COMPUTE, &[]),
    row("libnvidia-nvvm", COMPUTE, &[]),
    row("libnvidia-nvvm70", COMPUTE, &[]),
    row("libnvidia-tileiras", COMPUTE, &[]),
    row("libnvidia-pkcs11", COMPUTE, &[]),
    row("libnvidia-pkcs11-openssl3", COMPUTE, &[]),
    row("libnvidia-gpucomp", COMPUTE.and(GRAPHICS).and(VIDEO), &[]),
    row("libnvidia-allocator", COMPUTE.and(GRAPHICS).and(DISPLAY), &[]),
    row("libvdpau_nvidia", VIDEO, &[]),
    row("libnvidia-encode", VIDEO, &[]),
    row("libnvidia-opticalflow", VIDEO, &["libnvidia-opticalflow.so"]),
    row("libnvcuvid", VIDEO, &[]),
    row("libnvidia-eglcore", GRAPHICS, &[]),
    row("libnvidia-glcore", GRAPHICS, &[]),
    row("libnvidia-tls", GRAPHICS, &[]),
    row("libnvidia-glsi", GRAPHICS, &[]),
    row("libnvidia-fbc", GRAPHICS, &[]),
    row("libnvidia-ifr", GRAPHICS, &[]),
    row("libnvidia-rtcore", GRAPHICS, &[]),
    row("libnvoptix", GRAPHICS, &[]),
    row("libGLX_nvidia", GRAPHICS, &["libGLX_indirect.so.0"]),
    row("libEGL_nvidia", GRAPHICS, &[]),
    row("libGLESv1_CM_nvidia", GRAPHICS, &[]),
    row("libGLESv2_nvidia", GRAPHICS, &[]),
    row("libnvidia-glvkspirv", GRAPHICS, &[]),
    row("libnvidia-cbl", GRAPHICS, &[]),
    row("libnvidia-present", GRAPHICS, &[]),
    row("libnvidia-vulkan-producer", GRAPHICS, &[]),
    row("libnvidia-vksc-core", GRAPHICS, &[]),
    row("libnvidia-ngx", NGX, &[]),
    row("libnvidia-gtk2", DISPLAY, &[]),
    row("libnvidia-gtk3", DISPLAY, &[]),
    row("libnvidia-wayland-client", DISPLAY, &[]),
];

/// Libraries that come with the driver and have versions of their own, by the name that they are loaded by.
pub(crate) const UNVERSIONED: [(&str, Capabilities); 6] = [
    ("libnvidia-api.so.1", GRAPHICS),
    ("libnvidia-egl-gbm.so.1", GRAPHICS),
    ("libnvidia-egl-wayland.so.1", GRAPHICS),
    ("libnvidia-egl-wayland2.so.1", GRAPHICS),
    ("libnvidia-egl-xcb.so.1", GRAPHICS),
    ("libnvidia-egl-xlib.so.1", GRAPHICS),
];

/// Folders below the one of the libraries, with what lies in them: a name, or its beginning and the driver's version.
pub(crate) const BELOW: [(&str, &str, Capabilities); 2] =
    [("vdpau", "libvdpau_nvidia.so.", VIDEO), ("gbm", "nvidia-drm_gbm.so", GRAPHICS)];

/// Where X servers look for modules.
pub(crate) const XORG_FOLDERS: [&str; 5] = [
    "/usr/lib/xorg/modules",
    "/usr/lib64/xorg/modules",
    "/usr/lib/x86_64-linux-gnu/nvidia/xorg",
    "/usr/lib/aarch64-linux-gnu/nvidia/xorg",
    "/usr/lib64/nvidia/xorg",
];

/// Modules of X servers below [`XORG_FOLDERS`]. `VERSION` stands for the driver's.
pub(crate) const XORG: [&str; 6] = [
    "drivers/nvidia_drv.so",
    "extensions/libglxserver_nvidia.so",
    "extensions/libglxserver_nvidia.so.VERSION",
    "nvidia_drv.so",
    "libglxserver_nvidia.so",
    "libglxserver_nvidia.so.VERSION",
];

/// Programs of the driver.
pub(crate) const PROGRAMS: [(&str, Capabilities); 9] = [
    ("nvidia-smi", UTILITY),
    ("nvidia-debugdump", UTILITY),
    ("nvidia-persistenced", UTILITY),
    ("nv-fabricmanager", UTILITY),
    ("nvidia-cuda-mps-control", COMPUTE),
    ("nvidia-cuda-mps-server", COMPUTE),
    ("nvidia-imex", COMPUTE),
    ("nvidia-imex-ctl", COMPUTE),
    ("nvidia-xconfig", DISPLAY),
];

/// Where programs are looked for.
pub(crate) const PROGRAM_FOLDERS: [&str; 8] = [
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/opt/bin",
    "/run/current-system/sw/bin",
];

/// Where the loader of an image looks without being told: what this module's users may mount libraries into.
pub(crate) const DEFAULT_FOLDERS: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib/i386-linux-gnu", "/usr/lib64"];

/// Where libraries are looked for, besides the folders that the loader's cache names.
pub(crate) const LIBRARY_FOLDERS: [&str; 16] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia",
    "/usr/lib/nvidia/tesla",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
    "/usr/lib/i386-linux-gnu",
    "/run/opengl-driver-32/lib",
    "/usr/lib32",
    "/usr/lib",
];

/// Folders with the configuration of others that names the driver.
pub(crate) const CONFIG_FOLDERS: [&str; 4] =
    ["/usr/share", "/etc", "/usr/local/share", "/run/opengl-driver/share"];

/// Files below [`CONFIG_FOLDERS`] that tell EGL, GLX, Vulkan, OpenCL and X11 of the driver.
pub(crate) const CONFIGS: [(&str, Capabilities); 14] = [
    ("glvnd/egl_vendor.d/10_nvidia.json", GRAPHICS),
    ("egl/egl_external_platform.d/09_nvidia_wayland2.json", GRAPHICS),
    ("egl/egl_external_platform.d/10_nvidia_wayland.json", GRAPHICS),
    ("egl/egl_external_platform.d/15_nvidia_gbm.json", GRAPHICS),
    ("egl/egl_external_platform.d/20_nvidia_xcb.json", GRAPHICS),
    ("egl/egl_external_platform.d/20_nvidia_xlib.json", GRAPHICS),
    ("vulkan/icd.d/nvidia_icd.json", GRAPHICS),
    ("vulkan/icd.d/nvidia_icd.x86_64.json", GRAPHICS),
    ("vulkan/implicit_layer.d/nvidia_layers.json", GRAPHICS),
    ("vulkansc/icd.d/nvidia_icd_vksc.json", GRAPHICS),
    ("nvidia/nvoptix.bin", GRAPHICS),
    ("OpenCL/vendors/nvidia.icd", COMPUTE),
    ("X11/xorg.conf.d/10-nvidia.conf", DISPLAY),
    ("X11/xorg.conf.d/nvidia-drm-outputclass.conf", DISPLAY),
];

/// Sockets and folders through which programs talk to the driver's daemons, and whom they are for. They are written to; they come and go with the
/// daemons, and a container cannot be created while one is described that is gone.
pub const SOCKETS: [(&str, Capabilities); 3] = [
    ("/run/nvidia-persistenced/socket", UTILITY),
    ("/run/nvidia-fabricmanager/socket", UTILITY),
    ("/tmp/nvidia-mps", COMPUTE),
];

/// Where firmware is looked for; the driver's version follows.
pub(crate) const FIRMWARE_FOLDERS: [&str; 2] = ["/lib/firmware/nvidia", "/usr/lib/firmware/nvidia"];

/// What a library's file name tells: the row of the table, if it ends in this version of the driver.
pub(crate) fn library<'a>(name: &'a str, version: &str) -> Option<(&'a str, Option<&'static LibraryRow>)> {
    let stem = name.strip_suffix(version)?.strip_suffix(".so.").filter(|stem| stem.starts_with("lib"))?;
    // A module of the X server, which is found where that looks.
    if stem == "libglxserver_nvidia" {
        return None;
    }
    Some((stem, LIBRARIES.iter().find(|row| row.stem == stem)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_is_one() {
        let stems: BTreeSet<_> = LIBRARIES.iter().map(|row| row.stem).collect();
        assert_eq!(stems.len(), LIBRARIES.len());
        assert!(LIBRARIES.iter().all(|row| row.capabilities != Capabilities::none()));
        let configs: BTreeSet<_> = CONFIGS.iter().map(|(path, _)| path).collect();
        assert_eq!(configs.len(), CONFIGS.len());
    }

    #[test]
    fn a_library_is_known_by_its_whole_name() {
        let stem = |name| library(name, "550.54.15").map(|(stem, row)| (stem, row.is_some()));
        assert_eq!(stem("libcuda.so.550.54.15"), Some(("libcuda", true)));
        assert_eq!(stem("libnvidia-new.so.550.54.15"), Some(("libnvidia-new", false)));
        for other in ["libcuda.so.1", "libcuda.so.550.54.1", "libcuda.so.1550.54.15", "nvidia.so.550.54.15"] {
            assert_eq!(stem(other), None, "{other}");
        }
    }
}
