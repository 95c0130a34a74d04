//! Storages that go back in time under a running agent: failover, restored backup, flush, eviction.
//! No message that survived is deleted, and the agent decides what happens next.

use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use agent_snapshot::conversation::Message;
use agent_snapshot::{
    AgentId, AgentSnapshot, AgentState, Error, MemoryStorage, Position, SnapshotStorage,
};

/// The number of messages in view. The others are only in the storage.
const WINDOW: usize = 20;

pub(crate) fn id() -> AgentId {
    AgentId::new("worker_007").unwrap()
}

pub(crate) async fn hydrate(storage: &Arc<dyn SnapshotStorage>) -> AgentState {
    AgentState::hydrate(storage.clone(), id()).await.unwrap().0
}

pub(crate) async fn one_tick(agent: &mut AgentState) -> Result<(), Error> {
    let mut tick = agent.begin_tick()?;
    let text = format!("message {}", tick.index());
    tick.history().push(Message::user(text));
    let dropped = tick.history().tail_len().saturating_sub(WINDOW);
    tick.history().drop_front(dropped);
    tick.reply("done");
    tick.commit().await.map(drop)
}

pub(crate) async fn work(agent: &mut AgentState, ticks: u64) {
    for _ in 0..ticks {
        one_tick(agent).await.unwrap();
    }
}

pub(crate) async fn stored_messages(storage: &Arc<dyn SnapshotStorage>) -> u64 {
    let stream = storage.stream(&id(), 0..u64::MAX).await.unwrap();
    for (n, (seq, message)) in stream.iter().enumerate() {
        assert_eq!(*seq, n as u64);
        let text = format!("message {}", seq + 1);
        assert_eq!(message.content.as_deref(), Some(text.as_str()));
    }
    stream.len() as u64
}

/// Checks a storage that has `survived` messages, while `agent` has committed more.
pub(crate) async fn nothing_is_deleted(
    storage: &Arc<dyn SnapshotStorage>,
    agent: &mut AgentState,
    survived: u64,
) {
    let before = Position::of(agent.snapshot());
    for _ in 0..3 {
        // The first attempt is a commit, the later ones are its repeats.
        let error = match one_tick(agent).await {
            Err(Error::InDoubt { .. }) => agent.retry_commit().await.unwrap_err(),
            result => result.unwrap_err(),
        };
        let Error::Rewound {
            committed, stored, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(*committed, before);
        assert_eq!(stored.map_or(0, |stored| stored.messages), survived);
        assert_eq!(stored_messages(storage).await, survived);
    }
    // Nothing is lost on the other side either.
    assert_eq!(Position::of(agent.snapshot()), before);
}

/// Restores the state of a storage at tick 300 while an agent has committed tick 500, twice: once
/// the agent adopts the older state, once it overwrites it.
async fn survives_a_restore(
    storage: Arc<dyn SnapshotStorage>,
    back_up: impl Fn(),
    restore: impl Fn(),
) {
    let mut agent = hydrate(&storage).await;
    work(&mut agent, 300).await;
    back_up();
    work(&mut agent, 200).await;
    restore();
    nothing_is_deleted(&storage, &mut agent, 300).await;
    agent.adopt_stored().await.unwrap();
    assert_eq!(agent.tick_index(), 300);
    work(&mut agent, 10).await;
    assert_eq!(stored_messages(&storage).await, 310);

    work(&mut agent, 100).await;
    restore();
    nothing_is_deleted(&storage, &mut agent, 300).await;
    let replies = agent.overwrite_stored().await.unwrap();
    assert_eq!(replies.len(), 1);
    assert_eq!(agent.tick_index(), 411);
    work(&mut agent, 5).await;
    let loaded = storage.load(&id()).await.unwrap().unwrap();
    assert_eq!(&loaded, agent.snapshot());
}

#[tokio::test]
async fn an_agent_survives_a_restored_memory_storage() {
    let storage = MemoryStorage::new();
    let backup = MemoryStorage::new();
    let shared = Arc::new(storage.clone());
    let back_up = || backup.rewind_to(&storage);
    survives_a_restore(shared, back_up, || storage.rewind_to(&backup)).await;
}

#[tokio::test]
async fn an_overwrite_fences_off_a_holder_of_the_older_state() {
    let memory = MemoryStorage::new();
    let storage: Arc<dyn SnapshotStorage> = Arc::new(memory.clone());
    let mut first = hydrate(&storage).await;
    work(&mut first, 5).await;
    let backup = memory.backup();
    // The epoch of this hydration is lost, and the next one takes the same number.
    let mut first = hydrate(&storage).await;
    work(&mut first, 5).await;
    memory.rewind_to(&backup);
    let mut second = hydrate(&storage).await;
    assert_eq!(second.snapshot().epoch, first.snapshot().epoch);
    assert!(one_tick(&mut first).await.unwrap_err().is_rewound());
    first.overwrite_stored().await.unwrap();
    let refused = one_tick(&mut second).await.unwrap_err();
    assert!(refused.is_fenced(), "{refused}");
}

/// A storage whose next load is disturbed.
#[derive(Clone, Debug, Default)]
struct DisturbedStorage {
    memory: MemoryStorage,
    next_load: Arc<Mutex<Option<Disturbance>>>,
}

#[derive(Debug)]
enum Disturbance {
    NeverAnswers,
    /// The storage goes back in time directly after the load.
    RewindsTo(MemoryStorage),
    /// Another process deletes the agent directly after the load.
    Deletes,
    /// Another process saves after the load.
    Saves(Box<AgentSnapshot>),
}

impl DisturbedStorage {
    fn disturb(&self, disturbance: Disturbance) {
        *self.next_load.lock().unwrap() = Some(disturbance);
    }
}

#[async_trait::async_trait]
impl SnapshotStorage for DisturbedStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        self.memory.save(snapshot).await
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let disturbance = self.next_load.lock().unwrap().take();
        let loaded = self.memory.load(agent).await;
        match disturbance {
            Some(Disturbance::NeverAnswers) => std::future::pending().await,
            Some(Disturbance::RewindsTo(backup)) => {
                self.memory.rewind_to(&backup);
                loaded
            }
            Some(Disturbance::Saves(snapshot)) => {
                self.memory.save(&snapshot).await?;
                loaded
            }
            Some(Disturbance::Deletes) => {
                // Not through `memory`: it would know that it deleted the agent itself.
                let other_process = self.memory.backup();
                other_process.delete(agent).await?;
                self.memory.rewind_to(&other_process);
                loaded
            }
            None => loaded,
        }
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.memory.delete(agent).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        self.memory.list().await
    }

    async fn overwrite(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        self.memory.overwrite(snapshot).await
    }
}

