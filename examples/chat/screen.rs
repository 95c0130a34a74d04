//! What the terminal shows.

use std::io::{IsTerminal, Write};

use exec_core::{
    AgentEvent, AgentEventKind, Decision, Event, EventKind, LiveEvent, OutputStream,
    PermissionRequest, TurnOutcome, UsageTotals,
};

/// How many lines of a tool's output are shown.
const TOOL_LINES: usize = 5;

const PLAIN: &str = "0";
const DIM: &str = "2";
const RED: &str = "31";
const YELLOW: &str = "33";
const CYAN: &str = "36";

/// Prints the events of a session as text.
pub(crate) struct Screen {
    agent: String,
    colour: bool,
    /// Whether the last text of the agent does not end a line.
    in_line: bool,
}

impl Screen {
    pub(crate) fn new(agent: &str) -> Self {
        Self {
            agent: agent.to_owned(),
            colour: std::io::stdout().is_terminal(),
            in_line: false,
        }
    }

    pub(crate) fn event(&mut self, event: &Event) {
        for event in event.agent_events() {
            self.agent_event(event);
        }
        match &event.kind {
            EventKind::Output(output)
                if output.stream == OutputStream::Stderr && output.events.is_empty() =>
            {
                self.line(DIM, &output.line.text());
            }
            EventKind::SessionMismatch { asked, reported } => {
                let text = format!("asked for {asked}, but the agent continues {reported}");
                self.line(RED, &text);
            }
            EventKind::Gap { missed } => self.line(RED, &format!("{missed} events are missing")),
            EventKind::Live(event) => self.live_event(event),
            EventKind::Exited(report) => {
                if let Some(failure) = &report.failure {
                    self.line(RED, &failure.to_string());
                }
            }
            _ => {}
        }
    }

    fn live_event(&mut self, event: &LiveEvent) {
        match event {
            LiveEvent::Opened => {
                let text = format!("{} is ready; /help lists the commands", self.agent);
                self.line(DIM, &text);
            }
            LiveEvent::MessageQueued { message } => {
                self.line(DIM, &format!("message {message} waits"));
            }
            LiveEvent::MessageDropped { message, reason } => {
                self.line(YELLOW, &format!("message {message} was dropped: {reason}"));
            }
            LiveEvent::PermissionAsked(request) => {
                let text = format!("{} [y/n]", question(request));
                self.line(YELLOW, &text);
            }
            LiveEvent::PermissionSettled {
                tool, decision, by, ..
            } => {
                let what = match decision {
                    Some(Decision::Allow) => "allowed",
                    Some(Decision::Deny) => "denied",
                    None => "void",
                };
                self.line(DIM, &format!("{tool}: {what} by {by}"));
            }
            LiveEvent::TurnEnded { outcome, usage, .. } => {
                let (colour, how) = match outcome {
                    TurnOutcome::Completed => (DIM, "done".to_owned()),
                    TurnOutcome::Interrupted => (YELLOW, "interrupted".to_owned()),
                    TurnOutcome::Failed { failure } => (RED, failure.to_string()),
                    _ => (RED, "the agent has ended in its turn".to_owned()),
                };
                self.line(colour, &format!("{how}{}", used(usage.as_ref())));
            }
            LiveEvent::CommandRefused { reason } => self.line(RED, reason),
            _ => {}
        }
    }

    fn agent_event(&mut self, event: &AgentEvent) {
        let is_own = event.parent.is_none();
        match &event.kind {
            AgentEventKind::Text { text, delta } if is_own => self.text(text, *delta),
            AgentEventKind::ToolCall { name, input, .. } => {
                self.line(CYAN, &format!("{name} {input}"));
            }
            AgentEventKind::ToolResult {
                output, is_error, ..
            } => {
                let colour = if *is_error { RED } else { DIM };
                for line in output.lines().take(TOOL_LINES) {
                    self.line(colour, &format!("  {line}"));
                }
                let more = output.lines().count().saturating_sub(TOOL_LINES);
                if more > 0 {
                    self.line(DIM, &format!("  … {more} lines more"));
                }
            }
            AgentEventKind::Retry { failure, .. } => self.line(YELLOW, &failure.to_string()),
            AgentEventKind::Error(failure) => self.line(RED, &failure.to_string()),
            _ => {}
        }
    }

    /// A message about the conversation itself.
    pub(crate) fn note(&mut self, text: &str) {
        for line in text.lines() {
            self.line(DIM, line);
        }
    }

    fn text(&mut self, text: &str, delta: bool) {
        if delta {
            print!("{}", shown(text));
            let _ = std::io::stdout().flush();
            self.in_line = !text.ends_with('\n');
        } else {
            for line in text.lines() {
                self.line(PLAIN, line);
            }
        }
    }

    fn line(&mut self, colour: &str, text: &str) {
        if std::mem::take(&mut self.in_line) {
            println!();
        }
        let text = shown(text);
        match self.colour {
            true => println!("\x1b[{colour}m{text}\x1b[0m"),
            false => println!("{text}"),
        }
    }
}

fn question(request: &PermissionRequest) -> String {
    let what = match &request.command {
        Some(command) => command.clone(),
        None => request.input.to_string(),
    };
    format!("{} wants to run: {what}", request.tool)
}

fn used(usage: Option<&UsageTotals>) -> String {
    let Some(run) = usage.map(|usage| &usage.run) else {
        return String::new();
    };
    let tokens = [(run.input_tokens, "in"), (run.output_tokens, "out")];
    let tokens = tokens.into_iter();
    let tokens = tokens.filter_map(|(count, way)| Some(format!(", {} tokens {way}", count?)));
    tokens.collect()
}

/// The text of an agent without what a terminal would obey: control characters, and characters that
/// change the direction of the text.
pub(crate) fn shown(text: &str) -> String {
    let is_harmless = |c: char| match c {
        '\n' | '\t' => true,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' => false,
        c => !c.is_control(),
    };
    let shown = text.chars();
    shown
        .map(|c| if is_harmless(c) { c } else { '\u{fffd}' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_terminal_is_not_controlled_by_the_agent() {
        assert_eq!(
            shown("a\x1b[2Jb\u{202e}c\r\u{9b}d\te"),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}\u{fffd}d\te"
        );
    }
}
