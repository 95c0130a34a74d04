use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Message, Role};
use crate::Error;

/// Which ids a list holds and which calls wait for their results.
///
/// The rules of both big providers come down to one: between a call and its result there is
/// nothing but results. So open calls are always those of the newest assistant message.
#[derive(Debug, Clone, Default)]
pub(super) struct Pairing {
    messages: HashSet<String>,
    calls: HashSet<String>,
    /// The unanswered calls of the newest exchange, in the order in which they were made.
    open: Vec<String>,
}

impl Pairing {
    /// The calls that wait for a result.
    pub(super) fn open(&self) -> &[String] {
        &self.open
    }

    /// Whether `message` may come next.
    pub(super) fn check(&self, message: &Message) -> Result<(), Error> {
        if let Some(id) = &message.id
            && self.messages.contains(id)
        {
            return Err(Error::DuplicateMessage { id: id.clone() });
        }
        check_shape(message)?;
        if message.role == Role::Tool {
            return self.check_results(message);
        }
        if !self.open.is_empty() {
            return Err(Error::OpenCalls {
                calls: self.open.clone(),
            });
        }
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

    fn check_results(&self, message: &Message) -> Result<(), Error> {
        let mut open: HashMap<&str, bool> = self.open.iter().map(|id| (&**id, true)).collect();
        for result in &message.tool_results {
            let call = &result.tool_call_id;
            match open.get_mut(&**call) {
                Some(waits) if *waits => *waits = false,
                Some(_) => return Err(Error::AlreadyAnswered { call: call.clone() }),
                None if self.calls.contains(call) => {
                    return Err(Error::AlreadyAnswered { call: call.clone() });
                }
                None => return Err(Error::UnknownCall { call: call.clone() }),
            }
        }
        Ok(())
    }

    /// Takes up a message that [`check`](Self::check) let through.
    pub(super) fn add(&mut self, message: &Message) {
        self.add_head(message);
        if message.role == Role::Tool {
            self.open
                .retain(|id| message.tool_results.iter().all(|r| r.tool_call_id != *id));
        } else {
            self.open.clear();
            for call in &message.tool_calls {
                self.calls.insert(call.id.clone());
                self.open.push(call.id.clone());
            }
        }
    }

    /// Takes up a message that stands before the list: only its id counts.
    pub(super) fn add_head(&mut self, message: &Message) {
        self.messages.extend(message.id.clone());
    }

    /// Forgets a message that left the list from its front.
    pub(super) fn remove(&mut self, message: &Message) {
        if let Some(id) = &message.id {
            self.messages.remove(id);
        }
        for call in &message.tool_calls {
            self.calls.remove(&call.id);
        }
    }
}

/// What holds for a message whatever comes before it.
fn check_shape(message: &Message) -> Result<(), Error> {
    let reason = match message.role {
        Role::Tool if message.tool_results.is_empty() => "a tool message without results",
        Role::Tool if !message.tool_calls.is_empty() => "a tool message with tool calls",
        Role::Tool if message.content.is_some() => {
            "a tool message with text: providers take results only"
        }
        Role::Tool => return Ok(()),
        _ if !message.tool_results.is_empty() => "tool results outside of a tool message",
        Role::Assistant => {
            let args = message.tool_calls.iter().map(|call| &call.args);
            if args
                .into_iter()
                .all(|a| matches!(a, Value::Object(_) | Value::Null))
            {
                return Ok(());
            }
            "tool arguments that are not an object"
        }
        _ if !message.tool_calls.is_empty() => "tool calls outside of an assistant message",
        _ => return Ok(()),
    };
    Err(Error::InvalidMessage { reason })
}
