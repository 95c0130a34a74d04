use std::mem;

use serde_json::json;

use crate::conversation::{Message, Role, ToolCallRequest, ToolCallResult};

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
    /// The calls that had no result, and were answered with an error result.
    pub aborted: Vec<AbortedCall>,
    /// The ids of the calls whose result stood elsewhere, and was moved behind its call.
    pub moved: Vec<String>,
    /// The call ids of the results that were removed: the list has no such call, or the call has
    /// another result.
    pub dropped: Vec<String>,
}

/// Repairs a list of messages, so that every call is followed by its result and every result
/// follows its call.
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
///     Message::assistant("").with_tool_calls(vec![call]),
///     Message::user("Are you there?"),
/// ]);
/// assert_eq!(repaired.aborted[0].call, "call_1");
/// assert_eq!(repaired.messages[2].tool_results[0].tool_call_id, "call_1");
/// ```
// Two passes, because the result of a call may stand anywhere in the list. The first splits the list
// into exchanges and collects misplaced results. The second writes the exchanges and completes each
// with what was collected, or with error results. Between the passes every result is either in its
// own exchange or in `misplaced`; afterwards every call has exactly one result.
//
//     user, assistant(a, b), tool(b), user, tool(a), tool(b)
//
// First pass: `user`, `assistant(a, b) tool(b)` with a open, `user`, and misplaced a, b. Second
// pass: `user, assistant(a, b), tool(b), tool(a), user`; a is moved, the second b is dropped.
#[must_use]
pub fn repair(messages: impl IntoIterator<Item = Message>) -> Repaired {
    let mut exchanges: Vec<Exchange> = Vec::new();
    let mut misplaced = Vec::new();
    for mut message in messages {
        if message.role != Role::Tool {
            exchanges.push(Exchange::new(message));
            continue;
        }
        let (placed, others): (Vec<_>, Vec<_>) = mem::take(&mut message.tool_results)
            .into_iter()
            .partition(|result| exchanges.last_mut().is_some_and(|e| e.close(result)));
        misplaced.extend(others);
        message.tool_results = placed;
        if let Some(exchange) = exchanges.last_mut()
            && !message.tool_results.is_empty()
        {
            exchange.results.push(message);
        }
    }

    let mut repaired = Repaired {
        messages: Vec::new(),
        aborted: Vec::new(),
        moved: Vec::new(),
        dropped: Vec::new(),
    };
    for exchange in exchanges {
        let completion = exchange.complete(&mut misplaced, &mut repaired);
        repaired.messages.push(exchange.first);
        repaired.messages.extend(exchange.results);
        repaired.messages.extend(completion);
    }
    let dropped = misplaced.into_iter().map(|result| result.tool_call_id);
    repaired.dropped.extend(dropped);
    repaired
}

/// A message that is not a tool message, and the tool messages that follow it.
struct Exchange {
    first: Message,
    results: Vec<Message>,
    /// The ids of the calls that have no result in this exchange.
    open: Vec<String>,
}

impl Exchange {
    fn new(first: Message) -> Self {
        Self {
            open: first.tool_calls.iter().map(|c| c.id.clone()).collect(),
            results: Vec::new(),
            first,
        }
    }

    /// Whether the result answers an open call, which is closed then.
    fn close(&mut self, result: &ToolCallResult) -> bool {
        let before = self.open.len();
        self.open.retain(|call| *call != result.tool_call_id);
        self.open.len() < before
    }

    /// The message that answers the open calls.
    fn complete(
        &self,
        misplaced: &mut Vec<ToolCallResult>,
        repaired: &mut Repaired,
    ) -> Option<Message> {
        if self.open.is_empty() {
            return None;
        }
        let (mut message, mut aborted) = abort(&self.first, &self.open);
        for result in &mut message.tool_results {
            let call = &result.tool_call_id;
            if let Some(index) = misplaced.iter().position(|r| r.tool_call_id == *call) {
                aborted.retain(|aborted| aborted.call != *call);
                repaired.moved.push(call.clone());
                *result = misplaced.remove(index);
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
