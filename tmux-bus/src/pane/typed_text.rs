//! The text that this crate has typed into an agent and not submitted yet.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::pane_id::PaneId;
use crate::Error;
use crate::shared::private_file;

/// A file in the folder of the session, so that any process can remove the text after a crash. Only the
/// holder of the pane's lock uses it. Its first line is the id of the launch: a text has ended with the
/// program that had it, and the same text in the next program is a person's.
pub(super) struct TypedText {
    path: PathBuf,
    launch: String,
}

impl TypedText {
    /// For the program of this launch.
    pub(super) fn of(folder: &Path, pane: PaneId, launch: Option<String>) -> Self {
        Self {
            path: folder.join(format!("typed-{}", pane.number())),
            launch: launch.unwrap_or_default(),
        }
    }

    /// Records a text that is about to be typed.
    pub(super) fn record(&self, text: &str) -> Result<(), Error> {
        let mut options = File::options();
        let mut file =
            private_file::open(&self.path, options.write(true).create(true).truncate(true))?;
        file.write_all(format!("{}\n{text}", self.launch).as_bytes())
            .map_err(Error::io("write", &self.path))
    }

    /// `None` if no text is recorded, or that of an earlier launch.
    pub(super) fn read(&self) -> Result<Option<String>, Error> {
        let Some(mut file) = private_file::open_existing(&self.path, File::options().read(true))?
        else {
            return Ok(None);
        };
        let mut text = Vec::new();
        file.read_to_end(&mut text)
            .map_err(Error::io("read", &self.path))?;
        let text = String::from_utf8_lossy(&text);
        let own = text
            .split_once('\n')
            .filter(|(launch, text)| *launch == self.launch && !text.is_empty());
        Ok(own.map(|(_, text)| text.to_owned()))
    }

    /// The text is not in the input line any more.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_belongs_to_one_launch() {
        let dir = tempfile::tempdir().unwrap();
        let pane = PaneId::new("%1").unwrap();
        let of = |launch: &str| TypedText::of(dir.path(), pane, Some(launch.to_owned()));
        of("first").record("two\nlines").unwrap();
        assert_eq!(of("first").read().unwrap().as_deref(), Some("two\nlines"));
        assert_eq!(of("second").read().unwrap(), None);
        of("second").record("other").unwrap();
        assert_eq!(of("first").read().unwrap(), None);
        of("second").remove();
        assert_eq!(of("second").read().unwrap(), None);
    }
}
