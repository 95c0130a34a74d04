use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::*;

fn session() -> SessionId {
    SessionId::new("A", "p", "1").unwrap()
}

fn failed(kind: FailureKind) -> AttemptEnd {
    AttemptEnd::Failed {
        kind,
        has_progressed: true,
    }
}

fn limited(reset: Option<Duration>) -> AttemptEnd {
    failed(FailureKind::Limited {
        scope: None,
        resets_at: reset.map(|reset| SystemTime::now() + reset),
    })
}

/// Attempts whose ends are given; the message of each is kept.
#[derive(Default)]
struct Scripted {
    ends: VecDeque<AttemptEnd>,
    messages: Vec<Option<String>>,
    times: Vec<Instant>,
    is_resumable: bool,
}

impl Attempts for Scripted {
    type Result = usize;

    async fn attempt(
        &mut self,
        message: Option<&str>,
        pass: &mut Option<HoldPass>,
    ) -> Result<Attempt<usize>, Error> {
        self.messages.push(message.map(str::to_owned));
        self.times.push(Instant::now());
        let end = self.ends.pop_front().unwrap();
        if end == AttemptEnd::Done
            && let Some(pass) = pass
        {
            pass.progress();
        }
        Ok(Attempt {
            result: self.messages.len(),
            end,
            is_resumable: self.is_resumable,
            session_id: session(),
        })
    }
}

#[derive(Default)]
struct Fixture {
    holds: CredentialHolds,
    waits: Arc<WaitList>,
    limits: Option<LimitPolicy>,
    restart: Option<RestartPolicy>,
}

impl Fixture {
    async fn run(&self, ends: impl IntoIterator<Item = AttemptEnd>) -> Scripted {
        let mut attempts = Scripted {
            ends: ends.into_iter().collect(),
            is_resumable: true,
            ..Scripted::default()
        };
        let results = self.resume_loop().run(&session(), &mut attempts).await;
        assert_eq!(results.unwrap().len(), attempts.messages.len());
        attempts
    }

    fn resume_loop(&self) -> ResumeLoop<'_> {
        ResumeLoop {
            limits: self.limits.as_ref(),
            restart: self.restart.as_ref(),
            holds: &self.holds,
            waits: &self.waits,
            credential: "key",
            profile_label: "a",
        }
    }
}

