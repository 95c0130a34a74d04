//! The last events, so that a client that was away continues without a gap.

use std::collections::VecDeque;
use std::sync::Arc;

/// Events as JSON with their sequence numbers, bounded in number and bytes.
///
/// Invariant: the ring holds the events `first..=last` without a gap; `first` is `last + 1` if it
/// is empty. An event is serialised once, whatever the number of clients.
#[derive(Debug)]
pub struct EventRing {
    events: VecDeque<Arc<str>>,
    bytes: usize,
    last: u64,
    max_events: usize,
    max_bytes: usize,
}

/// The events that a client asked for are no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed;

impl EventRing {
    /// A ring that keeps at most this much.
    #[must_use]
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        Self {
            events: VecDeque::new(),
            bytes: 0,
            last: 0,
            max_events,
            max_bytes,
        }
    }

    /// The number of the last event; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Appends the JSON object of an event, which gets its sequence number as the field `seq`.
    pub fn push(&mut self, object: &str) {
        self.last += 1;
        let event = format!("{{\"seq\":{},{}", self.last, object.trim_start_matches('{'));
        self.bytes += event.len();
        self.events.push_back(event.into());
        while self.events.len() > self.max_events || self.bytes > self.max_bytes {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
        }
    }

    /// The events after a number, oldest first, until their JSON exceeds `max_bytes`.
    ///
    /// # Errors
    ///
    /// [`Missed`] if the first of them was dropped, or has not happened yet.
    pub fn after(&self, number: u64, max_bytes: usize) -> Result<Vec<Arc<str>>, Missed> {
        let behind = usize::try_from(self.last.checked_sub(number).ok_or(Missed)?);
        let behind = behind.map_err(|_| Missed)?;
        let start = self.events.len().checked_sub(behind).ok_or(Missed)?;
        let mut bytes = 0;
        let events = self.events.range(start..).take_while(|event| {
            let first = bytes == 0;
            bytes += event.len();
            first || bytes <= max_bytes
        });
        Ok(events.cloned().collect())
    }

    /// The bytes of the events after a number; `None` if some of them were dropped.
    pub fn bytes_after(&self, number: u64) -> Option<usize> {
        let behind = usize::try_from(self.last.checked_sub(number)?).ok()?;
        let start = self.events.len().checked_sub(behind)?;
        // From the shorter end.
        match start < behind {
            true => {
                let before: usize = self.events.range(..start).map(|event| event.len()).sum();
                Some(self.bytes - before)
            }
            false => Some(self.events.range(start..).map(|event| event.len()).sum()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_continues_without_a_gap_or_learns_that_it_missed_something() {
        let mut ring = EventRing::new(3, 1_000);
        assert_eq!(ring.after(0, 1_000), Ok(Vec::new()));
        assert_eq!(ring.after(1, 1_000), Err(Missed));
        for n in 1..=5 {
            ring.push(&format!("{{\"n\":{n}}}"));
        }
        let texts = |number| {
            let events = ring.after(number, 1_000);
            events.map(|events| events.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(texts(1), Err(Missed));
        assert_eq!(texts(2).unwrap().len(), 3);
        assert_eq!(texts(4).unwrap(), [r#"{"seq":5,"n":5}"#]);
        assert_eq!(texts(5), Ok(Vec::new()));
        assert_eq!(texts(6), Err(Missed));
    }

    #[test]
    fn bytes_bound_the_ring_and_each_batch() {
        let mut ring = EventRing::new(1_000, 100);
        for _ in 0..100 {
            ring.push("{\"type\":\"x\"}");
        }
        assert!(ring.bytes <= 100);
        assert_eq!(ring.after(98, 1).unwrap().len(), 1);
        assert_eq!(ring.bytes_after(100), Some(0));
        assert_eq!(
            ring.bytes_after(99),
            Some(r#"{"seq":100,"type":"x"}"#.len())
        );
        assert_eq!(ring.bytes_after(1), None);
    }
}
