//! How the data file is read and replaced. Nothing else in the crate knows.
//!
//! A new version is written beside the old one and takes its place in one step, so that a
//! reader, even one that takes no lock, finds the old version or the new one and never a part;
//! nor does a kill at any moment leave the file missing or torn:
//!
//! | killed | data file | `.flock-next` |
//! |---|---|---|
//! | while the new version is written | old | part of the new |
//! | before the exchange | old | new |
//! | after the exchange | new | old |
//! | after the removal | new | none |
//!
//! Why an exchange and not a plain rename: ext4 flushes the data of a file that is renamed
//! *over* another one, which takes four times as long and is not asked for here
//! ([`Durability::Power`] asks for it, and for the folder as well). Why the old version is
//! removed and not kept to be written over: a reader without a lock may still be reading it.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::location::{Location, with_suffix};
use crate::{Error, stamp};

const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// What a completed write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The death of every process, at any moment. After a power cut the last writes may be
    /// gone, or the file may be empty (which is then found and reported as corrupt).
    #[default]
    Process,
    /// A power cut too, by telling the disk to write before the operation returns. It takes
    /// some ten times as long.
    Power,
}

pub(crate) struct Contents {
    pub(crate) bytes: Vec<u8>,
    /// The owner's write bit. Replacing would work without it, but it says 'do not change'.
    pub(crate) read_only: bool,
}

/// The file's contents, or `None` if there is no file.
pub(crate) fn read(location: &Location) -> Result<Option<Contents>, Error> {
    let path = &location.file;
    let Some(file) = open_private(path, OFlags::RDONLY)? else {
        return Ok(None);
    };
    let metadata = inspect(&file, path)?;
    let size = usize::try_from(metadata.len()).unwrap_or(0);
    let mut bytes = Vec::with_capacity(size + 1);
    while read_more(&file, &mut bytes).map_err(Error::io("read", path))? {}
    Ok(Some(Contents {
        bytes,
        read_only: metadata.mode() & 0o200 == 0,
    }))
}

/// Whether there is anything at the data file's path, be it a dangling link.
pub(crate) fn exists(location: &Location) -> Result<bool, Error> {
    match location.file.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::io("look for", &location.file)(source)),
    }
}

/// Puts `bytes` in the place of the file's contents. Only for the holder of the lock.
pub(crate) fn replace(
    location: &Location,
    bytes: &[u8],
    durability: Durability,
) -> Result<(), Error> {
    let next = &location.next;
    let written = write_new(next, bytes, durability).and_then(|()| put_in_place(location));
    // After the exchange this is the old version; after a failure it is of no use to anybody.
    // Left behind, it does no harm, and the next writer tries again.
    let removed = std::fs::remove_file(next);
    written?;
    if let Err(error) = removed.or_else(accept_missing) {
        tracing::debug!(path = %next.display(), %error, "cannot remove the previous version");
    }
    if durability == Durability::Power {
        sync_folder(location)?;
    }
    Ok(())
}

/// Keeps damaged contents under a name of their own, and returns that name.
pub(crate) fn keep_aside(
    location: &Location,
    bytes: &[u8],
    now_ms: i64,
    durability: Durability,
) -> Result<std::path::PathBuf, Error> {
    let time = stamp::format(now_ms).replace([':', '-'], "");
    for attempt in 0..100 {
        let suffix = if attempt == 0 {
            format!(".corrupt-{time}")
        } else {
            format!(".corrupt-{time}-{attempt}")
        };
        let path = with_suffix(&location.file, &suffix);
        match create_private(&path) {
            Ok(file) => {
                return match fill(file, bytes, durability) {
                    Ok(()) => Ok(path),
                    Err(source) => {
                        // Half a copy would be taken for the whole.
                        let _ = std::fs::remove_file(&path);
                        Err(Error::io("keep a copy of the corrupt file as", &path)(
                            source,
                        ))
                    }
                };
            }
            Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(Error::io("keep a copy of the corrupt file as", &path)(
                    errno.into(),
                ));
            }
        }
    }
    Err(Error::io(
        "keep a copy of the corrupt file beside",
        &location.file,
    )(Errno::EXIST.into()))
}

