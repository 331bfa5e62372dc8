//! A file-system root: the machine's own, or one that a driver is installed below.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// Links that are followed on the way to one file, as the kernel's limit is.
const MAX_LINKS: usize = 40;

/// A root that paths and links inside are relative to. It may have one path for this process and another for the container runtime: an
/// agent in a container sees the machine's `/` as `/host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    here: PathBuf,
    host: PathBuf,
}

impl Root {
    /// A root with the same path for everybody.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let host = path.into();
        Self { here: host.clone(), host }
    }

    /// The root that is `host` for the container runtime and `here` for this process.
    pub fn mounted(host: impl Into<PathBuf>, here: impl Into<PathBuf>) -> Self {
        Self { here: here.into(), host: host.into() }
    }

    /// Its path for this process.
    pub fn path(&self) -> &Path {
        &self.here
    }

    /// Whether it is the machine's own root for the container runtime.
    pub fn is_system(&self) -> bool {
        self.host == Path::new("/")
    }

    /// Where this process finds a path inside. Links are not looked at.
    pub fn here(&self, inside: &str) -> PathBuf {
        self.here.join(inside.trim_start_matches('/'))
    }

    /// Where the container runtime finds a path inside.
    pub fn host(&self, inside: &str) -> String {
        self.host.join(inside.trim_start_matches('/')).to_string_lossy().into_owned()
    }

    /// The path without links that a path inside leads to, as a program sees it that has this root for its own: absolute links begin
    /// at the root. A link that leads out of the root is refused.
    ///
    /// # Errors
    /// [`Error::Link`] for what is refused, [`Error::Io`] for what is not there.
    pub fn resolve(&self, inside: &str) -> Result<String, Error> {
        let refuse = |rule| Error::Link { path: inside.to_owned(), root: self.here.clone(), rule };
        let mut waiting: Vec<String> = parts(inside).rev().collect();
        let mut done: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(part) = waiting.pop() {
            if part == ".." {
                // Above a system's own root there is nothing: the kernel stays where it is.
                if done.pop().is_none() && !self.is_system() {
                    return Err(refuse("a link on its way leads out of the root"));
                }
                continue;
            }
            let path = self.here(&format!("{}/{part}", done.join("/")));
            let io = |source| Error::Io { action: "read", path: path.clone(), source };
            if !fs::symlink_metadata(&path).map_err(io)?.file_type().is_symlink() {
                done.push(part);
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(refuse("its links go round in a circle"));
            }
            let target = fs::read_link(&path).map_err(io)?;
            let target = target.to_str().ok_or_else(|| refuse("a link on its way is not text"))?;
            if target.starts_with('/') {
                done.clear();
            }
            waiting.extend(parts(target).rev());
        }
        Ok(format!("/{}", done.join("/")))
    }

    /// The names in a folder in order, those that are text; none where it cannot be read.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let Ok(folder) = self.resolve(folder) else { return Vec::new() };
        let entries = fs::read_dir(self.here(&folder)).into_iter().flatten();
        let mut names: Vec<_> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

impl<T: AsRef<OsStr>> From<T> for Root {
    fn from(path: T) -> Self {
        Self::new(PathBuf::from(path.as_ref()))
    }
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = String> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_as_inside_the_root_and_never_out_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let (outside, root) = (folder.path().join("secret"), folder.path().join("root"));
        fs::write(&outside, "x").unwrap();
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::write(root.join("usr/lib/a"), "").unwrap();
        for (link, target) in [
            ("lib", "usr/lib"),
            ("absolute", "/usr/lib/a"),
            ("usr/up", "../lib/./a"),
            ("out", "../secret"),
            ("usr/lib/far", "../../../secret"),
            ("host", outside.to_str().unwrap()),
            ("circle", "round"),
            ("round", "/circle"),
            ("self", "self"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        let root = Root::mounted("/machine", &root);
        for path in ["/lib/a", "absolute", "/usr/up", "//usr/./lib/a", "/usr/lib/../lib/a"] {
            assert_eq!(root.resolve(path).unwrap(), "/usr/lib/a", "{path}");
        }
        assert_eq!(
            (root.resolve("/").unwrap(), root.host("/usr/lib")),
            ("/".into(), "/machine/usr/lib".into())
        );
        for path in ["out", "/usr/lib/far", "../secret", "usr/../../x"] {
            let text = root.resolve(path).unwrap_err().to_string();
            assert!(
                text.starts_with(path) && text.ends_with(": a link on its way leads out of the root"),
                "{text}"
            );
        }
        for path in ["circle", "self"] {
            let text = root.resolve(path).unwrap_err().to_string();
            assert!(text.ends_with(": its links go round in a circle"), "{text}");
        }
        // An absolute link of the host names nothing inside.
        assert!(matches!(root.resolve("host"), Err(Error::Io { .. })));
        assert!(matches!(root.resolve("/usr/lib/a/b"), Err(Error::Io { .. })));
        assert_eq!(root.names("/lib"), ["a", "far"]);
        assert!(root.names("/nowhere").is_empty());
    }
}
