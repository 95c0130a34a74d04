//! Rules 5 to 7: which saves are refused.

use serde_json::json;

use super::clause::{ClauseFixture, ClauseResult, clauses, ensure, refused, stored, tick, ticked};
use crate::conversation::Message;
use crate::{AgentSnapshot, Error};

clauses! {
    5 an_older_tick_is_a_conflict,
    5 the_same_tick_with_other_contents_is_a_conflict,
    5 the_same_tick_with_another_history_is_a_conflict,
    5 a_refused_save_changes_nothing,
    5 a_conflict_names_the_agent_and_both_positions,
    5 ticks_may_have_gaps,
    5 ticks_are_compared_as_whole_numbers,
    5 ticks_beyond_doubles_are_compared_exactly,
    5 the_highest_tick_can_be_saved,
    5 revisions_count_within_a_tick,
    5 an_older_revision_is_a_conflict,
    5 a_new_tick_restarts_at_revision_zero,
    5 a_higher_epoch_may_save_the_same_tick,
    5 a_higher_epoch_may_not_save_an_older_tick,
    6 the_same_save_again_is_a_success,
    6 a_repeat_changes_nothing,
    6 a_repeat_made_from_scratch_is_recognised,
    6 a_repeat_of_an_overtaken_save_is_a_conflict,
    6 after_a_repeat_the_next_tick_follows,
    7 an_older_epoch_is_a_conflict_at_any_tick,
    7 an_older_epoch_is_reported_as_fenced,
    7 loading_and_saving_do_not_raise_the_epoch,
    7 two_holders_of_one_epoch_are_distinguished,
}

async fn an_older_tick_is_a_conflict(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 5)?).await?;
    for ticks in [4, 1, 0] {
        refused(&*storage, &ticked("a", ticks)?).await?;
    }
    Ok(())
}

async fn the_same_tick_with_other_contents_is_a_conflict(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 5)?;
    storage.save(&snapshot).await?;
    snapshot.timestamp += 1;
    refused(&*storage, &snapshot).await?;
    Ok(())
}

async fn the_same_tick_with_another_history_is_a_conflict(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 5)?;
    storage.save(&snapshot).await?;
    let mut longer = snapshot.clone();
    longer.memory.short_term_history.push(Message::user("more"));
    refused(&*storage, &longer).await?;
    let mut trimmed = snapshot.clone();
    trimmed.memory.short_term_history.drop_front(1);
    refused(&*storage, &trimmed).await?;
    let mut pinned = snapshot.clone();
    pinned
        .memory
        .short_term_history
        .pin(vec![Message::system("p")]);
    refused(&*storage, &pinned).await?;
    stored(&*storage, &snapshot).await
}

async fn a_refused_save_changes_nothing(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 5)?;
    storage.save(&snapshot).await?;
    let mut stale = ticked("a", 4)?;
    stale.memory.short_term_history.push(Message::user("lost"));
    let variables = &mut stale.memory.working_variables;
    variables.insert("lost".to_owned(), json!(true));
    refused(&*storage, &stale).await?;
    stored(&*storage, &snapshot).await?;
    let stream = storage.stream(&snapshot.agent_id, 0..u64::MAX).await?;
    ensure!(
        stream.len() == 5,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_conflict_names_the_agent_and_both_positions(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("named", 5)?;
    snapshot.epoch = 2;
    snapshot.revision = 4;
    storage.save(&snapshot).await?;
    let mut stale = ticked("named", 3)?;
    stale.epoch = 2;
    stale.revision = 1;
    let error = refused(&*storage, &stale).await?;
    let exact = matches!(
        &error,
        Error::Conflict {
            agent,
            tick: 3,
            revision: 1,
            epoch: 2,
            stored_tick: 5,
            stored_revision: 4,
            stored_epoch: 2,
        } if agent.as_str() == "named"
    );
    ensure!(exact, "the error says: {error}");
    Ok(())
}

async fn ticks_may_have_gaps(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 1)?;
    for index in [1, 7, 1_000_000] {
        snapshot.tick_index = index;
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
    }
    Ok(())
}

/// Compared as text, 10 would be less than 9.
async fn ticks_are_compared_as_whole_numbers(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 1)?;
    for index in [9, 10, 99, 100] {
        snapshot.tick_index = index;
        storage.save(&snapshot).await?;
    }
    snapshot.tick_index = 20;
    refused(&*storage, &snapshot).await?;
    Ok(())
}

