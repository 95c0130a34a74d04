//! The cost of budgets for each event: the output of a real agent, parsed.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use benches::{Bench, Goal, sample};
use exec_core::{Budget, CommandConfig, EventKind, LaunchRequest, MemoryPolicy};
use exec_profiles::EventFormat;
use tokio::runtime::Runtime;

use super::host::Host;

const BOUND: MemoryPolicy = MemoryPolicy::BlockChild { max_bytes: 4 << 20 };

pub fn compare(bench: &mut Bench, runtime: &Runtime) {
    let megabytes = if bench.is_smoke() { 1 } else { 32 };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("output.jsonl");
    write_output(&file, megabytes << 20);
    let cat = CommandConfig::new("/bin/cat", [file.to_string_lossy()]);
    let host = Host::with_events(cat, EventFormat::Claude, |builder| {
        builder.memory_policy(BOUND)
    });
    let hour = Duration::from_secs(3600);
    let never = |budget: Budget| {
        let budget = budget.tokens(u64::MAX).tool_calls(u64::MAX);
        budget.wall_time(hour).cost_usd(1e9)
    };
    let of_execution = host.request().budget(never(Budget::new()));
    let of_group = host.request().budget(never(Budget::for_group("bench")));
    let run = |request: &LaunchRequest| runtime.block_on(relay(&host, request.clone()));
    bench
        .compare(&format!("{megabytes} MB of events of an agent"))
        .floor_timed("without a budget", || run(&host.request()))
        .differs("counts nothing")
        .ours_timed("with a budget of the execution", || run(&of_execution))
        .goal(Goal::at_most_floor(1.01).limited_by(
            "below the noise of the bench: the ratio varies from 0.95 to 1.07 from run to run",
        ))
        .run();
    bench
        .compare(&format!("{megabytes} MB of events of an agent in a group"))
        .floor_timed("without a budget", || run(&host.request()))
        .differs("counts nothing")
        .ours_timed("with a budget of its group", || run(&of_group))
        .run();
}

/// The lines of real transcripts, repeated up to the size. Those of other agents give no events.
fn write_output(path: &Path, bytes: usize) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("a file"));
    let mut written = 0;
    for line in sample::lines() {
        if written >= bytes {
            break;
        }
        writeln!(file, "{line}").expect("written");
        written += line.len() + 1;
    }
    file.flush().expect("written");
}

async fn relay(host: &Host, request: LaunchRequest) -> Duration {
    let start = Instant::now();
    let execution = host.service.launch(request).await.expect("a launch");
    let mut events = execution.events();
    let mut of_agent = 0;
    while let Some(event) = events.next().await {
        of_agent += event.agent_events().len();
        assert!(!matches!(event.kind, EventKind::BudgetExceeded(_)));
    }
    assert!(of_agent > 0, "no event was parsed");
    start.elapsed()
}
