//! The cost of admission: of a free slot, and of a slot that 64 processes wait for.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use benches::{Bench, Goal};
use exec_core::CommandConfig;
use tokio::runtime::Runtime;

use super::host::Host;

const STATE: &str = "EXEC_BENCH_ADMISSION_STATE";
const LAUNCHES: &str = "EXEC_BENCH_ADMISSION_LAUNCHES";

/// Whether this process is one of those that wait.
pub fn is_host() -> bool {
    std::env::var_os(STATE).is_some()
}

/// Launches one agent after the other, with one slot for all processes.
pub fn play() {
    let state = std::env::var_os(STATE).expect("a state folder");
    let launches = std::env::var(LAUNCHES).expect("a number of launches");
    let launches: usize = launches.parse().expect("a number of launches");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let host = Host::with_command(agent(), |builder| builder.state_dir(&state).max_running(1));
    runtime.block_on(async {
        for _ in 0..launches {
            run_one(&host).await;
        }
    });
}

fn agent() -> CommandConfig {
    CommandConfig::new("/bin/true", Vec::<String>::new())
}

async fn run_one(host: &Host) -> Duration {
    let start = Instant::now();
    let execution = host.launch().await;
    execution.wait().await.expect("an end");
    start.elapsed()
}

pub fn compare(bench: &mut Bench, runtime: &Runtime) {
    let open = Host::with_command(agent(), |builder| builder);
    let capped = Host::with_command(agent(), |builder| builder.max_running(64));
    bench
        .compare("launch and end of an agent that does nothing")
        .floor_timed("without a cap", || runtime.block_on(run_one(&open)))
        .differs("starts any number of agents at once")
        .ours_timed("with a cap and a free slot", || {
            runtime.block_on(run_one(&capped))
        })
        .goal(Goal::at_most_floor(1.1))
        .run();

    let (processes, launches) = if bench.is_smoke() { (4, 2) } else { (64, 10) };
    bench.progress(&format!("{processes} processes that wait for one slot"));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let alone = crowd(dir.path(), 1, processes * launches);
    let together = crowd(dir.path(), processes, launches);
    let each = |took: Duration| took.as_secs_f64() * 1e3 / (processes * launches) as f64;
    bench.figure(
        "launch and end with one slot, one process",
        each(alone),
        "ms",
        None,
    );
    bench.figure(
        &format!("launch and end with one slot, {processes} processes that wait for it"),
        each(together),
        "ms",
        Some(Goal::at_most(10.0)),
    );
}

/// The time that all launches take.
fn crowd(folder: &Path, processes: usize, launches: usize) -> Duration {
    let program = std::env::current_exe().expect("this program");
    let start = Instant::now();
    let hosts: Vec<_> = (0..processes)
        .map(|_| {
            let mut host = Command::new(&program);
            host.env(STATE, folder.join("state"))
                .env(LAUNCHES, launches.to_string())
                .stdout(Stdio::null());
            host.spawn().expect("a host")
        })
        .collect();
    for mut host in hosts {
        assert!(host.wait().expect("an end").success());
    }
    start.elapsed()
}
