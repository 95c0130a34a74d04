//! The visible part of a pane at one moment.

use std::fmt;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

#[derive(Clone)]
pub(crate) struct Screen {
    /// The rows, padded with spaces to the width of the pane: rules can tell an empty row from none.
    pub(crate) lines: Vec<String>,
    pub(crate) cursor: Cursor,
    pub(crate) title: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen")
            .field("rows", &self.lines.len())
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

impl Screen {
    /// `text` is a capture of tmux, which leaves spaces at the ends of rows out.
    pub(crate) fn new(text: &str, width: usize, cursor: Cursor, title: &str) -> Self {
        let pad = |line: &str| {
            let blank = width.saturating_sub(line.width());
            format!("{line}{:blank$}", "")
        };
        Self {
            lines: text.lines().map(pad).collect(),
            cursor,
            title: title.to_owned(),
        }
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.lines.iter().all(|line| line.trim().is_empty())
    }

    /// The text for a person, without blank rows at its ends.
    pub(crate) fn text(&self) -> String {
        let rows: Vec<_> = self.lines.iter().map(|line| line.trim_end()).collect();
        rows.join("\n").trim_matches('\n').to_owned()
    }
}

/// The part of a row between two columns. A wide character at the left edge is left out.
pub(crate) fn columns(line: &str, from: usize, to: usize) -> &str {
    let mut column = 0;
    let mut range = None;
    let mut end = line.len();
    for (at, c) in line.char_indices() {
        if column >= from && range.is_none() {
            range = Some(at);
        }
        if column >= to {
            end = at;
            break;
        }
        column += c.width().unwrap_or(0);
    }
    match range {
        Some(start) if start <= end => &line[start..end],
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_wide_characters_twice() {
        assert_eq!(columns("abcdef", 1, 3), "bc");
        assert_eq!(columns("日本語x", 2, 6), "本語");
        assert_eq!(columns("日本語x", 0, 99), "日本語x");
        assert_eq!(columns("ab", 5, 9), "");
    }

    #[test]
    fn rows_are_padded_to_the_width_of_the_pane() {
        let cursor = Cursor { row: 0, column: 0 };
        let screen = Screen::new("日\n\nab\n\n", 4, cursor, "");
        assert_eq!(screen.lines, ["日  ", "    ", "ab  ", "    "]);
        assert_eq!(screen.text(), "日\n\nab");
    }
}
