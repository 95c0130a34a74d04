//! Sessions: many users and many processes on one storage.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use agent_snapshot::conversation::{
    Error, Message, Role, Session, SessionId, SessionManager, StateManager, ToolCallRequest,
    ToolCallResult,
};
use agent_snapshot::{
    AgentId, AgentSnapshot, Error as StorageError, MemoryStorage, SnapshotStorage,
};
use async_trait::async_trait;
use serde_json::json;
use tokio::sync::Notify;

use crate::conversation_rules::acceptable;

fn manager(storage: &(impl SnapshotStorage + Clone + 'static)) -> SessionManager {
    SessionManager::new(Arc::new(storage.clone()), StateManager::new(100_000))
}

fn texts(session: &Session) -> Vec<String> {
    session
        .messages()
        .filter_map(|m| m.content.clone())
        .collect()
}

fn call(id: &str) -> Message {
    Message::assistant("").with_tool_calls(vec![ToolCallRequest::new(id, "tool", json!({}))])
}

fn result(id: &str) -> Message {
    Message::tool(vec![ToolCallResult::new(id, json!("real"))])
}

#[tokio::test]
async fn an_id_of_the_caller_belongs_to_one_session_at_a_time() {
    let storage = MemoryStorage::new();
    let (here, there) = (manager(&storage), manager(&storage));
    let id = SessionId::new("thread-42").unwrap();
    let create = |sessions: &SessionManager, user: &'static str| {
        let (sessions, id) = (sessions.clone(), id.clone());
        async move { sessions.create_as(&id, user, None).await }
    };
    let (first, second) = tokio::join!(create(&here, "alice"), create(&there, "bob"));
    assert_eq!(
        [first.is_ok(), second.is_ok()]
            .iter()
            .filter(|ok| **ok)
            .count(),
        1
    );
    assert!(matches!(
        create(&here, "carol").await,
        Err(Error::SessionExists { session }) if session.as_str() == "thread-42"
    ));
    here.destroy(&id).await.unwrap();
    assert_eq!(create(&there, "carol").await.unwrap().user(), "carol");
}

