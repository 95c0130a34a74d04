//! Rules 3, 4, 13 and 14: damage, reopening, closing, cancelled calls.

use std::{future::poll_fn, pin::pin, task::Poll};

use super::{Check, Place, Stop, clauses, ensure, id, refused, stored, tick, ticked, whole_stream};
use crate::Error;

clauses! {
    4 a_saved_snapshot_survives_reopening,
    4 many_saves_survive_reopening,
    4 a_dropped_handle_loses_nothing,
    7 the_epoch_of_a_deleted_agent_survives_reopening,
    8 a_delete_survives_reopening,
    13 close_can_be_repeated,
    13 a_closed_storage_says_so_or_works,
    13 what_was_closed_can_be_opened,
    14 a_cancelled_save_is_whole_or_absent,
    14 a_cancelled_save_can_be_repeated,
    14 a_cancelled_delete_can_be_repeated,
    3 loading_damaged_data_is_an_error_that_names_the_agent,
    3 damage_is_not_overwritten_by_save,
    3 damage_of_one_agent_leaves_others_alone,
    3 reading_a_damaged_stream_is_an_error,
    3 delete_clears_damage,
}

async fn a_saved_snapshot_survives_reopening(place: Place) -> Check {
    let snapshot = ticked("a", 3)?;
    let storage = place.open().await?;
    storage.save(&snapshot).await?;
    storage.close().await?;
    drop(storage);
    stored(&*place.open().await?, &snapshot).await
}

