//! The JSON form of live sessions: events out, commands in. `docs/live-json.md` describes it.

use std::time::UNIX_EPOCH;

use exec_core::{
    Decision, Event, EventKind, LiveSession, MessageId, OutputStream, Steered, TurnId,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Result;

/// One event as an object with `sequence`, `at` (milliseconds since 1970) and `type`.
pub fn event_json(event: &Event) -> Value {
    let mut object = match &event.kind {
        EventKind::Started { process_id } => json!({"type": "started", "process_id": process_id}),
        EventKind::Output(output) => {
            let stream = match output.stream {
                OutputStream::Stdout => "stdout",
                OutputStream::Stderr => "stderr",
            };
            json!({
                "type": "output", "stream": stream, "text": output.line.text(),
                "truncated": output.line.is_truncated(), "events": output.events,
            })
        }
        EventKind::Agent(events) => json!({"type": "agent", "events": events}),
        EventKind::SessionResolved { session_id } => {
            json!({"type": "session_resolved", "session_id": session_id})
        }
        EventKind::SessionMismatch { asked, reported } => {
            json!({"type": "session_mismatch", "asked": asked, "reported": reported})
        }
        EventKind::Live(event) => serde_json::to_value(event).unwrap_or_default(),
        EventKind::LogFailed { message } => json!({"type": "log_failed", "message": message}),
        EventKind::Gap { missed } => json!({"type": "gap", "missed": missed}),
        EventKind::Exited(report) => json!({"type": "exited", "report": report}),
        other => json!({"type": "notice", "text": format!("{other:?}")}),
    };
    let at = event.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    object["sequence"] = json!(event.sequence);
    object["at"] = json!(u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
    object
}

/// A command for a live session.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum LiveCommand {
    /// Starts a turn, or waits for its turn.
    Prompt {
        /// The text.
        text: String,
    },
    /// Puts a text into the running turn, or into the queue.
    Steer {
        /// The text.
        text: String,
    },
    /// Cancels a turn. The reply follows its end.
    Interrupt {
        /// The turn.
        turn: TurnId,
    },
    /// Answers a permission request.
    Answer {
        /// The id of the request.
        permission: String,
        /// The answer.
        decision: Decision,
    },
    /// Takes a message out of the queue.
    TakeBack {
        /// The message.
        message: MessageId,
    },
    /// Asks for the messages that wait.
    Queue {},
    /// Asks for the open permission requests.
    Permissions {},
    /// Asks for the state.
    State {},
    /// Selects a mode of the agent.
    SetMode {
        /// The mode.
        mode: String,
    },
    /// Selects a model.
    SetModel {
        /// The model.
        model: String,
    },
    /// Ends the session.
    Close {},
}

/// The commands with their fields.
const COMMANDS: [(&str, &[(&str, FieldKind)]); 11] = [
    ("prompt", &[("text", FieldKind::Text)]),
    ("steer", &[("text", FieldKind::Text)]),
    ("interrupt", &[("turn", FieldKind::Number)]),
    (
        "answer",
        &[
            ("permission", FieldKind::Text),
            ("decision", FieldKind::Decision),
        ],
    ),
    ("take_back", &[("message", FieldKind::Number)]),
    ("queue", &[]),
    ("permissions", &[]),
    ("state", &[]),
    ("set_mode", &[("mode", FieldKind::Text)]),
    ("set_model", &[("model", FieldKind::Text)]),
    ("close", &[]),
];

#[derive(Clone, Copy)]
enum FieldKind {
    Text,
    Number,
    Decision,
}

/// Reads a line. The reply to a line that is no command has the id, too, as far as it can be read.
///
/// The errors are sentences for the author of the program at the other end. The errors of serde name
/// Rust types, and do not say which commands and fields there are.
pub fn parse_command(line: &str) -> (Value, Result<LiveCommand>) {
    let Ok(value) = serde_json::from_str::<Value>(line) else {
        return (Value::Null, Err("the line is not JSON".into()));
    };
    let Value::Object(mut fields) = value else {
        return (Value::Null, Err("the line is not a JSON object".into()));
    };
    let id = fields.remove("id").unwrap_or_default();
    let command = check_fields(&fields).and_then(|()| {
        // Checked before, so an error is a mistake of the table.
        let command = serde_json::from_value(Value::Object(fields));
        command.map_err(|_| "the command cannot be read".into())
    });
    (id, command)
}

fn check_fields(fields: &Map<String, Value>) -> Result<()> {
    let Some(command) = fields.get("command") else {
        return Err("the field \"command\" is missing".into());
    };
    let known = || COMMANDS.map(|(name, _)| name).join(", ");
    let command = command.as_str().unwrap_or_default();
    let Some((_, expected)) = COMMANDS.iter().find(|(name, _)| *name == command) else {
        return Err(format!("unknown command {}; known: {}", fields["command"], known()).into());
    };
    for (name, kind) in *expected {
        let Some(value) = fields.get(*name) else {
            return Err(format!("\"{command}\" needs the field \"{name}\"").into());
        };
        let (is_valid, wanted) = match kind {
            FieldKind::Text => (value.is_string(), "a string"),
            FieldKind::Number => (value.is_u64(), "a whole number"),
            FieldKind::Decision => {
                let is_valid = matches!(value.as_str(), Some("allow" | "deny"));
                (is_valid, "\"allow\" or \"deny\"")
            }
        };
        if !is_valid {
            return Err(format!("\"{name}\" must be {wanted}").into());
        }
    }
    let is_known = |name: &str| {
        let mut expected = expected.iter();
        name == "command" || expected.any(|(known, _)| *known == name)
    };
    match fields.keys().find(|name| !is_known(name)) {
        Some(name) => Err(format!("\"{command}\" has no field \"{name}\"").into()),
        None => Ok(()),
    }
}

/// Carries a command out. The result is the reply, without the id.
pub async fn carry_out(session: &LiveSession, command: LiveCommand) -> Result<Value> {
    Ok(match command {
        LiveCommand::Prompt { text } => json!({"turn": session.prompt(text)?.id()}),
        LiveCommand::Steer { text } => match session.steer(text).await? {
            Steered::Injected(turn) => json!({"steered": "injected", "turn": turn}),
            Steered::Queued(turn) => json!({"steered": "queued", "turn": turn.id()}),
        },
        LiveCommand::Interrupt { turn } => {
            let report = session.interrupt(turn).await?;
            let mut reply = serde_json::to_value(&report.turn().outcome)?;
            reply["processes"] = json!(report.process_ids());
            reply
        }
        LiveCommand::Answer {
            permission,
            decision,
        } => {
            session.answer(&permission, decision)?;
            json!({})
        }
        LiveCommand::TakeBack { message } => match session.take_back(message) {
            Some(taken) => json!({"text": taken.text}),
            None => return Err(format!("message {message} does not wait any more").into()),
        },
        LiveCommand::Queue {} => {
            let queued = session.queued().into_iter();
            let queued = queued.map(|message| json!({"message": message.id, "text": message.text}));
            json!({"queue": queued.collect::<Vec<_>>()})
        }
        LiveCommand::Permissions {} => json!({"permissions": session.permissions()}),
        LiveCommand::State {} => serde_json::to_value(session.state())?,
        LiveCommand::SetMode { mode } => {
            session.set_mode(&mode)?;
            json!({})
        }
        LiveCommand::SetModel { model } => {
            session.set_model(&model)?;
            json!({})
        }
        LiveCommand::Close {} => json!({"report": *session.close().await?}),
    })
}

/// The reply to a command: its fields on success, or `error`.
pub fn reply_json(id: Value, result: Result<Value>) -> Value {
    let mut reply = match result {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => Map::new(),
        Err(error) => Map::from_iter([("error".to_owned(), json!(crate::with_causes(&*error)))]),
    };
    reply.insert("type".to_owned(), json!("reply"));
    reply.insert("id".to_owned(), id);
    Value::Object(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command in the form of a line: with an id of the caller's choice, which the reply repeats.
    #[derive(Serialize, Deserialize)]
    struct CommandLine {
        id: Value,
        #[serde(flatten)]
        command: LiveCommand,
    }

    #[test]
    fn commands_have_the_documented_form() {
        let documented = include_str!("../../docs/live-json.md");
        let lines = documented
            .lines()
            .filter(|line| line.contains(r#""command""#));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), 11);
        for line in lines {
            let parsed: CommandLine = serde_json::from_str(line).unwrap();
            let printed = serde_json::to_value(parsed).unwrap();
            assert_eq!(
                printed,
                serde_json::from_str::<Value>(line).unwrap(),
                "{line}"
            );
        }
    }

    #[test]
    fn documented_commands_are_read_and_none_of_their_fields_can_be_left_out() {
        let documented = include_str!("../../docs/live-json.md").lines();
        for line in documented.filter(|line| line.contains(r#""command""#)) {
            let (id, parsed) = parse_command(line);
            assert!(id.is_u64() && parsed.is_ok(), "{line}");
            let fields: Map<String, Value> = serde_json::from_str(line).unwrap();
            for name in fields.keys().filter(|name| *name != "id") {
                let mut without = fields.clone();
                without.remove(name);
                let (_, parsed) = parse_command(&Value::Object(without).to_string());
                let error = parsed.unwrap_err().to_string();
                assert!(error.contains(&format!("{name:?}")), "{line}: {error}");
            }
        }
    }

    #[test]
    fn a_mistake_in_a_command_is_named() {
        for (line, expected) in [
            ("{", "the line is not JSON"),
            ("[1]", "the line is not a JSON object"),
            (r#"{"text":"hi"}"#, r#"the field "command" is missing"#),
            (
                r#"{"command":"promt","text":"hi"}"#,
                r#"unknown command "promt"; known: prompt, steer, interrupt, answer, take_back, queue, permissions, state, set_mode, set_model, close"#,
            ),
            (
                r#"{"command":"prompt"}"#,
                r#""prompt" needs the field "text""#,
            ),
            (
                r#"{"command":"prompt","text":7}"#,
                r#""text" must be a string"#,
            ),
            (
                r#"{"command":"interrupt","turn":"1"}"#,
                r#""turn" must be a whole number"#,
            ),
            (
                r#"{"command":"answer","permission":"1","decision":"perhaps"}"#,
                r#""decision" must be "allow" or "deny""#,
            ),
            (
                r#"{"command":"close","now":true}"#,
                r#""close" has no field "now""#,
            ),
        ] {
            let (_, parsed) = parse_command(line);
            assert_eq!(parsed.unwrap_err().to_string(), expected, "{line}");
        }
    }

    #[test]
    fn a_line_that_is_no_command_keeps_its_id() {
        for (line, id) in [
            (r#"{"id":7,"command":"promt"}"#, json!(7)),
            (r#"{"id":"a","command":"prompt"}"#, json!("a")),
            (r#"{"command":"promt"}"#, Value::Null),
            ("[1]", Value::Null),
            ("7", Value::Null),
            ("{", Value::Null),
        ] {
            let (found, parsed) = parse_command(line);
            assert!(parsed.is_err(), "{line}");
            assert_eq!(found, id, "{line}");
        }
    }
}
