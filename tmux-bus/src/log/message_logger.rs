use std::io;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::message::{Message, MessageLogEntry, MessageType};
use crate::Error;
use crate::shared::{json_lines, private_file};

/// Appends messages to a log that several processes may share.
///
/// One JSON object a line. A line is written whole or not at all; a torn line of a writer that was
/// killed is removed by the next one. The file is created with mode 0600, because it holds the text
/// of all messages, and refused if others can write to it.
///
/// ```
/// use tmux_bus::{LogFilter, Message, MessageLog, MessageLogger, MessageType};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join(MessageLogger::DEFAULT_PATH);
/// let logger = MessageLogger::open(&path)?;
/// let id = logger.log(&Message::new("a", "b", "a task"), MessageType::Task)?;
/// logger.log_reply(&Message::new("b", "a", "done"), MessageType::Result, &id)?;
///
/// let answers = MessageLog::load(&path, &LogFilter::default().reply_to(id))?;
/// assert_eq!(answers.entries[0].content, "done");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MessageLogger {
    path: PathBuf,
}

impl MessageLogger {
    /// The specified path, relative to the folder of the cluster.
    pub const DEFAULT_PATH: &str = "logs/messages.jsonl";

    /// A logger for a file. A missing folder is created with mode 0700; the file is created by the
    /// first message.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the folder cannot be created.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        // An existing folder may be anything, such as a project that a group shares: the file is
        // checked at each write.
        if let Some(folder) = path.parent()
            && !folder.as_os_str().is_empty()
            && !folder.exists()
        {
            private_file::create_folder(folder)?;
        }
        Ok(Self { path })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Logs a message and returns the id of its entry. Blocks the calling thread while another process
    /// writes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::NotPrivate`]; the log is unchanged.
    pub fn log(&self, message: &Message, message_type: MessageType) -> Result<String, Error> {
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
    ) -> Result<String, Error> {
        self.append(message, message_type, Some(reply_to))
    }

    /// Logs that a message was refused because of its sender: it is in no pane, and the user should know of it.
    pub(crate) fn log_refusal(&self, from: &str, to: &str, error: &Error) {
        let is_refusal = matches!(
            error,
            Error::Cycle { .. } | Error::NotAllowed { .. } | Error::NotTheSender { .. }
        );
        if !is_refusal {
            return;
        }
        let refusal = Message::new(from, to, error.to_string());
        if let Err(error) = self.log(&refusal, MessageType::from("refused")) {
            tracing::error!(%error, "cannot log a refusal");
        }
    }

    fn append(
        &self,
        message: &Message,
        message_type: MessageType,
        reply_to: Option<&str>,
    ) -> Result<String, Error> {
        let failed = |source| Error::io("append to", &self.path)(source);
        let timestamp = OffsetDateTime::now_utc().format(&Rfc3339);
        let entry = MessageLogEntry {
            timestamp: timestamp.map_err(|error| failed(io::Error::other(error)))?,
            id: uuid::Uuid::new_v4().to_string(),
            from_agent: message.from_agent.clone(),
            to_agent: message.to_agent.clone(),
            message_type,
            content: message.content.clone(),
            reply_to: reply_to.map(str::to_owned),
        };
        let line = serde_json::to_vec(&entry).map_err(|error| failed(error.into()))?;
        let file = json_lines::open_locked(&self.path)?;
        json_lines::append(&file, &line).map_err(failed)?;
        tracing::info!(
            target: "tmux_bus::messages",
            "[{}] {} → {} ({}): {}",
            entry.timestamp, entry.from_agent, entry.to_agent, entry.message_type, entry.content
        );
        Ok(entry.id)
    }
}
