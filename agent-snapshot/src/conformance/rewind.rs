//! Rule 15: a storage that went back in time, and histories that the writer does not know.

use std::sync::Arc;

use super::clause::{
    ClauseEnd, ClauseFixture, ClauseResult, clauses, ensure, id, refused, same, stored, tick,
    ticked, whole_stream,
};
use crate::conversation::Message;
use crate::{AgentSnapshot, Error, History, Position, SnapshotStorage};

clauses! {
    15 a_save_after_a_rewind_deletes_nothing,
    15 a_rewind_is_reported_with_both_positions,
    15 a_rewind_is_reported_again_and_again,
    15 a_rewind_to_nothing_is_reported,
    15 a_rewound_state_can_be_adopted,
    15 a_rewound_state_can_be_overwritten,
    15 an_overwrite_keeps_the_stream_that_it_continues,
    15 a_writer_that_continued_after_a_rewind_is_not_overwritten,
    15 a_rewind_of_one_agent_does_not_affect_others,
    15 an_unknown_history_is_not_replaced,
    15 a_blank_agent_does_not_replace_a_history,
    15 a_history_of_another_writer_is_not_replaced,
    15 an_unknown_history_can_be_overwritten,
    15 an_overwrite_does_not_break_the_fence,
    15 an_overwrite_can_be_repeated,
    15 a_snapshot_can_be_saved_to_another_storage,
}

/// The view has this many messages; the others are only in the storage.
const WINDOW: usize = 4;

/// Saves ticks with a small view, as a long-lived agent does.
async fn work(
    storage: &dyn SnapshotStorage,
    snapshot: &mut AgentSnapshot,
    ticks: u64,
) -> ClauseResult {
    for _ in 0..ticks {
        tick(snapshot);
        let history = &mut snapshot.memory.short_term_history;
        history.drop_front(history.tail_len().saturating_sub(WINDOW));
        storage.save(snapshot).await?;
        snapshot.memory.short_term_history.release_hidden();
    }
    Ok(())
}

/// A storage at tick 100 whose writer has committed tick 300, and the position at tick 100.
async fn rewound(
    fixture: &ClauseFixture,
) -> Result<(Arc<dyn SnapshotStorage>, AgentSnapshot, Position), ClauseEnd> {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 0)?;
    work(&*storage, &mut snapshot, 100).await?;
    let position = Position::of(&snapshot);
    back_up(fixture).await?;
    work(&*storage, &mut snapshot, 200).await?;
    fixture.0.rewind().await;
    Ok((storage, snapshot, position))
}

async fn back_up(fixture: &ClauseFixture) -> ClauseResult {
    match fixture.0.back_up().await {
        true => Ok(()),
        false => Err(ClauseEnd::NotApplicable),
    }
}

/// Checks that the save is refused because the storage went back in time.
async fn save_is_rewound(
    storage: &dyn SnapshotStorage,
    snapshot: &AgentSnapshot,
) -> Result<(Position, Option<Position>), ClauseEnd> {
    match storage.save(snapshot).await {
        Err(Error::Rewound {
            agent,
            committed,
            stored,
        }) if agent == snapshot.agent_id => Ok((committed, stored)),
        Err(error) => Err(error.into()),
        Ok(()) => Err(ClauseEnd::Failed(format!("{snapshot:?} was accepted"))),
    }
}

async fn numbers(
    storage: &dyn SnapshotStorage,
    snapshot: &AgentSnapshot,
) -> Result<Vec<u64>, ClauseEnd> {
    let stream = whole_stream(storage, &snapshot.agent_id).await?;
    Ok(stream.into_iter().map(|(seq, _)| seq).collect())
}

async fn a_save_after_a_rewind_deletes_nothing(fixture: ClauseFixture) -> ClauseResult {
    let (storage, mut snapshot, _) = rewound(&fixture).await?;
    tick(&mut snapshot);
    save_is_rewound(&*storage, &snapshot).await?;
    for storage in [storage, fixture.open().await?] {
        let stream = numbers(&*storage, &snapshot).await?;
        ensure!(
            stream == (0..100).collect::<Vec<_>>(),
            "{} of 100 messages are left",
            stream.len()
        );
        let loaded = storage.load(&snapshot.agent_id).await?;
        let loaded = loaded.map(|loaded| loaded.tick_index);
        ensure!(loaded == Some(100), "tick {loaded:?} is stored");
    }
    Ok(())
}

