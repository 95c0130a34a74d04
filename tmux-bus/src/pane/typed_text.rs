//! The text that this crate has typed into an agent and not submitted yet.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::pane_id::PaneId;
use crate::Error;
use crate::shared::private_file;

/// A file in the folder of the session, so that any process can remove the text after a crash. Only the
/// holder of the pane's lock uses it.
pub(super) struct TypedText(PathBuf);

impl TypedText {
    pub(super) fn of(folder: &Path, pane: PaneId) -> Self {
        Self(folder.join(format!("typed-{}", pane.number())))
    }

    /// Records a text that is about to be typed.
    pub(super) fn record(&self, text: &str) -> Result<(), Error> {
        let mut options = File::options();
        let mut file =
            private_file::open(&self.0, options.write(true).create(true).truncate(true))?;
        file.write_all(text.as_bytes())
            .map_err(Error::io("write", &self.0))
    }

    pub(super) fn read(&self) -> Result<Option<String>, Error> {
        let Some(mut file) = private_file::open_existing(&self.0, File::options().read(true))?
        else {
            return Ok(None);
        };
        let mut text = Vec::new();
        file.read_to_end(&mut text)
            .map_err(Error::io("read", &self.0))?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()).filter(|text| !text.is_empty()))
    }

    /// The text is not in the input line any more.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }
}
