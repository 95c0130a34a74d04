use std::collections::VecDeque;

use super::marker::{CONTEXT, gap_of};

/// Finds the end of a message where it is echoed.
#[derive(Debug)]
pub(crate) struct EchoFinder {
    /// The last visible characters of the message.
    end: Vec<char>,
    /// As many of the last characters of the output.
    window: VecDeque<char>,
}

impl EchoFinder {
    pub(crate) fn new(message: &str) -> Self {
        let visible = message.chars().rev().filter(|&c| gap_of(c).is_none());
        let mut end: Vec<char> = visible.take(CONTEXT).collect();
        end.reverse();
        Self {
            end,
            window: VecDeque::new(),
        }
    }

    /// Takes a visible character; returns whether the message ends with it.
    pub(crate) fn print(&mut self, c: char) -> bool {
        if self.window.len() == self.end.len() {
            self.window.pop_front();
        }
        self.window.push_back(c);
        self.end.last() == Some(&c) && self.window == self.end
    }
}
