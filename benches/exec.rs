//! exec-core beside raw child processes: the cost of supervision, and the time of a stop.
//!
//! The name of a step (`spawn`, `relay`, …) among the arguments runs only that step.

use std::cell::RefCell;
use std::process::Command;
use std::time::{Duration, Instant};

use benches::{Bench, Goal, Outside, Step};
use exec_core::{MemoryPolicy, StopAction, StopLadder, StopLevel, StopOutcome};
use tokio::runtime::Runtime;

#[path = "exec/admission.rs"]
mod admission;
#[path = "exec/budgets.rs"]
mod budgets;
#[path = "exec/growth.rs"]
mod growth;
#[path = "exec/host.rs"]
mod host;
#[path = "exec/hostile.rs"]
mod hostile;
#[path = "exec/idle.rs"]
mod idle;
#[path = "exec/live.rs"]
mod live;
#[path = "exec/relay.rs"]
mod relay;
#[path = "exec/sandbox.rs"]
mod sandbox;
#[path = "exec/spawn.rs"]
mod spawn;
#[path = "exec/tree.rs"]
mod tree;

use host::Host;
use tree::SEVEN;

const TO_THE_GROUP: &str =
    "sends TERM to the process group, which does not contain tools in sessions of their own";
const GRACE: Duration = Duration::from_millis(300);

fn main() {
    if idle::is_host() {
        return idle::play();
    }
    if hostile::is_host() {
        return hostile::play();
    }
    if live::is_agent_or_host() {
        return live::play();
    }
    if admission::is_host() {
        return admission::play();
    }
    host::raise_file_limit();
    let bench = Bench::from_args("exec-core");
    let runtime = Runtime::new().expect("a runtime");
    bench.steps(vec![
        Step::new("spawn", 2, 8.0, |bench| spawn::compare(bench, &runtime)),
        Step::new("sandbox", 2, 8.0, |bench| sandbox::compare(bench, &runtime)),
        Step::new("relay", 1, 14.0, |bench| relay::compare(bench, &runtime)),
        Step::new("live", 2, 20.0, |bench| live::compare(bench, &runtime)),
        Step::new("idle", 0, 4.0, idle::figures),
        Step::new("hostile", 0, 4.0, hostile::figures),
        Step::new("growth", 0, 8.0, |bench| growth::report(bench, &runtime)),
        Step::new("admission", 1, 10.0, |bench| {
            admission::compare(bench, &runtime);
        }),
        Step::new("budgets", 2, 20.0, |bench| {
            budgets::compare(bench, &runtime)
        }),
        Step::new("stop", 1, 24.0, |bench| stop(bench, &runtime)),
        Step::new("stubborn", 1, 4.0, |bench| stop_stubborn(bench, &runtime)),
        Step::new("hundred", 0, 10.0, |bench| stop_hundred(bench, &runtime)),
    ]);
}

/// command-group in a host of the given size, if it is built.
fn command_group(bench: &mut Bench, host: &Host, megabytes: usize) -> Option<Outside> {
    let mut command = Command::new("command_group_peer");
    command.arg(host.workspace()).arg(megabytes.to_string());
    bench.outside("command-group", &mut command)
}

fn stop(bench: &mut Bench, runtime: &Runtime) {
    let host = Host::new(SEVEN, |builder| builder);
    let peer = command_group(bench, &host, 0).map(RefCell::new);
    let mut comparison = bench
        .compare("stop of seven processes that heed TERM")
        .ours_timed("stop", || {
            let (took, level) = runtime.block_on(stop_one(&host));
            assert_eq!(level, StopLevel::Terminated);
            took
        })
        .peer_timed("tokio::process, kill and wait: six live on", || {
            runtime.block_on(kill_one(&host))
        })
        .differs("ends only the launcher")
        .goal(Goal::median_at_most_ms(20.0))
        .goal(Goal::p99_at_most_ms(100.0))
        .headline();
    if let Some(peer) = &peer {
        comparison = comparison
            .peer_timed("command-group, TERM and wait: five live on", || {
                peer.borrow_mut().time("stop")
            })
            .differs(TO_THE_GROUP)
            .peer_timed("command-group, as vibe-kanban: five live on", || {
                peer.borrow_mut().time("stop-as-vibe-kanban")
            })
            .differs(
                "sends INT, TERM and KILL to the process group, with two seconds after each, until \
                 the launcher has ended; the group does not contain tools in sessions of their own",
            );
    }
    comparison.run();
}

fn stop_stubborn(bench: &mut Bench, runtime: &Runtime) {
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, GRACE);
    // Child processes inherit an ignored signal: no process of the tree reacts to TERM.
    let stubborn = format!("trap '' TERM{SEVEN}");
    let host = Host::new(&stubborn, |builder| builder.stop_ladder(ladder.clone()));
    bench
        .compare("stop of seven processes that ignore TERM, beyond the grace")
        .ours_timed("stop", || {
            let (took, level) = runtime.block_on(stop_one(&host));
            assert_eq!(level, StopLevel::Killed);
            took.saturating_sub(GRACE)
        })
        .goal(Goal::median_at_most_ms(50.0))
        .headline()
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
    let mark = &tree::own_mark();
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
