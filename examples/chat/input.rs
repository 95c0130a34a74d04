//! What is typed: messages, answers and commands.

use std::io::BufRead;

use exec_core::Decision;
use tokio::sync::mpsc;

pub(crate) const HELP: &str = "\
y, n            answer the oldest permission request
Ctrl-C          interrupt the turn; a second one, or one without a turn, ends the program
/steer TEXT     put a text into the running turn, if the agent can do that
/queue          list the messages that wait
/back NUMBER    take a message back
/mode NAME      select a mode of the agent
/model NAME     select a model
/resume         start the agent again after its end
/quit           end the conversation
//TEXT          a message that begins with a slash";

/// What was typed for this answer.
pub(crate) fn word(answer: Decision) -> &'static str {
    match answer {
        Decision::Allow => "y",
        _ => "n",
    }
}

/// A line of the terminal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    Nothing,
    Message(String),
    Answer(Decision),
    Steer(String),
    Queue,
    TakeBack(u64),
    Mode(String),
    Model(String),
    Resume,
    Help,
    Quit,
    Unknown(String),
}

impl Typed {
    pub(crate) fn parse(line: &str) -> Self {
        let line = line.trim();
        match line {
            "" => return Self::Nothing,
            "y" => return Self::Answer(Decision::Allow),
            "n" => return Self::Answer(Decision::Deny),
            _ => {}
        }
        let Some(command) = line.strip_prefix('/') else {
            return Self::Message(line.to_owned());
        };
        if command.starts_with('/') {
            return Self::Message(command.to_owned());
        }
        let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
        let rest = rest.trim();
        match (name, rest, rest.parse()) {
            ("queue", "", _) => Self::Queue,
            ("resume", "", _) => Self::Resume,
            ("help", "", _) => Self::Help,
            ("quit", "", _) => Self::Quit,
            ("back", _, Ok(number)) => Self::TakeBack(number),
            ("steer", text, _) if !text.is_empty() => Self::Steer(text.to_owned()),
            ("mode", name, _) if !name.is_empty() => Self::Mode(name.to_owned()),
            ("model", name, _) if !name.is_empty() => Self::Model(name.to_owned()),
            _ => Self::Unknown(line.to_owned()),
        }
    }
}

/// The lines of standard input, read by a thread: a read of a terminal cannot be cancelled.
pub(crate) fn read_lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_message_an_answer_or_a_command() {
        let message = |text: &str| Typed::Message(text.to_owned());
        for (line, expected) in [
            ("  ", Typed::Nothing),
            ("hello there", message("hello there")),
            ("y", Typed::Answer(Decision::Allow)),
            ("n", Typed::Answer(Decision::Deny)),
            ("yes", message("yes")),
            ("/queue", Typed::Queue),
            ("/back 3", Typed::TakeBack(3)),
            ("/steer to the left", Typed::Steer("to the left".to_owned())),
            ("//review", message("/review")),
            ("/back x", Typed::Unknown("/back x".to_owned())),
            ("/steer", Typed::Unknown("/steer".to_owned())),
            ("/exit", Typed::Unknown("/exit".to_owned())),
        ] {
            assert_eq!(Typed::parse(line), expected, "{line:?}");
        }
    }
}
