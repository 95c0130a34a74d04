//! Copies between backends, backups, forks.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use agent_snapshot::conversation::Message;
use agent_snapshot::{
    AgentId, AgentSnapshot, AgentState, Error, MemoryStorage, SnapshotStorage, copy, fork, verify,
};
use async_trait::async_trait;
use serde_json::json;

fn id(name: &str) -> AgentId {
    AgentId::new(name).unwrap()
}

/// Agents with hidden messages, a summary, a capped stream, labels, events and a long id.
async fn filled() -> MemoryStorage {
    let storage = MemoryStorage::new();
    for (n, name) in ["plain", "日本", &"long".repeat(60)]
        .into_iter()
        .enumerate()
    {
        let shared = Arc::new(storage.clone());
        let (mut agent, _) = AgentState::hydrate(shared, id(name)).await.unwrap();
        for turn in 0..50 * n {
            let mut tick = agent.begin_tick().unwrap();
            tick.history().pin(vec![Message::system("Be brief.")]);
            tick.history().push(Message::user(format!("質問 {turn}")));
            let extra = tick.history().tail_len().saturating_sub(7);
            tick.history().drop_front(extra);
            tick.history().set_summary(Some(Message::system("summary")));
            tick.variables().insert("turn".into(), json!(turn));
            tick.reply("answer");
            tick.commit().await.unwrap();
        }
    }
    storage
        .cap_stream(&id(&"long".repeat(60)), 40)
        .await
        .unwrap();
    let mut labelled = AgentSnapshot::new(id("labelled"));
    labelled.labels.insert("project".into(), "atlas".into());
    storage.save(&labelled).await.unwrap();
    storage
}

