use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::frame::checksum;
use crate::{
    AgentSnapshot, Error, History,
    backend::{self, Stamp},
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

/// What the JSON file says.
pub(super) struct Document {
    /// `None` when somebody else wrote the file.
    pub(super) meta: Option<Meta>,
    pub(super) stamp: Stamp,
    pub(super) snapshot: AgentSnapshot,
    pub(super) head: String,
    /// The messages in view, as they are in the file.
    pub(super) messages: Vec<String>,
}

/// The parts of a snapshot that become a file.
pub(super) struct Parts<'a> {
    pub(super) meta: &'a Meta,
    pub(super) stamp: &'a Stamp,
    pub(super) state: &'a str,
    pub(super) head: &'a str,
    pub(super) messages: &'a [String],
}

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
    // A quote inside of a string is escaped, so this is the key itself.
    let memory = "\"memory\":{";
    let at = state.find(memory)? + memory.len();
    let (before, after) = state.split_at(at);
    let head = head.strip_prefix('[')?.strip_suffix(']')?;
    let size: usize = messages.iter().map(|json| json.len() + 1).sum();
    let mut out = String::with_capacity(state.len() + head.len() + size + 1024);
    out.push_str(before);
    out.push_str("\"short_term_history\":[");
    out.push_str(head);
    for (n, json) in messages.iter().enumerate() {
        if n > 0 || !head.is_empty() {
            out.push(',');
        }
        out.push_str(json);
    }
    out.push_str("],");
    if stamp.first > 0 || stamp.pinned > 0 || stamp.summary {
        out.push_str(&format!(
            "\"history_window\":{{\"pinned\":{},\"summary\":{},\"first\":{},\"link\":\"{:032x}\"}},",
            stamp.pinned, stamp.summary, stamp.first, stamp.first_link
        ));
    }
    out.push_str(after.strip_suffix('}')?);
    let meta = serde_json::to_string(meta).ok()?;
    out.push_str(&format!(",\"{KEY}\":{}", meta.strip_suffix('}')?));
    let crc = checksum(0, out.as_bytes());
    out.push_str(&format!("{CRC}{crc:08x}{END}"));
    Some(out)
}

/// Reads the file; the error is what is wrong with it.
pub(super) fn read(text: &str) -> Result<Document, Problem> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        memory: RawMemory<'a>,
        file_storage: Option<Meta>,
    }
    #[derive(Deserialize)]
    struct RawMemory<'a> {
        #[serde(borrow, default)]
        short_term_history: Vec<&'a RawValue>,
    }

    if let Some(false) = verify(text) {
        return Err(Problem::Damaged("its checksum does not match".to_owned()));
    }
    let mut snapshot = AgentSnapshot::from_json(text).map_err(Problem::from)?;
    let raw: Raw<'_> = serde_json::from_str(text)
        .map_err(|error| Problem::Damaged(format!("its layout is not readable: {error}")))?;
    snapshot.extra.remove(KEY);

    let Some(meta) = raw.file_storage else {
        // Somebody else wrote it. What a first save would write is what is there.
        let write = backend::plan(&snapshot, None, 0)
            .map_err(Problem::from)?
            .ok_or_else(|| Problem::Damaged("it is empty".to_owned()))?;
        return Ok(Document {
            meta: None,
            stamp: write.stamp,
            head: write.head.unwrap_or_else(|| "[]".to_owned()),
            messages: write.messages,
            snapshot,
        });
    };
    if meta.format > FORMAT {
        return Err(Problem::Newer(meta.format));
    }
    if verify(text).is_none() {
        return Err(Problem::Damaged(format!(
            "it was changed by hand; to accept the change, remove its \"{KEY}\" key and its log"
        )));
    }
    let stamp = Stamp::from_text(&meta.stamp)
        .ok_or_else(|| Problem::Damaged("its stamp is not readable".to_owned()))?;

    // The links are made from the text in the file, which need not be what this version
    // would write for the same message.
    let mut raw = raw.memory.short_term_history.into_iter().map(RawValue::get);
    let history = &snapshot.memory.short_term_history;
    let head: Vec<&str> = raw.by_ref().take(history.head().count()).collect();
    let head = format!("[{}]", head.join(","));
    let messages: Vec<String> = raw.map(str::to_owned).collect();
    let mut rebuilt = History::from_parts(
        history.pinned().to_vec(),
        history.summary().cloned(),
        stamp.first,
        stamp.first_link,
    );
    for ((_, message), json) in history.tail().zip(&messages) {
        rebuilt.push_stored(message.clone(), json);
    }
    let complete = rebuilt.next_seq() == stamp.next
        && rebuilt.link_before(stamp.next) == Some(stamp.link)
        && (snapshot.tick_index, snapshot.revision, snapshot.epoch)
            == (stamp.tick, stamp.revision, stamp.epoch);
    if !complete {
        return Err(Problem::Damaged(
            "its messages do not match their digest".to_owned(),
        ));
    }
    snapshot.memory.short_term_history = rebuilt;
    Ok(Document {
        meta: Some(meta),
        stamp,
        snapshot,
        head,
        messages,
    })
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
