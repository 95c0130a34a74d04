use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::frame::checksum;
use crate::{
    AgentId, AgentSnapshot, Error, SCHEMA_VERSION,
    backend::{self, Stamp, Write},
};

/// The key that this storage adds to the plain JSON of a snapshot.
pub(super) const KEY: &str = "file_storage";

/// The newest layout that this version writes and reads.
const FORMAT: u64 = 1;

/// What the storage itself has to know, kept in the JSON file under [`KEY`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) format: u64,
    /// Goes up with each rewrite; the log belongs to one.
    pub(super) generation: u64,
    /// Whether a log of this generation must be there.
    pub(super) log: bool,
    pub(super) epoch_floor: u64,
    pub(super) stamp: String,
    pub(super) archive: Archive,
}

/// The file with the messages that went out of view before the last rewrite.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Archive {
    /// The generation that started it: its name.
    pub(super) birth: u64,
    /// What belongs to it; a crash may have left more.
    pub(super) bytes: u64,
    /// The checksum of its last line.
    pub(super) crc: u32,
}

/// What the JSON file says, in the parts that a save is made of. The messages are not parsed:
/// most who read the file do not need them, and a load parses them as it puts all together.
pub(super) struct Document<'a> {
    /// `None` when somebody else wrote the file.
    pub(super) meta: Option<Meta>,
    pub(super) agent: AgentId,
    pub(super) stamp: Stamp,
    pub(super) state: String,
    pub(super) head: String,
    /// The messages in view, as they are in the file.
    pub(super) messages: Vec<Cow<'a, str>>,
}

/// The parts of a snapshot that become a file.
pub(super) struct Parts<'a> {
    pub(super) meta: &'a Meta,
    pub(super) stamp: &'a Stamp,
    pub(super) state: &'a str,
    pub(super) head: &'a str,
    pub(super) messages: &'a [Cow<'a, str>],
}

// A quote inside of a string is escaped, so these are the keys themselves.
const MEMORY: &str = "\"memory\":{";
const HISTORY: &str = "\"short_term_history\":[";

/// `crc32` is the last thing in the file, so that it covers everything else.
const CRC: &str = ",\"crc32\":\"";
const END: &str = "\"}}\n";

/// Writes the file: the snapshot's JSON with the messages put in as they are.
pub(super) fn write(parts: &Parts<'_>) -> Option<String> {
    let Parts {
        meta,
        stamp,
        state,
        head,
        messages,
    } = parts;
    let (before, after) = state.split_at(state.find(MEMORY)? + MEMORY.len());
    let head = head.strip_prefix('[')?.strip_suffix(']')?;
    let size: usize = messages.iter().map(|json| json.len() + 1).sum();
    let mut out = String::with_capacity(state.len() + head.len() + size + 1024);
    out.push_str(before);
    out.push_str(HISTORY);
    out.push_str(head);
    for (n, json) in messages.iter().enumerate() {
        if n > 0 || !head.is_empty() {
            out.push(',');
        }
        out.push_str(json);
    }
    out.push_str("],");
    out.push_str(&window(stamp));
    out.push_str(after.strip_suffix('}')?);
    let meta = serde_json::to_string(meta).ok()?;
    out.push_str(&format!(",\"{KEY}\":{}", meta.strip_suffix('}')?));
    let crc = checksum(0, out.as_bytes());
    out.push_str(&format!("{CRC}{crc:08x}{END}"));
    Some(out)
}

/// Where the messages of the file stand in the stream. Nothing when they are all of it.
fn window(stamp: &Stamp) -> String {
    if stamp.first == 0 && stamp.pinned == 0 && !stamp.summary {
        return String::new();
    }
    format!(
        "\"history_window\":{{\"pinned\":{},\"summary\":{},\"first\":{},\"link\":\"{:032x}\"}},",
        stamp.pinned, stamp.summary, stamp.first, stamp.first_link
    )
}

/// Reads the file; the error is what is wrong with it.
pub(super) fn read(text: &str) -> Result<Document<'_>, Problem> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        agent_id: AgentId,
        schema_version: Option<u64>,
        #[serde(borrow)]
        memory: RawMemory<'a>,
        file_storage: Option<Meta>,
    }
    #[derive(Deserialize)]
    struct RawMemory<'a> {
        #[serde(borrow, default)]
        short_term_history: Vec<&'a RawValue>,
    }

    let verified = verify(text);
    if verified == Some(false) {
        return Err(Problem::Damaged("its checksum does not match".to_owned()));
    }
    let raw: Raw<'_> = match serde_json::from_str(text) {
        Ok(raw) => raw,
        Err(error) => {
            // Knows better what is wrong, such as a newer version.
            AgentSnapshot::from_json(text)?;
            return Err(unreadable(&error.to_string()));
        }
    };
    if let Some(version) = raw.schema_version.filter(|found| *found > SCHEMA_VERSION) {
        return Err(Problem::Newer(version));
    }
    let Some(meta) = raw.file_storage else {
        return read_foreign(text);
    };
    if meta.format > FORMAT {
        return Err(Problem::Newer(meta.format));
    }
    if verified.is_none() {
        return Err(Problem::Damaged(format!(
            "it was changed by hand; to accept the change, remove its \"{KEY}\" key and its log"
        )));
    }
    let stamp = Stamp::from_text(&meta.stamp)
        .ok_or_else(|| Problem::Damaged("its stamp is not readable".to_owned()))?;

    let listed = raw.memory.short_term_history;
    let state = state_of(text, &stamp, &listed).ok_or_else(|| unreadable("it has other parts"))?;
    let head = stamp.pinned.saturating_add(u64::from(stamp.summary));
    if listed.len() as u64 != head.saturating_add(stamp.next - stamp.first) {
        return Err(Problem::Damaged("its messages are not complete".to_owned()));
    }
    // They stay as they are in the file, which need not be what this version would write for
    // the same message: the digests are made from the text.
    let mut listed = listed.into_iter().map(RawValue::get);
    let head: Vec<&str> = listed.by_ref().take(head as usize).collect();
    Ok(Document {
        meta: Some(meta),
        agent: raw.agent_id,
        stamp,
        state,
        head: format!("[{}]", head.join(",")),
        messages: listed.map(Cow::Borrowed).collect(),
    })
}

