//! Draws the screen of a terminal as SVG. It reads text with colours, in the form of
//! `tmux capture-pane -e -p`, and prints the picture. `scripts/record` uses it.
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
    colour: Option<u8>,
}

impl Style {
    /// One number of a `CSI … m` sequence.
    fn apply(&mut self, code: u8) {
        match code {
            0 => *self = Self::default(),
            1 => self.bold = true,
            2 => self.dim = true,
            22 => (self.bold, self.dim) = (false, false),
            30..=37 => self.colour = Some(code - 30),
            90..=97 => self.colour = Some(code - 90),
            39 => self.colour = None,
            _ => {}
        }
    }

    fn attributes(self) -> String {
        let colour = match self.colour {
            Some(1) => "#ff7b72",
            Some(2) => "#7ee787",
            Some(3) => "#e3b341",
            Some(4) => "#79c0ff",
            Some(5) => "#d2a8ff",
            Some(6) => "#76e3ea",
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
            for code in codes.split(';') {
                style.apply(code.parse().unwrap_or(0));
            }
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
            colour: Some(1),
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
    fn markup_characters_are_escaped() {
        assert!(draw("a < b & c").contains("a &lt; b &amp; c"));
    }
}
