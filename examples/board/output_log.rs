//! The last lines that an agent has printed.

use std::collections::VecDeque;

use serde::Serialize;

/// A line of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutputLine {
    /// Its number: 1, 2, 3, … without a gap.
    pub number: u64,
    /// `out`, `err`, `tool`, `text`, `think` or `note`.
    pub stream: &'static str,
    /// The line, neutralised and bounded.
    pub text: String,
}

/// The last lines of one agent, bounded in number and bytes: the oldest are dropped.
#[derive(Debug, Default)]
pub struct OutputLog {
    lines: VecDeque<OutputLine>,
    bytes: usize,
    next: u64,
    screen: Option<(u64, String)>,
}

impl OutputLog {
    /// Most lines that are kept.
    pub const MAX_LINES: usize = 2_000;
    /// Most bytes that are kept.
    pub const MAX_BYTES: usize = 256 * 1024;
    /// Most bytes of one line.
    const MAX_LINE: usize = 8 * 1024;

    /// Appends the lines of a neutralised text.
    pub fn push(&mut self, stream: &'static str, text: &str) {
        for line in text.split('\n') {
            self.next += 1;
            let text = super::board_model::cut_text(line, Self::MAX_LINE)
                .0
                .to_owned();
            self.bytes += text.len();
            let number = self.next;
            self.lines.push_back(OutputLine {
                number,
                stream,
                text,
            });
            while self.lines.len() > Self::MAX_LINES || self.bytes > Self::MAX_BYTES {
                let Some(oldest) = self.lines.pop_front() else {
                    break;
                };
                self.bytes -= oldest.text.len();
            }
        }
    }

    /// Replaces the screen. Its number grows only if it differs.
    pub fn set_screen(&mut self, text: &str) {
        let (number, before) = self.screen.get_or_insert_default();
        if before != text || *number == 0 {
            *number += 1;
            text.clone_into(before);
        }
    }

    /// At most `limit` of the lines after a number, oldest first.
    pub fn after(&self, number: u64, limit: usize) -> Vec<OutputLine> {
        let start = self.lines.partition_point(|line| line.number <= number);
        self.lines.range(start..).take(limit).cloned().collect()
    }

    /// The screen with its number, if it is newer than this number.
    pub fn screen_after(&self, number: u64) -> Option<(u64, &str)> {
        let (current, text) = self.screen.as_ref()?;
        (*current != number).then_some((*current, text.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_are_dropped_and_numbers_stay() {
        let mut log = OutputLog::default();
        for n in 0..OutputLog::MAX_LINES + 10 {
            log.push("out", &format!("line {n}"));
        }
        let lines = log.after(0, usize::MAX);
        assert_eq!(lines.len(), OutputLog::MAX_LINES);
        assert_eq!(lines[0].number, 11);
        log.push("out", &"x".repeat(OutputLog::MAX_BYTES));
        assert!(log.bytes <= OutputLog::MAX_BYTES);
        assert_eq!(log.after(2_010, 5).len(), 1);
    }

    #[test]
    fn a_screen_is_new_only_if_it_differs() {
        let mut log = OutputLog::default();
        assert_eq!(log.screen_after(0), None);
        log.set_screen("");
        assert_eq!(log.screen_after(0), Some((1, "")));
        log.set_screen("$ ls");
        log.set_screen("$ ls");
        assert_eq!(log.screen_after(1), Some((2, "$ ls")));
        assert_eq!(log.screen_after(2), None);
    }
}
