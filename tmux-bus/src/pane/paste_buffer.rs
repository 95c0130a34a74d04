//! Loads a text into a paste buffer of tmux.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::control::quoting::{quote, quote_literal};
use crate::shared::private_file;

/// Longer texts go through a file: tmux parses a command line byte by byte.
pub(crate) const MAX_INLINE: usize = 4096;

/// A paste buffer of its own for one text. Dropping it removes the file of a long text.
pub(crate) struct PasteBuffer {
    pub(crate) name: String,
    /// The command that fills the buffer.
    pub(crate) load: String,
    file: Option<PathBuf>,
}

impl PasteBuffer {
    /// `folder` is the folder of the session.
    pub(crate) fn create(folder: &Path, text: &[u8]) -> Result<Self, Error> {
        // Not by the process id: a process in another pid namespace can have the same.
        let name = format!("tmux-bus-{}", uuid::Uuid::new_v4().simple());
        if text.len() <= MAX_INLINE {
            return Ok(Self {
                load: format!("set-buffer -b {name} -- {}", quote(text)),
                name,
                file: None,
            });
        }
        let path = folder.join(&name);
        let quoted = quote_literal(path.as_os_str().as_encoded_bytes());
        // Before the write: a file that is written in part is removed too.
        let buffer = Self {
            load: format!("load-buffer -b {name} {quoted}"),
            name,
            file: Some(path.clone()),
        };
        let mut file = private_file::open(&path, File::options().write(true).create_new(true))?;
        file.write_all(text).map_err(Error::io("write", &path))?;
        Ok(buffer)
    }
}

impl Drop for PasteBuffer {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            let _ = std::fs::remove_file(path);
        }
    }
}
