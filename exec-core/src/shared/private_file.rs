//! Private files and folders: the one rule of SECURITY.md.
//!
//! This file is the same in every crate that has it; `scripts/check-shared` compares the copies.
//!
//! A file or folder is private if it belongs to us, is not a symbolic link and is not writable by
//! group or others. New files have mode 0600, new folders 0700. An existing file or folder that is
//! not private is refused; its mode is never changed, because it may be the user's own choice.
//!
//! Files are checked through their open descriptor: a check of the path could see one file and
//! the open that follows another (time-of-check to time-of-use race).

#![allow(dead_code, reason = "each crate uses its own part of a shared file")]

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Why a file cannot be used. Each crate converts it into its own error.
#[derive(Debug)]
pub(crate) enum FileError {
    /// A system call failed.
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Another user could have written the file, or could change it.
    NotPrivate { path: PathBuf, reason: &'static str },
}

impl FileError {
    /// For `map_err`: adds the operation and the path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    fn not_private(path: &Path, reason: &'static str) -> Self {
        Self::NotPrivate {
            path: path.to_owned(),
            reason,
        }
    }
}

/// Opens a private file with `options`, which may create it.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> Result<File, FileError> {
    let file = open_unchecked(path, options)?;
    check(&file, path)?;
    Ok(file)
}

/// Opens a file that the caller checks by [`check`], which also returns the metadata.
///
/// `O_NOFOLLOW` refuses a link in the last part of the path. `O_NONBLOCK` keeps the open of a pipe
/// from waiting for its other end; it has no effect on regular files.
pub(crate) fn open_unchecked(path: &Path, options: &mut OpenOptions) -> Result<File, FileError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => FileError::not_private(path, LINK),
        // 'Permission denied' is the symptom; the owner of the file is the cause.
        Some(Errno::ACCESS | Errno::PERM) if belongs_to_another(path) => {
            FileError::not_private(path, FOREIGN)
        }
        _ => FileError::io("open", path)(error),
    })
}

/// Opens an existing private file; `None` if there is none.
pub(crate) fn open_existing(
    path: &Path,
    options: &mut OpenOptions,
) -> Result<Option<File>, FileError> {
    match open(path, options) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Refuses an open file that is not private, and returns its metadata otherwise.
pub(crate) fn check(file: &File, path: &Path) -> Result<Metadata, FileError> {
    let metadata = file.metadata().map_err(FileError::io("inspect", path))?;
    if !metadata.is_file() {
        return Err(FileError::not_private(path, NOT_REGULAR));
    }
    check_owner_and_mode(&metadata, path)?;
    Ok(metadata)
}

/// Refuses a file that is not private, without opening it. Only for a file in a private folder,
/// where no other user can exchange the file after the check.
///
/// For databases: closing any descriptor of a file drops all POSIX locks that the process has on
/// it, including the locks of an open database.
pub(crate) fn check_unopened(path: &Path) -> Result<(), FileError> {
    let metadata = path
        .symlink_metadata()
        .map_err(FileError::io("inspect", path))?;
    if metadata.is_symlink() {
        return Err(FileError::not_private(path, LINK));
    }
    if !metadata.is_file() {
        return Err(FileError::not_private(path, NOT_REGULAR));
    }
    check_owner_and_mode(&metadata, path)
}

/// Creates a folder with its missing parents (0700), or refuses an existing one that is not
/// private.
pub(crate) fn create_folder(path: &Path) -> Result<(), FileError> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(FileError::io("create the folder", path))?;
    check_folder(path)
}

/// Refuses a folder that is not private.
pub(crate) fn check_folder(path: &Path) -> Result<(), FileError> {
    let metadata = path
        .symlink_metadata()
        .map_err(FileError::io("inspect", path))?;
    if metadata.is_symlink() {
        return Err(FileError::not_private(path, LINK));
    }
    if !metadata.is_dir() {
        return Err(FileError::not_private(path, "it is not a folder"));
    }
    check_owner_and_mode(&metadata, path)
}

const NOT_REGULAR: &str = "it is not a regular file";
const LINK: &str = "it is a symbolic link; remove it or use its target";
const FOREIGN: &str = "it belongs to another user; remove it or use another path";
const WRITABLE: &str =
    "group or others can write to it; check its contents, then run `chmod go-w` on it";

fn check_owner_and_mode(metadata: &Metadata, path: &Path) -> Result<(), FileError> {
    if metadata.uid() != own_uid() {
        return Err(FileError::not_private(path, FOREIGN));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(FileError::not_private(path, WRITABLE));
    }
    Ok(())
}

fn belongs_to_another(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.uid() != own_uid())
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn open_rw(path: &Path) -> Result<File, FileError> {
        open(path, File::options().read(true).write(true).create(true))
    }

    #[track_caller]
    fn check_refused<T>(result: Result<T, FileError>, expected: &str) {
        match result.map(drop) {
            Err(FileError::NotPrivate { reason, .. }) => {
                assert!(reason.contains(expected), "{reason}");
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn created_files_and_folders_are_for_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        create_folder(&folder).unwrap();
        open_rw(&folder.join("file")).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&dir.path().join("a")), 0o700);
        assert_eq!(mode(&folder.join("file")), 0o600);
    }

    #[test]
    fn files_that_others_can_write_to_are_refused_and_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        open_rw(&path).unwrap();
        for mode in [0o620, 0o602, 0o666] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            check_refused(open_rw(&path), "chmod go-w");
            check_refused(check_unopened(&path), "chmod go-w");
            assert_eq!(path.metadata().unwrap().mode() & 0o777, mode);
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open_rw(&path).unwrap();
        check_unopened(&path).unwrap();
    }

    #[test]
    fn folders_that_others_can_write_to_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o770, 0o707, 0o1777] {
            std::fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            check_refused(create_folder(dir.path()), "chmod go-w");
        }
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        create_folder(dir.path()).unwrap();
    }

    #[test]
    fn links_pipes_and_folders_are_not_private_files() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        open_rw(&target).unwrap();
        symlink(&target, &link).unwrap();
        check_refused(open_rw(&link), "symbolic link");
        check_refused(check_unopened(&link), "symbolic link");
        symlink(dir.path(), dir.path().join("folder-link")).unwrap();
        check_refused(
            check_folder(&dir.path().join("folder-link")),
            "symbolic link",
        );
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        check_refused(open(&pipe, File::options().read(true)), "regular file");
        check_refused(check_unopened(&pipe), "regular file");
        check_refused(open(dir.path(), File::options().read(true)), "regular file");
        check_refused(check_folder(&target), "not a folder");
    }

    #[test]
    fn a_missing_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let opened = open_existing(&missing, File::options().read(true)).unwrap();
        assert!(opened.is_none());
    }
}
