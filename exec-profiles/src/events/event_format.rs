use exec_core::{AgentEvent, AgentEventKind, EventParser, SessionIdResolver};
use serde::{Deserialize, Serialize};

use super::claude::ClaudeRun;
use super::codex::CodexRun;
use super::cursor::CursorRun;
use super::gemini::GeminiRun;
use super::opencode::OpencodeRun;

/// The format of an agent's output.
///
/// A line that is not a JSON object, or that the format does not define, gives no events. The
/// execution still delivers that line unparsed.
///
/// ```
/// use exec_core::AgentEventKind;
/// use exec_profiles::EventFormat;
///
/// let mut parser = EventFormat::Codex.parser();
/// let events = parser.parse_line(r#"{"type":"thread.started","thread_id":"01a1e1b2"}"#);
/// let AgentEventKind::SessionStarted { session_id, .. } = &events[0].kind else {
///     panic!("{events:?}");
/// };
/// assert_eq!(session_id, "01a1e1b2");
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
            Self::Claude => Box::<ClaudeRun>::default(),
            Self::Codex => Box::<CodexRun>::default(),
            Self::Gemini => Box::<GeminiRun>::default(),
            Self::Opencode => Box::<OpencodeRun>::default(),
            Self::Cursor => Box::<CursorRun>::default(),
            Self::Raw => Box::new(RawLines),
        }
    }

    /// Reads the session id from the first [`AgentEventKind::SessionStarted`].
    pub(crate) fn resolver(self) -> Box<dyn SessionIdResolver> {
        let mut parser = self.parser();
        Box::new(move |line: &str| {
            // An event of a start is short. The parser of the launch reads long lines, too.
            if line.len() > LONGEST_START {
                return None;
            }
            let mut events = parser.parse_line(line).into_iter();
            events.find_map(|event| match event.kind {
                AgentEventKind::SessionStarted { session_id, .. } if event.parent.is_none() => {
                    Some(session_id)
                }
                _ => None,
            })
        })
    }
}

/// The longest line in which the start of a session is expected. Claude's has about 5 KB.
const LONGEST_START: usize = 1 << 20;

struct RawLines;

impl EventParser for RawLines {
    fn parse_line(&mut self, _line: &str) -> Vec<AgentEvent> {
        Vec::new()
    }
}