#[tokio::test]
async fn a_late_commit_does_not_enter_a_new_session_of_the_same_id() {
    let storage = MemoryStorage::new();
    let (here, there) = (manager(&storage), manager(&storage));
    let id = SessionId::new("thread-42").unwrap();
    let mut late = here.create_as(&id, "alice", None).await.unwrap();
    late.append(Message::user("a secret of alice")).unwrap();

    there.destroy(&id).await.unwrap();
    let carol = there.create_as(&id, "carol", None).await.unwrap();
    let refused = late.commit().await;
    assert!(
        matches!(refused, Err(Error::UnknownSession { .. })),
        "{refused:?}"
    );
    assert_eq!(late.uncommitted().len(), 1);
    assert!(there.stream(carol.id()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_capped_session_is_read_and_delivered_without_the_capped_messages() {
    let storage = MemoryStorage::new();
    let engine = agent_snapshot::conversation::InMemoryEngine::new();
    let sessions = SessionManager::new(Arc::new(storage.clone()), StateManager::new(60))
        .memory(engine.clone());
    let id = SessionId::new("thread-42").unwrap();
    let mut session = sessions.create_as(&id, "alice", None).await.unwrap();
    for n in 0..40 {
        let text = format!("message {n:02}");
        session.append(Message::user(text.clone())).unwrap();
        session.append(Message::assistant(text)).unwrap();
        session.commit().await.unwrap();
    }
    let agent = AgentId::new("session.thread-42").unwrap();
    assert!(storage.cap_stream(&agent, 30).await.unwrap() > 0);
    assert_eq!(sessions.stream(&id).await.unwrap().len(), 30);

    // A reset delivers the conversation, and then the stream starts at the new one.
    let mut session = sessions.reset(&id).await.unwrap();
    session.append(Message::user("new")).unwrap();
    session.commit().await.unwrap();
    storage.cap_stream(&agent, 0).await.unwrap();
    sessions.destroy(&id).await.unwrap();
    let lengths: Vec<usize> = engine
        .offloads()
        .iter()
        .map(|offload| offload.messages.len())
        .collect();
    assert_eq!(lengths, [30, 1]);
    assert!(storage.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_reset_without_long_term_memory_deletes_the_old_messages() {
    let storage = MemoryStorage::new();
    let sessions = manager(&storage);
    let mut session = sessions.create("alice", None).await.unwrap();
    session.append(Message::user("old")).unwrap();
    session.commit().await.unwrap();
    let mut session = sessions.reset(session.id()).await.unwrap();
    session.append(Message::user("new")).unwrap();
    session.commit().await.unwrap();
    let agent = AgentId::new(format!("session.{}", session.id())).unwrap();
    let stream = storage.stream(&agent, 0..u64::MAX).await.unwrap();
    let texts: Vec<_> = stream.iter().map(|(_, m)| m.content.as_deref()).collect();
    assert_eq!(texts, [Some("new")]);
}

#[tokio::test]
async fn sessions_are_created_found_listed_and_destroyed() {
    let storage = MemoryStorage::new();
    let sessions = manager(&storage);
    // Other agents in the same storage are not sessions.
    storage.save(&snapshot_of("worker_007")).await.unwrap();
    let mut alice = sessions.create("alice", Some("Be brief.")).await.unwrap();
    let bob = sessions.create("bob", None).await.unwrap();
    alice.append(Message::user("hello")).unwrap();
    alice.commit().await.unwrap();

    let again = manager(&storage).get(alice.id()).await.unwrap();
    assert_eq!(texts(&again), ["Be brief.", "hello"]);
    assert_eq!(again.user(), "alice");
    let listed = sessions.list().await.unwrap();
    let users: HashSet<&str> = listed.iter().map(|info| &*info.user).collect();
    assert_eq!(users, HashSet::from(["alice", "bob"]));

    sessions.destroy(alice.id()).await.unwrap();
    assert!(matches!(
        sessions.get(alice.id()).await,
        Err(Error::UnknownSession { session }) if session == *alice.id()
    ));
    assert_eq!(sessions.list().await.unwrap().len(), 1);
    assert_eq!(texts(&sessions.get(bob.id()).await.unwrap()), [""; 0]);
    assert_eq!(storage.list().await.unwrap().len(), 2);
}

fn snapshot_of(agent: &str) -> AgentSnapshot {
    let mut snapshot = AgentSnapshot::new(AgentId::new(agent).unwrap());
    snapshot.tick_index = 1;
    snapshot
}

#[tokio::test]
async fn an_unknown_session_is_an_error() {
    let sessions = manager(&MemoryStorage::new());
    sessions.create("alice", None).await.unwrap();
    for id in [
        "unknown",
        "",
        "../x",
        " x",
        &"x".repeat(57),
        &"x".repeat(300),
    ] {
        let outcome = match SessionId::new(id) {
            Ok(id) => sessions.get(&id).await.map(drop),
            Err(error) => Err(error),
        };
        assert!(outcome.is_err(), "{id}");
    }
    let unknown = SessionId::new("unknown").unwrap();
    for outcome in [
        sessions.destroy(&unknown).await.map(drop),
        sessions.reset(&unknown).await.map(drop),
        sessions.stream(&unknown).await.map(drop),
    ] {
        assert!(matches!(outcome, Err(Error::UnknownSession { .. })));
    }
}

#[tokio::test]
async fn a_snapshot_that_is_not_a_session_is_damaged_not_empty() {
    let storage = MemoryStorage::new();
    storage.save(&snapshot_of("session.odd")).await.unwrap();
    let odd = SessionId::new("odd").unwrap();
    let error = manager(&storage).get(&odd).await.unwrap_err();
    assert!(
        error.is_damaged() && error.to_string().contains("session odd"),
        "{error}"
    );
}

#[tokio::test]
async fn the_second_of_two_commits_is_rebased_onto_the_first() {
    let storage = MemoryStorage::new();
    let (one, two) = (manager(&storage), manager(&storage));
    let id = one
        .create("alice", Some("prompt"))
        .await
        .unwrap()
        .id()
        .clone();
    let mut first = one.get(&id).await.unwrap();
    let mut second = two.get(&id).await.unwrap();
    first.append(Message::user("from one")).unwrap();
    second.append(Message::user("from two")).unwrap();
    assert_eq!(first.commit().await.unwrap().merged, 0);
    assert_eq!(second.commit().await.unwrap().merged, 1);
    assert_eq!(texts(&second), ["prompt", "from one", "from two"]);
    assert_eq!(texts(&one.get(&id).await.unwrap()), texts(&second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_message_is_lost_when_many_tasks_commit_to_one_session() {
    let storage = MemoryStorage::new();
    let id = manager(&storage)
        .create("alice", None)
        .await
        .unwrap()
        .id()
        .clone();
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let (sessions, id) = (manager(&storage), id.clone());
            tokio::spawn(async move {
                let mut session = sessions.get(&id).await.unwrap();
                for turn in 0..50 {
                    session
                        .append(Message::user(format!("{task}-{turn}")))
                        .unwrap();
                    session.append(Message::assistant("answer")).unwrap();
                    session.commit().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let all = manager(&storage).stream(&id).await.unwrap();
    assert_eq!(all.len(), 400);
    let asked: HashSet<_> = all.iter().filter(|m| m.role == Role::User).collect_texts();
    assert_eq!(asked.len(), 200);
    // Messages of one commit stay together.
    assert!(all.chunks(2).all(|turn| turn[1].role == Role::Assistant));
}

trait CollectTexts {
    fn collect_texts(self) -> HashSet<String>;
}

impl<'a, I: Iterator<Item = &'a Message>> CollectTexts for I {
    fn collect_texts(self) -> HashSet<String> {
        self.filter_map(|m| m.content.clone()).collect()
    }
}

#[tokio::test]
async fn a_late_result_of_an_aborted_call_is_refused_and_kept() {
    let storage = MemoryStorage::new();
    let sessions = manager(&storage);
    let mut worker = sessions.create("alice", None).await.unwrap();
    worker.append(Message::user("go")).unwrap();
    worker.append(call("c1")).unwrap();
    worker.commit().await.unwrap();

    // Another process takes over, because it thinks that the worker is dead.
    let mut other = sessions.get(worker.id()).await.unwrap();
    assert!(matches!(
        other.append(Message::user("still there?")),
        Err(Error::OpenCalls { .. })
    ));
    let aborted = other.abort_open_calls();
    assert_eq!(aborted[0].call, "c1");
    other.append(Message::user("still there?")).unwrap();
    other.commit().await.unwrap();
    let view: Vec<Message> = other.messages().cloned().collect();
    acceptable(&view).unwrap();

    worker.append(result("c1")).unwrap();
    let error = worker.commit().await.unwrap_err();
    assert!(matches!(error, Error::AlreadyAnswered { call } if call == "c1"));
    assert_eq!(worker.uncommitted().len(), 1);
}

#[tokio::test]
async fn a_call_that_two_processes_abort_has_one_result() {
    let storage = MemoryStorage::new();
    let sessions = manager(&storage);
    let mut dead = sessions.create("alice", None).await.unwrap();
    dead.append(Message::user("go")).unwrap();
    dead.append(call("c1")).unwrap();
    dead.commit().await.unwrap();
    let mut one = sessions.get(dead.id()).await.unwrap();
    let mut two = sessions.get(dead.id()).await.unwrap();
    one.abort_open_calls();
    two.abort_open_calls();
    one.commit().await.unwrap();
    two.commit().await.unwrap();
    assert_eq!(sessions.stream(dead.id()).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_commit_after_the_end_does_not_bring_the_session_back() {
    let storage = MemoryStorage::new();
    let sessions = manager(&storage);
    let mut late = sessions.create("alice", None).await.unwrap();
    late.append(Message::user("hello")).unwrap();
    sessions.destroy(late.id()).await.unwrap();
    assert!(storage.list().await.unwrap().is_empty());
    assert!(matches!(
        late.commit().await,
        Err(Error::UnknownSession { .. })
    ));
    assert!(storage.list().await.unwrap().is_empty());
    assert_eq!(late.uncommitted().len(), 1);
}

#[tokio::test]
async fn a_commit_after_a_reset_does_not_mix_conversations() {
    let storage = MemoryStorage::new();
    let sessions = manager(&storage);
    let mut late = sessions.create("alice", Some("prompt")).await.unwrap();
    late.append(Message::user("old question")).unwrap();
    late.commit().await.unwrap();
    late.append(Message::assistant("old answer")).unwrap();
    let fresh = sessions.reset(late.id()).await.unwrap();
    assert_eq!(texts(&fresh), ["prompt"]);
    assert!(matches!(
        late.commit().await,
        Err(Error::SessionReset { .. })
    ));
    assert_eq!(texts(&sessions.get(late.id()).await.unwrap()), ["prompt"]);
}

#[tokio::test]
async fn trimming_changes_the_view_and_not_the_stream() {
    let storage = MemoryStorage::new();
    let state = StateManager::new(600).answer_tokens(100);
    let sessions = SessionManager::new(Arc::new(storage.clone()), state.clone());
    let mut session = sessions.create("alice", Some("prompt")).await.unwrap();
    let mut trims = 0;
    for n in 0..100 {
        session
            .append(Message::user(format!("question {n}")))
            .unwrap();
        session.append(call(&format!("c{n}"))).unwrap();
        session.append(result(&format!("c{n}"))).unwrap();
        session
            .append(Message::assistant(format!("answer {n}")))
            .unwrap();
        trims += usize::from(session.commit().await.unwrap().trimmed.messages > 0);
        assert!(session.conversation().tokens() <= state.budget());
    }
    assert!(trims > 5);
    let again = manager(&storage).get(session.id()).await.unwrap();
    let view: Vec<Message> = again.messages().cloned().collect();
    acceptable(&view).unwrap();
    assert!(view.len() < 100);
    let all = sessions.stream(session.id()).await.unwrap();
    assert_eq!(all.len(), 401);
    assert_eq!(all[0].content.as_deref(), Some("prompt"));
    assert_eq!(all[1].content.as_deref(), Some("question 0"));
    assert_eq!(&all[all.len() - 5..], &view[view.len() - 5..]);
}

#[tokio::test]
async fn a_turn_that_was_cut_inside_survives_a_restart() {
    let storage = MemoryStorage::new();
    let state = StateManager::new(700).answer_tokens(100);
    let sessions = SessionManager::new(Arc::new(storage.clone()), state);
    let mut session = sessions.create("alice", Some("prompt")).await.unwrap();
    session.append(Message::user("the task")).unwrap();
    for n in 0..60 {
        // Each round reads the session anew, as another process would.
        session.append(call(&format!("c{n}"))).unwrap();
        session.append(result(&format!("c{n}"))).unwrap();
        session.commit().await.unwrap();
        session = sessions.get(session.id()).await.unwrap();
        let view: Vec<Message> = session.messages().cloned().collect();
        acceptable(&view).unwrap();
        assert_eq!(view[1].content.as_deref(), Some("the task"));
    }
    assert!(session.conversation().history().first_seq() > 50);
    assert_eq!(sessions.stream(session.id()).await.unwrap().len(), 122);
}

/// A storage that a test can make lose answers and wait.
#[derive(Clone)]
struct Faulty {
    inner: MemoryStorage,
    /// How many saves will succeed but return an error.
    lose_answers: Arc<AtomicUsize>,
    /// The agent whose saves wait for `release`.
    held: Arc<Mutex<Option<AgentId>>>,
    release: Arc<Notify>,
    waiting: Arc<AtomicBool>,
    loads: Arc<AtomicUsize>,
}

impl Faulty {
    fn new() -> Self {
        Self {
            inner: MemoryStorage::new(),
            lose_answers: Arc::default(),
            held: Arc::default(),
            release: Arc::default(),
            waiting: Arc::default(),
            loads: Arc::default(),
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl SnapshotStorage for Faulty {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), StorageError> {
        let held = self.held.lock().unwrap().as_ref() == Some(&snapshot.agent_id);
        if held {
            self.waiting.store(true, Ordering::SeqCst);
            self.release.notified().await;
        }
        self.inner.save(snapshot).await?;
        let left = self.lose_answers.load(Ordering::SeqCst);
        if left > 0 {
            self.lose_answers.store(left - 1, Ordering::SeqCst);
            return Err(StorageError::Storage {
                action: "save",
                location: "test".into(),
                source: "the answer was lost".into(),
            });
        }
        Ok(())
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, StorageError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.inner.load(agent).await
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), StorageError> {
        self.inner.delete(agent).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, StorageError> {
        self.inner.list().await
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, StorageError> {
        self.inner.stream(agent, range).await
    }
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_not_stored_twice() {
    let storage = Faulty::new();
    let sessions = manager(&storage);
    let mut session = sessions.create("alice", None).await.unwrap();
    session.append(Message::user("once")).unwrap();
    storage.lose_answers.store(1, Ordering::SeqCst);
    assert!(session.commit().await.is_err());
    session.append(Message::assistant("and this")).unwrap();
    session.commit().await.unwrap();
    let all = sessions.stream(session.id()).await.unwrap();
    let texts: Vec<_> = all.iter().filter_map(|m| m.content.as_deref()).collect();
    assert_eq!(texts, ["once", "and this"]);
}

#[tokio::test]
async fn a_slow_save_delays_no_other_session() {
    let storage = Faulty::new();
    let sessions = manager(&storage);
    let mut slow = sessions.create("alice", None).await.unwrap();
    let mut fast = sessions.create("bob", None).await.unwrap();
    *storage.held.lock().unwrap() = Some(slow.id().agent().clone());
    slow.append(Message::user("slow")).unwrap();
    let waiting = tokio::spawn(async move { slow.commit().await.map(drop) });
    until(|| storage.waiting.load(Ordering::SeqCst)).await;
    for n in 0..10 {
        fast.append(Message::user(format!("{n}"))).unwrap();
        fast.commit().await.unwrap();
    }
    assert!(!waiting.is_finished());
    *storage.held.lock().unwrap() = None;
    storage.release.notify_one();
    waiting.await.unwrap().unwrap();
}

pub(crate) async fn until(condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "waited for 30 s");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn only_idle_sessions_are_ended() {
    let storage = MemoryStorage::new();
    let sessions = manager(&storage);
    let idle = sessions.create("alice", None).await.unwrap();
    let minutes = |n: u64| SystemTime::now() + Duration::from_secs(60 * n);
    assert!(
        sessions
            .expire_idle(minutes(29))
            .await
            .unwrap()
            .ended
            .is_empty()
    );
    let expired = sessions.expire_idle(minutes(31)).await.unwrap();
    assert_eq!(expired.ended, [idle.id().clone()]);
    assert!(sessions.get(idle.id()).await.is_err());
    assert!(storage.list().await.unwrap().is_empty());

    let short = manager(&storage).idle_timeout(Duration::from_secs(60));
    let active = short.create("bob", None).await.unwrap();
    assert!(
        short
            .expire_idle(SystemTime::now())
            .await
            .unwrap()
            .ended
            .is_empty()
    );
    assert_eq!(
        short.expire_idle(minutes(2)).await.unwrap().ended,
        [active.id().clone()]
    );
}

#[tokio::test]
async fn expiry_reads_a_session_in_use_once() {
    let storage = Faulty::new();
    let sessions = manager(&storage);
    for _ in 0..3 {
        sessions.create("alice", None).await.unwrap();
    }
    storage.loads.store(0, Ordering::SeqCst);
    let expired = sessions.expire_idle(SystemTime::now()).await.unwrap();
    assert!(expired.ended.is_empty());
    assert_eq!(storage.loads.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_session_that_is_used_while_it_expires_stays() {
    let storage = Faulty::new();
    let sessions = manager(&storage).idle_timeout(Duration::ZERO);
    let mut session = sessions.create("alice", None).await.unwrap();
    let id = session.id().clone();
    // The save that would end the session waits,
    *storage.held.lock().unwrap() = Some(id.agent().clone());
    let now = SystemTime::now() + Duration::from_millis(5);
    let expiring = {
        let sessions = sessions.clone();
        tokio::spawn(async move { sessions.expire_idle(now).await.unwrap() })
    };
    until(|| storage.waiting.load(Ordering::SeqCst)).await;
    *storage.held.lock().unwrap() = None;
    // until the user is back, after `now`. Sessions count milliseconds.
    until(|| SystemTime::now() > now + Duration::from_millis(2)).await;
    session.append(Message::user("I am back")).unwrap();
    session.commit().await.unwrap();
    storage.release.notify_one();
    let expired = expiring.await.unwrap();
    assert!(
        expired.ended.is_empty() && expired.failed.is_empty(),
        "{expired:?}"
    );
    assert_eq!(texts(&sessions.get(&id).await.unwrap()), ["I am back"]);
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_share_sessions_in_a_database() {
    use agent_snapshot::SqliteStorage;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let open = async || {
        let storage = SqliteStorage::open(&path).await.unwrap();
        SessionManager::new(Arc::new(storage), StateManager::new(100_000))
    };
    let managers = [open().await, open().await];
    let id = managers[0]
        .create("alice", Some("prompt"))
        .await
        .unwrap()
        .id()
        .clone();
    let tasks = managers.clone().map(|sessions| {
        let id = id.clone();
        tokio::spawn(async move {
            for turn in 0..20 {
                let mut session = sessions.get(&id).await.unwrap();
                session
                    .append(Message::user(format!("question {turn}")))
                    .unwrap();
                session.append(Message::assistant("answer")).unwrap();
                session.commit().await.unwrap();
            }
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(managers[1].stream(&id).await.unwrap().len(), 81);
    let fresh = managers[0].reset(&id).await.unwrap();
    assert_eq!(texts(&fresh), ["prompt"]);
    managers[1].destroy(&id).await.unwrap();
    assert!(managers[0].get(&id).await.is_err());
}
