//! Rules 3, 4, 7, 8, 13 and 14: damage, reopening, closing, cancelled calls.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::clause::{
    ClauseEnd, ClauseFixture, ClauseResult, clauses, ensure, id, refused, stored, tick, ticked,
    whole_stream,
};
use crate::{Error, SnapshotStorage};

clauses! {
    4 a_saved_snapshot_survives_reopening,
    4 many_saves_survive_reopening,
    4 a_dropped_handle_loses_nothing,
    7 the_epoch_of_a_deleted_agent_survives_reopening,
    8 a_delete_survives_reopening,
    13 close_can_be_repeated,
    13 a_closed_storage_reports_it_or_works,
    13 a_closed_storage_can_be_opened_again,
    14 a_cancelled_save_is_complete_or_absent,
    14 a_cancelled_save_can_be_repeated,
    14 a_cancelled_delete_can_be_repeated,
    3 loading_damaged_data_is_an_error_that_names_the_agent,
    3 damage_is_not_overwritten_by_save,
    3 damage_of_one_agent_does_not_affect_others,
    3 reading_a_damaged_stream_is_an_error,
    3 delete_clears_damage,
}

async fn a_saved_snapshot_survives_reopening(fixture: ClauseFixture) -> ClauseResult {
    let snapshot = ticked("a", 3)?;
    let storage = fixture.open().await?;
    storage.save(&snapshot).await?;
    storage.close().await?;
    drop(storage);
    stored(&*fixture.open().await?, &snapshot).await
}

async fn many_saves_survive_reopening(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..4 {
        let storage = fixture.open().await?;
        for _ in 0..33 {
            tick(&mut snapshot);
            storage.save(&snapshot).await?;
        }
        storage.close().await?;
    }
    let storage = fixture.open().await?;
    stored(&*storage, &snapshot).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(
        stream.len() == 132,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_dropped_handle_loses_nothing(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..10 {
        tick(&mut snapshot);
        fixture.open().await?.save(&snapshot).await?;
    }
    stored(&*fixture.open().await?, &snapshot).await
}

async fn the_epoch_of_a_deleted_agent_survives_reopening(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 3)?;
    snapshot.epoch = 5;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    storage.close().await?;
    drop(storage);
    snapshot.epoch = 4;
    refused(&*fixture.open().await?, &snapshot).await?;
    Ok(())
}

async fn a_delete_survives_reopening(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 3)?;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    storage.close().await?;
    drop(storage);
    let storage = fixture.open().await?;
    ensure!(
        storage.load(&snapshot.agent_id).await?.is_none(),
        "it is stored again"
    );
    ensure!(storage.list().await?.is_empty(), "it is listed again");
    Ok(())
}

async fn close_can_be_repeated(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 1)?).await?;
    storage.close().await?;
    storage.close().await?;
    Ok(())
}

async fn a_closed_storage_reports_it_or_works(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 1)?;
    storage.save(&snapshot).await?;
    storage.close().await?;
    tick(&mut snapshot);
    match storage.save(&snapshot).await {
        Ok(()) => stored(&*fixture.open().await?, &snapshot).await,
        Err(Error::Closed { .. }) => stored(&*fixture.open().await?, &ticked("a", 1)?).await,
        Err(error) => Err(error.into()),
    }
}

async fn a_closed_storage_can_be_opened_again(fixture: ClauseFixture) -> ClauseResult {
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..5 {
        let storage = fixture.open().await?;
        tick(&mut snapshot);
        storage.save(&snapshot).await?;
        storage.close().await?;
    }
    stored(&*fixture.open().await?, &snapshot).await
}

