//! Draws the screen of a terminal as SVG. It reads text with colours, in the form of
//! `tmux capture-pane -e -p`, and prints the picture. `scripts/pictures` uses it.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

const COLUMN: f64 = 7.8;
const ROW: f64 = 17.0;
const MARGIN: f64 = 16.0;

fn main() -> ExitCode {
    match io::read_to_string(io::stdin()) {
        Ok(text) => {
            print!("{}", draw(text.trim_end()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("terminal-svg: cannot read standard input: {error}");
            ExitCode::FAILURE
        }
    }
}

fn draw(text: &str) -> String {
    let lines: Vec<Vec<(Style, String)>> = text.lines().map(spans).collect();
    let width = |line: &Vec<(Style, String)>| -> usize {
        line.iter().map(|(_, text)| text.chars().count()).sum()
    };
    let columns = lines.iter().map(width).max().unwrap_or(0);
    let (w, h) = (
        columns as f64 * COLUMN + 2.0 * MARGIN,
        lines.len() as f64 * ROW + 2.0 * MARGIN,
    );
    let mut svg = format!(
        concat!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0} {h:.0}" "##,
            r##"font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">"##,
            r##"<rect width="{w:.0}" height="{h:.0}" rx="8" fill="#0d1117"/>"##,
        ),
        w = w,
        h = h,
    );
    for (row, line) in lines.iter().enumerate() {
        let y = MARGIN + (row as f64 + 0.8) * ROW;
        let mut column = 0;
        for (style, text) in line {
            let x = MARGIN + column as f64 * COLUMN;
            let length = text.chars().count();
            column += length;
            if text.trim().is_empty() {
                continue;
            }
            // An explicit length, because the width of a fixed-width font differs between viewers.
            let _ = write!(
                svg,
                r#"<text x="{x:.1}" y="{y:.1}" textLength="{:.1}" xml:space="preserve" {}>{}</text>"#,
                length as f64 * COLUMN,
                style.attributes(),
                escape(text),
            );
        }
        svg.push('\n');
    }
    svg.push_str("</svg>\n");
    svg
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Style {
    bold: bool,
    dim: bool,
    colour: Option<Colour>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Colour {
    /// One of the eight.
    Named(u8),
    Rgb(u8, u8, u8),
}

impl Style {
    /// The numbers of a `CSI … m` sequence.
    fn apply_all(&mut self, codes: &[u8]) {
        let mut rest = codes;
        while let [code, after @ ..] = rest {
            rest = match (code, after) {
                (38 | 48, [2, r, g, b, after @ ..]) => {
                    if *code == 38 {
                        self.colour = Some(Colour::Rgb(*r, *g, *b));
                    }
                    after
                }
                (38 | 48, [5, n, after @ ..]) => {
                    if *code == 38 {
                        self.colour = Some(indexed(*n));
                    }
                    after
                }
                _ => {
                    self.apply(*code);
                    after
                }
            };
        }
    }

    fn apply(&mut self, code: u8) {
        match code {
            0 => *self = Self::default(),
            1 => self.bold = true,
            2 => self.dim = true,
            22 => (self.bold, self.dim) = (false, false),
            30..=37 => self.colour = Some(Colour::Named(code - 30)),
            90..=97 => self.colour = Some(Colour::Named(code - 90)),
            39 => self.colour = None,
            _ => {}
        }
    }

    fn attributes(self) -> String {
        let colour = match self.colour {
            Some(Colour::Named(1)) => "#ff7b72",
            Some(Colour::Named(2)) => "#7ee787",
            Some(Colour::Named(3)) => "#e3b341",
            Some(Colour::Named(4)) => "#79c0ff",
            Some(Colour::Named(5)) => "#d2a8ff",
            Some(Colour::Named(6)) => "#76e3ea",
            Some(Colour::Rgb(r, g, b)) => &format!("#{r:02x}{g:02x}{b:02x}"),
            _ if self.dim => "#8b949e",
            _ => "#e6edf3",
        };
        let weight = if self.bold {
            " font-weight=\"700\""
        } else {
            ""
        };
        format!("fill=\"{colour}\"{weight}")
    }
}

/// A colour of the 256 of a terminal.
fn indexed(n: u8) -> Colour {
    match n {
        0..=15 => Colour::Named(n % 8),
        16..=231 => {
            let part = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
            let n = n - 16;
            Colour::Rgb(part(n / 36), part(n / 6 % 6), part(n % 6))
        }
        _ => {
            let grey = 8 + 10 * (n - 232);
            Colour::Rgb(grey, grey, grey)
        }
    }
}

/// Splits a line into parts of one style.
fn spans(line: &str) -> Vec<(Style, String)> {
    let (mut spans, mut style): (Vec<(Style, String)>, Style) = Default::default();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        push(&mut spans, style, before);
        let end = after.find(|c: char| c.is_ascii_alphabetic());
        let end = end.unwrap_or(after.len());
        let (codes, tail) = after.split_at(end);
        if tail.starts_with('m') {
            let codes = codes.split(';').map(|code| code.parse().unwrap_or(0));
            style.apply_all(&codes.collect::<Vec<_>>());
        }
        rest = tail.get(1..).unwrap_or("");
    }
    push(&mut spans, style, rest);
    spans
}

fn push(spans: &mut Vec<(Style, String)>, style: Style, text: &str) {
    if !text.is_empty() {
        spans.push((style, text.to_owned()));
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_where_its_style_changes() {
        let spans = spans("a\x1b[1;31mb\x1b[0mc");
        let bold_red = Style {
            bold: true,
            colour: Some(Colour::Named(1)),
            ..Style::default()
        };
        let texts: Vec<_> = spans
            .iter()
            .map(|(style, text)| (*style, &**text))
            .collect();
        assert_eq!(
            texts,
            [
                (Style::default(), "a"),
                (bold_red, "b"),
                (Style::default(), "c")
            ]
        );
    }

    #[test]
    fn colours_with_parameters_are_read_as_one() {
        let colour = |line: &str| spans(line)[0].0.colour;
        assert_eq!(
            colour("\x1b[38;2;31;1;200mx"),
            Some(Colour::Rgb(31, 1, 200))
        );
        assert_eq!(colour("\x1b[38;5;9mx"), Some(Colour::Named(1)));
        assert_eq!(colour("\x1b[38;5;208mx"), Some(Colour::Rgb(255, 135, 0)));
        assert_eq!(colour("\x1b[48;5;31mx"), None);
    }

    #[test]
    fn markup_characters_are_escaped() {
        assert!(draw("a < b & c").contains("a &lt; b &amp; c"));
    }
}
