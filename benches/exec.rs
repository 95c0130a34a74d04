//! exec-core beside raw child processes: what supervision costs, and how fast a stop is.
//!
//! The name of a part (`spawn`, `relay`, …) among the arguments runs that part alone.

use std::time::{Duration, Instant};

use benches::{Bench, Goal};
use exec_core::{MemoryPolicy, StopAction, StopLadder, StopLevel, StopOutcome};
use tokio::runtime::Runtime;

#[path = "exec/growth.rs"]
mod growth;
#[path = "exec/host.rs"]
mod host;
#[path = "exec/idle.rs"]
mod idle;
#[path = "exec/relay.rs"]
mod relay;
#[path = "exec/spawn.rs"]
mod spawn;
#[path = "exec/tree.rs"]
mod tree;

use host::Host;
use tree::SEVEN;

/// The tree of [`SEVEN`], but none of its shells or sleeps heeds `TERM`.
const SEVEN_STUBBORN: &str = "
    trap '' TERM
    sh -c '
        setsid sh -c \"sleep 600 & sleep 601; :\" &
        setsid sh -c \"sleep 602; :\" &
        wait
    ' &
    wait";
const GRACE: Duration = Duration::from_millis(300);

fn main() {
    if idle::is_host() {
        return idle::play();
    }
    host::raise_file_limit();
    let mut bench = Bench::from_args("exec-core");
    let runtime = Runtime::new().expect("a runtime");
    type Part<'a> = &'a dyn Fn(&mut Bench);
    let parts: [(&str, Part<'_>); 7] = [
        ("spawn", &|bench| spawn::compare(bench, &runtime)),
        ("relay", &|bench| relay::compare(bench, &runtime)),
        ("idle", &|bench| idle::figures(bench)),
        ("growth", &|bench| growth::report(bench, &runtime)),
        ("stop", &|bench| stop(bench, &runtime)),
        ("stubborn", &|bench| stop_stubborn(bench, &runtime)),
        ("hundred", &|bench| stop_hundred(bench, &runtime)),
    ];
    let asked: Vec<String> = std::env::args().collect();
    let all = !parts
        .iter()
        .any(|(name, _)| asked.iter().any(|arg| arg == name));
    for (name, part) in parts {
        if all || asked.iter().any(|arg| arg == name) {
            part(&mut bench);
        }
    }
}

fn stop(bench: &mut Bench, runtime: &Runtime) {
    let host = Host::new(SEVEN, |builder| builder);
    bench
        .compare("stop of seven processes that heed TERM")
        .ours_timed("stop", || {
            let (took, level) = runtime.block_on(stop_one(&host));
            assert_eq!(level, StopLevel::Terminated);
            took
        })
        .peer_timed("tokio::process, kill and wait", || {
            runtime.block_on(kill_one(&host))
        })
        .differs("ends the launcher alone: the other six processes live on")
        .goal(Goal::median_at_most_ms(20.0))
        .goal(Goal::p99_at_most_ms(100.0))
        .headline()
        .run();
}

fn stop_stubborn(bench: &mut Bench, runtime: &Runtime) {
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, GRACE);
    let host = Host::new(SEVEN_STUBBORN, |builder| {
        builder.stop_ladder(ladder.clone())
    });
    bench
        .compare("stop of seven processes that ignore TERM, beyond the grace")
        .ours_timed("stop", || {
            let (took, level) = runtime.block_on(stop_one(&host));
            assert_eq!(level, StopLevel::Killed);
            took.saturating_sub(GRACE)
        })
        .goal(Goal::median_at_most_ms(50.0))
        .run();
}

async fn stop_one(host: &Host) -> (Duration, StopLevel) {
    let execution = host.launch().await;
    while execution.usage().await.expect("a process table").processes < 7 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let start = Instant::now();
    let outcome = execution.stop().await.expect("a stop");
    let took = start.elapsed();
    let StopOutcome::Stopped(report) = outcome else {
        panic!("the tree had ended by itself");
    };
    assert_eq!(report.processes, 7);
    (took, report.level)
}

async fn kill_one(host: &Host) -> Duration {
    let mark = "tokio";
    let mut child = tokio::process::Command::new("/bin/sh")
        .args(["-c", SEVEN])
        .env(tree::MARK, mark)
        .current_dir(host.workspace())
        .spawn()
        .expect("a child");
    tree::until_seven(mark).await;
    let start = Instant::now();
    child.kill().await.expect("an end");
    let took = start.elapsed();
    assert_eq!(tree::end_marked(mark), 6);
    took
}

fn stop_hundred(bench: &mut Bench, runtime: &Runtime) {
    bench.progress("stops of many sessions at once");
    let (sessions, rounds) = if bench.is_smoke() { (3, 1) } else { (100, 5) };
    let host = Host::new(SEVEN, |builder| {
        builder.memory_policy(MemoryPolicy::DropOldest { max_bytes: 1 << 16 })
    });
    let mut worst = Duration::ZERO;
    for _ in 0..rounds {
        let took = runtime.block_on(async {
            for _ in 0..sessions {
                host.launch().await;
            }
            for execution in host.service.executions() {
                while execution.usage().await.expect("a process table").processes < 7 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            let start = Instant::now();
            let mut stops = tokio::task::JoinSet::new();
            for execution in host.service.executions() {
                stops.spawn(async move { execution.stop().await.expect("a stop") });
            }
            assert_eq!(stops.join_all().await.len(), sessions);
            start.elapsed()
        });
        worst = worst.max(took);
    }
    bench.figure(
        &format!("{sessions} sessions of seven processes stopped at once, slowest of {rounds}"),
        worst.as_secs_f64(),
        "s",
        Some(Goal::at_most(1.0)),
    );
}
