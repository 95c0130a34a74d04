use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::Error;
use crate::error::Result;

/// The raw output of one stream, byte for byte.
pub(crate) struct RawLog {
    path: PathBuf,
    file: File,
}

impl RawLog {
    /// The files of an execution: standard output and standard error.
    pub(crate) fn paths(folder: &Path, id: Uuid) -> [PathBuf; 2] {
        ["stdout", "stderr"].map(|stream| folder.join(format!("{id}.{stream}.log")))
    }

    /// Creates the file, and its folder if need be.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(Error::state("create", folder))?;
        }
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(Error::state("create", path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes where the output is read: a write to the page cache costs less than handing the
    /// bytes to another thread.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
