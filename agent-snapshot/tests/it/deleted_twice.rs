//! A delete whose answer was lost is sent again. An agent that was created in between is kept.

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, SnapshotStorage};

use crate::cutting_proxy::CuttingProxy;

fn agent(text: &str) -> AgentSnapshot {
    let mut snapshot = AgentSnapshot::new(AgentId::new("worker").unwrap());
    snapshot.memory.short_term_history.push(Message::user(text));
    snapshot
}

/// `through` is the storage behind the proxy, `direct` the same storage without it.
async fn keeps_the_new_agent(
    through: impl SnapshotStorage + 'static,
    direct: impl SnapshotStorage,
    proxy: &CuttingProxy,
) {
    let id = AgentId::new("worker").unwrap();
    direct.save(&agent("old")).await.unwrap();
    let deleting = {
        let id = id.clone();
        tokio::spawn(async move { through.delete(&id).await.map(|()| through) })
    };
    proxy.cut().await;
    assert_eq!(
        direct.load(&id).await.unwrap(),
        None,
        "the first delete took effect"
    );
    let new = agent("new");
    direct.save(&new).await.unwrap();
    proxy.release();
    let through = deleting.await.unwrap().unwrap();
    assert_eq!(direct.load(&id).await.unwrap(), Some(new));

    // A delete of the new agent is another one.
    through.delete(&id).await.unwrap();
    assert_eq!(direct.load(&id).await.unwrap(), None);
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_delete_that_is_sent_again_keeps_an_agent_created_in_between() {
    use agent_snapshot::PostgresStorage;

    let server = crate::postgres_server::PostgresServer::start_with(&["fsync=off"]);
    let direct = PostgresStorage::connect(&server.url()).await.unwrap();
    let socket = server.socket_folder().join(".s.PGSQL.5432");
    let proxy = CuttingProxy::start(socket, ".remove(").await;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
    let through = PostgresStorage::connect(&url).await.unwrap();
    keeps_the_new_agent(through, direct, &proxy).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_delete_that_is_sent_again_keeps_an_agent_created_in_between() {
    use agent_snapshot::RedisStorage;

    let server = crate::redis_server::RedisServer::start();
    let direct = RedisStorage::connect(&server.url()).await.unwrap();
    // Afterwards the server knows the script, so the first request executes it.
    let other = AgentId::new("other").unwrap();
    direct.delete(&other).await.unwrap();
    let proxy = CuttingProxy::start(server.socket(), "{worker}:damaged:").await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let through = RedisStorage::connect(&url).await.unwrap();
    keeps_the_new_agent(through, direct, &proxy).await;
}

/// The number of deletes is 0 for every agent of version 1.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_version_1_is_migrated() {
    use agent_snapshot::PostgresStorage;

    let server = crate::postgres_server::PostgresServer::start_with(&["fsync=off"]);
    let storage = PostgresStorage::connect(&server.url()).await.unwrap();
    let (old, mut later) = (agent("old"), agent("old"));
    storage.save(&old).await.unwrap();
    // Back to version 1, with the agent in it.
    let version_1 = include_str!("../../src/postgres/schema.sql");
    server.sql(&format!(
        "ALTER SCHEMA agent_snapshot RENAME TO new;
         CREATE SCHEMA agent_snapshot;
         CREATE TABLE agent_snapshot.meta AS SELECT 1 AS version;
         {}
         INSERT INTO agent_snapshot.agents OVERRIDING SYSTEM VALUE
             SELECT number, agent, epoch_floor, stamp, state, head, labels, bytes, changed
             FROM new.agents;
         INSERT INTO agent_snapshot.messages SELECT * FROM new.messages;",
        version_1.replace("{schema}", "agent_snapshot")
    ));
    let storage = PostgresStorage::connect(&server.url()).await.unwrap();
    assert_eq!(server.sql("SELECT version FROM agent_snapshot.meta"), "2");
    let id = &old.agent_id;
    assert_eq!(storage.load(id).await.unwrap().as_ref(), Some(&old));
    later.tick_index += 1;
    storage.save(&later).await.unwrap();
    storage.delete(id).await.unwrap();
    assert_eq!(storage.load(id).await.unwrap(), None);
}
