//! Checksummed lines: `crc32 json\n`, each checksum starting from the one before it, so that
//! a line proves everything above it.

use std::io::BufRead;

/// A reader's position after the last good line, and what comes after it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lines<'a> {
    pub(super) payloads: Vec<&'a str>,
    /// The length of the good lines.
    pub(super) len: u64,
    pub(super) crc: u32,
    pub(super) tail: Tail,
}

/// What follows the last good line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tail {
    Nothing,
    /// The rest of a write that a crash cut off: it was never acknowledged.
    Torn,
    /// A whole line that is not what was written.
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

pub(super) fn read(bytes: &[u8]) -> Lines<'_> {
    let mut lines = Lines {
        payloads: Vec::new(),
        len: 0,
        crc: 0,
        tail: Tail::Nothing,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let good = line_end(rest).and_then(|end| Some((end, parse(&rest[..end], lines.crc)?)));
        let Some((end, (payload, crc))) = good else {
            // A crash leaves a line without its end, or with zeros where data did not reach
            // the disk; JSON has none. Anything else was changed after it was written.
            // A line that is whole but for its last byte lost that byte later, too.
            let whole = || {
                let (_, line) = rest.split_last()?;
                parse(line, lines.crc)
            };
            let cut = !rest.contains(&b'\n') && whole().is_none();
            let torn = cut || rest.contains(&0);
            lines.tail = if torn { Tail::Torn } else { Tail::Damaged };
            break;
        };
        lines.payloads.push(payload);
        lines.crc = crc;
        lines.len += end as u64 + 1;
        rest = &rest[end + 1..];
    }
    lines
}

/// Where the first line ends.
fn line_end(mut bytes: &[u8]) -> Option<usize> {
    let whole = bytes;
    // Looks at many bytes at a time, where `position` looks at each.
    let end = bytes.skip_until(b'\n').ok()?.checked_sub(1)?;
    (whole.get(end) == Some(&b'\n')).then_some(end)
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
