//! The user file on disk: privacy, lock, atomic replacement.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::file_format::FileFormat;
use super::user_profile::UserProfile;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file;
use crate::{EntryError, Error};

/// The user file on disk.
///
/// It names programs that run with the user's keys in their environment, so it must be private: a
/// file that another user could have written is refused.
#[derive(Clone, Debug)]
pub(crate) struct UserFile {
    path: PathBuf,
    format: FileFormat,
}

/// The parsed content of the user file.
#[derive(Default)]
pub(crate) struct FileContents {
    pub(crate) entries: BTreeMap<String, UserProfile>,
    pub(crate) errors: Vec<EntryError>,
    /// Whether the file does not exist.
    pub(crate) missing: bool,
}

impl UserFile {
    pub(crate) fn new(path: &Path) -> Result<Self, Error> {
        let format = FileFormat::of(path).map_err(|mistake| mistake.in_file(path))?;
        // A later change of the working directory must not lead to another file.
        let path = std::path::absolute(path).map_err(Error::io("find", path))?;
        Ok(Self { path, format })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn load(&self) -> Result<FileContents, Error> {
        match self.read()? {
            Some(text) => self.parse(&text),
            None => Ok(FileContents {
                missing: true,
                ..FileContents::default()
            }),
        }
    }

    /// Replaces one entry (`None` removes it) and returns the new content.
    ///
    /// Lost updates: all writers hold a lock while they read, change and replace the file. So the
    /// change is based on the newest content, including entries that another process has saved and
    /// entries that are invalid. The lock is on a side file that is never deleted, because a lock on
    /// a file that is replaced by rename excludes no writer that opens the new file.
    ///
    /// Torn writes: the file is replaced by rename. A reader sees the old or the new content, also
    /// after a crash.
    pub(crate) fn save(
        &self,
        label: &str,
        profile: Option<&UserProfile>,
    ) -> Result<FileContents, Error> {
        let _lock = self.lock()?;
        let old = self.read()?;
        if old.is_none() && profile.is_none() {
            return self.load();
        }
        let old = old.unwrap_or_default();
        let new = self.format.edit(&old, label, profile);
        let new = new.map_err(|mistake| mistake.in_file(&self.path))?;
        let contents = self.parse(&new)?;
        self.replace(&new).map_err(Error::io("write", &self.path))?;
        Ok(contents)
    }

    /// The text, or `None` if the file does not exist.
    fn read(&self) -> Result<Option<String>, Error> {
        let file = private_file::open_existing(&self.path, File::options().read(true))?;
        let text = file.map(io::read_to_string).transpose();
        text.map_err(Error::io("read", &self.path))
    }

    fn parse(&self, text: &str) -> Result<FileContents, Error> {
        let parsed = self.format.parse(text);
        let mut contents = FileContents::default();
        for (label, entry) in parsed.map_err(|mistake| mistake.in_file(&self.path))? {
            match entry {
                Ok(profile) => {
                    contents.entries.insert(label, profile);
                }
                Err(reason) => contents.errors.push(EntryError {
                    file: Some(self.path.clone()),
                    entry: label,
                    reason,
                }),
            }
        }
        Ok(contents)
    }

    fn lock(&self) -> Result<LockedFile, Error> {
        private_file::create_folder(self.folder())?;
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let options = &mut File::options();
        let file = private_file::open(&path, options.write(true).create(true).truncate(false))?;
        LockedFile::lock(file, Access::Exclusive).map_err(Error::io("lock", &path))
    }

    /// A new file has mode 0600; an existing file keeps its mode.
    fn replace(&self, text: &str) -> io::Result<()> {
        let mut temporary = NamedTempFile::new_in(self.folder())?;
        temporary.write_all(text.as_bytes())?;
        if let Ok(old) = self.path.metadata() {
            temporary.as_file().set_permissions(old.permissions())?;
        }
        temporary.as_file().sync_all()?;
        temporary.persist(&self.path).map_err(|error| error.error)?;
        // Makes the rename itself durable.
        File::open(self.folder())?.sync_all()
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_does_not_depend_on_a_later_working_directory() {
        let file = UserFile::new(Path::new("p.toml")).unwrap();
        assert!(file.path().is_absolute(), "{file:?}");
        assert_eq!(file.folder(), std::env::current_dir().unwrap());
    }
}
