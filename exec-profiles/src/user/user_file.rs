use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::file_format::FileFormat;
use super::user_profile::UserProfile;
use crate::{EntryError, Error};

/// The user file on disk.
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
        let path = path.to_owned();
        match FileFormat::of(&path) {
            Ok(format) => Ok(Self { path, format }),
            Err(reason) => Err(Error::Syntax { path, reason }),
        }
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
        let lock_path = self.lock_path();
        let mut lock = fd_lock::RwLock::new(self.lock_file()?);
        let _locked = lock.write().map_err(Error::io("lock", &lock_path))?;
        let old = self.read()?;
        if old.is_none() && profile.is_none() {
            return self.load();
        }
        let old = old.unwrap_or_default();
        let new = self.format.edit(&old, label, profile);
        let new = new.map_err(|reason| self.syntax_error(reason))?;
        let contents = self.parse(&new)?;
        self.replace(&new).map_err(Error::io("write", &self.path))?;
        Ok(contents)
    }

    pub(crate) fn entry_error(&self, label: String, reason: String) -> EntryError {
        EntryError {
            file: Some(self.path.clone()),
            entry: label,
            reason,
        }
    }

    /// The text, or `None` if the file does not exist.
    fn read(&self) -> Result<Option<String>, Error> {
        let read = || {
            let file = File::open(&self.path)?;
            // The file names programs that get the user's keys in their environment.
            if file.metadata()?.mode() & 0o002 != 0 {
                let reason = "everybody can write to it: take that right away (chmod o-w)";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
            io::read_to_string(file)
        };
        match read() {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", &self.path)(error)),
        }
    }

    fn parse(&self, text: &str) -> Result<FileContents, Error> {
        let parsed = self.format.parse(text);
        let mut contents = FileContents::default();
        for (label, entry) in parsed.map_err(|reason| self.syntax_error(reason))? {
            match entry {
                Ok(profile) => {
                    contents.entries.insert(label, profile);
                }
                Err(reason) => contents.errors.push(self.entry_error(label, reason)),
            }
        }
        Ok(contents)
    }

    fn syntax_error(&self, reason: String) -> Error {
        Error::Syntax {
            path: self.path.clone(),
            reason,
        }
    }

    fn lock_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        path.into()
    }

    fn lock_file(&self) -> Result<File, Error> {
        let path = self.lock_path();
        let open = || {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(&path)
        };
        open().map_err(Error::io("lock", &path))
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let target = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let folder = match target.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut temporary = NamedTempFile::new_in(folder)?;
        temporary.write_all(text.as_bytes())?;
        if let Ok(old) = fs::metadata(&target) {
            temporary.as_file().set_permissions(old.permissions())?;
        }
        temporary.as_file().sync_all()?;
        temporary.persist(&target).map_err(|error| error.error)?;
        File::open(folder)?.sync_all()
    }
}
