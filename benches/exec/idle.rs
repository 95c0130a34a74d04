//! The memory of a host with a thousand agents that wait for their models.

use std::process::{Command, Stdio};

use benches::{Bench, Goal, resident_kib, thousands};

use super::host::{Host, raise_file_limit};

const SESSIONS: &str = "EXEC_BENCH_IDLE_SESSIONS";

/// Whether this process is the host of the idle sessions. The host is a separate process, so that
/// its memory contains nothing else.
pub fn is_host() -> bool {
    std::env::var_os(SESSIONS).is_some()
}

/// Starts the sessions and prints the resident memory before and after.
pub fn play() {
    raise_file_limit();
    let sessions: usize = std::env::var(SESSIONS)
        .ok()
        .and_then(|text| text.parse().ok())
        .expect("a number of sessions");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let host = Host::new("echo '{\"type\":\"init\"}'; exec sleep 600", |builder| {
            builder
        });
        let before = resident_kib(std::process::id());
        let mut executions = Vec::new();
        for _ in 0..sessions {
            executions.push(host.launch().await);
        }
        for execution in &executions {
            let mut events = execution.events();
            while let Some(event) = events.next().await {
                if matches!(event.kind, exec_core::EventKind::Output(_)) {
                    break;
                }
            }
        }
        println!("{before} {}", resident_kib(std::process::id()));
        let mut stops = tokio::task::JoinSet::new();
        for execution in executions {
            stops.spawn(async move { execution.stop().await.expect("a stop") });
        }
        stops.join_all().await;
    });
}

pub fn figures(bench: &mut Bench) {
    let sizes: &[usize] = if bench.is_smoke() {
        &[1, 10]
    } else {
        &[1, 10, 100, 1000]
    };
    let mut points = Vec::new();
    for &sessions in sizes {
        bench.progress(&format!("a host with {sessions} idle sessions"));
        let (before, after) = measure(sessions);
        points.push((sessions, after / 1024.0));
        if Some(&sessions) == sizes.last() {
            bench.figure(
                &format!(
                    "resident memory of a host with {} idle sessions",
                    thousands(sessions)
                ),
                after / 1024.0,
                "MiB",
                Some(Goal::at_most(64.0)),
            );
            bench.figure(
                "resident memory for each idle session",
                (after - before) / sessions as f64,
                "KiB",
                None,
            );
        }
    }
    bench
        .growth(
            "resident memory of a host of idle sessions",
            "sessions",
            "MiB",
        )
        .ours("exec-core", points)
        .report();
}

/// The resident memory in KiB, before and after the start of the sessions.
fn measure(sessions: usize) -> (f64, f64) {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .env(SESSIONS, sessions.to_string())
        .stderr(Stdio::inherit())
        .output()
        .expect("a host");
    assert!(output.status.success(), "the host failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let kib: Vec<f64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [before, after] = kib[..] else {
        panic!("not two numbers: {text}");
    };
    (before, after)
}
