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
/// execution still delivers that line unparsed. Lines are parsed without a tree of values, so that
/// the events of a line need about as much memory as the line. A line has at most 1000 events.
///
/// # Usage
///
/// Agents report tokens and cost in different ways. The events and the exit report have one form,
/// [`UsageTotals`](exec_core::UsageTotals): the total of the run and of the session so far. *Exact*
/// is what the agent itself reports; *sum* is what the service adds up over the runs that it knows
/// of.
///
/// | agent | during the run | at the end: run | at the end: session | sub-agents | cost |
/// |---|---|---|---|---|---|
/// | Claude Code | per message; output tokens are a lower bound | exact | exact (since 2.1.3xx), else sum | counted | exact, estimated by Claude |
/// | Codex | nothing | difference to the run before | exact | as Codex counts them | none |
/// | Codex, live | per request | exact | as Codex counts it, without sub-agents | counted in the run | none |
/// | Gemini CLI | nothing | exact | sum | as Gemini counts them | none |
/// | Opencode | exact, per step | exact | sum | counted if it prints their steps | exact |
/// | Qwen Code | per message | difference to the run before | exact | as Qwen counts them | none |
/// | Cursor | nothing | as documented by Cursor, not tried | sum | not known | none |
///
/// A run that is stopped or crashes reports what was known: for Codex and Gemini nothing, because
/// they report at the end only. The total of a session that was also used outside of this service is
/// exact only where the column says so.
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
