//! Rules 1 and 2: a load returns the saved snapshot.

use serde_json::{Map, Value, json};

use super::clause::{
    ClauseFixture, ClauseResult, clauses, ensure, id, round_trip, stored, tick, ticked,
};
use crate::conversation::{Message, Role, ToolCallRequest, ToolCallResult};
use crate::{AgentSnapshot, Event, Status};

clauses! {
    1 load_of_nothing_is_none,
    2 the_specified_sample_survives,
    2 a_blank_snapshot_survives,
    2 unknown_fields_survive_at_every_level,
    2 any_text_survives,
    2 any_number_survives,
    2 texts_of_any_length_survive,
    2 a_message_of_a_megabyte_survives,
    2 a_thousand_variables_survive,
    2 deeply_nested_variables_survive,
    2 a_message_without_id_and_time_stays_without,
    2 tool_calls_and_results_survive,
    2 events_come_back_in_order,
    2 event_ids_survive,
    2 an_unknown_status_survives,
    2 the_largest_time_stamp_survives,
    2 unsent_replies_and_tool_intents_survive,
    2 epoch_and_holder_survive,
    2 loading_changes_nothing,
    2 a_field_that_a_later_save_leaves_out_is_removed,
    2 a_save_that_changes_only_the_status_is_stored,
}

async fn load_of_nothing_is_none(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    ensure!(
        storage.load(&id("unknown")?).await?.is_none(),
        "something was loaded"
    );
    Ok(())
}

async fn the_specified_sample_survives(fixture: ClauseFixture) -> ClauseResult {
    let sample = json!({
        "agent_id": "worker_007",
        "tick_index": 42,
        "timestamp": 1_706_582_400_000_u64,
        "status": "WAITING_FOR_EVENT",
        "memory": {
            "short_term_history": [
                { "role": "user", "content": "..." },
                { "role": "assistant", "content": "..." }
            ],
            "working_variables": { "current_file_path": "/tmp/report.txt", "retry_count": 0 }
        },
        "event_queue_backup": [{ "source": "mcp", "type": "task", "payload": "..." }]
    });
    let snapshot = AgentSnapshot::from_json(&sample.to_string())?;
    round_trip(&fixture, &snapshot).await?;
    let loaded = fixture.open().await?.load(&snapshot.agent_id).await?;
    let json = loaded.map(|loaded| loaded.to_json()).transpose()?;
    let value: Option<Value> = json.and_then(|json| serde_json::from_str(&json).ok());
    ensure!(value == Some(sample), "the JSON differs");
    Ok(())
}

async fn a_blank_snapshot_survives(fixture: ClauseFixture) -> ClauseResult {
    round_trip(&fixture, &AgentSnapshot::new(id("blank")?)).await
}

async fn unknown_fields_survive_at_every_level(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("extra", 1)?;
    let extra = Map::from_iter([("x".to_owned(), json!({"y": [1, null, "z"]}))]);
    let mut message = Message::new(Role::Assistant);
    let mut call = ToolCallRequest::new("c", "t", json!({}));
    call.extra.clone_from(&extra);
    message.tool_calls.push(call);
    message.extra.clone_from(&extra);
    let mut event = Event::new("s", "k", Value::Null);
    event.extra.clone_from(&extra);
    snapshot.event_queue_backup.push(event);
    snapshot.memory.short_term_history.push(message);
    snapshot.memory.extra.clone_from(&extra);
    snapshot.extra = extra;
    round_trip(&fixture, &snapshot).await
}

async fn any_text_survives(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("text", 1)?;
    for text in [
        "",
        " ",
        "\0",
        "\u{1}\u{1f}\u{7f}",
        "a\nb\r\nc\td",
        "\"\\/",
        "日本語の文章、😀👨‍👩‍👧",
        "\u{2028}\u{2029}\u{feff}",
        "'; DROP TABLE agents; --",
        "{\"role\":\"user\"}",
        "e\u{301} \u{e9}",
        "\u{10ffff}",
    ] {
        snapshot.memory.short_term_history.push(Message::user(text));
        let variables = &mut snapshot.memory.working_variables;
        variables.insert(text.to_owned(), json!(text));
    }
    round_trip(&fixture, &snapshot).await
}

async fn any_number_survives(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("numbers", 1)?;
    let numbers = json!([
        0,
        -1,
        i64::MIN,
        u64::MAX,
        9_007_199_254_740_993_u64,
        0.1,
        -0.0,
        1e-300,
        1.797_693_134_862_315_7e308,
        5e-324,
        0.300_000_000_000_000_04
    ]);
    let variables = &mut snapshot.memory.working_variables;
    variables.insert("numbers".to_owned(), numbers);
    round_trip(&fixture, &snapshot).await
}

async fn texts_of_any_length_survive(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("lengths", 0)?;
    for length in (0..34).chain([127, 128, 255, 256, 4095, 4096, 4097, 65535, 65536]) {
        tick(&mut snapshot);
        let text = "abcdefghij"
            .chars()
            .cycle()
            .take(length)
            .collect::<String>();
        snapshot
            .memory
            .short_term_history
            .push(Message::user(&text));
        let variables = &mut snapshot.memory.working_variables;
        variables.insert("last".to_owned(), json!(text));
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
    }
    Ok(())
}

