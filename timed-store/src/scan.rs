//! A cursor over JSON text: only as much of a parser as it takes to find the parts of an entry
//! without copying them. Every operation looks at every entry, and this takes half of the time
//! of a general parser. What it passes over is checked as strictly as serde_json does, which
//! does the checking of everything but plain strings and whole numbers.

use std::borrow::Cow;
use std::fmt;

use serde::de::IgnoredAny;

pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

/// Where the text stops making sense, and what was missing there.
#[derive(Debug)]
pub(crate) struct Damage {
    pub(crate) at: usize,
    pub(crate) missing: &'static str,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Passes over white space and returns where the next thing begins.
    pub(crate) fn next(&mut self) -> usize {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
        self.at
    }

    /// The text from `start` to here.
    pub(crate) fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    /// Passes over `token` if it comes next.
    #[inline(always)] // For a known token it is one comparison of words.
    pub(crate) fn take(&mut self, token: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(token.as_bytes());
        self.at += if found { token.len() } else { 0 };
        found
    }

    /// Passes over the next `length` bytes, if they are a text.
    #[inline]
    pub(crate) fn take_bytes(&mut self, length: usize) -> Option<&'a str> {
        let taken = self.text.get(self.at..self.at + length)?;
        self.at += length;
        Some(taken)
    }

    /// Goes back to where `next` was.
    pub(crate) fn back_to(&mut self, at: usize) {
        self.at = at;
    }

    /// Nothing but white space is left.
    pub(crate) fn end(&mut self) -> Result<(), Damage> {
        if self.next() == self.text.len() {
            Ok(())
        } else {
            Err(self.damage("the end of the file"))
        }
    }

    /// An object. `field` gets each key, with the place where it begins, and has to take its
    /// value.
    pub(crate) fn object(
        &mut self,
        mut field: impl FnMut(&mut Self, Cow<'a, str>, usize) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        self.expect(b'{', "an object")?;
        self.next();
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let start = self.next();
            let key = self.key()?;
            field(self, key, start)?;
            self.next();
            if !self.eat(b',') {
                return self.expect(b'}', "a comma or a closing brace");
            }
        }
    }

    /// A string and the colon after it.
    pub(crate) fn key(&mut self) -> Result<Cow<'a, str>, Damage> {
        let key = self.string()?;
        self.next();
        self.expect(b':', "a colon")?;
        self.next();
        Ok(key)
    }

    /// A string, decoded.
    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>, Damage> {
        let start = self.at;
        self.expect(b'"', "a string")?;
        let mut plain = true;
        loop {
            self.at += plain_length(self.text.as_bytes().get(self.at..).unwrap_or_default());
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    plain = false;
                    self.at += 2;
                }
                Some(_) | None => return Err(self.damage("the end of a string")),
            }
        }
        self.at += 1;
        if plain {
            return Ok(self.text[start + 1..self.at - 1].into());
        }
        let decoded = serde_json::from_str::<String>(self.since(start)).map(Cow::Owned);
        decoded.map_err(|_| Damage {
            at: start,
            missing: "a string with sound escapes",
        })
    }

    /// Any value, as it stands.
    pub(crate) fn value(&mut self) -> Result<&'a str, Damage> {
        let start = self.at;
        match self.peek() {
            Some(b'"') => {
                self.string()?;
            }
            Some(b'1'..=b'9') if self.is_plain_number() => {}
            _ => {
                let mut values = serde_json::Deserializer::from_str(&self.text[start..])
                    .into_iter::<IgnoredAny>();
                if values.next().is_none_or(|value| value.is_err()) {
                    return Err(Damage {
                        at: start,
                        missing: "a value",
                    });
                }
                self.at += values.byte_offset();
            }
        }
        Ok(self.since(start))
    }

    /// A whole number, or null.
    pub(crate) fn number(&mut self) -> Result<Option<u64>, Damage> {
        let start = self.at;
        match self.value()? {
            "null" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| Damage {
                at: start,
                missing: "a whole number",
            }),
        }
    }

    /// Passes over the digits if there is nothing else to the number.
    fn is_plain_number(&mut self) -> bool {
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let ends = matches!(rest.get(length), Some(b',' | b'}' | b']' | b' ' | b'\n'));
        if ends {
            self.at += length;
        }
        ends
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, missing: &'static str) -> Result<(), Damage> {
        if self.eat(byte) {
            Ok(())
        } else {
            Err(self.damage(missing))
        }
    }

    fn damage(&self, missing: &'static str) -> Damage {
        Damage {
            at: self.at,
            missing,
        }
    }
}

/// How many bytes there are before a quotation mark, a backslash or a control character. Eight
/// at a time: strings are most of a file.
fn plain_length(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOP_BITS: u64 = ONES << 7;
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // Sets the top bit of each byte below `limit`, and maybe of bytes above the first such.
        let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word;
        let equal = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
        let special = (equal(b'"') | equal(b'\\') | below(word, b' ')) & TOP_BITS;
        if special != 0 {
            return at * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let special = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < b' ';
    bytes.len() - rest.len() + rest.iter().position(special).unwrap_or(rest.len())
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is missing at byte {}", self.missing, self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `text` is taken for one value and nothing else.
    fn is_value(text: &str) -> bool {
        let mut scanner = Scanner::new(text);
        scanner.next();
        scanner.value().is_ok() && scanner.end().is_ok()
    }

    /// Every text of up to five of these characters.
    #[test]
    fn values_are_those_of_serde_json() {
        let alphabet = [
            "{", "}", "[", "]", "\"", "\\", ":", ",", " ", "0", "1", "-", ".", "e", "n", "u",
            "\u{1}", "é",
        ];
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            texts = texts
                .iter()
                .flat_map(|text| alphabet.iter().map(move |c| format!("{text}{c}")))
                .collect();
            for text in &texts {
                assert_eq!(
                    is_value(text),
                    serde_json::from_str::<IgnoredAny>(text).is_ok(),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn plain_bytes_are_counted_right_at_every_place() {
        for special in 0..=255u8 {
            for at in 0..20 {
                for filling in [b' ', b'!', b'#', b'a', 0x7f, 0x80, 0xff] {
                    let mut bytes = [filling; 20];
                    bytes[at] = special;
                    let expected = bytes
                        .iter()
                        .position(|byte| *byte < b' ' || *byte == b'"' || *byte == b'\\');
                    assert_eq!(plain_length(&bytes), expected.unwrap_or(20), "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn objects_are_those_of_serde_json() {
        let text = r#" { "a" : 1 , "b\n" : [ { } , "\"" ] , "c":"\u00e9é\ud83d\ude00","d":-1.5e3,"e":null}"#;
        for at in 0..text.len() {
            for byte in (0..=127).chain([b'\\', b'"']) {
                let mut changed = text.as_bytes().to_vec();
                changed[at] = byte;
                let Ok(changed) = String::from_utf8(changed) else {
                    continue;
                };
                let mut scanner = Scanner::new(&changed);
                scanner.next();
                let ours = scanner
                    .object(|scanner, _, _| scanner.value().map(drop))
                    .and_then(|()| scanner.end());
                let theirs =
                    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&changed);
                assert_eq!(ours.is_ok(), theirs.is_ok(), "{changed}");
            }
        }
    }
}