/// Polls a future `polls` times and then drops it.
async fn cancelled<T>(future: impl Future<Output = T>, polls: usize) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let done = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if done {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn a_cancelled_save_is_complete_or_absent(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 1)?;
    storage.save(&snapshot).await?;
    for polls in 0..6 {
        let before = snapshot.clone();
        tick(&mut snapshot);
        cancelled(storage.save(&snapshot), polls).await;
        // Work in the background may end at any moment, so both states are allowed.
        let seen = storage.load(&snapshot.agent_id).await?;
        let whole = seen.as_ref() == Some(&before) || seen.as_ref() == Some(&snapshot);
        ensure!(whole, "after {polls} polls {seen:?} is stored");
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
    }
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(
        stream.len() == 7,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_cancelled_save_can_be_repeated(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 1)?;
    storage.save(&snapshot).await?;
    for polls in 0..20 {
        tick(&mut snapshot);
        cancelled(storage.save(&snapshot), polls % 5).await;
        storage.save(&snapshot).await?;
    }
    stored(&*storage, &snapshot).await?;
    stored(&*fixture.open().await?, &snapshot).await
}

async fn a_cancelled_delete_can_be_repeated(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    for polls in 0..5 {
        let snapshot = ticked("a", 3)?;
        storage.save(&snapshot).await?;
        cancelled(storage.delete(&snapshot.agent_id), polls).await;
        storage.delete(&snapshot.agent_id).await?;
        ensure!(
            storage.load(&snapshot.agent_id).await?.is_none(),
            "it is still stored"
        );
    }
    Ok(())
}

/// Stores an agent, damages its data, and opens the storage again.
async fn damaged(fixture: &ClauseFixture) -> Result<Arc<dyn SnapshotStorage>, ClauseEnd> {
    let storage = fixture.open().await?;
    let snapshot = ticked("hurt", 3)?;
    storage.save(&snapshot).await?;
    storage.close().await?;
    drop(storage);
    if !fixture.0.damage(&snapshot.agent_id).await {
        return Err(ClauseEnd::NotApplicable);
    }
    fixture.open().await
}

async fn loading_damaged_data_is_an_error_that_names_the_agent(
    fixture: ClauseFixture,
) -> ClauseResult {
    let storage = damaged(&fixture).await?;
    match storage.load(&id("hurt")?).await {
        Err(error) if error.is_damaged() => {
            ensure!(
                error.to_string().contains("hurt"),
                "the error says: {error}"
            );
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(None) => Err(ClauseEnd::Failed("it is reported as not stored".to_owned())),
        Ok(Some(_)) => Err(ClauseEnd::Failed(
            "it was loaded without an error".to_owned(),
        )),
    }
}

async fn damage_is_not_overwritten_by_save(fixture: ClauseFixture) -> ClauseResult {
    let storage = damaged(&fixture).await?;
    let saved = storage.save(&ticked("hurt", 9)?).await;
    ensure!(saved.is_err(), "a save over damaged data succeeded");
    let loaded = storage.load(&id("hurt")?).await;
    ensure!(loaded.is_err(), "the damaged data was overwritten");
    Ok(())
}

async fn damage_of_one_agent_does_not_affect_others(fixture: ClauseFixture) -> ClauseResult {
    let well = ticked("well", 3)?;
    fixture.open().await?.save(&well).await?;
    let storage = damaged(&fixture).await?;
    stored(&*storage, &well).await?;
    let listed = storage.list().await?;
    ensure!(listed.contains(&well.agent_id), "listed {listed:?}");
    Ok(())
}

async fn reading_a_damaged_stream_is_an_error(fixture: ClauseFixture) -> ClauseResult {
    let storage = damaged(&fixture).await?;
    let read = storage.stream(&id("hurt")?, 0..u64::MAX).await;
    // If only the state is damaged, the stream may be complete.
    let fine = read.is_err() || read.is_ok_and(|stream| stream.len() == 3);
    ensure!(fine, "a part of the stream was returned without an error");
    Ok(())
}

async fn delete_clears_damage(fixture: ClauseFixture) -> ClauseResult {
    let storage = damaged(&fixture).await?;
    storage.delete(&id("hurt")?).await?;
    ensure!(
        storage.load(&id("hurt")?).await?.is_none(),
        "it is still stored"
    );
    let snapshot = ticked("hurt", 1)?;
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}
