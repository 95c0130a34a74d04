//! Every backend runs the conformance suite.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_snapshot::backend::{Stamp, plan};
use agent_snapshot::conformance::{self, Fixture, Report};
use agent_snapshot::{AgentId, AgentSnapshot, Error, MemoryStorage, SnapshotStorage};
use async_trait::async_trait;

fn check(report: &Report) {
    eprintln!("{report}");
    assert!(report.passed(), "{report}");
    assert!(report.outcomes.len() >= 50);
}

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Memory {
    storage: MemoryStorage,
    backup: Mutex<MemoryStorage>,
}

#[async_trait]
impl Fixture for Memory {
    async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error> {
        Ok(Arc::new(self.storage.clone()))
    }

    async fn back_up(&self) -> bool {
        *self.backup.lock().unwrap() = self.storage.backup();
        true
    }

    async fn rewind(&self) {
        self.storage.rewind_to(&self.backup.lock().unwrap());
    }

    async fn age_an_hour(&self, agent: &AgentId) -> bool {
        self.storage.age(agent, HOUR);
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_storage_conforms() {
    check(&conformance::run(async || Memory::default()).await);
}

/// The least that a storage needs: four methods, and no knowledge of streams.
#[derive(Debug, Default)]
struct FourMethods(Mutex<BTreeMap<AgentId, Slot>>);

/// The epoch of a deleted snapshot, and the stored one.
type Slot = (u64, Option<(Stamp, AgentSnapshot)>);

#[async_trait]
impl SnapshotStorage for FourMethods {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        let mut agents = self.0.lock().unwrap();
        let (floor, stored) = agents.entry(snapshot.agent_id.clone()).or_default();
        if let Some(plan) = plan(snapshot, stored.as_ref().map(|(stamp, _)| stamp), *floor)? {
            *stored = Some((plan.stamp, snapshot.clone()));
        }
        Ok(())
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let agents = self.0.lock().unwrap();
        let stored = agents.get(agent).and_then(|(_, stored)| stored.as_ref());
        Ok(stored.map(|(_, snapshot)| snapshot.clone()))
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        if let Some((floor, stored)) = self.0.lock().unwrap().get_mut(agent)
            && let Some((stamp, _)) = stored.take()
        {
            *floor = stamp.epoch.max(*floor);
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        let agents = self.0.lock().unwrap();
        let stored = agents.iter().filter(|(_, (_, stored))| stored.is_some());
        Ok(stored.map(|(agent, _)| agent.clone()).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_with_four_methods_conforms() {
    check(&conformance::run(async || Arc::new(FourMethods::default())).await);
}

#[cfg(feature = "file")]
mod file {
    use std::path::Path;

    use agent_snapshot::FileStorage;

    use super::*;

    struct Folder {
        folder: tempfile::TempDir,
        backup: tempfile::TempDir,
        every_save: bool,
    }

    /// As `rsync --delete`, without the lock files.
    fn replace_files(from: &Path, to: &Path) {
        let files = |folder: &Path| {
            let entries = std::fs::read_dir(folder).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            paths.filter(|path| path.extension() != Some("lock".as_ref()))
        };
        files(to).for_each(|path| std::fs::remove_file(path).unwrap());
        for path in files(from) {
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
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

        async fn back_up(&self) -> bool {
            replace_files(self.folder.path(), self.backup.path());
            true
        }

        async fn rewind(&self) {
            replace_files(self.backup.path(), self.folder.path());
        }

        async fn age_an_hour(&self, agent: &AgentId) -> bool {
            let own = format!("{}.", agent.encoded());
            for entry in std::fs::read_dir(self.folder.path()).unwrap() {
                let entry = entry.unwrap();
                if entry.file_name().to_str().unwrap().starts_with(&own) {
                    let file = std::fs::File::open(entry.path()).unwrap();
                    let modified = file.metadata().unwrap().modified().unwrap();
                    file.set_modified(modified - HOUR).unwrap();
                }
            }
            true
        }
    }

    async fn conforms(every_save: bool) {
        let fixture = async || Folder {
            folder: tempfile::tempdir().unwrap(),
            backup: tempfile::tempdir().unwrap(),
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

        async fn back_up(&self) -> bool {
            crate::sqlite::back_up(&self.folder.path().join("agents.db"));
            true
        }

        async fn rewind(&self) {
            crate::sqlite::restore(&self.folder.path().join("agents.db"));
        }

        async fn age_an_hour(&self, agent: &AgentId) -> bool {
            let path = self.folder.path().join("agents.db");
            let database = rusqlite::Connection::open(path).unwrap();
            database.busy_timeout(Duration::from_secs(30)).unwrap();
            let sql = "UPDATE agents SET changed = changed - 3600000 WHERE agent = ?1";
            assert_eq!(database.execute(sql, [agent.as_str()]).unwrap(), 1);
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
        /// The keys, as `DUMP` writes them.
        backup: Mutex<Vec<(String, Vec<u8>)>>,
    }

    impl Prefix {
        fn new(url: String) -> Self {
            Self {
                url,
                prefix: uuid::Uuid::new_v4().to_string(),
                backup: Mutex::default(),
            }
        }

        fn connection(&self) -> ::redis::Connection {
            let client = ::redis::Client::open(self.url.as_str()).unwrap();
            client.get_connection().unwrap()
        }

        fn all_keys(&self, connection: &mut ::redis::Connection) -> Vec<String> {
            let mut command = ::redis::cmd("KEYS");
            command.arg(format!("{}:*", self.prefix));
            command.query(connection).unwrap()
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
            let key = format!("{}:{{{}}}:messages", self.prefix, agent.encoded());
            let mut command = ::redis::cmd("LSET");
            command.arg(key).arg(1).arg("{\"role\":\"user\"}");
            command.query::<()>(&mut self.connection()).unwrap();
            true
        }

        async fn back_up(&self) -> bool {
            if !self.url.contains("unix") {
                return false;
            }
            let mut connection = self.connection();
            let keys = self.all_keys(&mut connection);
            let dump = |key: String| {
                let dumped = ::redis::cmd("DUMP").arg(&key).query(&mut connection);
                (key, dumped.unwrap())
            };
            *self.backup.lock().unwrap() = keys.into_iter().map(dump).collect();
            true
        }

        async fn rewind(&self) {
            let mut connection = self.connection();
            for key in self.all_keys(&mut connection) {
                let mut command = ::redis::cmd("DEL");
                command.arg(key).query::<()>(&mut connection).unwrap();
            }
            for (key, value) in &*self.backup.lock().unwrap() {
                let mut command = ::redis::cmd("RESTORE");
                command.arg(key).arg(0).arg(value);
                command.query::<()>(&mut connection).unwrap();
            }
        }

        async fn age_an_hour(&self, agent: &AgentId) -> bool {
            if !self.url.contains("unix") {
                return false;
            }
            let key = format!("{}:{{{}}}", self.prefix, agent.encoded());
            let mut command = ::redis::cmd("HINCRBY");
            command.arg(key).arg("changed").arg(-3_600_000);
            command.query::<()>(&mut self.connection()).unwrap();
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

#[cfg(feature = "postgres")]
mod postgres {
    use agent_snapshot::PostgresStorage;

    use super::*;
    use crate::pgbouncer_server::PgBouncer;
    use crate::postgres_server::PostgresServer;

    struct Schema {
        server: Arc<PostgresServer>,
        /// Of the server, or of a pooler in front of it.
        url: String,
        schema: String,
    }

    impl Schema {
        fn new(server: &Arc<PostgresServer>, url: String) -> Self {
            Self {
                server: server.clone(),
                url,
                schema: format!("s{}", uuid::Uuid::new_v4().simple()),
            }
        }

        /// The statements that copy each table from one schema to another.
        fn copy(&self, from: &str, to: &str) -> String {
            let tables = ["agents", "messages"];
            let copy = |table: &str| {
                format!(
                    "DELETE FROM {to}.{table};
                     INSERT INTO {to}.{table} OVERRIDING SYSTEM VALUE SELECT * FROM {from}.{table};"
                )
            };
            format!("BEGIN; {} COMMIT;", tables.map(copy).concat())
        }
    }

    #[async_trait]
    impl Fixture for Schema {
        async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error> {
            let builder = PostgresStorage::builder(&self.url).schema(&self.schema);
            Ok(Arc::new(builder.connect().await?))
        }

        async fn damage(&self, _: &AgentId) -> bool {
            let schema = &self.schema;
            self.server.sql(&format!(
                "UPDATE {schema}.messages SET json = replace(json, 'message', 'massage')
                 WHERE seq = 1 AND agent = (SELECT number FROM {schema}.agents WHERE agent = 'hurt')"
            ));
            true
        }

        async fn back_up(&self) -> bool {
            let schema = &self.schema;
            self.server.sql(&format!(
                "CREATE SCHEMA IF NOT EXISTS {schema}_backup;
                 CREATE TABLE IF NOT EXISTS {schema}_backup.agents (LIKE {schema}.agents);
                 CREATE TABLE IF NOT EXISTS {schema}_backup.messages (LIKE {schema}.messages);"
            ));
            self.server
                .sql(&self.copy(schema, &format!("{schema}_backup")));
            true
        }

        async fn rewind(&self) {
            let schema = &self.schema;
            self.server
                .sql(&self.copy(&format!("{schema}_backup"), schema));
        }

        async fn age_an_hour(&self, agent: &AgentId) -> bool {
            let schema = &self.schema;
            self.server.sql(&format!(
                "UPDATE {schema}.agents SET changed = changed - interval '1 hour'
                 WHERE agent = '{agent}'"
            ));
            true
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres_storage_conforms() {
        // The crash tests test the syncs.
        let server = Arc::new(PostgresServer::start_with(&["fsync=off"]));
        check(&conformance::run(async || Schema::new(&server, server.url())).await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres_storage_conforms_behind_pgbouncer_in_transaction_mode() {
        let server = Arc::new(PostgresServer::start_with(&["fsync=off"]));
        let bouncer = PgBouncer::start(&server);
        check(&conformance::run(async || Schema::new(&server, bouncer.url())).await);
    }
}
