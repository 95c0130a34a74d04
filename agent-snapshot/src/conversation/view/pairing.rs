use std::collections::HashSet;

use serde_json::Value;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128;

use crate::conversation::{Error, Message, Part, Role, ToolCallRequest};

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
///
/// Only [`rename`](Self::rename) changes a message. Models and adapters reuse call ids, so a call
/// whose id is in use gets a new one. Its `former_ids` lead a result with the old id to it, as long as
/// it is open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairing {
    messages: Ids,
    calls: Ids,
    /// In the order of the calls.
    open: Vec<String>,
    /// The former ids of the open calls, with their ids.
    former: Vec<(String, String)>,
}

/// A set of ids. It holds digests: a trim then frees no strings, and a copy is one allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids(HashSet<u128>);

impl Ids {
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.0.contains(&xxh3_128(id.as_bytes()))
    }

    /// `false` if the id was there.
    pub(crate) fn insert(&mut self, id: &str) -> bool {
        self.0.insert(xxh3_128(id.as_bytes()))
    }

    fn remove(&mut self, id: &str) {
        self.0.remove(&xxh3_128(id.as_bytes()));
    }
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
            if !call.id.is_empty() && (self.calls.contains(&call.id) || !own.insert(&*call.id)) {
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

    /// Gives every call an id that is not in use, and every result the id of its call. Returns the
    /// new ids of the calls that had another one.
    ///
    /// A result belongs to the open call with its id, or else to the first open call that had this
    /// id. All open calls are of the newest message.
    pub(crate) fn rename(&self, message: &mut Message) -> Vec<String> {
        let mut taken: Vec<String> = Vec::new();
        for result in &mut message.tool_results {
            let id = &result.tool_call_id;
            let free = |id: &String| self.open.contains(id) && !taken.contains(id);
            if !free(id) {
                let mut former = self.former.iter();
                if let Some((_, id)) = former.find(|(old, new)| old == id && free(new)) {
                    result.tool_call_id.clone_from(id);
                }
            }
            taken.push(result.tool_call_id.clone());
        }
        rename_calls(message, &self.calls, || {
            // Providers accept at most 40 characters of `[A-Za-z0-9_-]`.
            format!("call_{}", Uuid::new_v4().simple())
        })
    }

    /// Adds a message that [`check`](Self::check) accepted.
    pub(crate) fn add(&mut self, message: &Message) {
        self.add_head(message);
        if message.role == Role::Tool {
            self.open
                .retain(|id| message.tool_results.iter().all(|r| r.tool_call_id != *id));
        } else {
            self.open = message.tool_calls.iter().map(|c| c.id.clone()).collect();
            self.former = message.tool_calls.iter().flat_map(former).collect();
            for id in &self.open {
                self.calls.insert(id);
            }
        }
    }

    /// Adds a pinned message or a summary: it takes no part in an exchange, only its id counts.
    pub(crate) fn add_head(&mut self, message: &Message) {
        if let Some(id) = &message.id {
            self.messages.insert(id);
        }
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

fn former(call: &ToolCallRequest) -> impl Iterator<Item = (String, String)> {
    let former = call.former_ids.iter();
    former.map(|old| (old.clone(), call.id.clone()))
}

/// Renames the calls whose id is in `used`, or is the id of an earlier call of the message, and gives
/// an id from `make` to calls without one. Returns the new ids of renamed calls.
pub(crate) fn rename_calls(
    message: &mut Message,
    used: &Ids,
    make: impl Fn() -> String,
) -> Vec<String> {
    let mut own = HashSet::new();
    let mut renamed = Vec::new();
    // The places of calls have ids too: the nth place of an id is that of the nth call with it.
    let mut places = message.parts.iter_mut().filter_map(|part| match part {
        Part::Call { id } => Some(id),
        _ => None,
    });
    let mut places: Vec<&mut String> = places.by_ref().collect();
    for call in &mut message.tool_calls {
        let place = places.iter().position(|place| **place == call.id);
        let place = place.map(|at| places.remove(at));
        if call.id.is_empty() {
            call.id = make();
        } else if used.contains(&call.id) || own.contains(&call.id) {
            let is_free = |id: &String| !used.contains(id) && !own.contains(id);
            let new = (2_u64..).map(|n| format!("{}_{n}", call.id)).find(is_free);
            let new = new.unwrap_or_else(&make);
            call.former_ids.push(std::mem::replace(&mut call.id, new));
            renamed.push(call.id.clone());
        }
        if let Some(place) = place {
            place.clone_from(&call.id);
        }
        own.insert(call.id.clone());
    }
    renamed
}

/// The rules for a single message, whatever comes before it.
fn check_shape(message: &Message) -> Result<(), Error> {
    let is_object = |args: &Value| matches!(args, Value::Object(_) | Value::Null);
    let has = |kind: fn(&Part) -> bool| message.parts.iter().any(kind);
    let reason = match message.role {
        _ if !message.content_agrees_with_parts() => "a text that differs from its text parts",
        Role::Tool if !message.parts.is_empty() => {
            "a tool message with parts: they belong to its results"
        }
        Role::System if has(is_media) => "an image or a document in a system message",
        Role::System | Role::User if has(|part| matches!(part, Part::Reasoning { .. })) => {
            "reasoning outside an assistant message"
        }
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

fn is_media(part: &Part) -> bool {
    matches!(part, Part::Image { .. } | Part::Document { .. })
}
