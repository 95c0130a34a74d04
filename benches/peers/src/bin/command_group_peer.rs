//! Process groups with command-group, as vibe-kanban uses it.
//!
//! Usage: `command_group_peer WORKSPACE MEGABYTES`; the second argument is the size of this host. The
//! answers to `spawn`, `stop` and `stop-as-vibe-kanban` are nanoseconds.

use std::process::Stdio;
use std::time::{Duration, Instant};

use command_group::{AsyncCommandGroup, AsyncGroupChild, Signal, UnixChildExt};
use tokio::process::Command;
use tokio::runtime::Runtime;

#[path = "../../../exec/tree.rs"]
mod tree;

/// The pause of vibe-kanban after each signal, even if the group has ended.
const PAUSE: Duration = Duration::from_secs(2);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, workspace, megabytes] = &args[..] else {
        panic!("usage: command_group_peer WORKSPACE MEGABYTES");
    };
    let megabytes: usize = megabytes.parse().expect("a number of megabytes");
    // Written, so that the pages are mapped: a fork copies the page tables of all of them.
    let ballast: Vec<u8> = (0..megabytes << 20).map(|n| n as u8).collect();
    let runtime = Runtime::new().expect("a runtime");
    let spawn = || {
        // In a task of the runtime, as in a server.
        let work = runtime.spawn(spawn(workspace.clone()));
        runtime.block_on(work).expect("no panic")
    };
    peers::serve(|request| {
        let took = match request {
            // Twice, because our contender is also measured after another spawn.
            "spawn" => {
                spawn();
                spawn()
            }
            "stop" => runtime.block_on(stop(workspace, term_and_wait)),
            "stop-as-vibe-kanban" => runtime.block_on(stop(workspace, as_vibe_kanban)),
            other => panic!("no such work: {other}"),
        };
        took.as_nanos()
    });
    std::hint::black_box(&ballast);
}

async fn spawn(workspace: String) -> Duration {
    let start = Instant::now();
    let mut child = Command::new("/bin/true")
        .current_dir(workspace)
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

async fn stop(workspace: &str, end: impl AsyncFnOnce(&mut AsyncGroupChild)) -> Duration {
    let mark = &tree::own_mark();
    let mut child = Command::new("/bin/sh")
        .args(["-c", tree::SEVEN])
        .env(tree::MARK, mark)
        .current_dir(workspace)
        // Not inherited: the tree must not keep the pipe to the bench open.
        .stdout(Stdio::null())
        .group_spawn()
        .expect("a child");
    tree::until_seven(mark).await;
    let start = Instant::now();
    end(&mut child).await;
    let took = start.elapsed();
    // Five processes survive: the tools, which are in sessions of their own. The processes of the
    // group may need some time to end.
    let deadline = Instant::now() + Duration::from_secs(5);
    while tree::marked(mark).len() > 5 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(tree::end_marked(mark), 5, "surviving processes");
    took
}

async fn term_and_wait(child: &mut AsyncGroupChild) {
    child.signal(Signal::SIGTERM).expect("a signal");
    child.wait().await.expect("an end");
}

/// The signals and pauses of vibe-kanban's `kill_process_group`.
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
