//! The `tracing` spans of executions and tools.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use exec_core::{AgentEvent, EventParser};
use tracing::span::{Attributes, Id, Record};

use crate::lab::{Lab, script, within};

/// A subscriber that keeps spans.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<SpanTable>>);

#[derive(Default)]
struct SpanTable {
    next: u64,
    live: HashMap<u64, SpanRecord>,
    ended: Vec<SpanRecord>,
}

#[derive(Clone, Debug)]
struct SpanRecord {
    name: &'static str,
    parent: Option<&'static str>,
    fields: BTreeMap<String, String>,
    handles: usize,
}

impl tracing::field::Visit for SpanRecord {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let value = format!("{value:?}");
        let value = value.trim_matches('"').to_owned();
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut table = self.0.lock().unwrap();
        table.next += 1;
        let parent = attributes.parent().map(Id::into_u64);
        let mut record = SpanRecord {
            name: attributes.metadata().name(),
            parent: parent.and_then(|id| Some(table.live.get(&id)?.name)),
            fields: BTreeMap::new(),
            handles: 1,
        };
        attributes.record(&mut record);
        let id = table.next;
        table.live.insert(id, record);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut table = self.0.lock().unwrap();
        values.record(table.live.get_mut(&id.into_u64()).unwrap());
    }

    fn clone_span(&self, id: &Id) -> Id {
        let mut table = self.0.lock().unwrap();
        table.live.get_mut(&id.into_u64()).unwrap().handles += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut table = self.0.lock().unwrap();
        let record = table.live.get_mut(&id.into_u64()).unwrap();
        record.handles -= 1;
        let closed = record.handles == 0;
        if closed {
            let record = table.live.remove(&id.into_u64()).unwrap();
            table.ended.push(record);
        }
        closed
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct JsonEvents;

impl EventParser for JsonEvents {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        serde_json::from_str(line).into_iter().collect()
    }
}

#[tokio::test]
async fn executions_and_tools_are_spans_with_the_names_of_opentelemetry() {
    // A second subscriber: with a single one, `tracing` asks only the subscriber of the thread that is
    // the first to reach a span. The thread of another test has none and would turn the span off.
    let _second = tracing::Dispatch::new(Spans::default());
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(spans.clone());
    let lab = Lab::new();
    let lines = [
        r#"{"type":"session_started","session_id":"ses_1","model":"m-1"}"#,
        r#"{"type":"tool_call","id":"t1","name":"Bash","input":{"command":"secret"}}"#,
        r#"{"type":"tool_call","id":"t2","name":"Read","input":{}}"#,
        r#"{"type":"tool_result","id":"t1","output":"secret","is_error":true}"#,
        r#"{"type":"usage","run":{"input_tokens":7,"output_tokens":3}}"#,
        r#"{"type":"error","class":"overloaded","message":"secret"}"#,
    ];
    let agent = script(&format!(
        "printf '%s\\n' {}",
        lines.map(|l| format!("'{l}'")).join(" ")
    ))
    .setup(|_, parameters| parameters.event_parser = Some(Box::new(JsonEvents)));
    let service = lab.service(agent);
    let run = service.run(lab.new_chat("secret")).into_future();
    let result = within("the run", run).await.unwrap();
    drop(service);

    let has_ended = || {
        let table = spans.0.lock().unwrap();
        table.ended.iter().any(|span| span.name == "execution")
    };
    crate::lab::until("the span of the execution", has_ended).await;
    let ended = spans.0.lock().unwrap().ended.clone();
    let find = |name: &str, key: &str, value: &str| {
        let mut spans = ended.iter();
        let found = spans.find(|span| {
            span.name == name && span.fields.get(key).is_some_and(|field| field == value)
        });
        found.unwrap_or_else(|| panic!("no span {name} {key}={value} in {ended:?}"))
    };
    let execution = find("execution", "gen_ai.operation.name", "invoke_agent");
    for (name, value) in [
        ("gen_ai.agent.name", "scripted"),
        ("gen_ai.conversation.id", result.session_id.as_str()),
        ("gen_ai.response.model", "m-1"),
        ("gen_ai.usage.input_tokens", "7"),
        ("gen_ai.usage.output_tokens", "3"),
        ("error.type", "overloaded"),
    ] {
        assert_eq!(
            execution.fields.get(name).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
    let failed = find("tool", "gen_ai.tool.call.id", "t1");
    assert_eq!(failed.parent, Some("execution"));
    assert_eq!(failed.fields["gen_ai.operation.name"], "execute_tool");
    assert_eq!(failed.fields["gen_ai.tool.name"], "Bash");
    assert_eq!(failed.fields["error.type"], "tool");
    // A tool that never returns ends with its execution.
    let unfinished = find("tool", "gen_ai.tool.call.id", "t2");
    assert!(!unfinished.fields.contains_key("error.type"));
    assert!(!format!("{ended:?}").contains("secret"));
}
