//! The follower of the message log.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::file_watch::FileWatch;
use super::message::MessageLogEntry;
use super::message_log::{LogFilter, read_from};
use crate::error::Error;
use crate::shared::{json_lines, private_file};

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
    /// End of the last whole line that was read. A tail without a newline is read again: the next
    /// writer may replace it.
    offset: u64,
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
    /// [`Error::Io`] if the file cannot be read, [`Error::NotPrivate`] if others can write to it.
    ///
    /// # Cancel safety
    ///
    /// No entry is lost.
    pub async fn next(&mut self) -> Result<MessageLogEntry, Error> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Ok(entry);
            }
            // Before the read: a change after it must wake us.
            let watch = self.watch.get_or_insert_with(FileWatch::new);
            watch.arm(&self.path);
            self.read_more()?;
            if self.ready.is_empty()
                && let Some(watch) = &self.watch
            {
                watch.changed().await;
            }
        }
    }

    fn read_more(&mut self) -> Result<(), Error> {
        let mut options = File::options();
        let Some(mut file) = private_file::open_existing(&self.path, options.read(true))? else {
            return Ok(());
        };
        let inspect = |file: &File| file.metadata().map_err(Error::io("inspect", &self.path));
        let metadata = inspect(&file)?;
        let is_same = match &self.file {
            Some(held) => identity(&inspect(held)?) == identity(&metadata),
            None => false,
        };
        if !is_same || metadata.len() < self.offset {
            self.offset = 0;
        }
        let bytes = read_from(&mut file, self.offset).map_err(Error::io("read", &self.path))?;
        self.file = Some(file);
        for (_, line) in json_lines::whole_lines(&bytes) {
            match serde_json::from_slice(line) {
                Ok(entry) if self.filter.matches(&entry) => self.ready.push_back(entry),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "skipping a line of the log that is not an entry");
                }
            }
        }
        let whole = memchr::memrchr(b'\n', &bytes).map_or(0, |at| at + 1);
        self.offset += whole as u64;
        Ok(())
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::log::message::{Message, MessageType};
    use crate::log::message_logger::MessageLogger;

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