/// As doubles, the first two are equal.
async fn ticks_beyond_doubles_are_compared_exactly(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 1)?;
    let base = 1 << 53;
    for index in [base, base + 1, base + 2] {
        snapshot.tick_index = index;
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
    }
    snapshot.tick_index = base + 1;
    refused(&*storage, &snapshot).await?;
    Ok(())
}

async fn the_highest_tick_can_be_saved(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 1)?;
    snapshot.tick_index = u64::MAX - 1;
    storage.save(&snapshot).await?;
    snapshot.tick_index = u64::MAX;
    snapshot.epoch = u64::MAX;
    snapshot.revision = u64::MAX;
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}

async fn revisions_count_within_a_tick(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    storage.save(&snapshot).await?;
    for revision in [1, 2, 5] {
        snapshot.revision = revision;
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
    }
    Ok(())
}

async fn an_older_revision_is_a_conflict(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    snapshot.revision = 10;
    storage.save(&snapshot).await?;
    snapshot.revision = 9;
    refused(&*storage, &snapshot).await?;
    Ok(())
}

async fn a_new_tick_restarts_at_revision_zero(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    snapshot.revision = 10;
    storage.save(&snapshot).await?;
    tick(&mut snapshot);
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}

async fn a_higher_epoch_may_save_the_same_tick(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    storage.save(&snapshot).await?;
    snapshot.epoch = 1;
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}

async fn a_higher_epoch_may_not_save_an_older_tick(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 3)?).await?;
    let mut older = ticked("a", 2)?;
    older.epoch = 1;
    refused(&*storage, &older).await?;
    Ok(())
}

async fn the_same_save_again_is_a_success(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = AgentSnapshot::new(super::clause::id("a")?);
    for _ in 0..3 {
        storage.save(&snapshot).await?;
        storage.save(&snapshot).await?;
        fixture.open().await?.save(&snapshot).await?;
        tick(&mut snapshot);
    }
    Ok(())
}

async fn a_repeat_changes_nothing(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 3)?;
    for _ in 0..3 {
        storage.save(&snapshot).await?;
    }
    stored(&*storage, &snapshot).await?;
    let stream = storage.stream(&snapshot.agent_id, 0..u64::MAX).await?;
    ensure!(
        stream.len() == 3,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_repeat_made_from_scratch_is_recognised(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 3)?).await?;
    storage.save(&ticked("a", 3)?).await?;
    stored(&*storage, &ticked("a", 3)?).await
}

async fn a_repeat_of_an_overtaken_save_is_a_conflict(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let old = ticked("a", 3)?;
    storage.save(&old).await?;
    let mut new = old.clone();
    tick(&mut new);
    storage.save(&new).await?;
    refused(&*storage, &old).await?;
    stored(&*storage, &new).await
}

async fn after_a_repeat_the_next_tick_follows(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    storage.save(&snapshot).await?;
    storage.save(&snapshot).await?;
    tick(&mut snapshot);
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}

async fn an_older_epoch_is_a_conflict_at_any_tick(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    snapshot.epoch = 10;
    storage.save(&snapshot).await?;
    let mut old = ticked("a", 9)?;
    for epoch in [0, 2, 9] {
        old.epoch = epoch;
        refused(&*storage, &old).await?;
    }
    stored(&*storage, &snapshot).await
}

async fn an_older_epoch_is_reported_as_fenced(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    snapshot.epoch = 2;
    storage.save(&snapshot).await?;
    snapshot.tick_index = 2;
    let stale = refused(&*storage, &snapshot).await?;
    ensure!(!stale.is_fenced(), "a stale tick is reported as fenced");
    snapshot.tick_index = 4;
    snapshot.epoch = 1;
    let fenced = refused(&*storage, &snapshot).await?;
    ensure!(fenced.is_fenced(), "not reported as fenced: {fenced}");
    Ok(())
}

async fn loading_and_saving_do_not_raise_the_epoch(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 1)?;
    for _ in 0..3 {
        storage.save(&snapshot).await?;
        let loaded = storage.load(&snapshot.agent_id).await?;
        let epoch = loaded.map(|loaded| loaded.epoch);
        ensure!(epoch == Some(0), "the epoch is {epoch:?}");
        tick(&mut snapshot);
    }
    Ok(())
}

async fn two_holders_of_one_epoch_are_distinguished(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut first = ticked("a", 3)?;
    storage.save(&first).await?;
    first.epoch = 1;
    let mut second = first.clone();
    first.holder = Some("first".to_owned());
    second.holder = Some("second".to_owned());
    storage.save(&first).await?;
    refused(&*storage, &second).await?;
    stored(&*storage, &first).await
}
