//! The data file's text, taken apart.

use super::raw_object::{RawObject, decode_string, span};
use super::stored_entry::StoredEntry;
use super::token_record::{self, TokenRecord};

/// The entries of a data file, and the members beside `storage`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Document<'a> {
    pub(crate) entries: Vec<StoredEntry<'a>>,
    /// Members of other tools, each with its key, as they stand.
    pub(crate) extra: Vec<&'a str>,
    pub(crate) record: Option<TokenRecord>,
}

impl<'a> Document<'a> {
    /// Parses a file; the error says why it is corrupt, without quoting values.
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        match Self::parse_compact_form(text) {
            Some(document) => Ok(document),
            None => Self::parse_any_form(text),
        }
    }

    /// Parses the form that [`NextVersion`](super::NextVersion) writes: one entry a line. `None`
    /// says nothing about other forms.
    ///
    /// A valid JSON string contains no line break. So if each line is a valid member, the lines
    /// joined by commas are a valid object, and the general parser is not needed. Entries of
    /// another tool can span lines; a file with such an entry goes through the general parser until
    /// the entry is rewritten.
    fn parse_compact_form(text: &'a str) -> Option<Self> {
        let mut rest = text.strip_prefix("{\"storage\":{\n")?;
        let mut entries = Vec::with_capacity(text.len() / SHORT_LINE);
        loop {
            let (entry, after) =
                StoredEntry::in_compact_form(rest).or_else(|| Self::parse_line(rest))?;
            entries.push(entry);
            match after.strip_prefix(",\n") {
                Some(next) => rest = next,
                None => {
                    return Some(Self {
                        entries,
                        extra: Vec::new(),
                        record: Self::parse_end(after)?,
                    });
                }
            }
        }
    }

    /// Parses the text after the last entry, which may have a token record.
    fn parse_end(text: &str) -> Option<Option<TokenRecord>> {
        if text == "\n}}\n" {
            return Some(None);
        }
        let member = text
            .strip_prefix("\n},\"timed_store\":")?
            .strip_suffix("}\n")?;
        TokenRecord::from_json(member).map(Some)
    }

    /// Parses the entry in the first line of `text`, and returns the text after it.
    fn parse_line(text: &'a str) -> Option<(StoredEntry<'a>, &'a str)> {
        let line = text.lines().next()?;
        let line = line.strip_suffix(',').unwrap_or(line);
        Some((StoredEntry::parse(line)?, &text[line.len()..]))
    }

    /// Parses any JSON object with the member `storage`, for example the original tool's
    /// pretty-printed one.
    fn parse_any_form(text: &'a str) -> Result<Self, String> {
        let members = RawObject::parse(text).map_err(|error| {
            // Errors about types quote the value.
            if error.is_data() {
                "it is not a JSON object".to_owned()
            } else {
                error.to_string()
            }
        })?;
        let mut document = Self::default();
        let mut has_storage = false;
        for (key, value) in members.0 {
            let name = decode_string(key.get());
            if name.as_deref() == Some(token_record::KEY) {
                document.record = TokenRecord::from_json(value.get());
                continue;
            }
            if name.as_deref() != Some("storage") {
                document.extra.push(span(text, key.get(), value.get()));
                continue;
            }
            has_storage = true;
            let storage = RawObject::parse(value.get())
                .map_err(|_| "`storage` is not an object".to_owned())?;
            for (key, object) in storage.0 {
                let line = span(text, key.get(), object.get());
                let entry = StoredEntry::from_parts(line, key.get(), object.get());
                document.entries.push(
                    entry
                        .ok_or_else(|| format!("the entry of session {} is not one", key.get()))?,
                );
            }
        }
        if has_storage {
            Ok(document)
        } else {
            Err("`storage` is missing".to_owned())
        }
    }
}

