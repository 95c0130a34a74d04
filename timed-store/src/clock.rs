use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that the caller moves, for tests of code that uses a store.
///
/// Clones show the same time.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use timed_store::{ManualClock, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir()?;
/// let clock = ManualClock::new(SystemTime::now());
/// let store = TimedStorage::<String>::builder(folder.path().join("state.json"))
///     .manual_clock(clock.clone())
///     .open()?;
/// store.store(&"tsukuyomi".to_owned())?;
/// clock.advance(Duration::from_secs(5 * 3600));
/// assert_eq!(store.restore()?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that stands at `time`.
    #[must_use]
    pub fn new(time: SystemTime) -> Self {
        Self(Arc::new(AtomicI64::new(unix_ms(time))))
    }

    /// Moves the clock forward, at most to the end of its range.
    pub fn advance(&self, by: Duration) {
        let later = |now: i64| Some(now.saturating_add(duration_ms(by)));
        // Never fails: the function always has a value.
        let _ = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
    }

    /// Sets the clock. It can go back, as a system clock can.
    pub fn set(&self, time: SystemTime) {
        self.0.store(unix_ms(time), Ordering::SeqCst);
    }
}

/// A moment on two clocks: that of the timers, which stands still while the machine sleeps, and that
/// of the store, which can be set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) timer: Instant,
    pub(crate) clock_ms: i64,
}

impl Moment {
    /// The time since an earlier moment, on the clock that shows more of it.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        let by_clock = self.clock_ms.saturating_sub(earlier.clock_ms);
        let by_clock = Duration::from_millis(u64::try_from(by_clock).unwrap_or(0));
        by_clock.max(self.timer.saturating_duration_since(earlier.timer))
    }
}

/// The clock of a store, in Unix milliseconds.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    System,
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn now_ms(&self) -> i64 {
        match self {
            Self::System => unix_ms(SystemTime::now()),
            Self::Manual(clock) => clock.0.load(Ordering::SeqCst),
        }
    }
}

pub(crate) fn duration_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn unix_ms(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => duration_ms(after),
        Err(before) => -duration_ms(before.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_does_not_go_back_at_the_end_of_its_range() {
        let clock = ManualClock::new(SystemTime::now());
        clock.advance(Duration::MAX);
        clock.advance(Duration::from_secs(1));
        assert_eq!(Clock::Manual(clock).now_ms(), i64::MAX);
    }
}
