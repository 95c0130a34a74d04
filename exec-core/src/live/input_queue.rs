//! The lines that wait to be written to the agent.

use std::collections::VecDeque;

/// No line is accepted while this many bytes wait: an agent that does not read its input cannot
/// make the host's memory grow. One line more may wait, however long it is.
const MAX_BYTES: usize = 1 << 20;

/// The lines that the writer of standard input has not written yet.
#[derive(Default)]
pub(super) struct InputQueue {
    lines: VecDeque<String>,
    /// Of all lines, and of the one that is being written.
    bytes: usize,
    is_closed: bool,
}

impl InputQueue {
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MAX_BYTES
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Adds a line; `false` if the queue is full. A line for a closed queue is lost with the
    /// process, which is ending.
    pub(super) fn push(&mut self, mut line: String) -> bool {
        if self.is_closed {
            return true;
        }
        if self.is_full() {
            return false;
        }
        line.push('\n');
        self.bytes += line.len();
        self.lines.push_back(line);
        true
    }

    /// The next line. It counts until it is [`written`](Self::written).
    pub(super) fn next(&mut self) -> Option<String> {
        self.lines.pop_front()
    }

    pub(super) fn written(&mut self, line: &str) {
        self.bytes = self.bytes.saturating_sub(line.len());
    }

    /// Nothing can be written any more.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.lines = VecDeque::new();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_does_not_read_fills_the_queue() {
        let mut queue = InputQueue::default();
        assert!(queue.push("x".repeat(MAX_BYTES - 2)));
        assert!(queue.push("x".repeat(MAX_BYTES)), "one line more");
        assert!(!queue.push(String::new()));
        let first = queue.next().unwrap();
        assert!(!queue.push(String::new()), "the line is not written yet");
        queue.written(&first);
        let second = queue.next().unwrap();
        queue.written(&second);
        assert!(queue.push("y".to_owned()));
        assert_eq!(queue.next().as_deref(), Some("y\n"));
        queue.close();
        assert!(queue.push("z".to_owned()));
        assert_eq!(queue.next(), None);
    }
}
