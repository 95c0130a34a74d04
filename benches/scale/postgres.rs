//! Snapshots on one PostgreSQL server.

use std::sync::Arc;
use std::time::Duration;

use agent_snapshot::{PostgresStorage, SnapshotStorage};
use examples::postgres_server::PostgresServer;
use tokio_postgres::NoTls;

use crate::load::{Saver, drive, fill};

pub(crate) async fn measure(time: Duration) {
    // The path of a socket must be short.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let server = PostgresServer::start(folder.path()).unwrap();
    let url = server.url();
    let url = url.strip_prefix("postgres:").unwrap();
    let storage = PostgresStorage::connect(url).await.unwrap();
    let storage: Arc<dyn SnapshotStorage> = Arc::new(storage);
    println!("\n| PostgreSQL, synced to disk | clients | rate | time of the server for one |");
    println!("|---|---|---|---|");
    for agents in [1, 16, 64] {
        let savers = Saver::many(&storage, "postgres", agents);
        drive("save of a tick with 1 KB", server.pid(), time, savers).await;
    }
    let mut sizes = Vec::new();
    for messages in [1, 51] {
        let before = size(url).await;
        fill(&storage, &format!("size-{messages}"), 200, messages).await;
        sizes.push((size(url).await - before) / 200.0);
    }
    let each = (sizes[1] - sizes[0]) / 50.0;
    println!(
        "\nPostgreSQL, on disk: {:.0} bytes for a session, {each:.0} bytes for each message of 1 KB",
        sizes[0] - each
    );
}

/// The size of the tables and indexes after a `VACUUM FULL`: the least that the data needs.
async fn size(url: &str) -> f64 {
    let (client, driver) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(driver);
    client.batch_execute("VACUUM FULL").await.unwrap();
    let row = client
        .query_one("SELECT pg_database_size(current_database())", &[])
        .await
        .unwrap();
    row.get::<_, i64>(0) as f64
}
