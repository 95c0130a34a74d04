//! Extracts the answer from the text of a pane: without the echo of the message, prompts and
//! input boxes.
//!
//! # Theory
//!
//! The text of a pane has, from top to bottom: older text, the message as the program or the terminal
//! shows it (an *echo*), the answer, and a prompt or an input box. The answer begins on the line after
//! the echo. An answer may quote the message, so not every occurrence of the message is the echo.
//!
//! - In a transcript there is no older text. An echo of the terminal driver is the first occurrence. A
//!   program that shows the message does so before any other word, and on lines without other words.
//! - On a screen older text is possible, also an older message with the same text. The *last*
//!   occurrence that stands alone on its lines **and** is followed by the marker wins. The last one,
//!   because the older ones belong to older answers. Followed by the marker, because a program may
//!   show the message again below the answer, for example in an input box or a list of messages.
//! - On a screen without an echo (a program that hides its input), the answer begins after
//!   [`common_lines`]: the lines at the top that are the same as on the screen at the submit. That
//!   holds only if no line since the submit is lost; otherwise the beginning is unknown.
//!
//! **Example.** Message `hi`, marker `X OK`, on a screen:
//!
//! ```text
//! > hi          an older message with the same text: not the last one
//! X OK
//! > hi          the last one that is followed by the marker: the echo
//! you said hi   not alone on its line: a quote
//! X OK
//! > hi          no marker follows: typed for the next message
//! ```
//!
//! The answer is `you said hi / X OK / > hi`; a prompt at its end is removed if it is empty.

use super::marker::{self, FoldedChar, Marker};

/// The answer among the lines that were printed after the submit. `echoed`: the terminal itself
/// printed the message among them.
pub(crate) fn from_transcript(text: &str, message: &[FoldedChar], echoed: bool) -> String {
    // The echo comes first, except for output that the program was still printing.
    let visible: Vec<_> = offsets(text).take(ECHO_WITHIN + message.len()).collect();
    let echo = echoes(&visible, message).find(|echo| {
        // A program that shows the message does so first; later the answer quotes it.
        let first = !text[..echo.first].contains(char::is_alphanumeric);
        echoed || (first && echo.stands_alone(text))
    });
    remove_prompts(&text[echo.map_or(0, |echo| echo.next_line(text))..])
}

/// What a screen tells about the answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ScreenAnswer {
    /// The whole answer.
    Whole(String),
    /// The marker is not there, or not yet: below the message there is none, or it is a part of a
    /// longer word.
    NoMarker,
    /// The beginning of the answer is not on the screen.
    NoBeginning,
}

/// The answer on a screen, including the lines that scrolled off since the submit. `before` is the
/// screen at the submit, `None` if lines since then are missing: then only the echo of the message
/// proves that the beginning is there. `clean` removes what does not belong to the answer.
pub(crate) fn from_screen(
    screen: &str,
    before: Option<&str>,
    message: &[FoldedChar],
    marker: &Marker,
    clean: impl Fn(&str) -> String,
) -> ScreenAnswer {
    let visible: Vec<_> = offsets(screen).collect();
    let shown = echoes(&visible, message).filter(|echo| echo.stands_alone(screen));
    let starts: Vec<_> = shown.map(|echo| echo.next_line(screen)).collect();
    let is_answered = |start: &usize| has_marker(&screen[*start..], marker);
    let unchanged = before.map(|before| common_lines(screen, before));
    match starts.iter().copied().rfind(is_answered) {
        Some(start) => ScreenAnswer::Whole(clean(&screen[start..])),
        None if !starts.is_empty() => ScreenAnswer::NoMarker,
        None => match unchanged {
            Some(start) if is_answered(&start) => ScreenAnswer::Whole(clean(&screen[start..])),
            Some(start) if became_a_word(&screen[start..], marker) => ScreenAnswer::NoMarker,
            _ => ScreenAnswer::NoBeginning,
        },
    }
}

/// Cuts the answer after the line of the marker, the literal form of the specification.
pub(crate) fn until_marker(answer: &str, marker: &Marker) -> String {
    let folded = marker::fold(answer);
    let Some((end, _)) = marker.occurrences(&folded).find(|(_, whole)| *whole) else {
        return answer.to_owned();
    };
    let offset = offsets(answer)
        .nth(end - 1)
        .map_or(answer.len(), |(at, _)| at);
    let end = answer[offset..]
        .find('\n')
        .map_or(answer.len(), |at| offset + at);
    answer[..end].to_owned()
}

fn has_marker(text: &str, marker: &Marker) -> bool {
    marker
        .occurrences(&marker::fold(text))
        .any(|(_, whole)| whole)
}