/// Opens an existing file for its owner alone; `None` if there is none.
///
/// Not through a symbolic link, which somebody else may have put there, and without waiting
/// for the other end of a pipe.
pub(crate) fn open_private(path: &Path, access: OFlags) -> Result<Option<File>, Error> {
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(descriptor) => Ok(Some(File::from(descriptor))),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP) => Err(refused(
            path,
            "it is a symbolic link; remove it or name its target",
        )),
        Err(errno) => {
            // 'Permission denied' is the symptom; whose file it is is the cause.
            let foreign = path
                .symlink_metadata()
                .is_ok_and(|metadata| metadata.uid() != own_uid());
            Err(if foreign {
                refused(path, FOREIGN)
            } else {
                Error::io("open", path)(errno.into())
            })
        }
    }
}

/// Creates a file that was not there.
pub(crate) fn create_private(path: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, PRIVATE).map(File::from)
}

/// Refuses what others could have written, and takes from them what they could read.
pub(crate) fn inspect(file: &File, path: &Path) -> Result<std::fs::Metadata, Error> {
    let metadata = file.metadata().map_err(Error::io("inspect", path))?;
    if !metadata.is_file() {
        return Err(refused(path, "it is not a regular file"));
    }
    if metadata.uid() != own_uid() {
        return Err(refused(path, FOREIGN));
    }
    // What is ours under another name must not be changed under this one.
    if metadata.nlink() > 1 {
        return Err(refused(
            path,
            "it has another name too (a hard link); remove one of them",
        ));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o002 != 0 {
        return Err(refused(
            path,
            "everybody may write to it; check what it says, then `chmod 600`",
        ));
    }
    if mode & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(mode & 0o600))
            .map_err(Error::io("protect", path))?;
    }
    Ok(metadata)
}

const FOREIGN: &str = "it belongs to another user; remove it or choose another path";

fn refused(path: &Path, reason: &'static str) -> Error {
    Error::Refused {
        path: path.to_owned(),
        reason,
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Reads up to the end of the free capacity, and says whether there may be more. `read_to_end`
/// would ask the system again for what we know, the size.
fn read_more(file: &File, bytes: &mut Vec<u8>) -> io::Result<bool> {
    bytes.reserve(1);
    match rustix::io::read(file, rustix::buffer::spare_capacity(bytes)) {
        Ok(read) => Ok(read > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

fn write_new(path: &Path, bytes: &[u8], durability: Durability) -> Result<(), Error> {
    let file = match create_private(path) {
        // Left by a killed writer: we hold the lock, so nobody is at work on it. It is removed
        // and not written over, because it may be a link to something else.
        Err(Errno::EXIST) => {
            std::fs::remove_file(path)
                .or_else(accept_missing)
                .map_err(Error::io("remove the abandoned", path))?;
            create_private(path)
        }
        created => created,
    };
    file.map_err(io::Error::from)
        .and_then(|file| fill(file, bytes, durability))
        .map_err(Error::io("write", path))
}

fn fill(mut file: File, bytes: &[u8], durability: Durability) -> io::Result<()> {
    file.write_all(bytes)?;
    match durability {
        Durability::Process => Ok(()),
        Durability::Power => file.sync_data(),
    }
}

fn put_in_place(location: &Location) -> Result<(), Error> {
    let Location { file, next, .. } = location;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, next, CWD, file, RenameFlags::EXCHANGE) {
            Ok(()) => return Ok(()),
            // No file yet, or a file system that cannot exchange (NFS, some FUSE).
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            Err(errno) => return Err(Error::io("replace", file)(errno.into())),
        }
    }
    std::fs::rename(next, file).map_err(Error::io("replace", file))
}

fn sync_folder(location: &Location) -> Result<(), Error> {
    let folder = location.folder();
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(Error::io("sync", folder))
}

fn accept_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}