async fn a_message_of_a_megabyte_survives(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("large", 1)?;
    let text = "0123456789abcdéf".repeat(1 << 16);
    snapshot
        .memory
        .short_term_history
        .push(Message::assistant(text));
    round_trip(&fixture, &snapshot).await
}

async fn a_thousand_variables_survive(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("variables", 1)?;
    for n in 0..1000 {
        let variables = &mut snapshot.memory.working_variables;
        variables.insert(format!("variable {n}"), json!({ "n": n }));
    }
    round_trip(&fixture, &snapshot).await
}

async fn deeply_nested_variables_survive(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("deep", 1)?;
    let nested = (0..100).fold(json!("core"), |inner, n| {
        if n % 2 == 0 {
            json!([inner])
        } else {
            json!({ "k": inner })
        }
    });
    let variables = &mut snapshot.memory.working_variables;
    variables.insert("nested".to_owned(), nested);
    round_trip(&fixture, &snapshot).await
}

async fn a_message_without_id_and_time_stays_without(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("bare", 1)?;
    let mut full = Message::user("with");
    full.id = Some("m1".to_owned());
    full.timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    let history = &mut snapshot.memory.short_term_history;
    history.extend([
        Message::user("without"),
        full,
        Message::new(Role::Assistant),
    ]);
    round_trip(&fixture, &snapshot).await
}

async fn tool_calls_and_results_survive(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("tools", 1)?;
    let mut calls = Message::new(Role::Assistant);
    let mut results = Message::new(Role::Tool);
    for n in 0..3 {
        let call = format!("call_{n}");
        let mut result = ToolCallResult::new(&call, json!([n, null]));
        result.is_error = n == 1;
        results.tool_results.push(result);
        calls
            .tool_calls
            .push(ToolCallRequest::new(call, "search", json!({ "n": n })));
    }
    snapshot.memory.short_term_history.extend([calls, results]);
    round_trip(&fixture, &snapshot).await
}

async fn events_come_back_in_order(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("events", 1)?;
    for n in [5, 1, 4, 1, 3, 2] {
        let event = Event::new("test", "task", json!(n));
        snapshot.event_queue_backup.push(event);
    }
    round_trip(&fixture, &snapshot).await
}

async fn event_ids_survive(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("event-ids", 1)?;
    for id in ["b", "a", "日本"] {
        let event = Event::new("test", "task", Value::Null).with_id(id);
        snapshot.event_queue_backup.push(event);
    }
    round_trip(&fixture, &snapshot).await
}

async fn an_unknown_status_survives(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("status", 1)?;
    snapshot.status = Status::new("Dreaming of 羊");
    round_trip(&fixture, &snapshot).await
}

async fn the_largest_time_stamp_survives(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("time", 1)?;
    snapshot.timestamp = u64::MAX;
    round_trip(&fixture, &snapshot).await
}

async fn unsent_replies_and_tool_intents_survive(fixture: ClauseFixture) -> ClauseResult {
    let json = json!({
        "agent_id": "outbox", "tick_index": 1, "timestamp": 2, "status": "RUNNING",
        "memory": { "short_term_history": [], "working_variables": {} },
        "event_queue_backup": [],
        "outbox": [{ "key": "outbox/0/1/0", "payload": { "text": "hi" }, "later": 1 }],
        "tool_intents": [{ "key": "outbox/0/1/t0", "name": "rm", "args": { "path": "/" } }]
    });
    let snapshot = AgentSnapshot::from_json(&json.to_string())?;
    ensure!(snapshot.outbox.len() == 1, "the reply was not read");
    ensure!(snapshot.tool_intents.len() == 1, "the intent was not read");
    round_trip(&fixture, &snapshot).await
}

async fn epoch_and_holder_survive(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("epoch", 1)?;
    snapshot.epoch = 7;
    snapshot.holder = Some("holder-1".to_owned());
    snapshot.revision = 3;
    round_trip(&fixture, &snapshot).await
}

async fn loading_changes_nothing(fixture: ClauseFixture) -> ClauseResult {
    let snapshot = ticked("load", 3)?;
    round_trip(&fixture, &snapshot).await?;
    let storage = fixture.open().await?;
    for _ in 0..3 {
        stored(&*storage, &snapshot).await?;
    }
    storage.save(&snapshot).await?;
    Ok(())
}

async fn a_field_that_a_later_save_leaves_out_is_removed(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("shrink", 1)?;
    let event = Event::new("test", "task", json!(1));
    snapshot.event_queue_backup.push(event);
    snapshot.extra.insert("x".to_owned(), json!(1));
    let variables = &mut snapshot.memory.working_variables;
    variables.insert("big".to_owned(), json!("x".repeat(10_000)));
    storage.save(&snapshot).await?;
    tick(&mut snapshot);
    snapshot.memory.working_variables.remove("big");
    snapshot.extra.clear();
    snapshot.event_queue_backup.clear();
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}

async fn a_save_that_changes_only_the_status_is_stored(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("status-only", 2)?;
    storage.save(&snapshot).await?;
    snapshot.tick_index += 1;
    snapshot.status = Status::STOPPED;
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}
