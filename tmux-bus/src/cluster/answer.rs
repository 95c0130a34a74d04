//! The answer of an agent with what is known about it.

use std::fmt;

use crate::answer::marker::{self, Marker};

/// The answer of an agent, see [`Agent::ask`](crate::Agent::ask). Its `Debug` does not show texts.
///
/// ```
/// use tmux_bus::{Agent, Error, SendToOptions};
///
/// async fn ask(boss: &Agent) -> Result<String, Error> {
///     let answer = boss.ask("coder", "a\tb", &SendToOptions::default()).await?;
///     if let Some(received) = &answer.altered {
///         println!("the agent has changed the message to {received:?}");
///     }
///     if !answer.has_marker {
///         println!("the agent forgot its marker");
///     }
///     Ok(answer.text)
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// The text. With [`SendToOptions::without_marker`](crate::SendToOptions::without_marker) the line of the
    /// marker is removed.
    pub text: String,
    /// Whether the text had the marker of the agent. An answer that a hook reported is complete without it.
    pub has_marker: bool,
    /// The message that the agent got, if the agent itself has changed the message. Known only if a hook of the
    /// agent reports it.
    pub altered: Option<String>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("text", &format_args!("{} bytes", self.text.len()))
            .field("has_marker", &self.has_marker)
            .field("is_altered", &self.altered.is_some())
            .finish()
    }
}

impl Answer {
    pub(super) fn new(text: String, altered: Option<String>, marker: &Marker) -> Self {
        let has_marker = marker
            .occurrences(&marker::fold(&text))
            .any(|(_, is_whole)| is_whole);
        Self {
            text,
            has_marker,
            altered,
        }
    }

    /// Removes the last line that has the marker and no other word, and the empty lines that it leaves at the beginning
    /// or the end.
    pub(super) fn remove_marker(&mut self, marker: &Marker) {
        let lines: Vec<_> = self.text.lines().collect();
        let Some(at) = lines.iter().rposition(|line| is_marker_line(line, marker)) else {
            return;
        };
        let is_empty = |line: &&str| line.trim().is_empty();
        let mut kept = [&lines[..at], &lines[at + 1..]].concat();
        if at + 1 == lines.len() {
            while kept.last().is_some_and(is_empty) {
                kept.pop();
            }
        }
        if at == 0 {
            let first = kept.iter().position(|line| !is_empty(line));
            kept.drain(..first.unwrap_or(kept.len()));
        }
        self.text = kept.join("\n");
    }
}

/// Agents write the marker as `**MARKER**`, `> MARKER` or `MARKER.`, too.
fn is_marker_line(line: &str, marker: &Marker) -> bool {
    let folded = marker::fold(line);
    let mut found = marker.occurrences(&folded);
    let Some((end, true)) = found.next() else {
        return false;
    };
    let is_word =
        |text: &[marker::FoldedChar]| text.iter().any(|folded| folded.c.is_alphanumeric());
    !is_word(&folded[..end - marker.len()]) && !is_word(&folded[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, has_marker: bool, without: &str) {
        let marker = Marker::new("CODING OK").unwrap();
        let mut answer = Answer::new(text.to_owned(), None, &marker);
        assert_eq!(answer.has_marker, has_marker, "{text:?}");
        answer.remove_marker(&marker);
        assert_eq!(answer.text, without, "{text:?}");
    }

    #[test]
    fn the_line_of_the_marker_is_removed() {
        check("The answer is 42.\n\nCODING OK", true, "The answer is 42.");
        check("a\n\n**CODING OK**\n\nb\n", true, "a\n\n\nb");
        check("CODING OK\n\na\n\n    code", true, "a\n\n    code");
        check("> CODING OK.", true, "");
        // The last one only: an earlier one may be a part of the text.
        check(
            "CODING OK\nis the marker\nCODING OK\n",
            true,
            "CODING OK\nis the marker",
        );
    }

    #[test]
    fn a_marker_inside_a_sentence_stays() {
        check("I am done, CODING OK", true, "I am done, CODING OK");
        check("CODING OKAY\n", false, "CODING OKAY\n");
        check("nothing", false, "nothing");
        check("", false, "");
    }
}