/// Somebody else wrote it. What a first save would write is what is there.
fn read_foreign(text: &str) -> Result<Document<'_>, Problem> {
    let mut snapshot = AgentSnapshot::from_json(text)?;
    snapshot.extra.remove(KEY);
    let Write {
        stamp,
        state,
        head,
        messages,
        ..
    } = backend::plan(&snapshot, None, 0)?
        .ok_or_else(|| Problem::Damaged("it is empty".to_owned()))?;
    Ok(Document {
        meta: None,
        agent: snapshot.agent_id,
        stamp,
        state,
        head: head.unwrap_or_else(|| "[]".to_owned()),
        messages: messages.into_iter().map(Cow::Owned).collect(),
    })
}

/// Takes out of a file what [`write`] put into the state.
fn state_of(text: &str, stamp: &Stamp, listed: &[&RawValue]) -> Option<String> {
    let (before, rest) = text.split_at(text.find(MEMORY)? + MEMORY.len());
    let listed: usize = listed.iter().map(|raw| raw.get().len() + 1).sum();
    let rest = rest
        .strip_prefix(HISTORY)?
        .get(listed.saturating_sub(1)..)?;
    let rest = rest.strip_prefix("],")?.strip_prefix(&window(stamp))?;
    let (after, _) = rest.rsplit_once(&format!(",\"{KEY}\":"))?;
    Some(format!("{before}{after}}}"))
}

fn unreadable(why: &str) -> Problem {
    Problem::Damaged(format!("its layout is not readable: {why}"))
}

impl Meta {
    pub(super) fn new(
        generation: u64,
        log: bool,
        epoch_floor: u64,
        stamp: &Stamp,
        archive: Archive,
    ) -> Self {
        Self {
            format: FORMAT,
            generation,
            log,
            epoch_floor,
            stamp: stamp.to_text(),
            archive,
        }
    }
}

/// Why a file is not a document.
#[derive(Debug)]
pub(super) enum Problem {
    Damaged(String),
    Newer(u64),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::UnsupportedVersion { found, .. } => Self::Newer(found),
            error => {
                let source = std::error::Error::source(&error);
                Self::Damaged(source.map_or_else(|| error.to_string(), ToString::to_string))
            }
        }
    }
}

/// Whether the checksum holds; `None` when there is none where it should be.
fn verify(text: &str) -> Option<bool> {
    let rest = text.strip_suffix(END)?;
    let (rest, crc) = rest.split_at_checked(rest.len().checked_sub(8)?)?;
    let rest = rest.strip_suffix(CRC)?;
    let crc = u32::from_str_radix(crc, 16).ok()?;
    Some(checksum(0, rest.as_bytes()) == crc)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::Message;

    /// What a save writes is what is read from the file, to the letter: digests are made from it.
    #[track_caller]
    fn check(snapshot: &AgentSnapshot) {
        let write = backend::plan(snapshot, None, 0).unwrap().unwrap();
        let messages: Vec<Cow<'_, str>> = write.messages.into_iter().map(Cow::Owned).collect();
        let view = &messages[(write.stamp.first - write.from) as usize..];
        let head = write.head.unwrap();
        let text = super::write(&Parts {
            meta: &Meta::new(1, true, 0, &write.stamp, Archive::default()),
            stamp: &write.stamp,
            state: &write.state,
            head: &head,
            messages: view,
        })
        .unwrap();
        let document = read(&text).unwrap();
        assert_eq!(document.agent, snapshot.agent_id);
        assert_eq!(document.stamp, write.stamp);
        assert_eq!(document.state, write.state);
        assert_eq!(document.head, head);
        assert_eq!(document.messages, view);
    }

    #[test]
    fn the_parts_of_a_file_are_those_that_were_written() {
        let mut snapshot = AgentSnapshot::new(AgentId::new("a").unwrap());
        check(&snapshot);
        snapshot.memory.short_term_history.push(Message::user("1"));
        check(&snapshot);
        snapshot
            .memory
            .short_term_history
            .pin(vec![Message::system("\"memory\":{"), Message::system("]")]);
        check(&snapshot);
        snapshot.memory.short_term_history.extend([
            Message::user("\"short_term_history\":["),
            Message::assistant("],\"history_window\":{"),
        ]);
        snapshot.memory.short_term_history.drop_front(1);
        snapshot
            .memory
            .short_term_history
            .set_summary(Some(Message::system("日本")));
        check(&snapshot);
        let variables = &mut snapshot.memory.working_variables;
        variables.insert("b".into(), json!({ KEY: { "memory": {} } }));
        variables.insert(KEY.into(), json!(",\"file_storage\":{"));
        snapshot
            .extra
            .insert("z".into(), json!({"a": 1, KEY: "\"}}\n"}));
        check(&snapshot);
        snapshot.memory.short_term_history.drop_front(9);
        check(&snapshot);
    }
}
