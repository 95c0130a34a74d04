//! The parser of the control-mode stream.
//!
//! # Theory
//!
//! The stream consists of lines: notifications, and blocks `%begin` ... `%end` or `%error` with the
//! output of one command.
//!
//! - **Bound and policy.** An incomplete line and the body of a block hold at most [`MAX_BLOCK`]
//!   bytes each. The body of a longer block is dropped, and the block ends as
//!   [`BlockEnd::TooLong`]: its command fails. tmux writes notifications of some kilobytes. A
//!   longer one means that output is lost, so the stream is given up ([`StreamEvent::Exit`]) and
//!   all waits fail.
//! - **Invariant.** `parsed` counts every byte, also a dropped one, because it is compared with the
//!   offsets of blocks.
//!
//! **Example.** With a limit of 16: `%begin 1 2 1`, `12345678`, `12345678`, `%end 1 2 1` is a block
//! that is too long, because its body would have 18 bytes. The next block is read as usual.

use super::quoting;
use crate::pane::PaneId;

/// An event of the stream. Bytes, because the output of a pane need not be UTF-8.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    /// The block of a command begins. `ours` is false for the attach command itself; `at` is the
    /// offset behind the line.
    Begin {
        ours: bool,
        at: u64,
    },
    /// The block of a command ends.
    End {
        ours: bool,
        end: BlockEnd,
        body: Vec<u8>,
    },
    Output {
        pane: PaneId,
        bytes: Vec<u8>,
    },
    /// Panes or windows have changed; a pane may be gone.
    PanesChanged,
    /// A pane entered or left a mode, such as copy mode.
    ModeChanged(PaneId),
    /// The client was detached, its session or server has ended, or output was lost.
    Exit,
}

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockEnd {
    Ok,
    /// tmux refused the command; the body is its message.
    Failed,
    /// The command was run; its output was longer than [`MAX_BLOCK`] and is dropped.
    TooLong,
}

/// The most bytes of one line or one block. Twice the default limit of an answer: the longest block is
/// a capture of a screen with the lines that scrolled off it.
pub(crate) const MAX_BLOCK: usize = 128 << 20;

#[derive(Debug)]
pub(crate) struct StreamParser {
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
    /// Number of dropped bytes of an incomplete line that is too long.
    dropped: u64,
    block: Option<Block>,
    parsed: u64,
    limit: usize,
}

impl Default for StreamParser {
    fn default() -> Self {
        Self {
            rest: Vec::new(),
            dropped: 0,
            block: None,
            parsed: 0,
            limit: MAX_BLOCK,
        }
    }
}

#[derive(Debug)]
struct Block {
    /// Time, number and flags of `%begin`. Only a line with exactly these ends the block: a
    /// captured line can look like an end.
    guard: Vec<u8>,
    body: Vec<u8>,
    is_too_long: bool,
}

impl StreamParser {
    /// Offset behind the last complete line.
    pub(crate) fn parsed(&self) -> u64 {
        self.parsed
    }

    /// Takes bytes, cut anywhere.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut event: impl FnMut(StreamEvent)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            if self.dropped > 0 || self.rest.len() + end > self.limit {
                self.dropped += (self.rest.len() + end) as u64;
                self.rest = Vec::new();
                self.long_line(&mut event);
            } else if self.rest.is_empty() {
                self.line(&bytes[..end], &mut event);
            } else {
                let mut line = std::mem::take(&mut self.rest);
                line.extend_from_slice(&bytes[..end]);
                self.line(&line, &mut event);
                line.clear();
                self.rest = line;
            }
            bytes = &bytes[end + 1..];
        }
        if self.dropped > 0 || self.rest.len() + bytes.len() > self.limit {
            self.dropped += (self.rest.len() + bytes.len()) as u64;
            self.rest = Vec::new();
        } else {
            self.rest.extend_from_slice(bytes);
        }
    }

    /// A line that was dropped because of its length has ended.
    fn long_line(&mut self, event: &mut impl FnMut(StreamEvent)) {
        self.parsed += std::mem::take(&mut self.dropped) + 1;
        match &mut self.block {
            Some(block) => block.drop_body(),
            None => {
                tracing::error!(limit = self.limit, "tmux wrote a line that is too long");
                event(StreamEvent::Exit);
            }
        }
    }

    fn line(&mut self, line: &[u8], event: &mut impl FnMut(StreamEvent)) {
        self.parsed += line.len() as u64 + 1;
        if let Some(block) = &mut self.block {
            let end = if line.strip_prefix(b"%end ") == Some(&block.guard) {
                if block.is_too_long {
                    BlockEnd::TooLong
                } else {
                    BlockEnd::Ok
                }
            } else if line.strip_prefix(b"%error ") == Some(&block.guard) {
                BlockEnd::Failed
            } else {
                return block.add(line, self.limit);
            };
            let ours = ours(&block.guard);
            let mut body = std::mem::take(&mut block.body);
            body.pop();
            self.block = None;
            return event(StreamEvent::End { ours, end, body });
        }
        let (name, value) = match memchr::memchr(b' ', line) {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        match name {
            b"%output" => {
                let Some(at) = memchr::memchr(b' ', value) else {
                    return;
                };
                let Some(pane) = PaneId::parse(&value[..at]) else {
                    return;
                };
                let mut bytes = Vec::new();
                quoting::unescape_into(&value[at + 1..], &mut bytes);
                event(StreamEvent::Output { pane, bytes });
            }
            b"%begin" => {
                event(StreamEvent::Begin {
                    ours: ours(value),
                    at: self.parsed,
                });
                self.block = Some(Block {
                    guard: value.to_vec(),
                    body: Vec::new(),
                    is_too_long: false,
                });
            }
            b"%layout-change" | b"%window-close" | b"%unlinked-window-close" => {
                event(StreamEvent::PanesChanged);
            }
            b"%pane-mode-changed" => {
                if let Some(pane) = PaneId::parse(value) {
                    event(StreamEvent::ModeChanged(pane));
                }
            }
            b"%exit" => event(StreamEvent::Exit),
            // Other notifications, and bare lines: tmux prints errors of hooks between blocks.
            _ => {}
        }
    }
}

