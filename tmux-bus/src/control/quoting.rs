//! Quoting of control mode: octal escapes in `%output`, and words of a command line.

/// Appends the bytes of an `%output` value. tmux writes control characters and the backslash as
/// `\ooo`.
///
/// Bytes, not text: one character may be split over two lines. An incomplete escape is kept as it
/// is, so that no byte is lost.
pub(crate) fn unescape_into(mut value: &[u8], out: &mut Vec<u8>) {
    out.reserve(value.len());
    while let Some(at) = memchr::memchr(b'\\', value) {
        out.extend_from_slice(&value[..at]);
        match octal(&value[at + 1..]) {
            Some(byte) => {
                out.push(byte);
                value = &value[at + 4..];
            }
            None => {
                out.push(b'\\');
                value = &value[at + 1..];
            }
        }
    }
    out.extend_from_slice(value);
}

fn octal(digits: &[u8]) -> Option<u8> {
    let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] = digits else {
        return None;
    };
    Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
}

/// Quotes any bytes but NUL as one word of a tmux command line.
pub(crate) fn quote(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut word = String::with_capacity(bytes.len() + bytes.len() / 8 + 2);
    word.push('"');
    for &byte in bytes {
        match byte {
            // Inside double quotes tmux expands `$`, `~` and `\`; a newline ends the command.
            b'"' | b'$' | b'\\' | b'~' | 0..=0x1f | 0x7f.. => {
                word.push('\\');
                for shift in [6, 3, 0] {
                    word.push(char::from(b'0' + (byte >> shift & 7)));
                }
            }
            _ => word.push(char::from(byte)),
        }
    }
    word.push('"');
    word
}

/// As [`quote`], for a word in which tmux expands formats: `#(...)` would run a command.
pub(crate) fn quote_literal(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut literal = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'#' {
            literal.push(byte);
            rest = after;
            continue;
        }
        let run = rest.iter().take_while(|&&b| b == b'#').count();
        // `##` is `#`, except before a bracket, where a style begins and tmux expands nothing.
        let copies = if rest.get(run) == Some(&b'[') { 1 } else { 2 };
        literal.resize(literal.len() + run * copies, b'#');
        rest = &rest[run..];
    }
    quote(literal)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unescape(value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        unescape_into(value, &mut out);
        out
    }

    fn escape_as_tmux_does(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for &byte in bytes {
            if byte < b' ' || byte == b'\\' {
                out.extend_from_slice(format!("\\{byte:03o}").as_bytes());
            } else {
                out.push(byte);
            }
        }
        out
    }

    #[test]
    fn incomplete_escapes_are_kept() {
        for (value, expected) in [
            (&b"a\\015\\012"[..], &b"a\r\n"[..]),
            (b"\\134", b"\\"),
            (b"\\", b"\\"),
            (b"\\01", b"\\01"),
            (b"\\999", b"\\999"),
            (b"\\777", b"\\777"),
            (b"\\\\015", b"\\\r"),
        ] {
            assert_eq!(unescape(value), expected);
        }
    }

    #[test]
    fn formats_are_not_expanded() {
        for (text, expected) in [
            ("plain", "\"plain\""),
            ("a#(b)", "\"a##(b)\""),
            ("##{x}#", "\"####{x}##\""),
            ("#[x]##[y]", "\"#[x]##[y]\""),
        ] {
            assert_eq!(quote_literal(text), expected);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_unescaped(bytes: Vec<u8>) {
            prop_assert_eq!(unescape(&escape_as_tmux_does(&bytes)), bytes);
        }

        #[test]
        fn a_quoted_word_is_printable_ascii_and_keeps_its_bytes(bytes: Vec<u8>) {
            let word = quote(&bytes);
            prop_assert!(word.bytes().all(|b| (b' '..0x7f).contains(&b)));
            let inner = &word.as_bytes()[1..word.len() - 1];
            prop_assert!(!inner.contains(&b'"') && !inner.contains(&b'$'));
            prop_assert_eq!(unescape(inner), bytes);
        }
    }
}