/// Whether every occurrence of the marker has become the beginning of a longer word.
fn became_a_word(text: &str, marker: &Marker) -> bool {
    let folded = marker::fold(text);
    let (whole, longer): (Vec<_>, Vec<_>) =
        marker.occurrences(&folded).partition(|(_, whole)| *whole);
    whole.is_empty() && !longer.is_empty()
}

/// The echo starts within this many visible characters of the output.
const ECHO_WITHIN: usize = 1024;

/// An occurrence of the message in a text, where it may be wrapped, indented and framed.
struct ShownMessage {
    /// Offset of its first character.
    first: usize,
    /// Offset of its last character: of the first byte of it.
    last: usize,
}

impl ShownMessage {
    /// Whether no word is beside it: otherwise an answer quotes the message.
    fn stands_alone(&self, text: &str) -> bool {
        let line = text[..self.first].rfind('\n').map_or(0, |at| at + 1);
        let mut rest = text[self.last..self.next_line(text)].chars();
        rest.next();
        let words = |part: &str| part.contains(char::is_alphanumeric);
        !words(&text[line..self.first]) && !words(rest.as_str())
    }

    fn next_line(&self, text: &str) -> usize {
        text[self.last..]
            .find('\n')
            .map_or(text.len(), |line| self.last + line + 1)
    }
}

fn echoes(visible: &[(usize, char)], message: &[FoldedChar]) -> impl Iterator<Item = ShownMessage> {
    let length = message.len();
    visible
        .windows(length.max(1))
        .filter(move |window| length > 0 && window.iter().zip(message).all(|((_, a), b)| *a == b.c))
        .map(move |window| ShownMessage {
            first: window[0].0,
            last: window[length - 1].0,
        })
}

/// The visible characters with their offsets.
fn offsets(text: &str) -> impl Iterator<Item = (usize, char)> {
    text.char_indices()
        .filter(|&(_, c)| marker::gap_of(c).is_none())
}

/// Length of the lines at the top that the screen has in common with the screen before.
fn common_lines(screen: &str, before: &str) -> usize {
    let mut start = 0;
    for (new, old) in screen.split_inclusive('\n').zip(before.lines()) {
        if new.trim_end() != old.trim_end() {
            break;
        }
        start += new.len();
    }
    start
}

/// Removes empty lines around the answer and, at its end only, prompts and an input box with the
/// hints below it. Inside the answer `> quotes`, `$ lines` and `# headings` are text.
pub(crate) fn remove_prompts(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    if let Some(top) = input_box(&lines) {
        lines.truncate(top);
    }
    while lines
        .last()
        .is_some_and(|line| line.trim().is_empty() || is_prompt(line))
    {
        lines.pop();
    }
    let first = lines
        .iter()
        .position(|line| !line.trim().is_empty())
        .unwrap_or(lines.len());
    lines[first..].join("\n")
}

/// Whether a line is a prompt and nothing else.
pub(crate) fn is_prompt(line: &str) -> bool {
    let line = line.trim_end();
    let Some(last) = line.chars().last() else {
        return false;
    };
    if !matches!(last, '>' | '$' | '#' | '%' | '❯' | '»' | '›' | 'λ') {
        return false;
    }
    let before = line[..line.len() - last.len_utf8()].trim();
    if before.is_empty() {
        return true;
    }
    // `>>>`, `mysql>`, `user@host:~/dir$`, `[root@host ~]#`: prose has more spaces.
    let words = before.split_whitespace().count();
    let shell = words <= 2
        && (before.contains('@')
            || before.contains('~')
            || before.contains('/')
            || before.ends_with(']'));
    let name = words == 1
        && last != '%'
        && last != '#'
        && before
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '>' | '-' | '_' | '.' | '(' | ')'));
    shell || name
}

/// Whether a screen waits for input: by a prompt in the row of the cursor, or an input box.
pub(crate) fn waits_for_input(screen: &str, row: usize) -> bool {
    let lines: Vec<&str> = screen.lines().collect();
    lines.get(row).is_some_and(|line| is_prompt(line)) || input_box(&lines).is_some()
}

/// The first line of an input box at the end: a frame or two rules around a prompt.
fn input_box(lines: &[&str]) -> Option<usize> {
    /// Longest block of hints and status lines below the box.
    const BELOW: usize = 6;
    let shown = lines.iter().rposition(|line| !line.trim().is_empty())? + 1;
    let bottom = (shown.saturating_sub(BELOW)..shown)
        .rev()
        .find(|&i| is_rule(lines[i]))?;
    let top = (0..bottom).rev().find(|&i| is_rule(lines[i]))?;
    let first = lines
        .get(top + 1)?
        .trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '│' | '┃' | '║' | '|'));
    first
        .starts_with(['>', '❯', '›', '»', '$', '!'])
        .then_some(top)
}