#[tokio::test]
async fn a_cancelled_overwrite_keeps_the_refused_commit() {
    let disturbed = DisturbedStorage::default();
    let storage: Arc<dyn SnapshotStorage> = Arc::new(disturbed.clone());
    let mut agent = hydrate(&storage).await;
    work(&mut agent, 5).await;
    let backup = disturbed.memory.backup();
    work(&mut agent, 5).await;
    disturbed.memory.rewind_to(&backup);
    assert!(one_tick(&mut agent).await.unwrap_err().is_rewound());

    disturbed.disturb(Disturbance::NeverAnswers);
    tokio::select! {
        biased;
        result = agent.overwrite_stored() => panic!("{result:?}"),
        () = std::future::ready(()) => {}
    }
    assert!(matches!(agent.begin_tick(), Err(Error::InDoubt { .. })));
    assert_eq!(agent.overwrite_stored().await.unwrap().len(), 1);
    assert_eq!(agent.tick_index(), 11);
}

#[tokio::test]
async fn a_rewind_during_a_hydration_is_tried_again() {
    let disturbed = DisturbedStorage::default();
    let storage: Arc<dyn SnapshotStorage> = Arc::new(disturbed.clone());
    let mut agent = hydrate(&storage).await;
    work(&mut agent, 5).await;
    let backup = disturbed.memory.backup();
    work(&mut agent, 5).await;
    disturbed.disturb(Disturbance::RewindsTo(backup));
    let agent = hydrate(&storage).await;
    assert_eq!(agent.tick_index(), 5);
}

#[tokio::test]
async fn a_delete_during_a_hydration_leaves_a_blank_agent_that_is_fenced() {
    let disturbed = DisturbedStorage::default();
    let storage: Arc<dyn SnapshotStorage> = Arc::new(disturbed.clone());
    let mut agent = hydrate(&storage).await;
    work(&mut agent, 5).await;
    let epoch = agent.snapshot().epoch;
    disturbed.disturb(Disturbance::Deletes);
    let mut agent = hydrate(&storage).await;
    assert_eq!(agent.tick_index(), 0);
    assert!(agent.snapshot().epoch > epoch);
    work(&mut agent, 1).await;
}

