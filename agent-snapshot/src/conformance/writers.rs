//! Rules 4 to 8, 10 and 12 with several handles on the same data.

use std::sync::Arc;

use serde_json::json;

use super::clause::{
    ClauseEnd, ClauseFixture, ClauseResult, clauses, ensure, id, refused, same, stored, tick,
    ticked, whole_stream,
};
use crate::{AgentSnapshot, SnapshotStorage};

clauses! {
    4 a_save_is_seen_by_another_handle,
    5 of_two_writers_from_one_parent_the_second_is_refused,
    5 the_refused_writer_can_load_and_continue,
    5 of_many_saves_of_one_tick_exactly_one_wins,
    5 no_turn_is_lost_between_writers_that_retry,
    5 a_handle_that_missed_many_saves_is_refused,
    6 a_repeat_through_another_handle_is_a_success,
    7 a_fenced_writer_is_refused_through_its_own_handle,
    8 a_delete_is_seen_by_another_handle,
    8 a_handle_is_told_that_another_one_deleted,
    10 a_handle_continues_after_another_one_appended,
    10 a_handle_continues_after_another_one_replaced,
    12 many_agents_can_save_at_once,
    4 a_reader_never_sees_half_a_save,
}

async fn a_save_is_seen_by_another_handle(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..5 {
        tick(&mut snapshot);
        one.save(&snapshot).await?;
        stored(&*two, &snapshot).await?;
        tick(&mut snapshot);
        two.save(&snapshot).await?;
        stored(&*one, &snapshot).await?;
    }
    Ok(())
}

async fn of_two_writers_from_one_parent_the_second_is_refused(
    fixture: ClauseFixture,
) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let parent = ticked("a", 3)?;
    one.save(&parent).await?;
    let mut first = load(&*one, &parent).await?;
    let mut second = load(&*two, &parent).await?;
    tick(&mut first);
    tick(&mut second);
    let variables = &mut second.memory.working_variables;
    variables.insert("writer".to_owned(), json!(2));
    one.save(&first).await?;
    refused(&*two, &second).await?;
    stored(&*two, &first).await
}

