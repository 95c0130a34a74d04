//! Rules 7 to 9 and 12: delete, list, and the independence of agents.

use super::clause::{
    ClauseFixture, ClauseResult, clauses, ensure, id, refused, stored, tick, ticked, whole_stream,
};
use crate::AgentId;

clauses! {
    8 after_delete_load_is_none,
    8 deleting_nothing_is_a_success,
    8 deleting_twice_is_a_success,
    8 after_delete_any_tick_may_be_saved,
    8 after_delete_the_stream_is_gone,
    8 a_stream_after_delete_holds_only_what_is_new,
    7 after_delete_an_older_epoch_is_still_refused,
    7 after_delete_the_same_epoch_is_accepted,
    7 a_second_delete_does_not_forget_the_epoch,
    9 nothing_stored_is_an_empty_list,
    9 each_agent_is_listed_once_in_order,
    9 a_deleted_agent_is_not_listed,
    9 an_agent_saved_again_is_listed_again,
    9 loading_does_not_add_to_the_list,
    12 ids_that_differ_in_case_are_different_agents,
    12 ids_that_look_similar_are_different_agents,
    12 every_valid_id_works,
    12 ids_of_255_bytes_work,
    12 long_ids_that_differ_at_the_end_are_different_agents,
    12 agents_can_be_saved_in_turn,
    12 delete_does_not_affect_other_agents,
}

async fn after_delete_load_is_none(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 2)?;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    ensure!(
        storage.load(&snapshot.agent_id).await?.is_none(),
        "it is still stored"
    );
    let other = fixture.open().await?;
    ensure!(
        other.load(&snapshot.agent_id).await?.is_none(),
        "another handle still sees it"
    );
    Ok(())
}

async fn deleting_nothing_is_a_success(fixture: ClauseFixture) -> ClauseResult {
    fixture.open().await?.delete(&id("unknown")?).await?;
    Ok(())
}

async fn deleting_twice_is_a_success(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 2)?;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    storage.delete(&snapshot.agent_id).await?;
    Ok(())
}

async fn after_delete_any_tick_may_be_saved(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(&ticked("a", 9)?).await?;
    for ticks in [9, 3, 0] {
        storage.delete(&id("a")?).await?;
        let snapshot = ticked("a", ticks)?;
        storage.save(&snapshot).await?;
        stored(&*storage, &snapshot).await?;
    }
    Ok(())
}

async fn after_delete_the_stream_is_gone(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 9)?;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(stream.is_empty(), "{} messages are left", stream.len());
    Ok(())
}

async fn a_stream_after_delete_holds_only_what_is_new(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 9)?;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    snapshot = ticked("a", 2)?;
    storage.save(&snapshot).await?;
    tick(&mut snapshot);
    storage.save(&snapshot).await?;
    let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
    ensure!(
        stream.len() == 3,
        "the stream has {} messages",
        stream.len()
    );
    Ok(())
}

async fn after_delete_an_older_epoch_is_still_refused(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 2)?;
    snapshot.epoch = 10;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    let mut old = ticked("a", 50)?;
    for epoch in [0, 2, 9] {
        old.epoch = epoch;
        let error = refused(&*storage, &old).await?;
        ensure!(error.is_fenced(), "not reported as fenced: {error}");
        refused(&*fixture.open().await?, &old).await?;
    }
    ensure!(
        storage.load(&snapshot.agent_id).await?.is_none(),
        "a refused save is stored"
    );
    Ok(())
}

async fn after_delete_the_same_epoch_is_accepted(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 2)?;
    snapshot.epoch = 3;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    storage.save(&snapshot).await?;
    stored(&*storage, &snapshot).await
}

async fn a_second_delete_does_not_forget_the_epoch(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 2)?;
    snapshot.epoch = 3;
    storage.save(&snapshot).await?;
    for _ in 0..3 {
        storage.delete(&snapshot.agent_id).await?;
    }
    refused(&*storage, &ticked("a", 5)?).await?;
    Ok(())
}

async fn nothing_stored_is_an_empty_list(fixture: ClauseFixture) -> ClauseResult {
    let agents = fixture.open().await?.list().await?;
    ensure!(agents.is_empty(), "{agents:?} are listed");
    Ok(())
}

async fn each_agent_is_listed_once_in_order(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut expected = Vec::new();
    for name in [
        "b",
        "a",
        "worker_10",
        "worker_9",
        "Z",
        "あ",
        "a b",
        "a-b",
        "a.b",
        "{x}",
    ] {
        let mut snapshot = ticked(name, 1)?;
        storage.save(&snapshot).await?;
        tick(&mut snapshot);
        storage.save(&snapshot).await?;
        expected.push(snapshot.agent_id);
    }
    expected.sort();
    let listed = fixture.open().await?.list().await?;
    ensure!(listed == expected, "listed {listed:?}");
    Ok(())
}

async fn a_deleted_agent_is_not_listed(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut snapshot = ticked("a", 2)?;
    snapshot.epoch = 1;
    storage.save(&snapshot).await?;
    storage.save(&ticked("b", 2)?).await?;
    storage.delete(&snapshot.agent_id).await?;
    let listed = storage.list().await?;
    ensure!(listed == [id("b")?], "listed {listed:?}");
    Ok(())
}

