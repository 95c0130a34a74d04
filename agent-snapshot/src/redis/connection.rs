use std::time::Duration;

use redis::{
    Client, Cmd, FromRedisValue, RedisError, RedisResult, ScriptInvocation,
    aio::{ConnectionManager, ConnectionManagerConfig},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
};

/// A connection that finds its way back: to one server, or to a cluster.
#[derive(Clone)]
pub(super) enum Connection {
    Single(ConnectionManager),
    Cluster(ClusterConnection),
}

const CONNECT: Duration = Duration::from_secs(5);
const RESPONSE: Duration = Duration::from_secs(10);

/// With the waits below, a server may be away for about three seconds.
const ATTEMPTS: u32 = 6;

impl Connection {
    pub(super) async fn open(client: Client) -> RedisResult<Self> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(RESPONSE))
            .set_number_of_retries(2)
            .set_max_delay(Duration::from_millis(500));
        let info = client.get_connection_info().clone();
        let single = Self::Single(ConnectionManager::new_with_config(client, config).await?);
        let cluster: String = single.query(Cmd::new().arg("INFO").arg("cluster")).await?;
        if !cluster.contains("cluster_enabled:1") {
            return Ok(single);
        }
        let client = ClusterClient::builder([info])
            .connection_timeout(CONNECT)
            .response_timeout(RESPONSE)
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
                Err(error) if again(&error, &mut attempt).await => {}
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
                Err(error) if again(&error, &mut attempt).await => {}
                result => return result,
            }
        }
    }
}

/// Waits before the next attempt, if there is to be one.
///
/// Everything here may be repeated: a save whose answer was lost is recognised.
async fn again(error: &RedisError, attempt: &mut u32) -> bool {
    use redis::{ErrorKind, ServerErrorKind as Server};
    let passing = error.is_io_error()
        || error.is_connection_dropped()
        || matches!(
            error.kind(),
            ErrorKind::Server(Server::BusyLoading | Server::ClusterDown | Server::TryAgain)
        );
    *attempt += 1;
    if !passing || *attempt >= ATTEMPTS {
        return false;
    }
    tracing::debug!(%error, attempt, "trying again");
    tokio::time::sleep(Duration::from_millis(50) * (1 << *attempt)).await;
    true
}
