use std::collections::HashSet;

use serde_json::Value;

use crate::conversation::{Error, Message, Role};

/// The ids in a list of messages, and the tool calls that have no result yet.
///
/// The rules of both large providers reduce to one: only results may stand between a call and its
/// result. Two invariants follow:
///
/// 1. Open calls belong to the newest message that is not a tool message. Every such message
///    closes the exchange before it, and [`check`](Self::check) refuses it while calls are open.
/// 2. `open` is a subset of `calls`. A result for a call in `calls` but not in `open` is therefore
///    a second result, and a result for any other call is unknown.
///
/// | message | `calls` | `open` |
/// |---|---|---|
/// | user | | |
/// | assistant, calls a and b | a, b | a, b |
/// | tool, result of b | a, b | a |
/// | user | *refused: `OpenCalls`* | |
/// | tool, result of b | *refused: `AlreadyAnswered`* | |
/// | tool, result of c | *refused: `UnknownCall`* | |
/// | tool, result of a | a, b | |
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairing {
    messages: HashSet<String>,
    calls: HashSet<String>,
    /// In the order of the calls.
    open: Vec<String>,
}

impl Pairing {
    /// The calls that have no result yet.
    pub(crate) fn open(&self) -> &[String] {
        &self.open
    }

    /// Whether `message` may come next.
    pub(crate) fn check(&self, message: &Message) -> Result<(), Error> {
        if let Some(id) = &message.id
            && self.messages.contains(id)
        {
            return Err(Error::DuplicateMessage { id: id.clone() });
        }
        check_shape(message)?;
        if message.role == Role::Tool {
            return self.check_results(message);
        }
        self.check_closed()?;
        let mut own = HashSet::new();
        for call in &message.tool_calls {
            if !call.id.is_empty() && (self.calls.contains(&call.id) || !own.insert(&call.id)) {
                return Err(Error::DuplicateCall {
                    call: call.id.clone(),
                });
            }
        }
        Ok(())
    }

    /// Whether every call has a result.
    pub(crate) fn check_closed(&self) -> Result<(), Error> {
        if self.open.is_empty() {
            return Ok(());
        }
        Err(Error::OpenCalls {
            calls: self.open.clone(),
        })
    }

    fn check_results(&self, message: &Message) -> Result<(), Error> {
        let mut own = HashSet::new();
        for result in &message.tool_results {
            let call = &result.tool_call_id;
            if !self.calls.contains(call) {
                return Err(Error::UnknownCall { call: call.clone() });
            }
            if !self.open.contains(call) || !own.insert(call) {
                return Err(Error::AlreadyAnswered { call: call.clone() });
            }
        }
        Ok(())
    }

    /// Adds a message that [`check`](Self::check) accepted.
    pub(crate) fn add(&mut self, message: &Message) {
        self.add_head(message);
        if message.role == Role::Tool {
            self.open
                .retain(|id| message.tool_results.iter().all(|r| r.tool_call_id != *id));
        } else {
            self.open = message.tool_calls.iter().map(|c| c.id.clone()).collect();
            self.calls.extend(self.open.iter().cloned());
        }
    }

    /// Adds a pinned message or a summary: it takes no part in an exchange, only its id counts.
    pub(crate) fn add_head(&mut self, message: &Message) {
        self.messages.extend(message.id.clone());
    }

    /// Removes a message that left the view. Its exchange must be closed and leave as a whole.
    pub(crate) fn remove(&mut self, message: &Message) {
        if let Some(id) = &message.id {
            self.messages.remove(id);
        }
        for call in &message.tool_calls {
            self.calls.remove(&call.id);
        }
    }
}

/// The rules for a single message, whatever comes before it.
fn check_shape(message: &Message) -> Result<(), Error> {
    let is_object = |args: &Value| matches!(args, Value::Object(_) | Value::Null);
    let reason = match message.role {
        Role::Tool if message.tool_results.is_empty() => "a tool message without results",
        Role::Tool if !message.tool_calls.is_empty() => "a tool message with tool calls",
        Role::Tool if message.content.is_some() => {
            "a tool message with text: providers accept only results"
        }
        Role::Tool => return Ok(()),
        _ if !message.tool_results.is_empty() => "tool results outside a tool message",
        Role::Assistant if !message.tool_calls.iter().all(|c| is_object(&c.args)) => {
            "tool arguments that are not an object"
        }
        Role::Assistant => return Ok(()),
        _ if !message.tool_calls.is_empty() => "tool calls outside an assistant message",
        _ => return Ok(()),
    };
    Err(Error::InvalidMessage { reason })
}
