//! The parsers, on recorded output of real agents.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use exec_core::{AgentEvent, AgentEventKind, Outcome};
use exec_profiles::EventFormat;
use serde_json::{Value, json};

fn data(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(below)
}

/// The format by the first word of a transcript's name: as the user file names it.
pub(crate) fn format_of(file: &str) -> EventFormat {
    let format = match file.split('-').next() {
        Some("qwen") => "claude",
        other => other.unwrap_or_default(),
    };
    let known = serde_json::from_value(Value::from(format));
    known.unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn transcripts() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(data("transcripts"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn events_of(file: &str) -> Vec<Vec<AgentEvent>> {
    let text = fs::read_to_string(data("transcripts").join(file)).unwrap();
    let mut parser = format_of(file).parser();
    let mut events: Vec<_> = text.lines().map(|line| parser.parse_line(line)).collect();
    // Events that only the end decides are on a line of their own.
    let at_the_end = parser.finish();
    if !at_the_end.is_empty() {
        events.push(at_the_end);
    }
    events
}

/// Golden data: one line of events per line of output. `UPDATE_GOLDEN=1` rewrites it, for review.
#[test]
fn every_transcript_gives_the_golden_events() {
    let names = transcripts();
    assert!(names.len() >= 32, "{names:?}");
    for name in names {
        let mut got = String::new();
        for mut events in events_of(&name) {
            events.iter_mut().for_each(round_cost);
            writeln!(got, "{}", serde_json::to_string(&events).unwrap()).unwrap();
        }
        let path = data("events").join(&name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &got).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(got, golden, "{name}");
    }
}

/// The last digit of a float depends on the features of serde_json.
fn round_cost(event: &mut AgentEvent) {
    if let AgentEventKind::Usage(totals) = &mut event.kind {
        for usage in [&mut totals.run, &mut totals.session] {
            usage.cost_usd = usage.cost_usd.map(|cost| (cost * 1e6).round() / 1e6);
        }
    }
}

/// A cost budget relies on it.
#[test]
fn exactly_the_agents_that_report_a_cost_say_so() {
    let mut with_cost = Vec::new();
    for file in transcripts() {
        let mut events = events_of(&file).into_iter().flatten();
        let reports = events.any(|event| {
            matches!(&event.kind, AgentEventKind::Usage(totals)
                if totals.run.cost_usd.or(totals.session.cost_usd).is_some())
        });
        if reports {
            let format = format_of(&file);
            assert!(format.parser().reports_cost(), "{file}");
            with_cost.push(format);
        }
    }
    let recorded = transcripts();
    let recorded = recorded.iter().map(|file| format_of(file));
    for format in recorded.chain([EventFormat::Cursor]) {
        let says = format.parser().reports_cost();
        assert_eq!(says, with_cost.contains(&format), "{format:?}");
    }
}

#[test]
fn every_run_starts_once_and_finishes_once() {
    for name in transcripts() {
        let events: Vec<_> = events_of(&name).into_iter().flatten().collect();
        let started = events
            .iter()
            .filter(|event| matches!(event.kind, AgentEventKind::SessionStarted { .. }))
            .count();
        // Claude prints no init event for an unknown session.
        assert_eq!(
            started,
            usize::from(name != "claude-err-resume.jsonl"),
            "{name}"
        );
        let last = events.last().unwrap();
        let AgentEventKind::Finished { outcome, .. } = &last.kind else {
            panic!("{name} ends with {last:?}");
        };
        assert_eq!(last.parent, None, "{name}");
        let expected = match name.contains("-err-") {
            true => Outcome::Failure,
            false => Outcome::Success,
        };
        assert_eq!(*outcome, expected, "{name}");
        let finished = events
            .iter()
            .filter(|event| matches!(event.kind, AgentEventKind::Finished { .. }))
            .count();
        assert_eq!(finished, 1, "{name}");
    }
}

#[test]
fn every_tool_call_has_its_result() {
    let mut calls = 0;
    for name in transcripts().iter().filter(|name| name.contains("tool")) {
        let events: Vec<_> = events_of(name).into_iter().flatten().collect();
        for (index, event) in events.iter().enumerate() {
            let AgentEventKind::ToolCall { id, .. } = &event.kind else {
                continue;
            };
            calls += 1;
            assert!(id.is_some(), "{name}");
            assert!(
                events[index..].iter().any(|later| matches!(
                    &later.kind,
                    AgentEventKind::ToolResult { id: result, output, is_error: false }
                        if result == id && !output.is_empty()
                )),
                "{name}: {event:?}"
            );
        }
    }
    assert_eq!(calls, 4, "one in each of the four agents' transcripts");
}

#[test]
fn unknown_lines_give_no_events() {
    for format in [
        EventFormat::Claude,
        EventFormat::Codex,
        EventFormat::Gemini,
        EventFormat::Opencode,
        EventFormat::Cursor,
        EventFormat::Raw,
    ] {
        let mut parser = format.parser();
        for line in [
            "",
            "Reading prompt from stdin...",
            "{",
            "{}",
            "[1,2]",
            "null",
            r#"{"type":3}"#,
            r#"{"type":"from_the_future","x":1}"#,
            r#"{"type":"assistant"}"#,
            r#"{"type":"assistant","message":{"content":"text"}}"#,
            r#"{"type":"tool_call","subtype":"started","tool_call":{}}"#,
            r#"{"type":"tool_use"}"#,
            r#"{"type":"item.completed"}"#,
            r#"{"type":"user","message":{"content":[{"type":"text","text":"echo"}]}}"#,
            r#"{"type":"message","role":"user","content":"echo"}"#,
        ] {
            assert_eq!(parser.parse_line(line), [], "{format:?} {line}");
        }
    }
}

/// A later version of an agent may change the type of any field.
#[test]
fn a_field_of_another_type_does_not_panic_a_parser() {
    let mut tried = 0;
    for name in transcripts() {
        let text = fs::read_to_string(data("transcripts").join(&name)).unwrap();
        for line in text.lines() {
            let original: Value = serde_json::from_str(line).unwrap();
            let mut paths = Vec::new();
            collect_paths(&original, String::new(), &mut paths);
            for path in &paths {
                for other in [
                    json!(null),
                    json!(-1),
                    json!("x"),
                    json!([3]),
                    json!({"a": {}}),
                ] {
                    let mut changed = original.clone();
                    *changed.pointer_mut(path).unwrap() = other;
                    let mut parser = format_of(&name).parser();
                    parser.parse_line(&changed.to_string());
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 5_000, "{tried}");
}

fn collect_paths(value: &Value, path: String, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect_paths(value, format!("{path}/{name}"), paths);
            }
        }
        Value::Array(values) => {
            // The other elements have the same shape.
            if let Some(first) = values.first() {
                collect_paths(first, format!("{path}/0"), paths);
            }
        }
        _ => {}
    }
    paths.push(path);
}

#[track_caller]
fn check(format: EventFormat, lines: &[&str], expected: Value) {
    let mut parser = format.parser();
    let events: Vec<_> = lines
        .iter()
        .flat_map(|line| parser.parse_line(line))
        .collect();
    assert_eq!(serde_json::to_value(events).unwrap(), expected);
}

#[test]
fn claude_reports_thoughts_and_failed_tools() {
    check(
        EventFormat::Claude,
        &[
            r#"{"type":"assistant","message":{"content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"ok"}]}}"#,
            r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}}"#,
            r#"{"type":"result","subtype":"error_max_turns","is_error":false}"#,
        ],
        json!([
            {"type": "thinking", "text": "hm", "delta": false},
            {"type": "text", "text": "ok", "delta": false},
            {"type": "tool_result", "id": "t", "output": "a\nb", "is_error": true},
            {"type": "finished", "outcome": "failure", "failure": {"class": "agent", "message": "error_max_turns"}},
        ]),
    );
}

#[test]
fn claude_input_tokens_exclude_cached_ones_and_qwens_include_them() {
    check(
        EventFormat::Claude,
        &[
            r#"{"type":"result","subtype":"success","is_error":false,"result":"r","usage":{"input_tokens":1,"cache_creation_input_tokens":20,"cache_read_input_tokens":300,"output_tokens":4}}"#,
            r#"{"type":"result","subtype":"success","is_error":false,"result":"r","usage":{"input_tokens":301,"cache_read_input_tokens":300,"output_tokens":4,"total_tokens":305}}"#,
        ],
        json!([
            {"type": "usage", "run": {"input_tokens": 321, "cache_read_tokens": 300, "cache_write_tokens": 20, "output_tokens": 4}, "session": {}},
            {"type": "finished", "outcome": "success", "text": "r"},
            {"type": "usage", "run": {}, "session": {"input_tokens": 301, "cache_read_tokens": 300, "output_tokens": 4}},
            {"type": "finished", "outcome": "success", "text": "r"},
        ]),
    );
}

#[test]
fn a_codex_tool_gives_one_call_and_one_result() {
    check(
        EventFormat::Codex,
        &[
            r#"{"type":"item.completed","item":{"id":"i0","type":"reasoning","text":"hm"}}"#,
            r#"{"type":"item.started","item":{"id":"i1","type":"command_execution","command":"false","aggregated_output":"","exit_code":null,"status":"in_progress"}}"#,
            r#"{"type":"item.updated","item":{"id":"i1","type":"command_execution","command":"false","aggregated_output":"x","exit_code":null,"status":"in_progress"}}"#,
            r#"{"type":"item.completed","item":{"id":"i1","type":"command_execution","command":"false","aggregated_output":"x","exit_code":1,"status":"failed"}}"#,
            r#"{"type":"item.completed","item":{"id":"i2","type":"file_change","changes":[{"path":"a","kind":"add"}],"status":"completed"}}"#,
            r#"{"type":"item.started","item":{"id":"i3","type":"mcp_tool_call","server":"s","tool":"t","arguments":{"q":1},"status":"in_progress"}}"#,
            r#"{"type":"item.completed","item":{"id":"i3","type":"mcp_tool_call","server":"s","tool":"t","arguments":{"q":1},"result":{"content":[{"type":"text","text":"found"}]},"error":null,"status":"completed"}}"#,
            r#"{"type":"item.completed","item":{"id":"i4","type":"mcp_tool_call","server":"s","tool":"t","arguments":{},"error":{"message":"no"},"status":"failed"}}"#,
        ],
        json!([
            {"type": "thinking", "text": "hm", "delta": false},
            {"type": "tool_call", "id": "i1", "name": "command_execution", "input": {"command": "false"}},
            {"type": "tool_result", "id": "i1", "output": "x", "is_error": true},
            {"type": "tool_call", "id": "i2", "name": "file_change", "input": {"changes": [{"path": "a", "kind": "add"}]}},
            {"type": "tool_result", "id": "i2", "output": "", "is_error": false},
            {"type": "tool_call", "id": "i3", "name": "s.t", "input": {"q": 1}},
            {"type": "tool_result", "id": "i3", "output": "found", "is_error": false},
            {"type": "tool_call", "id": "i4", "name": "s.t", "input": {}},
            {"type": "tool_result", "id": "i4", "output": "no", "is_error": true},
        ]),
    );
}

#[test]
fn gemini_reports_failed_tools_and_warnings() {
    check(
        EventFormat::Gemini,
        &[
            r#"{"type":"tool_result","tool_id":"t","status":"error","error":{"type":"X","message":"denied"}}"#,
            r#"{"type":"error","severity":"warning","message":"loop detected"}"#,
            r#"{"type":"message","role":"assistant","content":"whole"}"#,
        ],
        json!([
            {"type": "tool_result", "id": "t", "output": "denied", "is_error": true},
            {"type": "error", "class": "agent", "message": "loop detected"},
            {"type": "text", "text": "whole", "delta": false},
        ]),
    );
}

#[test]
fn opencode_finishes_with_the_step_that_calls_no_tool() {
    let step = |reason: &str| {
        format!(
            r#"{{"type":"step_finish","part":{{"reason":"{reason}","tokens":{{"input":1,"output":2,"reasoning":3,"cache":{{"read":40,"write":500}}}},"cost":0.5}}}}"#
        )
    };
    let usage = |steps: u64| {
        json!({"type": "usage", "run": {"input_tokens": 541 * steps,
        "cache_read_tokens": 40 * steps, "cache_write_tokens": 500 * steps, "output_tokens": 2 * steps,
        "reasoning_tokens": 3 * steps, "cost_usd": 0.5 * steps as f64}, "session": {}})
    };
    check(
        EventFormat::Opencode,
        &[
            r#"{"type":"reasoning","part":{"text":"hm"}}"#,
            r#"{"type":"tool_use","part":{"tool":"bash","callID":"c","state":{"status":"error","input":{},"error":"denied"}}}"#,
            r#"{"type":"tool_use","part":{"tool":"bash","callID":"d","state":{"status":"completed","input":{},"output":"o","metadata":{"exit":2}}}}"#,
            &step("unknown"),
            &step("length"),
        ],
        json!([
            {"type": "thinking", "text": "hm", "delta": false},
            {"type": "tool_call", "id": "c", "name": "bash", "input": {}},
            {"type": "tool_result", "id": "c", "output": "denied", "is_error": true},
            {"type": "tool_call", "id": "d", "name": "bash", "input": {}},
            {"type": "tool_result", "id": "d", "output": "o", "is_error": true},
            usage(1),
            usage(2),
            {"type": "finished", "outcome": "failure", "failure": {"class": "agent", "message": "the model stopped: length"}},
        ]),
    );
}

/// The lines follow Cursor's documentation.
#[test]
fn a_cursor_tool_is_named_by_the_key_of_its_call() {
    check(
        EventFormat::Cursor,
        &[
            r#"{"type":"system","subtype":"init","apiKeySource":"login","cwd":"/w","session_id":"c6b62c6f-7ead-4fd6-9922-e952131177ff","model":"Auto","permissionMode":"default"}"#,
            r#"{"type":"user","message":{"role":"user","content":[{"type":"text","text":"hi"}]},"session_id":"c6b6"}"#,
            r#"{"type":"thinking","subtype":"delta","text":"hm","session_id":"c6b6"}"#,
            r#"{"type":"thinking","subtype":"completed","session_id":"c6b6"}"#,
            r#"{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"I'll look"}]},"session_id":"c6b6"}"#,
            r#"{"type":"tool_call","subtype":"started","call_id":"t1","tool_call":{"readToolCall":{"args":{"path":"a"}}},"session_id":"c6b6"}"#,
            r#"{"type":"tool_call","subtype":"completed","call_id":"t1","tool_call":{"readToolCall":{"args":{"path":"a"},"result":{"success":{"content":"text","isEmpty":false}}}},"session_id":"c6b6"}"#,
            r#"{"type":"tool_call","subtype":"started","call_id":"t2","tool_call":{"shellToolCall":{"args":{"command":"ls"}}},"session_id":"c6b6"}"#,
            r#"{"type":"tool_call","subtype":"completed","call_id":"t2","tool_call":{"shellToolCall":{"args":{"command":"ls"},"result":{"rejected":{"reason":"user"}}}},"session_id":"c6b6"}"#,
            r#"{"type":"tool_call","subtype":"started","call_id":"t3","tool_call":{"function":{"name":"search","arguments":"{\"q\":1}"}},"session_id":"c6b6"}"#,
            r#"{"type":"result","subtype":"success","duration_ms":1,"is_error":false,"result":"I'll look","session_id":"c6b6","request_id":"r"}"#,
        ],
        json!([
            {"type": "session_started", "session_id": "c6b62c6f-7ead-4fd6-9922-e952131177ff", "model": "Auto"},
            {"type": "thinking", "text": "hm", "delta": true},
            {"type": "text", "text": "I'll look", "delta": false},
            {"type": "tool_call", "id": "t1", "name": "read", "input": {"path": "a"}},
            {"type": "tool_result", "id": "t1", "output": "text", "is_error": false},
            {"type": "tool_call", "id": "t2", "name": "shell", "input": {"command": "ls"}},
            {"type": "tool_result", "id": "t2", "output": "{\"reason\":\"user\"}", "is_error": true},
            {"type": "tool_call", "id": "t3", "name": "search", "input": "{\"q\":1}"},
            {"type": "finished", "outcome": "success", "text": "I'll look"},
        ]),
    );
}

#[test]
fn a_claude_sub_agent_is_neither_the_agent_nor_a_second_run() {
    let events: Vec<_> = events_of("claude-subagent.jsonl")
        .into_iter()
        .flatten()
        .collect();
    let of = |parent: Option<&str>| {
        let own = events
            .iter()
            .filter(move |event| event.parent.as_deref() == parent);
        own.filter_map(|event| match &event.kind {
            AgentEventKind::Text { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect::<Vec<_>>()
    };
    let call = events.iter().find_map(|event| match &event.kind {
        AgentEventKind::ToolCall { id, name, .. } if name == "Agent" => id.clone(),
        _ => None,
    });
    assert_eq!(of(call.as_deref()), ["pong: say hi in the subagent"]);
    assert_eq!(of(None), ["tool result seen", "pong: "]);
    // Its tokens: 10 + 5 of the sub-agent beside three messages of the agent.
    let used = events.iter().rev().find_map(|event| match &event.kind {
        AgentEventKind::Usage(totals) => Some(*totals),
        _ => None,
    });
    let used = used.unwrap();
    assert_eq!(
        (used.run.input_tokens, used.run.output_tokens),
        (Some(40), Some(20))
    );
    assert_eq!(used.session.input_tokens, Some(40));
    assert!((used.run.cost_usd.unwrap() - 0.00056).abs() < 1e-9);
}

#[test]
fn the_last_usage_of_a_claude_message_wins() {
    let line = |id: &str, input: u64, output: u64| {
        format!(
            r#"{{"type":"assistant","message":{{"id":"{id}","content":[],"usage":{{"input_tokens":{input},"cache_creation_input_tokens":0,"output_tokens":{output}}}}}}}"#
        )
    };
    let mut parser = EventFormat::Claude.parser();
    let mut totals = Vec::new();
    for line in [
        line("m1", 10, 1),
        line("m1", 10, 1),
        line("m1", 10, 7),
        line("m2", 20, 1),
    ] {
        totals.extend(
            parser
                .parse_line(&line)
                .into_iter()
                .map(|event| match event.kind {
                    AgentEventKind::Usage(totals) => (
                        totals.run.input_tokens.unwrap(),
                        totals.run.output_tokens.unwrap(),
                    ),
                    other => panic!("{other:?}"),
                }),
        );
    }
    assert_eq!(totals, [(10, 1), (10, 7), (30, 8)]);
    // A long run keeps its total, and not its messages.
    for n in 0..10_000 {
        parser.parse_line(&line(&format!("n{n}"), 1, 0));
    }
    let last = parser.parse_line(&line("last", 0, 1)).remove(0);
    let AgentEventKind::Usage(totals) = last.kind else {
        panic!("{last:?}");
    };
    assert_eq!(totals.run.input_tokens, Some(10_030));
}

#[test]
fn retries_and_rate_limits_of_claude_are_events() {
    check(
        EventFormat::Claude,
        &[
            r#"{"type":"system","subtype":"api_retry","attempt":1,"max_retries":10,"retry_delay_ms":574,"error_status":401,"error":"authentication_failed"}"#,
            r#"{"type":"system","subtype":"api_retry","attempt":2,"max_retries":10,"retry_delay_ms":1000,"error_status":null,"error":"unknown"}"#,
            r#"{"type":"rate_limit_event","rate_limit_info":{"status":"allowed","resetsAt":1784079000,"rateLimitType":"five_hour","unifiedWindows":{"five_hour":{"utilization":0.25}}}}"#,
            r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1778565600,"rateLimitType":"five_hour","overageStatus":"rejected"}}"#,
            r#"{"type":"assistant","message":{"model":"<synthetic>","content":[{"type":"text","text":"You've hit your limit · resets 2pm (Asia/Shanghai)"}]},"error":"rate_limit"}"#,
            r#"{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"You've hit your limit · resets 2pm (Asia/Shanghai)"}"#,
        ],
        json!([
            {"type": "retry", "class": "authentication", "message": "authentication_failed (HTTP status 401)", "attempt": 1, "max_attempts": 10, "delay_ms": 574},
            {"type": "retry", "class": "network", "message": "unknown", "attempt": 2, "max_attempts": 10, "delay_ms": 1000},
            {"type": "rate_limit", "status": "allowed", "scope": "five_hour", "resets_at": 1784079000, "used": 0.25},
            {"type": "rate_limit", "status": "rejected", "scope": "five_hour", "resets_at": 1778565600},
            {"type": "error", "class": "limited", "scope": "five_hour", "resets_at": 1778565600, "message": "You've hit your limit · resets 2pm (Asia/Shanghai)"},
            {"type": "finished", "outcome": "failure", "failure": {"class": "limited", "scope": "five_hour", "resets_at": 1778565600, "message": "You've hit your limit · resets 2pm (Asia/Shanghai)"}},
        ]),
    );
}

/// A live session has one parser for all its turns.
#[test]
fn the_reset_of_a_limit_that_is_over_is_not_that_of_the_next_one() {
    check(
        EventFormat::Claude,
        &[
            r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1778565600,"rateLimitType":"five_hour"}}"#,
            r#"{"type":"rate_limit_event","rate_limit_info":{"status":"allowed","resetsAt":1778583600,"rateLimitType":"five_hour"}}"#,
            r#"{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"Too many requests"}"#,
        ],
        json!([
            {"type": "rate_limit", "status": "rejected", "scope": "five_hour", "resets_at": 1778565600},
            {"type": "rate_limit", "status": "allowed", "scope": "five_hour", "resets_at": 1778583600},
            {"type": "finished", "outcome": "failure", "failure": {"class": "limited", "message": "Too many requests"}},
        ]),
    );
}

