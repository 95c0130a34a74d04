//! Hydration, ticks and replies.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent_snapshot::conversation::Message;
use agent_snapshot::{
    AgentId, AgentSnapshot, AgentState, Error, Event, History, MemoryStorage, Recovery,
    SnapshotStorage, Status,
};
use async_trait::async_trait;
use serde_json::json;

fn id() -> AgentId {
    AgentId::new("worker_007").unwrap()
}

async fn hydrate(storage: &MemoryStorage) -> (AgentState, Recovery) {
    AgentState::hydrate(Arc::new(storage.clone()), id())
        .await
        .unwrap()
}

#[tokio::test]
async fn nothing_saved_is_a_blank_state_at_tick_0() {
    let (agent, recovery) = hydrate(&MemoryStorage::new()).await;
    assert_eq!(agent.tick_index(), 0);
    assert!(
        agent.history().is_empty() && agent.variables().is_empty() && agent.events().is_empty()
    );
    assert!(recovery.unsent.is_empty() && recovery.uncertain_tools.is_empty());
}

#[tokio::test]
async fn hydration_restores_the_committed_state() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    agent
        .enqueue(Event::new("mcp", "task", json!(1)))
        .await
        .unwrap();
    agent
        .enqueue(Event::new("mcp", "task", json!(2)).with_id("two"))
        .await
        .unwrap();
    agent
        .enqueue(Event::new("mcp", "task", json!(3)))
        .await
        .unwrap();
    let mut tick = agent.begin_tick().unwrap();
    assert_eq!(tick.next_event().unwrap().payload, json!(1));
    tick.history().push(Message::user("hello"));
    tick.variables().insert("retry_count".into(), json!(0));
    tick.set_status(Status::WAITING_FOR_TOOL);
    tick.commit().await.unwrap();

    let (again, _) = hydrate(&storage).await;
    assert_eq!(again.tick_index(), 1);
    assert_eq!(again.history(), agent.history());
    assert_eq!(again.variables(), agent.variables());
    assert_eq!(again.status(), &Status::WAITING_FOR_TOOL);
    let events: Vec<_> = again.events().iter().map(|event| &event.payload).collect();
    assert_eq!(events, [&json!(2), &json!(3)]);
    assert_eq!(again.events()[0].id.as_deref(), Some("two"));
    assert!(again.events()[1].id.is_some());
}

#[tokio::test]
async fn an_event_with_a_queued_id_is_not_queued_twice() {
    let (mut agent, _) = hydrate(&MemoryStorage::new()).await;
    for _ in 0..2 {
        agent
            .enqueue(Event::new("mcp", "task", json!(1)).with_id("one"))
            .await
            .unwrap();
    }
    assert_eq!(agent.events().len(), 1);
}

#[tokio::test]
async fn an_event_of_a_tick_is_queued_once_and_with_its_commit() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    let follow_up = || Event::new("worker_007", "check", json!(1)).with_id("check");
    agent.begin_tick().unwrap().push_event(follow_up());
    assert!(agent.events().is_empty(), "the tick was dropped");
    let mut tick = agent.begin_tick().unwrap();
    tick.push_event(follow_up());
    tick.push_event(follow_up());
    tick.push_event(Event::new("worker_007", "check", json!(2)));
    tick.commit().await.unwrap();
    let (again, _) = hydrate(&storage).await;
    let events: Vec<_> = again.events().iter().map(|event| &event.payload).collect();
    assert_eq!(events, [&json!(1), &json!(2)]);
    assert!(again.events()[1].id.is_some());
}

#[tokio::test]
async fn a_dropped_tick_leaves_no_trace() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    agent
        .enqueue(Event::new("mcp", "task", json!(1)))
        .await
        .unwrap();
    let before = agent.snapshot().clone();
    {
        let mut tick = agent.begin_tick().unwrap();
        tick.next_event();
        tick.history().push(Message::user("lost"));
        tick.variables().insert("x".into(), json!(1));
        tick.reply("lost");
    }
    assert_eq!(agent.snapshot(), &before);
    assert_eq!(storage.load(&id()).await.unwrap(), Some(before));
}

