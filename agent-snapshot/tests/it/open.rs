//! `open_storage`: storages by their addresses.

use std::sync::Arc;

use agent_snapshot::{
    AgentId, AgentSnapshot, Error, MemoryStorage, SnapshotStorage, StorageLoader, open_storage,
};

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

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_postgres_address_opens_postgres() {
    let server = crate::postgres_server::PostgresServer::start_with(&["fsync=off"]);
    works(&server.url()).await;
    let folder = server.socket_folder().display();
    works(&format!(
        "postgres:host={folder} user=postgres dbname=postgres"
    ))
    .await;
}

#[tokio::test]
async fn a_registered_scheme_opens_its_storage_and_is_listed() {
    let loader = StorageLoader::new().register("mine", |address: String| async move {
        assert_eq!(address, "mine://host/agents?x=1");
        let storage: Arc<dyn SnapshotStorage> = Arc::new(MemoryStorage::new());
        Ok(storage)
    });
    loader.open("mine://host/agents?x=1").await.unwrap();
    let error = loader.open("yours://host").await.unwrap_err().to_string();
    for scheme in [
        "file",
        "memory",
        "mine",
        "postgres",
        "redis",
        "redis+unix",
        "sqlite",
    ] {
        assert!(error.contains(scheme), "{error}");
    }
    assert!(open_storage("mine://host").await.is_err());
}

#[tokio::test]
async fn what_is_not_understood_is_a_clear_error() {
    for url in [
        "",
        "agents",
        "memory:x",
        "sqlite:",
        "sqlite::memory:",
        "mysql://host",
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
        ("postgres://x", "postgres", cfg!(feature = "postgres")),
    ] {
        if !on {
            let error = open_storage(url).await.unwrap_err().to_string();
            assert!(error.contains(&format!("feature \"{feature}\"")), "{error}");
        }
    }
}
