use std::time::Duration;

use redis::ServerErrorKind as Server;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{Client, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ScriptInvocation};

/// A connection to one server or to a cluster. It reconnects by itself.
#[derive(Clone)]
pub(super) enum Connection {
    Single(ConnectionManager),
    Cluster(ClusterConnection),
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The delays before attempts 2 to 6 are 0.1, 0.2, 0.4, 0.8 and 1.6 seconds: a server may be away
/// for about three seconds.
const MAX_ATTEMPTS: u32 = 6;
const BASE_DELAY: Duration = Duration::from_millis(50);

impl Connection {
    pub(super) async fn open(client: Client) -> RedisResult<Self> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_number_of_retries(2)
            .set_max_delay(Duration::from_millis(500));
        let info = client.get_connection_info().clone();
        let single = Self::Single(ConnectionManager::new_with_config(client, config).await?);
        let cluster: String = single.query(Cmd::new().arg("INFO").arg("cluster")).await?;
        if !cluster.contains("cluster_enabled:1") {
            return Ok(single);
        }
        let client = ClusterClient::builder([info])
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(RESPONSE_TIMEOUT)
            .build()?;
        Ok(Self::Cluster(client.get_async_connection().await?))
    }

    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let mut attempt = 0;
        loop {
            let result = match self.clone() {
                Self::Single(mut connection) => command.query_async(&mut connection).await,
                Self::Cluster(mut connection) => command.query_async(&mut connection).await,
            };
            match result {
                Err(error) if wait_to_retry(&error, &mut attempt).await => {}
                result => return result,
            }
        }
    }

    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> RedisResult<T> {
        let mut attempt = 0;
        loop {
            let result = match self.clone() {
                Self::Single(mut connection) => script.invoke_async(&mut connection).await,
                Self::Cluster(mut connection) => script.invoke_async(&mut connection).await,
            };
            match result {
                Err(error) if wait_to_retry(&error, &mut attempt).await => {}
                result => return result,
            }
        }
    }
}

/// Waits before the next attempt; `false` if there is none.
///
/// Every command of this storage may be repeated: a save whose answer was lost is recognised by
/// its digest, a delete names the incarnation that it means.
async fn wait_to_retry(error: &RedisError, attempt: &mut u32) -> bool {
    let is_temporary = error.is_io_error()
        || error.is_connection_dropped()
        || matches!(
            error.kind(),
            ErrorKind::Server(Server::BusyLoading | Server::ClusterDown | Server::TryAgain)
        );
    *attempt += 1;
    if !is_temporary || *attempt >= MAX_ATTEMPTS {
        return false;
    }
    tracing::debug!(%error, attempt, "retrying a Redis command");
    tokio::time::sleep(BASE_DELAY * (1 << *attempt)).await;
    true
}