#[tokio::test]
async fn replies_come_out_of_commit_and_again_until_confirmed() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    let mut tick = agent.begin_tick().unwrap();
    tick.reply("one");
    tick.reply("two");
    let replies = tick.commit().await.unwrap();
    assert_eq!(replies.len(), 2);
    assert_ne!(replies[0].key, replies[1].key);
    agent.confirm_sent(&replies[0].key);
    agent.flush().await.unwrap();

    let (mut agent, recovery) = hydrate(&storage).await;
    assert_eq!(recovery.unsent, replies[1..]);
    // A tick hands out its own replies only.
    let mut tick = agent.begin_tick().unwrap();
    tick.reply("three");
    let third = tick.commit().await.unwrap();
    assert_eq!(third.len(), 1);
    agent.confirm_sent(&replies[1].key);
    agent.confirm_sent(&third[0].key);
    agent.flush().await.unwrap();
    assert!(hydrate(&storage).await.1.unsent.is_empty());
}

#[tokio::test]
async fn no_reply_key_is_used_twice_even_after_a_delete() {
    let storage = MemoryStorage::new();
    let mut keys = HashSet::new();
    for _ in 0..3 {
        let (mut agent, _) = hydrate(&storage).await;
        let mut tick = agent.begin_tick().unwrap();
        tick.reply("x");
        for reply in tick.commit().await.unwrap() {
            assert!(keys.insert(reply.key));
        }
        storage.delete(&id()).await.unwrap();
    }
}

#[tokio::test]
async fn a_tool_that_may_have_run_is_reported_until_a_commit() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    let mut tick = agent.begin_tick().unwrap();
    tick.history().push(Message::assistant("I will delete it"));
    let intent = tick
        .intend_tool("rm", json!({"path": "/tmp/x"}))
        .await
        .unwrap();
    let second = tick.intend_tool("ls", json!({})).await.unwrap();
    assert_ne!(intent.key, second.key);
    drop(tick);

    for _ in 0..2 {
        let (agent, recovery) = hydrate(&storage).await;
        assert_eq!(recovery.uncertain_tools, [intent.clone(), second.clone()]);
        // The rest of the tick did not survive.
        assert!(agent.history().is_empty());
        assert_eq!(agent.tick_index(), 0);
    }
    let (mut agent, _) = hydrate(&storage).await;
    agent.begin_tick().unwrap().commit().await.unwrap();
    assert!(hydrate(&storage).await.1.uncertain_tools.is_empty());
}

#[tokio::test]
async fn the_commit_of_a_tick_clears_its_intents() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    let mut tick = agent.begin_tick().unwrap();
    tick.intend_tool("ls", json!({})).await.unwrap();
    tick.commit().await.unwrap();
    assert!(hydrate(&storage).await.1.uncertain_tools.is_empty());
}

#[tokio::test]
async fn a_tick_with_an_intent_can_replace_its_history() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    let mut tick = agent.begin_tick().unwrap();
    tick.history().push(Message::user("old"));
    tick.commit().await.unwrap();

    let mut tick = agent.begin_tick().unwrap();
    tick.intend_tool("ls", json!({})).await.unwrap();
    *tick.history() = History::new();
    tick.history().push(Message::user("new"));
    tick.commit().await.unwrap();
    assert_eq!(agent.history().tail_len(), 1);
}

