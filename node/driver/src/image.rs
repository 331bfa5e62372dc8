//! Where an image's loader looks for libraries without being told.
//!
//! NVIDIA's toolkit runs `ldconfig` as root in the container's file system, which is what most of its escapes came through. Libraries
//! that lie in a folder which the loader searches anyway need no cache; which one that is, a look at the image tells: where its C library
//! is. The look is read-only, follows links as inside the image, and opens nothing of what it finds.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// The C library of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibC {
    /// GNU's, which the driver's libraries are linked with.
    Gnu,
    /// musl, with which they work only beside a layer such as gcompat.
    Musl,
}

/// Where an image wants libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageLayout {
    /// The folder for 64-bit programs.
    pub library_folder: String,
    /// The folder for 32-bit programs, if the image runs any.
    pub library_folder_32: Option<String>,
    /// Its C library.
    pub lib_c: LibC,
}

/// Folders in which an image may have the C library of its 64-bit programs. Its loader searches that one for others as well.
const FOLDERS: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
];

/// The same for 32-bit programs, where those have a folder of their own.
const FOLDERS_32: [&str; 5] =
    ["/usr/lib/i386-linux-gnu", "/lib/i386-linux-gnu", "/usr/lib32", "/usr/lib", "/lib"];

const C_LIBRARY: &str = "libc.so.6";
const MUSL: [&str; 2] = ["lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1"];

impl ImageLayout {
    /// Looks at an image. `None` where nothing tells: an image of static programs, or a kernel before 5.6, which cannot look without
    /// following the image's links out of it.
    pub fn probe(image: BorrowedFd<'_>) -> Option<Self> {
        if let Some((folder, library)) = holding(image, &FOLDERS) {
            // Under several names one folder is one folder, and it is that of the 64-bit programs.
            let narrow = holding(image, &FOLDERS_32).filter(|(_, narrow)| *narrow != library);
            return Some(Self {
                library_folder: folder.to_owned(),
                library_folder_32: narrow.map(|(folder, _)| folder.to_owned()),
                lib_c: LibC::Gnu,
            });
        }
        MUSL.iter().any(|loader| find(image, loader).is_some()).then(|| Self {
            library_folder: "/usr/lib".to_owned(),
            library_folder_32: None,
            lib_c: LibC::Musl,
        })
    }
}

/// Device and inode of a file.
type Identity = (u64, u64);

/// The first folder that holds the C library, and which one that is.
fn holding(image: BorrowedFd<'_>, folders: &[&'static str]) -> Option<(&'static str, Identity)> {
    folders.iter().find_map(|folder| Some((*folder, find(image, &format!("{folder}/{C_LIBRARY}"))?)))
}

/// What a path leads to inside an image. Nothing is opened for reading.
fn find(image: BorrowedFd<'_>, path: &str) -> Option<Identity> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = File::from(openat2(image, path, how).ok()?).metadata().ok()?;
    Some((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn probe(files: &[&str], links: &[(&str, &str)]) -> Option<(String, Option<String>, LibC)> {
        let image = tempfile::tempdir().unwrap();
        for (target, link) in links {
            let link = image.path().join(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(target, link).unwrap();
        }
        for file in files {
            let file = image.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let root = File::open(image.path()).unwrap();
        let layout = ImageLayout::probe(root.as_fd())?;
        Some((layout.library_folder, layout.library_folder_32, layout.lib_c))
    }

    #[test]
    fn every_family_of_images_is_known_by_its_c_library() {
        let folder = |text: &str| Some((text.to_owned(), None, LibC::Gnu));
        // Debian and Ubuntu, before and after the folders were merged. Their loader lies in lib64, too.
        let debian = ["lib/x86_64-linux-gnu/libc.so.6", "lib64/ld-linux-x86-64.so.2"];
        assert_eq!(probe(&debian, &[]), folder("/lib/x86_64-linux-gnu"));
        let merged = ["usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(
            probe(&merged, &[("usr/lib", "lib"), ("/usr/lib64", "lib64")]),
            folder("/usr/lib/x86_64-linux-gnu")
        );
        assert_eq!(
            probe(&["usr/lib/aarch64-linux-gnu/libc.so.6"], &[]),
            folder("/usr/lib/aarch64-linux-gnu")
        );
        // RHEL, Fedora, SUSE, Amazon.
        let rhel = ["usr/lib64/libc.so.6", "usr/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(probe(&rhel, &[("usr/lib64", "lib64"), ("usr/lib", "lib")]), folder("/usr/lib64"));
        // Arch.
        assert_eq!(
            probe(&["usr/lib/libc.so.6"], &[("usr/lib", "lib"), ("usr/lib", "lib64")]),
            folder("/lib64")
        );
        // Alpine.
        let musl = Some(("/usr/lib".to_owned(), None, LibC::Musl));
        assert_eq!(probe(&["lib/ld-musl-x86_64.so.1"], &[]), musl);
        // Nothing but a static program.
        assert_eq!(probe(&["app"], &[]), None);
    }

    #[test]
    fn images_with_32_bit_programs_have_a_folder_for_them() {
        let both = ["usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib/i386-linux-gnu/libc.so.6"];
        assert_eq!(probe(&both, &[]).unwrap().1.as_deref(), Some("/usr/lib/i386-linux-gnu"));
        let rhel = ["usr/lib64/libc.so.6", "usr/lib/libc.so.6"];
        assert_eq!(probe(&rhel, &[]).unwrap().1.as_deref(), Some("/usr/lib"));
    }

    #[test]
    fn links_of_the_image_do_not_lead_out_of_it() {
        let machine = tempfile::tempdir().unwrap();
        fs::write(machine.path().join("libc.so.6"), "").unwrap();
        let outside = machine.path().to_str().unwrap();
        let up = format!("{}{outside}", "../".repeat(20));
        for target in [outside, &up] {
            assert_eq!(probe(&["app"], &[(target, "usr/lib64")]), None, "{target}");
            assert_eq!(probe(&["app"], &[(target, "lib"), (target, "usr/lib")]), None, "{target}");
        }
        // A circle ends.
        assert_eq!(probe(&["app"], &[("lib64", "lib64")]), None);
    }
}
