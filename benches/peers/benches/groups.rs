//! Process groups by command-group, as vibe-kanban uses it, beside exec-core.
//!
//! `cd benches/peers && cargo bench --bench groups -- --side-by-side`

use std::process::Stdio;
use std::time::{Duration, Instant};

use benches::Bench;
use command_group::{AsyncCommandGroup, AsyncGroupChild, Signal, UnixChildExt};
use tokio::process::Command;
use tokio::runtime::Runtime;

#[path = "../../exec/tree.rs"]
mod tree;

/// What vibe-kanban gives the group after each signal, ended or not.
const PAUSE: Duration = Duration::from_secs(2);

fn main() {
    let mut bench = Bench::from_args("exec-core");
    let runtime = Runtime::new().expect("a runtime");
    bench
        .compare("spawn from a small host")
        .peer_timed("command-group", || {
            on_worker(&runtime, spawn());
            on_worker(&runtime, spawn())
        })
        .differs("starts a process in a group: no record, no tag, nobody who reads or waits")
        .run();

    let mut left = 0;
    bench
        .compare("stop of seven processes that heed TERM")
        .peer_timed("command-group, TERM to the group and wait", || {
            let (took, survivors) = runtime.block_on(stop(term_and_wait));
            left = survivors;
            took
        })
        .differs("tools in sessions of their own are not in the group: five processes live on")
        .run();
    bench.figure(
        "processes of seven that TERM to the group by command-group leaves",
        left as f64,
        "",
        None,
    );

    let (took, left) = runtime.block_on(stop(as_vibe_kanban));
    bench.figure(
        "stop of seven processes by command-group as vibe-kanban uses it",
        took.as_secs_f64(),
        "s",
        None,
    );
    bench.figure(
        "processes of seven that this stop leaves",
        left as f64,
        "",
        None,
    );
}

/// In a task of the runtime, as in a server.
fn on_worker(runtime: &Runtime, work: impl Future<Output = Duration> + Send + 'static) -> Duration {
    runtime.block_on(runtime.spawn(work)).expect("no panic")
}

async fn spawn() -> Duration {
    let start = Instant::now();
    let mut child = Command::new("/bin/true")
        .current_dir("/tmp")
        .env("NORMALIZED_EXECUTION_KIND", "new")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .group_spawn()
        .expect("a child");
    let took = start.elapsed();
    child.wait().await.expect("an end");
    took
}

/// How long it took, and how many processes it left; they are ended then.
async fn stop(end: impl AsyncFnOnce(&mut AsyncGroupChild)) -> (Duration, usize) {
    let mark = "command-group";
    let mut child = Command::new("/bin/sh")
        .args(["-c", tree::SEVEN])
        .env(tree::MARK, mark)
        .group_spawn()
        .expect("a child");
    tree::until_seven(mark).await;
    let start = Instant::now();
    end(&mut child).await;
    (start.elapsed(), tree::end_marked(mark))
}

async fn term_and_wait(child: &mut AsyncGroupChild) {
    child.signal(Signal::SIGTERM).expect("a signal");
    child.wait().await.expect("an end");
}

/// The order and the pauses of its `kill_process_group`.
async fn as_vibe_kanban(child: &mut AsyncGroupChild) {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let _ = child.signal(signal);
        tokio::time::sleep(PAUSE).await;
        if child.try_wait().expect("a child").is_some() {
            break;
        }
    }
    let _ = child.kill().await;
    let _ = child.wait().await;
}
