use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::private;

/// One folder, reduced to what the storage does with it.
///
/// Small so that a simulated one can fail, forget and reorder at every single step.
pub(super) trait Fs: Send + Sync + 'static {
    type File: Send;
    type Lock: Send;

    /// The contents, or `None` when there is no such file.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;
    fn exists(&self, name: &str) -> io::Result<bool>;
    /// Makes an empty file, whatever was there.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Opens for appending; makes the file if there is none.
    fn append(&self, name: &str) -> io::Result<Self::File>;
    fn len(&self, file: &Self::File) -> io::Result<u64>;
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;
    fn truncate(&self, file: &mut Self::File, len: u64) -> io::Result<()>;
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// A missing file is a success.
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_folder(&self) -> io::Result<()>;
    fn list(&self) -> io::Result<Vec<String>>;
    /// Waits until no other process holds the lock of this name.
    fn lock(&self, name: &str) -> io::Result<Self::Lock>;
    /// Removes a lock that the caller holds.
    fn remove_lock(&self, name: &str) -> io::Result<()>;
}

/// A folder of the operating system.
#[derive(Debug, Clone)]
pub(super) struct RealFs {
    folder: PathBuf,
    sync: bool,
}

impl RealFs {
    /// Makes the folder (mode 0700) if it is missing; it must be the user's own.
    pub(super) fn open(folder: &Path, sync: bool) -> io::Result<Self> {
        private::folder(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            sync,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// For a file that is made if there is none.
fn writing() -> OpenOptions {
    let mut options = private::file();
    options.write(true).create(true);
    options
}

impl Fs for RealFs {
    type File = File;
    type Lock = File;

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match private::file().open(self.path(name)) {
            Ok(mut file) => file.read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(bytes))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.path(name).try_exists()
    }

    fn create(&self, name: &str) -> io::Result<File> {
        writing().truncate(true).open(self.path(name))
    }

    fn append(&self, name: &str) -> io::Result<File> {
        let mut file = writing().truncate(false).open(self.path(name))?;
        file.seek(SeekFrom::End(0))?;
        Ok(file)
    }

    fn len(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn truncate(&self, file: &mut File, len: u64) -> io::Result<()> {
        file.set_len(len)?;
        file.seek(SeekFrom::Start(len))?;
        Ok(())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        // The length is part of what fdatasync writes; times are not needed.
        if self.sync { file.sync_data() } else { Ok(()) }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync_folder(&self) -> io::Result<()> {
        // Only Unix has a way to sync a folder, and only there a rename needs it.
        if cfg!(unix) && self.sync {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            // A name that is not UTF-8 is not one of ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn lock(&self, name: &str) -> io::Result<File> {
        let path = self.path(name);
        loop {
            let file = writing().truncate(false).open(&path)?;
            file.lock()?;
            // Its last holder may have removed it while we waited: then it excludes nobody.
            if is_at(&file, &path)? {
                return Ok(file);
            }
        }
    }

    fn remove_lock(&self, name: &str) -> io::Result<()> {
        // Where one cannot tell two files apart, it stays.
        if cfg!(unix) {
            self.remove(name)
        } else {
            Ok(())
        }
    }
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let ours = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(theirs) => Ok((ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}
