//! Claims of agents, in a timed store.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use examples::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use timed_store::{Claim, LockPolicy, OwnerProcess, SessionId, TimedStorage};

/// How long a claim lasts, if nothing else is said.
const DEFAULT_TTL: f64 = 3600.0;
/// How long to wait for the lock of the file.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of the longest value: all agents read the file with all claims.
const MAX_VALUE: usize = 4096;

#[derive(Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ClaimRequest {
    Claim {
        value: String,
        ttl_s: Option<f64>,
        wait_s: Option<f64>,
    },
    Release {
        value: String,
    },
}

/// Carries a request out in the name of an agent. Its claims end with this process.
pub(crate) async fn call(file: &Path, agent: &str, request: ClaimRequest) -> Result<Value> {
    match request {
        ClaimRequest::Claim {
            value,
            ttl_s,
            wait_s,
        } => {
            let slot = slot(file, agent, &value, seconds(ttl_s.unwrap_or(DEFAULT_TTL)))?;
            let limit = seconds(wait_s.unwrap_or(0.0));
            let claim = match limit.is_zero() {
                true => slot.claim(value.clone()).await?,
                false => slot.claim_within(value.clone(), limit).await?,
            };
            Ok(match claim {
                Claim::Granted(lease) => json!({
                    "verb": "claim", "value": value, "state": "granted", "token": lease.token(),
                    "expires_s": lease.expires_in().as_secs_f64(),
                }),
                Claim::Busy { holder, expires_in } => json!({
                    "verb": "claim", "value": value, "state": "busy", "holder": name(&holder),
                    "expires_s": expires_in.as_secs_f64(),
                }),
            })
        }
        ClaimRequest::Release { value } => {
            let slot = slot(file, agent, &value, seconds(DEFAULT_TTL))?;
            let state = match slot.remove().await? {
                true => "released",
                false => "not_held",
            };
            Ok(json!({"verb": "release", "value": value, "state": state}))
        }
    }
}

/// The entry of an agent for a value: an agent can hold several values, each in a slot of its own.
fn slot(file: &Path, agent: &str, value: &str, ttl: Duration) -> Result<TimedStorage<String>> {
    if value.is_empty() || value.len() > MAX_VALUE {
        return Err(format!("a value has 1 to {MAX_VALUE} bytes").into());
    }
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    let store = TimedStorage::builder(file)
        .session(SessionId::new(agent)?)
        .owner(OwnerProcess::current())
        .ttl(ttl)
        .lock(LockPolicy::Wait(LOCK_LIMIT))
        .open()?;
    // A hash, because a slot has a short name. It need not be stable: a claim ends with its process.
    Ok(store.slot(&format!("{:016x}", hasher.finish()))?)
}

/// The agent of an entry, without the slot.
fn name(holder: &SessionId) -> &str {
    let holder = holder.as_str();
    holder.rsplit_once('#').map_or(holder, |(agent, _)| agent)
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
