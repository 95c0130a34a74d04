//! The cost of the sandbox: a launch, and a run to its end.

use std::process::Stdio;
use std::time::{Duration, Instant};

use benches::{Bench, Goal};
use exec_core::{CommandConfig, Sandbox};
use tokio::process::Command;
use tokio::runtime::Runtime;

use super::host::Host;

const PROGRAM: &str = "/bin/true";

pub fn compare(bench: &mut Bench, runtime: &Runtime) {
    let command = || CommandConfig::new(PROGRAM, [""; 0]);
    let without = Host::with_command(command(), |builder| builder);
    let sandbox = Some(Sandbox::new().hide("/root").hide("/home"));
    let with = Host::with_sandbox(command(), sandbox.clone(), |builder| builder);
    let with_host = Host::with_sandbox(command(), sandbox, |builder| builder.end_with_host());
    // The first launch tries bubblewrap.
    for host in [&with, &with_host] {
        runtime.block_on(run(host));
    }

    bench
        .compare("launch in a sandbox")
        .floor_timed("without a sandbox", || runtime.block_on(run(&without)).0)
        .ours_timed("with", || runtime.block_on(run(&with)).0)
        .differs("resolves the paths of the sandbox")
        .peer_timed("with, ends with the host", || {
            runtime.block_on(run(&with_host)).0
        })
        .differs("from a thread that lives as long as the process, and told to the watcher")
        .goal(Goal::median_at_most_ms(5.0))
        .run();
    bench
        .compare("run of a program to its end in a sandbox")
        .floor_timed("without a sandbox", || runtime.block_on(run(&without)).1)
        .ours_timed("with", || runtime.block_on(run(&with)).1)
        .peer_timed("bwrap by tokio::process", || {
            runtime.block_on(raw(&without))
        })
        .differs("the same namespaces and mounts, with bubblewrap's own process 1")
        .goal(Goal::median_at_most_ms(50.0))
        .headline()
        .run();
}

/// The time of the launch, and the time until the end of the program is known.
async fn run(host: &Host) -> (Duration, Duration) {
    let start = Instant::now();
    let execution = host.launch().await;
    let launched = start.elapsed();
    let report = execution.wait().await.expect("an end");
    let ended = start.elapsed();
    assert!(report.is_success(), "{report:?}");
    (launched, ended)
}

async fn raw(host: &Host) -> Duration {
    let start = Instant::now();
    let workspace = host.workspace();
    let status = Command::new("bwrap")
        .args(["--unshare-user", "--unshare-pid", "--unshare-ipc"])
        .args(["--new-session", "--ro-bind", "/", "/"])
        .args(["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"])
        .args(["--tmpfs", "/root", "--tmpfs", "/home", "--bind"])
        .args([&workspace, &workspace])
        .args(["--", PROGRAM])
        .current_dir(&workspace)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .status()
        .await;
    assert!(status.expect("bwrap").success());
    start.elapsed()
}
