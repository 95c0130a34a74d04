//! The answers of a crew as a list on a Redis server: an effect that the outside world sees.
//!
//! The list shows how a resource uses fencing tokens, in the two steps that the theory of
//! [`task_list`](examples::task_list) asks for:
//!
//! 1. *Announce.* A worker that has taken a task gives its token to the resource. From now on a
//!    smaller token is refused for this task. The answer says whether the effect was made already.
//! 2. *Make.* The effect is made only if the token is still the newest one that was announced.
//!
//! Each step is one script, so no other call comes between the comparison and the change.
//!
//! **Why once.** Between the announcement of token 9 and its effect no smaller token can make the
//! effect, because the newest is 9. If a smaller one made it before, the announcement told so, and
//! the worker does not make it. A repetition by the same token, after a lost answer, is recognised.

use std::time::Duration;

use examples::Result;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};
use tokio::sync::Mutex;

/// KEYS: hash of the newest tokens, hash of the effects. ARGV: task, token.
const ANNOUNCE: &str = r"
local newest = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
if tonumber(ARGV[2]) < newest then
  return {'overtaken'}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
local made = redis.call('HGET', KEYS[2], ARGV[1])
if made then
  return {'made', string.match(made, '^%d+\n(.*)$')}
end
return {'free'}
";

/// KEYS: as above, the list. ARGV: task, token, worker, text.
const MAKE: &str = r"
local made = redis.call('HGET', KEYS[2], ARGV[1])
if made and string.match(made, '^%d+') == ARGV[2] then
  return 'made'
end
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 'overtaken'
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. '\n' .. ARGV[4])
redis.call('RPUSH', KEYS[3], ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
return 'made'
";

/// How long a call waits for the server before the next attempt.
const ANSWER: Duration = Duration::from_secs(2);

/// The answer to an announcement.
pub(crate) enum Announced {
    /// The effect is to be made.
    Free,
    /// An earlier worker has made it, with this text.
    Made(String),
    /// A later worker has the task.
    Overtaken,
}

/// Whether an effect was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Made,
    Overtaken,
}

/// The list. A lost connection is opened again by the next call.
pub(crate) struct Effects {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
    /// Newest tokens, effects by task, and the list.
    keys: [String; 3],
    announce: Script,
    make: Script,
}

impl Effects {
    pub(crate) fn new(url: &str, list: &str) -> Result<Self> {
        let key = |name: &str| format!("crew:{{{list}}}:{name}");
        Ok(Self {
            client: Client::open(url)?,
            connection: Mutex::default(),
            keys: [key("tokens"), key("made"), key("effects")],
            announce: Script::new(ANNOUNCE),
            make: Script::new(MAKE),
        })
    }

    pub(crate) async fn announce(&self, task: &str, token: u64) -> Result<Announced> {
        let [tokens, made, _] = &self.keys;
        let mut call = self.announce.key(tokens);
        call.key(made).arg(task).arg(token);
        let mut connection = self.connect().await?;
        let answer: redis::RedisResult<Vec<String>> = call.invoke_async(&mut connection).await;
        let mut answer = self.checked(answer).await?.into_iter();
        Ok(match (answer.next().as_deref(), answer.next()) {
            (Some("free"), _) => Announced::Free,
            (Some("made"), text) => Announced::Made(text.unwrap_or_default()),
            _ => Announced::Overtaken,
        })
    }

    /// May be repeated after an error: the outcome is unknown then, and the same token makes the
    /// effect once.
    pub(crate) async fn make(
        &self,
        task: &str,
        token: u64,
        worker: &str,
        text: &str,
    ) -> Result<Effect> {
        let [tokens, made, list] = &self.keys;
        let mut call = self.make.key(tokens);
        call.key(made).key(list);
        call.arg(task).arg(token).arg(worker).arg(text);
        let mut connection = self.connect().await?;
        let answer: redis::RedisResult<String> = call.invoke_async(&mut connection).await;
        Ok(match self.checked(answer).await?.as_str() {
            "made" => Effect::Made,
            _ => Effect::Overtaken,
        })
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = &*kept {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER))
            .set_response_timeout(Some(ANSWER));
        let opened = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(kept.insert(opened).clone())
    }

    async fn checked<T>(&self, answer: redis::RedisResult<T>) -> Result<T> {
        if answer.is_err() {
            *self.connection.lock().await = None;
        }
        Ok(answer?)
    }
}
