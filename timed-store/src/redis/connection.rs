use std::time::Duration;

use redis::ServerErrorKind as Server;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Script};
use tokio::time::{Instant, timeout_at};

/// A connection to one server or to a cluster. It reconnects by itself.
#[derive(Clone)]
pub(super) enum Connection {
    Single(ConnectionManager),
    Cluster(ClusterConnection),
}

/// A script with its arguments.
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    pub(super) text: &'a str,
    pub(super) keys: [&'a str; 2],
    pub(super) arguments: Vec<String>,
}

/// The number of replicas that must have a change, and the time that they have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledgement {
    pub(super) replicas: u32,
    pub(super) within: Duration,
}

/// When a call must have ended; `None` if only [`RETRY_FOR`] limits it.
pub(super) type Deadline = Option<Instant>;

/// Why a call failed, and whether the server may have executed it.
pub(super) struct CallFailure {
    pub(super) cause: CallError,
    pub(super) may_be_executed: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("the server did not answer in time")]
    TimedOut,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a peer may be silent before its connection counts as lost.
///
/// A response timeout does not replace the connection. A host that disappears without closing
/// the connection would block it for about 15 minutes, until the system gives up.
const SILENCE: Duration = Duration::from_secs(5);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a call is repeated while the server is away.
const RETRY_FOR: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(320);

/// The settings of every connection, also of subscribers.
pub(super) fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(SILENCE)
        .with_interval(PROBE_INTERVAL);
    let settings = TcpSettings::default().set_keepalive(keepalive);
    // Ends a connection with data under way, for which no probes are sent.
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(SILENCE);
    settings
}

impl Connection {
    pub(super) async fn open(client: &Client, waits: Duration) -> RedisResult<Self> {
        let response_timeout = RESPONSE_TIMEOUT + waits;
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(response_timeout))
            // The retries of calls are enough.
            .set_number_of_retries(0);
        let info = client.get_connection_info().clone();
        let mut single = ConnectionManager::new_with_config(client.clone(), config).await?;
        let mut command = Cmd::new();
        command.arg("INFO").arg("cluster");
        let cluster: String = command.query_async(&mut single).await?;
        if !cluster.contains("cluster_enabled:1") {
            return Ok(Self::Single(single));
        }
        let client = ClusterClient::builder([info])
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(response_timeout)
            .tcp_settings(tcp_settings())
            .build()?;
        Ok(Self::Cluster(client.get_async_connection().await?))
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Runs a script, and returns its answer and the number of replicas that acknowledged it.
    ///
    /// A call is repeated after a lost connection; the scripts recognise a repetition. The time of the
    /// repetitions counts from `start`.
    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        acknowledgement: Option<Acknowledgement>,
        deadline: Deadline,
        start: Instant,
    ) -> Result<(Vec<String>, u32), CallFailure> {
        let mut pause = FIRST_PAUSE;
        // The WAIT behind an unknown script would wait for the earlier writes of the connection, so a
        // call with an acknowledgement carries its script.
        let mut has_script = acknowledgement.is_none();
        let mut may_be_executed = false;
        loop {
            let attempt = self.attempt(call, has_script, acknowledgement);
            let cause = match within(deadline, attempt).await {
                Ok(answer) => return Ok(answer),
                Err(cause) => cause,
            };
            may_be_executed |= cause.may_be_executed();
            match &cause {
                CallError::Redis(error) if is_missing_script(error) && has_script => {
                    has_script = false;
                }
                CallError::Redis(error)
                    if is_temporary(error)
                        && start.elapsed() < RETRY_FOR
                        && !is_over(deadline, pause) =>
                {
                    tracing::debug!(%error, "repeating a call");
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(LAST_PAUSE);
                }
                _ => {
                    return Err(CallFailure {
                        cause,
                        may_be_executed,
                    });
                }
            }
        }
    }

    async fn attempt(
        &self,
        call: &Call<'_>,
        has_script: bool,
        acknowledgement: Option<Acknowledgement>,
    ) -> RedisResult<(Vec<String>, u32)> {
        let command = call.command(has_script);
        match (self.clone(), acknowledgement) {
            (Self::Single(mut connection), None) => {
                Ok((command.query_async(&mut connection).await?, 0))
            }
            (Self::Cluster(mut connection), _) => {
                Ok((command.query_async(&mut connection).await?, 0))
            }
            (Self::Single(mut connection), Some(Acknowledgement { replicas, within })) => {
                // In one pipeline: WAIT counts for the last write of its own connection.
                let mut wait = Cmd::new();
                let within = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
                wait.arg("WAIT").arg(replicas).arg(within.max(1));
                let mut pipeline = Pipeline::new();
                pipeline.add_command(command).add_command(wait);
                pipeline.ignore_errors();
                let (answer, acknowledged): (RedisResult<Vec<String>>, RedisResult<u32>) =
                    pipeline.query_async(&mut connection).await?;
                // A WAIT can fail after the script was executed: a primary that is demoted ends it
                // with an error. Then no replica has acknowledged the change.
                Ok((answer?, acknowledged.unwrap_or(0)))
            }
        }
    }
}

impl Call<'_> {
    fn command(&self, has_script: bool) -> Cmd {
        let mut command = Cmd::new();
        if has_script {
            command.arg("EVALSHA").arg(self.script.get_hash());
        } else {
            command.arg("EVAL").arg(self.text);
        }
        command
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.arguments);
        command
    }
}

impl CallError {
    /// Whether the server may have executed a call that failed like this: it was sent, and the answer
    /// did not arrive.
    fn may_be_executed(&self) -> bool {
        match self {
            Self::Redis(error) => {
                let is_lost =
                    error.is_io_error() || error.is_connection_dropped() || error.is_timeout();
                is_lost && !error.is_connection_refusal()
            }
            Self::TimedOut => true,
        }
    }
}

/// Whether the deadline is over after `pause`.
fn is_over(deadline: Deadline, pause: Duration) -> bool {
    deadline.is_some_and(|end| Instant::now() + pause >= end)
}

/// Waits for `attempt` until the deadline.
pub(super) async fn within<T>(
    deadline: Deadline,
    attempt: impl Future<Output = RedisResult<T>>,
) -> Result<T, CallError> {
    match deadline {
        None => Ok(attempt.await?),
        Some(end) => {
            let answer = timeout_at(end, attempt).await;
            Ok(answer.map_err(|_| CallError::TimedOut)??)
        }
    }
}

fn is_missing_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(Server::NoScript)
}

fn is_temporary(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_connection_dropped()
        || error.is_timeout()
        || matches!(
            error.kind(),
            ErrorKind::Server(
                Server::BusyLoading
                    | Server::ClusterDown
                    | Server::MasterDown
                    | Server::TryAgain
                    | Server::ReadOnly
            )
        )
}

/// Whether the server has a key of another type, which a script hides in the text of the error.
pub(super) fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE") || error.to_string().contains("WRONGTYPE")
}
