//! The parser of the control-mode stream.

use super::quoting;
use crate::pane::pane_id::PaneId;

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
        ok: bool,
        body: Vec<u8>,
    },
    Output {
        pane: PaneId,
        bytes: Vec<u8>,
    },
    /// Panes or windows have changed; a pane may be gone.
    PanesChanged,
    /// The client was detached, or its session or server has ended.
    Exit,
}

#[derive(Debug, Default)]
pub(crate) struct StreamParser {
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
    block: Option<Block>,
    parsed: u64,
}

#[derive(Debug)]
struct Block {
    /// Time, number and flags of `%begin`. Only a line with exactly these ends the block: a
    /// captured line can look like an end.
    guard: Vec<u8>,
    body: Vec<u8>,
}

impl StreamParser {
    /// Offset behind the last complete line.
    pub(crate) fn parsed(&self) -> u64 {
        self.parsed
    }

    /// Takes bytes, cut anywhere.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut event: impl FnMut(StreamEvent)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            if self.rest.is_empty() {
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
        self.rest.extend_from_slice(bytes);
    }

    fn line(&mut self, line: &[u8], event: &mut impl FnMut(StreamEvent)) {
        self.parsed += line.len() as u64 + 1;
        if let Some(block) = &mut self.block {
            let ok = if line.strip_prefix(b"%end ") == Some(&block.guard) {
                true
            } else if line.strip_prefix(b"%error ") == Some(&block.guard) {
                false
            } else {
                block.body.extend_from_slice(line);
                block.body.push(b'\n');
                return;
            };
            let ours = ours(&block.guard);
            let mut body = std::mem::take(&mut block.body);
            body.pop();
            self.block = None;
            return event(StreamEvent::End { ours, ok, body });
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
                });
            }
            b"%layout-change" | b"%window-close" | b"%unlinked-window-close" => {
                event(StreamEvent::PanesChanged);
            }
            b"%exit" => event(StreamEvent::Exit),
            // Other notifications, and bare lines: tmux prints errors of hooks between blocks.
            _ => {}
        }
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
                    ok: true,
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
                    ok: true,
                    body: Vec::new()
                },
                StreamEvent::PanesChanged,
                StreamEvent::Exit,
            ]
        );
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
