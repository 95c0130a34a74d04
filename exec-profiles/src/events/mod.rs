//! One parser a format, each in its own file.

mod claude;
mod codex;
mod cursor;
mod gemini;
mod opencode;

use exec_core::{AgentEvent, EventParser, SessionIdResolver};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How an agent's output is read.
///
/// A line that a format does not know (and any line that is not a JSON object) gives no events; the
/// execution passes it on raw.
///
/// ```
/// use exec_core::AgentEvent;
/// use exec_profiles::EventFormat;
///
/// let mut parser = EventFormat::Codex.parser();
/// let events = parser.parse_line(r#"{"type":"thread.started","thread_id":"01a1e1b2"}"#);
/// assert!(matches!(&events[..], [AgentEvent::SessionStarted { session_id, .. }] if session_id == "01a1e1b2"));
/// assert!(parser.parse_line("Reading prompt from stdin...").is_empty());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventFormat {
    /// Claude Code's `stream-json`; Qwen Code and Amp print the same shape.
    Claude,
    /// `codex exec --json`.
    Codex,
    /// `gemini --output-format stream-json`.
    Gemini,
    /// `opencode run --format json`.
    Opencode,
    /// `cursor-agent --output-format=stream-json`.
    Cursor,
    /// No events: every line is raw.
    #[default]
    Raw,
}

impl EventFormat {
    /// A parser for the output of one launch.
    pub fn parser(self) -> Box<dyn EventParser> {
        match self {
            Self::Claude => Box::new(claude::ClaudeParser),
            Self::Codex => Box::<codex::CodexParser>::default(),
            Self::Gemini => Box::new(gemini::GeminiParser),
            Self::Opencode => Box::<opencode::OpencodeParser>::default(),
            Self::Cursor => Box::new(cursor::CursorParser),
            Self::Raw => Box::new(RawParser),
        }
    }

    /// Reads the session id from the agent's own 'session started' event.
    pub(crate) fn resolver(self) -> Box<dyn SessionIdResolver> {
        let mut parser = self.parser();
        Box::new(move |line: &str| {
            parser
                .parse_line(line)
                .into_iter()
                .find_map(|event| match event {
                    AgentEvent::SessionStarted { session_id, .. } => Some(session_id),
                    _ => None,
                })
        })
    }
}

struct RawParser;

impl EventParser for RawParser {
    fn parse_line(&mut self, _line: &str) -> Vec<AgentEvent> {
        Vec::new()
    }
}

/// A JSON object of the stream, read leniently: agents add and drop fields between versions.
struct Object(Map<String, Value>);

impl Object {
    fn parse(line: &str) -> Option<Self> {
        // Agents print plain text between the events; do not start a JSON parse for it.
        if !line.trim_start().starts_with('{') {
            return None;
        }
        serde_json::from_str(line).ok().map(Self)
    }

    fn text(&self, key: &str) -> Option<&str> {
        text(self.0.get(key))
    }

    /// What stands at `key`, or null.
    fn at(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }
}

fn text(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str)
}

fn owned(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The text of a value that is a string, a list of `{"text": …}` blocks, or something else (then
/// as JSON, so that nothing is lost).
fn flatten(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<_> = blocks.iter().map(flatten).collect();
            texts.join("\n")
        }
        Value::Object(block) => match text(block.get("text")) {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        },
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// The sum of the counters that are there.
fn sum(counters: &[&Value]) -> Option<u64> {
    counters
        .iter()
        .filter_map(|counter| counter.as_u64())
        .reduce(u64::saturating_add)
}
