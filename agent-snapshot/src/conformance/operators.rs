//! Rule 16: lists with pages, expiry, and a cap for the stream.

use std::time::{Duration, SystemTime};

use super::clause::{
    ClauseEnd, ClauseFixture, ClauseResult, clauses, ensure, id, refused, stored, tick, ticked,
    whole_stream,
};
use crate::{AgentId, AgentInfo, Position, SnapshotStorage};

clauses! {
    16 pages_have_every_agent_once_in_order,
    16 a_page_after_the_last_agent_is_empty,
    16 a_page_has_no_deleted_agent,
    16 a_page_shows_tick_messages_labels_and_size,
    16 a_page_shows_the_last_change,
    16 a_page_lists_damaged_agents,
    16 an_old_agent_expires,
    16 a_young_agent_does_not_expire,
    16 a_save_makes_an_agent_young_again,
    16 the_epoch_of_an_expired_agent_stays,
    16 an_expired_agent_can_be_saved_again,
    16 a_damaged_agent_does_not_expire,
    16 a_capped_stream_keeps_its_newest_messages,
    16 a_cap_removes_no_message_in_view,
    16 a_cap_changes_nothing_else,
    16 a_cap_of_an_agent_without_messages_in_view_spares_the_others,
    16 a_writer_continues_after_a_cap,
    16 capped_messages_may_come_back_into_view,
    16 a_cap_can_be_repeated,
    16 a_cap_of_an_unknown_agent_removes_nothing,
}

const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

async fn age(fixture: &ClauseFixture, agent: &AgentId) -> ClauseResult {
    match fixture.0.age_an_hour(agent).await {
        true => Ok(()),
        false => Err(ClauseEnd::NotApplicable),
    }
}

async fn find(storage: &dyn SnapshotStorage, name: &str) -> Result<AgentInfo, ClauseEnd> {
    let page = storage.page(None, usize::MAX).await?;
    let found = page.into_iter().find(|info| info.agent.as_str() == name);
    found.ok_or_else(|| ClauseEnd::Failed(format!("{name} is not listed")))
}

async fn pages_have_every_agent_once_in_order(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    for n in 0..23 {
        storage.save(&ticked(&format!("agent {n}"), 1)?).await?;
    }
    let all = storage.list().await?;
    for limit in [1, 5, 23, 100] {
        let mut paged: Vec<AgentId> = Vec::new();
        loop {
            let page = storage.page(paged.last(), limit).await?;
            ensure!(page.len() <= limit, "a page has {} agents", page.len());
            if page.is_empty() {
                break;
            }
            paged.extend(page.into_iter().map(|info| info.agent));
            ensure!(paged.len() <= 23, "there are {} agents", paged.len());
        }
        ensure!(paged == all, "pages of {limit}: {paged:?}");
    }
    Ok(())
}

async fn a_page_after_the_last_agent_is_empty(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 1)?).await?;
    for (after, count) in [("A", 1), ("a", 0), ("b", 0)] {
        let page = storage.page(Some(&id(after)?), 10).await?;
        ensure!(page.len() == count, "after {after}: {page:?}");
    }
    ensure!(storage.page(None, 0).await?.is_empty(), "0 is no limit");
    Ok(())
}

async fn a_page_has_no_deleted_agent(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 1)?).await?;
    storage.save(&ticked("b", 1)?).await?;
    storage.delete(&id("a")?).await?;
    let page = storage.page(None, 10).await?;
    let names: Vec<&str> = page.iter().map(|info| info.agent.as_str()).collect();
    ensure!(names == ["b"], "listed {names:?}");
    Ok(())
}

async fn a_page_shows_tick_messages_labels_and_size(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    snapshot.epoch = 2;
    snapshot.labels.insert("project".into(), "アトラス".into());
    storage.save(&snapshot).await?;
    let small = find(&*storage, "a").await?;
    ensure!(small.position == Some(Position::of(&snapshot)), "{small:?}");
    ensure!(small.messages == 3, "{small:?}");
    ensure!(small.labels == snapshot.labels, "{small:?}");
    tick(&mut snapshot);
    snapshot.labels.clear();
    let long = crate::conversation::Message::user("x".repeat(5_000));
    snapshot.memory.short_term_history.push(long);
    storage.save(&snapshot).await?;
    let large = find(&*storage, "a").await?;
    ensure!(large.position == Some(Position::of(&snapshot)), "{large:?}");
    ensure!(large.labels.is_empty(), "{large:?}");
    ensure!(large.bytes >= small.bytes + 5_000, "{small:?}, {large:?}");
    Ok(())
}

