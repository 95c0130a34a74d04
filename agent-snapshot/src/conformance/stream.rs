//! Rules 10 and 11: the stream of messages and its view.

use std::ops::RangeInclusive;

use super::clause::{
    ClauseFixture, ClauseResult, clauses, ensure, id, round_trip, stored, tick, ticked,
    whole_stream,
};
use crate::History;
use crate::conversation::Message;

clauses! {
    11 the_stream_holds_every_message_in_order,
    11 a_range_of_the_stream_can_be_read,
    11 a_range_beyond_the_stream_is_cut,
    11 the_stream_of_an_unknown_agent_is_empty,
    11 trimmed_messages_stay_in_the_stream,
    11 messages_dropped_before_their_save_are_in_the_stream,
    11 released_messages_stay_in_the_stream,
    2 sequence_numbers_survive,
    2 pinned_messages_survive,
    2 a_summary_can_be_set_replaced_and_removed,
    2 the_view_may_be_empty,
    2 messages_may_come_back_into_view,
    10 several_messages_of_one_save_keep_their_order,
    10 a_save_without_new_messages_keeps_the_stream,
    10 a_loaded_history_continues,
    10 a_trimmed_and_loaded_history_continues,
    10 a_history_made_from_scratch_continues,
    10 another_history_replaces_the_stream,
    10 a_shorter_history_replaces_the_stream,
    10 five_hundred_ticks_keep_every_message,
}

fn texts(ticks: RangeInclusive<u64>) -> Vec<(u64, String)> {
    ticks
        .map(|n| (n - 1, format!("message of tick {n}")))
        .collect()
}

async fn the_stream_holds_every_message_in_order(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..20 {
        tick(&mut snapshot);
        storage.save(&snapshot).await?;
    }
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(stream == texts(1..=20), "the stream is {stream:?}");
    Ok(())
}

async fn a_range_of_the_stream_can_be_read(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 20)?).await?;
    for range in [0..1, 5..9, 19..20, 0..20] {
        let part = storage.stream(&id("a")?, range.clone()).await?;
        let numbers: Vec<u64> = part.iter().map(|(seq, _)| *seq).collect();
        ensure!(
            numbers == range.clone().collect::<Vec<_>>(),
            "{range:?} gives {numbers:?}"
        );
    }
    Ok(())
}

async fn a_range_beyond_the_stream_is_cut(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 5)?).await?;
    #[expect(clippy::reversed_empty_ranges, reason = "a caller may compute one")]
    for (range, expected) in [
        (3..99, 2),
        (5..9, 0),
        (99..u64::MAX, 0),
        (0..0, 0),
        (4..4, 0),
        (4..2, 0),
    ] {
        let part = storage.stream(&id("a")?, range.clone()).await?;
        ensure!(
            part.len() == expected,
            "{range:?} gives {} messages",
            part.len()
        );
    }
    Ok(())
}

async fn the_stream_of_an_unknown_agent_is_empty(fixture: ClauseFixture) -> ClauseResult {
    let stream = whole_stream(&*fixture.open().await?, &id("unknown")?).await?;
    ensure!(stream.is_empty(), "it is {stream:?}");
    Ok(())
}

async fn trimmed_messages_stay_in_the_stream(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 10)?;
    storage.save(&snapshot).await?;
    tick(&mut snapshot);
    snapshot.memory.short_term_history.drop_front(8);
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(stream == texts(1..=11), "the stream is {stream:?}");
    Ok(())
}

async fn messages_dropped_before_their_save_are_in_the_stream(
    fixture: ClauseFixture,
) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 10)?;
    snapshot.memory.short_term_history.drop_front(9);
    storage.save(&snapshot).await?;
    for _ in 0..5 {
        tick(&mut snapshot);
    }
    snapshot.memory.short_term_history.drop_front(5);
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(stream == texts(1..=15), "the stream is {stream:?}");
    Ok(())
}

async fn released_messages_stay_in_the_stream(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..200 {
        tick(&mut snapshot);
        let history = &mut snapshot.memory.short_term_history;
        history.drop_front(history.tail_len().saturating_sub(3));
        storage.save(&snapshot).await?;
        snapshot.memory.short_term_history.release_hidden();
    }
    stored(&*storage, &snapshot).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(
        stream == texts(1..=200),
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn sequence_numbers_survive(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 10)?;
    snapshot.memory.short_term_history.drop_front(4);
    storage.save(&snapshot).await?;
    let loaded = storage.load(&snapshot.agent_id).await?;
    let numbers = loaded.map(|loaded| {
        let history = loaded.memory.short_term_history;
        (history.first_seq(), history.next_seq())
    });
    ensure!(numbers == Some((4, 10)), "they are {numbers:?}");
    Ok(())
}

async fn pinned_messages_survive(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    for prompt in ["be brief", "be kind", "be kind"] {
        let pinned = vec![Message::system(prompt), Message::system("rules")];
        tick(&mut snapshot);
        snapshot.memory.short_term_history.pin(pinned);
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
    }
    tick(&mut snapshot);
    snapshot.memory.short_term_history.pin(Vec::new());
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}

async fn a_summary_can_be_set_replaced_and_removed(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 9)?;
    snapshot
        .memory
        .short_term_history
        .pin(vec![Message::system("be brief")]);
    storage.save(&snapshot).await?;
    for summary in [Some("前文の要約：一"), Some("前文の要約：一二"), None] {
        tick(&mut snapshot);
        let history = &mut snapshot.memory.short_term_history;
        history.drop_front(2);
        history.set_summary(summary.map(Message::system));
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
    }
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(stream == texts(1..=12), "the stream is {stream:?}");
    Ok(())
}

