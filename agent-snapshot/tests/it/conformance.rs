//! Every backend through the suite.

use std::sync::Arc;

use agent_snapshot::{
    AgentId, Error, MemoryStorage, SnapshotStorage,
    conformance::{self, Fixture, Report},
};
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
        let last = "(SELECT max(number) FROM agents WHERE stamp IS NOT NULL)";
        assert!(last.len() > 1);
        conforms(
            "UPDATE agents SET state = substr(state, 1, length(state) - 1) WHERE agent = 'hurt'",
        )
        .await;
    }
}
