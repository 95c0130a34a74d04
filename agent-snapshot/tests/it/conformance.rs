//! Every backend runs the conformance suite.

use std::sync::Arc;

use agent_snapshot::conformance::{self, Fixture, Report};
use agent_snapshot::{AgentId, Error, MemoryStorage, SnapshotStorage};
use async_trait::async_trait;

fn check(report: &Report) {
    eprintln!("{report}");
    assert!(report.passed(), "{report}");
    assert!(report.outcomes.len() >= 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_storage_conforms() {
    check(&conformance::run(async || Arc::new(MemoryStorage::new())).await);
}

#[cfg(feature = "file")]
mod file {
    use agent_snapshot::FileStorage;

    use super::*;

    struct Folder {
        folder: tempfile::TempDir,
        every_save: bool,
    }

    #[async_trait]
    impl Fixture for Folder {
        async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error> {
            let mut builder = FileStorage::builder(self.folder.path()).rewrite_every(7);
            if self.every_save {
                // The simulated faults test the syncs.
                builder = builder.rewrite_every_save().without_sync();
            }
            Ok(Arc::new(builder.open().await?))
        }

        async fn damage(&self, agent: &AgentId) -> bool {
            let path = self.folder.path().join(format!("{}.json", agent.encoded()));
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, text.replacen("message", "massage", 1)).unwrap();
            true
        }
    }

    async fn conforms(every_save: bool) {
        let fixture = async || Folder {
            folder: tempfile::tempdir().unwrap(),
            every_save,
        };
        check(&conformance::run(fixture).await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn file_storage_conforms() {
        conforms(false).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn file_storage_that_rewrites_at_every_save_conforms() {
        conforms(true).await;
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use agent_snapshot::SqliteStorage;

    use super::*;

    struct Sqlite {
        folder: tempfile::TempDir,
        sql: &'static str,
    }

    #[async_trait]
    impl Fixture for Sqlite {
        async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error> {
            let path = self.folder.path().join("agents.db");
            Ok(Arc::new(SqliteStorage::open(path).await?))
        }

        async fn damage(&self, _: &AgentId) -> bool {
            let path = self.folder.path().join("agents.db");
            let database = rusqlite::Connection::open(path).unwrap();
            assert!(database.execute(self.sql, []).unwrap() > 0);
            true
        }
    }

    async fn conforms(sql: &'static str) {
        let fixture = async || Sqlite {
            folder: tempfile::tempdir().unwrap(),
            sql,
        };
        check(&conformance::run(fixture).await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sqlite_storage_conforms() {
        conforms(
            "UPDATE agents SET state = substr(state, 1, length(state) - 1) WHERE agent = 'hurt'",
        )
        .await;
    }
}

#[cfg(feature = "redis")]
mod redis {
    use agent_snapshot::RedisStorage;

    use super::*;
    use crate::redis_server::{RedisCluster, RedisServer};

    struct Prefix {
        url: String,
        prefix: String,
    }

    impl Prefix {
        fn new(url: String) -> Self {
            let prefix = uuid::Uuid::new_v4().to_string();
            Self { url, prefix }
        }
    }

    #[async_trait]
    impl Fixture for Prefix {
        async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error> {
            let builder = RedisStorage::builder(&self.url).prefix(&self.prefix);
            Ok(Arc::new(builder.connect().await?))
        }

        async fn damage(&self, agent: &AgentId) -> bool {
            if !self.url.contains("unix") {
                return false;
            }
            let client = ::redis::Client::open(self.url.as_str()).unwrap();
            let key = format!("{}:{{{}}}:messages", self.prefix, agent.encoded());
            let mut command = ::redis::cmd("LSET");
            command.arg(key).arg(1).arg("{\"role\":\"user\"}");
            command
                .query::<()>(&mut client.get_connection().unwrap())
                .unwrap();
            true
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn redis_storage_conforms() {
        let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
        check(&conformance::run(async || Prefix::new(server.url())).await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn redis_storage_conforms_on_a_cluster() {
        let cluster = RedisCluster::start();
        check(&conformance::run(async || Prefix::new(cluster.url())).await);
    }
}
