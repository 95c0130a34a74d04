//! The state folder and its files are this user's alone: whoever could write a record there could
//! have `reap_orphans` end any process of this user.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::Error;
use crate::error::Result;

/// Makes the folder, or makes sure that nobody else can change what is in it.
pub(crate) fn create(folder: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(Error::state("create", folder))?;
    std::fs::metadata(folder)
        .and_then(|folder| {
            check_owner(&folder)?;
            if folder.mode() & 0o022 != 0 {
                return Err(refused("others can write to it: take that right from them"));
            }
            Ok(())
        })
        .map_err(Error::state("use", folder))
}

/// Opens a file of the folder; one of another user, a link or a pipe is refused.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    check_owner(&metadata)?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file"));
    }
    Ok(file)
}

fn check_owner(metadata: &Metadata) -> io::Result<()> {
    if metadata.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(refused("it belongs to another user"))
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        create(&folder).unwrap();
        let mode = |mode| std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode));
        for open_to_others in [0o770, 0o707, 0o722] {
            mode(open_to_others).unwrap();
            assert!(create(&folder).is_err(), "{open_to_others:o}");
        }
        mode(0o755).unwrap();
        create(&folder).unwrap();
    }

    #[test]
    fn a_new_folder_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        create(&folder).unwrap();
        for made in [dir.path().join("a"), folder] {
            assert_eq!(std::fs::metadata(made).unwrap().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn neither_a_link_nor_a_pipe_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
        let mut append = OpenOptions::new();
        append.create(true).append(true);
        assert!(open(&mut append, &link).is_err());
        assert!(!dir.path().join("elsewhere").exists());

        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert!(open(OpenOptions::new().read(true), &pipe).is_err());
    }
}
