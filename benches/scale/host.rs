//! Live sessions on one host.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use benches::resident_kib;
use examples::scripted_agent;
use exec_core::{
    ExecutionContext, ExecutionService, LiveRequest, MemoryPolicy, PermissionPolicy, TurnOutcome,
};
use exec_profiles::ProfileRegistry;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::task::JoinSet;

pub(crate) async fn measure(agent: &str, sessions: usize) {
    let is_scripted = agent == scripted_agent::LABEL;
    let (turns, prompt) = match is_scripted {
        true => (10, "[[slow 0]][[ponder 0]][[tool true]]"),
        false => (1, "Say OK."),
    };
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    let _ = setrlimit(Resource::Nofile, files);
    let folder = tempfile::tempdir().unwrap();
    let registry = ProfileRegistry::new();
    let profile = scripted_agent::profile(&folder.path().join("agents")).unwrap();
    registry.register(profile).unwrap();
    let service = ExecutionService::builder(registry)
        .memory_policy(MemoryPolicy::DropOldest { max_bytes: 1 << 20 })
        .state_dir(folder.path().join("state"))
        .open()
        .unwrap();
    let open = async || {
        let context = ExecutionContext::for_workspace(agent, folder.path());
        let request = LiveRequest::new(context.unwrap()).policy(PermissionPolicy::allow_all());
        service.open_live(request).await.unwrap()
    };
    let first = open().await;
    let before = resident_kib(std::process::id());
    let start = Instant::now();
    let mut opened = Vec::new();
    for _ in 0..sessions {
        opened.push(open().await);
    }
    let opening = start.elapsed().as_secs_f64();
    let (start, cpu) = (Instant::now(), own_processor_time());
    let mut running = JoinSet::new();
    for session in opened {
        running.spawn(async move {
            for _ in 0..turns {
                let report = session.prompt(prompt).unwrap().ended().await.unwrap();
                assert_eq!(report.outcome, TurnOutcome::Completed);
            }
            session
        });
    }
    let opened = running.join_all().await;
    let (took, cpu) = (start.elapsed().as_secs_f64(), own_processor_time() - cpu);
    let host = (resident_kib(std::process::id()) - before) / sessions as f64;
    let (agents, memory, ticks) = descendants();
    let each_agent = memory / (sessions + 1) as f64;
    let count = sessions as f64 * f64::from(turns);
    println!("\n| one host, {sessions} live sessions of {agent}, {turns} turns each | |");
    println!("|---|---|");
    println!("| all open, one after the other | {opening:.1} s |");
    println!("| turns of all sessions at once | {:.0}/s |", count / took);
    let each = cpu.as_secs_f64() * 1e6 / count;
    println!("| processor time of the host for a turn | {each:.0} µs |");
    println!("| memory of the host for a session | {host:.0} KiB |");
    let processes = agents as f64 / (sessions + 1) as f64;
    println!("| processes of an agent | {processes:.1} |");
    println!("| memory of an agent (proportional set size) | {each_agent:.0} KiB |");
    let seconds = ticks as f64 / 100.0 / (sessions + 1) as f64;
    println!("| processor time of an agent, start and turns | {seconds:.2} s |");
    drop((first, opened));
    service.shutdown(Duration::from_secs(60)).await;
}

/// Without the agents.
fn own_processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap(),
        u32::try_from(time.tv_nsec).unwrap(),
    )
}

/// The processes below this one: how many, their memory in KiB, and their processor time in ticks.
///
/// The proportional set size shares the pages of a program among its processes: the resident sizes of
/// many agents would count them once for each.
fn descendants() -> (usize, f64, u64) {
    let mut parents = BTreeMap::new();
    let mut times = BTreeMap::new();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    for pid in processes.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok()) {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((_, fields)) = stat.rsplit_once(')') else {
            continue;
        };
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |at: usize| fields[at].parse::<u64>().unwrap_or(0);
        parents.insert(pid, u32::try_from(number(1)).unwrap_or(0));
        times.insert(pid, number(11) + number(12));
    }
    let me = std::process::id();
    let is_below = |pid: u32| {
        let above = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        pid != me && above.take(64).any(|pid| pid == me)
    };
    let below: Vec<u32> = parents
        .keys()
        .copied()
        .filter(|&pid| is_below(pid))
        .collect();
    let memory = below.iter().filter_map(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    });
    let memory = memory.sum();
    let ticks = below.iter().map(|pid| times[pid]).sum();
    (below.len(), memory, ticks)
}
