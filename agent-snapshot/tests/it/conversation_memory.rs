//! Long-term memory: no ended conversation is lost on its way there.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use agent_snapshot::conversation::{
    EndReason, Error, InMemoryEngine, MemoryEngine, Message, Offload, Offloaded, SessionId,
    SessionManager, StateManager,
};
use agent_snapshot::{
    AgentId, AgentSnapshot, Error as StorageError, MemoryStorage, SnapshotStorage,
};
use async_trait::async_trait;
use tokio::sync::Notify;

type Result<T> = std::result::Result<T, Box<dyn StdError + Send + Sync>>;

fn manager(
    storage: &(impl SnapshotStorage + Clone + 'static),
    engine: &(impl MemoryEngine + Clone + 'static),
) -> SessionManager {
    SessionManager::new(Arc::new(storage.clone()), StateManager::new(1_000))
        .memory(engine.clone())
        // Long, so that only an engine that hangs times out on a busy machine.
        .memory_timeout(Duration::from_secs(60))
}

/// An engine that fails a number of times, then works.
#[derive(Clone, Default)]
struct Flaky {
    failures: Arc<AtomicUsize>,
    /// Stores the conversation before it fails: the acknowledgement is lost.
    stores: bool,
    /// Never answers instead of failing.
    hangs: bool,
    inner: InMemoryEngine,
    offered: Arc<Mutex<Vec<String>>>,
}

impl Flaky {
    fn failing(times: usize) -> Self {
        let flaky = Self::default();
        flaky.failures.store(times, Ordering::SeqCst);
        flaky
    }

    async fn fail(&self) -> Result<()> {
        let left = self.failures.load(Ordering::SeqCst);
        if left == 0 {
            return Ok(());
        }
        self.failures.store(left - 1, Ordering::SeqCst);
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Err("the engine is down".into())
    }
}

#[async_trait]
impl MemoryEngine for Flaky {
    async fn offload(&self, offload: &Offload) -> Result<()> {
        self.offered.lock().unwrap().push(offload.key.clone());
        if self.stores {
            self.inner.offload(offload).await?;
        }
        self.fail().await?;
        self.inner.offload(offload).await
    }

    async fn bootstrap(&self, user: &str) -> Result<Option<String>> {
        self.fail().await?;
        self.inner.bootstrap(user).await
    }
}

#[tokio::test]
async fn the_whole_stream_is_offloaded_when_a_session_ends() {
    let storage = MemoryStorage::new();
    let engine = InMemoryEngine::new();
    let sessions = manager(&storage, &engine);
    let mut session = sessions.create("alice", Some("prompt")).await.unwrap();
    // More messages than the window holds.
    for n in 0..200 {
        session
            .append(Message::user(format!("question {n}")))
            .unwrap();
        session
            .append(Message::assistant(format!("answer {n}")))
            .unwrap();
        session.commit().await.unwrap();
    }
    assert!(session.messages().count() < 200);
    let ended = sessions.destroy(session.id()).await.unwrap();
    assert!(matches!(ended, Offloaded::Done));
    let offloads = engine.offloads();
    assert_eq!(offloads.len(), 1);
    assert_eq!(
        (&*offloads[0].user, offloads[0].reason),
        ("alice", EndReason::Destroyed)
    );
    assert_eq!(offloads[0].messages.len(), 401);
    assert_eq!(
        offloads[0].messages[1].content.as_deref(),
        Some("question 0")
    );
    assert!(storage.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_conversation_stays_queued_until_it_is_acknowledged() {
    let storage = MemoryStorage::new();
    let engine = Flaky::default();
    let sessions = manager(&storage, &engine);
    let mut session = sessions.create("alice", None).await.unwrap();
    session.append(Message::user("remember me")).unwrap();
    session.commit().await.unwrap();
    engine.failures.store(2, Ordering::SeqCst);
    let ended = sessions.destroy(session.id()).await.unwrap();
    assert!(matches!(ended, Offloaded::Queued(Error::Memory { .. })));
    // The session has ended, and its conversation is not lost.
    assert!(sessions.get(session.id()).await.is_err());
    assert!(sessions.list().await.unwrap().is_empty());

    // Another process finds the queue.
    let other = manager(&storage, &engine);
    let failed = other.offload_pending().await.unwrap();
    assert_eq!(failed[0].0, *session.id());
    let expired = other.expire_idle(SystemTime::now()).await.unwrap();
    assert!(expired.failed.is_empty() && expired.ended.is_empty());
    assert_eq!(
        engine.inner.offloads()[0].messages[0].content.as_deref(),
        Some("remember me")
    );
    assert!(storage.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_lost_acknowledgement_repeats_the_same_key() {
    let storage = MemoryStorage::new();
    let engine = Flaky {
        stores: true,
        ..Flaky::default()
    };
    let sessions = manager(&storage, &engine);
    let mut session = sessions.create("alice", None).await.unwrap();
    session.append(Message::user("once")).unwrap();
    session.commit().await.unwrap();
    engine.failures.store(1, Ordering::SeqCst);
    sessions.destroy(session.id()).await.unwrap();
    sessions.offload_pending().await.unwrap();
    let offered = engine.offered.lock().unwrap().clone();
    assert_eq!(offered.len(), 2);
    assert_eq!(offered[0], offered[1]);
    assert_eq!(engine.inner.offloads().len(), 1);
}

/// An engine is idempotent by key, so an equal key would drop the second conversation.
#[tokio::test]
async fn two_sessions_of_one_id_have_different_keys() {
    let (storage, engine) = (MemoryStorage::new(), InMemoryEngine::new());
    let sessions = manager(&storage, &engine);
    let id = SessionId::new("thread-42").unwrap();
    for text in ["first", "second"] {
        let mut session = sessions.create_as(&id, "alice", None).await.unwrap();
        session.append(Message::user(text)).unwrap();
        session.commit().await.unwrap();
        sessions.destroy(&id).await.unwrap();
    }
    let offloads = engine.offloads();
    let mut texts: Vec<_> = offloads
        .iter()
        .map(|offload| offload.messages.last().unwrap().content.as_deref())
        .collect();
    // The engine sorts by key.
    texts.sort_unstable();
    assert_eq!(texts, [Some("first"), Some("second")]);
}

/// Sessions of 0.1 have no `incarnation`: they are read, and keep the keys under which they may have
/// been offered.
#[tokio::test]
async fn a_session_of_the_first_version_keeps_its_key() {
    let (storage, engine) = (MemoryStorage::new(), InMemoryEngine::new());
    let sessions = manager(&storage, &engine);
    let record = r#"{"user":"alice","created":1706582400000,"start":0}"#;
    let mut snapshot = AgentSnapshot::new(AgentId::new("session.thread-42").unwrap());
    snapshot.tick_index = 1;
    let record = serde_json::from_str(record).unwrap();
    snapshot.extra.insert("session".into(), record);
    let history = &mut snapshot.memory.short_term_history;
    history.push(Message::user("hello"));
    storage.save(&snapshot).await.unwrap();

    let id = SessionId::new("thread-42").unwrap();
    let mut session = sessions.get(&id).await.unwrap();
    session.append(Message::assistant("Hi.")).unwrap();
    session.commit().await.unwrap();
    sessions.destroy(&id).await.unwrap();
    let offloads = engine.offloads();
    assert_eq!(offloads.len(), 1);
    assert_eq!(offloads[0].key, "thread-42/0");
    assert_eq!(offloads[0].messages.len(), 2);
}

/// An engine that holds each offload until it is released.
#[derive(Clone, Default)]
struct Held {
    offered: Arc<Notify>,
    release: Arc<Notify>,
    inner: InMemoryEngine,
}

#[async_trait]
impl MemoryEngine for Held {
    async fn offload(&self, offload: &Offload) -> Result<()> {
        self.offered.notify_one();
        self.release.notified().await;
        self.inner.offload(offload).await
    }

    async fn bootstrap(&self, user: &str) -> Result<Option<String>> {
        self.inner.bootstrap(user).await
    }
}

/// Two processes offer one conversation, and one of them is slow: meanwhile the id is used again.
#[tokio::test]
async fn a_late_acknowledgement_does_not_remove_another_conversation_of_the_same_id() {
    let storage = MemoryStorage::new();
    let (slow, down) = (Held::default(), Flaky::default());
    let (here, there) = (manager(&storage, &down), manager(&storage, &slow));
    let id = SessionId::new("thread-42").unwrap();
    let talk = async |text: &str| {
        let mut session = here.create_as(&id, "alice", None).await.unwrap();
        session.append(Message::user(text)).unwrap();
        session.commit().await.unwrap();
        down.failures.store(1, Ordering::SeqCst);
        here.destroy(&id).await.unwrap()
    };
    assert!(matches!(talk("first").await, Offloaded::Queued(_)));
    let late = {
        let there = there.clone();
        tokio::spawn(async move { there.offload_pending().await })
    };
    slow.offered.notified().await;
    assert!(here.offload_pending().await.unwrap().is_empty());
    assert!(matches!(talk("second").await, Offloaded::Queued(_)));

    slow.release.notify_one();
    // After its acknowledgement the slow process offers the second conversation.
    let offered = tokio::time::timeout(Duration::from_secs(60), slow.offered.notified());
    offered.await.expect("it is offered");
    assert!(here.offload_pending().await.unwrap().is_empty());
    slow.release.notify_one();
    assert!(late.await.unwrap().unwrap().is_empty());
    assert_eq!(down.inner.offloads().len(), 2);
    assert!(storage.list().await.unwrap().is_empty());
}

type Act = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A storage on which another process acts directly before the next reads of a stream, one act each.
#[derive(Clone, Default)]
struct Overtaken {
    inner: MemoryStorage,
    acts: Arc<Mutex<VecDeque<Act>>>,
}

impl Overtaken {
    fn before_next_stream(&self, act: impl Future<Output = ()> + Send + 'static) {
        self.acts.lock().unwrap().push_back(Box::pin(act));
    }
}

impl fmt::Debug for Overtaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overtaken")
    }
}

#[async_trait]
impl SnapshotStorage for Overtaken {
    async fn save(&self, snapshot: &AgentSnapshot) -> std::result::Result<(), StorageError> {
        self.inner.save(snapshot).await
    }

    async fn load(
        &self,
        agent: &AgentId,
    ) -> std::result::Result<Option<AgentSnapshot>, StorageError> {
        self.inner.load(agent).await
    }

    async fn delete(&self, agent: &AgentId) -> std::result::Result<(), StorageError> {
        self.inner.delete(agent).await
    }

    async fn list(&self) -> std::result::Result<Vec<AgentId>, StorageError> {
        self.inner.list().await
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> std::result::Result<Vec<(u64, Message)>, StorageError> {
        let act = self.acts.lock().unwrap().pop_front();
        if let Some(act) = act {
            act.await;
        }
        self.inner.stream(agent, range).await
    }
}

/// Says `text` in a session.
async fn say(sessions: &SessionManager, id: &SessionId, text: &str) {
    let mut session = sessions.get(id).await.unwrap();
    session.append(Message::user(text)).unwrap();
    session.commit().await.unwrap();
}

/// The engine replaces a conversation by the next one with the same key.
#[tokio::test]
async fn a_conversation_that_another_process_delivers_meanwhile_stays_whole() {
    for is_reset in [false, true] {
        let (storage, engine) = (Overtaken::default(), Flaky::default());
        let here = manager(&storage, &engine);
        let there = manager(&storage.inner, &engine);
        let id = there.create("alice", None).await.unwrap().id().clone();
        say(&there, &id, "one").await;
        say(&there, &id, "two").await;
        if is_reset {
            // The first call recalls the user.
            engine.failures.store(2, Ordering::SeqCst);
            there.reset(&id).await.unwrap();
        } else {
            engine.failures.store(1, Ordering::SeqCst);
            there.destroy(&id).await.unwrap();
        }
        assert!(engine.inner.offloads().is_empty());

        storage.before_next_stream(async move {
            assert!(there.offload_pending().await.unwrap().is_empty());
        });
        assert!(here.offload_pending().await.unwrap().is_empty());
        let offloads = engine.inner.offloads();
        assert_eq!(offloads.len(), 1);
        assert_eq!(offloads[0].messages.len(), 2, "reset: {is_reset}");
    }
}

#[tokio::test]
async fn a_session_that_is_reset_or_ended_meanwhile_is_not_read_in_part() {
    let (storage, engine) = (Overtaken::default(), InMemoryEngine::new());
    let here = manager(&storage, &engine);
    let there = manager(&storage.inner, &engine);
    let id = there.create("alice", None).await.unwrap().id().clone();
    say(&there, &id, "old").await;
    storage.before_next_stream({
        let (there, id) = (there.clone(), id.clone());
        async move {
            there.reset(&id).await.unwrap();
            say(&there, &id, "new").await;
        }
    });
    let read = here.stream(&id).await.unwrap();
    assert_eq!(read.last().unwrap().content.as_deref(), Some("new"));

    storage.before_next_stream({
        let id = id.clone();
        async move {
            there.destroy(&id).await.unwrap();
        }
    });
    let ended = here.stream(&id).await;
    assert!(matches!(ended, Err(Error::UnknownSession { .. })));
}

#[tokio::test]
async fn a_session_may_be_reset_while_another_process_acknowledges() {
    let (storage, engine) = (Overtaken::default(), Flaky::default());
    let here = manager(&storage, &engine);
    let there = manager(&storage.inner, &engine);
    let id = there.create("alice", None).await.unwrap().id().clone();
    say(&there, &id, "first").await;
    engine.failures.store(2, Ordering::SeqCst);
    there.reset(&id).await.unwrap();
    say(&there, &id, "second").await;

    // The first stream is that of the offer, the second that of the acknowledgement.
    storage.before_next_stream(async {});
    storage.before_next_stream({
        let (there, id) = (there.clone(), id.clone());
        async move {
            there.reset(&id).await.unwrap();
        }
    });
    assert!(here.offload_pending().await.unwrap().is_empty());
    assert_eq!(engine.inner.offloads().len(), 2);
    say(&there, &id, "third").await;
    let stream = storage.inner.stream(id.agent(), 0..u64::MAX).await.unwrap();
    assert_eq!(stream.len(), 1);
}

#[tokio::test]
async fn an_engine_that_hangs_times_out_and_is_called_again() {
    let storage = MemoryStorage::new();
    let engine = Flaky {
        hangs: true,
        ..Flaky::failing(1)
    };
    let sessions = manager(&storage, &engine).memory_timeout(Duration::from_millis(200));
    let mut session = sessions.create("alice", Some("prompt")).await.unwrap();
    assert!(
        session
            .memory_error()
            .unwrap()
            .to_string()
            .contains("alice")
    );
    session.append(Message::user("hello")).unwrap();
    session.commit().await.unwrap();
    engine.failures.store(1, Ordering::SeqCst);
    let ended = sessions.destroy(session.id()).await.unwrap();
    assert!(matches!(ended, Offloaded::Queued(_)));
    assert!(sessions.offload_pending().await.unwrap().is_empty());
    assert_eq!(engine.inner.offloads().len(), 1);
}

#[tokio::test]
async fn a_reset_offloads_and_the_session_goes_on() {
    let storage = MemoryStorage::new();
    let engine = Flaky::default();
    let sessions = manager(&storage, &engine);
    let mut session = sessions.create("alice", Some("prompt")).await.unwrap();
    let id = session.id().clone();
    for round in 0..3 {
        for n in 0..100 {
            session
                .append(Message::user(format!("{round}: question {n}")))
                .unwrap();
            session.append(Message::assistant("answer")).unwrap();
        }
        session.commit().await.unwrap();
        // The second conversation stays queued until the third ends.
        engine
            .failures
            .store(if round == 1 { 2 } else { 0 }, Ordering::SeqCst);
        session = sessions.reset(&id).await.unwrap();
        engine.failures.store(0, Ordering::SeqCst);
        assert!(
            session
                .messages()
                .all(|m| m.content.as_deref().unwrap().starts_with("prompt"))
        );
    }
    session.append(Message::user("still here")).unwrap();
    session.commit().await.unwrap();
    let mut offloads = engine.inner.offloads();
    offloads.sort_by_key(|offload| offload.ended);
    let first: Vec<_> = offloads
        .iter()
        .map(|offload| {
            (
                offload.messages.len(),
                offload.messages[1].content.clone().unwrap(),
            )
        })
        .collect();
    let expected = ["0: question 0", "1: question 0", "2: question 0"];
    assert_eq!(first, expected.map(|text| (201, text.to_owned())));
    // The storage has only the messages that were not acknowledged.
    let stream = storage.stream(id.agent(), 0..u64::MAX).await.unwrap();
    assert_eq!(stream.len(), 1);
    assert_eq!(sessions.stream(&id).await.unwrap().len(), 2);
}

#[tokio::test]
async fn what_memory_knows_becomes_part_of_the_system_prompt() {
    let storage = MemoryStorage::new();
    let engine = InMemoryEngine::new();
    let sessions = manager(&storage, &engine);
    let mut first = sessions.create("alice", Some("Be brief.")).await.unwrap();
    assert_eq!(
        first.messages().next().unwrap().content.as_deref(),
        Some("Be brief.")
    );
    first.append(Message::user("I like green tea")).unwrap();
    first.append(Message::assistant("Noted.")).unwrap();
    first.commit().await.unwrap();
    sessions.destroy(first.id()).await.unwrap();

    let second = sessions.create("alice", Some("Be brief.")).await.unwrap();
    let prompt = second.messages().next().unwrap().content.clone().unwrap();
    assert!(
        prompt.starts_with("Be brief.\n\n") && prompt.contains("green tea"),
        "{prompt}"
    );
    assert_eq!(second.messages().count(), 1);
    // Users do not see each other's memory.
    let other = sessions.create("bob", None).await.unwrap();
    assert_eq!(other.messages().count(), 0);
}

#[cfg(feature = "file")]
mod json_lines {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use agent_snapshot::conversation::JsonLinesEngine;

    use super::*;

    async fn end(sessions: &SessionManager, text: &str) {
        let mut session = sessions.create("alice", None).await.unwrap();
        session.append(Message::user(text)).unwrap();
        session.append(Message::assistant("answer")).unwrap();
        session.commit().await.unwrap();
        let ended = sessions.destroy(session.id()).await.unwrap();
        assert!(matches!(ended, Offloaded::Done), "{ended:?}");
    }

    fn open(path: &Path) -> (JsonLinesEngine, SessionManager) {
        let engine = JsonLinesEngine::new(path);
        (engine.clone(), manager(&MemoryStorage::new(), &engine))
    }

    #[tokio::test]
    async fn conversations_are_kept_in_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/memory.jsonl");
        let (_, sessions) = open(&path);
        end(&sessions, "one").await;
        end(&sessions, "two").await;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        let (engine, _) = open(&path);
        assert_eq!(engine.offloads().unwrap().len(), 2);
        let known = engine.bootstrap("alice").await.unwrap().unwrap();
        assert!(known.contains("one") && known.contains("two"), "{known}");
        assert_eq!(engine.bootstrap("bob").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_torn_line_is_ignored_and_then_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.jsonl");
        let (engine, sessions) = open(&path);
        end(&sessions, "one").await;
        let whole = fs::read(&path).unwrap();
        for cut in [1, whole.len() / 2, whole.len() - 1] {
            let torn = [&whole[..], &whole[..cut]].concat();
            fs::write(&path, torn).unwrap();
            assert_eq!(engine.offloads().unwrap().len(), 1, "cut at {cut}");
            end(&sessions, "next").await;
            assert_eq!(engine.offloads().unwrap().len(), 2, "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn the_error_names_a_damaged_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.jsonl");
        let (engine, sessions) = open(&path);
        end(&sessions, "one").await;
        let mut text = fs::read(&path).unwrap();
        text.extend(b"{\"not\": \"ours\"}\n");
        fs::write(&path, text).unwrap();
        let error = engine.bootstrap("alice").await.unwrap_err().to_string();
        assert!(error.contains("memory.jsonl, line 2"), "{error}");
        let error = engine.offloads().unwrap_err();
        assert!(matches!(error, Error::DamagedLine { line: 2, .. }) && error.is_damaged());
    }

    #[tokio::test]
    async fn a_file_or_folder_that_others_can_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.jsonl");
        let (engine, sessions) = open(&path);
        end(&sessions, "one").await;
        let set_mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(&path, 0o660);
        assert!(matches!(engine.offloads(), Err(Error::NotPrivate { .. })));
        set_mode(&path, 0o600);
        set_mode(folder.path(), 0o770);
        let mut session = sessions.create("alice", None).await.unwrap();
        session.append(Message::user("two")).unwrap();
        session.commit().await.unwrap();
        let ended = sessions.destroy(session.id()).await.unwrap();
        let Offloaded::Queued(Error::Memory { source, .. }) = ended else {
            panic!("{ended:?}");
        };
        assert!(source.to_string().starts_with("refusing"), "{source}");

        set_mode(folder.path(), 0o700);
        assert!(sessions.offload_pending().await.unwrap().is_empty());
        assert_eq!(engine.offloads().unwrap().len(), 2);
        let link = folder.path().join("link.jsonl");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let refused = open(&link).0.offloads();
        assert!(matches!(refused, Err(Error::NotPrivate { .. })));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_writers_append_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.jsonl");
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (_, sessions) = open(&path);
                tokio::spawn(async move {
                    for n in 0..5 {
                        end(&sessions, &"long ".repeat(100 + n)).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(open(&path).0.offloads().unwrap().len(), 20);
    }
}
