//! The next version of the data file.

use std::borrow::Cow;

use super::token_record::TokenRecord;

/// The entries that the next version will have, in their order.
pub(crate) struct NextVersion<'a> {
    lines: Vec<Cow<'a, str>>,
    /// The index of this session's line.
    own: Option<usize>,
}

impl<'a> NextVersion<'a> {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        Self {
            lines: Vec::with_capacity(entries),
            own: None,
        }
    }

    /// Adds an entry of another session.
    pub(crate) fn push(&mut self, line: Cow<'a, str>) {
        self.lines.push(line);
    }

    /// Adds this session's entry. If it is there already, the last one counts.
    pub(crate) fn push_own(&mut self, line: Cow<'a, str>) {
        if let Some(at) = self.own.replace(self.lines.len()) {
            self.lines.remove(at);
            self.own = Some(self.lines.len());
        }
        self.lines.push(line);
    }

    /// Changes this session's entry in its place, or adds it at the end, and returns whether the
    /// text has changed.
    pub(crate) fn set_own(&mut self, line: String) -> bool {
        match self.own {
            Some(at) if self.lines[at] == line => false,
            Some(at) => {
                self.lines[at] = line.into();
                true
            }
            None => {
                self.own = Some(self.lines.len());
                self.lines.push(line.into());
                true
            }
        }
    }

    /// Removes this session's entry, and returns whether there was one.
    pub(crate) fn remove_own(&mut self) -> bool {
        let at = self.own.take();
        at.map(|at| self.lines.remove(at)).is_some()
    }

    /// The text of the file. `extra` are the members of other tools beside `storage`.
    ///
    /// One entry a line: a reader without our parser can follow it, and a damaged line damages no
    /// other entry.
    pub(crate) fn to_bytes(&self, extra: &[&str], record: Option<TokenRecord>) -> Vec<u8> {
        let size: usize = self.lines.iter().map(|line| line.len() + 2).sum();
        let mut out = String::with_capacity(size + 256);
        out.push('{');
        for member in extra {
            out.push_str(member);
            out.push_str(",\n");
        }
        out.push_str("\"storage\":{");
        for (at, line) in self.lines.iter().enumerate() {
            out.push_str(if at == 0 { "\n" } else { ",\n" });
            out.push_str(line);
        }
        out.push_str("\n}");
        if let Some(record) = record {
            out.push(',');
            out.push_str(&record.to_member());
        }
        out.push_str("}\n");
        out.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(next: &NextVersion<'_>, expected: &str) {
        let text = String::from_utf8(next.to_bytes(&[], None)).unwrap();
        assert_eq!(text, format!("{{\"storage\":{{{expected}\n}}}}\n"));
    }

    #[test]
    fn a_changed_entry_keeps_its_place() {
        let mut next = NextVersion::with_capacity(0);
        check(&next, "");
        next.push("a".into());
        next.push_own("me".into());
        next.push("b".into());
        assert!(!next.set_own("me".to_owned()));
        assert!(next.set_own("new".to_owned()));
        check(&next, "\na,\nnew,\nb");
        next.push_own("twice".into());
        check(&next, "\na,\nb,\ntwice");
        assert!(next.remove_own());
        assert!(!next.remove_own());
        check(&next, "\na,\nb");
        assert!(next.set_own("me".to_owned()));
        check(&next, "\na,\nb,\nme");
    }
}
