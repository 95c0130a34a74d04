//! The last message of an agent, from its events.

use super::agent_event::AgentEventKind;
use super::failure::cut_at;

/// The longest text that is kept.
pub(crate) const MAX_TEXT: usize = 16 << 20;

/// The last message of the agent itself, without its sub-agents. Remembers whether a part of it may be
/// missing: events can be dropped before they are read, and a line that is too long is not parsed.
#[derive(Default)]
pub(crate) struct LastMessage {
    text: String,
    /// Whether the next piece continues `text`.
    continues: bool,
    has_hole: bool,
    /// Whether the next piece may continue a message whose beginning was missed.
    after_gap: bool,
}

impl LastMessage {
    pub(crate) fn observe(&mut self, event: &AgentEventKind) {
        match event {
            AgentEventKind::Text { text, delta } => {
                if !(*delta && self.continues) {
                    self.text.clear();
                    self.has_hole = *delta && self.after_gap;
                }
                self.append(text);
                (self.continues, self.after_gap) = (*delta, false);
            }
            // Agents report these in the middle of a message.
            AgentEventKind::Usage(_) | AgentEventKind::RateLimit(_) => {}
            _ => (self.continues, self.after_gap) = (false, false),
        }
    }

    /// Adds text that is no event: output without a parser.
    pub(crate) fn append(&mut self, piece: &str) {
        let kept = cut_at(piece, MAX_TEXT - self.text.len());
        self.has_hole |= kept < piece.len();
        self.text.push_str(&piece[..kept]);
    }

    /// Output was missed, which may be a part of this message or a later message.
    pub(crate) fn missed(&mut self) {
        (self.has_hole, self.after_gap) = (true, true);
    }

    pub(crate) fn is_whole(&self) -> bool {
        !self.has_hole
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}
