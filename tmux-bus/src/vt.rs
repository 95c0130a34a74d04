//! A terminal's output, cut into the few things that matter here.
//!
//! Not a terminal emulator: tmux is one, and its screen is asked for when a program draws on it.
//! This one serves the far larger part of the output that is lines.

/// A step of a terminal's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    Print(char),
    Return,
    Feed,
    Backspace,
    Tab,
    /// Cursor to the right: full-screen programs write it in place of spaces.
    Forward(usize),
    Back(usize),
    /// Cursor to a column of this line, from 0.
    Column(usize),
    /// Erase to the end of the line.
    EraseRight,
    /// Erase the whole line.
    EraseLine,
    EraseChars(usize),
    DeleteChars(usize),
    InsertBlanks(usize),
    /// The program moved to another line or cleared: from here on it draws, and the order of the
    /// stream is not the order of the screen.
    Draw,
    /// The program asks for bracketed paste, or no longer.
    Bracketing(bool),
    /// An operating system command, without its introducer and end.
    Osc(&'a [u8]),
}

/// The longest operating system command that is handed on; longer ones (pictures) are passed over.
const MAX_OSC: usize = 1024;
const MAX_PARAMS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Tokenizer {
    state: State,
    /// The bytes of an unfinished character, control sequence or string.
    held: Vec<u8>,
    /// Line-drawing characters are letters in another character set.
    graphics: [bool; 2],
    shifted: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Ground,
    Character,
    Escape,
    /// After `ESC (` or `ESC )`, with the set that it designates.
    Charset(u8),
    /// After another intermediate byte.
    Intermediate,
    Csi,
    Osc,
    OscEscape,
    /// DCS, SOS, PM, APC and the title of screen(1).
    Text,
    TextEscape,
}

impl Tokenizer {
    pub(crate) fn is_ground(&self) -> bool {
        self.state == State::Ground
    }

