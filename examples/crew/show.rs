//! The output of the crew: lines of text, or one JSON object a line.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde_json::{Value, json};
use tmux_bus::{MessageLogEntry, MessageType};

use crate::crew::ROLES;
use crate::member::answer_text;

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";

/// Prints events. Clones write to the same terminal.
#[derive(Clone)]
pub(crate) struct Show {
    json: bool,
    colour: bool,
    began: Instant,
    /// On standard error; invisible if that is not a terminal.
    bar: ProgressBar,
}

impl Show {
    pub(crate) fn new(json: bool) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        let colour = std::io::stdout().is_terminal();
        Self {
            json,
            colour,
            began: Instant::now(),
            bar,
        }
    }

    /// Sets the text beside the spinner.
    pub(crate) fn waiting(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    pub(crate) fn started(&self, text: &str, fields: Value) {
        self.event("started", fields, &[(BOLD, text)]);
    }

    /// A message between two agents.
    pub(crate) fn message(&self, entry: &MessageLogEntry) {
        let from = ROLES.iter().find(|role| role.name == entry.from_agent);
        let text = answer_text(&entry.content, from.map_or("", |role| role.marker));
        let fields = json!({
            "from": entry.from_agent, "to": entry.to_agent, "type": entry.message_type,
            "content": text, "timestamp": entry.timestamp,
        });
        let who = format!(
            "{:>17} → {:<17}",
            short(&entry.from_agent),
            short(&entry.to_agent)
        );
        // Of a task its first line is shown, of an answer all lines.
        let (what, colour) = match entry.message_type {
            MessageType::Result => (text.lines().collect::<Vec<_>>().join(" / "), GREEN),
            MessageType::Error => (text, RED),
            _ => {
                let mut lines = text.lines().filter(|line| !line.starts_with("task "));
                (lines.next().unwrap_or_default().to_owned(), "0")
            }
        };
        let what = cut(&what, 80);
        self.event("message", fields, &[(CYAN, &who), (colour, &what)]);
    }

    pub(crate) fn killed(&self, member: &str, pid: i32) {
        let text = format!("{member} is killed at work (SIGKILL, process {pid})");
        self.event(
            "killed",
            json!({"agent": member, "process_id": pid}),
            &[(RED, &text)],
        );
    }

    pub(crate) fn recovered(&self, member: &str, tick: u64, took: Duration) {
        let took_ms = took.as_millis();
        let text = format!("{member} is back after {took_ms} ms with its state of tick {tick}");
        let fields = json!({"agent": member, "tick": tick, "took_ms": took_ms});
        self.event("recovered", fields, &[(GREEN, &text)]);
    }

    pub(crate) fn finished(&self, fields: Value, report: &str) {
        self.bar.finish_and_clear();
        self.line("finished", fields, report);
    }

    /// The end without a result. As text it is printed on standard error by `main`.
    pub(crate) fn gave_up(&self, reason: &str) {
        self.bar.finish_and_clear();
        if self.json {
            let fields = json!({"ok": false, "error": reason, "session_id": null, "exit": null});
            self.line("finished", fields, "");
        }
    }

    fn event(&self, name: &str, fields: Value, words: &[(&str, &str)]) {
        let time = format!("{:>5.1} s", self.began.elapsed().as_secs_f64());
        let words = [(DIM, time.as_str())]
            .into_iter()
            .chain(words.iter().copied());
        let words = words.map(|(colour, word)| match self.colour {
            true => format!("\x1b[{colour}m{word}\x1b[0m"),
            false => word.to_owned(),
        });
        let text = words.collect::<Vec<_>>().join("  ");
        self.line(name, fields, &text);
    }

    fn line(&self, name: &str, mut fields: Value, text: &str) {
        fields["event"] = json!(name);
        let line = if self.json {
            fields.to_string()
        } else {
            text.to_owned()
        };
        self.bar.suspend(|| println!("{}", line.trim_end()));
    }
}

fn short(name: &str) -> &str {
    name.strip_suffix("_specialist").unwrap_or(name)
}

fn cut(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
