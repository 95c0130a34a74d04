use std::mem;

use serde_json::{Value, json};

use crate::conversation::view::{Ids, rename_calls};
use crate::conversation::{Message, Part, Role, ToolCallRequest, ToolCallResult};

/// A tool call that was answered with an error result. The tool may or may not have run.
///
/// ```
/// use agent_snapshot::conversation::{Message, ToolCallRequest, repair};
/// use serde_json::json;
///
/// let call = ToolCallRequest::new("call_1", "search", json!({}));
/// let repaired = repair([Message::assistant("").with_tool_calls(vec![call])]);
/// let aborted = &repaired.aborted[0];
/// assert_eq!((&*aborted.call, &*aborted.name), ("call_1", "search"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AbortedCall {
    /// The id of the call.
    pub call: String,
    /// The name of the tool.
    pub name: String,
}

/// The result of [`repair()`].
///
/// ```
/// use agent_snapshot::conversation::{Message, ToolCallResult, repair};
/// use serde_json::json;
///
/// let stray = Message::tool(vec![ToolCallResult::new("call_1", json!("found"))]);
/// let repaired = repair([Message::user("Look it up."), stray]);
/// assert_eq!(repaired.messages.len(), 1);
/// assert_eq!(repaired.dropped, ["call_1"]);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Repaired {
    /// The repaired list.
    pub messages: Vec<Message>,
    /// The new ids of the calls whose id another call had, or that had none. A renamed call has its
    /// old id in its [`former_ids`](ToolCallRequest::former_ids).
    pub renamed: Vec<String>,
    /// The calls that had no result, and were answered with an error result.
    pub aborted: Vec<AbortedCall>,
    /// The ids of the calls whose result stood elsewhere, and was moved behind its call.
    pub moved: Vec<String>,
    /// The call ids of the results that were removed: the list has no such call, or the call has
    /// another result.
    pub dropped: Vec<String>,
}

/// Repairs a list of messages: every call gets an id of its own, every call is followed by its
/// result, and every result follows its call.
///
/// A result whose id several calls have had belongs to the newest message before it that has such a
/// call without a result, and there to the first. Arguments that are not an object are put into one,
/// as `input`. Text and parts of a tool message become a part of its last result. A message whose id
/// another message has gets a new id. Tool calls of a user, and results outside of tool messages, are
/// not repaired.
///
/// Idempotent, and the same for the same list: an added message depends on the calls alone. A
/// list without faults is unchanged.
///
/// ```
/// use agent_snapshot::conversation::{Message, ToolCallRequest, repair};
/// use serde_json::json;
///
/// let call = ToolCallRequest::new("call_1", "search", json!({}));
/// let repaired = repair([
///     Message::user("Look it up."),
///     Message::assistant("").with_tool_calls(vec![call.clone()]),
///     Message::user("Are you there?"),
///     Message::assistant("").with_tool_calls(vec![call]),
/// ]);
/// assert_eq!(repaired.aborted[0].call, "call_1");
/// assert_eq!(repaired.messages[2].tool_results[0].tool_call_id, "call_1");
/// assert_eq!(repaired.renamed, ["call_1_2"]);
/// assert_eq!(repaired.messages[5].tool_results[0].tool_call_id, "call_1_2");
/// ```
// Two passes, because the result of a call may stand anywhere in the list. The first splits the list
// into exchanges and gives each result to an exchange: to the newest one if it has an open call for
// it, else to an older one, where it is late. A result that no exchange wants is early or
// unknown. The second
// pass writes the exchanges and completes each with its late results, with early ones, or with error
// results. Afterwards every call has exactly one result.
//
//     user, assistant(a, b), tool(b), user, tool(a), tool(b)
//
// First pass: `user`, `assistant(a, b) tool(b)` with a late, `user`, and an unwanted b. Second
// pass: `user, assistant(a, b), tool(b), tool(a), user`; a is moved, the second b is dropped.
#[must_use]
pub fn repair(messages: impl IntoIterator<Item = Message>) -> Repaired {
    let mut repaired = Repaired {
        messages: Vec::new(),
        renamed: Vec::new(),
        aborted: Vec::new(),
        moved: Vec::new(),
        dropped: Vec::new(),
    };
    let mut exchanges: Vec<Exchange> = Vec::new();
    let mut unwanted = Vec::new();
    let (mut message_ids, mut call_ids) = (Ids::default(), Ids::default());
    for mut message in messages {
        message.join_texts();
        make_id_unique(&mut message, &mut message_ids);
        if message.role == Role::Tool {
            give_results(message, &mut exchanges, &mut unwanted);
            continue;
        }
        for call in &mut message.tool_calls {
            if call.id.is_empty() {
                "call".clone_into(&mut call.id);
            }
            if !matches!(call.args, Value::Object(_) | Value::Null) {
                call.args = json!({"input": mem::take(&mut call.args)});
            }
        }
        let renamed = rename_calls(&mut message, &call_ids, String::new);
        repaired.renamed.extend(renamed);
        for call in &message.tool_calls {
            call_ids.insert(&call.id);
        }
        exchanges.push(Exchange::new(message));
    }
    for exchange in exchanges {
        exchange.write(&mut unwanted, &mut repaired);
    }
    let dropped = unwanted.into_iter().map(|result| result.tool_call_id);
    repaired.dropped.extend(dropped);
    repaired
}

