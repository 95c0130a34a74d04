//! `open_storage`: storages by their addresses.

use agent_snapshot::{AgentId, AgentSnapshot, Error, open_storage};

async fn works(url: &str) {
    let snapshot = AgentSnapshot::new(AgentId::new("a").unwrap());
    let storage = open_storage(url).await.unwrap();
    storage.save(&snapshot).await.unwrap();
    assert_eq!(
        storage.load(&snapshot.agent_id).await.unwrap(),
        Some(snapshot)
    );
    storage.close().await.unwrap();
}

#[tokio::test]
async fn each_scheme_opens_its_storage() {
    works("memory:").await;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().display();
    if cfg!(feature = "file") {
        works(&format!("file:{folder}/plain")).await;
        works(&format!("file://{folder}/url")).await;
    }
    if cfg!(feature = "sqlite") {
        works(&format!("sqlite:{folder}/new/agents.db")).await;
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_redis_address_opens_redis() {
    let server = crate::redis_server::RedisServer::start();
    works(&server.url()).await;
}

#[tokio::test]
async fn what_is_not_understood_is_a_clear_error() {
    for url in [
        "",
        "agents",
        "memory:x",
        "sqlite:",
        "sqlite::memory:",
        "postgres://host",
        "Redis://host",
        "rediss://host",
    ] {
        let Err(error) = open_storage(url).await else {
            panic!("{url} was opened");
        };
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_feature_that_is_off_is_named() {
    for (url, feature, on) in [
        ("file:x", "file", cfg!(feature = "file")),
        ("sqlite:x", "sqlite", cfg!(feature = "sqlite")),
        ("redis://x", "redis", cfg!(feature = "redis")),
    ] {
        if !on {
            let error = open_storage(url).await.unwrap_err().to_string();
            assert!(error.contains(&format!("feature \"{feature}\"")), "{error}");
        }
    }
}
