use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file::{self, FileError};

/// The operations of the storage on its folder.
///
/// They are few, so that a simulated folder can fail, forget and reorder each one of them.
pub(super) trait Folder: Send + Sync + 'static {
    type File: Send;
    type Lock: Send;
    /// Differs after the file was replaced or written.
    type Version: PartialEq + Send;

    fn path(&self) -> &Path;
    /// The contents of a file; `None` if there is none.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError>;
    fn exists(&self, name: &str) -> Result<bool, FileError>;
    /// Whether the name is that of this open file.
    fn is_file_at(&self, file: &Self::File, name: &str) -> Result<bool, FileError>;
    /// The version of a file; `None` if there is none.
    fn version(&self, name: &str) -> Result<Option<Self::Version>, FileError>;
    /// When a file was last written; `None` if there is none.
    fn modified(&self, name: &str) -> Result<Option<SystemTime>, FileError>;
    /// Creates an empty file, or empties an existing one.
    fn create(&self, name: &str) -> Result<Self::File, FileError>;
    /// Opens a file for appending, and creates it if there is none.
    fn open_to_append(&self, name: &str) -> Result<Self::File, FileError>;
    fn len(&self, file: &Self::File) -> Result<u64, FileError>;
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> Result<(), FileError>;
    fn truncate(&self, file: &mut Self::File, len: u64) -> Result<(), FileError>;
    fn sync(&self, file: &Self::File) -> Result<(), FileError>;
    fn rename(&self, from: &str, to: &str) -> Result<(), FileError>;
    /// Succeeds if there is no such file.
    fn remove(&self, name: &str) -> Result<(), FileError>;
    /// Makes created, renamed and removed names durable.
    fn sync_names(&self) -> Result<(), FileError>;
    fn list(&self) -> Result<Vec<String>, FileError>;
    /// Blocks until no other process or handle holds the lock of this name.
    fn lock(&self, name: &str) -> Result<Self::Lock, FileError>;
}

/// A folder of the operating system.
#[derive(Clone, Debug)]
pub(super) struct OsFolder {
    path: PathBuf,
    sync: bool,
}

/// The inode alone is not enough: a file system gives the number of a deleted file to the next one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OsVersion {
    inode: (u64, u64),
    len: u64,
    /// Seconds and nanoseconds of the last change. A program cannot set this time.
    changed: (i64, i64),
}

/// An open file with its path for errors.
pub(super) struct OsFile {
    file: File,
    path: PathBuf,
}

impl OsFolder {
    /// Creates the folder if it is missing, and refuses one that is not private.
    pub(super) fn open(path: &Path, sync: bool) -> Result<Self, FileError> {
        private_file::create_folder(path)?;
        Ok(Self {
            path: path.to_owned(),
            sync,
        })
    }

    /// A fact about a file; `None` if there is none.
    fn inspect<T>(
        &self,
        name: &str,
        fact: impl FnOnce(Metadata) -> io::Result<T>,
    ) -> Result<Option<T>, FileError> {
        let path = self.path.join(name);
        match path.symlink_metadata().and_then(fact) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            fact => fact.map(Some).map_err(FileError::io("inspect", &path)),
        }
    }

    fn open_to_write(&self, name: &str) -> Result<OsFile, FileError> {
        let path = self.path.join(name);
        let mut options = File::options();
        let file = private_file::open(&path, options.read(true).write(true).create(true))?;
        Ok(OsFile { file, path })
    }
}

impl Folder for OsFolder {
    type File = OsFile;
    type Lock = LockedFile;
    type Version = OsVersion;

    fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        let path = self.path.join(name);
        let Some(mut file) = private_file::open_existing(&path, File::options().read(true))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(FileError::io("read", &path))?;
        Ok(Some(bytes))
    }

    fn exists(&self, name: &str) -> Result<bool, FileError> {
        let path = self.path.join(name);
        path.try_exists().map_err(FileError::io("inspect", &path))
    }

    fn is_file_at(&self, file: &OsFile, name: &str) -> Result<bool, FileError> {
        let path = self.path.join(name);
        is_file_at(&file.file, &path).map_err(FileError::io("inspect", &path))
    }

    fn version(&self, name: &str) -> Result<Option<OsVersion>, FileError> {
        self.inspect(name, |metadata| {
            Ok(OsVersion {
                inode: (metadata.dev(), metadata.ino()),
                len: metadata.len(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            })
        })
    }

    fn modified(&self, name: &str) -> Result<Option<SystemTime>, FileError> {
        self.inspect(name, |metadata| metadata.modified())
    }

    fn create(&self, name: &str) -> Result<OsFile, FileError> {
        let mut file = self.open_to_write(name)?;
        self.truncate(&mut file, 0)?;
        Ok(file)
    }

    fn open_to_append(&self, name: &str) -> Result<OsFile, FileError> {
        let mut file = self.open_to_write(name)?;
        file.file
            .seek(SeekFrom::End(0))
            .map_err(FileError::io("seek in", &file.path))?;
        Ok(file)
    }

    fn len(&self, file: &OsFile) -> Result<u64, FileError> {
        let metadata = file.file.metadata();
        Ok(metadata
            .map_err(FileError::io("inspect", &file.path))?
            .len())
    }

    fn write(&self, file: &mut OsFile, bytes: &[u8]) -> Result<(), FileError> {
        file.file
            .write_all(bytes)
            .map_err(FileError::io("write to", &file.path))
    }

    fn truncate(&self, file: &mut OsFile, len: u64) -> Result<(), FileError> {
        file.file
            .set_len(len)
            .and_then(|()| file.file.seek(SeekFrom::Start(len)))
            .map_err(FileError::io("truncate", &file.path))?;
        Ok(())
    }

    fn sync(&self, file: &OsFile) -> Result<(), FileError> {
        if !self.sync {
            return Ok(());
        }
        // fdatasync writes the length too; it only leaves out the times.
        file.file
            .sync_data()
            .map_err(FileError::io("sync", &file.path))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let to = self.path.join(to);
        std::fs::rename(self.path.join(from), &to).map_err(FileError::io("replace", &to))
    }

    fn remove(&self, name: &str) -> Result<(), FileError> {
        let path = self.path.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FileError::io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    fn sync_names(&self) -> Result<(), FileError> {
        if !self.sync {
            return Ok(());
        }
        File::open(&self.path)
            .and_then(|folder| folder.sync_all())
            .map_err(FileError::io("sync", &self.path))
    }

    fn list(&self) -> Result<Vec<String>, FileError> {
        let list = || {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(&self.path)? {
                // The storage writes no name that is not UTF-8.
                names.extend(entry?.file_name().into_string());
            }
            Ok(names)
        };
        list().map_err(FileError::io("list", &self.path))
    }

    fn lock(&self, name: &str) -> Result<LockedFile, FileError> {
        loop {
            let OsFile { file, path } = self.open_to_write(name)?;
            let lock =
                LockedFile::lock(file, Access::Exclusive).map_err(FileError::io("lock", &path))?;
            // A delete removes the lock file at its end. A process that was waiting for it then
            // holds the lock of a file without a name, which excludes no other process.
            if is_file_at(&lock, &path).map_err(FileError::io("inspect", &path))? {
                return Ok(lock);
            }
        }
    }
}

fn is_file_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match path.symlink_metadata() {
        Ok(found) => Ok((ours.dev(), ours.ino()) == (found.dev(), found.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