async fn a_page_shows_the_last_change(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    snapshot.set_timestamp(SystemTime::now());
    storage.save(&snapshot).await?;
    let before = find(&*storage, "a").await?.changed;
    // A clock may be off by some seconds, not by a day.
    let day = Duration::from_secs(24 * 3600);
    let now = SystemTime::now();
    ensure!(
        before > now - day && before < now + day,
        "it was changed at {before:?}"
    );
    age(&fixture, &snapshot.agent_id).await?;
    let aged = find(&*storage, "a").await?.changed;
    ensure!(
        aged + HALF_AN_HOUR < before,
        "{aged:?} is not an hour before"
    );
    Ok(())
}

async fn a_page_lists_damaged_agents(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("hurt", 3)?).await?;
    storage.save(&ticked("well", 3)?).await?;
    storage.close().await?;
    if !fixture.0.damage(&id("hurt")?).await {
        return Err(ClauseEnd::NotApplicable);
    }
    let storage = fixture.open().await?;
    find(&*storage, "hurt").await?;
    let well = find(&*storage, "well").await?;
    ensure!(well.messages == 3, "{well:?}");
    Ok(())
}

async fn an_old_agent_expires(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let (old, young) = (ticked("old", 3)?, ticked("young", 3)?);
    storage.save(&old).await?;
    storage.save(&young).await?;
    age(&fixture, &old.agent_id).await?;
    let expired = storage.expire(HALF_AN_HOUR).await?;
    ensure!(expired == [old.agent_id.clone()], "{expired:?} expired");
    ensure!(
        storage.load(&old.agent_id).await?.is_none(),
        "it is still stored"
    );
    let stream = whole_stream(&*storage, &old.agent_id).await?;
    ensure!(stream.is_empty(), "its stream is {stream:?}");
    ensure!(
        storage.list().await? == [young.agent_id.clone()],
        "it is still listed"
    );
    stored(&*storage, &young).await
}

async fn a_young_agent_does_not_expire(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    // The time stamp of the snapshot is the agent's affair.
    let snapshot = ticked("a", 3)?;
    storage.save(&snapshot).await?;
    for age in [HALF_AN_HOUR, Duration::MAX] {
        let expired = storage.expire(age).await?;
        ensure!(expired.is_empty(), "{expired:?} expired");
    }
    stored(&*storage, &snapshot).await
}

async fn a_save_makes_an_agent_young_again(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    storage.save(&snapshot).await?;
    age(&fixture, &snapshot.agent_id).await?;
    tick(&mut snapshot);
    storage.save(&snapshot).await?;
    let expired = storage.expire(HALF_AN_HOUR).await?;
    ensure!(expired.is_empty(), "{expired:?} expired");
    stored(&*storage, &snapshot).await
}

async fn the_epoch_of_an_expired_agent_stays(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    snapshot.epoch = 5;
    storage.save(&snapshot).await?;
    age(&fixture, &snapshot.agent_id).await?;
    storage.expire(HALF_AN_HOUR).await?;
    snapshot.epoch = 4;
    refused(&*fixture.open().await?, &snapshot).await?;
    Ok(())
}

async fn an_expired_agent_can_be_saved_again(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    storage.save(&snapshot).await?;
    age(&fixture, &snapshot.agent_id).await?;
    storage.expire(HALF_AN_HOUR).await?;
    tick(&mut snapshot);
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}

async fn a_damaged_agent_does_not_expire(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let agent = id("hurt")?;
    storage.save(&ticked("hurt", 3)?).await?;
    age(&fixture, &agent).await?;
    storage.close().await?;
    if !fixture.0.damage(&agent).await {
        return Err(ClauseEnd::NotApplicable);
    }
    let storage = fixture.open().await?;
    // A backend need not read the messages, so damage in them may not be seen.
    let expired = storage.expire(HALF_AN_HOUR).await?;
    let kept = storage.load(&agent).await.is_err();
    ensure!(kept || expired == [agent], "it is gone and not reported");
    Ok(())
}

/// An agent with 100 messages, of which 4 are in view.
async fn long(storage: &dyn SnapshotStorage) -> Result<crate::AgentSnapshot, ClauseEnd> {
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..100 {
        tick(&mut snapshot);
        let history = &mut snapshot.memory.short_term_history;
        history.drop_front(history.tail_len().saturating_sub(4));
        storage.save(&snapshot).await?;
        snapshot.memory.short_term_history.release_hidden();
    }
    Ok(snapshot)
}

async fn numbers(storage: &dyn SnapshotStorage) -> Result<Vec<u64>, ClauseEnd> {
    let stream = whole_stream(storage, &id("a")?).await?;
    Ok(stream.into_iter().map(|(seq, _)| seq).collect())
}

async fn a_capped_stream_keeps_its_newest_messages(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = long(&*storage).await?;
    let removed = storage.cap_stream(&snapshot.agent_id, 30).await?;
    ensure!(removed == 70, "{removed} messages were removed");
    for storage in [storage, fixture.open().await?] {
        let left = numbers(&*storage).await?;
        ensure!(left == (70..100).collect::<Vec<_>>(), "left are {left:?}");
    }
    Ok(())
}

