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
    #[inline]
    pub(crate) fn next(&mut self) -> usize {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
        self.at
    }

    /// The text from `start` to here.
    #[inline]
    pub(crate) fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    /// Passes over what somebody else has read.
    pub(crate) fn go_to(&mut self, at: usize) {
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
        self.members(|scanner, start| {
            let key = scanner.key()?;
            field(scanner, key, start)
        })
    }

    /// An object. `member` gets the place where each key begins, and has to take key and value.
    #[inline]
    pub(crate) fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, usize) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        self.expect(b'{', "an object")?;
        self.next();
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let start = self.next();
            member(self, start)?;
            self.next();
            if !self.eat(b',') {
                return self.expect(b'}', "a comma or a closing brace");
            }
        }
    }

    /// A string and the colon after it.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<Cow<'a, str>, Damage> {
        let key = self.string()?;
        self.next();
        self.expect(b':', "a colon")?;
        self.next();
        Ok(key)
    }

    /// A string, decoded.
    #[inline]
    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>, Damage> {
        let start = self.at;
        if self.pass_plain_string()? {
            Ok(self.text[start + 1..self.at - 1].into())
        } else {
            self.escaped_string(start).map(Cow::Owned)
        }
    }

    /// Passes over a string up to its end, or up to its first backslash, and says whether it
    /// came to the end.
    #[inline]
    fn pass_plain_string(&mut self) -> Result<bool, Damage> {
        self.expect(b'"', "a string")?;
        self.at += plain_length(self.text.as_bytes().get(self.at..).unwrap_or_default());
        match self.peek() {
            Some(b'"') => {
                self.at += 1;
                Ok(true)
            }
            Some(b'\\') => Ok(false),
            Some(_) | None => Err(self.damage("the end of a string")),
        }
    }

    /// The rest of the string that began at `start`, from its first backslash on.
    #[cold]
    fn escaped_string(&mut self, start: usize) -> Result<String, Damage> {
        while self.peek() == Some(b'\\') {
            self.at += 2;
            self.at += plain_length(self.text.as_bytes().get(self.at..).unwrap_or_default());
        }
        self.expect(b'"', "the end of a string")?;
        serde_json::from_str(self.since(start)).map_err(|_| Damage {
            at: start,
            missing: "a string with sound escapes",
        })
    }

    /// Any value, as it stands.
    #[inline]
    pub(crate) fn value(&mut self) -> Result<&'a str, Damage> {
        let start = self.at;
        if self.peek() == Some(b'"') {
            if !self.pass_plain_string()? {
                self.escaped_string(start)?;
            }
        } else if self.plain_number().is_none() {
            self.other_value()?;
        }
        Ok(self.since(start))
    }

    fn other_value(&mut self) -> Result<(), Damage> {
        let mut values =
            serde_json::Deserializer::from_str(&self.text[self.at..]).into_iter::<IgnoredAny>();
        if values.next().is_none_or(|value| value.is_err()) {
            return Err(self.damage("a value"));
        }
        self.at += values.byte_offset();
        Ok(())
    }

    /// A whole number, or null.
    #[inline]
    pub(crate) fn number(&mut self) -> Result<Option<u64>, Damage> {
        let start = self.at;
        if let Some(number) = self.plain_number() {
            return Ok(Some(number));
        }
        match self.value()? {
            "null" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| Damage {
                at: start,
                missing: "a whole number",
            }),
        }
    }

    /// Passes over digits if there is nothing else to the number.
    #[inline]
    fn plain_number(&mut self) -> Option<u64> {
        let (number, length) = whole_number(&self.text.as_bytes()[self.at..])?;
        self.at += length;
        Some(number)
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    fn expect(&mut self, byte: u8, missing: &'static str) -> Result<(), Damage> {
        if self.eat(byte) {
            Ok(())
        } else {
            Err(self.damage(missing))
        }
    }

    #[inline]
    fn damage(&self, missing: &'static str) -> Damage {
        Damage {
            at: self.at,
            missing,
        }
    }
}

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const TOP_BITS: u64 = ONES << 7;

/// How many bytes there are before a quotation mark, a backslash or a control character. Eight
/// at a time: strings are most of a file.
#[inline]
pub(crate) fn plain_length(bytes: &[u8]) -> usize {
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

/// The whole number that `bytes` begin with, and its length, if nothing else can belong to it.
/// Numbers of more than 18 digits are left to others, and so is zero.
#[inline]
pub(crate) fn whole_number(bytes: &[u8]) -> Option<(u64, usize)> {
    let (mut number, mut length) = eight_digits(bytes.first_chunk()?);
    while let Some(digit @ b'0'..=b'9') = bytes.get(length).filter(|_| length < 18) {
        number = number * 10 + u64::from(digit - b'0');
        length += 1;
    }
    let ends = matches!(bytes.get(length), Some(b',' | b'}' | b']' | b' ' | b'\n'));
    (ends && length > 0 && bytes[0] != b'0').then_some((number, length))
}

/// The number of up to eight digits that `bytes` begin with, and its length.
#[inline]
fn eight_digits(bytes: &[u8; 8]) -> (u64, usize) {
    let digits = u64::from_le_bytes(*bytes) ^ (ONES * u64::from(b'0'));
    // Adding this to a byte above nine sets its top bit, if that was not set before.
    let others = (digits.wrapping_add(ONES * 0x76) | digits) & TOP_BITS;
    let length = others.trailing_zeros() / 8;
    // The last digit comes last, after zeros: then pairs, fours and eights are added up.
    let digits = digits.checked_shl(64 - 8 * length).unwrap_or(0);
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    let number = (fours * 10_000 + (fours >> 32)) & 0xffff_ffff;
    (number, length as usize)
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
    fn whole_numbers_of_every_length_are_read_right() {
        for length in 1..=18 {
            for start in 1..=9 {
                let text: String = (0..length)
                    .map(|at| char::from(b'0' + (start + at) % 10))
                    .collect();
                let number: u64 = text.parse().unwrap();
                for end in [",       ", "}       ", "]       ", "        ", "\n       "] {
                    let found = whole_number(format!("{text}{end}").as_bytes());
                    assert_eq!(found, Some((number, usize::from(length))), "{text}");
                }
                for end in ["x", ".5", "e3", "-", "\"", "/", ":", "\u{b9}", ""] {
                    assert_eq!(
                        whole_number(format!("{text}{end}").as_bytes()),
                        None,
                        "{text}"
                    );
                }
            }
        }
        for text in [
            "0,       ",
            "01,      ",
            ",        ",
            "-1,      ",
            "\"1\",    ",
        ] {
            assert_eq!(whole_number(text.as_bytes()), None, "{text}");
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