fn is_rule(line: &str) -> bool {
    let line = line.trim();
    let drawn = line
        .chars()
        .filter(|c| matches!(c, '\u{2500}'..='\u{257f}'))
        .count();
    drawn >= 8 && !line.starts_with(['│', '┃', '║']) && drawn * 2 > line.chars().count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(remove_prompts(text), expected);
    }

    #[test]
    fn prompts_at_the_end_are_removed() {
        check("yes\nCODING OK\n> ", "yes\nCODING OK");
        check("\n\nyes\n>>> ", "yes");
        check("yes\nuser@host:~/dir$ ", "yes");
        check("yes\n[root@host ~]# ", "yes");
        check("yes\nmysql> ", "yes");
        check("yes\n❯\n\n", "yes");
        check(
            "⏺ yes\n\n╭──────────────────╮\n│ >                │\n╰──────────────────╯\n  ? for shortcuts\n",
            "⏺ yes",
        );
        check(
            "yes\n────────────────\n❯ \n────────────────\n  status\n  hint\n",
            "yes",
        );
    }

    #[test]
    fn prompt_characters_inside_an_answer_stay() {
        let answer = "# heading\n> a quote\n$ cargo test\n% make\n>\nCODING OK";
        check(answer, answer);
        check("growth was 5 %", "growth was 5 %");
        check("a -> b\nthis costs 5 $", "a -> b\nthis costs 5 $");
        let table = "┌──────────┐\n│ a table  │\n└──────────┘";
        check(table, table);
    }

    #[test]
    fn the_echo_is_removed_and_the_answer_stays() {
        let check = |text, echoed, expected| {
            assert_eq!(
                from_transcript(text, &marker::fold("hi there"), echoed),
                expected
            );
        };
        check("hi there\nhello\nX OK\n", true, "hello\nX OK");
        check("\n> hi\n  there\nhello\nX OK\n", false, "hello\nX OK");
        // The program was still printing when the terminal echoed.
        check("late\nhi there\nX OK\n> ", true, "X OK");
        check("hello\nX OK\n", true, "hello\nX OK");
        // The answer quotes the message.
        let quoting = "you said:\n> hi there\nX OK";
        check(quoting, false, quoting);
        check("you said hi there\nX OK", false, "you said hi there\nX OK");
    }

    #[test]
    fn the_answer_on_a_screen_begins_after_the_message() {
        let marker = Marker::new("X OK").unwrap();
        let answer = |screen, before| {
            from_screen(
                screen,
                before,
                &marker::fold("hi there"),
                &marker,
                remove_prompts,
            )
        };
        let check = |screen, before, expected: &str| {
            let expected = ScreenAnswer::Whole(expected.to_owned());
            assert_eq!(answer(screen, Some(before)), expected);
        };
        check(
            "old\nX OK\n> hi there\nnew\nX OK\n",
            "old\nX OK\n",
            "new\nX OK",
        );
        check(
            "> hi there\nyou said hi there\nX OK\n",
            "",
            "you said hi there\nX OK",
        );
        check("old\nX OK\nnew\nX OK\n", "old\nX OK\n", "new\nX OK");
        // The example of the theory.
        check(
            "> hi there\nX OK\n> hi there\nyou said hi there\nX OK\n> hi there\n",
            "> hi there\nX OK\n",
            "you said hi there\nX OK\n> hi there",
        );
        let before = Some("old\n");
        assert_eq!(answer("> hi there\nwork\n", None), ScreenAnswer::NoMarker);
        assert_eq!(answer("old\nX OKAY\n", before), ScreenAnswer::NoMarker);
        assert_eq!(answer("the end\nX OK\n", None), ScreenAnswer::NoBeginning);
        assert_eq!(answer("", before), ScreenAnswer::NoBeginning);
    }

    #[test]
    fn the_literal_form_ends_with_the_line_of_the_marker() {
        let marker = Marker::new("X OK").unwrap();
        assert_eq!(
            until_marker("a\nX OK: done\nmore", &marker),
            "a\nX OK: done"
        );
        assert_eq!(until_marker("a\nX\nOK\nmore", &marker), "a\nX\nOK");
    }

    proptest! {
        #[test]
        fn plain_lines_are_returned_unchanged(lines in prop::collection::vec("[a-z]{1,9}( [#>$%a-z]{1,4}){0,3}\\.", 1..9)) {
            let text = lines.join("\n");
            prop_assert_eq!(remove_prompts(&format!("{text}\n> ")), text);
        }

        #[test]
        fn any_text_does_not_panic(text: String, message: String) {
            from_transcript(&text, &marker::fold(&message), true);
            from_transcript(&text, &marker::fold(&message), false);
            let marker = Marker::new("X OK").unwrap();
            from_screen(&text, Some(&message), &marker::fold(&message), &marker, remove_prompts);
            until_marker(&text, &marker);
        }
    }
}
