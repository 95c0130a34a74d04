//! The private folder of a session: its socket, its queues, its temporary files.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
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

/// Creates the folder, for this user only, or refuses one that is not.
pub(crate) fn create(base: &Path, folder: &Path) -> Result<()> {
    for path in [base, folder] {
        let refuse = |reason: &str, source| Error::Folder {
            path: path.to_owned(),
            reason: reason.to_owned(),
            source,
        };
        match fs::DirBuilder::new()
            .mode(0o700)
            .recursive(path == base)
            .create(path)
        {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(refuse("it cannot be created", Some(error)));
            }
            _ => {}
        }
        let found = fs::symlink_metadata(path)
            .map_err(|error| refuse("it cannot be looked at", Some(error)))?;
        if !found.is_dir() {
            return Err(refuse("it is not a folder", None));
        }
        if found.uid() != rustix::process::getuid().as_raw() {
            return Err(refuse("it belongs to another user", None));
        }
        if found.mode() & 0o077 != 0 {
            return Err(refuse("others can enter it: its mode must be 0700", None));
        }
    }
    Ok(())
}

/// The socket in a session's folder.
pub(crate) fn socket(folder: &Path) -> Result<PathBuf> {
    let socket = folder.join("tmux");
    if socket.as_os_str().len() > MAX_SOCKET {
        let reason = format!(
            "the socket's path would have more than {MAX_SOCKET} bytes: choose a shorter runtime directory"
        );
        return Err(Error::Folder {
            path: folder.to_owned(),
            reason,
            source: None,
        });
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
        create(&base, &folder).unwrap();
        create(&base, &folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(
            create(&base, &folder)
                .unwrap_err()
                .to_string()
                .contains("0700")
        );
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/tmp", &folder).unwrap();
        assert!(
            create(&base, &folder)
                .unwrap_err()
                .to_string()
                .contains("not a folder")
        );
    }
}
