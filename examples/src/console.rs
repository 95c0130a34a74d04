//! The input of a program in a tmux pane.
//!
//! A terminal in its default (canonical) mode cuts lines at 4,096 bytes, and each newline ends the
//! message. [`Console`] does what the interfaces of the agents do: it switches the terminal to raw
//! mode and turns on bracketed paste. A pasted text then arrives whole, newlines included, and only
//! a carriage return outside a paste submits the message. Ctrl-U removes what was typed.

use std::io::{self, Read, Write};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

const PASTE_BEGINS: &[u8] = b"\x1b[200~";
const PASTE_ENDS: &[u8] = b"\x1b[201~";
const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;
const CTRL_U: u8 = 0x15;

/// A terminal in raw mode from which whole messages are read. Dropping it restores the mode that
/// the terminal had.
pub struct Console {
    before: Option<Termios>,
    input: io::Stdin,
    unread: Vec<u8>,
}

impl Console {
    /// Switches standard input to raw mode. If standard input is no terminal, messages are lines.
    pub fn open() -> io::Result<Self> {
        let input = io::stdin();
        let before = match tcgetattr(&input) {
            Ok(before) => {
                let mut raw = before.clone();
                raw.make_raw();
                // Output stays in its mode: a printed newline still moves to the first column.
                raw.output_modes = before.output_modes;
                tcsetattr(&input, OptionalActions::Now, &raw)?;
                print("\x1b[?2004h")?;
                Some(before)
            }
            Err(_) => None,
        };
        let unread = Vec::new();
        Ok(Self {
            before,
            input,
            unread,
        })
    }

    /// Prints `prompt` and blocks until the next message is submitted. `None` after Ctrl-C, Ctrl-D
    /// or the end of input.
    pub fn read_message(&mut self, prompt: &str) -> io::Result<Option<String>> {
        print(prompt)?;
        let mut typed = Typed::default();
        loop {
            let pending = std::mem::take(&mut self.unread);
            for (at, &byte) in pending.iter().enumerate() {
                match typed.push(byte) {
                    Step::More => {}
                    Step::Echo(text) => print(&text)?,
                    Step::Clear => print(&format!("\r\x1b[K{prompt}"))?,
                    Step::Submit => {
                        self.unread = pending[at + 1..].to_vec();
                        print("\r\n")?;
                        return Ok(Some(typed.into_text()));
                    }
                    Step::End => return Ok(None),
                }
            }
            let mut chunk = [0; 16 * 1024];
            match self.input.read(&mut chunk)? {
                0 => return Ok(None),
                read => self.unread.extend_from_slice(&chunk[..read]),
            }
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = print("\x1b[?2004l");
            let _ = tcsetattr(&self.input, OptionalActions::Now, before);
        }
    }
}

/// The bytes of the message that is being typed.
#[derive(Default)]
struct Typed {
    text: Vec<u8>,
    in_paste: bool,
    /// Number of bytes of `text` that have been echoed.
    echoed: usize,
}

enum Step {
    More,
    Echo(String),
    Clear,
    Submit,
    End,
}

impl Typed {
    fn push(&mut self, byte: u8) -> Step {
        match byte {
            CTRL_C | CTRL_D if !self.in_paste => return Step::End,
            b'\r' | b'\n' if !self.in_paste => return Step::Submit,
            CTRL_U if !self.in_paste => {
                self.text.clear();
                self.echoed = 0;
                return Step::Clear;
            }
            _ => self.text.push(byte),
        }
        if self.text.ends_with(PASTE_BEGINS) {
            self.text.truncate(self.text.len() - PASTE_BEGINS.len());
            self.in_paste = true;
            return Step::More;
        }
        if self.in_paste && self.text.ends_with(PASTE_ENDS) {
            self.text.truncate(self.text.len() - PASTE_ENDS.len());
            self.in_paste = false;
        }
        // No echo inside an escape sequence or a paste: a paste is echoed in one piece at its end.
        if self.in_paste || self.text[self.echoed.min(self.text.len())..].contains(&0x1b) {
            return Step::More;
        }
        match std::str::from_utf8(&self.text[self.echoed..]) {
            Ok(fresh) => {
                let fresh = fresh.replace('\n', "\r\n");
                self.echoed = self.text.len();
                Step::Echo(fresh)
            }
            // The bytes end inside a multi-byte character.
            Err(_) => Step::More,
        }
    }

    fn into_text(self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }
}

/// Prints text and flushes.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types `input`, and compares the submitted message and the echo.
    #[track_caller]
    fn check(input: &str, message: &str, echo: &str) {
        let (mut typed, mut echoed) = (Typed::default(), String::new());
        for &byte in input.as_bytes() {
            match typed.push(byte) {
                Step::More => {}
                Step::Echo(text) => echoed.push_str(&text),
                Step::Clear => echoed.clear(),
                Step::Submit => {
                    assert_eq!(typed.into_text(), message);
                    assert_eq!(echoed, echo);
                    return;
                }
                Step::End => panic!("the input ended before the message was submitted"),
            }
        }
        panic!("the message was not submitted");
    }

    #[test]
    fn control_u_removes_what_was_typed_or_pasted() {
        check("draft\x15hello\r", "hello", "hello");
        check("\x1b[200~a\x15b\x1b[201~\x15c\r", "c", "c");
    }

    #[test]
    fn a_carriage_return_outside_a_paste_submits() {
        check("hello\r", "hello", "hello");
        check("日本語\r", "日本語", "日本語");
        check(
            "\x1b[200~two\nlines\r\x1b[201~\r",
            "two\nlines\r",
            "two\r\nlines\r",
        );
        check("a\x1b[200~b\x1b[201~c\r", "abc", "abc");
        check(
            "\x1b[200~control \x03 stays\x1b[201~\r",
            "control \x03 stays",
            "control \x03 stays",
        );
    }
}