#[tokio::test]
async fn a_history_can_be_replaced_after_a_save_whose_answer_was_lost() {
    let storage = Arc::new(Flaky::default());
    let (mut agent, _) = AgentState::hydrate(storage.clone(), id()).await.unwrap();
    let mut tick = agent.begin_tick().unwrap();
    tick.history().push(Message::user("old"));
    tick.commit().await.unwrap();

    for mode in [1, 2] {
        storage.mode.store(mode, Ordering::SeqCst);
        let event = Event::new("mcp", "task", json!(1));
        agent.enqueue(event).await.unwrap_err();
        storage.mode.store(0, Ordering::SeqCst);
        let mut tick = agent.begin_tick().unwrap();
        *tick.history() = History::new();
        tick.history().push(Message::user(format!("new {mode}")));
        tick.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_second_hydration_fences_off_the_first_holder() {
    let storage = MemoryStorage::new();
    let (mut old, _) = hydrate(&storage).await;
    old.begin_tick().unwrap().commit().await.unwrap();
    let (mut new, _) = hydrate(&storage).await;
    let mut tick = old.begin_tick().unwrap();
    tick.reply("must not be sent");
    let error = tick.commit().await.unwrap_err();
    assert!(error.is_fenced(), "{error}");
    assert!(
        old.enqueue(Event::new("a", "b", json!(1)))
            .await
            .unwrap_err()
            .is_fenced()
    );
    new.begin_tick().unwrap().commit().await.unwrap();
    assert!(hydrate(&storage).await.1.unsent.is_empty());
}

#[tokio::test]
async fn plain_load_and_save_do_not_fence_off_a_holder() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    storage.load(&id()).await.unwrap();
    agent.begin_tick().unwrap().commit().await.unwrap();
    let mut plain = storage.load(&id()).await.unwrap().unwrap();
    plain.tick_index += 1;
    plain
        .memory
        .working_variables
        .insert("plain".into(), json!(true));
    storage.save(&plain).await.unwrap();
    let error = agent.begin_tick().unwrap().commit().await.unwrap_err();
    assert!(error.is_conflict() && !error.is_fenced(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_hydrations_at_once_one_holder_remains() {
    let storage = MemoryStorage::new();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let storage = storage.clone();
            tokio::spawn(async move { hydrate(&storage).await.0 })
        })
        .collect();
    let mut committed = 0;
    for task in tasks {
        let mut agent = task.await.unwrap();
        committed += u32::from(agent.begin_tick().unwrap().commit().await.is_ok());
    }
    // A holder that committed before it was fenced off saved a tick of its own.
    let last = storage.load(&id()).await.unwrap().unwrap();
    assert_eq!(last.tick_index, u64::from(committed));
    assert!(committed >= 1);
}

#[tokio::test]
async fn hydration_continues_from_the_epoch_of_a_deleted_agent() {
    let storage = MemoryStorage::new();
    let (mut old, _) = hydrate(&storage).await;
    storage.delete(&id()).await.unwrap();
    let (new, _) = hydrate(&storage).await;
    assert!(new.snapshot().epoch > old.snapshot().epoch);
    assert_eq!(new.tick_index(), 0);
    // The holder of the deleted agent cannot save into the new one.
    let error = old.begin_tick().unwrap().commit().await.unwrap_err();
    assert!(error.is_fenced(), "{error}");
}

/// A storage whose saves fail before or after they are stored.
#[derive(Debug, Default)]
struct Flaky {
    inner: MemoryStorage,
    /// 1: fails and stores nothing; 2: stores and then fails; 3: never answers.
    mode: AtomicU64,
}

#[async_trait]
impl SnapshotStorage for Flaky {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        let mode = self.mode.load(Ordering::SeqCst);
        if mode != 1 {
            self.inner.save(snapshot).await?;
        }
        match mode {
            0 => Ok(()),
            3 => std::future::pending().await,
            _ => Err(Error::Storage {
                action: "save to",
                location: "nowhere".into(),
                source: "made up".into(),
            }),
        }
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        self.inner.load(agent).await
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.inner.delete(agent).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        self.inner.list().await
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        self.inner.stream(agent, range).await
    }
}

#[tokio::test]
async fn a_failed_or_cancelled_commit_is_in_doubt_until_it_is_retried() {
    for mode in [1, 2, 3] {
        let storage = Arc::new(Flaky::default());
        let (mut agent, _) = AgentState::hydrate(storage.clone(), id()).await.unwrap();
        storage.mode.store(mode, Ordering::SeqCst);
        let mut tick = agent.begin_tick().unwrap();
        tick.history().push(Message::user("once"));
        tick.reply("once");
        if mode == 3 {
            let timeout = Duration::from_millis(20);
            assert!(tokio::time::timeout(timeout, tick.commit()).await.is_err());
        } else {
            assert!(matches!(tick.commit().await, Err(Error::Storage { .. })));
        }
        assert!(matches!(agent.begin_tick(), Err(Error::InDoubt { .. })));
        assert!(matches!(agent.flush().await, Err(Error::InDoubt { .. })));
        storage.mode.store(0, Ordering::SeqCst);
        let replies = agent.retry_commit().await.unwrap();
        assert_eq!(replies.len(), 1, "mode {mode}");
        assert!(agent.retry_commit().await.unwrap().is_empty());
        agent.begin_tick().unwrap().commit().await.unwrap();
        assert_eq!((agent.tick_index(), agent.history().len()), (2, 1));
        let stream = storage.stream(&id(), 0..9).await.unwrap();
        assert_eq!(stream.len(), 1);
    }
}

/// The retry saves the same contents as the first attempt, so the snapshot in doubt keeps the reply
/// until then.
#[tokio::test]
async fn a_reply_that_is_confirmed_during_a_doubt_is_not_handed_out_again() {
    for mode in [1, 2] {
        let storage = Arc::new(Flaky::default());
        let (mut agent, _) = AgentState::hydrate(storage.clone(), id()).await.unwrap();
        let mut tick = agent.begin_tick().unwrap();
        tick.reply("first");
        let first = tick.commit().await.unwrap();
        storage.mode.store(mode, Ordering::SeqCst);
        let mut tick = agent.begin_tick().unwrap();
        tick.reply("second");
        tick.commit().await.unwrap_err();
        agent.confirm_sent(&first[0].key);
        storage.mode.store(0, Ordering::SeqCst);
        let second = agent.retry_commit().await.unwrap();
        assert_eq!(second[0].payload, "second", "mode {mode}");
        assert_eq!(agent.snapshot().outbox, second, "mode {mode}");
        agent.flush().await.unwrap();
        let (_, recovery) = AgentState::hydrate(storage, id()).await.unwrap();
        assert_eq!(recovery.unsent, second, "mode {mode}");
    }
}

#[tokio::test]
async fn a_tick_may_be_stored_although_its_retry_is_a_conflict() {
    let storage = Arc::new(Flaky::default());
    let (mut agent, _) = AgentState::hydrate(storage.clone(), id()).await.unwrap();
    storage.mode.store(2, Ordering::SeqCst);
    let mut tick = agent.begin_tick().unwrap();
    tick.reply("once");
    tick.commit().await.unwrap_err();
    storage.mode.store(0, Ordering::SeqCst);

    let (other, recovery) = AgentState::hydrate(storage, id()).await.unwrap();
    assert_eq!((other.tick_index(), recovery.unsent.len()), (1, 1));
    let error = agent.retry_commit().await.unwrap_err();
    assert!(error.is_fenced(), "{error}");
    assert_eq!(agent.tick_index(), 0);
    // The doubt is over, but every further commit is refused.
    let tick = agent.begin_tick().unwrap();
    assert!(tick.commit().await.unwrap_err().is_fenced());
}

/// `Ok` without replies would look like a commit without replies.
#[tokio::test]
async fn a_refused_commit_is_refused_again_when_it_is_retried() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    hydrate(&storage).await;
    let mut tick = agent.begin_tick().unwrap();
    tick.reply("lost");
    assert!(tick.commit().await.unwrap_err().is_fenced());
    for _ in 0..2 {
        assert!(agent.retry_commit().await.unwrap_err().is_fenced());
        assert!(agent.flush().await.unwrap_err().is_fenced());
        drop(agent.begin_tick().unwrap());
    }
    agent.adopt_stored().await.unwrap();
    assert!(agent.retry_commit().await.unwrap().is_empty());
    agent.begin_tick().unwrap().commit().await.unwrap();
}