/// Releases of claude before `model_usage_since_last_result`.
#[test]
fn totals_of_an_older_claude_are_those_of_its_process() {
    let mut parser = EventFormat::Claude.parser();
    let mut result = |own: u64, models: &str, cost: f64| {
        let line = format!(
            r#"{{"type":"result","subtype":"success","result":"x","total_cost_usd":{cost},"usage":{{"input_tokens":{own},"cache_creation_input_tokens":0,"output_tokens":1}},"modelUsage":{models}}}"#
        );
        let events = parser.parse_line(&line);
        let totals = events.iter().find_map(|event| match event.kind {
            AgentEventKind::Usage(totals) => Some(totals.run),
            _ => None,
        });
        let run = totals.unwrap();
        (run.input_tokens.unwrap(), run.cost_usd.unwrap())
    };
    let models = |input| format!(r#"{{"opus":{{"inputTokens":{input},"outputTokens":1}}}}"#);
    assert_eq!(result(30, &models(30), 0.25), (30, 0.25));
    assert_eq!(result(10, &models(40), 0.5), (40, 0.5));
    // No model was asked.
    assert_eq!(result(0, "{}", 0.5), (40, 0.5));
}

#[test]
fn the_error_message_of_qwen_is_reported() {
    check(
        EventFormat::Claude,
        &[
            r#"{"type":"assistant","message":{"model":"m","content":[{"type":"text","text":"[API Error: 429 status code (no body)]"}],"usage":{"input_tokens":0,"output_tokens":0}}}"#,
            r#"{"type":"assistant","message":{"model":"m","content":[{"type":"text","text":"[API Error: is a text of the model]"}],"usage":{"input_tokens":1,"output_tokens":9}}}"#,
            r#"{"type":"result","subtype":"error_during_execution","is_error":true,"error":{"message":"[API Error: 429 status code (no body)]"}}"#,
        ],
        json!([
            {"type": "error", "class": "agent", "message": "[API Error: 429 status code (no body)]"},
            {"type": "text", "text": "[API Error: is a text of the model]", "delta": false},
            {"type": "finished", "outcome": "failure", "failure": {"class": "agent", "message": "[API Error: 429 status code (no body)]"}},
        ]),
    );
}

#[test]
fn lines_of_another_opencode_session_are_those_of_a_sub_agent() {
    check(
        EventFormat::Opencode,
        &[
            r#"{"type":"text","sessionID":"ses_1","part":{"text":"mine"}}"#,
            r#"{"type":"text","sessionID":"ses_2","part":{"text":"its"}}"#,
            r#"{"type":"step_finish","sessionID":"ses_2","part":{"reason":"stop","tokens":{"input":3}}}"#,
            r#"{"type":"step_finish","sessionID":"ses_1","part":{"reason":"stop","tokens":{"input":4}}}"#,
        ],
        json!([
            {"type": "session_started", "session_id": "ses_1"},
            {"type": "text", "text": "mine", "delta": false},
            {"type": "text", "text": "its", "delta": false, "parent": "ses_2"},
            {"type": "usage", "run": {"input_tokens": 3}, "session": {}},
            {"type": "usage", "run": {"input_tokens": 7}, "session": {}},
            {"type": "finished", "outcome": "success"},
        ]),
    );
}
