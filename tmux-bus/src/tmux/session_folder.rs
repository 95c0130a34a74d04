//! The private folder of a session: its socket, its locks, its temporary files.
//!
//! # Theory
//!
//! The folder appears with the first start of a session and is removed with its last stop, so the lock
//! file can be removed together with the folder. Starts and removals exclude each other by the
//! lock of the file `start` in the folder.
//!
//! - **Race.** A process opens `start`, and the holder of its lock removes the folder. The process
//!   then has the lock of a deleted file, which excludes no other process. So after locking, the
//!   locked file is compared with the file at the path; if they differ, the whole step is repeated.
//! - **Race.** A waiter creates `start` in a folder that is being removed. The folder is renamed
//!   before it is removed, so no new waiter finds it; a waiter that has found it already can make
//!   one `remove_dir_all` fail with "not empty", which is repeated.
//! - **Race.** The last removal also removes the base folder, between the creation of the base and
//!   of the session folder by another process. The creation is repeated.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::Error;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file::{self, FileError};
use crate::timing::{SERVER_EXIT_LIMIT, SERVER_EXIT_PAUSE};

/// A socket path may have 107 bytes on Linux and 103 on macOS.
const MAX_SOCKET: usize = 103;

/// Bound of the repetitions above. Each needs another process at the same moment.
const MAX_TRIES: usize = 1_000;

#[derive(Clone, Debug)]
pub(crate) struct SessionFolder {
    base: PathBuf,
    path: PathBuf,
}

impl SessionFolder {
    /// The folder of a session, the same for the same name and key. Nothing is created.
    pub(crate) fn new(base: &Path, session: &str, key: &Path) -> Self {
        let mut bytes = session.as_bytes().to_vec();
        bytes.push(0);
        bytes.extend_from_slice(key.as_os_str().as_encoded_bytes());
        let short: String = session.chars().take(16).collect();
        Self {
            base: base.to_owned(),
            path: base.join(format!("{short}-{:016x}", fnv1a(&bytes))),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of all sessions.
    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    pub(crate) fn socket(&self) -> Result<PathBuf, Error> {
        let socket = self.path.join("tmux");
        if socket.as_os_str().len() > MAX_SOCKET {
            let reason = format!(
                "its path would have more than {MAX_SOCKET} bytes; choose a shorter runtime directory"
            );
            let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
            return Err(Error::io("create the socket", &socket)(source));
        }
        Ok(socket)
    }

    /// Creates the folder and locks it. Blocks until the lock is free.
    pub(crate) fn create_and_lock(&self) -> Result<LockedFile, Error> {
        loop {
            self.create()?;
            // `None`: the session was removed in between.
            if let Some(lock) = self.lock()? {
                return Ok(lock);
            }
        }
    }

    /// Whether the folder exists. Refuses a folder that is not private.
    pub(crate) fn exists(&self) -> Result<bool, Error> {
        for path in [&self.base, &self.path] {
            match private_file::check_folder(path) {
                Err(error) if error.is_not_found() => return Ok(false),
                checked => checked?,
            }
        }
        Ok(true)
    }

    /// Removes the folder of a session that has ended. Waits for the exit of the server; if that
    /// still has other sessions, the folder stays.
    pub(crate) fn remove(&self, socket: &Path) -> Result<(), Error> {
        let Some(_lock) = self.lock()? else {
            return Ok(());
        };
        let start = Instant::now();
        // A new connection each time: an open one would keep the server from exiting.
        while is_served(socket) {
            if start.elapsed() > SERVER_EXIT_LIMIT {
                return Ok(());
            }
            std::thread::sleep(SERVER_EXIT_PAUSE);
        }
        let name = format!("gone-{}", uuid::Uuid::new_v4().simple());
        let away = self.base.join(name);
        fs::rename(&self.path, &away)
            .and_then(|()| remove_all(&away))
            .map_err(Error::io("remove", &self.path))?;
        if self.base == runtime_dir() {
            // Fails while another session has a folder in it.
            let _ = fs::remove_dir(&self.base);
        }
        Ok(())
    }

    fn create(&self) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let created = private_file::create_folder(&self.base)
                .and_then(|()| private_file::create_folder(&self.path));
            match created {
                Err(error) if was_removed(&error) && tries < MAX_TRIES => tries += 1,
                created => return Ok(created?),
            }
        }
    }

