//! Which files a program needs beside itself.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Elf, Error};

/// Where the loaders of the distributions look, after what the program says itself (`ld.so(8)`, and Debian's multiarch folders).
fn default_folders(architecture: &str) -> [String; 6] {
    let triple = if architecture == "arm64" { "aarch64-linux-gnu" } else { "x86_64-linux-gnu" };
    [
        format!("/lib/{triple}"),
        format!("/usr/lib/{triple}"),
        "/lib64".to_owned(),
        "/usr/lib64".to_owned(),
        "/lib".to_owned(),
        "/usr/lib".to_owned(),
    ]
}

/// Loader and libraries, by their path on this machine, which is the one in the image too: the loader looks in the same places there.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    /// Each path with whom it was first found for.
    pub(crate) paths: BTreeMap<String, PathBuf>,
    /// The processor that all of them are for, and the file that said so.
    pub(crate) architecture: Option<&'static str>,
    found: BTreeMap<String, PathBuf>,
}

impl Libraries {
    /// Adds what `program` is linked against.
    pub(crate) fn add_program(&mut self, program: &Path) -> Result<(), Error> {
        self.follow(program.to_owned())
    }

    /// Adds a library by name.
    pub(crate) fn add_named(&mut self, name: &str) -> Result<(), Error> {
        let architecture = self.architecture.unwrap_or(crate::layout::this_architecture());
        let user = PathBuf::from("the image");
        let path = self.find(name, &user, &[], architecture)?;
        self.follow(path)
    }

    fn follow(&mut self, first: PathBuf) -> Result<(), Error> {
        let mut queue = VecDeque::from([first]);
        while let Some(user) = queue.pop_front() {
            let elf = read(&user)?;
            match self.architecture {
                Some(expected) if expected != elf.architecture => {
                    let expected = expected.to_owned();
                    return Err(Error::Architecture { path: user, found: elf.architecture, expected });
                }
                _ => self.architecture = Some(elf.architecture),
            }
            if let Some(loader) = &elf.interpreter {
                self.paths.entry(loader.clone()).or_insert_with(|| user.clone());
                // Libraries name the loader as one of them; it is there already.
                if let Some(name) = Path::new(loader).file_name().and_then(|name| name.to_str()) {
                    self.found.entry(name.to_owned()).or_insert_with(|| loader.into());
                }
            }
            let origin = user.parent().unwrap_or(Path::new("/")).display().to_string();
            let search: Vec<String> = elf
                .search
                .iter()
                .map(|folder| folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))
                .collect();
            for name in &elf.needed {
                if !self.found.contains_key(name) {
                    queue.push_back(self.find(name, &user, &search, elf.architecture)?);
                }
            }
        }
        Ok(())
    }

    fn find(
        &mut self,
        name: &str,
        user: &Path,
        search: &[String],
        architecture: &str,
    ) -> Result<PathBuf, Error> {
        if let Some(path) = self.found.get(name) {
            return Ok(path.clone());
        }
        let searched: Vec<String> = search.iter().cloned().chain(default_folders(architecture)).collect();
        let fits =
            |path: &PathBuf| path.is_file() && read(path).is_ok_and(|elf| elf.architecture == architecture);
        let path =
            searched.iter().map(|folder| Path::new(folder).join(name)).find(fits).ok_or_else(|| {
                Error::NoLibrary { user: user.to_owned(), library: name.to_owned(), searched }
            })?;
        self.found.insert(name.to_owned(), path.clone());
        self.paths.insert(path.display().to_string(), user.to_owned());
        Ok(path)
    }
}

fn read(path: &Path) -> Result<Elf, Error> {
    let file =
        fs::read(path).map_err(|source| Error::File { action: "read", path: path.to_owned(), source })?;
    Elf::parse(&file).map_err(|source| Error::Elf { path: path.to_owned(), source })
}
