use std::{
    collections::{HashMap, HashSet},
    mem,
};

use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{Message, Role, ToolCallResult};

/// A call that was answered as aborted. Whether its tool ran is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AbortedCall {
    /// The call's id.
    pub call: String,
    /// The tool's name.
    pub name: String,
}

/// A list that providers take, and what had to be done to it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Repaired {
    /// The list.
    pub messages: Vec<Message>,
    /// The calls that were answered as aborted.
    pub aborted: Vec<AbortedCall>,
    /// Ids of calls whose result stood elsewhere and was moved behind its call.
    pub moved: Vec<String>,
    /// Ids under which a result was left out: there is no such call, or it has a result.
    pub dropped: Vec<String>,
}

/// Makes a list of whatever origin acceptable for providers: every call is followed by its
/// result, and every result follows its call.
///
/// A missing result is added, marked as an error, with an id that depends on the call alone:
/// repairing the same list twice gives the same messages. A list that needs nothing comes
/// back as it is.
///
/// ```
/// use agent_snapshot::conversation::{Message, ToolCallRequest, repair};
/// use serde_json::json;
///
/// let call = ToolCallRequest::new("call_1", "search", json!({}));
/// let repaired = repair([
///     Message::user("look it up"),
///     Message::assistant("").with_tool_calls(vec![call]),
///     Message::user("are you there?"),
/// ]);
/// assert_eq!(repaired.aborted[0].call, "call_1");
/// assert_eq!(repaired.messages[2].tool_results[0].tool_call_id, "call_1");
/// ```
pub fn repair(messages: impl IntoIterator<Item = Message>) -> Repaired {
    let mut messages: Vec<Message> = messages.into_iter().collect();
    let mut late = take_misplaced(&mut messages);
    let mut repaired = Repaired {
        messages: Vec::with_capacity(messages.len()),
        aborted: Vec::new(),
        moved: Vec::new(),
        dropped: Vec::new(),
    };
    let mut exchange = Exchange::default();
    for message in messages {
        if message.role == Role::Tool {
            if !message.tool_results.is_empty() {
                exchange.answer(&message);
                repaired.messages.push(message);
            }
            continue;
        }
        mem::take(&mut exchange).close(&mut late, &mut repaired);
        if message.role == Role::Assistant && !message.tool_calls.is_empty() {
            exchange = Exchange::open(message.clone());
        }
        repaired.messages.push(message);
    }
    exchange.close(&mut late, &mut repaired);
    repaired
        .dropped
        .extend(late.into_iter().map(|result| result.tool_call_id));
    repaired
}

/// Takes out the results that do not answer an open call of the exchange they stand in.
fn take_misplaced(messages: &mut [Message]) -> Vec<ToolCallResult> {
    let mut late = Vec::new();
    let mut open = HashSet::new();
    for message in messages {
        if message.role == Role::Tool {
            let results = mem::take(&mut message.tool_results);
            let (placed, misplaced) = results
                .into_iter()
                .partition(|result: &ToolCallResult| open.remove(&result.tool_call_id));
            message.tool_results = placed;
            late.extend::<Vec<_>>(misplaced);
        } else {
            open = message.tool_calls.iter().map(|c| c.id.clone()).collect();
        }
    }
    late
}

/// An assistant message whose results are being read.
#[derive(Default)]
struct Exchange {
    asked: Option<Message>,
    answered: HashSet<String>,
}

impl Exchange {
    fn open(asked: Message) -> Self {
        Self {
            asked: Some(asked),
            answered: HashSet::new(),
        }
    }

    fn answer(&mut self, message: &Message) {
        let ids = message.tool_results.iter().map(|r| r.tool_call_id.clone());
        self.answered.extend(ids);
    }

    fn close(self, late: &mut Vec<ToolCallResult>, repaired: &mut Repaired) {
        let Some(asked) = self.asked else { return };
        let missing = asked.tool_calls.iter().map(|call| &call.id);
        let missing: Vec<String> = missing
            .filter(|id| !self.answered.contains(*id))
            .cloned()
            .collect();
        if missing.is_empty() {
            return;
        }
        let (mut message, mut aborted) = abort(&asked, &missing);
        let mut found: HashMap<String, ToolCallResult> = HashMap::new();
        late.retain(|result| {
            let wanted =
                missing.contains(&result.tool_call_id) && !found.contains_key(&result.tool_call_id);
            if wanted {
                found.insert(result.tool_call_id.clone(), result.clone());
            }
            !wanted
        });
        for result in &mut message.tool_results {
            if let Some(real) = found.remove(&result.tool_call_id) {
                aborted.retain(|aborted| aborted.call != real.tool_call_id);
                repaired.moved.push(real.tool_call_id.clone());
                *result = real;
            }
        }
        repaired.messages.push(message);
        repaired.aborted.append(&mut aborted);
    }
}

/// The results that end `calls`, of those that `asked` makes.
pub(super) fn abort(asked: &Message, calls: &[String]) -> (Message, Vec<AbortedCall>) {
    let mut aborted = Vec::with_capacity(calls.len());
    let mut results = Vec::with_capacity(calls.len());
    for call in asked.tool_calls.iter().filter(|c| calls.contains(&c.id)) {
        aborted.push(AbortedCall {
            call: call.id.clone(),
            name: call.name.clone(),
        });
        results.push(ToolCallResult::error(
            &call.id,
            json!("aborted: no result was recorded; the tool may or may not have run"),
        ));
    }
    let mut message = Message::tool(results);
    // Nothing of here and now: whoever repairs this list gets the same message.
    message.id = calls.first().map(|call| format!("aborted-{call}"));
    message.timestamp.clone_from(&asked.timestamp);
    (message, aborted)
}

/// The current time as RFC 3339.
pub(super) fn now() -> String {
    OffsetDateTime::now_utc()
        .format(&Rfc3339)
        .unwrap_or_default()
}