/// The snapshot has no numbered message, so the save of a blank state would not be `Rewound`.
#[tokio::test]
async fn a_first_save_during_a_hydration_is_not_overwritten() {
    for epoch_of_a_deleted_agent in [0, 7] {
        let disturbed = DisturbedStorage::default();
        let storage: Arc<dyn SnapshotStorage> = Arc::new(disturbed.clone());
        let mut prepared = AgentSnapshot::new(id());
        prepared.epoch = epoch_of_a_deleted_agent;
        storage.save(&prepared).await.unwrap();
        storage.delete(&id()).await.unwrap();

        let variables = &mut prepared.memory.working_variables;
        variables.insert("role".to_owned(), "reviewer".into());
        disturbed.disturb(Disturbance::Saves(Box::new(prepared)));
        let agent = hydrate(&storage).await;
        assert_eq!(agent.variables()["role"], "reviewer");
        assert!(agent.snapshot().epoch > epoch_of_a_deleted_agent);
    }
}

/// The server was flushed, and another process makes its first save there.
#[tokio::test]
async fn a_first_save_during_an_adoption_is_not_overwritten() {
    let disturbed = DisturbedStorage::default();
    let storage: Arc<dyn SnapshotStorage> = Arc::new(disturbed.clone());
    let mut agent = hydrate(&storage).await;
    work(&mut agent, 5).await;
    let epoch = agent.snapshot().epoch;
    disturbed.memory.rewind_to(&MemoryStorage::new());
    assert!(one_tick(&mut agent).await.unwrap_err().is_rewound());

    let mut prepared = AgentSnapshot::new(id());
    let variables = &mut prepared.memory.working_variables;
    variables.insert("role".to_owned(), "reviewer".into());
    disturbed.disturb(Disturbance::Saves(Box::new(prepared)));
    agent.adopt_stored().await.unwrap();
    assert_eq!(agent.variables()["role"], "reviewer");
    assert!(agent.snapshot().epoch > epoch);
}

/// Polls a future `polls` times and then drops it.
async fn cancelled<T>(future: impl Future<Output = T>, polls: usize) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let is_done = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if is_done {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// The addresses of storages that need no server.
fn local_urls(folder: &Path) -> Vec<String> {
    let folder = folder.display();
    let urls = [
        ("memory:".to_owned(), true),
        (format!("file:{folder}/files"), cfg!(feature = "file")),
        (
            format!("sqlite:{folder}/agents.db"),
            cfg!(feature = "sqlite"),
        ),
    ];
    let enabled = urls.into_iter().filter(|(_, is_on)| *is_on);
    enabled.map(|(url, _)| url).collect()
}

/// A cancelled save may be stored, also after the next one has begun. The stored messages are then
/// those of the same snapshot object, which may replace them.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_can_be_replaced_after_a_cancelled_save() {
    let folder = tempfile::tempdir().unwrap();
    for url in local_urls(folder.path()) {
        let storage = agent_snapshot::open_storage(&url).await.unwrap();
        for n in 0..40 {
            let agent = AgentId::new(format!("agent {n}")).unwrap();
            let mut snapshot = AgentSnapshot::new(agent);
            snapshot
                .memory
                .short_term_history
                .push(Message::user("one"));
            cancelled(storage.save(&snapshot), n % 5).await;
            snapshot.tick_index += 1;
            let other = [Message::user("other")];
            snapshot.memory.short_term_history = other.into_iter().collect();
            let saved = storage.save(&snapshot).await;
            saved.unwrap_or_else(|error| panic!("{url}, {} polls: {error}", n % 5));
            let stored = storage.load(&snapshot.agent_id).await.unwrap();
            assert_eq!(stored, Some(snapshot), "{url}");
        }
    }
}

/// A cancelled expiry may have deleted the agent. The storage has not gone back in time then.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_can_be_saved_after_a_cancelled_expiry() {
    let folder = tempfile::tempdir().unwrap();
    for url in local_urls(folder.path()) {
        let storage = agent_snapshot::open_storage(&url).await.unwrap();
        for n in 0..48 {
            let mut snapshot = AgentSnapshot::new(AgentId::new(format!("agent {n}")).unwrap());
            storage.save(&snapshot).await.unwrap();
            let polls = 1 << (n % 12);
            cancelled(storage.expire(Duration::ZERO), polls).await;
            snapshot.tick_index += 1;
            let saved = storage.save(&snapshot).await;
            saved.unwrap_or_else(|error| panic!("{url}, {polls} polls: {error}"));
            storage.delete(&snapshot.agent_id).await.unwrap();
        }
    }
}

