//! The log of all messages: one JSON object a line.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    error::{Error, Result},
    message::{Message, MessageLogEntry, MessageType},
};

/// How often a follower looks at the file. Nothing runs when nobody follows.
const LOOK: Duration = Duration::from_millis(100);

/// Appends messages to a log that several processes may share.
#[derive(Debug, Clone)]
pub struct MessageLogger {
    path: PathBuf,
}

impl MessageLogger {
    /// Where the specification has it, relative to the cluster's folder.
    pub const DEFAULT_PATH: &str = "logs/messages.jsonl";

    /// A logger for a file. Its folder is created; the file is with the first message. What is
    /// created is for this user only: the log holds all that is said.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when the folder cannot be created.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(|source| Error::file("create", folder, source))?;
        }
        Ok(Self { path })
    }

    /// The log's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Logs a message and returns the id of its entry.
    ///
    /// # Errors
    ///
    /// [`Error::File`]; then the log is as it was.
    pub fn log(&self, message: &Message, message_type: MessageType) -> Result<String> {
        self.append(message, message_type, None)
    }

    /// As [`log`](Self::log), for the answer to an earlier entry.
    ///
    /// # Errors
    ///
    /// As [`log`](Self::log).
    pub fn log_reply(
        &self,
        message: &Message,
        message_type: MessageType,
        reply_to: &str,
    ) -> Result<String> {
        self.append(message, message_type, Some(reply_to))
    }

    fn append(
        &self,
        message: &Message,
        message_type: MessageType,
        reply_to: Option<&str>,
    ) -> Result<String> {
        let now = OffsetDateTime::now_utc();
        let failed = |source| Error::file("append to", &self.path, source);
        let entry = MessageLogEntry {
            timestamp: now
                .format(&Rfc3339)
                .map_err(|error| failed(io::Error::other(error)))?,
            id: uuid::Uuid::new_v4().to_string(),
            from_agent: message.from_agent.clone(),
            to_agent: message.to_agent.clone(),
            message_type,
            content: message.content.clone(),
            reply_to: reply_to.map(str::to_owned),
        };
        let mut line = serde_json::to_vec(&entry).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        append_line(&self.path, &line).map_err(failed)?;
        tracing::info!(
            target: "tmux_bus::messages",
            "[{}] {} → {} ({}): {}",
            entry.timestamp, entry.from_agent, entry.to_agent, entry.message_type, entry.content
        );
        Ok(entry.id)
    }
}

/// One writer at a time; a line is there whole or not at all.
fn append_line(path: &Path, line: &[u8]) -> io::Result<()> {
    let mut file = File::options()
        .create(true)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    file.lock()?;
    let end = file.seek(SeekFrom::End(0))?;
    let mut last = [b'\n'];
    if end > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    // A writer that was killed left half a line: it must not swallow this one.
    let written = if last == [b'\n'] {
        file.write_all(line)
    } else {
        file.write_all(&[b"\n", line].concat())
    };
    if written.is_err() {
        file.set_len(end)?;
    }
    written
}

/// Which entries are wanted. The default is all.
#[derive(Debug, Clone, Default)]
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

    fn wants(&self, entry: &MessageLogEntry) -> bool {
        fn is<T: PartialEq>(wanted: Option<&T>, value: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == value)
        }
        is(self.from.as_ref(), &entry.from_agent)
            && is(self.to.as_ref(), &entry.to_agent)
            && is(self.message_type.as_ref(), &entry.message_type)
            && (self.reply_to.is_none() || self.reply_to == entry.reply_to)
    }
}

/// What a log holds.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct MessageLog {
    /// The entries that were wanted, in the order of the file.
    pub entries: Vec<MessageLogEntry>,
    /// The lines that are no entries: a torn last line, or damage.
    pub skipped: Vec<SkippedLine>,
}

/// A line of a log that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedLine {
    /// Its number, from 1.
    pub line: usize,
    /// Why.
    pub reason: String,
}

impl MessageLog {
    /// Reads a log.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when the file cannot be read, also when there is none.
    pub fn read(path: impl AsRef<Path>, filter: &LogFilter) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|source| Error::file("read", path, source))?;
        let mut log = Self::default();
        for (index, line) in bytes.split(|&b| b == b'\n').enumerate() {
            match parse(line) {
                Ok(Some(entry)) if filter.wants(&entry) => log.entries.push(entry),
                Ok(_) => {}
                Err(error) => log.skipped.push(SkippedLine {
                    line: index + 1,
                    reason: error.to_string(),
                }),
            }
        }
        Ok(log)
    }

    /// Follows a log from its beginning: entries that are there and those that come.
    #[must_use]
    pub fn follow(path: impl Into<PathBuf>, filter: LogFilter) -> LogFollower {
        LogFollower {
            path: path.into(),
            filter,
            offset: 0,
            held: Vec::new(),
            ready: Vec::new().into(),
        }
    }
}

fn parse(line: &[u8]) -> serde_json::Result<Option<MessageLogEntry>> {
    if line.trim_ascii().is_empty() {
        Ok(None)
    } else {
        serde_json::from_slice(line).map(Some)
    }
}

/// Entries of a log as they come. Made by [`MessageLog::follow`].
#[derive(Debug)]
pub struct LogFollower {
    path: PathBuf,
    filter: LogFilter,
    offset: u64,
    /// The beginning of a line whose end is not there yet.
    held: Vec<u8>,
    ready: std::collections::VecDeque<MessageLogEntry>,
}

impl LogFollower {
    /// The next entry. Waits for it, and for the file if there is none.
    ///
    /// Lines that are no entries are passed over with a warning. A file that became shorter is read
    /// again from its beginning.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when the file cannot be read.
    ///
    /// # Cancel safety
    ///
    /// No entry is lost.
    pub async fn next(&mut self) -> Result<MessageLogEntry> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Ok(entry);
            }
            self.read_more()
                .map_err(|source| Error::file("read", &self.path, source))?;
            if self.ready.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    fn read_more(&mut self) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        if file.metadata()?.len() < self.offset {
            self.offset = 0;
            self.held.clear();
        }
        file.seek(SeekFrom::Start(self.offset))?;
        self.offset += file.read_to_end(&mut self.held)? as u64;
        while let Some(end) = memchr::memchr(b'\n', &self.held) {
            let line: Vec<u8> = self.held.drain(..=end).collect();
            match parse(&line) {
                Ok(Some(entry)) if self.filter.wants(&entry) => self.ready.push_back(entry),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "a line of the log is no entry");
                }
            }
        }
        Ok(())
    }
}
