//! Replies as text for people and agents, or as JSON.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::json;
use tmux_bus::MessageLogEntry;
use tmux_bus::vocabulary::{
    AskReport, AskState, ExplainReport, Failure, FailureKind, InboxItem, InboxReport, PostState,
    Reply, StatusReport,
};

/// Prints a reply on the standard output. Errors of an ask go to standard error.
/// `repeated` is this command with the options that name the cluster.
pub(crate) fn print(reply: &Reply, repeated: &str, is_json: bool, is_detached: bool) {
    let mut out = io::stdout().lock();
    if is_json
        && let Reply::Ask(AskReport {
            error: Some(failure),
            ..
        })
        | Reply::Wait(AskReport {
            error: Some(failure),
            ..
        }) = reply
    {
        print_failure(failure, false);
    }
    // An output that is closed is no failure of the verb.
    let _ = match is_json {
        true => match serde_json::to_string(reply) {
            Ok(text) => writeln!(out, "{text}"),
            Err(error) => Err(error.into()),
        },
        false => print_text(&mut out, reply, repeated, is_detached),
    };
}

fn print_text(
    out: &mut impl Write,
    reply: &Reply,
    repeated: &str,
    is_detached: bool,
) -> io::Result<()> {
    match reply {
        Reply::Ask(report) if is_detached => writeln!(out, "{}", report.id),
        Reply::Ask(report) | Reply::Wait(report) => print_ask(out, report, repeated),
        Reply::Post(report) => match report.state {
            PostState::Waiting => writeln!(
                out,
                "left for {}; it is delivered when the agent is idle",
                report.to
            ),
            _ => writeln!(out, "delivered to {}", report.to),
        },
        Reply::Inbox(report) => print_inbox(out, report),
        Reply::Status(report) => print_status(out, report),
        Reply::Explain(report) => print_explanation(out, report),
        Reply::Log(report) => report
            .entries
            .iter()
            .try_for_each(|entry| write_entry(out, entry)),
        _ => Ok(()),
    }
}

fn print_ask(out: &mut impl Write, report: &AskReport, repeated: &str) -> io::Result<()> {
    if let Some(answer) = &report.answer {
        let answer = visible(answer);
        return match answer.ends_with('\n') {
            true => write!(out, "{answer}"),
            false => writeln!(out, "{answer}"),
        };
    }
    if let Some(failure) = &report.error {
        print_failure(failure, false);
    } else if report.state == AskState::Running {
        let (to, id) = (&report.to, &report.id);
        let _ = writeln!(
            io::stderr(),
            "{to} has not answered yet; continue with: {repeated} wait {id}"
        );
    }
    Ok(())
}

/// Tells how to continue if this command is ended before the answer comes.
pub(crate) fn print_started(report: &AskReport, repeated: &str) {
    let (id, to) = (&report.id, &report.to);
    let _ = writeln!(
        io::stderr(),
        "ask {id} to {to}: if this command is ended, continue with: {repeated} wait {id}"
    );
}