/// The agent was deleted, so a save passes again. It is newer than the refused commit.
#[tokio::test]
async fn a_refused_commit_is_forgotten_after_a_later_save() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    let mut other = agent.snapshot().clone();
    other.tick_index += 1;
    storage.save(&other).await.unwrap();
    let mut tick = agent.begin_tick().unwrap();
    tick.reply("lost");
    assert!(tick.commit().await.unwrap_err().is_conflict());
    storage.delete(&id()).await.unwrap();
    let event = Event::new("mcp", "task", json!(1));
    agent.enqueue(event).await.unwrap();
    assert!(agent.retry_commit().await.unwrap().is_empty());
    assert_eq!(agent.events().len(), 1);
}

#[tokio::test]
async fn a_commit_that_was_never_polled_is_in_doubt() {
    let (mut agent, _) = hydrate(&MemoryStorage::new()).await;
    let mut tick = agent.begin_tick().unwrap();
    tick.reply("once");
    tokio::select! {
        biased;
        () = std::future::ready(()) => {}
        _ = tick.commit() => unreachable!("the other branch is ready"),
    }
    assert!(matches!(agent.begin_tick(), Err(Error::InDoubt { .. })));
    assert_eq!(agent.retry_commit().await.unwrap().len(), 1);
    assert_eq!(agent.tick_index(), 1);
}

