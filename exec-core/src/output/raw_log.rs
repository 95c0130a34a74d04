use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::shared::private_file;
use crate::{Error, ExecutionId};

/// The file with the raw output of one stream, byte for byte.
pub(crate) struct RawLog {
    path: PathBuf,
    file: File,
}

impl RawLog {
    /// The files of an execution: standard output and standard error.
    pub(crate) fn paths(folder: &Path, id: &ExecutionId) -> [PathBuf; 2] {
        ["stdout", "stderr"].map(|stream| folder.join(format!("{id}.{stream}.log")))
    }

    /// The file with the input of a live session.
    pub(crate) fn input_path(folder: &Path, id: &ExecutionId) -> PathBuf {
        folder.join(format!("{id}.stdin.log"))
    }

    /// Creates the folder, if it does not exist, and both files.
    pub(crate) fn create_both(folder: &Path, id: &ExecutionId) -> Result<[Self; 2], Error> {
        private_file::create_folder(folder)?;
        let [stdout, stderr] = Self::paths(folder, id);
        Ok([Self::create(stdout)?, Self::create(stderr)?])
    }

    pub(crate) fn create(path: PathBuf) -> Result<Self, Error> {
        let file = private_file::open(&path, File::options().create_new(true).append(true))?;
        Ok(Self { path, file })
    }

    /// Blocks the reader of the pipe. A write to the page cache costs less than handing the bytes
    /// to another thread.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
