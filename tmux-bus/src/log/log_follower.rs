//! The follower of the message log.
//!
//! # Theory
//!
//! - **Invariant.** `offset` is the beginning of a line, unless `is_inside_long_line`. Each read
//!   begins there, so a line without a newline is read again: the next writer may replace it.
//! - **Bound and policy.** A read takes [`CHUNK`] bytes, or more if a line is longer, up to
//!   [`MAX_LINE`]. So the memory does not depend on the length of the file. A longer line is
//!   reported as an error, once; the next call continues after it.
//!
//! **Example.** With a chunk of 8 and a limit of 16: of `12345\n1234567890\n` the first read takes
//! `12345\n12` and the offset becomes 6. The next read takes `12345678`, has no newline, and is
//! repeated with 16 bytes: `1234567890\n`.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::file_watch::FileWatch;
use super::message::MessageLogEntry;
use super::message_log::{LogFilter, read_from};
use crate::Error;
use crate::shared::{json_lines, private_file};

/// Number of bytes that are read at a time.
const CHUNK: u64 = 1 << 20;

/// The longest line. An answer of 64 MiB, the default limit, has at most 384 MiB in JSON.
const MAX_LINE: u64 = 512 << 20;

/// Reads the entries of a log as they are added. Made by [`MessageLog::follow`].
///
/// On Linux it waits for file events (inotify); writes of another machine to a network file system
/// make none there. On other systems, and if the limit of inotify instances is reached, it reads the
/// file every 100 ms. Dropping it ends the watch.
///
/// ```
/// use tmux_bus::{LogFilter, Message, MessageLog, MessageLogger, MessageType};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("logs/messages.jsonl");
/// // The file and its folder need not exist yet.
/// let mut follower = MessageLog::follow(&path, LogFilter::default());
/// let logger = MessageLogger::open(&path)?;
/// logger.log(&Message::new("a", "b", "hello"), MessageType::Info)?;
/// assert_eq!(follower.next().await?.content, "hello");
/// # Ok(())
/// # }
/// ```
///
/// [`MessageLog::follow`]: crate::MessageLog::follow
#[derive(Debug)]
pub struct LogFollower {
    path: PathBuf,
    filter: LogFilter,
    /// The file that `offset` belongs to. It is held open, so that the inode of a removed file is
    /// not given to its successor.
    file: Option<File>,
    /// End of the last whole line that was read.
    offset: u64,
    /// The beginning of the line at `offset` was longer than the limit and is skipped.
    is_inside_long_line: bool,
    chunk: u64,
    max_line: u64,
    ready: VecDeque<MessageLogEntry>,
    /// Made by the first call of `next`, because it needs the runtime.
    watch: Option<FileWatch>,
}

impl LogFollower {
    pub(super) fn new(path: PathBuf, filter: LogFilter) -> Self {
        Self {
            path,
            filter,
            file: None,
            offset: 0,
            is_inside_long_line: false,
            chunk: CHUNK,
            max_line: MAX_LINE,
            ready: VecDeque::new(),
            watch: None,
        }
    }

