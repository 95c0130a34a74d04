//! How a message gets to tmux.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    error::{Error, Result},
    octal::{quote, quote_literal},
};

/// Above this a message goes to tmux through a file: a command line is parsed byte by byte.
pub(crate) const INLINE: usize = 4096;

/// A paste buffer of this message alone, and the file through which a large one gets there.
pub(crate) struct Buffer {
    pub(crate) name: String,
    /// The command that fills it.
    pub(crate) load: String,
    file: Option<PathBuf>,
}

impl Buffer {
    pub(crate) fn new(folder: &Path, text: &[u8]) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "tmux-bus-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        if text.len() <= INLINE {
            return Ok(Self {
                load: format!("set-buffer -b {name} -- {}", quote(text)),
                name,
                file: None,
            });
        }
        let path = folder.join(&name);
        // From here on the file goes with this value.
        let buffer = Self {
            load: format!(
                "load-buffer -b {name} {}",
                quote_literal(path.as_os_str().as_encoded_bytes())
            ),
            name,
            file: Some(path.clone()),
        };
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text))
            .map_err(|source| Error::file("write", path, source))?;
        Ok(buffer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            let _ = std::fs::remove_file(path);
        }
    }
}
