//! The activity of an agent, and the watchdogs that react to its absence.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Watchdog;
use crate::process::LONGEST_LIMIT;

/// The limits of the watchdogs; `None` is off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WatchdogLimits {
    pub(crate) no_output: Option<Duration>,
    pub(crate) after_finish: Option<Duration>,
}

/// The last signs of activity of an agent.
pub(crate) struct Activity {
    times: Mutex<ActivityTimes>,
    changed: Notify,
}

struct ActivityTimes {
    output_at: Instant,
    has_written: bool,
    finished_at: Option<Instant>,
    /// How many of its pipes are not read because the log is full.
    blocked: usize,
    /// An idle live session is silent.
    is_expected: bool,
}

/// A look at the activity of an agent.
pub(crate) struct ActivityLook {
    pub(crate) has_written: bool,
    pub(crate) has_finished: bool,
    pub(crate) silence: Duration,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            times: Mutex::new(ActivityTimes {
                output_at: Instant::now(),
                has_written: false,
                finished_at: None,
                blocked: 0,
                is_expected: true,
            }),
            changed: Notify::new(),
        }
    }

    pub(crate) fn output(&self) {
        let mut times = self.lock();
        times.output_at = Instant::now();
        times.has_written = true;
    }

    /// The state of now.
    pub(crate) fn look(&self) -> ActivityLook {
        let times = self.lock();
        ActivityLook {
            has_written: times.has_written,
            has_finished: times.finished_at.is_some(),
            silence: times.output_at.elapsed(),
        }
    }

    pub(crate) fn finished(&self) {
        self.lock().finished_at.get_or_insert_with(Instant::now);
        self.changed.notify_one();
    }

    /// Whether silence counts from now on.
    pub(crate) fn expect_output(&self, is_expected: bool) {
        let mut times = self.lock();
        times.is_expected = is_expected;
        times.output_at = Instant::now();
        drop(times);
        self.changed.notify_one();
    }

    /// While the guard lives, the agent cannot write and does not count as silent.
    pub(crate) fn block_output(&self) -> BlockedOutput<'_> {
        self.lock().blocked += 1;
        BlockedOutput(self)
    }

    /// Waits until a limit is exceeded.
    ///
    /// Output only moves the deadline, so it does not wake the watchdog: the deadline is computed
    /// again when the old one has passed.
    pub(crate) async fn idle(&self, limits: WatchdogLimits) -> Watchdog {
        loop {
            match self.next_deadline(limits) {
                Some((deadline, watchdog)) if deadline <= Instant::now() => return watchdog,
                Some((deadline, _)) => tokio::select! {
                    () = tokio::time::sleep_until(deadline) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    fn next_deadline(&self, limits: WatchdogLimits) -> Option<(Instant, Watchdog)> {
        let times = self.lock();
        let silent_since = match times.blocked {
            0 => times.output_at,
            _ => Instant::now(),
        };
        let no_output = limits
            .no_output
            .filter(|_| times.is_expected)
            .map(|limit| (silent_since + limit.min(LONGEST_LIMIT), Watchdog::NoOutput));
        let after_finish = times
            .finished_at
            .zip(limits.after_finish)
            .map(|(at, limit)| {
                (
                    at + limit.min(LONGEST_LIMIT),
                    Watchdog::StillAliveAfterFinish,
                )
            });
        let deadlines = no_output.into_iter().chain(after_finish);
        deadlines.min_by_key(|(deadline, _)| *deadline)
    }

    fn lock(&self) -> MutexGuard<'_, ActivityTimes> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct BlockedOutput<'a>(&'a Activity);

impl Drop for BlockedOutput<'_> {
    fn drop(&mut self) {
        let mut times = self.0.lock();
        times.blocked -= 1;
        times.output_at = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WatchdogLimits = WatchdogLimits {
        no_output: Some(Duration::from_secs(10)),
        after_finish: Some(Duration::from_secs(3)),
    };

    #[tokio::test(start_paused = true)]
    async fn silence_is_measured_from_the_last_output() {
        let activity = Activity::new();
        let begin = Instant::now();
        let talk = async {
            tokio::time::sleep(Duration::from_secs(8)).await;
            activity.output();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            fired = activity.idle(LIMITS) => assert_eq!(fired, Watchdog::NoOutput),
            () = talk => {}
        }
        assert_eq!(begin.elapsed().as_secs(), 18);
    }

    #[tokio::test(start_paused = true)]
    async fn the_final_event_starts_the_second_watchdog() {
        let activity = Activity::new();
        let begin = Instant::now();
        let talk = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            activity.finished();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            fired = activity.idle(LIMITS) => assert_eq!(fired, Watchdog::StillAliveAfterFinish),
            () = talk => {}
        }
        assert_eq!(begin.elapsed().as_secs(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_under_back_pressure_is_not_silent() {
        let activity = Activity::new();
        let begin = Instant::now();
        let hold = async {
            let blocked = activity.block_output();
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(blocked);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            fired = activity.idle(LIMITS) => assert_eq!(fired, Watchdog::NoOutput),
            () = hold => {}
        }
        assert_eq!(begin.elapsed().as_secs(), 70);
    }
}
