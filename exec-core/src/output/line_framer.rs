//! Bytes to lines. Lines are framed before anything is decoded, so that a character that two reads
//! have split is whole again in its line.

use bytes::Bytes;
use memchr::{memchr, memchr_iter, memrchr};

use super::line::Line;

/// From this size on, the buffer of a line has the largest size at once, or grows by this much.
const LARGE_LINE: usize = 1 << 20;
const LARGE_STEP: usize = 64 << 20;

/// Cuts a stream of bytes into lines of at most `max_len` bytes.
#[derive(Debug)]
pub(crate) struct LineFramer {
    /// The beginning of the current line, at most `max_len` bytes.
    partial: Vec<u8>,
    /// How many bytes of the current line were discarded.
    cut: u64,
    /// Whether the current line ends in `\r` so far, which may be the first half of the line end.
    ends_in_return: bool,
    max_len: usize,
}

impl LineFramer {
    pub(crate) fn new(max_len: usize) -> Self {
        Self {
            partial: Vec::new(),
            cut: 0,
            ends_in_return: false,
            max_len: max_len.max(1),
        }
    }

    /// Takes the next bytes and calls `line` for every line that they complete.
    pub(crate) fn push(&mut self, mut chunk: &[u8], mut line: impl FnMut(Line)) {
        if self.in_line() {
            let Some(end) = memchr(b'\n', chunk) else {
                return self.keep(chunk);
            };
            self.keep(&chunk[..end]);
            line(self.take());
            chunk = &chunk[end + 1..];
        }
        let Some(last) = memrchr(b'\n', chunk) else {
            return self.keep(chunk);
        };
        // One copy for all lines of the chunk; each line is a slice of it.
        let whole = Bytes::copy_from_slice(&chunk[..=last]);
        let mut start = 0;
        for end in memchr_iter(b'\n', &whole) {
            let bytes = whole.slice(start..end);
            let ends_in_return = bytes.last() == Some(&b'\r');
            let len = bytes.len() as u64;
            line(self.frame(bytes, len, ends_in_return));
            start = end + 1;
        }
        self.keep(&chunk[last + 1..]);
    }

    /// The last line, if the output does not end with a line end.
    pub(crate) fn finish(&mut self) -> Option<Line> {
        self.in_line().then(|| self.take())
    }

    fn in_line(&self) -> bool {
        !self.partial.is_empty() || self.cut > 0
    }

    fn keep(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        self.ends_in_return = *last == b'\r';
        let kept = bytes.len().min(self.max_len - self.partial.len());
        // Doubling would leave freed pieces of half the size, a quarter and so on, which the
        // allocator cannot return while others are in use. Untouched pages of a large allocation
        // cost nothing, and `frame` returns them. A cap that stands for "no cap" is more than can be
        // allocated.
        let len = self.partial.len();
        if len + kept > self.partial.capacity().max(LARGE_LINE) {
            let room = (self.max_len - len).min(len.max(LARGE_STEP));
            self.partial.reserve_exact(room);
        }
        self.partial.extend_from_slice(&bytes[..kept]);
        self.cut += (bytes.len() - kept) as u64;
    }

    fn take(&mut self) -> Line {
        let bytes = Bytes::from(std::mem::take(&mut self.partial));
        let len = bytes.len() as u64 + std::mem::take(&mut self.cut);
        self.frame(bytes, len, self.ends_in_return)
    }

    /// `len` is the length of the line before it was cut.
    fn frame(&self, mut bytes: Bytes, mut len: u64, ends_in_return: bool) -> Line {
        len -= u64::from(ends_in_return);
        bytes.truncate(self.max_len.min(usize::try_from(len).unwrap_or(usize::MAX)));
        match len - bytes.len() as u64 {
            0 => Line::whole(bytes),
            cut => Line::truncated(bytes, cut),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(max_len: usize, chunks: &[&[u8]]) -> Vec<(Vec<u8>, u64)> {
        let mut framer = LineFramer::new(max_len);
        let mut lines = Vec::new();
        for chunk in chunks {
            framer.push(chunk, |line| lines.push(line));
        }
        lines.extend(framer.finish());
        lines
            .into_iter()
            .map(|line| (line.as_bytes().to_vec(), line.missing_bytes()))
            .collect()
    }

    #[track_caller]
    fn check(max_len: usize, chunks: &[&[u8]], expected: &[(&[u8], u64)]) {
        let expected: Vec<_> = expected.iter().map(|(b, cut)| (b.to_vec(), *cut)).collect();
        assert_eq!(frame(max_len, chunks), expected);
    }

    #[test]
    fn lines_end_at_line_ends_only() {
        check(99, &[b"a\nb\n"], &[(b"a", 0), (b"b", 0)]);
        check(99, &[b"a", b"b\nc"], &[(b"ab", 0), (b"c", 0)]);
        check(99, &[b"\n\n"], &[(b"", 0), (b"", 0)]);
        check(99, &[b"a\r\nb\rc\r", b"\n"], &[(b"a", 0), (b"b\rc", 0)]);
        check(99, &[b"", b""], &[]);
    }

    #[test]
    fn a_character_split_over_two_reads_arrives_whole() {
        let text = "日本語\n".as_bytes();
        for split in 0..text.len() {
            check(
                99,
                &[&text[..split], &text[split..]],
                &[("日本語".as_bytes(), 0)],
            );
        }
    }

    #[test]
    fn invalid_bytes_are_kept() {
        check(
            99,
            &[b"\xff\xfe", b"\x80\nok\n"],
            &[(b"\xff\xfe\x80", 0), (b"ok", 0)],
        );
    }

    #[test]
    fn a_long_line_is_cut_and_counted_and_the_next_is_whole() {
        check(3, &[b"abcdef\nxyz\n"], &[(b"abc", 3), (b"xyz", 0)]);
        check(3, &[b"ab", b"cd", b"ef\nxyz"], &[(b"abc", 3), (b"xyz", 0)]);
        check(3, &[b"abc\r\n"], &[(b"abc", 0)]);
        check(3, &[b"abc\r", b"\n"], &[(b"abc", 0)]);
        check(4, &["日本\n".as_bytes()], &[("日".as_bytes(), 3)]);
    }

    #[test]
    fn a_cap_beyond_all_memory_does_not_panic() {
        let long = vec![b'x'; LARGE_LINE + 1];
        let lines = frame(usize::MAX, &[&long, b"y\n"]);
        assert_eq!((lines[0].0.len(), lines[0].1), (LARGE_LINE + 2, 0));
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_bytes_were_read(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..200),
            cuts in prop::collection::vec(0usize..200, 0..8),
            max_len in 1usize..40,
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<_> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(frame(max_len, &chunks), frame(max_len, &[&bytes]));
        }

        #[test]
        fn kept_and_missing_bytes_and_line_ends_add_up(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), 1u8..=9, 14u8..=255], 0..200),
            max_len in 1usize..40,
        ) {
            let lines = frame(max_len, &[&bytes]);
            let ends = bytes.iter().filter(|b| **b == b'\n').count();
            let sum: u64 = lines.iter().map(|(b, cut)| b.len() as u64 + cut).sum();
            prop_assert_eq!(sum + ends as u64, bytes.len() as u64);
        }
    }
}