/// A guess at the number of entries that is rarely too low: the shortest entry that this crate
/// writes has about 70 bytes.
const SHORT_LINE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 4] = [
        r#""a":{"data":"x","updated_at":"2025-08-18T10:20:30.456Z","ttl_ms":14400000,"token":7}"#,
        r#""b":{"data":"é","updated_at":"2025-08-18T10:20:30.456Z","ttl_ms":60000}"#,
        r#""c":{"data":{"n":[1,2]},"updated_at":"2025-08-18T10:20:30.456Z","ttl_ms":1}"#,
        r#""d\n":{"data":"\"","updated_at":"2025-08-18T10:20:30.456Z","owner":{"pid":1}}"#,
    ];

    #[test]
    fn the_compact_form_takes_the_fast_path() {
        let text = format!("{{\"storage\":{{\n{}\n}}}}\n", LINES.join(",\n"));
        let document = Document::parse_compact_form(&text).unwrap();
        let lines: Vec<&str> = document.entries.iter().map(|entry| entry.line).collect();
        assert_eq!(lines, LINES);
    }

    /// For every text with one changed byte, both parsers find the same entries.
    #[test]
    fn both_parsers_read_every_single_byte_change_alike() {
        let text = format!("{{\"storage\":{{\n{}\n}}}}\n", LINES.join(",\n"));
        let mut alike = 0;
        for at in 0..text.len() {
            for byte in 0..=127 {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] = byte;
                let Ok(changed) = String::from_utf8(bytes) else {
                    continue;
                };
                let compact_form = Document::parse_compact_form(&changed);
                let any_form = Document::parse_any_form(&changed);
                if let Some(document) = compact_form {
                    assert_eq!(any_form.as_ref(), Ok(&document), "{changed}");
                    alike += 1;
                }
                let general = serde_json::from_str::<serde_json::Value>(&changed);
                assert!(any_form.is_err() || general.is_ok(), "{changed}");
            }
        }
        assert!(alike > 2000, "{alike}");
    }

    #[test]
    fn the_token_record_is_read_in_every_form() {
        let record = TokenRecord {
            store_id: 0xabc,
            last_token: 42,
        };
        let compact = format!(
            "{{\"storage\":{{\n{}\n}},{}}}\n",
            LINES[0],
            record.to_member()
        );
        let document = Document::parse_compact_form(&compact).unwrap();
        assert_eq!(document.record, Some(record));
        let other = format!("{{{},\"storage\":{{{}}}}}", record.to_member(), LINES[0]);
        assert!(Document::parse_compact_form(&other).is_none());
        let document = Document::parse(&other).unwrap();
        assert_eq!((document.record, document.extra.len()), (Some(record), 0));
    }

    #[test]
    fn entries_and_members_of_other_forms_keep_their_text() {
        let text = r#" { "version" : 2 , "storage" : { "a" :
            { "updated_at" : "2025-08-18T10:20:30Z", "data" : [ ] } } } "#;
        let document = Document::parse(text).unwrap();
        assert_eq!(document.extra, [r#""version" : 2"#]);
        let [entry] = document.entries.as_slice() else {
            panic!("{document:?}");
        };
        assert!(entry.line.starts_with("\"a\" :\n"), "{}", entry.line);
        assert!(entry.line.ends_with("[ ] }"), "{}", entry.line);
        assert_eq!((&*entry.session, entry.data), ("a", "[ ]"));
    }

    #[track_caller]
    fn check_corrupt(text: &str, expected: &str) {
        let reason = Document::parse(text).unwrap_err();
        assert!(reason.contains(expected), "{text}: {reason}");
    }

    #[test]
    fn the_reason_names_the_damage_without_quoting_values() {
        check_corrupt("", "EOF");
        check_corrupt("\"secret\"", "it is not a JSON object");
        check_corrupt("{}", "`storage` is missing");
        check_corrupt(r#"{"storage":["secret"]}"#, "`storage` is not an object");
        check_corrupt(r#"{"storage":{"a":{"data":"secret"}}}"#, "session \"a\"");
        check_corrupt("{\"storage\":{\n\n}", "line 3 column 1");
    }
}