#[cfg(feature = "file")]
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_survives_restored_files() {
    use std::process::Command;

    let folder = tempfile::tempdir().unwrap();
    let (live, backup) = (folder.path().join("live"), folder.path().join("backup"));
    let storage = agent_snapshot::FileStorage::open(&live).await.unwrap();
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let _ = std::fs::remove_dir_all(to);
        let mut command = Command::new("cp");
        assert!(
            command
                .arg("-rp")
                .arg(from)
                .arg(to)
                .status()
                .unwrap()
                .success()
        );
    };
    let back_up = || copy(&live, &backup);
    survives_a_restore(Arc::new(storage), back_up, || copy(&backup, &live)).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_survives_a_restored_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let storage = agent_snapshot::SqliteStorage::open(&path).await.unwrap();
    let back_up = || crate::sqlite::back_up(&path);
    survives_a_restore(Arc::new(storage), back_up, || crate::sqlite::restore(&path)).await;
}

/// The file of an open database is replaced by a copy, as `cp` and `mv` do it.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_survives_a_replaced_database_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let storage = agent_snapshot::SqliteStorage::open(&path).await.unwrap();
    let back_up = || crate::sqlite::back_up(&path);
    let replace = || {
        for ending in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{ending}", path.display()));
        }
        std::fs::copy(path.with_extension("backup"), &path).unwrap();
    };
    survives_a_restore(Arc::new(storage), back_up, replace).await;
}

#[cfg(feature = "redis")]
mod redis {
    use std::time::Duration;

    use agent_snapshot::RedisStorage;

    use super::*;
    use crate::redis_server::RedisServer;

    /// The address of the writer is a link to the socket of the primary, and later to that of the
    /// replica.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_agent_survives_a_failover_that_loses_saves() {
        let mut primary = RedisServer::start_on_loopback();
        let replica = RedisServer::start();
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("redis.sock");
        std::os::unix::fs::symlink(primary.socket(), &link).unwrap();
        let port = primary.port().to_string();
        replica.command(&["REPLICAOF", "127.0.0.1", &port]);
        let url = format!("redis+unix://{}", link.display());
        let storage: Arc<dyn SnapshotStorage> =
            Arc::new(RedisStorage::connect(&url).await.unwrap());
        let mut agent = hydrate(&storage).await;
        work(&mut agent, 300).await;
        let survived = async || {
            let fresh = RedisStorage::connect(&replica.url()).await.unwrap();
            let stored = fresh.load(&id()).await.unwrap();
            stored.map_or(0, |stored| stored.tick_index)
        };
        let following = async {
            while survived().await < 300 {
                tokio::task::yield_now().await;
            }
        };
        let followed = tokio::time::timeout(Duration::from_secs(60), following).await;
        followed.expect("the replica follows");
        // The replica is promoted before the primary dies, so the last saves are lost.
        replica.command(&["REPLICAOF", "NO", "ONE"]);
        work(&mut agent, 200).await;
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(replica.socket(), &link).unwrap();
        primary.kill();

        nothing_is_deleted(&storage, &mut agent, 300).await;
        agent.adopt_stored().await.unwrap();
        work(&mut agent, 10).await;
        assert_eq!(stored_messages(&storage).await, 310);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_agent_survives_a_flushed_server() {
        let server = RedisServer::start();
        let storage = RedisStorage::connect(&server.url()).await.unwrap();
        let storage: Arc<dyn SnapshotStorage> = Arc::new(storage);
        let mut agent = hydrate(&storage).await;
        work(&mut agent, 300).await;
        server.command(&["FLUSHALL"]);
        nothing_is_deleted(&storage, &mut agent, 0).await;
        agent.overwrite_stored().await.unwrap();
        work(&mut agent, 5).await;
        let loaded = storage.load(&id()).await.unwrap().unwrap();
        assert_eq!(&loaded, agent.snapshot());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_evicted_record_is_damage_and_not_a_blank_agent() {
        let server = RedisServer::start();
        let storage = RedisStorage::connect(&server.url()).await.unwrap();
        let storage: Arc<dyn SnapshotStorage> = Arc::new(storage);
        let mut agent = hydrate(&storage).await;
        work(&mut agent, 30).await;
        // As `allkeys-lru` does it.
        server.command(&["DEL", "agent-snapshot:{worker_007}"]);
        let error = one_tick(&mut agent).await.unwrap_err();
        assert!(error.is_rewound() || error.is_damaged(), "{error}");
        let fresh = RedisStorage::connect(&server.url()).await.unwrap();
        assert!(fresh.load(&id()).await.unwrap_err().is_damaged());
        let refused = AgentState::hydrate(Arc::new(fresh), id()).await;
        assert!(refused.unwrap_err().is_damaged());
        let kept = server.command(&["LLEN", "agent-snapshot:{worker_007}:messages"]);
        assert_eq!(kept, ::redis::Value::Int(30));
    }
}
