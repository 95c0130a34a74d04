use std::time::{Duration, SystemTime};

use crate::supervision::{Backoff, DEFAULT_MESSAGE, jitter};

/// How long after the reported reset the first request is sent: clocks differ.
const AFTER_RESET: Duration = Duration::from_secs(1);

/// What to do when an agent reaches a usage limit: wait for the reset, then resume the session. Set
/// by [`Run::wait_for_limits`](crate::Run::wait_for_limits), or given to
/// [`LiveSession::run_turn`](crate::LiveSession::run_turn).
///
/// - A limit with a reported reset is waited for until a second after the reset. Without one, if the
///   limit still holds after it, and for an overloaded service, the wait is 30 seconds at first,
///   doubles up to 15 minutes, and is shortened by a random part of up to one half.
/// - The session is resumed by a follow-up with [`message`](Self::message), a live session by the
///   next prompt with it. The first prompt is not sent again: the agent has it in its session.
/// - **One hold for each credential.** All runs of a service with this policy and the same
///   credential wait together. After the reset one of them is resumed, or started; the others
///   follow when it has made progress. So a limit that still holds is hit by one request. A run
///   whose [`max_wait`](Self::max_wait) ends before the reset sends its first request nevertheless,
///   and returns its result.
/// - Other failures are not retried; authentication errors never are.
/// - [`ExecutionService::waiting`](crate::ExecutionService::waiting) shows what waits. To cancel a
///   wait there, or a shutdown, lets the run return the result of its last execution.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("cat");
/// # let request = doctest::request("hello");
/// use std::time::Duration;
/// use exec_core::LimitPolicy;
///
/// let policy = LimitPolicy::new()
///     .credential("team key")
///     .max_wait(Duration::from_secs(6 * 3600));
/// let result = service.run(request).wait_for_limits(policy).await?;
/// assert!(result.earlier_exits.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPolicy {
    pub(crate) credential: Option<String>,
    pub(crate) max_wait: Duration,
    pub(crate) message: String,
    backoff: Backoff,
}

impl LimitPolicy {
    /// A policy with the settings above, and at most 24 hours of waiting.
    #[must_use]
    pub fn new() -> Self {
        Self {
            credential: None,
            max_wait: Duration::from_secs(24 * 3600),
            message: DEFAULT_MESSAGE.to_owned(),
            backoff: Backoff {
                first: Duration::from_secs(30),
                max: Duration::from_secs(15 * 60),
            },
        }
    }

    /// Names the credential whose limit it is; the default is the executor type of the request,
    /// such as `CLAUDE_CODE`. It is a name for the hold, not a secret.
    #[must_use]
    pub fn credential(mut self, name: impl Into<String>) -> Self {
        self.credential = Some(name.into());
        self
    }

    /// Sets how long a run may wait for limits, in total; the default is 24 hours. A reset that is
    /// later is not waited for.
    #[must_use]
    pub fn max_wait(mut self, limit: Duration) -> Self {
        self.max_wait = limit;
        self
    }

    /// Sets the wait for limits without a reported reset: the first one, which doubles each time,
    /// and the longest one.
    #[must_use]
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.backoff = Backoff { first, max };
        self
    }

    /// Sets the text of the follow-up that resumes a session; the default is `Continue where you
    /// left off.`
    #[must_use]
    pub fn message(mut self, text: impl Into<String>) -> Self {
        self.message = text.into();
        self
    }

    /// How long to wait after the `failures`th limit in a row.
    pub(crate) fn wait(&self, resets_at: Option<SystemTime>, failures: u32) -> Duration {
        let until_reset = resets_at.map(|at| at.duration_since(SystemTime::now()));
        match until_reset {
            Some(Ok(left)) => left + AFTER_RESET,
            Some(Err(_)) if failures == 0 => AFTER_RESET,
            // A reset in the past was the wrong one: the limit still holds after it.
            Some(Err(_)) | None => jitter(self.backoff.delay(failures)),
        }
    }
}

impl Default for LimitPolicy {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_waited_for_and_its_absence_backs_off() {
        let policy = LimitPolicy::new();
        let in_an_hour = SystemTime::now() + Duration::from_secs(3600);
        let wait = policy.wait(Some(in_an_hour), 7).as_secs();
        // The clock goes on during the test.
        assert!((3590..=3601).contains(&wait), "{wait}");
        let past = SystemTime::now() - Duration::from_secs(5);
        assert_eq!(policy.wait(Some(past), 0), AFTER_RESET);
        // The clock of the host is ahead of the server's, or the reset is that of an earlier limit.
        assert!(policy.wait(Some(past), 1) >= Duration::from_secs(30));
        for (failures, longest) in [(0, 30), (1, 60), (4, 480), (5, 900), (60, 900)] {
            let longest = Duration::from_secs(longest);
            let wait = policy.wait(None, failures);
            assert!(
                longest / 2 <= wait && wait <= longest,
                "{failures}: {wait:?}"
            );
        }
    }
}
