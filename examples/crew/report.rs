//! What the program prints: a line with the elapsed time for each event, or one JSON object a line.

use std::io::IsTerminal;
use std::time::Instant;

use serde_json::{Value, json};

/// Colours of lines in a terminal.
#[derive(Clone, Copy)]
pub enum Tone {
    Plain,
    Dim,
    Good,
    Bad,
}

/// Prints events; clones print to the same place.
#[derive(Clone, Copy)]
pub struct Report {
    json: bool,
    is_colourful: bool,
    began: Instant,
}

impl Report {
    pub fn new(json: bool) -> Self {
        Self {
            json,
            is_colourful: std::io::stdout().is_terminal(),
            began: Instant::now(),
        }
    }

    /// Prints an event: its name and fields as JSON, or the text.
    pub fn event(&self, name: &str, tone: Tone, mut fields: Value, text: &str) {
        let elapsed = self.began.elapsed();
        if self.json {
            fields["event"] = json!(name);
            fields["elapsed_ms"] = json!(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
            println!("{fields}");
            return;
        }
        let text = match (self.is_colourful, tone) {
            (false, _) | (_, Tone::Plain) => text.to_owned(),
            (true, Tone::Dim) => format!("\x1b[2m{text}\x1b[0m"),
            (true, Tone::Good) => format!("\x1b[32m{text}\x1b[0m"),
            (true, Tone::Bad) => format!("\x1b[31m{text}\x1b[0m"),
        };
        println!("{:>6.1} s  {text}", elapsed.as_secs_f64());
    }

    /// Prints the end: the fields as JSON, or the text as it is.
    pub fn finished(&self, mut fields: Value, text: &str) {
        fields["event"] = json!("finished");
        match self.json {
            true => println!("{fields}"),
            false => println!("{text}"),
        }
    }

    /// Milliseconds since the start.
    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn is_json(&self) -> bool {
        self.json
    }
}

/// The first line of a text, cut.
pub fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(90) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}
