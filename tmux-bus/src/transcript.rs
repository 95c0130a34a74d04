//! The lines that a line-wise program printed.

use unicode_width::UnicodeWidthChar;

use crate::vt::Step;

/// Fills the second column of a wide character.
const WIDE: char = '\0';

/// Renders lines as a terminal would, without its bounds: a line that the terminal wraps stays one
/// line, and nothing scrolls away.
#[derive(Debug)]
pub(crate) struct Transcript {
    /// Finished lines, each with its newline.
    done: String,
    count: usize,
    line: Vec<char>,
    at: usize,
    /// A carriage return goes to the start of the wrapped row, not of the line.
    width: usize,
    /// The line was written over, so that spaces at its end are there to clear older text.
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

    /// The number of the line that is being written.
    pub(crate) fn line_number(&self) -> usize {
        self.count
    }

    /// All lines, the unfinished one last.
    pub(crate) fn text(&self) -> String {
        let mut text = self.done.clone();
        self.push_line(&mut text);
        text
    }

    pub(crate) fn len(&self) -> usize {
        self.done.len() + self.line.len()
    }

    pub(crate) fn step(&mut self, step: Step<'_>) {
        match step {
            Step::Print(c) => self.print(c),
            Step::Feed => {
                let mut done = std::mem::take(&mut self.done);
                self.push_line(&mut done);
                done.push('\n');
                self.done = done;
                self.rewritten = false;
                self.count += 1;
                // A bare line feed keeps the column, but the terminal driver writes both.
                self.line.clear();
                self.at = 0;
            }
            Step::Return => self.at = self.row_start(),
            Step::Backspace => self.at = self.at.saturating_sub(1),
            Step::Tab => {
                // A tab is kept as what it is where it is printed at the end of the line.
                if self.at == self.line.len() {
                    let stop = (self.at / 8 + 1) * 8;
                    self.line.push('\t');
                    self.line.resize(stop.max(self.line.len()), WIDE);
                    self.at = self.line.len();
                } else {
                    self.at = (self.at / 8 + 1) * 8;
                }
            }
            Step::Forward(n) => self.at += n,
            Step::Back(n) => self.at = self.at.saturating_sub(n).max(self.row_start()),
            Step::Column(n) => self.at = self.row_start() + n,
            Step::EraseRight => self.line.truncate(self.at),
            Step::EraseLine => {
                self.line.truncate(self.row_start());
            }
            Step::EraseChars(n) => {
                let end = (self.at + n).min(self.line.len());
                for cell in self.line.iter_mut().take(end).skip(self.at) {
                    *cell = ' ';
                }
            }
            Step::DeleteChars(n) => {
                if self.at < self.line.len() {
                    let end = (self.at + n).min(self.line.len());
                    self.line.drain(self.at..end);
                }
            }
            Step::InsertBlanks(n) => {
                if self.at < self.line.len() {
                    let blanks = std::iter::repeat_n(' ', n.min(10_000));
                    self.line.splice(self.at..self.at, blanks);
                }
            }
            // Lines drawn elsewhere are not lines of this transcript; what follows starts anew.
            Step::Draw => {
                if !self.line.is_empty() {
                    self.step(Step::Feed);
                }
            }
            Step::Bracketing(_) | Step::Osc(_) => {}
        }
    }

    fn print(&mut self, c: char) {
        let columns = c.width().unwrap_or(0);
        // Combining characters and joiners take no column: they follow their base.
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

    fn row_start(&self) -> usize {
        // At the right margin the cursor still belongs to the full row: the wrap is pending.
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
    use crate::vt::Tokenizer;

    fn render(width: usize, bytes: &[u8]) -> String {
        let mut transcript = Transcript::new(width);
        Tokenizer::default().feed(bytes, |step| transcript.step(step));
        transcript.text()
    }

    #[test]
    fn lines_are_rendered_as_a_terminal_would() {
        for (bytes, expected) in [
            (&b"a\r\nb\r\n"[..], "a\nb\n"),
            (b"10%\r20%\r100%\r\n", "100%\n"),
            (b"abc\r\x1b[Kd\r\n", "d\n"),
            (b"abc\x08\x08X\r\n", "aXc\n"),
            (b"a\tb\r\n", "a\tb\n"),
            (b"abcdef\x1b[3D\x1b[2PX\r\n", "abcX\n"),
            (b"x  \r\n", "x  \n"),
            (b"50%  \r9    \r\n", "9\n"),
            // readline writes a space and a return at the margin of ten columns
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

    proptest! {
        #[test]
        fn any_bytes_do_not_panic(bytes: Vec<u8>, width in 0usize..200) {
            render(width, &bytes);
        }

        #[test]
        fn printed_lines_come_back(lines in prop::collection::vec("[!-~あ-ん🎌]{0,90}", 0..9), width in 1usize..100) {
            let printed: String = lines.iter().map(|l| format!("{l}\r\n")).collect();
            let expected: String = lines.iter().map(|l| format!("{l}\n")).collect();
            prop_assert_eq!(render(width, printed.as_bytes()), expected);
        }
    }
}
