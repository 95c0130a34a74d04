use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::checksummed_lines::checksum;
use super::snapshot_parts::SnapshotParts;
use crate::backend::{self, SavePlan, Stamp};
use crate::snapshot::SCHEMA_VERSION;
use crate::{AgentId, AgentSnapshot, Error};

/// The key that this storage adds to the plain JSON of a snapshot.
pub(super) const KEY: &str = "file_storage";

/// The newest layout that this version writes and reads.
const FORMAT: u64 = 1;

/// The bookkeeping of the storage, in the JSON file under [`KEY`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StorageMeta {
    pub(super) format: u64,
    /// Grows with each rewrite. The log belongs to one generation.
    pub(super) generation: u64,
    /// Whether the log of this generation must exist.
    pub(super) log: bool,
    pub(super) epoch_floor: u64,
    pub(super) stamp: String,
    pub(super) archive: Archive,
}

/// The file with the messages that were out of view at a rewrite.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Archive {
    /// The generation that started the file, which is part of its name.
    pub(super) birth: u64,
    /// The valid length. A crash may have left more.
    pub(super) bytes: u64,
    /// The checksum of the last line.
    pub(super) crc: u32,
}

/// The contents of the JSON file. The messages stay unparsed: most readers do not need them.
pub(super) struct SnapshotDocument {
    /// `None` if another program wrote the file.
    pub(super) meta: Option<StorageMeta>,
    pub(super) agent: AgentId,
    pub(super) parts: SnapshotParts,
}

/// Why a file is not a document.
#[derive(Debug)]
pub(super) enum Unreadable {
    Damaged(String),
    /// The version of a newer format.
    Newer(u64),
}

// A quote inside a JSON string is escaped, so these texts occur in JSON only as keys.
const MEMORY: &str = "\"memory\":{";
const HISTORY: &str = "\"short_term_history\":[";

/// `crc32` is the last key of the file, so that it covers everything else.
const CRC: &str = ",\"crc32\":\"";
const END: &str = "\"}}\n";

/// Writes the file: the body with the messages inserted as they are. `None` if the body is not
/// the JSON of a snapshot.
///
/// ```text
/// {"agent_id":…,"memory":{"short_term_history":[head, messages],window,…},…,"file_storage":{…,"crc32":"…"}}
/// ```
pub(super) fn write(meta: &StorageMeta, parts: &SnapshotParts) -> Option<String> {
    let (before, after) = parts.body.split_at(parts.body.find(MEMORY)? + MEMORY.len());
    let head = parts.head.strip_prefix('[')?.strip_suffix(']')?;
    let mut out = [before, HISTORY, head].concat();
    if !head.is_empty() && !parts.messages.is_empty() {
        out.push(',');
    }
    out.push_str(&parts.messages.join(","));
    out.push_str("],");
    out.push_str(&window(&parts.stamp));
    out.push_str(after.strip_suffix('}')?);
    let meta = serde_json::to_string(meta).ok()?;
    out.push_str(&format!(",\"{KEY}\":{}", meta.strip_suffix('}')?));
    let crc = checksum(0, out.as_bytes());
    out.push_str(&format!("{CRC}{crc:08x}{END}"));
    Some(out)
}

/// The position of the messages in the stream. Absent if they are the whole stream.
fn window(stamp: &Stamp) -> String {
    if stamp.first == 0 && stamp.pinned == 0 && !stamp.summary {
        return String::new();
    }
    format!(
        "\"history_window\":{{\"pinned\":{},\"summary\":{},\"first\":{},\"link\":\"{:032x}\"}},",
        stamp.pinned, stamp.summary, stamp.first, stamp.first_link
    )
}