async fn a_rewind_is_reported_with_both_positions(fixture: ClauseFixture) -> ClauseResult {
    let (storage, mut snapshot, position) = rewound(&fixture).await?;
    let committed = Position::of(&snapshot);
    tick(&mut snapshot);
    let reported = save_is_rewound(&*storage, &snapshot).await?;
    ensure!(
        reported == (committed, Some(position)),
        "it is {reported:?}"
    );
    Ok(())
}

async fn a_rewind_is_reported_again_and_again(fixture: ClauseFixture) -> ClauseResult {
    let (storage, mut snapshot, _) = rewound(&fixture).await?;
    for _ in 0..5 {
        tick(&mut snapshot);
        save_is_rewound(&*storage, &snapshot).await?;
    }
    Ok(())
}

async fn a_rewind_to_nothing_is_reported(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    back_up(&fixture).await?;
    let mut snapshot = ticked("a", 0)?;
    work(&*storage, &mut snapshot, 200).await?;
    fixture.0.rewind().await;
    tick(&mut snapshot);
    let (_, stored) = save_is_rewound(&*storage, &snapshot).await?;
    ensure!(stored.is_none(), "{stored:?} is reported as stored");
    ensure!(storage.list().await?.is_empty(), "the save was stored");
    Ok(())
}

async fn a_rewound_state_can_be_adopted(fixture: ClauseFixture) -> ClauseResult {
    let (storage, mut snapshot, _) = rewound(&fixture).await?;
    tick(&mut snapshot);
    save_is_rewound(&*storage, &snapshot).await?;
    let Some(mut adopted) = storage.load(&snapshot.agent_id).await? else {
        return Err(ClauseEnd::Failed("nothing is stored".to_owned()));
    };
    work(&*storage, &mut adopted, 10).await?;
    stored(&*storage, &adopted).await?;
    let stream = numbers(&*storage, &adopted).await?;
    ensure!(
        stream == (0..110).collect::<Vec<_>>(),
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_rewound_state_can_be_overwritten(fixture: ClauseFixture) -> ClauseResult {
    let (storage, mut snapshot, _) = rewound(&fixture).await?;
    tick(&mut snapshot);
    save_is_rewound(&*storage, &snapshot).await?;
    storage.overwrite(&snapshot).await?;
    stored(&*storage, &snapshot).await?;
    work(&*storage, &mut snapshot, 10).await?;
    stored(&*fixture.open().await?, &snapshot).await
}

/// The writer has every message in memory that the storage lost.
async fn an_overwrite_keeps_the_stream_that_it_continues(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 0)?;
    work(&*storage, &mut snapshot, 100).await?;
    back_up(&fixture).await?;
    for _ in 0..3 {
        tick(&mut snapshot);
        storage.save(&snapshot).await?;
    }
    fixture.0.rewind().await;
    tick(&mut snapshot);
    save_is_rewound(&*storage, &snapshot).await?;
    storage.overwrite(&snapshot).await?;
    stored(&*storage, &snapshot).await?;
    let stream = numbers(&*storage, &snapshot).await?;
    ensure!(
        stream == (0..104).collect::<Vec<_>>(),
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

/// The other writer has the tick that the first one committed, with other contents.
async fn a_writer_that_continued_after_a_rewind_is_not_overwritten(
    fixture: ClauseFixture,
) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let mut first = ticked("a", 5)?;
    one.save(&first).await?;
    back_up(&fixture).await?;
    tick(&mut first);
    one.save(&first).await?;
    fixture.0.rewind().await;

    let Some(mut second) = two.load(&first.agent_id).await? else {
        return Err(ClauseEnd::Failed("nothing is stored".to_owned()));
    };
    second.tick_index += 1;
    let history = &mut second.memory.short_term_history;
    history.push(Message::user("of the other writer"));
    two.save(&second).await?;
    tick(&mut first);
    save_is_rewound(&*one, &first).await?;
    stored(&*one, &second).await
}

async fn a_rewind_of_one_agent_does_not_affect_others(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut steady = ticked("steady", 5)?;
    storage.save(&steady).await?;
    let (_, mut snapshot, _) = rewound(&fixture).await?;
    tick(&mut snapshot);
    let refused = storage.save(&snapshot).await.is_err();
    ensure!(refused, "a save of the rewound agent was accepted");
    tick(&mut steady);
    storage.save(&steady).await?;
    stored(&*storage, &steady).await
}

/// A snapshot object that was neither loaded nor saved here.
fn unknown(name: &str, messages: u64) -> Result<AgentSnapshot, ClauseEnd> {
    let mut snapshot = AgentSnapshot::new(id(name)?);
    snapshot.tick_index = 50;
    let history: History = (0..messages)
        .map(|n| Message::user(format!("other {n}")))
        .collect();
    snapshot.memory.short_term_history = history;
    Ok(snapshot)
}

async fn an_unknown_history_is_not_replaced(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 5)?;
    storage.save(&snapshot).await?;
    for storage in [storage, fixture.open().await?] {
        for messages in [1, 5, 9] {
            let (_, found) = save_is_rewound(&*storage, &unknown("a", messages)?).await?;
            let position = Position::of(&snapshot);
            ensure!(found == Some(position), "{found:?} is reported as stored");
        }
        stored(&*storage, &snapshot).await?;
    }
    Ok(())
}

async fn a_blank_agent_does_not_replace_a_history(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 5)?;
    storage.save(&snapshot).await?;
    let mut blank = unknown("a", 0)?;
    save_is_rewound(&*fixture.open().await?, &blank).await?;
    blank.epoch = 9;
    save_is_rewound(&*fixture.open().await?, &blank).await?;
    stored(&*storage, &snapshot).await?;
    let stream = numbers(&*storage, &snapshot).await?;
    ensure!(stream.len() == 5, "{} of 5 messages are left", stream.len());
    Ok(())
}