fn seconds(times: &[Instant]) -> Vec<u64> {
    let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
    pauses.map(|pause| pause.as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_restart_backs_off_sends_its_message_and_gives_up() {
    let policy = RestartPolicy::new().give_up_after(4, Duration::from_secs(600));
    let fixture = Fixture {
        restart: Some(policy),
        ..Fixture::default()
    };
    let crashes = || std::iter::repeat_n(failed(FailureKind::Agent), 20);
    let run = fixture.run(crashes()).await;
    assert_eq!(seconds(&run.times), [1, 2, 4, 8]);
    assert_eq!(run.messages[0], None, "the prompt is sent once");
    let message = Some("Continue where you left off.".to_owned());
    assert!(run.messages[1..].iter().all(|sent| *sent == message));
    let run = fixture
        .run([
            failed(FailureKind::Network),
            AttemptEnd::Silent,
            AttemptEnd::Done,
        ])
        .await;
    assert_eq!(run.messages.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn restarts_outside_of_the_window_are_forgotten() {
    let hourly = Duration::from_secs(3600);
    let policy = RestartPolicy::new().backoff(hourly, hourly);
    let fixture = Fixture {
        restart: Some(policy.give_up_after(2, hourly)),
        ..Fixture::default()
    };
    let crashes = std::iter::repeat_n(failed(FailureKind::Agent), 10);
    let run = fixture.run(crashes.chain([AttemptEnd::Done])).await;
    assert_eq!(run.messages.len(), 11);
}

#[tokio::test(start_paused = true)]
async fn what_a_repetition_does_not_help_is_not_repeated() {
    let fixture = Fixture {
        restart: Some(RestartPolicy::new()),
        limits: Some(LimitPolicy::new()),
        ..Fixture::default()
    };
    for end in [
        AttemptEnd::Done,
        failed(FailureKind::Authentication),
        failed(FailureKind::ContextFull),
        failed(FailureKind::SessionGone),
        AttemptEnd::Failed {
            kind: FailureKind::Agent,
            has_progressed: false,
        },
    ] {
        let run = fixture.run([end.clone()]).await;
        assert_eq!(run.messages.len(), 1, "{end:?}");
    }
    // A session that the agent does not know cannot be resumed.
    for end in [
        AttemptEnd::Silent,
        limited(None),
        failed(FailureKind::Network),
    ] {
        let mut attempts = Scripted {
            ends: [end].into(),
            ..Scripted::default()
        };
        let fixture = Fixture {
            restart: Some(RestartPolicy::new()),
            limits: Some(LimitPolicy::new()),
            ..Fixture::default()
        };
        let resume_loop = fixture.resume_loop();
        resume_loop.run(&session(), &mut attempts).await.unwrap();
        assert_eq!(attempts.messages.len(), 1);
    }
    // Without a policy for limits, a limit is not retried at once.
    let fixture = Fixture {
        restart: Some(RestartPolicy::new()),
        ..Fixture::default()
    };
    assert_eq!(fixture.run([limited(None)]).await.messages.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_waited_for_until_its_reset() {
    let fixture = Fixture {
        limits: Some(LimitPolicy::new().message("go on")),
        ..Fixture::default()
    };
    let reset = Some(Duration::from_secs(7200));
    let run = fixture.run([limited(reset), AttemptEnd::Done]).await;
    assert_eq!(run.messages, [None, Some("go on".to_owned())]);
    let waited = (run.times[1] - run.times[0]).as_secs();
    // The reset is a wall-clock time, which goes on while tokio's time is paused.
    assert!((7190..=7201).contains(&waited), "{waited}");
    assert!(fixture.waits.snapshot().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_limit_without_a_reset_backs_off_and_progress_begins_anew() {
    let fixture = Fixture {
        limits: Some(LimitPolicy::new()),
        ..Fixture::default()
    };
    for _ in 0..2 {
        let overloaded = failed(FailureKind::Overloaded);
        let run = fixture
            .run([limited(None), overloaded, limited(None), AttemptEnd::Done])
            .await;
        let pauses = seconds(&run.times);
        for (pause, longest) in pauses.iter().zip([30, 60, 120]) {
            assert!((longest / 2..=longest).contains(pause), "{pauses:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_beyond_the_longest_wait_is_not_waited_for() {
    let fixture = Fixture {
        limits: Some(LimitPolicy::new().max_wait(Duration::from_secs(3600))),
        ..Fixture::default()
    };
    let begin = Instant::now();
    let reset = Some(Duration::from_secs(7 * 24 * 3600));
    let run = fixture.run([limited(reset)]).await;
    assert_eq!(run.messages.len(), 1);
    assert_eq!(begin.elapsed(), Duration::ZERO);
    // The waits of a run add up.
    let fixture = Fixture {
        limits: Some(LimitPolicy::new().max_wait(Duration::from_secs(3600))),
        ..Fixture::default()
    };
    let half = Some(Duration::from_secs(2000));
    let run = fixture.run([limited(half), limited(half)]).await;
    assert_eq!(run.messages.len(), 2);
}

/// A model that refuses all requests until its reset, and counts them.
struct Model {
    reset: Instant,
    says_when: bool,
    refused: AtomicUsize,
    served: AtomicUsize,
    under_way: AtomicUsize,
}

struct Requests(Arc<Model>);

impl Attempts for Requests {
    type Result = ();

    async fn attempt(
        &mut self,
        _message: Option<&str>,
        pass: &mut Option<HoldPass>,
    ) -> Result<Attempt<()>, Error> {
        let model = &self.0;
        model.under_way.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(500)).await;
        model.under_way.fetch_sub(1, Ordering::SeqCst);
        let left = model.reset.saturating_duration_since(Instant::now());
        let end = if left.is_zero() {
            model.served.fetch_add(1, Ordering::SeqCst);
            if let Some(pass) = pass {
                pass.progress();
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            AttemptEnd::Done
        } else {
            model.refused.fetch_add(1, Ordering::SeqCst);
            limited(model.says_when.then_some(left))
        };
        Ok(Attempt {
            result: (),
            end,
            is_resumable: true,
            session_id: session(),
        })
    }
}

/// `count` runs meet a limit of an hour; returns how many requests were refused, and how long after
/// the reset the last run was served.
async fn crowd(count: usize, says_when: bool, joins_late: bool) -> (usize, Duration) {
    let hour = Duration::from_secs(3600);
    let model = Arc::new(Model {
        reset: Instant::now() + hour,
        says_when,
        refused: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
        under_way: AtomicUsize::new(0),
    });
    let fixture = Arc::new(Fixture {
        limits: Some(LimitPolicy::new()),
        ..Fixture::default()
    });
    let mut runs = tokio::task::JoinSet::new();
    for number in 0..count {
        let (fixture, model) = (Arc::clone(&fixture), Arc::clone(&model));
        runs.spawn(async move {
            if joins_late {
                tokio::time::sleep(Duration::from_secs(number as u64)).await;
            }
            let mut requests = Requests(model);
            let resume_loop = fixture.resume_loop();
            resume_loop.run(&session(), &mut requests).await.unwrap();
        });
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(
        fixture.waits.snapshot().len(),
        count,
        "all of them are visible"
    );
    runs.join_all().await;
    assert_eq!(model.served.load(Ordering::SeqCst), count);
    let late = Instant::now() - model.reset;
    (model.refused.load(Ordering::SeqCst), late)
}

#[tokio::test(start_paused = true)]
async fn twenty_runs_hit_a_known_limit_once_each_and_its_reset_once() {
    let (refused, late) = crowd(20, true, false).await;
    assert_eq!(refused, 20, "all began before the limit was known");
    assert!(late < Duration::from_secs(65), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_begins_while_the_limit_holds_does_not_hit_it() {
    let (refused, late) = crowd(20, true, true).await;
    assert_eq!(refused, 1);
    assert!(late < Duration::from_secs(65), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn twenty_runs_probe_an_unknown_limit_one_at_a_time() {
    let (refused, late) = crowd(20, false, false).await;
    // 20 at the beginning; then one probe after each back-off of 15 s to 15 min.
    assert!((24..=20 + 20).contains(&refused), "{refused}");
    assert!(late < Duration::from_secs(16 * 60), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_lets_the_next_run_probe() {
    let fixture = Arc::new(Fixture {
        limits: Some(LimitPolicy::new()),
        ..Fixture::default()
    });
    let policy = LimitPolicy::new();
    let far = Instant::now() + Duration::from_secs(10 * 24 * 3600);
    let ticket = || fixture.waits.ticket(&session(), "a");
    let pass = || async { fixture.holds.pass("key", &ticket(), far).await.unwrap() };
    let mut first = pass().await;
    let mut second = pass().await;
    first.limited(&policy, Some(SystemTime::now() + Duration::from_secs(60)));
    let probe = pass().await;
    // A late report of the same limit does not disturb the probe.
    second.limited(&policy, None);
    let waiting = pass();
    tokio::pin!(waiting);
    assert!(futures_pending(&mut waiting).await);
    drop(probe);
    let mut next = waiting.await;
    next.progress();
    pass().await;
    pass().await;
}

async fn futures_pending<F: Future>(future: &mut std::pin::Pin<&mut F>) -> bool {
    let hours = tokio::time::sleep(Duration::from_secs(7200));
    tokio::select! {
        _ = future.as_mut() => false,
        () = hours => true,
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_cancelled_returns_the_last_result() {
    for policies in [true, false] {
        let fixture = Arc::new(Fixture {
            limits: policies.then(LimitPolicy::new),
            restart: (!policies).then(RestartPolicy::new),
            ..Fixture::default()
        });
        let sent = Arc::new(Mutex::new(0));
        let run = tokio::spawn({
            let (fixture, sent) = (Arc::clone(&fixture), Arc::clone(&sent));
            let end = match policies {
                true => limited(Some(Duration::from_secs(3600))),
                false => failed(FailureKind::Network),
            };
            async move {
                let run = fixture.run([end]).await;
                *sent.lock().unwrap() = run.messages.len();
            }
        });
        while fixture.waits.snapshot().is_empty() {
            tokio::task::yield_now().await;
        }
        fixture.waits.snapshot()[0].cancel();
        run.await.unwrap();
        assert_eq!(*sent.lock().unwrap(), 1);
    }
}

/// An attempt that fails, then an error.
struct FailingNext(Option<Error>);

impl Attempts for FailingNext {
    type Result = ();

    async fn attempt(
        &mut self,
        message: Option<&str>,
        _pass: &mut Option<HoldPass>,
    ) -> Result<Attempt<()>, Error> {
        match message {
            Some(_) => Err(self.0.take().unwrap()),
            None => Ok(Attempt {
                result: (),
                end: failed(FailureKind::Network),
                is_resumable: true,
                session_id: session(),
            }),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn processes_that_are_left_are_an_error_of_every_attempt() {
    let fixture = Fixture {
        restart: Some(RestartPolicy::new()),
        ..Fixture::default()
    };
    let run = async |error| {
        let mut attempts = FailingNext(Some(error));
        fixture.resume_loop().run(&session(), &mut attempts).await
    };
    let session = session();
    let results = run(Error::SessionBusy { session }).await.unwrap();
    assert_eq!(results.len(), 1, "it was not launched");
    let session = self::session();
    let pids = vec![7];
    let error = run(Error::StillAlive { session, pids }).await.unwrap_err();
    assert!(matches!(error, Error::StillAlive { .. }), "{error}");
}
