//! Finds the input line of an agent, at the cursor.

use unicode_width::UnicodeWidthStr;

use super::screen::{Screen, columns};
use crate::definition::screen_rules::{BoxRules, InputRules};

/// The input line of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputLine {
    /// The cursor is not in an input line.
    Missing,
    /// Nothing is typed.
    Empty,
    /// Typed text. Rows are joined by newlines, also where the agent wrapped the text.
    Text(String),
    /// An input line whose text is not a message, such as a shell mode.
    OtherMode,
}

/// An input line and its rows.
#[derive(Clone, Debug)]
pub(crate) struct FoundInput {
    pub(crate) line: InputLine,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// The input line at the cursor.
///
/// The text is everything from the row of the prompt to the row before the end of the input line, not
/// only up to the cursor: a person can have moved the cursor to the beginning of a draft. It is empty only
/// if the cursor stands at its beginning, too: a placeholder and a typed text of the same words differ
/// in the cursor alone.
pub(crate) fn find(rules: &InputRules, screen: &Screen) -> Option<FoundInput> {
    let cursor = screen.cursor;
    let at_cursor = screen.lines.get(cursor.row)?;
    if rules
        .other_modes
        .iter()
        .any(|mode| mode.is_match(at_cursor))
    {
        return Some(FoundInput {
            line: InputLine::OtherMode,
            first: cursor.row,
            last: cursor.row,
        });
    }
    match &rules.frame {
        Some(frame) => in_box(rules, frame, screen),
        None => in_lines(rules, screen),
    }
}

fn in_lines(rules: &InputRules, screen: &Screen) -> Option<FoundInput> {
    let (lines, cursor) = (&screen.lines, screen.cursor);
    let next = |row: usize| rules.next.as_ref().and_then(|next| next.text(&lines[row]));
    let is_end = |row: usize| {
        let end = rules.end.as_ref();
        end.is_some_and(|end| end.is_match(&lines[row]))
    };
    let mut first = cursor.row;
    while !rules.line.is_match(&lines[first]) {
        let is_text = next(first).is_some() || lines[first].trim().is_empty();
        if first == 0 || !is_text {
            return None;
        }
        first -= 1;
    }
    let found = rules.line.captures(&lines[first])?;
    let mut rows = vec![found["text"].trim_end()];
    // A hint can hide the end. Then a blank row below the cursor ends the text.
    let has_end = (cursor.row + 1..lines.len()).any(is_end);
    for (row, line) in lines.iter().enumerate().skip(first + 1) {
        let is_below = row > cursor.row;
        if is_below && (is_end(row) || (!has_end && line.trim().is_empty())) {
            break;
        }
        match next(row) {
            Some(text) => rows.push(text.trim_end()),
            None if line.trim().is_empty() => rows.push(""),
            None => break,
        }
    }
    let last = first + rows.len() - 1;
    let text = rows.join("\n");
    let at_start = cursor.row == first && cursor.column == found["prefix"].width();
    Some(FoundInput {
        line: input_line(rules, &text, at_start),
        first,
        last: last.max(cursor.row),
    })
}

fn in_box(rules: &InputRules, frame: &BoxRules, screen: &Screen) -> Option<FoundInput> {
    /// Longest distance from the cursor to the lower edge.
    const MAX_ROWS: usize = 40;
    let (lines, cursor) = (&screen.lines, screen.cursor);
    let found = rules.line.captures(&lines[cursor.row])?;
    let prefix = &found["prefix"];
    let edge = |row: &usize| frame.end.is_match(&lines[*row]);
    let end = (cursor.row..lines.len().min(cursor.row + MAX_ROWS)).find(edge)?;
    let right = frame.end.found(&lines[end])?.width();
    let mut top = cursor.row;
    while top > 0 && lines[top - 1].starts_with(prefix) {
        top -= 1;
    }
    let body = top + frame.above..end.saturating_sub(frame.below);
    let rows: Vec<_> = lines
        .get(body)
        .unwrap_or_default()
        .iter()
        .map(|line| columns(line, prefix.width(), right).trim_end())
        .collect();
    let text = rows.join("\n");
    Some(FoundInput {
        line: input_line(rules, &text, cursor.column == prefix.width()),
        first: top + frame.above,
        last: end,
    })
}

fn input_line(rules: &InputRules, text: &str, at_start: bool) -> InputLine {
    let text = text.trim_end_matches('\n');
    let is_placeholder = || {
        let placeholder = rules.placeholder.as_ref();
        placeholder.is_some_and(|placeholder| placeholder.is_match(text))
    };
    if at_start && (text.trim().is_empty() || is_placeholder()) {
        InputLine::Empty
    } else {
        InputLine::Text(text.to_owned())
    }
}