async fn an_agent_saved_again_is_listed_again(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let snapshot = ticked("a", 2)?;
    storage.save(&snapshot).await?;
    storage.delete(&snapshot.agent_id).await?;
    storage.save(&snapshot).await?;
    let listed = storage.list().await?;
    ensure!(listed == [id("a")?], "listed {listed:?}");
    Ok(())
}

async fn loading_does_not_add_to_the_list(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.load(&id("a")?).await?;
    storage.stream(&id("a")?, 0..9).await?;
    storage.delete(&id("a")?).await?;
    let listed = storage.list().await?;
    ensure!(listed.is_empty(), "listed {listed:?}");
    Ok(())
}

/// Saves one snapshot for each name, and checks that all are stored.
async fn all_differ<'a>(
    fixture: &ClauseFixture,
    names: impl IntoIterator<Item = &'a str>,
) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut saved = Vec::new();
    for (n, name) in (1..).zip(names) {
        let snapshot = ticked(name, n)?;
        storage.save(&snapshot).await?;
        saved.push(snapshot);
    }
    for snapshot in &saved {
        stored(&*storage, snapshot).await?;
    }
    let mut expected: Vec<AgentId> = saved.into_iter().map(|saved| saved.agent_id).collect();
    expected.sort();
    let listed = storage.list().await?;
    ensure!(listed == expected, "listed {listed:?}");
    Ok(())
}

async fn ids_that_differ_in_case_are_different_agents(fixture: ClauseFixture) -> ClauseResult {
    all_differ(&fixture, ["agent", "Agent", "AGENT", "ａgent"]).await
}

async fn ids_that_look_similar_are_different_agents(fixture: ClauseFixture) -> ClauseResult {
    let names = [
        "a", "aa", "a.b", "a%2eb", "a_b", "a b", "a:b", "a*", "a?", "e\u{301}", "\u{e9}",
    ];
    all_differ(&fixture, names).await
}

async fn every_valid_id_works(fixture: ClauseFixture) -> ClauseResult {
    let longest = "Ａ".repeat(21) + "z";
    let names = [
        "con",
        "nul",
        "..",
        ".",
        ".json",
        "x.json",
        "x.log",
        "{x}",
        "{}",
        "x}y{z",
        "%",
        "'",
        "\"",
        "-rf",
        "~",
        "$HOME",
        "🤖",
        longest.as_str(),
    ];
    all_differ(&fixture, names).await
}

/// For example two uuids with a colon between them, or a path.
async fn ids_of_255_bytes_work(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut names = vec![
        "x".repeat(255),
        "日".repeat(85),
        "A".repeat(65),
        format!("{0}:{0}", uuid::Uuid::nil()),
    ];
    names.sort();
    for name in &names {
        storage.save(&ticked(name, 2)?).await?;
    }
    let again = fixture.open().await?;
    for name in &names {
        stored(&*again, &ticked(name, 2)?).await?;
    }
    let listed = again.list().await?;
    ensure!(
        listed.iter().map(AgentId::as_str).eq(&names),
        "listed {listed:?}"
    );
    for name in &names {
        again.delete(&id(name)?).await?;
    }
    ensure!(storage.list().await?.is_empty(), "they are still listed");
    Ok(())
}

async fn long_ids_that_differ_at_the_end_are_different_agents(
    fixture: ClauseFixture,
) -> ClauseResult {
    let storage = fixture.open().await?;
    let start = "long_".repeat(50);
    let (one, two) = (
        ticked(&format!("{start}1"), 1)?,
        ticked(&format!("{start}2"), 2)?,
    );
    storage.save(&one).await?;
    storage.save(&two).await?;
    stored(&*storage, &one).await?;
    storage.delete(&one.agent_id).await?;
    stored(&*storage, &two).await
}

async fn agents_can_be_saved_in_turn(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let mut agents = [ticked("a", 0)?, ticked("ab", 3)?, ticked("b", 7)?];
    for _ in 0..5 {
        for snapshot in &mut agents {
            tick(snapshot);
            storage.save(snapshot).await?;
        }
    }
    for snapshot in &agents {
        stored(&*storage, snapshot).await?;
        let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
        ensure!(
            stream.len() as u64 == snapshot.tick_index,
            "the stream of {} has {} messages",
            snapshot.agent_id,
            stream.len()
        );
    }
    Ok(())
}

async fn delete_does_not_affect_other_agents(fixture: ClauseFixture) -> ClauseResult {
    let storage = fixture.open().await?;
    let names = ["a", "aa", "a.b", "A", "a*"];
    for name in names {
        storage.save(&ticked(name, 3)?).await?;
    }
    storage.delete(&id("a")?).await?;
    storage.delete(&id("a*")?).await?;
    for name in &names[1..4] {
        let snapshot = ticked(name, 3)?;
        stored(&*storage, &snapshot).await?;
        let stream = whole_stream(&*storage, &snapshot.agent_id).await?;
        ensure!(
            stream.len() == 3,
            "the stream of {name} has {} messages",
            stream.len()
        );
    }
    Ok(())
}