async fn the_view_may_be_empty(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("a", 3)?;
    snapshot.memory.short_term_history.drop_front(3);
    round_trip(&fixture, &snapshot).await?;
    let storage = fixture.open().await?;
    let Some(mut loaded) = storage.load(&snapshot.agent_id).await? else {
        return Ok(());
    };
    tick(&mut loaded);
    storage.save(&loaded).await?;
    stored(&*storage, &loaded).await?;
    let stream = whole_stream(&*storage, &loaded.agent_id).await?;
    ensure!(stream == texts(1..=4), "the stream is {stream:?}");
    Ok(())
}

/// As for a model with a larger window. After each step the data is at rest.
async fn messages_may_come_back_into_view(fixture: ClauseFixture) -> ClauseResult {
    let mut whole = ticked("a", 10)?;
    for hidden in [8, 4, 6, 0] {
        let storage = fixture.open().await?;
        tick(&mut whole);
        let mut snapshot = whole.clone();
        snapshot.memory.short_term_history.drop_front(hidden);
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
        storage.close().await?;
        stored(&*fixture.open().await?, &snapshot).await?;
    }
    let stream = whole_stream(&*fixture.open().await?, &whole.agent_id).await?;
    ensure!(stream == texts(1..=14), "the stream is {stream:?}");
    Ok(())
}

async fn several_messages_of_one_save_keep_their_order(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 1)?;
    storage.save(&snapshot).await?;
    for _ in 0..30 {
        tick(&mut snapshot);
    }
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(stream == texts(1..=31), "the stream is {stream:?}");
    Ok(())
}

async fn a_save_without_new_messages_keeps_the_stream(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 5)?;
    storage.save(&snapshot).await?;
    snapshot.tick_index += 1;
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(stream == texts(1..=5), "the stream is {stream:?}");
    Ok(())
}

async fn a_loaded_history_continues(fixture: ClauseFixture) -> ClauseResult {
    let mut expected = ticked("a", 0)?;
    for _ in 0..10 {
        let storage = fixture.open().await?;
        let loaded = storage.load(&expected.agent_id).await?;
        let mut loaded = loaded.unwrap_or_else(|| expected.clone());
        tick(&mut loaded);
        tick(&mut expected);
        storage.save(&loaded).await?;
        stored(&*storage, &expected).await?;
    }
    let stream = whole_stream(&*fixture.open().await?, &expected.agent_id).await?;
    ensure!(stream == texts(1..=10), "the stream is {stream:?}");
    Ok(())
}

async fn a_trimmed_and_loaded_history_continues(fixture: ClauseFixture) -> ClauseResult {
    let agent = id("a")?;
    fixture.open().await?.save(&ticked("a", 1)?).await?;
    for _ in 0..100 {
        let storage = fixture.open().await?;
        let Some(mut loaded) = storage.load(&agent).await? else {
            ensure!(false, "the agent is missing");
            break;
        };
        tick(&mut loaded);
        let history = &mut loaded.memory.short_term_history;
        history.drop_front(history.tail_len().saturating_sub(4));
        storage.save(&loaded).await?;
    }
    let stream = whole_stream(&*fixture.open().await?, &agent).await?;
    ensure!(
        stream == texts(1..=101),
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_history_made_from_scratch_continues(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    for ticks in 1..10 {
        storage.save(&ticked("a", ticks)?).await?;
    }
    stored(&*storage, &ticked("a", 9)?).await?;
    let stream = whole_stream(&*storage, &id("a")?).await?;
    ensure!(stream == texts(1..=9), "the stream is {stream:?}");
    Ok(())
}

async fn another_history_replaces_the_stream(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 5)?;
    snapshot
        .memory
        .short_term_history
        .pin(vec![Message::system("old")]);
    storage.save(&snapshot).await?;
    snapshot.tick_index += 1;
    snapshot.memory.short_term_history = (0..7)
        .map(|n| Message::user(format!("other {n}")))
        .collect();
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(
        stream.len() == 7,
        "the stream has {} messages",
        stream.len()
    );
    ensure!(
        stream.iter().all(|(_, text)| text.starts_with("other")),
        "old messages are left"
    );
    Ok(())
}

async fn a_shorter_history_replaces_the_stream(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 5)?;
    storage.save(&snapshot).await?;
    for length in [2, 0] {
        snapshot.tick_index += 1;
        let history: History = (0..length).map(|n| Message::user(n.to_string())).collect();
        snapshot.memory.short_term_history = history;
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
        let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
        ensure!(
            stream.len() == length,
            "the stream has {} messages",
            stream.len()
        );
    }
    Ok(())
}

async fn five_hundred_ticks_keep_every_message(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..500 {
        tick(&mut snapshot);
        storage.save(&snapshot).await?;
    }
    stored(&*storage, &snapshot).await?;
    let other = fixture.open().await?;
    stored(&*other, &snapshot).await?;
    let stream = whole_stream(&*other, &snapshot.agent_id).await?;
    ensure!(
        stream == texts(1..=500),
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}