async fn many_saves_survive_reopening(place: Place) -> Check {
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..4 {
        let storage = place.open().await?;
        for _ in 0..33 {
            tick(&mut snapshot);
            storage.save(&snapshot).await?;
        }
        storage.close().await?;
    }
    let storage = place.open().await?;
    stored(&*storage, &snapshot).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(
        stream.len() == 132,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn a_dropped_handle_loses_nothing(place: Place) -> Check {
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..10 {
        tick(&mut snapshot);
        place.open().await?.save(&snapshot).await?;
    }
    stored(&*place.open().await?, &snapshot).await
}

async fn the_epoch_of_a_deleted_agent_survives_reopening(place: Place) -> Check {
    let storage = place.open().await?;
    let mut snapshot = ticked("a", 3)?;
    snapshot.epoch = 5;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    storage.close().await?;
    drop(storage);
    snapshot.epoch = 4;
    refused(&*place.open().await?, &snapshot).await?;
    Ok(())
}

async fn a_delete_survives_reopening(place: Place) -> Check {
    let storage = place.open().await?;
    let snapshot = ticked("a", 3)?;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    storage.close().await?;
    drop(storage);
    let storage = place.open().await?;
    ensure!(
        storage.load(&snapshot.agent_id).await?.is_none(),
        "it is there again"
    );
    ensure!(storage.list().await?.is_empty(), "it is listed again");
    Ok(())
}

async fn close_can_be_repeated(place: Place) -> Check {
    let storage = place.open().await?;
    storage.save(&ticked("a", 1)?).await?;
    storage.close().await?;
    storage.close().await?;
    Ok(())
}

async fn a_closed_storage_says_so_or_works(place: Place) -> Check {
    let storage = place.open().await?;
    let mut snapshot = ticked("a", 1)?;
    storage.save(&snapshot).await?;
    storage.close().await?;
    tick(&mut snapshot);
    match storage.save(&snapshot).await {
        Ok(()) => stored(&*place.open().await?, &snapshot).await,
        Err(Error::Closed { .. }) => stored(&*place.open().await?, &ticked("a", 1)?).await,
        Err(error) => Err(error.into()),
    }
}

async fn what_was_closed_can_be_opened(place: Place) -> Check {
    let mut snapshot = ticked("a", 0)?;
    for _ in 0..5 {
        let storage = place.open().await?;
        tick(&mut snapshot);
        storage.save(&snapshot).await?;
        storage.close().await?;
    }
    stored(&*place.open().await?, &snapshot).await
}

/// Polls a future some times and then drops it.
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

async fn a_cancelled_save_is_whole_or_absent(place: Place) -> Check {
    let storage = place.open().await?;
    let mut snapshot = ticked("a", 1)?;
    storage.save(&snapshot).await?;
    for polls in 0..6 {
        let before = snapshot.clone();
        tick(&mut snapshot);
        cancelled(storage.save(&snapshot), polls).await;
        // Work that goes on in the background may end between the two looks.
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

async fn a_cancelled_save_can_be_repeated(place: Place) -> Check {
    let storage = place.open().await?;
    let mut snapshot = ticked("a", 1)?;
    storage.save(&snapshot).await?;
    for polls in 0..20 {
        tick(&mut snapshot);
        cancelled(storage.save(&snapshot), polls % 5).await;
        storage.save(&snapshot).await?;
    }
    stored(&*storage, &snapshot).await?;
    stored(&*place.open().await?, &snapshot).await
}

async fn a_cancelled_delete_can_be_repeated(place: Place) -> Check {
    let storage = place.open().await?;
    for polls in 0..5 {
        let snapshot = ticked("a", 3)?;
        storage.save(&snapshot).await?;
        cancelled(storage.delete(&snapshot.agent_id), polls).await;
        storage.delete(&snapshot.agent_id).await?;
        ensure!(
            storage.load(&snapshot.agent_id).await?.is_none(),
            "it is still there"
        );
    }
    Ok(())
}

/// Stores an agent, damages it and opens the place anew.
async fn damaged(place: &Place) -> Result<std::sync::Arc<dyn crate::SnapshotStorage>, Stop> {
    let storage = place.open().await?;
    let snapshot = ticked("hurt", 3)?;
    storage.save(&snapshot).await?;
    storage.close().await?;
    drop(storage);
    if !place.0.damage(&snapshot.agent_id).await {
        return Err(Stop::NotApplicable);
    }
    place.open().await
}

async fn loading_damaged_data_is_an_error_that_names_the_agent(place: Place) -> Check {
    let storage = damaged(&place).await?;
    match storage.load(&id("hurt")?).await {
        Err(error) if error.is_damaged() => {
            ensure!(
                error.to_string().contains("hurt"),
                "the error says: {error}"
            );
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(None) => Err(Stop::Failed("it is reported as nothing".to_owned())),
        Ok(Some(_)) => Err(Stop::Failed(
            "it is read as if nothing were wrong".to_owned(),
        )),
    }
}

async fn damage_is_not_overwritten_by_save(place: Place) -> Check {
    let storage = damaged(&place).await?;
    let saved = storage.save(&ticked("hurt", 9)?).await;
    ensure!(saved.is_err(), "a save over damaged data succeeded");
    let loaded = storage.load(&id("hurt")?).await;
    ensure!(loaded.is_err(), "the damaged data was overwritten");
    Ok(())
}

async fn damage_of_one_agent_leaves_others_alone(place: Place) -> Check {
    let well = ticked("well", 3)?;
    place.open().await?.save(&well).await?;
    let storage = damaged(&place).await?;
    stored(&*storage, &well).await?;
    let listed = storage.list().await?;
    ensure!(listed.contains(&well.agent_id), "listed {listed:?}");
    Ok(())
}

async fn reading_a_damaged_stream_is_an_error(place: Place) -> Check {
    let storage = damaged(&place).await?;
    let read = storage.history(&id("hurt")?, 0..u64::MAX).await;
    // Where only the state is damaged, the stream may still be whole.
    let fine = read.is_err() || read.is_ok_and(|stream| stream.len() == 3);
    ensure!(fine, "a part of the stream is read as if it were all");
    Ok(())
}

async fn delete_clears_damage(place: Place) -> Check {
    let storage = damaged(&place).await?;
    storage.delete(&id("hurt")?).await?;
    ensure!(
        storage.load(&id("hurt")?).await?.is_none(),
        "it is still there"
    );
    let snapshot = ticked("hurt", 1)?;
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}