pub(super) fn read(text: &str) -> Result<SnapshotDocument, Unreadable> {
    #[derive(Deserialize)]
    struct Fields<'a> {
        agent_id: AgentId,
        schema_version: Option<u64>,
        #[serde(borrow)]
        memory: MemoryFields<'a>,
        file_storage: Option<StorageMeta>,
    }
    #[derive(Deserialize)]
    struct MemoryFields<'a> {
        #[serde(borrow, default)]
        short_term_history: Vec<&'a RawValue>,
    }

    let verified = verify(text);
    if verified == Some(false) {
        return Err(Unreadable::Damaged(
            "its checksum does not match".to_owned(),
        ));
    }
    let fields: Fields<'_> = match serde_json::from_str(text) {
        Ok(fields) => fields,
        Err(error) => {
            // Its error is more exact: it names a newer version, for instance.
            AgentSnapshot::from_json(text)?;
            return Err(bad_layout(&error.to_string()));
        }
    };
    if let Some(version) = fields
        .schema_version
        .filter(|found| *found > SCHEMA_VERSION)
    {
        return Err(Unreadable::Newer(version));
    }
    let Some(meta) = fields.file_storage else {
        return read_foreign(text);
    };
    if meta.format > FORMAT {
        return Err(Unreadable::Newer(meta.format));
    }
    if verified.is_none() {
        return Err(Unreadable::Damaged(format!(
            "it was changed by hand; to accept the change, remove its \"{KEY}\" key and its log"
        )));
    }
    let stamp = Stamp::from_text(&meta.stamp)
        .ok_or_else(|| Unreadable::Damaged("its stamp is not readable".to_owned()))?;

    let listed = fields.memory.short_term_history;
    let body = cut_body(text, &stamp, &listed)
        .ok_or_else(|| bad_layout("its parts are in another order"))?;
    let head_len = stamp.pinned.saturating_add(u64::from(stamp.summary));
    if listed.len() as u64 != head_len.saturating_add(stamp.next - stamp.first) {
        return Err(Unreadable::Damaged(
            "its messages are not complete".to_owned(),
        ));
    }
    let mut listed = listed.into_iter().map(RawValue::get);
    let head: Vec<&str> = listed.by_ref().take(head_len as usize).collect();
    Ok(SnapshotDocument {
        meta: Some(meta),
        agent: fields.agent_id,
        parts: SnapshotParts {
            from: stamp.first,
            stamp,
            body,
            head: format!("[{}]", head.join(",")),
            messages: listed.map(str::to_owned).collect(),
        },
    })
}

/// Reads a file of another program: its parts are the parts that a first save would write.
fn read_foreign(text: &str) -> Result<SnapshotDocument, Unreadable> {
    let mut snapshot = AgentSnapshot::from_json(text)?;
    snapshot.extra.remove(KEY);
    let SavePlan {
        stamp,
        body,
        head,
        messages,
        from,
        ..
    } = backend::plan(&snapshot, None, 0)?
        .ok_or_else(|| Unreadable::Damaged("it is empty".to_owned()))?;
    Ok(SnapshotDocument {
        meta: None,
        agent: snapshot.agent_id,
        parts: SnapshotParts {
            stamp,
            body,
            head: head.unwrap_or_else(|| "[]".to_owned()),
            messages,
            from,
        },
    })
}

/// Cuts out of a file what [`write`] inserted into the body.
fn cut_body(text: &str, stamp: &Stamp, listed: &[&RawValue]) -> Option<String> {
    let (before, rest) = text.split_at(text.find(MEMORY)? + MEMORY.len());
    let listed: usize = listed.iter().map(|raw| raw.get().len() + 1).sum();
    let rest = rest
        .strip_prefix(HISTORY)?
        .get(listed.saturating_sub(1)..)?;
    let rest = rest.strip_prefix("],")?.strip_prefix(&window(stamp))?;
    let (after, _) = rest.rsplit_once(&format!(",\"{KEY}\":"))?;
    Some(format!("{before}{after}}}"))
}

fn bad_layout(why: &str) -> Unreadable {
    Unreadable::Damaged(format!("its layout is not readable: {why}"))
}

impl StorageMeta {
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

impl From<Error> for Unreadable {
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

/// Whether the checksum matches; `None` if the file does not end with one.
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

    /// Digests are made from the texts, so the texts that are read must be those that were
    /// written.
    #[track_caller]
    fn check(snapshot: &AgentSnapshot) {
        let plan = backend::plan(snapshot, None, 0).unwrap().unwrap();
        let meta = StorageMeta::new(1, true, 0, &plan.stamp, Archive::default());
        let mut parts = SnapshotParts::before(&plan);
        parts.apply(plan);
        parts.messages.drain(..parts.hidden());
        let document = read(&write(&meta, &parts).unwrap()).unwrap();
        assert_eq!(document.agent, snapshot.agent_id);
        assert_eq!(document.parts.stamp, parts.stamp);
        assert_eq!(document.parts.body, parts.body);
        assert_eq!(document.parts.head, parts.head);
        assert_eq!(document.parts.messages, parts.messages);
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