#[tokio::test]
async fn a_save_between_ticks_whose_answer_was_lost_does_not_block_the_next() {
    for mode in [1, 2] {
        let storage = Arc::new(Flaky::default());
        let (mut agent, _) = AgentState::hydrate(storage.clone(), id()).await.unwrap();
        storage.mode.store(mode, Ordering::SeqCst);
        let event = Event::new("mcp", "task", json!(1)).with_id("one");
        agent.enqueue(event.clone()).await.unwrap_err();
        storage.mode.store(0, Ordering::SeqCst);
        agent.enqueue(event).await.unwrap();
        agent.begin_tick().unwrap().commit().await.unwrap();
        assert_eq!(
            storage
                .load(&id())
                .await
                .unwrap()
                .unwrap()
                .event_queue_backup
                .len(),
            1
        );
    }
}

#[tokio::test]
async fn a_trimmed_history_frees_memory_but_not_the_stream() {
    let storage = MemoryStorage::new();
    let (mut agent, _) = hydrate(&storage).await;
    for n in 0..300 {
        let mut tick = agent.begin_tick().unwrap();
        let history = tick.history();
        history.push(Message::user(n.to_string()));
        history.drop_front(history.tail_len().saturating_sub(5));
        tick.commit().await.unwrap();
    }
    assert!(agent.history().get(100).is_none());
    assert_eq!(storage.stream(&id(), 0..u64::MAX).await.unwrap().len(), 300);
    assert_eq!(hydrate(&storage).await.0.history(), agent.history());
}

/// Every one succeeds; each success fences off the ones before it.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_simultaneous_hydrations_all_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}/agents.db", folder.path().display());
    for url in ["memory:", &database] {
        if url != "memory:" && cfg!(not(feature = "sqlite")) {
            continue;
        }
        let storage = agent_snapshot::open_storage(url).await.unwrap();
        let start = Arc::new(tokio::sync::Barrier::new(50));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let (storage, start) = (storage.clone(), start.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    AgentState::hydrate(storage, id())
                        .await
                        .map(|(agent, _)| agent)
                })
            })
            .collect();
        let mut epochs = HashSet::new();
        for task in tasks {
            let agent = task.await.unwrap().unwrap();
            assert!(epochs.insert(agent.snapshot().epoch));
        }
    }
}
