//! Splits the output of a terminal program into operations.
//!
//! This is not a terminal emulator. tmux is one, and its screen is captured when a program draws.
//! The tokenizer serves line-wise output, which is the larger part by far.

/// One operation of a terminal program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminalOp<'a> {
    Print(char),
    Return,
    Feed,
    Backspace,
    Tab,
    /// Moves the cursor right. Full-screen programs use it in place of spaces.
    Forward(usize),
    Back(usize),
    /// Moves the cursor to a column of this line, from 0.
    Column(usize),
    /// Erases to the end of the line.
    EraseRight,
    EraseLine,
    EraseChars(usize),
    DeleteChars(usize),
    InsertBlanks(usize),
    /// Moves to another line, or clears. After it the order of the stream is no longer the order
    /// of the screen.
    Draw,
    /// Clears the lines that scrolled off the screen.
    ClearHistory,
    /// Enables or disables bracketed paste.
    Bracketing(bool),
    /// An operating system command, without introducer and terminator.
    Osc(&'a [u8]),
}

/// Longer operating system commands (images) are skipped.
const MAX_OSC: usize = 1024;
const MAX_PARAMS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Tokenizer {
    state: TokenizerState,
    /// Bytes of an incomplete character, control sequence or string.
    held: Vec<u8>,
    /// Whether G0 and G1 are the line-drawing character set.
    graphics: [bool; 2],
    shifted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TokenizerState {
    #[default]
    Ground,
    Character,
    Escape,
    /// After `ESC (` or `ESC )`; the designated set, G0 or G1.
    Charset(u8),
    /// After another intermediate byte.
    Intermediate,
    Csi,
    Osc,
    OscEscape,
    /// DCS: only `ESC \` ends it.
    Dcs,
    DcsEscape,
    /// SOS, PM, APC and the title sequence of screen(1). As in tmux, each `ESC` ends it.
    Text,
}

impl Tokenizer {
    pub(crate) fn is_ground(&self) -> bool {
        self.state == TokenizerState::Ground
    }

    pub(crate) fn feed(&mut self, bytes: &[u8], mut op: impl FnMut(TerminalOp<'_>)) {
        for &byte in bytes {
            self.byte(byte, &mut op);
        }
    }

    fn byte(&mut self, byte: u8, op: &mut impl FnMut(TerminalOp<'_>)) {
        match self.state {
            TokenizerState::Ground => self.ground(byte, op),
            TokenizerState::Character => self.character(byte, op),
            TokenizerState::Escape => self.escape(byte, op),
            TokenizerState::Charset(set) => {
                self.graphics[usize::from(set)] = byte == b'0';
                self.state = TokenizerState::Ground;
            }
            TokenizerState::Intermediate => match byte {
                0x20..=0x2f => {}
                _ => self.state = TokenizerState::Ground,
            },
            TokenizerState::Csi => self.csi(byte, op),
            TokenizerState::Osc => match byte {
                0x07 => self.osc(op),
                0x1b => self.state = TokenizerState::OscEscape,
                0x18 | 0x1a => self.abort(),
                _ if self.held.len() <= MAX_OSC => self.held.push(byte),
                _ => {}
            },
            TokenizerState::OscEscape => {
                self.osc(op);
                if byte != b'\\' {
                    self.state = TokenizerState::Escape;
                    self.escape(byte, op);
                }
            }
            TokenizerState::Dcs => match byte {
                0x1b => self.state = TokenizerState::DcsEscape,
                0x18 | 0x1a => self.abort(),
                _ => {}
            },
            TokenizerState::DcsEscape => {
                self.state = match byte {
                    b'\\' => TokenizerState::Ground,
                    _ => TokenizerState::Dcs,
                };
            }
            TokenizerState::Text => match byte {
                0x1b => self.state = TokenizerState::Escape,
                0x18 | 0x1a => self.abort(),
                _ => {}
            },
        }
    }

    fn ground(&mut self, byte: u8, op: &mut impl FnMut(TerminalOp<'_>)) {
        match byte {
            b' '..=b'~' if self.graphics[usize::from(self.shifted)] && byte >= b'`' => {
                op(TerminalOp::Print('\u{2500}'));
            }
            b' '..=b'~' => op(TerminalOp::Print(char::from(byte))),
            b'\r' => op(TerminalOp::Return),
            b'\n' | 0x0b | 0x0c => op(TerminalOp::Feed),
            0x08 => op(TerminalOp::Backspace),
            b'\t' => op(TerminalOp::Tab),
            0x0e => self.shifted = true,
            0x0f => self.shifted = false,
            0x1b => self.state = TokenizerState::Escape,
            0x80.. => {
                self.held.clear();
                self.held.push(byte);
                if character_length(byte) > 1 {
                    self.state = TokenizerState::Character;
                } else {
                    op(TerminalOp::Print(char::REPLACEMENT_CHARACTER));
                }
            }
            _ => {}
        }
    }

    fn character(&mut self, byte: u8, op: &mut impl FnMut(TerminalOp<'_>)) {
        if byte & 0xc0 != 0x80 {
            self.state = TokenizerState::Ground;
            op(TerminalOp::Print(char::REPLACEMENT_CHARACTER));
            return self.ground(byte, op);
        }
        self.held.push(byte);
        if self.held.len() == character_length(self.held[0]) {
            self.state = TokenizerState::Ground;
            let c = std::str::from_utf8(&self.held)
                .ok()
                .and_then(|text| text.chars().next());
            op(TerminalOp::Print(c.unwrap_or(char::REPLACEMENT_CHARACTER)));
        }
    }

    fn escape(&mut self, byte: u8, op: &mut impl FnMut(TerminalOp<'_>)) {
        self.held.clear();
        self.state = TokenizerState::Ground;
        match byte {
            b'[' => self.state = TokenizerState::Csi,
            b']' => self.state = TokenizerState::Osc,
            b'P' => self.state = TokenizerState::Dcs,
            b'X' | b'^' | b'_' | b'k' => self.state = TokenizerState::Text,
            b'(' => self.state = TokenizerState::Charset(0),
            b')' => self.state = TokenizerState::Charset(1),
            0x20..=0x2f => self.state = TokenizerState::Intermediate,
            // Reverse index, restore cursor and full reset move or clear; save cursor does not.
            b'M' | b'8' | b'c' => op(TerminalOp::Draw),
            b'D' | b'E' => op(TerminalOp::Feed),
            0x1b => self.state = TokenizerState::Escape,
            _ => {}
        }
    }

    fn csi(&mut self, byte: u8, op: &mut impl FnMut(TerminalOp<'_>)) {
        match byte {
            0x20..=0x3f if self.held.len() < MAX_PARAMS => self.held.push(byte),
            0x20..=0x3f => {}
            0x40..=0x7e => {
                self.state = TokenizerState::Ground;
                match (self.held.split_first(), byte) {
                    // One sequence can change several modes.
                    (Some((b'?', modes)), b'h' | b'l') => modes
                        .split(|&b| b == b';')
                        .filter_map(|mode| private_mode(mode, byte == b'h'))
                        .for_each(op),
                    _ => control_sequence(&self.held, byte).into_iter().for_each(op),
                }
            }
            0x18 | 0x1a => self.abort(),
            0x1b => self.state = TokenizerState::Escape,
            // A control character inside a sequence is executed at once; the sequence continues.
            b'\r' => op(TerminalOp::Return),
            b'\n' => op(TerminalOp::Feed),
            0x08 => op(TerminalOp::Backspace),
            _ => {}
        }
    }

    fn osc(&mut self, op: &mut impl FnMut(TerminalOp<'_>)) {
        self.state = TokenizerState::Ground;
        if self.held.len() <= MAX_OSC {
            op(TerminalOp::Osc(&self.held));
        }
    }

    fn abort(&mut self) {
        self.held.clear();
        self.state = TokenizerState::Ground;
    }
}

fn character_length(first: u8) -> usize {
    match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    }
}

fn private_mode(mode: &[u8], is_set: bool) -> Option<TerminalOp<'static>> {
    match mode {
        b"2004" => Some(TerminalOp::Bracketing(is_set)),
        b"47" | b"1047" | b"1049" => Some(TerminalOp::Draw),
        _ => None,
    }
}

fn control_sequence(params: &[u8], end: u8) -> Option<TerminalOp<'static>> {
    let private = params.first().is_some_and(|b| (b'<'..=b'?').contains(b));
    if private {
        return match (params[0], end) {
            (b'?', b'J') => Some(TerminalOp::Draw),
            (b'?', b'K') => Some(TerminalOp::EraseRight),
            _ => None,
        };
    }
    let text = params.split(|&b| b == b';').next().unwrap_or_default();
    let first: usize = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    // Bounds the work of one sequence: terminals are at most some thousand columns wide.
    let count = first.clamp(1, 10_000);
    Some(match end {
        b'C' | b'a' => TerminalOp::Forward(count),
        b'D' => TerminalOp::Back(count),
        b'G' | b'`' => TerminalOp::Column(count - 1),
        b'K' if first == 0 => TerminalOp::EraseRight,
        b'K' => TerminalOp::EraseLine,
        b'X' => TerminalOp::EraseChars(count),
        b'P' => TerminalOp::DeleteChars(count),
        b'@' => TerminalOp::InsertBlanks(count),
        // Below the cursor of a line-wise program there is nothing to erase.
        b'J' if first == 0 => TerminalOp::EraseRight,
        b'J' if first == 3 => TerminalOp::ClearHistory,
        b'A' | b'B' | b'E' | b'F' | b'H' | b'f' | b'd' | b'e' | b'J' | b'L' | b'M' | b'S'
        | b'T' | b'r' | b'u' => TerminalOp::Draw,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(pieces: &[&[u8]]) -> String {
        let mut tokenizer = Tokenizer::default();
        let mut out = String::new();
        for piece in pieces {
            tokenizer.feed(piece, |op| match op {
                TerminalOp::Print(c) => out.push(c),
                TerminalOp::Osc(osc) => {
                    out.push_str(&format!("<osc {}>", String::from_utf8_lossy(osc)));
                }
                other => out.push_str(&format!("<{other:?}>")),
            });
        }
        out
    }

    #[track_caller]
    fn check(input: &[u8], expected: &str) {
        assert_eq!(text(&[input]), expected);
        let bytes: Vec<_> = input.chunks(1).collect();
        assert_eq!(text(&bytes), expected, "byte by byte");
    }

    #[test]
    fn escape_sequences_are_separated_from_text() {
        check(b"\x1b[1;32mCODING\x1b[0m OK", "CODING OK");
        check(
            b"\x1b]0;title\x07a\x1b]8;;x\x1b\\b",
            "<osc 0;title>a<osc 8;;x>b",
        );
        check(b"\x1bPq#0\x1b\\a\x1bktitle\x1b\\b", "ab");
        check(b"\x1b(0qqq\x1b(Bq", "\u{2500}\u{2500}\u{2500}q");
        check(
            b"\x1b[?2004h$ \x1b[?2004l",
            "<Bracketing(true)>$ <Bracketing(false)>",
        );
        // One sequence changes several modes.
        check(b"\x1b[?1049;2004ha", "<Draw><Bracketing(true)>a");
        check(b"\x1b[?2004;25;1049la", "<Bracketing(false)><Draw>a");
        check(
            b"a\x1b[3Cb\x1b[2;5Hc\x1b[Kd",
            "a<Forward(3)>b<Draw>c<EraseRight>d",
        );
        check("日本🎌e\u{301}".as_bytes(), "日本🎌e\u{301}");
        check(b"\xe3\x81x\xff", "\u{fffd}x\u{fffd}");
        check(b"\x1b[1\x18a\x1b]zz\x1ab", "ab");
        check(b"\x1b]0;a\x1b[31mb", "<osc 0;a>b");
    }

    /// As in tmux. A DCS can have sequences in it.
    #[test]
    fn a_string_without_its_end_ends_with_the_next_sequence() {
        check(b"\x1bXno end\x1b[1mb\x1bktitle\x1b[0mc", "bc");
        check(b"\x1bPtmux;\x1b\x1b[1mno\x1b\x1b\\ no\x1b\\b", "b");
    }

    proptest! {
        #[test]
        fn operations_do_not_depend_on_the_cut_of_the_bytes(pieces: Vec<Vec<u8>>) {
            let whole = pieces.concat();
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(text(&pieces), text(&[&whole]));
        }

        #[test]
        fn plain_text_passes_unchanged(plain in "[ -~あ-ん🎌é]{0,60}", cut in 0usize..60) {
            let bytes = plain.as_bytes();
            let cut = cut.min(bytes.len());
            prop_assert_eq!(text(&[&bytes[..cut], &bytes[cut..]]), plain);
        }
    }
}
