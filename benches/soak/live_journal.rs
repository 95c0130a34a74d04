//! The record of a live session that survives a kill of its host: the prompts and the ends of their
//! turns. It is compared with the conversation that the agent has stored.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use examples::Result;
use exec_core::SessionId;
use serde_json::Value;

/// What the end of a turn says about its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// The agent has it, once.
    Delivered,
    /// The agent has it at most once.
    Uncertain,
    /// The agent does not have it.
    NotDelivered,
}

/// The journal of one session after the other.
pub(crate) struct LiveJournal {
    path: PathBuf,
    /// The folder of the conversations.
    home: PathBuf,
    /// Distinguishes the keys of this process.
    life: String,
    asked: u64,
}

/// A prompt in the journal.
struct SentPrompt {
    /// Its line.
    number: usize,
    end: Option<TurnEnd>,
    /// How often the agent got it.
    received: u64,
}

impl SentPrompt {
    fn new(number: usize) -> Self {
        Self {
            number,
            end: None,
            received: 0,
        }
    }
}

/// A session, and the prompts whose turns have no end.
struct CheckedSession {
    session: Option<SessionId>,
    open: Vec<String>,
}

impl LiveJournal {
    pub(crate) fn new(path: PathBuf, home: &Path) -> Self {
        Self {
            path,
            home: home.to_owned(),
            life: uuid::Uuid::new_v4().simple().to_string(),
            asked: 0,
        }
    }

    /// A session begins or is resumed.
    pub(crate) fn begin(&mut self, session: &SessionId) -> Result<()> {
        self.note(&format!("session {session}"))
    }

    /// The key of the next prompt, which must be its first word.
    pub(crate) fn asks(&mut self) -> Result<String> {
        self.asked += 1;
        let key = format!("{}-{}", self.life, self.asked);
        self.note(&format!("asked {key}"))?;
        Ok(key)
    }

    /// A turn has ended.
    pub(crate) fn ended(&self, key: &str, end: TurnEnd) -> Result<()> {
        let end = match end {
            TurnEnd::Delivered => "delivered",
            TurnEnd::Uncertain => "uncertain",
            TurnEnd::NotDelivered => "dropped",
        };
        self.note(&format!("{end} {key}"))
    }

    /// Checks a session that was closed, and removes its records.
    pub(crate) fn check_closed(&self) -> Result<()> {
        let checked = self.check()?;
        if let Some(key) = checked.open.first() {
            return Err(format!("turn {key} has no end").into());
        }
        // The journal first: with a journal and no conversation, the successor of a host that is killed
        // here would miss every prompt.
        std::fs::remove_file(&self.path)?;
        if let Some(session) = checked.session {
            std::fs::remove_file(self.conversation(&session))?;
        }
        Ok(())
    }

    /// Checks a session whose host was killed. Returns the session if the agent knows it: it has got
    /// a prompt.
    pub(crate) fn check_killed(&self) -> Result<Option<SessionId>> {
        let checked = self.check()?;
        for key in &checked.open {
            self.ended(key, TurnEnd::Uncertain)?;
        }
        let known = |session: &SessionId| self.conversation(session).exists();
        let session = checked.session.filter(known);
        if session.is_none() {
            let _ = std::fs::remove_file(&self.path);
        }
        Ok(session)
    }

    /// Compares the journal with the conversation.
    fn check(&self) -> Result<CheckedSession> {
        let (mut session, mut prompts) = (None, BTreeMap::new());
        for (number, line) in read(&self.path)?.lines().enumerate() {
            let (what, key) = line.split_once(' ').unwrap_or((line, ""));
            match what {
                "session" => session = Some(key.parse::<SessionId>()?),
                "asked" => _ = prompts.insert(key.to_owned(), SentPrompt::new(number)),
                end => {
                    let prompt = prompts.get_mut(key).ok_or("an end without a prompt")?;
                    prompt.end = Some(match end {
                        "delivered" => TurnEnd::Delivered,
                        "uncertain" => TurnEnd::Uncertain,
                        _ => TurnEnd::NotDelivered,
                    });
                }
            }
        }
        if let Some(session) = &session {
            let mut last = 0;
            for line in read(&self.conversation(session))?.lines() {
                // Other values are the output of tools.
                let Value::String(prompt) = serde_json::from_str(line)? else {
                    continue;
                };
                let key = prompt.split(' ').next().unwrap_or_default();
                let sent = prompts.get_mut(key);
                let sent =
                    sent.ok_or_else(|| format!("the agent got {key}, which was not sent"))?;
                sent.received += 1;
                if sent.number < last {
                    return Err(format!("the agent got prompt {key} after a later one").into());
                }
                last = sent.number;
            }
        }
        let mut open = Vec::new();
        for (key, SentPrompt { end, received, .. }) in prompts {
            let right = match end {
                Some(TurnEnd::Delivered) => received == 1,
                Some(TurnEnd::NotDelivered) => received == 0,
                Some(TurnEnd::Uncertain) | None => received <= 1,
            };
            if !right {
                let what = format!("the agent got prompt {key} {received} times; its end: {end:?}");
                return Err(what.into());
            }
            if end.is_none() {
                open.push(key);
            }
        }
        Ok(CheckedSession { session, open })
    }

    fn conversation(&self, session: &SessionId) -> PathBuf {
        self.home.join(format!("{}.jsonl", session.native_id()))
    }

    /// In one write: a kill leaves all of the line or nothing.
    fn note(&self, line: &str) -> Result<()> {
        let mut options = OpenOptions::new();
        let mut file: File = options.create(true).append(true).open(&self.path)?;
        Ok(file.write_all(format!("{line}\n").as_bytes())?)
    }
}

/// The text of a file, empty if there is none.
fn read(path: &Path) -> Result<String> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        text => Ok(text?),
    }
}
