//! The lines that a program printed.

use unicode_width::UnicodeWidthChar;

use super::tokenizer::TerminalOp;

/// Fills the second column of a wide character.
const WIDE: char = '\0';

/// Renders lines as a terminal does, but without the bounds of its screen: a line that the
/// terminal wraps stays one line, and no line scrolls off.
#[derive(Debug)]
pub(crate) struct Transcript {
    /// Complete lines, each with its newline.
    done: String,
    count: usize,
    line: Vec<char>,
    at: usize,
    /// Columns of the terminal: a carriage return goes to the start of the wrapped row, not of
    /// the line.
    width: usize,
    /// The line was overwritten: spaces at its end were printed to clear older text.
    rewritten: bool,
}

impl Transcript {
    pub(crate) fn new(width: usize) -> Self {
        Self {
            done: String::new(),
            count: 0,
            line: Vec::new(),
            at: 0,
            width: width.max(1),
            rewritten: false,
        }
    }

    /// Number of the incomplete line, from 0.
    pub(crate) fn line_number(&self) -> usize {
        self.count
    }

    /// All lines, the incomplete one last.
    pub(crate) fn text(&self) -> String {
        let mut text = self.done.clone();
        self.push_line(&mut text);
        text
    }

    /// The incomplete line.
    pub(crate) fn last_line(&self) -> String {
        let mut line = String::new();
        self.push_line(&mut line);
        line
    }

    pub(crate) fn len(&self) -> usize {
        self.done.len() + self.line.len()
    }

    pub(crate) fn apply(&mut self, op: TerminalOp<'_>) {
        match op {
            TerminalOp::Print(c) => self.print(c),
            TerminalOp::Feed => {
                let mut done = std::mem::take(&mut self.done);
                self.push_line(&mut done);
                done.push('\n');
                self.done = done;
                self.rewritten = false;
                self.count += 1;
                // A bare line feed keeps the column, but the terminal driver adds a return.
                self.line.clear();
                self.at = 0;
            }
            TerminalOp::Return => self.at = self.row_start(),
            TerminalOp::Backspace => self.at = self.at.saturating_sub(1),
            TerminalOp::Tab => {
                // At the end of the line a tab is kept as a tab; elsewhere it moves the cursor.
                if self.at == self.line.len() {
                    let stop = (self.at / 8 + 1) * 8;
                    self.line.push('\t');
                    self.line.resize(stop.max(self.line.len()), WIDE);
                    self.at = self.line.len();
                } else {
                    self.move_to((self.at / 8 + 1) * 8);
                }
            }
            TerminalOp::Forward(n) => self.move_to(self.at + n),
            TerminalOp::Back(n) => self.at = self.at.saturating_sub(n).max(self.row_start()),
            TerminalOp::Column(n) => self.move_to(self.row_start() + n),
            TerminalOp::EraseRight => self.line.truncate(self.at),
            TerminalOp::EraseLine => {
                self.line.truncate(self.row_start());
            }
            TerminalOp::EraseChars(n) => {
                let end = (self.at + n).min(self.line.len());
                for cell in self.line.iter_mut().take(end).skip(self.at) {
                    *cell = ' ';
                }
            }
            TerminalOp::DeleteChars(n) => {
                if self.at < self.line.len() {
                    let end = (self.at + n).min(self.line.len());
                    self.line.drain(self.at..end);
                }
            }
            TerminalOp::InsertBlanks(n) => {
                // The last row is cut at the margin.
                if self.at < self.line.len() {
                    let room = self.row_start() + self.width - self.at;
                    let last_row = (self.line.len() - 1) / self.width * self.width;
                    let blanks = std::iter::repeat_n(' ', n.min(room));
                    self.line.splice(self.at..self.at, blanks);
                    self.line.truncate(last_row + self.width);
                }
            }
            // The cursor left the line: the text that follows is not its continuation.
            TerminalOp::Draw => {
                if !self.line.is_empty() {
                    self.apply(TerminalOp::Feed);
                }
            }
            TerminalOp::ClearHistory | TerminalOp::Bracketing(_) | TerminalOp::Osc(_) => {}
        }
    }

