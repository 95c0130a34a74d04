use std::time::Duration;

use uuid::Uuid;

/// What resumes a session, if nothing else is set.
pub(crate) const DEFAULT_MESSAGE: &str = "Continue where you left off.";

/// When an agent that has failed is started again. Set by [`Run::restart`](crate::Run::restart) for a
/// run, and by [`LiveRequest::restart`](crate::LiveRequest::restart) for a live session.
///
/// **What is sent.** A restart of a run is a follow-up to its session, with the text of
/// [`message`](Self::message) and nothing else. A live session gets the messages that wait, and nothing
/// else. The prompt that ran may have had effects, and is never sent again: the agent has it in its
/// session. So an agent is restarted only if it has reported its session, or has continued one; and not
/// if it has continued another session than the one that it was asked for.
///
/// | the execution has | |
/// |---|---|
/// | succeeded | done. A live session that ends without a `close` counts as "any other failure" below |
/// | been stopped by a caller, a budget or a time limit | done |
/// | been stopped because it was silent | restarted |
/// | been stopped as [`Disconnected`](crate::StoppedBy::Disconnected) | any other failure |
/// | failed: network, overloaded | restarted |
/// | failed: any other failure, after the model had answered, or by a signal | restarted |
/// | failed: any other failure, before the model had answered | done: the configuration is wrong |
/// | failed: authentication, context full, session gone | done: a repetition does not help |
/// | failed: limited | done, unless [`Run::wait_for_limits`](crate::Run::wait_for_limits) is set |
///
/// A restart that cannot be launched, such as one that the profile refuses, ends a run with its last
/// result. A live session is tried again after the longest delay, unless a budget is used up; the
/// attempt counts as a restart. While another execution has the session, the restart waits for its
/// end.
///
/// The first restart follows after a second; the delay doubles with each restart up to a minute.
/// After five restarts within ten minutes the policy gives up: a run returns its last result, and
/// [`LiveSession::restarted`](crate::LiveSession::restarted) returns `None`. During a delay,
/// [`waiting`](crate::ExecutionService::waiting) has the session, and can cancel the restart.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("cat");
/// # let request = doctest::request("hello");
/// use std::time::Duration;
/// use exec_core::RestartPolicy;
///
/// let policy = RestartPolicy::new()
///     .backoff(Duration::from_secs(2), Duration::from_secs(120))
///     .give_up_after(3, Duration::from_secs(3600))
///     .message("You were interrupted. Look at the state of the workspace, then go on.");
/// let result = service.run(request).restart(policy).await?;
/// assert!(result.earlier_exits.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    pub(super) backoff: Backoff,
    pub(super) max_restarts: usize,
    pub(super) window: Duration,
    pub(super) message: String,
}

impl RestartPolicy {
    /// A policy with the settings above.
    #[must_use]
    pub fn new() -> Self {
        Self {
            backoff: Backoff {
                first: Duration::from_secs(1),
                max: Duration::from_secs(60),
            },
            max_restarts: 5,
            window: Duration::from_secs(600),
            message: DEFAULT_MESSAGE.to_owned(),
        }
    }

    /// Sets the delay of the first restart, which doubles each time, and the longest delay.
    #[must_use]
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.backoff = Backoff { first, max };
        self
    }

    /// Sets after how many restarts within which time the run gives up.
    #[must_use]
    pub fn give_up_after(mut self, restarts: usize, window: Duration) -> Self {
        self.max_restarts = restarts;
        self.window = window;
        self
    }

    /// Sets the text of the follow-up that resumes the session; the default is `Continue where you
    /// left off.`
    #[must_use]
    pub fn message(mut self, text: impl Into<String>) -> Self {
        self.message = text.into();
        self
    }

    pub(crate) fn longest_delay(&self) -> Duration {
        self.backoff.max
    }
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self::new()
    }
}

/// A delay that doubles up to a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) max: Duration,
}

impl Backoff {
    /// After `failures` earlier failures.
    pub(crate) fn delay(self, failures: u32) -> Duration {
        let factor = 2u32.saturating_pow(failures.min(30));
        self.first.saturating_mul(factor).min(self.max)
    }
}

/// The delay, shortened by a random part of up to one half, so that runs that failed
/// together do not come back together.
pub(crate) fn jitter(delay: Duration) -> Duration {
    let (random, _) = Uuid::new_v4().as_u64_pair();
    let part = (random >> 11) as f64 / (1u64 << 53) as f64;
    delay.mul_f64(1.0 - part / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_up_to_its_cap() {
        let backoff = Backoff {
            first: Duration::from_secs(1),
            max: Duration::from_secs(60),
        };
        let delays = [0, 1, 2, 5, 6, u32::MAX].map(|failures| backoff.delay(failures).as_secs());
        assert_eq!(delays, [1, 2, 4, 32, 60, 60]);
        let longest = Backoff {
            first: Duration::MAX,
            max: Duration::MAX,
        };
        assert_eq!(longest.delay(30), Duration::MAX);
    }
}
