//! exec-core: two hosts share a state folder and run fifty executions at a time, which print and
//! then end or are stopped. One host is killed repeatedly; its successor reaps the orphans.
//!
//! Guarantees: each event comes once and in order. After the end of an execution none of its
//! processes is left, not even one in a session of its own. After a reaping every execution of the
//! killed host has an end, and the executions of the other host continue.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use examples::{Result, with_causes};
use exec_core::{
    CommandConfig, Event, EventKind, Execution, ExecutionContext, ExecutionService, History,
    HistoryState, NewChatRequest, Profile, ProfileSource, StopAction, StopLadder, StopOutcome,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ledger::Ledger;
use crate::processes;
use crate::worker::{self, Random, Worker};

const LABEL: &str = "tree";
/// Environment variable of every process of an execution.
const TAG: &str = "NORMALIZED_EXECUTION_ID";
const LINES: u64 = 20;
/// Generous for a busy machine; on an idle one it takes milliseconds.
const SOON: Duration = Duration::from_secs(60);

/// A process tree like that of an agent: processes in the group, in sessions of their own, and below
/// those. The sleeps are longer than any run, so they end only if they are killed.
const SCRIPT: &str = r#"
read -r what
sleep 7200 &
setsid sleep 7200 &
setsid sh -c 'sleep 7200 & setsid sleep 7200 & wait' &
[ "$what" = stubborn ] && trap '' INT TERM
i=0
while [ $i -lt 20 ]; do i=$((i + 1)); echo "line $i"; done
[ "$what" = end ] && exit 0
while :; do wait; sleep 7200; done
"#;

pub(crate) fn run(ledger: &Arc<Ledger>) -> Result<()> {
    let state = ledger.folder("exec/exec")?;
    let start = |name: &str, slots: &str| {
        let workspace = ledger.folder(&format!("exec/{name}"))?;
        let [state, workspace] = [&state, &workspace].map(|path| path.to_string_lossy());
        let folders = ["exec", "--state", &state, "--workspace", &workspace];
        Worker::start(ledger, &[&folders[..], &["--slots", slots]].concat())
    };
    let mut steady = start("steady", "30")?;
    ledger.watch("exec host", steady.pid());
    let mut mortal = start("mortal", "20")?;
    let mut random = Random::new();
    while ledger.pace(random.millis(3_000, 9_000)) {
        steady.expect_alive()?;
        mortal.kill()?;
        mortal = start("mortal", "20")?;
    }
    mortal.finish()?;
    steady.finish()?;

    let history = History::new(&state).load()?;
    let open = history.entries.iter();
    let open = open.filter(|entry| entry.state == HistoryState::Open);
    let (open, damaged) = (open.count(), history.skipped.len());
    if open + damaged > 0 {
        ledger.violation(format!(
            "the history has {open} executions without an end and {damaged} damaged lines"
        ));
    }
    let executions = history.entries.len() as u64;
    ledger.count("exec executions in the history", executions);
    // The history and the journals of the hosts are bounded.
    Ok(ledger.judge_disk(&state, 17 << 20)?)
}

/// A host of executions.
#[derive(clap::Args)]
pub(crate) struct Host {
    #[arg(long)]
    state: PathBuf,
    #[arg(long)]
    workspace: PathBuf,
    #[arg(long)]
    slots: usize,
}

impl Host {
    pub(crate) async fn run(self) -> Result<()> {
        let ladder = StopLadder::kill_at_once()
            .then(StopAction::Interrupt, Duration::from_millis(200))
            .then(StopAction::Terminate, Duration::from_millis(300));
        let service = ExecutionService::builder(Tree)
            .state_dir(&self.state)
            .host_name("soak")
            .stop_ladder(ladder)
            .open()?;
        self.reap(&service).await?;
        let mut slots = JoinSet::new();
        for _ in 0..self.slots {
            slots.spawn(slot(service.clone(), self.workspace.clone()));
        }
        while let Some(done) = slots.join_next().await {
            done??;
        }
        Ok(())
    }

    /// Reaps the executions of the host before this one, and checks that no process is left.
    async fn reap(&self, service: &ExecutionService) -> Result<()> {
        for reaped in service.reap_orphans().await?.executions {
            worker::count("exec executions reaped");
            if !reaped.survivors.is_empty() {
                worker::violation(&format!("survived the reaping: {:?}", reaped.survivors));
            }
        }
        let alive = processes::by_value(TAG);
        for entry in service.history().load()?.entries {
            if entry.workspace_path != self.workspace {
                continue;
            }
            let id = &entry.execution_id;
            if entry.state == HistoryState::Open {
                worker::violation(&format!("{id} has no end after its host was killed"));
            }
            for process in alive.get(id.as_str()).into_iter().flatten() {
                worker::violation(&format!("{process} of {id} survived the reaping"));
            }
        }
        Ok(())
    }
}

/// Runs one execution after the other.
async fn slot(service: ExecutionService, workspace: PathBuf) -> Result<()> {
    let mut random = Random::new();
    while !worker::is_ending() {
        let what = random.pick(&["stay", "stay", "end", "stubborn"]);
        let context = ExecutionContext::for_workspace(LABEL, &workspace)?;
        let prompt = what.to_owned();
        let request = NewChatRequest { context, prompt };
        let execution = service.launch(request).await?;
        worker::count("exec executions started");
        let id = execution.id();
        if let Err(error) = follow(&execution, what, random.millis(500, 4_000)).await {
            worker::violation(&format!(
                "execution {id} ({what}): {}",
                with_causes(&*error)
            ));
        }
        for process in processes::by_value(TAG)
            .remove(id.as_str())
            .into_iter()
            .flatten()
        {
            worker::violation(&format!("{process} of {id} ({what}) is still alive"));
        }
    }
    Ok(())
}

/// Follows an execution to its end, and stops it after `time` if it does not end by itself.
async fn follow(execution: &Execution, what: &str, time: Duration) -> Result<()> {
    let mut events = execution.events();
    let (mut lines, mut sequence) = (0, 0);
    let next = async |events: &mut exec_core::EventStream| -> Result<Option<Arc<Event>>> {
        let soon = timeout(SOON, events.next()).await;
        soon.map_err(|_| "no event for a minute".into())
    };
    let mut stopped = false;
    while let Some(event) = next(&mut events).await? {
        if event.sequence != sequence {
            return Err(format!("event {} instead of {sequence}", event.sequence).into());
        }
        sequence += 1;
        if let EventKind::Output(output) = &event.kind {
            lines += 1;
            if output.line.text() != format!("line {lines}") {
                return Err(format!("line {lines} is {:?}", output.line.text()).into());
            }
        }
        if lines == LINES && what != "end" && !stopped {
            tokio::time::sleep(time).await;
            let StopOutcome::Stopped(_) = timeout(SOON, execution.stop()).await?? else {
                return Err("ended before the stop".into());
            };
            worker::count("exec executions stopped");
            stopped = true;
        }
    }
    let report = execution.wait().await?;
    if lines != LINES {
        return Err(format!("{lines} lines instead of {LINES}").into());
    }
    if what == "end" && !(report.is_success() && report.leftover_processes > 0) {
        return Err(format!("unexpected end: {report:?}").into());
    }
    Ok(())
}

struct Tree;

impl Profile for Tree {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }

    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        Some(CommandConfig::new("sh", ["-c", SCRIPT]))
    }
}

impl ProfileSource for Tree {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == LABEL).then(|| Arc::new(Self) as Arc<dyn Profile>)
    }
}