    /// Returns the next entry. Waits for it, and for the file if it does not exist.
    ///
    /// Lines that are not entries are skipped with a warning. A file that was replaced or became
    /// shorter is read from its beginning.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be read, or if a line has more than 512 MiB; the next call
    /// continues after that line. [`Error::NotPrivate`] if others can write to the file.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no entry is lost.
    pub async fn next(&mut self) -> Result<MessageLogEntry, Error> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Ok(entry);
            }
            // Before the read: a change after it must wake us.
            let watch = self.watch.get_or_insert_with(FileWatch::new);
            watch.arm(&self.path);
            if !self.read_more()?
                && let Some(watch) = &self.watch
            {
                watch.changed().await;
            }
        }
    }

    /// Reads the next lines; `false` if there is no further whole line.
    fn read_more(&mut self) -> Result<bool, Error> {
        let mut options = File::options();
        let Some(mut file) = private_file::open_existing(&self.path, options.read(true))? else {
            return Ok(false);
        };
        let inspect = |file: &File| file.metadata().map_err(Error::io("inspect", &self.path));
        let metadata = inspect(&file)?;
        let is_same = match &self.file {
            Some(held) => identity(&inspect(held)?) == identity(&metadata),
            None => false,
        };
        if !is_same || metadata.len() < self.offset {
            self.offset = 0;
            self.is_inside_long_line = false;
        }
        let bytes = self
            .read_lines(&mut file)
            .map_err(Error::io("read", &self.path))?;
        self.file = Some(file);
        let Some(end) = memchr::memrchr(b'\n', &bytes) else {
            return self.without_newline(bytes.len() as u64);
        };
        self.offset += end as u64 + 1;
        let mut whole = &bytes[..=end];
        if std::mem::take(&mut self.is_inside_long_line) {
            let rest_of_line = memchr::memchr(b'\n', whole).map_or(0, |at| at + 1);
            whole = &whole[rest_of_line..];
        }
        for (_, line) in json_lines::whole_lines(whole) {
            match serde_json::from_slice(line) {
                Ok(entry) if self.filter.matches(&entry) => self.ready.push_back(entry),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "skipping a line of the log that is not an entry");
                }
            }
        }
        Ok(true)
    }

    /// Reads a chunk, or more if it has no newline.
    fn read_lines(&self, file: &mut File) -> io::Result<Vec<u8>> {
        let mut length = self.chunk;
        loop {
            let bytes = read_from(file, self.offset, length)?;
            let is_end = (bytes.len() as u64) < length;
            if is_end || length >= self.max_line || memchr::memchr(b'\n', &bytes).is_some() {
                return Ok(bytes);
            }
            length = (length * 2).min(self.max_line);
        }
    }

    /// `count` bytes were read and have no newline: the line is not complete, or too long.
    fn without_newline(&mut self, count: u64) -> Result<bool, Error> {
        if count < self.max_line {
            return Ok(false);
        }
        self.offset += count;
        if std::mem::replace(&mut self.is_inside_long_line, true) {
            return Ok(true);
        }
        let reason = format!("it has more than {} bytes", self.max_line);
        let source = io::Error::new(io::ErrorKind::InvalidData, reason);
        Err(Error::io("read a line of", &self.path)(source))
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::log::MessageLogger;
    use crate::log::{Message, MessageType};

    #[tokio::test]
    async fn a_line_beyond_the_limit_is_reported_once_and_the_next_entries_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("messages.jsonl");
        let logger = MessageLogger::open(&path).unwrap();
        let log = |content: String| {
            let message = Message::new("a", "b", content);
            logger.log(&message, MessageType::Info).unwrap();
        };
        log("first".to_owned());
        log("x".repeat(5_000));
        log("second".to_owned());
        log("y".repeat(700));
        let mut follower = LogFollower::new(path, LogFilter::default());
        (follower.chunk, follower.max_line) = (64, 1024);

        assert_eq!(follower.next().await.unwrap().content, "first");
        let error = follower.next().await.unwrap_err();
        assert!(error.to_string().starts_with("cannot read a line of "));
        assert_eq!(follower.next().await.unwrap().content, "second");
        let longer_than_a_chunk = follower.next().await.unwrap().content;
        assert_eq!(longer_than_a_chunk, "y".repeat(700));
    }

    /// The same behaviour with and without file events.
    #[tokio::test]
    async fn a_follower_waits_for_folder_file_and_entries() {
        for watch in [FileWatch::new(), FileWatch::default()] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a/b/messages.jsonl");
            let mut follower = LogFollower::new(path.clone(), LogFilter::default());
            follower.watch = Some(watch);
            let following = tokio::spawn(async move {
                let mut contents = Vec::new();
                while contents.len() < 40 {
                    contents.push(follower.next().await.unwrap().content);
                }
                contents
            });
            // Each step is a state in which the follower can be waiting.
            for step in ["a", "a/b"] {
                std::fs::create_dir(dir.path().join(step)).unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let logger = MessageLogger::open(&path).unwrap();
            for number in 0..40 {
                let message = Message::new("a", "b", number.to_string());
                logger.log(&message, MessageType::Info).unwrap();
                if number % 4 == 0 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
            let limit = Duration::from_secs(40);
            let contents = tokio::time::timeout(limit, following).await.unwrap();
            let expected: Vec<_> = (0..40).map(|number| number.to_string()).collect();
            assert_eq!(contents.unwrap(), expected);
        }
    }
}