    fn print(&mut self, c: char) {
        let columns = c.width().unwrap_or(0);
        // Combining characters and joiners have no column of their own.
        if columns == 0 {
            let at = self.at.min(self.line.len());
            self.line.insert(at, c);
            self.at = at + 1;
            return;
        }
        if self.line.len() < self.at {
            self.line.resize(self.at, ' ');
        }
        for cell in [c, WIDE].into_iter().take(columns) {
            if self.at < self.line.len() {
                self.rewritten = true;
                self.line[self.at] = cell;
            } else {
                self.line.push(cell);
            }
            self.at += 1;
        }
    }

    /// Moves the cursor in its row. The margin stops it: a program that prints nothing must not make the line longer.
    fn move_to(&mut self, at: usize) {
        self.at = at.min(self.row_start() + self.width - 1);
    }

    fn row_start(&self) -> usize {
        // At the right margin the wrap is pending: the cursor is still in the full row.
        self.at.saturating_sub(1) / self.width * self.width
    }

    fn push_line(&self, out: &mut String) {
        let start = out.len();
        out.extend(self.line.iter().filter(|&&c| c != WIDE));
        if self.rewritten {
            let kept = out[start..].trim_end_matches(' ').len();
            out.truncate(start + kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::answer::tokenizer::Tokenizer;

    fn render(width: usize, bytes: &[u8]) -> String {
        let mut transcript = Transcript::new(width);
        Tokenizer::default().feed(bytes, |op| transcript.apply(op));
        transcript.text()
    }

    #[test]
    fn lines_are_rendered_like_on_a_terminal() {
        for (bytes, expected) in [
            (&b"a\r\nb\r\n"[..], "a\nb\n"),
            (b"10%\r20%\r100%\r\n", "100%\n"),
            (b"abc\r\x1b[Kd\r\n", "d\n"),
            (b"abc\x08\x08X\r\n", "aXc\n"),
            (b"a\tb\r\n", "a\tb\n"),
            (b"abcdef\x1b[3D\x1b[2PX\r\n", "abcX\n"),
            (b"x  \r\n", "x  \n"),
            (b"50%  \r9    \r\n", "9\n"),
            // readline prints a space and a return at the margin of ten columns
            (b"0123456789 \rabc\r\n", "0123456789abc\n"),
            ("日本語\r日\r\n".as_bytes(), "日本語\n"),
            (
                "e\u{301}\u{1f468}\u{200d}\u{1f469}\r\n".as_bytes(),
                "e\u{301}\u{1f468}\u{200d}\u{1f469}\n",
            ),
        ] {
            assert_eq!(render(10, bytes), expected);
        }
    }

    /// Each sequence moves by thousands of columns, and a program can print any number of them.
    #[test]
    fn moves_of_the_cursor_stop_at_the_margin() {
        for sequence in ["\x1b[9999C", "\x1b[9999G", "\x1b[9999@", "\x1b[C\t"] {
            let moves = sequence.repeat(100_000);
            let line = render(80, format!("a\x1b[D{moves}x\r\n").as_bytes());
            let columns = line.trim_end().chars().count();
            assert!(columns <= 80, "{sequence:?}: {columns}");
        }
        assert_eq!(render(10, b"ab\x1b[9Cc\r\n"), "ab       c\n");
        assert_eq!(render(4, b"abc\x1b[2D\x1b[2@X\r\n"), "aX b\n");
    }

    proptest! {
        #[test]
        fn any_bytes_do_not_panic(bytes: Vec<u8>, width in 0usize..200) {
            render(width, &bytes);
        }

        #[test]
        fn printed_lines_are_returned_unchanged(lines in prop::collection::vec("[!-~あ-ん🎌]{0,90}", 0..9), width in 1usize..100) {
            let printed: String = lines.iter().map(|l| format!("{l}\r\n")).collect();
            let expected: String = lines.iter().map(|l| format!("{l}\n")).collect();
            prop_assert_eq!(render(width, printed.as_bytes()), expected);
        }
    }
}