    /// The lock of the folder; `None` if the folder does not exist. Blocks until it is free.
    fn lock(&self) -> Result<Option<LockedFile>, Error> {
        let path = self.path.join("start");
        match lock_file(&path) {
            Err(error) if error.is_not_found() => Ok(None),
            locked => Ok(locked?),
        }
    }
}

/// The folder for the sockets of this user.
pub(crate) fn runtime_dir() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_dir()) {
        Some(dir) => Path::new(&dir).join("tmux-bus"),
        None => env::temp_dir().join(format!("tmux-bus-{}", rustix::process::getuid().as_raw())),
    }
}

/// Whether a server may listen on the socket. Only a missing or refusing socket has none: a connection
/// fails for other reasons, too, such as too many open files, and a live server whose folder is removed
/// cannot be reached again.
fn is_served(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => true,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
        ),
    }
}

/// Creates and locks the file; `None` if the path no longer leads to it.
fn lock_file(path: &Path) -> Result<Option<LockedFile>, FileError> {
    let mut options = File::options();
    let file = private_file::open(path, options.create(true).truncate(false).write(true))?;
    let file = LockedFile::lock(file, Access::Exclusive).map_err(FileError::io("lock", path))?;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let locked = file.metadata().map_err(FileError::io("inspect", path))?;
    let found = fs::metadata(path).map_err(FileError::io("inspect", path))?;
    Ok((identity(locked) == identity(found)).then_some(file))
}

/// Whether a folder was removed while it was created. "Already exists": `mkdir` found the
/// folder, and the check after it did not.
fn was_removed(error: &FileError) -> bool {
    let FileError::Io { source, .. } = error else {
        return false;
    };
    let kind = source.kind();
    kind == io::ErrorKind::NotFound || kind == io::ErrorKind::AlreadyExists
}

fn remove_all(away: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match fs::remove_dir_all(away) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && tries < MAX_TRIES => {
                tries += 1;
            }
            removed => return removed,
        }
    }
}

/// A hash that is the same in all versions and processes, unlike the hashes of the standard library. It
/// need not resist attackers: the owner of the folder is checked.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn folder(base: &str, session: &str, key: &str) -> PathBuf {
        SessionFolder::new(Path::new(base), session, Path::new(key)).path
    }

    #[test]
    fn the_folder_depends_on_session_and_key_only() {
        let base = "/run/user/1/tmux-bus";
        let path = folder(base, "team", "/a/config.yaml");
        assert_eq!(path, folder(base, "team", "/a/config.yaml"));
        assert_ne!(path, folder(base, "team", "/b/config.yaml"));
        assert_ne!(path, folder(base, "team2", "/a/config.yaml"));
        // The name is a contract between versions.
        assert!(path.ends_with("team-f685796cc92e67d4"), "{path:?}");
    }

    #[test]
    fn a_folder_that_is_not_private_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        let session = SessionFolder::new(&base, "x", Path::new(""));
        let refusal = || session.create().unwrap_err().to_string();
        session.create().unwrap();
        session.create().unwrap();
        assert_eq!(base.metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(session.path.metadata().unwrap().mode() & 0o777, 0o700);
        for path in [&session.path, &base] {
            fs::set_permissions(path, Permissions::from_mode(0o770)).unwrap();
            assert!(refusal().contains("chmod go-w"), "{}", refusal());
            fs::remove_dir(path).unwrap();
            symlink("/tmp", path).unwrap();
            assert!(refusal().contains("symbolic link"), "{}", refusal());
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn starts_and_removals_exclude_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        let session = SessionFolder::new(&base, "x", Path::new(""));
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let lock = session.create_and_lock().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(session.path.join("start").exists());
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                        session.remove(&session.path.join("tmux")).unwrap();
                        let _ = fs::remove_dir(&base);
                    }
                });
            }
        });
        assert!(!session.path.exists());
    }
}