impl Block {
    fn add(&mut self, line: &[u8], limit: usize) {
        if self.body.len() + line.len() + 1 > limit {
            self.drop_body();
        }
        if !self.is_too_long {
            self.body.extend_from_slice(line);
            self.body.push(b'\n');
        }
    }

    fn drop_body(&mut self) {
        self.is_too_long = true;
        self.body = Vec::new();
    }
}

/// The flags, the last number of a guard, are 1 for commands that this client wrote.
fn ours(guard: &[u8]) -> bool {
    guard.ends_with(b" 1")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<StreamEvent> {
        let mut parser = StreamParser::default();
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, |event| events.push(event));
        }
        events
    }

    fn pane(text: &str) -> PaneId {
        text.parse().unwrap()
    }

    #[test]
    fn a_body_that_looks_like_an_end_stays_in_the_body() {
        let events = parse(&[
            b"%begin 17 265 1\n%end 17 264 1\n%output %1 x\n%error 17 265 0\n%end 17 265 1\n",
        ]);
        assert_eq!(
            events,
            [
                StreamEvent::Begin { ours: true, at: 16 },
                StreamEvent::End {
                    ours: true,
                    end: BlockEnd::Ok,
                    body: b"%end 17 264 1\n%output %1 x\n%error 17 265 0".to_vec()
                },
            ]
        );
    }

    #[test]
    fn output_is_unescaped_to_bytes() {
        let events = parse(&[b"%output %12 \xe3\x81\n%output %12 \x82\\015\\012\n"]);
        assert_eq!(
            events,
            [
                StreamEvent::Output {
                    pane: pane("%12"),
                    bytes: b"\xe3\x81".to_vec()
                },
                StreamEvent::Output {
                    pane: pane("%12"),
                    bytes: b"\x82\r\n".to_vec()
                },
            ]
        );
    }

    #[test]
    fn the_attach_block_is_not_ours_and_bare_lines_are_skipped() {
        let events = parse(&[b"%begin 1 2 0\n%end 1 2 0\ncan't find window: x\n%session-changed $0 a\n%layout-change @0 a b *\n%exit\n"]);
        assert_eq!(
            events,
            [
                StreamEvent::Begin {
                    ours: false,
                    at: 13
                },
                StreamEvent::End {
                    ours: false,
                    end: BlockEnd::Ok,
                    body: Vec::new()
                },
                StreamEvent::PanesChanged,
                StreamEvent::Exit,
            ]
        );
    }

    fn parse_with_limit(limit: usize, pieces: &[&[u8]]) -> (Vec<StreamEvent>, u64) {
        let mut parser = StreamParser {
            limit,
            ..StreamParser::default()
        };
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, |event| events.push(event));
        }
        (events, parser.parsed())
    }

    #[test]
    fn a_block_that_is_too_long_fails_and_the_next_one_is_read() {
        let too_long = |at| {
            [
                StreamEvent::Begin { ours: true, at },
                StreamEvent::End {
                    ours: true,
                    end: BlockEnd::TooLong,
                    body: Vec::new(),
                },
            ]
        };
        let lines = b"%begin 1 2 1\n12345678\n12345678\n%end 1 2 1\n";
        let line = b"%begin 1 3 1\n12345678901234567890\n%end 1 3 1\n";
        let next = b"%begin 1 4 1\nshort\n%end 1 4 1\n";
        let whole = [&lines[..], line, next].concat();
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        for pieces in [&[whole.as_slice()][..], &bytes] {
            let (events, parsed) = parse_with_limit(16, pieces);
            assert_eq!(parsed, whole.len() as u64, "dropped bytes are counted");
            assert_eq!(events[..2], too_long(13));
            assert_eq!(events[2..4], too_long(lines.len() as u64 + 13));
            let body = b"short".to_vec();
            let end = BlockEnd::Ok;
            let ours = true;
            assert_eq!(events[5], StreamEvent::End { ours, end, body });
        }
    }

    #[test]
    fn a_notification_that_is_too_long_ends_the_stream() {
        let line = b"%output %1 123456789\n";
        let bytes: Vec<&[u8]> = line.chunks(1).collect();
        for pieces in [&[line.as_slice()][..], &bytes] {
            let (events, parsed) = parse_with_limit(16, pieces);
            assert_eq!(events, [StreamEvent::Exit]);
            assert_eq!(parsed, line.len() as u64);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_do_not_panic(pieces: Vec<Vec<u8>>) {
            parse(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }

        #[test]
        fn events_do_not_depend_on_the_cut_of_the_stream(
            lines in prop::collection::vec("(%output %[0-9]{1,2} [a-z\\\\0-7]{0,9}|%begin 1 [0-9] 1|%end 1 [0-9] 1|%error 1 [0-9] 1|[ -~]{0,12}|%exit)", 0..20),
            cuts in prop::collection::vec(0usize..400, 0..12),
        ) {
            let whole = lines.iter().map(|l| format!("{l}\n")).collect::<String>().into_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|c| c.min(whole.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&whole[from..cut]);
                from = cut;
            }
            pieces.push(&whole[from..]);
            prop_assert_eq!(parse(&pieces), parse(&[&whole]));
        }
    }
}
