//! The time of the call that starts a process.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use benches::{Bench, Goal};
use exec_core::CommandConfig;
use tokio::process::Command;
use tokio::runtime::Runtime;

use super::host::Host;

const PROGRAM: &str = "/bin/true";

pub fn compare(bench: &mut Bench, runtime: &Runtime) {
    small_and_large(bench, runtime, "a small host", 0);
    let megabytes = if bench.is_smoke() { 10 } else { 1024 };
    // Written, so that the pages are mapped: a fork copies the page tables of all of them.
    let ballast: Vec<u8> = (0..megabytes << 20).map(|n| n as u8).collect();
    small_and_large(bench, runtime, "a host of 1 GB", megabytes);
    std::hint::black_box(&ballast);
}

fn small_and_large(bench: &mut Bench, runtime: &Runtime, name: &str, megabytes: usize) {
    let host = Host::with_command(CommandConfig::new(PROGRAM, [""; 0]), |builder| builder);
    let mut peer = super::command_group(bench, &host, megabytes);
    let mut comparison = bench
        .compare(&format!("spawn from {name}"))
        .floor_timed("tokio::process", || {
            settle(runtime, &host);
            on_worker(runtime, raw(&host, |_| {}))
        })
        .differs("a process in its own group: no record, no tag, no reader, no wait for its end")
        .ours_timed("launch", || {
            settle(runtime, &host);
            on_worker(runtime, ours(&host))
        })
        .peer_timed("tokio::process with a pre_exec", || {
            settle(runtime, &host);
            // SAFETY: the closure does nothing.
            on_worker(
                runtime,
                raw(&host, |command| unsafe {
                    command.pre_exec(|| Ok(()));
                }),
            )
        })
        .differs(
            "like the floor, but with fork: the cost of a library that sets up its child in a closure",
        )
        .goal(Goal::at_most_floor(1.10).limited_by(
            "a spawn without a fork, plus checks of the workspace and the program, a record that \
             survives a crash, nine environment variables, the table of sessions and a task",
        ))
        .headline();
    if let Some(peer) = &mut peer {
        comparison = comparison
            .peer_timed("command-group", || peer.time("spawn"))
            .differs("like the floor, but with fork, in a separate host of the same size");
    }
    comparison.run();
}

/// Gives all contenders the same predecessor. After a fork the next write to each page copies the
/// page (copy-on-write), which would slow down the contender after it.
fn settle(runtime: &Runtime, host: &Host) {
    on_worker(runtime, raw(host, |_| {}));
}

/// Runs the work in a task of the runtime, as in a server.
fn on_worker(runtime: &Runtime, work: impl Future<Output = Duration> + Send + 'static) -> Duration {
    runtime.block_on(runtime.spawn(work)).expect("no panic")
}

fn raw(
    host: &Host,
    more: impl FnOnce(&mut Command) + Send + 'static,
) -> impl Future<Output = Duration> + Send + 'static {
    let workspace = host.workspace();
    async move { spawn_raw(&workspace, more).await }
}

async fn spawn_raw(workspace: &Path, more: impl FnOnce(&mut Command)) -> Duration {
    let start = Instant::now();
    let mut command = Command::new(PROGRAM);
    command
        .current_dir(workspace)
        .env("NORMALIZED_EXECUTION_KIND", "new")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    more(&mut command);
    let mut child = command.spawn().expect("a child");
    let took = start.elapsed();
    child.wait().await.expect("an end");
    took
}

fn ours(host: &Host) -> impl Future<Output = Duration> + Send + 'static {
    let (service, request) = (host.service.clone(), host.request());
    async move {
        let start = Instant::now();
        let execution = service.launch(request).await.expect("a launch");
        let took = start.elapsed();
        execution.wait().await.expect("an end");
        took
    }
}