    pub(crate) fn feed(&mut self, bytes: &[u8], mut step: impl FnMut(Step<'_>)) {
        for &byte in bytes {
            self.byte(byte, &mut step);
        }
    }

    fn byte(&mut self, byte: u8, step: &mut impl FnMut(Step<'_>)) {
        match self.state {
            State::Ground => self.ground(byte, step),
            State::Character => self.character(byte, step),
            State::Escape => self.escape(byte, step),
            State::Charset(set) => {
                self.graphics[usize::from(set)] = byte == b'0';
                self.state = State::Ground;
            }
            State::Intermediate => match byte {
                0x20..=0x2f => {}
                _ => self.state = State::Ground,
            },
            State::Csi => self.csi(byte, step),
            State::Osc => match byte {
                0x07 => self.osc(step),
                0x1b => self.state = State::OscEscape,
                0x18 | 0x1a => self.abort(),
                _ if self.held.len() <= MAX_OSC => self.held.push(byte),
                _ => {}
            },
            State::OscEscape => {
                self.osc(step);
                if byte != b'\\' {
                    self.state = State::Escape;
                    self.escape(byte, step);
                }
            }
            State::Text => match byte {
                0x1b => self.state = State::TextEscape,
                0x18 | 0x1a => self.abort(),
                _ => {}
            },
            State::TextEscape => match byte {
                b'\\' => self.state = State::Ground,
                0x1b => {}
                _ => self.state = State::Text,
            },
        }
    }

    fn ground(&mut self, byte: u8, step: &mut impl FnMut(Step<'_>)) {
        match byte {
            b' '..=b'~' if self.graphics[usize::from(self.shifted)] && byte >= b'`' => {
                step(Step::Print('\u{2500}'));
            }
            b' '..=b'~' => step(Step::Print(char::from(byte))),
            b'\r' => step(Step::Return),
            b'\n' | 0x0b | 0x0c => step(Step::Feed),
            0x08 => step(Step::Backspace),
            b'\t' => step(Step::Tab),
            0x0e => self.shifted = true,
            0x0f => self.shifted = false,
            0x1b => self.state = State::Escape,
            0x80.. => {
                self.held.clear();
                self.held.push(byte);
                if character_length(byte) > 1 {
                    self.state = State::Character;
                } else {
                    step(Step::Print(char::REPLACEMENT_CHARACTER));
                }
            }
            _ => {}
        }
    }

    fn character(&mut self, byte: u8, step: &mut impl FnMut(Step<'_>)) {
        if byte & 0xc0 != 0x80 {
            self.state = State::Ground;
            step(Step::Print(char::REPLACEMENT_CHARACTER));
            return self.ground(byte, step);
        }
        self.held.push(byte);
        if self.held.len() == character_length(self.held[0]) {
            self.state = State::Ground;
            let c = std::str::from_utf8(&self.held)
                .ok()
                .and_then(|text| text.chars().next());
            step(Step::Print(c.unwrap_or(char::REPLACEMENT_CHARACTER)));
        }
    }

    fn escape(&mut self, byte: u8, step: &mut impl FnMut(Step<'_>)) {
        self.held.clear();
        self.state = State::Ground;
        match byte {
            b'[' => self.state = State::Csi,
            b']' => self.state = State::Osc,
            b'P' | b'X' | b'^' | b'_' | b'k' => self.state = State::Text,
            b'(' => self.state = State::Charset(0),
            b')' => self.state = State::Charset(1),
            0x20..=0x2f => self.state = State::Intermediate,
            // Index back, restore cursor and full reset move or clear; save cursor does not.
            b'M' | b'8' | b'c' => step(Step::Draw),
            b'D' | b'E' => step(Step::Feed),
            0x1b => self.state = State::Escape,
            _ => {}
        }
    }

    fn csi(&mut self, byte: u8, step: &mut impl FnMut(Step<'_>)) {
        match byte {
            0x20..=0x3f if self.held.len() < MAX_PARAMS => self.held.push(byte),
            0x20..=0x3f => {}
            0x40..=0x7e => {
                self.state = State::Ground;
                if let Some(meaning) = control_sequence(&self.held, byte) {
                    step(meaning);
                }
            }
            0x18 | 0x1a => self.abort(),
            0x1b => self.state = State::Escape,
            // A control character inside a sequence acts at once; the sequence goes on.
            b'\r' => step(Step::Return),
            b'\n' => step(Step::Feed),
            0x08 => step(Step::Backspace),
            _ => {}
        }
    }

    fn osc(&mut self, step: &mut impl FnMut(Step<'_>)) {
        self.state = State::Ground;
        if self.held.len() <= MAX_OSC {
            step(Step::Osc(&self.held));
        }
    }

    fn abort(&mut self) {
        self.held.clear();
        self.state = State::Ground;
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

fn control_sequence(params: &[u8], end: u8) -> Option<Step<'static>> {
    let private = params.first().is_some_and(|b| (b'<'..=b'?').contains(b));
    if private {
        let numbers = params[1..].split(|&b| b == b';');
        return match (params[0], end) {
            (b'?', b'h' | b'l') => {
                let mut found = None;
                for number in numbers {
                    match number {
                        b"2004" => found = found.or(Some(Step::Bracketing(end == b'h'))),
                        b"47" | b"1047" | b"1049" => found = Some(Step::Draw),
                        _ => {}
                    }
                }
                found
            }
            (b'?', b'J') => Some(Step::Draw),
            (b'?', b'K') => Some(Step::EraseRight),
            _ => None,
        };
    }
    let text = params.split(|&b| b == b';').next().unwrap_or_default();
    let first: usize = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    // A terminal is at most some thousand columns wide.
    let count = first.clamp(1, 10_000);
    Some(match end {
        b'C' | b'a' => Step::Forward(count),
        b'D' => Step::Back(count),
        b'G' | b'`' => Step::Column(count - 1),
        b'K' if first == 0 => Step::EraseRight,
        b'K' => Step::EraseLine,
        b'X' => Step::EraseChars(count),
        b'P' => Step::DeleteChars(count),
        b'@' => Step::InsertBlanks(count),
        // Erasing below the cursor takes nothing away from a line-wise program.
        b'J' if first == 0 => Step::EraseRight,
        b'A' | b'B' | b'E' | b'F' | b'H' | b'f' | b'd' | b'e' | b'J' | b'L' | b'M' | b'S'
        | b'T' | b'r' | b'u' => Step::Draw,
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
            tokenizer.feed(piece, |step| match step {
                Step::Print(c) => out.push(c),
                Step::Osc(osc) => out.push_str(&format!("<osc {}>", String::from_utf8_lossy(osc))),
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
    fn sequences_leave_the_text() {
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
        check(
            b"a\x1b[3Cb\x1b[2;5Hc\x1b[Kd",
            "a<Forward(3)>b<Draw>c<EraseRight>d",
        );
        check("日本🎌e\u{301}".as_bytes(), "日本🎌e\u{301}");
        check(b"\xe3\x81x\xff", "\u{fffd}x\u{fffd}");
        check(b"\x1b[1\x18a\x1b]zz\x1ab", "ab");
        check(b"\x1b]0;a\x1b[31mb", "<osc 0;a>b");
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_the_same_steps(pieces: Vec<Vec<u8>>) {
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
