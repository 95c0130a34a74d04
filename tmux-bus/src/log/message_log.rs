//! The reader of the message log.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::log_follower::LogFollower;
use super::message::{MessageLogEntry, MessageType};
use crate::Error;
use crate::shared::{json_lines, private_file};

/// The entries to read. The default is all.
///
/// ```
/// use tmux_bus::{LogFilter, MessageType};
///
/// let results = LogFilter::default().from("coder").message_type(MessageType::Result);
/// # let _ = results;
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LogFilter {
    from: Option<String>,
    to: Option<String>,
    message_type: Option<MessageType>,
    reply_to: Option<String>,
}

impl LogFilter {
    /// Only from this agent.
    #[must_use]
    pub fn from(mut self, agent: impl Into<String>) -> Self {
        self.from = Some(agent.into());
        self
    }

    /// Only to this agent.
    #[must_use]
    pub fn to(mut self, agent: impl Into<String>) -> Self {
        self.to = Some(agent.into());
        self
    }

    /// Only of this type.
    #[must_use]
    pub fn message_type(mut self, message_type: MessageType) -> Self {
        self.message_type = Some(message_type);
        self
    }

    /// Only answers to this entry.
    #[must_use]
    pub fn reply_to(mut self, id: impl Into<String>) -> Self {
        self.reply_to = Some(id.into());
        self
    }

    pub(super) fn matches(&self, entry: &MessageLogEntry) -> bool {
        fn is<T: PartialEq>(wanted: Option<&T>, value: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == value)
        }
        is(self.from.as_ref(), &entry.from_agent)
            && is(self.to.as_ref(), &entry.to_agent)
            && is(self.message_type.as_ref(), &entry.message_type)
            && (self.reply_to.is_none() || self.reply_to == entry.reply_to)
    }
}

/// The contents of a log.
///
/// ```
/// use tmux_bus::{LogFilter, MessageLog};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("messages.jsonl");
/// std::fs::write(&path, "not an entry\n")?;
/// let log = MessageLog::load(&path, &LogFilter::default())?;
/// assert!(log.entries.is_empty());
/// assert_eq!(log.skipped[0].line, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct MessageLog {
    /// The entries that match the filter, in the order of the file.
    pub entries: Vec<MessageLogEntry>,
    /// The lines that are not entries: damage, or a last line without a newline.
    pub skipped: Vec<SkippedLine>,
}

/// A line of a log that is not an entry.
///
/// ```
/// use tmux_bus::{LogFilter, MessageLog};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("messages.jsonl");
/// std::fs::write(&path, "{\"timestamp\": ")?;
/// for skipped in MessageLog::load(&path, &LogFilter::default())?.skipped {
///     println!("line {}: {}", skipped.line, skipped.reason);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedLine {
    /// Number of the line, from 1.
    pub line: usize,
    /// The cause.
    pub reason: String,
}

impl MessageLog {
    /// Reads a log: the whole file at once, into memory. For a log of any length use
    /// [`follow`](Self::follow), which reads it in pieces.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be read or does not exist, [`Error::NotPrivate`] if others
    /// can write to it.
    pub fn load(path: impl AsRef<Path>, filter: &LogFilter) -> Result<Self, Error> {
        let path = path.as_ref();
        let mut file = private_file::open(path, File::options().read(true))?;
        let bytes = read_from(&mut file, 0, u64::MAX).map_err(Error::io("read", path))?;
        let mut log = Self::default();
        for (line, text) in json_lines::whole_lines(&bytes) {
            match serde_json::from_slice(text) {
                Ok(entry) if filter.matches(&entry) => log.entries.push(entry),
                Ok(_) => {}
                Err(error) => log.skip(line, error.to_string()),
            }
        }
        if !bytes.ends_with(b"\n") && !bytes.is_empty() {
            let line = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
            log.skip(line, "no newline: torn, or being written".to_owned());
        }
        Ok(log)
    }

    /// Follows a log from its beginning: the entries in it, and the entries that are added
    /// later.
    #[must_use]
    pub fn follow(path: impl Into<PathBuf>, filter: LogFilter) -> LogFollower {
        LogFollower::new(path.into(), filter)
    }

    fn skip(&mut self, line: usize, reason: String) {
        self.skipped.push(SkippedLine { line, reason });
    }
}

/// At most `length` bytes of a file from an offset on.
pub(super) fn read_from(file: &mut File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(offset))?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}