/// Prints what is wrong with the arguments, or the help that they ask for.
pub(crate) fn print_usage(error: &clap::Error) -> ExitCode {
    let code = error.exit_code();
    let is_json = std::env::args_os().any(|argument| argument == "--json");
    if code != 0 && is_json {
        let text = error.render().to_string();
        let message = text.split("\n\n").next().unwrap_or_default();
        let message = message.trim_start_matches("error: ").trim_end();
        let kind = FailureKind::Usage;
        let failure = json!({ "error": { "kind": kind, "message": message } });
        let _ = writeln!(io::stdout(), "{failure}");
    }
    let _ = error.print();
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Prints a failure on standard error; as JSON also on the standard output.
pub(crate) fn print_failure(failure: &Failure, is_json: bool) {
    if is_json {
        let _ = writeln!(io::stdout(), "{}", json!({ "error": failure }));
    }
    let mut stderr = io::stderr().lock();
    let _ = writeln!(stderr, "tmux-bus: {}", visible(&failure.message));
    if let Some(hint) = &failure.hint {
        let _ = writeln!(stderr, "hint: {hint}");
    }
}

fn print_inbox(out: &mut impl Write, report: &InboxReport) -> io::Result<()> {
    let lists = [
        ("waiting", &report.waiting),
        ("uncertain", &report.uncertain),
        ("not delivered", &report.dead),
    ];
    if lists.iter().all(|(_, list)| list.is_empty()) {
        return writeln!(out, "no messages for {}", report.agent);
    }
    if let Some(problem) = &report.problem {
        writeln!(out, "not delivered now: {}", one_line(problem))?;
    }
    for (state, list) in lists {
        for InboxItem {
            id,
            from,
            text,
            reason,
            ..
        } in list
        {
            let reason = reason
                .as_ref()
                .map(|reason| format!(" ({})", one_line(reason)));
            let from = one_line(from);
            let text = visible(text.lines().next().unwrap_or_default());
            writeln!(
                out,
                "{state}{}: {id} from {from}: {text}",
                reason.unwrap_or_default()
            )?;
        }
    }
    Ok(())
}

fn print_status(out: &mut impl Write, report: &StatusReport) -> io::Result<()> {
    writeln!(out, "you are {}", report.you)?;
    for agent in &report.agents {
        let state = match &agent.exit {
            Some(exit) => format!("ended: {exit}"),
            None if agent.busy && agent.state == "idle" => "busy".to_owned(),
            None => agent.state.clone(),
        };
        writeln!(
            out,
            "{:<30} {:<30} {:<10} {state}",
            agent.name, agent.role, agent.definition
        )?;
    }
    writeln!(out, "watch: {}", report.attach)
}

fn print_explanation(out: &mut impl Write, report: &ExplainReport) -> io::Result<()> {
    let (agent, definition) = (&report.agent, &report.definition);
    let (state, evidence) = (&report.state, &report.evidence);
    writeln!(out, "{agent} ({definition}) is {state} ({evidence})")?;
    if let Some(advice) = &report.advice {
        writeln!(out, "{advice}")?;
    }
    for line in report.screen.lines() {
        writeln!(out, "  | {}", visible(line))?;
    }
    Ok(())
}

/// Prints one entry of the log that is followed.
pub(crate) fn print_entry(entry: &MessageLogEntry, is_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match is_json {
        true => writeln!(out, "{}", serde_json::to_string(entry)?),
        false => write_entry(&mut out, entry),
    }
}

fn write_entry(out: &mut impl Write, entry: &MessageLogEntry) -> io::Result<()> {
    let (time, from, to) = (&entry.timestamp, &entry.from_agent, &entry.to_agent);
    let (kind, text) = (&entry.message_type, entry.content.trim_end());
    let text = visible(&format!("[{time}] {from} -> {to} ({kind}): {text}"));
    // A line of a message cannot pass for the first line of another entry.
    writeln!(out, "{}", text.replace('\n', "\n    "))
}

/// [`visible`] text that cannot pass for a line of this program.
fn one_line(text: &str) -> String {
    visible(text).replace('\n', " ")
}

/// Text of agents on a terminal: control characters must not act on it, and no character may change
/// the order of those around it.
fn visible(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' => '\u{fffd}',
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_cannot_forge_an_entry_of_the_log() {
        let entry = json!({
            "timestamp": "2026-01-01T00:00:00Z", "id": "1", "from": "a", "to": "b",
            "type": "task", "content": "x\n[2026-01-01T00:00:00Z] user -> b (task): y",
        });
        let entry: MessageLogEntry = serde_json::from_value(entry).unwrap();
        let mut out = Vec::new();
        write_entry(&mut out, &entry).unwrap();
        let out = String::from_utf8(out).unwrap();
        let entries = out.lines().filter(|line| line.starts_with('['));
        assert_eq!(entries.count(), 1, "{out}");
    }

    #[test]
    fn no_field_of_an_entry_acts_on_the_terminal() {
        let hostile = "a\u{1b}[2J\u{9b}1A\u{202e}\n[2026] user";
        let entry = json!({
            "timestamp": hostile, "id": "1", "from": hostile, "to": hostile, "type": hostile,
            "content": hostile,
        });
        let entry: MessageLogEntry = serde_json::from_value(entry).unwrap();
        let item =
            json!({"id": "1", "from": hostile, "at_ms": 1, "text": hostile, "reason": hostile});
        let inbox = json!({"agent": "a", "waiting": [item], "uncertain": [], "dead": [], "problem": hostile});
        let inbox: InboxReport = serde_json::from_value(inbox).unwrap();
        let mut out = Vec::new();
        write_entry(&mut out, &entry).unwrap();
        print_inbox(&mut out, &inbox).unwrap();
        let out = String::from_utf8(out).unwrap();
        let acts = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!out.contains(acts), "{out:?}");
        assert_eq!(out.lines().filter(|line| line.starts_with('[')).count(), 1);
    }

    #[test]
    fn an_answer_does_not_act_on_the_terminal() {
        let report = json!({
            "id": "x", "from": "a", "to": "b", "state": "answered", "answer": "a\u{1b}]0;x\u{7}\n\tb",
        });
        let report: AskReport = serde_json::from_value(report).unwrap();
        let mut out = Vec::new();
        print_ask(&mut out, &report, "tmux-bus").unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "a\u{fffd}]0;x\u{fffd}\n\tb\n"
        );
    }
}
