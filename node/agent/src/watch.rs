//! Noticing that files come and go, for any number of folders with one inotify instance: a machine has 128 of them,
//! and a simulated cluster has a thousand agents.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Error;

/// Watches folders. Cheap to clone; agents of one process share one.
#[derive(Debug, Clone)]
pub struct FolderWatch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Inner {
    inotify: AsyncFd<Fd>,
    folders: Mutex<HashMap<WatchDescriptor, Folder>>,
}

#[derive(Debug)]
struct Folder {
    /// Counts changes. Two watchers of one folder share it, as the kernel gives them one descriptor.
    changes: watch::Sender<u64>,
    watchers: usize,
}

/// What tokio asks of a file that it waits for.
#[derive(Debug)]
struct Fd(Inotify);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl FolderWatch {
    /// Starts watching nothing yet. Must be called in a tokio runtime, and works as long as that one.
    pub fn new() -> Result<Self, Error> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(|errno| Error::Watch(errno.into()))?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that close their file too early; ours owns it"
        )]
        let inotify = AsyncFd::new(Fd(inotify)).map_err(Error::Watch)?;
        let inner = Arc::new(Inner { inotify, folders: Mutex::default() });
        let task = tokio::spawn(read(Arc::clone(&inner)));
        Ok(Self(Arc::new(Shared { inner, task })))
    }

    /// Watches a folder until the result is dropped.
    pub(crate) fn folder(&self, path: &Path) -> io::Result<FolderEvents> {
        let mask = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ONLYDIR;
        // Locked before the kernel knows the watch, so that its first event finds the entry.
        let mut folders = self.0.inner.folders();
        let descriptor = self.0.inner.inotify.get_ref().0.add_watch(path, mask)?;
        let folder = folders
            .entry(descriptor)
            .or_insert_with(|| Folder { changes: watch::Sender::new(0), watchers: 0 });
        folder.watchers += 1;
        Ok(FolderEvents { changes: folder.changes.subscribe(), descriptor, watch: self.clone() })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Inner {
    fn folders(&self) -> MutexGuard<'_, HashMap<WatchDescriptor, Folder>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> Result<(), Errno> {
        let events = match self.inotify.get_ref().0.read_events() {
            Err(Errno::EINTR) => return Ok(()),
            other => other?,
        };
        let mut folders = self.folders();
        for event in events {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                // Something was missed: everybody looks again.
                folders.values().for_each(|folder| folder.changes.send_modify(|count| *count += 1));
            } else if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                // The folder is gone. Dropping the sender tells its watchers.
                folders.remove(&event.wd);
            } else if let Some(folder) = folders.get(&event.wd) {
                folder.changes.send_modify(|count| *count += 1);
            }
        }
        Ok(())
    }
}

async fn read(inner: Arc<Inner>) {
    loop {
        let Ok(mut ready) = inner.inotify.readable().await else {
            break;
        };
        match inner.handle() {
            Ok(()) => {}
            Err(Errno::EAGAIN) => ready.clear_ready(),
            Err(errno) => {
                tracing::warn!(%errno, "inotify failed; folders are polled from now on");
                break;
            }
        }
    }
    inner.folders().clear();
}

/// A watched folder.
#[derive(Debug)]
pub(crate) struct FolderEvents {
    changes: watch::Receiver<u64>,
    descriptor: WatchDescriptor,
    watch: FolderWatch,
}

impl FolderEvents {
    /// Waits for the next change. `false` when the folder is no longer watched, because it is gone.
    pub(crate) async fn changed(&mut self) -> bool {
        self.changes.changed().await.is_ok()
    }
}

impl Drop for FolderEvents {
    fn drop(&mut self) {
        let inner = &self.watch.0.inner;
        let mut folders = inner.folders();
        if let Some(folder) = folders.get_mut(&self.descriptor) {
            folder.watchers -= 1;
            if folder.watchers == 0 {
                folders.remove(&self.descriptor);
                let _ = inner.inotify.get_ref().0.rm_watch(self.descriptor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_watchers_of_a_folder_see_its_changes_and_its_end() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("folder");
        std::fs::create_dir(&path).unwrap();
        let watch = FolderWatch::new().unwrap();
        let mut a = watch.folder(&path).unwrap();
        let mut b = watch.folder(&path).unwrap();
        std::fs::write(path.join("x"), "").unwrap();
        assert!(a.changed().await && b.changed().await);
        drop(a);
        std::fs::write(path.join("y"), "").unwrap();
        assert!(b.changed().await);
        std::fs::remove_dir_all(&path).unwrap();
        while b.changed().await {}
        assert!(watch.folder(&path).is_err());
    }
}
