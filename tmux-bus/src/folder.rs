//! The private folder of a session: its socket, its queues, its temporary files.

use std::{
    env,
    fs::{self, File},
    io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::error::{Error, Result};

/// A socket's path may have 107 bytes on Linux, 103 on macOS.
const MAX_SOCKET: usize = 103;

/// Where per-user sockets belong on this system.
pub(crate) fn runtime_dir() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_dir()) {
        Some(dir) => Path::new(&dir).join("tmux-bus"),
        None => env::temp_dir().join(format!("tmux-bus-{}", rustix::process::getuid().as_raw())),
    }
}

/// The folder for a session of a configuration, the same each time. Not created.
pub(crate) fn session_folder(base: &Path, session: &str, key: &Path) -> PathBuf {
    let mut bytes = session.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(key.as_os_str().as_encoded_bytes());
    let short: String = session.chars().take(16).collect();
    base.join(format!("{short}-{:016x}", fnv1a(&bytes)))
}

/// Creates the folder, for this user only, or refuses one that is not, and takes its lock: two
/// processes that start or remove the same session take turns. Waits for it.
pub(crate) fn create_and_lock(base: &Path, folder: &Path) -> Result<File> {
    loop {
        create(base, folder)?;
        match lock(folder)? {
            Some(lock) => return Ok(lock),
            // A session that ended was removed in between.
            None => continue,
        }
    }
}

/// The lock of a folder, if that is there. Waits for it.
fn lock(folder: &Path) -> Result<Option<File>> {
    let path = folder.join("start");
    let locked = || -> io::Result<Option<File>> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)?;
        file.lock()?;
        // Who had the lock may have removed the folder.
        let (ours, there) = (file.metadata()?, fs::metadata(&path)?);
        let same = (ours.dev(), ours.ino()) == (there.dev(), there.ino());
        Ok(same.then_some(file))
    };
    match locked() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map_err(|source| Error::file("lock", path, source)),
    }
}

/// Removes the folder of a session whose server has ended. Waits for the server's end, for it
/// answers for a moment after its last session; one that has other sessions stays as it is.
pub(crate) fn remove(base: &Path, folder: &Path, socket: &Path) -> Result<()> {
    /// tmux ends within some milliseconds.
    const LIMIT: Duration = Duration::from_secs(2);
    let Some(_lock) = lock(folder)? else {
        return Ok(());
    };
    let start = Instant::now();
    while UnixStream::connect(socket).is_ok() {
        if start.elapsed() > LIMIT {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // Out of the way first: another process may be about to take the lock in it.
    let away = base.join(format!("gone-{}", uuid::Uuid::new_v4().simple()));
    fs::rename(folder, &away)
        .and_then(|()| remove_all(&away))
        .map_err(|source| Error::file("remove", folder, source))?;
    if base == runtime_dir() {
        // Only if no other session has a folder there; one that is being created is tried again.
        let _ = fs::remove_dir(base);
    }
    Ok(())
}

/// Removes a folder that was renamed. Who found it under its old name may still create the lock in
/// it, once each, and then notices.
fn remove_all(away: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match fs::remove_dir_all(away) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && tries < 1_000 => {
                tries += 1;
            }
            other => return other,
        }
    }
}

fn create(base: &Path, folder: &Path) -> Result<()> {
    let create = |path: &Path| {
        let created = fs::DirBuilder::new()
            .mode(0o700)
            .recursive(path == base)
            .create(path);
        match created {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(refused(path, "it cannot be created", Some(error)))
            }
            _ => check(path),
        }
    };
    let mut tries = 0;
    loop {
        match create(base).and_then(|()| create(folder)) {
            // Another session has ended in between, and was the last there: the folders are gone.
            Err(Error::Folder {
                source: Some(error),
                ..
            }) if error.kind() == io::ErrorKind::NotFound && tries < 1_000 => tries += 1,
            other => return other,
        }
    }
}

/// Refuses a folder that is not this user's alone.
pub(crate) fn check(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path)
        .map_err(|error| refused(path, "it cannot be looked at", Some(error)))?;
    let reason = if !found.is_dir() {
        "it is not a folder"
    } else if found.uid() != rustix::process::getuid().as_raw() {
        "it belongs to another user"
    } else if found.mode() & 0o077 != 0 {
        "others can enter it: its mode must be 0700"
    } else {
        return Ok(());
    };
    Err(refused(path, reason, None))
}

fn refused(path: &Path, reason: &str, source: Option<io::Error>) -> Error {
    Error::Folder {
        path: path.to_owned(),
        reason: reason.to_owned(),
        source,
    }
}

/// The socket in a session's folder.
pub(crate) fn socket(folder: &Path) -> Result<PathBuf> {
    let socket = folder.join("tmux");
    if socket.as_os_str().len() > MAX_SOCKET {
        let reason = format!(
            "the socket's path would have more than {MAX_SOCKET} bytes: choose a shorter runtime directory"
        );
        return Err(refused(folder, &reason, None));
    }
    Ok(socket)
}

/// Stable over versions and processes, unlike the standard library's hashes. Not against attackers:
/// the folder's owner is checked.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_folder_is_found_again_by_session_and_configuration() {
        let base = Path::new("/run/user/1/tmux-bus");
        let folder = session_folder(base, "team", Path::new("/a/config.yaml"));
        assert_eq!(
            folder,
            session_folder(base, "team", Path::new("/a/config.yaml"))
        );
        assert_ne!(
            folder,
            session_folder(base, "team", Path::new("/b/config.yaml"))
        );
        assert_ne!(
            folder,
            session_folder(base, "team2", Path::new("/a/config.yaml"))
        );
        // The name is part of the contract between versions.
        assert!(
            folder.ends_with("team-f685796cc92e67d4"),
            "{}",
            folder.display()
        );
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (base, folder) = (dir.path().join("base"), dir.path().join("base/x"));
        let reason = || create(&base, &folder).unwrap_err().to_string();
        create(&base, &folder).unwrap();
        create(&base, &folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(reason().contains("0700"));
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/tmp", &folder).unwrap();
        assert!(reason().contains("not a folder"));
        fs::remove_file(&folder).unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(reason().contains("0700"));
        fs::remove_dir(&base).unwrap();
        std::os::unix::fs::symlink("/tmp", &base).unwrap();
        assert!(reason().contains("not a folder"));
    }

    /// The lock is a file that goes with the folder: who waited for it must not take the old one for
    /// the lock of a folder that was made anew.
    #[test]
    fn starts_and_removals_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let (base, folder) = (dir.path().join("base"), dir.path().join("base/x"));
        let inside = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let lock = create_and_lock(&base, &folder).unwrap();
                        let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        assert_eq!(others, 0);
                        assert!(folder.join("start").exists());
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(lock);
                        remove(&base, &folder, &folder.join("tmux")).unwrap();
                        let _ = fs::remove_dir(&base);
                    }
                });
            }
        });
        assert!(!folder.exists());
    }
}
