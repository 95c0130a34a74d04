//! The cost of one more session beside many live sessions.

use std::process::Stdio;
use std::time::{Duration, Instant};

use benches::{Bench, median};
use exec_core::MemoryPolicy;
use tokio::runtime::Runtime;

use super::host::Host;

/// An agent that waits for its model.
const IDLE: &str = "exec sleep 600";

/// Points of a series: number of sessions, median in nanoseconds.
type Points = Vec<(usize, f64)>;

pub fn report(bench: &mut Bench, runtime: &Runtime) {
    let (sizes, rounds): (&[usize], _) = if bench.is_smoke() {
        (&[1, 3], 1)
    } else {
        (&[1, 10, 100, 1000], 25)
    };
    bench.progress("live sessions, up to 1,000 processes");
    let host = Host::new(IDLE, |builder| {
        builder.memory_policy(MemoryPolicy::DropOldest { max_bytes: 1 << 16 })
    });
    let mut series: [Points; 4] = Default::default();
    runtime.block_on(async {
        for &size in sizes {
            while host.service.executions().len() < size {
                host.launch().await;
            }
            until_idle(&host).await;
            let mut samples: [Vec<Duration>; 4] = Default::default();
            for _ in 0..rounds {
                let both = [ours(&host).await, raw(&host).await];
                for (at, took) in both.into_iter().flatten().enumerate() {
                    samples[at].push(took);
                }
            }
            for (points, samples) in series.iter_mut().zip(samples) {
                points.push((size, median(&samples).as_nanos() as f64));
            }
        }
        let mut stops = tokio::task::JoinSet::new();
        for execution in host.service.executions() {
            stops.spawn(async move { execution.stop().await.expect("a stop") });
        }
        stops.join_all().await;
    });
    let [launch, stop, spawn, kill] = series;
    bench
        .growth("launch beside live sessions", "sessions", "ns")
        .ours("launch", launch)
        .floor("tokio::process", spawn)
        .report();
    bench
        .growth("stop of one beside live sessions", "sessions", "ns")
        .ours("stop: nothing of the tree is left", stop)
        .floor("tokio::process: the one child is gone", kill)
        .report();
}

/// Waits until each shell has become its `sleep`. Otherwise the start of a thousand shells would be
/// part of the measurement.
async fn until_idle(host: &Host) {
    for execution in host.service.executions() {
        let name = format!("/proc/{}/comm", execution.process_id());
        while std::fs::read_to_string(&name).is_ok_and(|name| name.trim_end() != "sleep") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Launches and stops one more session.
async fn ours(host: &Host) -> [Duration; 2] {
    let start = Instant::now();
    let execution = host.launch().await;
    let launched = start.elapsed();
    let start = Instant::now();
    execution.stop().await.expect("a stop");
    [launched, start.elapsed()]
}

/// The same with tokio alone.
async fn raw(host: &Host) -> [Duration; 2] {
    let start = Instant::now();
    let mut child = tokio::process::Command::new("/bin/sh")
        .args(["-c", IDLE])
        .current_dir(host.workspace())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child");
    let spawned = start.elapsed();
    let start = Instant::now();
    child.kill().await.expect("an end");
    [spawned, start.elapsed()]
}
