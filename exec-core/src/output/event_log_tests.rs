use std::task::{Context, Poll};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{Line, Output, OutputStream};

fn output(number: u64) -> EventKind {
    EventKind::Output(Output {
        stream: OutputStream::Stdout,
        line: Line::whole(Bytes::from(number.to_string())),
        events: Vec::new(),
    })
}

/// The events that a subscriber has received, checked for order.
#[derive(Default)]
struct Received {
    next: u64,
    missed: u64,
    first: Option<u64>,
}

impl Received {
    /// Each line contains the sequence number of its event.
    fn take(&mut self, event: &Event) {
        assert_eq!(event.sequence, self.next, "twice, out of order or skipped");
        self.first.get_or_insert(event.sequence);
        match &event.kind {
            EventKind::Gap { missed } => {
                assert!(*missed > 0);
                self.next += missed;
                self.missed += missed;
            }
            EventKind::Output(output) => {
                assert_eq!(output.line.text(), event.sequence.to_string());
                self.next += 1;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn poll(stream: &mut EventStream) -> Poll<Option<Arc<Event>>> {
    stream.poll_event(&mut Context::from_waker(Waker::noop()))
}

#[derive(Clone, Debug)]
enum TestStep {
    Write(u8),
    Read(u8, u8),
    Subscribe,
    Leave(u8),
}

fn steps() -> impl Strategy<Value = Vec<TestStep>> {
    prop::collection::vec(
        prop_oneof![
            4 => (1u8..20).prop_map(TestStep::Write),
            4 => (any::<u8>(), 1u8..20).prop_map(|(reader, n)| TestStep::Read(reader, n)),
            1 => Just(TestStep::Subscribe),
            1 => any::<u8>().prop_map(TestStep::Leave),
        ],
        0..60,
    )
}

/// Runs the steps. `pending` are events that the child has written and the log has not taken.
fn run(policy: MemoryPolicy, steps: Vec<TestStep>) -> Result<(), TestCaseError> {
    let log = EventLog::new(policy);
    let mut written = 0;
    let mut pending = VecDeque::new();
    let mut readers: Vec<(EventStream, Received)> = Vec::new();
    let largest = output(u64::MAX).cost();
    let mut first_reader_ever = true;
    for step in steps {
        match step {
            TestStep::Write(count) => {
                for _ in 0..count {
                    pending.push_back(output(written));
                    written += 1;
                }
            }
            TestStep::Subscribe => {
                let mut reader = (log.subscribe(), Received::default());
                if let Poll::Ready(Some(event)) = poll(&mut reader.0) {
                    reader.1.take(&event);
                    if first_reader_ever && matches!(policy, MemoryPolicy::BlockChild { .. }) {
                        prop_assert_eq!(
                            reader.1.missed,
                            0,
                            "the first subscriber begins with a gap"
                        );
                    }
                }
                first_reader_ever = false;
                readers.push(reader);
            }
            TestStep::Read(reader, count) if !readers.is_empty() => {
                let reader = usize::from(reader) % readers.len();
                let (stream, seen) = &mut readers[reader];
                for _ in 0..count {
                    if let Poll::Ready(Some(event)) = poll(stream) {
                        let before = seen.missed;
                        seen.take(&event);
                        if matches!(policy, MemoryPolicy::BlockChild { .. }) && event.sequence > 0 {
                            prop_assert_eq!(
                                seen.missed,
                                before,
                                "a present subscriber lost events"
                            );
                        }
                    }
                }
            }
            TestStep::Leave(reader) if !readers.is_empty() => {
                let reader = usize::from(reader) % readers.len();
                drop(readers.swap_remove(reader));
            }
            TestStep::Read(..) | TestStep::Leave(_) => {}
        }
        let all = log.try_push_output(&mut pending);
        if matches!(policy, MemoryPolicy::DropOldest { .. }) {
            prop_assert!(all, "a log that drops never waits");
        }
        let bytes = log.shared.lock().bytes;
        prop_assert!(bytes <= policy.max_bytes().max(largest), "{} bytes", bytes);
    }
    // At the end one more subscriber joins, and all read to the end.
    readers.push((log.subscribe(), Received::default()));
    loop {
        let mut moved = false;
        for (stream, seen) in &mut readers {
            while let Poll::Ready(Some(event)) = poll(stream) {
                seen.take(&event);
                moved = true;
            }
        }
        let before = pending.len();
        log.try_push_output(&mut pending);
        if !moved && pending.len() == before {
            break;
        }
    }
    prop_assert!(
        pending.is_empty(),
        "the child waits although all events were read"
    );
    log.close();
    for (stream, seen) in &mut readers {
        prop_assert!(matches!(poll(stream), Poll::Ready(None)));
        prop_assert_eq!(seen.next, written);
        prop_assert!(seen.first.is_none_or(|first| first == 0));
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_subscriber_gets_every_event_once_and_in_order_or_a_gap(
        steps in steps(), events in 1usize..40,
    ) {
        run(MemoryPolicy::DropOldest { max_bytes: events * output(0).cost() }, steps)?;
    }

    #[test]
    fn a_blocking_log_loses_no_event_of_a_present_subscriber(
        steps in steps(), events in 1usize..40,
    ) {
        run(MemoryPolicy::BlockChild { max_bytes: events * output(0).cost() }, steps)?;
    }
}

#[tokio::test]
async fn a_blocked_writer_continues_when_a_subscriber_reads() {
    let log = EventLog::new(MemoryPolicy::BlockChild {
        max_bytes: 3 * output(0).cost(),
    });
    let mut stream = log.subscribe();
    let writer = tokio::spawn({
        let log = log.clone();
        async move {
            let mut pending: VecDeque<_> = (0..1000).map(output).collect();
            log.push_output(&mut pending).await;
            log.close();
        }
    });
    let mut seen = Received::default();
    while let Some(event) = stream.next().await {
        seen.take(&event);
    }
    writer.await.unwrap();
    assert_eq!((seen.next, seen.missed), (1000, 0));
}

#[tokio::test]
async fn a_subscriber_that_leaves_unblocks_the_writer() {
    let log = EventLog::new(MemoryPolicy::BlockChild { max_bytes: 1 });
    let slow = log.subscribe();
    let mut fast = log.subscribe();
    let mut pending: VecDeque<_> = (0..2).map(output).collect();
    assert!(!log.try_push_output(&mut pending));
    assert!(fast.next().await.is_some());
    assert!(
        !log.try_push_output(&mut pending),
        "the slow subscriber has not read the event"
    );
    drop(slow);
    assert!(log.try_push_output(&mut pending));
}
