use exec_core::{AgentEvent, EventParser, SessionIdResolver};
use serde::{Deserialize, Serialize};

use super::codex::CodexRun;
use super::event_object::EventObject;
use super::opencode::OpencodeRun;
use super::{claude, cursor, gemini};

/// The format of an agent's output.
///
/// A line that is not a JSON object, or that the format does not define, gives no events. The
/// execution still delivers that line unparsed.
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
    /// `claude --output-format=stream-json`; Qwen Code and Amp use the same format.
    Claude,
    /// `codex exec --json`.
    Codex,
    /// `gemini --output-format=stream-json`.
    Gemini,
    /// `opencode run --format json`.
    Opencode,
    /// `cursor-agent --output-format=stream-json`.
    Cursor,
    /// No events: every line is delivered unparsed.
    #[default]
    Raw,
}

impl EventFormat {
    /// A parser for the output of one launch.
    #[must_use]
    pub fn parser(self) -> Box<dyn EventParser> {
        match self {
            Self::Claude => object_parser(claude::parse),
            Self::Codex => {
                let mut run = CodexRun::default();
                object_parser(move |event| run.parse(event))
            }
            Self::Gemini => object_parser(gemini::parse),
            Self::Opencode => {
                let mut run = OpencodeRun::default();
                object_parser(move |event| run.parse(event))
            }
            Self::Cursor => object_parser(cursor::parse),
            Self::Raw => Box::new(LineParser(|_: &str| Vec::new())),
        }
    }

    /// Reads the session id from the first [`AgentEvent::SessionStarted`].
    pub(crate) fn resolver(self) -> Box<dyn SessionIdResolver> {
        let mut parser = self.parser();
        Box::new(move |line: &str| {
            let mut events = parser.parse_line(line).into_iter();
            events.find_map(|event| match event {
                AgentEvent::SessionStarted { session_id, .. } => Some(session_id),
                _ => None,
            })
        })
    }
}

struct LineParser<F>(F);

impl<F: FnMut(&str) -> Vec<AgentEvent> + Send> EventParser for LineParser<F> {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        (self.0)(line)
    }
}

fn object_parser(
    mut parse: impl FnMut(&EventObject) -> Vec<AgentEvent> + Send + 'static,
) -> Box<dyn EventParser> {
    Box::new(LineParser(move |line: &str| {
        EventObject::parse(line).map_or_else(Vec::new, |event| parse(&event))
    }))
}
