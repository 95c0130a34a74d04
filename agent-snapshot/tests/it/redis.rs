//! RedisStorage against real servers.

use std::time::{Duration, Instant};

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, Error, RedisStorage, SnapshotStorage};

use crate::redis_server::{RedisCluster, RedisServer};

fn tick(snapshot: &mut AgentSnapshot) {
    snapshot.tick_index += 1;
    let text = format!("tick {}", snapshot.tick_index);
    snapshot.memory.short_term_history.push(Message::user(text));
}

fn blank(name: &str) -> AgentSnapshot {
    AgentSnapshot::new(AgentId::new(name).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_is_reconnected() {
    let mut server = RedisServer::start();
    let storage = RedisStorage::connect(&server.url()).await.unwrap();
    let mut snapshot = blank("a");
    for round in 0..3 {
        for _ in 0..5 {
            tick(&mut snapshot);
            storage.save(&snapshot).await.unwrap();
        }
        if round % 2 == 0 {
            server.command(&["CONFIG", "SET", "maxmemory", "0"]);
            server.kill();
        } else {
            server.kill();
        }
        server.restart();
        assert_eq!(
            storage.load(&snapshot.agent_id).await.unwrap().as_ref(),
            Some(&snapshot)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_in_the_middle_loses_no_acknowledged_save() {
    let mut server = RedisServer::start();
    let storage = RedisStorage::connect(&server.url()).await.unwrap();
    let (acknowledged, mut seen) = tokio::sync::watch::channel(blank("a"));
    let saving = tokio::spawn(async move {
        let mut snapshot = blank("a");
        while snapshot.tick_index < 400 {
            tick(&mut snapshot);
            // The outcome of a failed save is unknown, so the same save is repeated.
            while let Err(error) = storage.save(&snapshot).await {
                assert!(matches!(error, Error::Storage { .. }), "{error}");
            }
            acknowledged.send(snapshot.clone()).unwrap();
        }
        storage
    });
    for limit in [30, 120, 250] {
        seen.wait_for(|snapshot| snapshot.tick_index >= limit)
            .await
            .unwrap();
        server.kill();
        let before = seen.borrow().clone();
        server.restart();
        let fresh = RedisStorage::connect(&server.url()).await.unwrap();
        let stored = fresh.load(&before.agent_id).await.unwrap().unwrap();
        assert!(stored.tick_index >= before.tick_index);
        assert_eq!(
            stored.memory.short_term_history.next_seq(),
            stored.tick_index
        );
    }
    let storage = saving.await.unwrap();
    let stream = storage
        .stream(&AgentId::new("a").unwrap(), 0..u64::MAX)
        .await
        .unwrap();
    assert_eq!(stream.len(), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_an_error_that_names_it() {
    let mut server = RedisServer::start();
    let storage = RedisStorage::connect(&server.url()).await.unwrap();
    server.kill();
    let error = storage.load(&AgentId::new("a").unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Storage { .. }));
    assert!(error.to_string().contains("redis.sock"), "{error}");
    let error = RedisStorage::connect(&server.url()).await.unwrap_err();
    assert!(error.to_string().contains("cannot connect to"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_spread_over_a_cluster() {
    let cluster = RedisCluster::start();
    let storage = RedisStorage::connect(&cluster.url()).await.unwrap();
    let mut agents = Vec::new();
    for n in 0..30 {
        let mut snapshot = blank(&format!("agent {n}"));
        for _ in 0..3 {
            tick(&mut snapshot);
            storage.save(&snapshot).await.unwrap();
        }
        if n % 2 == 0 {
            // More messages than fit into one packet.
            for _ in 0..100 {
                tick(&mut snapshot);
            }
            storage.save(&snapshot).await.unwrap();
        }
        agents.push(snapshot);
    }
    let other = RedisStorage::connect(&cluster.url()).await.unwrap();
    for snapshot in &agents {
        assert_eq!(
            other.load(&snapshot.agent_id).await.unwrap().as_ref(),
            Some(snapshot)
        );
        let stale = storage.save(&blank(snapshot.agent_id.as_str())).await;
        assert!(stale.unwrap_err().is_conflict());
    }
    assert_eq!(other.list().await.unwrap().len(), 30);
    assert!(
        cluster.sizes().iter().all(|size| *size > 4),
        "{:?}",
        cluster.sizes()
    );
    for snapshot in &agents {
        storage.delete(&snapshot.agent_id).await.unwrap();
    }
    assert_eq!(other.list().await.unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_lose_data_is_reported() {
    let unsafe_server = RedisServer::start_with(&[
        "--appendonly",
        "no",
        "--save",
        "",
        "--maxmemory",
        "100mb",
        "--maxmemory-policy",
        "allkeys-lru",
    ]);
    let storage = RedisStorage::connect(&unsafe_server.url()).await.unwrap();
    let warnings = storage.warnings().join("\n");
    assert!(
        warnings.contains("allkeys-lru") && warnings.contains("appendonly no"),
        "{warnings}"
    );

    let safe_server = RedisServer::start();
    let storage = RedisStorage::connect(&safe_server.url()).await.unwrap();
    assert_eq!(storage.warnings(), [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_expires_when_asked_to() {
    let server = RedisServer::start();
    let builder = RedisStorage::builder(&server.url());
    let storage = builder
        .ttl(Duration::from_millis(500))
        .connect()
        .await
        .unwrap();
    let mut snapshot = blank("a");
    tick(&mut snapshot);
    storage.save(&snapshot).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while storage.load(&snapshot.agent_id).await.unwrap().is_some() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(storage.list().await.unwrap(), []);
    // The cached stamp of the expired agent does not prevent a new start.
    storage.save(&blank("a")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_damage_is_an_error_and_is_kept_aside() {
    let server = RedisServer::start();
    let key = "agent-snapshot:{a}";
    let list = "agent-snapshot:{a}:messages";
    let kinds = [
        &["SET", key, "text"][..],
        &["HSET", key, "stamp", "1 2 3"],
        &["HSET", key, "state", "{}"],
        &["HDEL", key, "head"],
        &["DEL", list],
        &["LPOP", list],
        &["LSET", list, "1", "{\"role\":\"user\"}"],
        &["SET", list, "text"],
    ];
    for damage in kinds {
        let storage = RedisStorage::connect(&server.url()).await.unwrap();
        let mut snapshot = blank("a");
        for _ in 0..3 {
            tick(&mut snapshot);
        }
        storage.save(&snapshot).await.unwrap();
        server.command(damage);
        let storage = RedisStorage::connect(&server.url()).await.unwrap();
        let error = storage.load(&snapshot.agent_id).await.unwrap_err();
        assert!(error.is_damaged(), "{damage:?}: {error}");
        tick(&mut snapshot);
        let error = storage.save(&snapshot).await.unwrap_err();
        assert!(error.is_damaged(), "{damage:?}: {error}");
        storage.delete(&snapshot.agent_id).await.unwrap();
        assert_eq!(
            storage.load(&snapshot.agent_id).await.unwrap(),
            None,
            "{damage:?}"
        );
        let kept = format!("{:?}", server.command(&["KEYS", "*damaged*"]));
        assert!(kept.contains("damaged"), "{damage:?}");
        server.command(&["FLUSHALL"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_does_not_start_at_its_stamp_is_damaged() {
    let server = RedisServer::start();
    let storage = RedisStorage::connect(&server.url()).await.unwrap();
    let mut snapshot = blank("a");
    tick(&mut snapshot);
    storage.save(&snapshot).await.unwrap();
    server.command(&["HDEL", "agent-snapshot:{a}", "start"]);
    let stream = storage.stream(&snapshot.agent_id, 0..9);
    let stream = tokio::time::timeout(Duration::from_secs(60), stream).await;
    let error = stream.expect("it ends").unwrap_err();
    assert!(error.is_damaged(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_during_saves_returns_one_saved_state() {
    let server = RedisServer::start();
    let storage = RedisStorage::connect(&server.url()).await.unwrap();
    let mut snapshot = blank("a");
    for _ in 0..200 {
        tick(&mut snapshot);
    }
    let agent = snapshot.agent_id.clone();
    storage.save(&snapshot).await.unwrap();
    let saving = tokio::spawn({
        let storage = storage.clone();
        async move {
            for round in 0..300 {
                if round % 3 == 0 {
                    // Another history: it replaces the stream.
                    let history = (0..200).map(|n| Message::user(format!("{round}, {n}")));
                    snapshot.memory.short_term_history = history.collect();
                }
                tick(&mut snapshot);
                storage.save(&snapshot).await.unwrap();
            }
        }
    });
    while !saving.is_finished() {
        let loaded = storage.load(&agent).await.unwrap().unwrap();
        let last = loaded.memory.short_term_history.iter().next_back().unwrap();
        let tick = format!("tick {}", loaded.tick_index);
        assert_eq!(last.content.as_deref(), Some(&*tick));
    }
    saving.await.unwrap();
}

#[tokio::test]
async fn an_invalid_address_is_an_error_without_its_password() {
    for url in ["http://user:secret@host", "redis://user:secret@host:port"] {
        let error = RedisStorage::connect(url).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let builder = RedisStorage::builder("redis://user:secret@host");
    assert!(!format!("{builder:?}").contains("secret"));
    assert!(builder.prefix("a{b}").connect().await.is_err());
    let builder = RedisStorage::builder("redis+unix:///run/x.sock?pass=secret");
    assert!(!format!("{builder:?}").contains("secret"));
}

#[tokio::test]
async fn a_password_is_in_no_error_and_no_debug() {
    let server = RedisServer::start();
    server.command(&["SET", "agent-snapshot:{b}", "damage"]);
    server.command(&["CONFIG", "SET", "requirepass", "right-secret"]);
    let wrong = format!("{}?pass=wrong-secret", server.url());
    let error = RedisStorage::connect(&wrong).await.unwrap_err();
    let mut shown = format!("{error:?} {error}");
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        shown.push_str(&error.to_string());
        cause = error.source();
    }
    let right = format!("{}?pass=right-secret", server.url());
    let storage = RedisStorage::connect(&right).await.unwrap();
    shown.push_str(&format!("{storage:?}"));
    storage.save(&blank("a")).await.unwrap();
    let error = storage.load(&AgentId::new("b").unwrap()).await.unwrap_err();
    shown.push_str(&format!("{error:?} {error}"));
    assert!(!shown.contains("secret"), "{shown}");
}
