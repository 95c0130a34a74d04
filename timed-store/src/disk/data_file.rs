//! How the data file is read and replaced.
//!
//! # Theory
//!
//! A new version is written to `<file>.flock-next` and takes the place of the old one in one
//! step. A reader without a lock, for example another tool, therefore finds the old version or
//! the new one, never a torn write; and a kill at any moment leaves a whole file:
//!
//! | killed | data file | `.flock-next` |
//! |---|---|---|
//! | while the new version is written | old | part of the new |
//! | before the exchange | old | new |
//! | after the exchange | new | old |
//! | after the removal | new | none |
//!
//! Only the holder of the exclusive lock writes, so that one name for the next version is enough,
//! and the next writer removes the file that a killed one left.
//!
//! - Why `RENAME_EXCHANGE` and not a plain rename: ext4 flushes the data of a file that is renamed
//!   over another one. That takes four times as long and is not needed here;
//!   [`Durability::Power`] syncs explicitly, and the folder as well.
//! - Why the old version is removed and not kept to be overwritten: a reader without a lock may
//!   still be reading it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::location::with_suffix;
use crate::format::timestamp;
use crate::shared::private_file::{self, FileError};
use crate::{Durability, Error};

/// The data file as it was read.
pub(crate) struct Contents {
    pub(crate) bytes: Vec<u8>,
    /// The owner has no write permission. A replacement would work all the same, but the mode
    /// says that the file must not change.
    pub(crate) is_read_only: bool,
}

/// Reads the data file; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Contents>, Error> {
    let file = match private_file::open_unchecked(path, File::options().read(true)) {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    let metadata = private_file::check(&file, path)?;
    // A write through the other name would change the store, and other users can give our files
    // a second name in a shared folder.
    if metadata.nlink() > 1 {
        return Err(Error::hard_link(path));
    }
    Ok(Some(Contents {
        bytes: read_all(&file, metadata.len()).map_err(Error::io("read", path))?,
        is_read_only: metadata.mode() & 0o200 == 0,
    }))
}

/// Reads a file of a known size. `read_to_end` asks the system for size and position again.
fn read_all(file: &File, size: u64) -> io::Result<Vec<u8>> {
    let size = usize::try_from(size).unwrap_or(0);
    let mut bytes = Vec::with_capacity(size + 1);
    loop {
        bytes.reserve(1);
        match rustix::io::read(file, rustix::buffer::spare_capacity(&mut bytes)) {
            // The end, which is known without another call if the size is the expected one.
            Ok(0) => return Ok(bytes),
            Ok(_) if bytes.len() == size => return Ok(bytes),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Replaces the contents of the data file. Only for the holder of the exclusive lock.
pub(crate) fn replace(path: &Path, bytes: &[u8], durability: Durability) -> Result<(), Error> {
    let next = &with_suffix(path, ".flock-next");
    let replaced = write_next(next, bytes, durability).and_then(|()| exchange(path, next));
    // After the exchange this is the old version, after a failure it is useless. A file that
    // stays does no harm: the next writer removes it.
    let removed = remove(next);
    replaced?;
    if let Err(error) = removed {
        tracing::debug!(path = %next.display(), %error, "cannot remove the previous version");
    }
    match durability {
        Durability::Process => Ok(()),
        Durability::Power => sync_folder(path.parent().unwrap_or(Path::new("/"))),
    }
}

/// Keeps a copy of corrupt contents under a name of its own, and returns that name.
pub(crate) fn keep_aside(
    data: &Path,
    bytes: &[u8],
    now_ms: i64,
    durability: Durability,
) -> Result<PathBuf, Error> {
    let time = timestamp::format(now_ms).replace([':', '-'], "");
    let mut attempt = 0;
    loop {
        let suffix = match attempt {
            0 => format!(".corrupt-{time}"),
            attempt => format!(".corrupt-{time}-{attempt}"),
        };
        let path = with_suffix(data, &suffix);
        match create(&path) {
            Ok(file) => {
                let written = write(file, bytes, durability);
                return match written {
                    Ok(()) => Ok(path),
                    Err(error) => {
                        // Half a copy would look like a whole one.
                        let _ = remove(&path);
                        Err(Error::io("copy the corrupt file to", &path)(error))
                    }
                };
            }
            Err(FileError::Io { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists && attempt < 100 =>
            {
                attempt += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes the copy of a corrupt file that could not be replaced. If the file has changed, nothing else
/// has the corrupt contents, and the copy stays.
pub(crate) fn discard_copy(copy: &Path, data: &Path, bytes: &[u8]) {
    let is_unchanged = read(data).is_ok_and(|now| now.is_some_and(|now| now.bytes == bytes));
    if is_unchanged && let Err(error) = remove(copy) {
        tracing::warn!(path = %copy.display(), %error, "cannot remove the copy of a corrupt file");
    }
}

fn write_next(next: &Path, bytes: &[u8], durability: Durability) -> Result<(), Error> {
    let file = match create(next) {
        // A killed writer left it. It is removed and not overwritten, because it may be a link to
        // another file.
        Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
            remove(next).map_err(Error::io("remove the abandoned", next))?;
            create(next)
        }
        created => created,
    };
    write(file?, bytes, durability).map_err(Error::io("write", next))
}

/// Creates a file that did not exist: it is ours and needs no check.
fn create(path: &Path) -> Result<File, FileError> {
    private_file::open_unchecked(path, OpenOptions::new().write(true).create_new(true))
}

fn write(mut file: File, bytes: &[u8], durability: Durability) -> io::Result<()> {
    file.write_all(bytes)?;
    match durability {
        Durability::Process => Ok(()),
        Durability::Power => file.sync_data(),
    }
}

/// Puts the next version in the place of the data file.
fn exchange(data: &Path, next: &Path) -> Result<(), Error> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, next, CWD, data, RenameFlags::EXCHANGE) {
            Ok(()) => return Ok(()),
            // No data file yet, or a file system without exchange (NFS, some FUSE).
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            Err(errno) => return Err(Error::io("replace", data)(errno.into())),
        }
    }
    std::fs::rename(next, data).map_err(Error::io("replace", data))
}

fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(Error::io("sync", folder))
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
