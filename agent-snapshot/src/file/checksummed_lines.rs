//! Lines of the form `crc32 json\n`. Each checksum is seeded with the one before it, so the last
//! line proves all lines above it.

use std::io::BufRead;

/// The good lines at the start of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChecksummedLines<'a> {
    pub(super) payloads: Vec<&'a str>,
    /// The length of the good lines in bytes.
    pub(super) len: u64,
    /// The checksum of the last good line.
    pub(super) crc: u32,
    pub(super) tail: Tail,
}

/// The bytes after the last good line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tail {
    Nothing,
    /// A part of a line. A crash cut off the write, so it was never acknowledged.
    Torn,
    /// A line that is not what was written.
    Damaged,
}

/// Appends a line and returns its checksum.
pub(super) fn push(out: &mut String, crc: u32, payload: &str) -> u32 {
    let crc = checksum(crc, payload.as_bytes());
    out.push_str(&format!("{crc:08x} {payload}\n"));
    crc
}

pub(super) fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(bytes);
    hasher.finalize()
}

pub(super) fn read(bytes: &[u8]) -> ChecksummedLines<'_> {
    let mut lines = ChecksummedLines {
        payloads: Vec::new(),
        len: 0,
        crc: 0,
        tail: Tail::Nothing,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut after = rest;
        let len = after.skip_until(b'\n').unwrap_or_default();
        let line = rest[..len].strip_suffix(b"\n");
        let Some((payload, crc)) = line.and_then(|line| parse(line, lines.crc)) else {
            lines.tail = judge_tail(rest, lines.crc);
            break;
        };
        lines.payloads.push(payload);
        lines.crc = crc;
        lines.len += len as u64;
        rest = after;
    }
    lines
}

/// A crash leaves a line without its end, or zeros where data did not reach the disk (JSON text
/// has no zeros). Anything else was changed after it was written. A line
/// whose last byte differs was changed too: a torn write ends before the byte.
///
/// Each line is synced before the next one is written, so a crash can only tear the last line. A
/// line after the bad one proves that the bad one was complete once.
fn judge_tail(rest: &[u8], crc: u32) -> Tail {
    let Some((last, before_last)) = rest.split_last() else {
        return Tail::Nothing;
    };
    let after_zeros = rest.rsplit(|byte| *byte == 0).next().unwrap_or_default();
    if before_last.contains(&b'\n') || (*last == b'\n' && looks_whole(after_zeros, rest)) {
        return Tail::Damaged;
    }
    let is_cut = *last != b'\n' && parse(before_last, crc).is_none();
    if is_cut || rest.contains(&0) {
        Tail::Torn
    } else {
        Tail::Damaged
    }
}

/// Whether zeros are followed by a line from its checksum to its end: the zeros have then replaced
/// the line end before it too.
fn looks_whole(line: &[u8], rest: &[u8]) -> bool {
    let has_checksum = |line: &[u8]| line[..8].iter().all(u8::is_ascii_hexdigit);
    line.len() < rest.len() && line.len() > 10 && has_checksum(line) && line[8..].starts_with(b" {")
}

fn parse(line: &[u8], seed: u32) -> Option<(&str, u32)> {
    let line = std::str::from_utf8(line).ok()?;
    let (crc, payload) = line.split_at_checked(8)?;
    let crc = u32::from_str_radix(crc, 16).ok()?;
    let payload = payload.strip_prefix(' ')?;
    (checksum(seed, payload.as_bytes()) == crc).then_some((payload, crc))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> String {
        let mut out = String::new();
        let mut crc = 0;
        for payload in ["{\"a\":1}", "{}", "{\"b\":\"日本\"}"] {
            crc = push(&mut out, crc, payload);
        }
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let text = three();
        let lines = read(text.as_bytes());
        assert_eq!(lines.payloads, ["{\"a\":1}", "{}", "{\"b\":\"日本\"}"]);
        assert_eq!(lines.len, text.len() as u64);
        assert_eq!(lines.tail, Tail::Nothing);
    }

    #[test]
    fn a_line_cut_anywhere_is_torn_and_the_others_are_kept() {
        let text = three();
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        for cut in last + 1..text.len() {
            let lines = read(&text.as_bytes()[..cut]);
            assert_eq!((lines.payloads.len(), lines.tail), (2, Tail::Torn), "{cut}");
        }
    }

    #[test]
    fn a_line_with_a_hole_is_torn() {
        let text = three();
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        let mut bytes = text.into_bytes();
        bytes[last..last + 5].fill(0);
        assert_eq!(read(&bytes).tail, Tail::Torn);
    }

    #[test]
    fn zeros_before_the_last_line_are_damage() {
        let text = three();
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        for at in 0..last {
            for len in [1, 5, last - at] {
                let mut bytes = text.clone().into_bytes();
                bytes[at..(at + len).min(last)].fill(0);
                assert_eq!(read(&bytes).tail, Tail::Damaged, "{len} zeros at {at}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_damage() {
        let text = three();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let lines = read(&bytes);
            assert_eq!(lines.tail, Tail::Damaged, "{at}");
        }
    }

    #[test]
    fn a_missing_line_is_damage() {
        let text = three();
        let (first, rest) = text.split_once('\n').unwrap();
        let without_second = format!("{first}\n{}", rest.split_once('\n').unwrap().1);
        assert_eq!(read(without_second.as_bytes()).tail, Tail::Damaged);
    }
}
