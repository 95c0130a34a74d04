//! The entries of a file that is to be written.

use std::borrow::Cow;

use crate::format::Entry;

/// The entries of the next version of a file.
pub(crate) struct Lines<'a> {
    /// The last version.
    text: &'a str,
    /// Those of the others: what stands together in the last version, in one piece.
    others: Vec<Cow<'a, str>>,
    /// Where in the last version the last of these ends.
    end: usize,
    /// That of the own session, and how many of the pieces come before it.
    mine: Option<Cow<'a, str>>,
    place: Option<usize>,
}

/// Between two entries. One a line: easy on the eyes, and a damaged line damages no other.
const BETWEEN: &str = ",\n";

impl<'a> Lines<'a> {
    pub(crate) fn after(text: &'a str) -> Self {
        Self {
            text,
            others: Vec::new(),
            end: 0,
            mine: None,
            place: None,
        }
    }

    /// Keeps another session's entry, which comes after all that have been kept.
    #[inline]
    pub(crate) fn keep(&mut self, entry: &Entry<'a>) {
        let end = entry.start + entry.line.len();
        match self.others.last_mut() {
            Some(Cow::Borrowed(piece)) if self.text.get(self.end..entry.start) == Some(BETWEEN) => {
                *piece = &self.text[self.end - piece.len()..end];
            }
            _ => self.others.push(entry.line.into()),
        }
        self.end = end;
    }

    /// Adds another session's entry that has changed.
    pub(crate) fn push(&mut self, line: String) {
        self.others.push(line.into());
    }

    /// Puts the own entry after all that have been kept so far.
    pub(crate) fn keep_mine(&mut self, line: Cow<'a, str>) {
        self.place = Some(self.others.len());
        self.mine = Some(line);
    }

    /// Changes the own entry where it stands, or adds it at the end, and says whether that
    /// makes a difference.
    pub(crate) fn set_mine(&mut self, line: Option<String>) -> bool {
        let changes = self.mine.as_deref() != line.as_deref();
        self.mine = line.map(Cow::Owned);
        changes
    }

    /// The file. `extra` stands beside the entries.
    pub(crate) fn to_bytes(&self, extra: &[&str]) -> Vec<u8> {
        let size: usize = self
            .others
            .iter()
            .chain(&self.mine)
            .map(|line| line.len() + 2)
            .sum();
        let mut out = String::with_capacity(size + 256);
        out.push('{');
        for field in extra {
            out.push_str(field);
            out.push_str(",\n");
        }
        out.push_str("\"storage\":{");
        let (before, after) = self
            .others
            .split_at(self.place.unwrap_or(self.others.len()));
        for (at, line) in before.iter().chain(&self.mine).chain(after).enumerate() {
            out.push_str(if at == 0 { "\n" } else { BETWEEN });
            out.push_str(line);
        }
        out.push_str("\n}}\n");
        out.into_bytes()
    }
}