async fn the_refused_writer_can_load_and_continue(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let parent = ticked("a", 3)?;
    one.save(&parent).await?;
    two.save(&parent).await?;
    let mut first = parent.clone();
    tick(&mut first);
    one.save(&first).await?;
    let mut second = parent.clone();
    tick(&mut second);
    second.timestamp += 1;
    refused(&*two, &second).await?;
    let mut second = load(&*two, &parent).await?;
    tick(&mut second);
    two.save(&second).await?;
    stored(&*one, &second).await?;
    let stream = whole_stream(&*one, &parent.agent_id).await?;
    ensure!(
        stream.len() == 5,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn of_many_saves_of_one_tick_exactly_one_wins(fixture: ClauseFixture) -> ClauseResult {
    let parent = ticked("a", 2)?;
    fixture.open().await?.save(&parent).await?;
    let mut tasks = Vec::new();
    for writer in 0..8 {
        let storage = fixture.open().await?;
        let mut snapshot = parent.clone();
        tick(&mut snapshot);
        let variables = &mut snapshot.memory.working_variables;
        variables.insert("writer".to_owned(), json!(writer));
        tasks.push(tokio::spawn(async move {
            let result = storage.save(&snapshot).await;
            (snapshot, result)
        }));
    }
    let mut winners = Vec::new();
    for task in tasks {
        let (snapshot, result) = task.await?;
        match result {
            Ok(()) => winners.push(snapshot),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(winners.len() == 1, "{} writers won", winners.len());
    let storage = fixture.open().await?;
    same(&load(&*storage, &parent).await?, &winners[0])
}

async fn no_turn_is_lost_between_writers_that_retry(fixture: ClauseFixture) -> ClauseResult {
    const WRITERS: u64 = 4;
    const TURNS: u64 = 10;
    let agent = ticked("a", 0)?;
    fixture.open().await?.save(&agent).await?;
    let mut tasks = Vec::new();
    for _ in 0..WRITERS {
        let storage = fixture.open().await?;
        let agent = agent.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..TURNS {
                for attempt in 1.. {
                    ensure!(attempt < 1000, "a save was refused {attempt} times");
                    let mut snapshot = load(&*storage, &agent).await?;
                    tick(&mut snapshot);
                    snapshot.holder = Some(uuid::Uuid::new_v4().to_string());
                    match storage.save(&snapshot).await {
                        Ok(()) => break,
                        Err(error) if error.is_conflict() => tokio::task::yield_now().await,
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Ok::<_, ClauseEnd>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    let storage = fixture.open().await?;
    let last = load(&*storage, &agent).await?;
    ensure!(
        last.tick_index == WRITERS * TURNS,
        "the last tick is {}",
        last.tick_index
    );
    let stream = whole_stream(&*storage, &agent.agent_id).await?;
    ensure!(
        stream.len() as u64 == WRITERS * TURNS,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_handle_that_missed_many_saves_is_refused(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let mut snapshot = ticked("a", 1)?;
    one.save(&snapshot).await?;
    let mut stale = snapshot.clone();
    for _ in 0..120 {
        tick(&mut snapshot);
        two.save(&snapshot).await?;
    }
    tick(&mut stale);
    stale.timestamp += 1;
    refused(&*one, &stale).await?;
    stored(&*one, &snapshot).await
}

async fn a_repeat_through_another_handle_is_a_success(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let mut snapshot = ticked("a", 1)?;
    for _ in 0..3 {
        tick(&mut snapshot);
        one.save(&snapshot).await?;
        two.save(&snapshot).await?;
    }
    stored(&*two, &snapshot).await
}

async fn a_fenced_writer_is_refused_through_its_own_handle(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let mut old = ticked("a", 3)?;
    old.epoch = 1;
    one.save(&old).await?;
    let mut new = load(&*two, &old).await?;
    new.epoch = 2;
    two.save(&new).await?;
    tick(&mut old);
    let error = refused(&*one, &old).await?;
    ensure!(error.is_fenced(), "not reported as fenced: {error}");
    stored(&*one, &new).await
}

async fn a_delete_is_seen_by_another_handle(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let snapshot = ticked("a", 3)?;
    one.save(&snapshot).await?;
    stored(&*two, &snapshot).await?;
    two.delete(&snapshot.agent_id).await?;
    ensure!(
        one.load(&snapshot.agent_id).await?.is_none(),
        "it is still stored"
    );
    ensure!(one.list().await?.is_empty(), "it is still listed");
    Ok(())
}

/// A storage that does not remember its own saves may accept the save.
async fn a_handle_is_told_that_another_one_deleted(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let mut snapshot = ticked("a", 3)?;
    one.save(&snapshot).await?;
    two.delete(&snapshot.agent_id).await?;
    tick(&mut snapshot);
    match one.save(&snapshot).await {
        Err(error) if error.is_rewound() => {
            ensure!(two.list().await?.is_empty(), "the refused save was stored");
            one.overwrite(&snapshot).await?;
        }
        result => result?,
    }
    stored(&*two, &snapshot).await?;
    let stream = whole_stream(&*two, &snapshot.agent_id).await?;
    ensure!(
        stream.len() == 4,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_handle_continues_after_another_one_appended(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let mut snapshot = ticked("a", 0)?;
    for turn in 0..40 {
        tick(&mut snapshot);
        let storage = if turn % 3 == 0 { &one } else { &two };
        storage.save(&snapshot).await?;
    }
    stored(&*one, &snapshot).await?;
    let stream = whole_stream(&*two, &snapshot.agent_id).await?;
    ensure!(
        stream.len() == 40,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_handle_continues_after_another_one_replaced(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let mut snapshot = ticked("a", 5)?;
    one.save(&snapshot).await?;
    let mut other = load(&*two, &snapshot).await?;
    other.memory = AgentSnapshot::new(id("a")?).memory;
    other.tick_index = 10;
    two.save(&other).await?;
    snapshot.tick_index = 10;
    tick(&mut snapshot);
    one.save(&snapshot).await?;
    stored(&*two, &snapshot).await?;
    let stream = whole_stream(&*two, &snapshot.agent_id).await?;
    ensure!(
        stream.len() == 6,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn many_agents_can_save_at_once(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut tasks = Vec::new();
    for n in 0..16 {
        let storage = storage.clone();
        let mut snapshot = ticked(&format!("agent_{n}"), 0)?;
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                tick(&mut snapshot);
                storage.save(&snapshot).await?;
            }
            Ok::<_, ClauseEnd>(snapshot)
        }));
    }
    for task in tasks {
        stored(&*storage, &task.await??).await?;
    }
    let listed = storage.list().await?.len();
    ensure!(listed == 16, "{listed} agents are listed");
    Ok(())
}

async fn a_reader_never_sees_half_a_save(fixture: ClauseFixture) -> ClauseResult {
    let (writer, reader) = (fixture.open().await?, fixture.open().await?);
    let mut snapshot = ticked("a", 1)?;
    writer.save(&snapshot).await?;
    let agent = snapshot.clone();
    let writing = tokio::spawn(async move {
        for _ in 0..150 {
            tick(&mut snapshot);
            writer.save(&snapshot).await?;
        }
        Ok::<_, ClauseEnd>(())
    });
    let mut last = 0;
    while !writing.is_finished() {
        let seen = load(&*reader, &agent).await?;
        let messages = seen.memory.short_term_history.next_seq();
        let variable = seen.memory.working_variables.get("tick");
        let whole = messages == seen.tick_index && variable == Some(&json!(seen.tick_index));
        ensure!(whole, "tick {} has {messages} messages", seen.tick_index);
        ensure!(
            seen.tick_index >= last,
            "tick {last} was seen before {}",
            seen.tick_index
        );
        last = seen.tick_index;
        tokio::task::yield_now().await;
    }
    writing.await?
}

async fn load(
    storage: &(impl SnapshotStorage + ?Sized),
    snapshot: &AgentSnapshot,
) -> Result<AgentSnapshot, ClauseEnd> {
    let loaded = storage.load(&snapshot.agent_id).await?;
    loaded.ok_or_else(|| ClauseEnd::Failed(format!("agent {} is missing", snapshot.agent_id)))
}

// Handles are moved into tasks: the trait object must be `Send + Sync`.
const _: fn(Arc<dyn SnapshotStorage>) = |storage| {
    fn sendable<T: Send + Sync>(_: T) {}
    sendable(storage);
};
