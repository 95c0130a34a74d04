//! One line of the log: the changes of one save.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::snapshot_parts::SnapshotParts;
use crate::backend::{SavePlan, Stamp};

#[derive(Deserialize)]
struct LogRecord<'a> {
    stamp: &'a str,
    #[serde(borrow)]
    head: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    state: &'a RawValue,
}

/// The record of a save that appends to the stream.
pub(super) fn encode(plan: &SavePlan) -> String {
    let mut out = format!("{{\"stamp\":\"{}\"", plan.stamp.to_text());
    if let Some(head) = &plan.head {
        out.push_str(",\"head\":");
        out.push_str(head);
    }
    out.push_str(",\"messages\":[");
    out.push_str(&plan.messages.join(","));
    out.push_str("],\"state\":");
    out.push_str(&plan.body);
    out.push('}');
    out
}

/// Applies records in their order; `None` if one cannot be read or messages are missing.
pub(super) fn replay(records: &[&str], parts: &mut SnapshotParts) -> Option<()> {
    for record in records {
        let record: LogRecord<'_> = serde_json::from_str(record).ok()?;
        let messages = record.messages.iter().map(|json| json.get().to_owned());
        parts.messages.extend(messages);
        if let Some(head) = record.head {
            parts.head = head.get().to_owned();
        }
        parts.body = record.state.get().to_owned();
        parts.stamp = Stamp::from_text(record.stamp)?;
    }
    let end = parts.from + parts.messages.len() as u64;
    (end == parts.stamp.next && parts.stamp.first >= parts.from).then_some(())
}
