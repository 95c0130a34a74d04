//! Races, cancelled futures, and many live sessions at once.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use exec_core::{Decision, Error, LiveRequest, LiveSession, LiveStatus, SettledBy, TurnOutcome};

use crate::lab::{Lab, helper_lab, helper_passed, run_helper, until, within};
use crate::live_agent::{AGENT, agent, answer, live_script, open, open_with};

/// Pseudo-random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_answers_exactly_one_wins() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    for round in 0..20 {
        let turn = session.prompt(format!("ask p{round}")).unwrap();
        let asks = |status: &LiveStatus| *status == LiveStatus::WaitingForPermission;
        within("the question", session.wait_for(asks))
            .await
            .unwrap();
        let won = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (session, won) = (&session, &won);
                scope.spawn(move || {
                    let decision = match thread % 2 {
                        0 => Decision::Allow,
                        _ => Decision::Deny,
                    };
                    match session.answer(&format!("p{round}"), decision) {
                        Ok(()) => drop(won.fetch_add(1, Ordering::SeqCst)),
                        Err(Error::AlreadySettled { by, .. }) => {
                            assert_eq!(by, Some(SettledBy::Caller));
                        }
                        Err(error) => panic!("{error}"),
                    }
                });
            }
        });
        assert_eq!(won.load(Ordering::SeqCst), 1);
        let report = within("the turn", turn.ended()).await.unwrap();
        assert_eq!(report.outcome, TurnOutcome::Completed);
    }
    within("the close", session.close()).await.unwrap();
    assert_eq!(lab.written("read").matches("answer ").count(), 20);
}

/// The cancel meets the turn before its start at the agent, during it, and after its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_at_any_moment_keeps_the_session() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let mut random = Random(7);
    let (mut interrupted, mut completed, mut too_late) = (0, 0, 0);
    for round in 0..100 {
        let text = match round % 3 {
            0 => "work",
            _ => "say x",
        };
        let turn = session.prompt(text).unwrap();
        tokio::time::sleep(Duration::from_micros(random.below(3000))).await;
        match within("the interrupt", session.interrupt(turn.id())).await {
            Ok(report) if report.turn().outcome == TurnOutcome::Interrupted => interrupted += 1,
            Ok(report) => {
                assert_eq!(report.turn().outcome, TurnOutcome::Completed);
                completed += 1;
            }
            Err(Error::TurnNotRunning { .. }) => too_late += 1,
            Err(error) => panic!("{error}"),
        }
        let own = format!("answer {round}");
        assert_eq!(answer(&session, &format!("say {own}")).await, own);
    }
    assert_eq!(interrupted + completed + too_late, 100);
    assert!(interrupted >= 33, "{interrupted} {completed} {too_late}");
    within("the close", session.close()).await.unwrap();
}

/// Polls a future this many times and drops it; its output if it is ready before.
async fn poll_times<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls < times {
            polls += 1;
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
        }
        match polls < times {
            true => Poll::Pending,
            false => Poll::Ready(None),
        }
    })
    .await
}

#[tokio::test]
async fn an_opening_that_is_dropped_anywhere_leaves_no_process() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let mut times = 0;
    loop {
        let opening = service.open_live(LiveRequest::new(lab.context()));
        if let Some(opened) = within("a poll", poll_times(times, opening)).await {
            within("the close", opened.unwrap().close()).await.unwrap();
            break;
        }
        lab.until_processes(0).await;
        until("the registry", || service.executions().is_empty()).await;
        times += 1;
    }
    assert!(times >= 2, "{times}");
}