async fn a_cap_removes_no_message_in_view(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = long(&*storage).await?;
    let removed = storage.cap_stream(&snapshot.agent_id, 0).await?;
    ensure!(removed == 96, "{removed} messages were removed");
    stored(&*storage, &snapshot).await?;
    let left = numbers(&*fixture.open().await?).await?;
    ensure!(left == (96..100).collect::<Vec<_>>(), "left are {left:?}");
    Ok(())
}

async fn a_cap_changes_nothing_else(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = long(&*storage).await?;
    let other = ticked("other", 9)?;
    storage.save(&other).await?;
    storage.cap_stream(&snapshot.agent_id, 10).await?;
    stored(&*storage, &snapshot).await?;
    stored(&*storage, &other).await?;
    let stream = whole_stream(&*storage, &other.agent_id).await?;
    ensure!(stream.len() == 9, "{} of 9 messages are left", stream.len());
    Ok(())
}

/// A cap to nothing, then messages of two agents: the next cap of one leaves the other as it is.
async fn a_cap_of_an_agent_without_messages_in_view_spares_the_others(
    fixture: ClauseFixture,
) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 10)?;
    storage.save(&snapshot).await?;
    snapshot.revision += 1;
    snapshot.memory.short_term_history.drop_front(10);
    storage.save(&snapshot).await?;
    let removed = storage.cap_stream(&snapshot.agent_id, 0).await?;
    ensure!(removed == 10, "{removed} of 10 messages were removed");
    let left = numbers(&*storage).await?;
    ensure!(left.is_empty(), "left are {left:?}");

    let other = ticked("other", 10)?;
    storage.save(&other).await?;
    for _ in 0..2 {
        tick(&mut snapshot);
        storage.save(&snapshot).await?;
    }
    snapshot.revision += 1;
    snapshot.memory.short_term_history.drop_front(2);
    storage.save(&snapshot).await?;
    let removed = storage.cap_stream(&snapshot.agent_id, 1).await?;
    ensure!(removed == 1, "{removed} messages were removed");
    let left = numbers(&*storage).await?;
    ensure!(left == [11], "left are {left:?}");
    stored(&*storage, &snapshot).await?;
    stored(&*storage, &other).await?;
    let stream = whole_stream(&*storage, &other.agent_id).await?;
    ensure!(
        stream.len() == 10,
        "{} of 10 messages are left",
        stream.len()
    );
    Ok(())
}

async fn a_writer_continues_after_a_cap(fixture: ClauseFixture) -> ClauseResult {
    let (storage, operator) = (fixture.open().await?, fixture.open().await?);
    let mut snapshot = long(&*storage).await?;
    for round in 1..5 {
        operator.cap_stream(&snapshot.agent_id, 10).await?;
        for _ in 0..10 {
            tick(&mut snapshot);
            let history = &mut snapshot.memory.short_term_history;
            history.drop_front(1);
            storage.save(&snapshot).await?;
            snapshot.memory.short_term_history.release_hidden();
        }
        let left = numbers(&*storage).await?;
        let (start, end) = (80 + round * 10, 100 + round * 10);
        ensure!(
            left == (start..end).collect::<Vec<_>>(),
            "left are {left:?}"
        );
    }
    stored(&*operator, &snapshot).await
}

/// A writer that has them in memory can show them again.
async fn capped_messages_may_come_back_into_view(fixture: ClauseFixture) -> ClauseResult {
    let (storage, operator) = (fixture.open().await?, fixture.open().await?);
    let mut whole = ticked("a", 10)?;
    let mut snapshot = whole.clone();
    snapshot.memory.short_term_history.drop_front(8);
    storage.save(&snapshot).await?;
    let removed = operator.cap_stream(&snapshot.agent_id, 5).await?;
    ensure!(removed == 5, "{removed} of 5 messages were removed");
    for hidden in [6, 3] {
        tick(&mut whole);
        let mut snapshot = whole.clone();
        snapshot.memory.short_term_history.drop_front(hidden);
        storage.save(&snapshot).await?;
        stored(&*operator, &snapshot).await?;
    }
    let left = numbers(&*storage).await?;
    ensure!(left == (0..12).collect::<Vec<_>>(), "left are {left:?}");
    Ok(())
}

async fn a_cap_can_be_repeated(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = long(&*storage).await?;
    for (keep, removed) in [
        (200, 0),
        (100, 0),
        (99, 1),
        (50, 49),
        (50, 0),
        (60, 0),
        (10, 40),
    ] {
        let found = storage.cap_stream(&snapshot.agent_id, keep).await?;
        ensure!(found == removed, "to {keep}: {found} were removed");
    }
    Ok(())
}

async fn a_cap_of_an_unknown_agent_removes_nothing(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let removed = storage.cap_stream(&id("unknown")?, 0).await?;
    ensure!(removed == 0, "{removed} messages were removed");
    ensure!(storage.list().await?.is_empty(), "it is listed");
    Ok(())
}