/// One handle replaces its history after another one has appended to it.
async fn a_history_of_another_writer_is_not_replaced(fixture: ClauseFixture) -> ClauseResult {
    let (one, two) = (fixture.open().await?, fixture.open().await?);
    let mut first = ticked("a", 5)?;
    one.save(&first).await?;
    let Some(mut second) = two.load(&first.agent_id).await? else {
        return Err(ClauseEnd::Failed("nothing is stored".to_owned()));
    };
    tick(&mut second);
    two.save(&second).await?;
    first.tick_index = 20;
    first.memory.short_term_history = History::new();
    save_is_rewound(&*one, &first).await?;
    stored(&*one, &second).await
}

async fn an_unknown_history_can_be_overwritten(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 5)?).await?;
    let mut other = unknown("a", 3)?;
    storage.overwrite(&other).await?;
    stored(&*storage, &other).await?;
    let stream = whole_stream(&*storage, &other.agent_id).await?;
    let replaced = stream.len() == 3 && stream.iter().all(|(_, text)| text.starts_with("other"));
    ensure!(replaced, "the stream is {stream:?}");
    tick(&mut other);
    storage.save(&other).await?;
    stored(&*fixture.open().await?, &other).await
}

async fn an_overwrite_does_not_break_the_fence(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut holder = ticked("a", 5)?;
    holder.epoch = 3;
    storage.save(&holder).await?;
    let mut fenced = unknown("a", 3)?;
    fenced.epoch = 2;
    let stale = ticked("a", 4)?;
    for snapshot in [fenced, stale] {
        match storage.overwrite(&snapshot).await {
            Err(error) if error.is_conflict() => {}
            result => {
                result?;
                ensure!(false, "{snapshot:?} was accepted");
            }
        }
        refused(&*storage, &snapshot).await?;
    }
    stored(&*storage, &holder).await
}

async fn an_overwrite_can_be_repeated(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 5)?).await?;
    let other = unknown("a", 3)?;
    for _ in 0..3 {
        storage.overwrite(&other).await?;
    }
    fixture.open().await?.overwrite(&other).await?;
    let stream = numbers(&*storage, &other).await?;
    ensure!(
        stream.len() == 3,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

/// A snapshot knows the storage that it comes from. It is no rewind if another one is empty.
async fn a_snapshot_can_be_saved_to_another_storage(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let elsewhere = crate::MemoryStorage::new();
    let mut snapshot = ticked("a", 5)?;
    elsewhere.save(&snapshot).await?;
    let Some(loaded) = elsewhere.load(&snapshot.agent_id).await? else {
        return Err(ClauseEnd::Failed("nothing is stored".to_owned()));
    };
    storage.save(&loaded).await?;
    stored(&*storage, &snapshot).await?;
    tick(&mut snapshot);
    elsewhere.save(&snapshot).await?;
    storage.save(&snapshot).await?;
    let Some(there) = storage.load(&snapshot.agent_id).await? else {
        return Err(ClauseEnd::Failed("nothing is stored".to_owned()));
    };
    same(&there, &snapshot)
}
