//! Live sessions of the scripted agent on one host.

use std::time::{Duration, Instant};

use benches::resident_kib;
use examples::scripted_agent;
use exec_core::{
    ExecutionContext, ExecutionService, LiveRequest, MemoryPolicy, PermissionPolicy, TurnOutcome,
};
use exec_profiles::ProfileRegistry;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::task::JoinSet;

const TURNS: u32 = 10;

pub(crate) async fn measure(sessions: usize) {
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
        let context = ExecutionContext::for_workspace(scripted_agent::LABEL, folder.path());
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
    let mut turns = JoinSet::new();
    for session in opened {
        turns.spawn(async move {
            for _ in 0..TURNS {
                let prompt = "[[slow 0]][[ponder 0]][[tool true]]";
                let report = session.prompt(prompt).unwrap().ended().await.unwrap();
                assert_eq!(report.outcome, TurnOutcome::Completed);
            }
            session
        });
    }
    let opened = turns.join_all().await;
    let (took, cpu) = (start.elapsed().as_secs_f64(), own_processor_time() - cpu);
    let host = (resident_kib(std::process::id()) - before) / sessions as f64;
    let agents: Vec<f64> = children().into_iter().map(resident_kib).collect();
    let agent = agents.iter().sum::<f64>() / agents.len() as f64;
    let count = sessions as f64 * f64::from(TURNS);
    println!("\n| one host, {sessions} live sessions of the scripted agent | |");
    println!("|---|---|");
    println!("| all open, one after the other | {opening:.1} s |");
    println!("| turns of all sessions at once | {:.0}/s |", count / took);
    let each = cpu.as_secs_f64() * 1e6 / count;
    println!("| processor time of the host for a turn | {each:.0} µs |");
    println!("| memory of the host for a session | {host:.0} KiB |");
    println!("| memory of an agent's process | {agent:.0} KiB |");
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

/// The agents: the children of this process that are this program.
fn children() -> Vec<u32> {
    let own = std::fs::read_link("/proc/self/exe").unwrap();
    let me = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned());
        let parent = parent.and_then(|rest| rest.split_whitespace().nth(1).map(str::to_owned));
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        parent.as_deref() == Some(&me) && program.is_ok_and(|program| program == own)
    })
    .collect()
}