async fn is_same(one: &dyn SnapshotStorage, two: &dyn SnapshotStorage) {
    assert_eq!(verify(one, two).await.unwrap(), []);
    assert_eq!(one.list().await.unwrap(), two.list().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_backend_is_copied_to_the_next_one() {
    #[cfg(any(feature = "file", feature = "sqlite"))]
    let folder = tempfile::tempdir().unwrap();
    #[cfg(feature = "redis")]
    let redis = crate::redis_server::RedisServer::start();
    #[cfg(feature = "postgres")]
    let postgres = crate::postgres_server::PostgresServer::start_with(&["fsync=off"]);
    let urls: Vec<String> = vec![
        #[cfg(feature = "file")]
        format!("file:{}/files", folder.path().display()),
        #[cfg(feature = "sqlite")]
        format!("sqlite:{}/agents.db", folder.path().display()),
        #[cfg(feature = "redis")]
        redis.url(),
        #[cfg(feature = "postgres")]
        postgres.url(),
        "memory:".to_owned(),
    ];
    let first = filled().await;
    let mut from: Arc<dyn SnapshotStorage> = Arc::new(first.clone());
    for url in urls {
        let to = agent_snapshot::open_storage(&url).await.unwrap();
        let report = copy(&*from, &*to).await.unwrap();
        assert_eq!((report.agents, report.messages), (4, 90), "{url}");
        is_same(&first, &*to).await;
        // An interrupted copy can be repeated.
        assert_eq!(copy(&*from, &*to).await.unwrap(), report, "{url}");
        from = to;
    }
    // An agent continues on the copy.
    let (mut agent, recovery) = AgentState::hydrate(from.clone(), id("日本")).await.unwrap();
    assert_eq!(recovery.unsent.len(), 50);
    let mut tick = agent.begin_tick().unwrap();
    tick.history().push(Message::user("more"));
    tick.commit().await.unwrap();
    let stream = from.stream(&id("日本"), 0..u64::MAX).await.unwrap();
    assert_eq!(stream.len(), 51);
}

#[tokio::test]
async fn a_copy_overwrites_nothing() {
    let (from, to) = (MemoryStorage::new(), MemoryStorage::new());
    let mut old = AgentSnapshot::new(id("a"));
    old.tick_index = 5;
    old.memory.short_term_history.push(Message::user("one"));
    from.save(&old).await.unwrap();
    let mut newer = old.clone();
    newer.tick_index = 9;
    to.save(&newer).await.unwrap();
    assert!(copy(&from, &to).await.unwrap_err().is_conflict());
    assert_eq!(to.load(&id("a")).await.unwrap(), Some(newer));

    let other = MemoryStorage::new();
    let mut unrelated = AgentSnapshot::new(id("a"));
    unrelated
        .memory
        .short_term_history
        .push(Message::user("other"));
    other.save(&unrelated).await.unwrap();
    assert!(copy(&from, &other).await.unwrap_err().is_rewound());
    assert_eq!(other.load(&id("a")).await.unwrap(), Some(unrelated));
}

#[tokio::test]
async fn a_copy_of_a_stream_that_was_capped_since_is_refused() {
    let (from, to) = (MemoryStorage::new(), MemoryStorage::new());
    let mut snapshot = AgentSnapshot::new(id("a"));
    let push = |snapshot: &mut AgentSnapshot| {
        let history = &mut snapshot.memory.short_term_history;
        history.push(Message::user(history.next_seq().to_string()));
    };
    for _ in 0..4 {
        push(&mut snapshot);
    }
    snapshot.memory.short_term_history.drop_front(3);
    from.save(&snapshot).await.unwrap();
    copy(&from, &to).await.unwrap();
    assert_eq!(from.cap_stream(&id("a"), 2).await.unwrap(), 2);
    assert!(copy(&from, &to).await.unwrap_err().is_conflict());
    snapshot.tick_index += 1;
    push(&mut snapshot);
    from.save(&snapshot).await.unwrap();
    assert!(copy(&from, &to).await.unwrap_err().is_rewound());
    to.delete(&id("a")).await.unwrap();
    assert_eq!(copy(&from, &to).await.unwrap().messages, 3);
}

/// Another process deletes or replaces the agent between the two reads of a copy.
#[derive(Debug)]
struct ChangedMeanwhile {
    storage: MemoryStorage,
    replacement: Option<AgentSnapshot>,
}

#[async_trait]
impl SnapshotStorage for ChangedMeanwhile {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        self.storage.save(snapshot).await
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        self.storage.load(agent).await
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.storage.delete(agent).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        self.storage.list().await
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        match &self.replacement {
            Some(replacement) => self.storage.overwrite(replacement).await?,
            None => self.storage.delete(agent).await?,
        }
        self.storage.stream(agent, range).await
    }
}

#[tokio::test]
async fn an_agent_that_is_deleted_during_the_copy_is_not_damaged() {
    let from = ChangedMeanwhile {
        storage: filled().await,
        replacement: None,
    };
    let report = copy(&from, &MemoryStorage::new()).await.unwrap();
    assert_eq!(report.damaged, []);
    // The agents without a message: their stream is as empty as before.
    assert_eq!((report.agents, report.messages), (2, 0));
}

#[tokio::test]
async fn an_agent_that_replaces_its_history_during_the_copy_is_copied_at_one_tick() {
    let (storage, to) = (MemoryStorage::new(), MemoryStorage::new());
    let with_text = |tick, text: &str| {
        let mut snapshot = AgentSnapshot::new(id("a"));
        snapshot.tick_index = tick;
        snapshot.memory.short_term_history.push(Message::user(text));
        snapshot
    };
    storage.save(&with_text(1, "old")).await.unwrap();
    let replacement = Some(with_text(2, "new"));
    let from = ChangedMeanwhile {
        storage,
        replacement,
    };
    copy(&from, &to).await.unwrap();
    assert_eq!(to.load(&id("a")).await.unwrap(), from.replacement);
}

/// A move to another storage must not delete agents that the old one would have kept.
#[tokio::test]
async fn a_copy_starts_the_time_of_retention_anew_and_keeps_the_timestamp() {
    let (from, to) = (MemoryStorage::new(), MemoryStorage::new());
    let mut snapshot = AgentSnapshot::new(id("a"));
    snapshot.set_timestamp(std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    from.save(&snapshot).await.unwrap();
    let hour = Duration::from_secs(3600);
    from.age(&id("a"), 2 * hour);
    copy(&from, &to).await.unwrap();
    assert_eq!(to.expire(hour).await.unwrap(), []);
    assert_eq!(to.load(&id("a")).await.unwrap(), Some(snapshot));
    // No further back than 1970.
    from.age(&id("a"), Duration::MAX);
    assert_eq!(from.expire(hour).await.unwrap(), [id("a")]);
}

#[cfg(feature = "file")]
#[tokio::test]
async fn a_backup_is_plain_json_and_can_be_restored() {
    use agent_snapshot::{backup, restore};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backup");
    let storage = filled().await;
    assert_eq!(backup(&storage, &path).await.unwrap().agents, 4);
    let json = std::fs::read_to_string(path.join("labelled.json")).unwrap();
    assert!(
        json.contains("\"labels\":{\"project\":\"atlas\"}"),
        "{json}"
    );
    let error = backup(&storage, &path).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");

    let fresh = MemoryStorage::new();
    assert_eq!(restore(&path, &fresh).await.unwrap().agents, 4);
    is_same(&storage, &fresh).await;
    let missing = restore(folder.path().join("none"), &fresh).await;
    assert!(matches!(missing.unwrap_err(), Error::Invalid { .. }));
}

#[cfg(feature = "file")]
#[tokio::test]
async fn a_damaged_agent_is_reported_and_the_others_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let files = agent_snapshot::FileStorage::open(folder.path())
        .await
        .unwrap();
    copy(&filled().await, &files).await.unwrap();
    std::fs::write(folder.path().join("labelled.json"), "{").unwrap();
    let to = MemoryStorage::new();
    let report = copy(&files, &to).await.unwrap();
    assert_eq!(report.agents, 3);
    assert_eq!(report.damaged, [id("labelled")]);
    assert_eq!(verify(&files, &to).await.unwrap(), [id("labelled")]);
}

#[tokio::test]
async fn a_fork_has_the_messages_before_its_point() {
    let storage = filled().await;
    let mut source = storage.load(&id("日本")).await.unwrap().unwrap();
    source.revision += 1;
    for extra in [&mut source.extra, &mut source.memory.extra] {
        extra.insert("later".into(), json!(1));
    }
    storage.save(&source).await.unwrap();
    let texts = |snapshot: &AgentSnapshot| -> Vec<String> {
        let history = &snapshot.memory.short_term_history;
        let tail = history.tail().map(|(_, message)| message.content.clone());
        tail.map(Option::unwrap).collect()
    };
    // In view are 43 to 49.
    let late = fork(&storage, &id("日本"), 45, id("late")).await.unwrap();
    assert_eq!(texts(&late), ["質問 43", "質問 44"]);
    assert_eq!(
        late.memory.short_term_history.summary(),
        source.memory.short_term_history.summary()
    );
    assert_eq!(
        late.memory.working_variables,
        source.memory.working_variables
    );
    assert_eq!(late.extra, source.extra);
    assert_eq!(late.memory.extra, source.memory.extra);
    assert!(late.outbox.is_empty());

    let mut early = fork(&storage, &id("日本"), 2, id("early")).await.unwrap();
    assert_eq!(texts(&early), ["質問 0", "質問 1"]);
    // The variables of today: the storage has no earlier ones. The caller may set others.
    assert_eq!(early.memory.working_variables["turn"], 49);
    early.tick_index += 1;
    early
        .memory
        .working_variables
        .insert("turn".into(), json!(1));
    storage.save(&early).await.unwrap();
    let history = &early.memory.short_term_history;
    assert_eq!((history.pinned().len(), history.summary()), (1, None));
    assert_eq!(storage.load(&id("early")).await.unwrap(), Some(early));
    let stream = storage.stream(&id("late"), 0..u64::MAX).await.unwrap();
    assert_eq!(stream.len(), 45);
    // The source is as it was.
    assert_eq!(storage.load(&id("日本")).await.unwrap(), Some(source));

    for (at, new) in [(51, "x"), (0, "early")] {
        let error = fork(&storage, &id("日本"), at, id(new)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    assert!(fork(&storage, &id("none"), 0, id("x")).await.is_err());
}