#[tokio::test]
async fn commands_that_are_dropped_anywhere_leave_the_session_usable() {
    let lab = Lab::new();
    let command = exec_core::CommandConfig::new("sh", ["-c", AGENT, "agent"]);
    let service = lab.service(live_script(AGENT).variant("steer", Some(command)));
    let context = lab.context().with_variant("steer");
    let session = open_with(&service, LiveRequest::new(context)).await;
    for times in 0..6 {
        let turn = session.prompt("work").unwrap();
        drop(poll_times(times.min(1), turn.ended()).await);
        drop(poll_times(times, session.steer("on")).await);
        drop(poll_times(times.min(1), session.wait_for(|_| false)).await);
        drop(poll_times(times, session.interrupt(turn.id())).await);
        match within("the interrupt", session.interrupt(turn.id())).await {
            Ok(_) | Err(Error::TurnNotRunning { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let report = within("the turn", turn.ended()).await.unwrap();
        assert_eq!(report.outcome, TurnOutcome::Interrupted, "{times}");
        assert_eq!(answer(&session, "say next").await, "next", "{times}");
    }
    // Each text was delivered at most once.
    let steers = lab.written("read").matches("steer on").count();
    assert!(steers <= 5, "{steers}");
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn a_close_that_was_polled_once_goes_on_without_its_future() {
    let lab = Lab::new();
    let service = lab.service(agent());
    for times in 1..4 {
        let session = open(&lab, &service).await;
        session.prompt("tool").unwrap();
        drop(poll_times(times, session.close()).await);
        within("the end", session.execution().wait()).await.unwrap();
        assert_eq!(lab.processes(), [0; 0]);
    }
}

#[tokio::test]
async fn a_resume_that_is_dropped_anywhere_loses_no_message() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let session = open(&lab, &service).await;
    session.prompt("work").unwrap();
    let kept = session.prompt("say kept").unwrap();
    within("the stop", session.execution().stop())
        .await
        .unwrap();
    let mut times = 0;
    let resumed = loop {
        if let Some(resumed) = within("a poll", poll_times(times, session.resume())).await {
            break resumed.unwrap();
        }
        assert_eq!(session.queued().len(), 1);
        lab.until_processes(0).await;
        until("the registry", || service.executions().is_empty()).await;
        times += 1;
    };
    assert!(times >= 2, "{times}");
    let report = within("the turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    within("the close", resumed.close()).await.unwrap();
    assert_eq!(lab.written("read").matches("say kept").count(), 1);
}

/// In a process of its own, whose memory nothing else changes.
#[test]
fn two_hundred_sessions_at_once_need_little_memory_each() {
    let lab = Lab::new();
    run_helper(&lab, "live_races::host_of_two_hundred_sessions");
}

const SESSIONS: usize = 200;
/// Beside the event bound, which these sessions are far from.
const MOST_BYTES: usize = 64 << 10;

#[test]
#[ignore = "a helper process of the test above"]
fn host_of_two_hundred_sessions() {
    let Some(lab) = helper_lab() else { return };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        // No file that all of them append to, and ids of their own.
        let agent = "
            while read -r word rest; do
                case $word in
                    open) echo opened ;;
                    prompt) echo say $rest; echo done ;;
                esac
            done";
        let service = lab.service(live_script(agent));
        // The first session pays for what all share.
        let first = open(&lab, &service).await;
        answer(&first, "a").await;
        let before = resident_bytes();
        let opening: Vec<_> = (0..SESSIONS)
            .map(|_| {
                let service = service.clone();
                let request = LiveRequest::new(lab.context());
                tokio::spawn(async move { service.open_live(request).await.unwrap() })
            })
            .collect();
        let mut sessions: Vec<LiveSession> = Vec::new();
        for session in opening {
            sessions.push(within("a session", session).await.unwrap());
        }
        for round in 0..3 {
            let turns: Vec<_> = sessions
                .iter()
                .map(|session| session.prompt(format!("{round}")).unwrap())
                .collect();
            for turn in turns {
                let report = within("a turn", turn.ended()).await.unwrap();
                assert_eq!(report.text, round.to_string());
            }
        }
        let each = resident_bytes().saturating_sub(before) / SESSIONS;
        println!("{each} bytes for each session");
        assert!(each <= MOST_BYTES, "{each} bytes for each session");
        within("the shutdown", service.shutdown(Duration::from_secs(30))).await;
    });
    assert_eq!(lab.processes(), [0; 0]);
    helper_passed(&lab);
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split(' ').nth(1).unwrap();
    pages.parse::<usize>().unwrap() * rustix::param::page_size()
}