fn make_id_unique(message: &mut Message, used: &mut Ids) {
    let Some(id) = &mut message.id else {
        return;
    };
    let old = id.clone();
    let mut number = 2_u64;
    while !used.insert(id) {
        *id = format!("{old}_{number}");
        number += 1;
    }
}

/// Gives the results of a tool message to the exchanges that want them.
fn give_results(
    mut message: Message,
    exchanges: &mut [Exchange],
    unwanted: &mut Vec<ToolCallResult>,
) {
    let mut results = mem::take(&mut message.tool_results);
    let content = message.content.take().filter(|text| !text.is_empty());
    let content = content.filter(|_| !message.has_text_parts());
    if let Some(last) = results.last_mut() {
        last.parts.extend(content.map(Part::text));
        last.parts.append(&mut message.parts);
    }
    for mut result in results {
        let Some((newest, older)) = exchanges.split_last_mut() else {
            unwanted.push(result);
            continue;
        };
        if let Some(id) = newest.wanted(&result.tool_call_id) {
            newest.open.retain(|open| *open != id);
            result.tool_call_id = id;
            message.tool_results.push(result);
            continue;
        }
        let wanted = |exchange: &&mut Exchange| exchange.wanted(&result.tool_call_id).is_some();
        match older.iter_mut().rev().find(wanted) {
            Some(exchange) => exchange.add_late(result),
            None => unwanted.push(result),
        }
    }
    if let Some(newest) = exchanges.last_mut()
        && !message.tool_results.is_empty()
    {
        newest.results.push(message);
    }
}

/// A message that is not a tool message, and the tool messages that follow it.
struct Exchange {
    first: Message,
    results: Vec<Message>,
    /// The ids of the calls that have no result in this exchange.
    open: Vec<String>,
    /// Results that stood behind a later exchange.
    late: Vec<ToolCallResult>,
}

impl Exchange {
    fn new(first: Message) -> Self {
        Self {
            open: first.tool_calls.iter().map(|c| c.id.clone()).collect(),
            results: Vec::new(),
            late: Vec::new(),
            first,
        }
    }

    /// The id of the call for which a result with `id` is wanted.
    fn wanted(&self, id: &str) -> Option<String> {
        let is_late = |call: &str| self.late.iter().any(|r| r.tool_call_id == call);
        let is_open = |call: &&ToolCallRequest| self.open.contains(&call.id) && !is_late(&call.id);
        let open = || self.first.tool_calls.iter().filter(is_open);
        let by_id = open().find(|call| call.id == id || id.is_empty());
        let by_former = || open().find(|call| call.former_ids.iter().any(|old| old == id));
        by_id.or_else(by_former).map(|call| call.id.clone())
    }

    fn add_late(&mut self, mut result: ToolCallResult) {
        if let Some(id) = self.wanted(&result.tool_call_id) {
            result.tool_call_id = id;
            self.late.push(result);
        }
    }

    /// Writes the exchange, and behind it the results of its open calls.
    fn write(self, unwanted: &mut Vec<ToolCallResult>, repaired: &mut Repaired) {
        let completion = self.complete(unwanted, repaired);
        repaired.messages.push(self.first);
        repaired.messages.extend(self.results);
        repaired.messages.extend(completion);
    }

    /// The message that answers the open calls.
    fn complete(
        &self,
        unwanted: &mut Vec<ToolCallResult>,
        repaired: &mut Repaired,
    ) -> Option<Message> {
        if self.open.is_empty() {
            return None;
        }
        let (mut message, mut aborted) = abort(&self.first, &self.open);
        for result in &mut message.tool_results {
            let call = &result.tool_call_id;
            let late = self.late.iter().find(|late| late.tool_call_id == *call);
            let early = || {
                let at = unwanted.iter().position(|r| r.tool_call_id == *call)?;
                Some(unwanted.remove(at))
            };
            if let Some(found) = late.cloned().or_else(early) {
                aborted.retain(|aborted| aborted.call != *call);
                repaired.moved.push(call.clone());
                *result = found;
            }
        }
        repaired.aborted.append(&mut aborted);
        Some(message)
    }
}

/// A message with error results for the calls of `asked` that are in `open`.
pub(crate) fn abort(asked: &Message, open: &[String]) -> (Message, Vec<AbortedCall>) {
    let calls = asked.tool_calls.iter().filter(|c| open.contains(&c.id));
    let result = |call: &ToolCallRequest| {
        let text = "aborted: no result was recorded; the tool may or may not have run";
        ToolCallResult::error(&call.id, json!(text))
    };
    let mut message = Message::tool(calls.clone().map(result).collect());
    // Neither a new id nor the current time: every process must make the same message.
    message.id = open.first().map(|call| format!("aborted-{call}"));
    message.timestamp.clone_from(&asked.timestamp);
    let aborted = calls.map(|call| AbortedCall {
        call: call.id.clone(),
        name: call.name.clone(),
    });
    (message, aborted.collect())
}
