//! Live sessions of exec-core: seven sessions of the scripted agent in two hosts get prompts, two or
//! three at a time. Turns are interrupted, waiting messages are taken back, permission requests are
//! allowed, denied or left to their deadline. Agents are killed, and their sessions restart; one host
//! is killed, too, and its successor resumes the sessions.
//!
//! Guarantees: no message reaches an agent twice (each agent stores the prompts that it gets); every
//! turn has an end, which fits to what the agent got; each permission request is settled once; events
//! come once and in order; after the end of a session none of its processes is left.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use examples::scripted_agent::{self, LABEL};
use examples::{Result, with_causes};
use exec_core::{
    Decision, Error, EventKind, ExecutionContext, ExecutionId, ExecutionService, LiveEvent,
    LiveRequest, LiveSession, LiveStatus, PermissionPolicy, RecoveredState, RestartPolicy,
    SessionId, Turn, TurnOutcome,
};
use exec_profiles::ProfileRegistry;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ledger::Ledger;
use crate::live_journal::{LiveJournal, TurnEnd};
use crate::processes;
use crate::worker::{self, Random, Worker};

/// Environment variable of every process of a session.
const TAG: &str = "NORMALIZED_EXECUTION_ID";
/// Generous for a busy machine; on an idle one a turn takes a second at most.
const SOON: Duration = Duration::from_secs(120);
/// After this time a permission request is denied.
const PATIENCE: Duration = Duration::from_millis(300);

/// Tools of the agent. One leaves a process that ends only if it is killed.
const TOOLS: [&str; 4] = [
    "true",
    "sleep 0.1",
    "sleep 0.6",
    "setsid sleep 7200 >/dev/null 2>&1 &",
];

pub(crate) fn run(ledger: &Arc<Ledger>) -> Result<()> {
    let start = |name: &str, slots: &str| {
        let folder = ledger.folder(&format!("live/{name}"))?;
        let folder = folder.to_string_lossy();
        Worker::start(ledger, &["live", "--folder", &folder, "--slots", slots])
    };
    let mut steady = start("steady", "4")?;
    ledger.watch("live host", steady.pid());
    let mut mortal = start("mortal", "3")?;
    let mut random = Random::new();
    while ledger.pace(random.millis(4_000, 12_000)) {
        steady.expect_alive()?;
        mortal.kill()?;
        mortal = start("mortal", "3")?;
    }
    mortal.finish()?;
    steady.finish()?;
    ledger.expect_some("live turns completed");
    for host in ["steady", "mortal"] {
        // The history and the journals are bounded; a conversation is removed with its session.
        let state = ledger.folder(&format!("live/{host}/live-{host}"))?;
        ledger.judge_disk(&state, 17 << 20)?;
    }
    Ok(())
}

/// A host of live sessions.
#[derive(clap::Args)]
pub(crate) struct Host {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    slots: usize,
}

impl Host {
    pub(crate) async fn run(self) -> Result<()> {
        let name = self.folder.file_name().unwrap_or_default();
        let state = self.folder.join(format!("live-{}", name.to_string_lossy()));
        let home = self.folder.join("conversations");
        let profiles = ProfileRegistry::new();
        profiles.register(scripted_agent::profile(&home)?)?;
        let service = ExecutionService::builder(profiles)
            .state_dir(state)
            .open()?;
        recover(&service).await?;
        let mut slots = JoinSet::new();
        for number in 0..self.slots {
            let slot = Slot {
                service: service.clone(),
                context: ExecutionContext::for_workspace(LABEL, &self.folder)?,
                journal: LiveJournal::new(self.folder.join(format!("slot-{number}")), &home),
            };
            slots.spawn(slot.run());
        }
        while let Some(done) = slots.join_next().await {
            done??;
        }
        Ok(())
    }
}

/// Recovers the sessions of the host before this one, and checks that none of their processes is
/// left.
async fn recover(service: &ExecutionService) -> Result<()> {
    let mut executions = Vec::new();
    let mut recovery = service.recover().await?;
    while let Some(lost) = recovery.next().await? {
        worker::count("live sessions recovered");
        if !lost.evidence.survivors.is_empty() {
            let survivors = &lost.evidence.survivors;
            worker::violation(&format!("survived the recovery: {survivors:?}"));
        }
        if let RecoveredState::Adopted(execution) = lost.state {
            // The agent has not yet seen the end of its host.
            timeout(SOON, execution.stop()).await??;
        }
        executions.extend(lost.evidence.executions);
    }
    expect_no_process(&executions);
    Ok(())
}

fn expect_no_process(executions: &[ExecutionId]) {
    let mut alive = processes::by_value(TAG);
    for id in executions {
        for process in alive.remove(id.as_str()).into_iter().flatten() {
            worker::violation(&format!("{process} of {id} is still alive"));
        }
    }
}

/// The place of one session at a time.
struct Slot {
    service: ExecutionService,
    context: ExecutionContext,
    journal: LiveJournal,
}

impl Slot {
    async fn run(mut self) -> Result<()> {
        // The host before this one was killed during this session.
        let mut resume = self.journal.check_killed()?;
        while !worker::is_ending() {
            let session = self.open(resume.take()).await?;
            let id = session.session_id();
            if let Err(error) = self.talk(session).await {
                worker::violation(&format!("session {id}: {}", with_causes(&*error)));
                return Ok(());
            }
        }
        Ok(())
    }

    async fn open(&self, resume: Option<SessionId>) -> Result<LiveSession> {
        let context = self.context.clone();
        let request = match resume {
            Some(session) => {
                worker::count("live sessions resumed");
                LiveRequest::resume(context, session)
            }
            None => {
                worker::count("live sessions opened");
                LiveRequest::new(context)
            }
        };
        let short = Duration::from_millis(20);
        let restart = RestartPolicy::new()
            .backoff(short, short)
            .give_up_after(usize::MAX, SOON);
        let request = request
            .policy(PermissionPolicy::default().deadline(PATIENCE))
            .restart(restart);
        Ok(self.service.open_live(request.open_limit(SOON)).await?)
    }

    /// Talks with the agent for some rounds, closes the session and checks it.
    async fn talk(&mut self, mut session: LiveSession) -> Result<()> {
        self.journal.begin(&session.session_id())?;
        let follower = tokio::spawn(follow(session.clone()));
        let mut random = Random::new();
        // An agent that dies before its first answer is not restarted.
        self.round(&mut session, 1, Trouble::None, &mut random)
            .await?;
        for _ in 0..random.below(12) {
            if worker::is_ending() {
                break;
            }
            let trouble = random.pick(&Trouble::ALL);
            let prompts = 1 + random.below(3);
            self.round(&mut session, prompts, trouble, &mut random)
                .await?;
        }
        if session.state().status == LiveStatus::Ended {
            session = next(&session).await?;
        }
        timeout(SOON, session.close()).await??;
        let executions = timeout(SOON, follower).await???;
        expect_no_process(&executions);
        self.journal.check_closed()
    }

    /// Sends some prompts, makes trouble and waits for the end of all turns.
    async fn round(
        &mut self,
        session: &mut LiveSession,
        prompts: usize,
        trouble: Trouble,
        random: &mut Random,
    ) -> Result<()> {
        let mut turns = Vec::new();
        for _ in 0..prompts {
            let key = self.journal.asks()?;
            let tool = random.pick(&TOOLS);
            let slow = random.below(200);
            let text = format!("{key} [[slow 0.{slow:03}]] [[tool {tool}]] [[say answer {key}]]");
            let turn = match session.prompt(&*text) {
                // Killed in the round before. The text was not given to the agent.
                Err(Error::SessionEnded { .. }) => {
                    *session = next(session).await?;
                    session.prompt(text)?
                }
                turn => turn?,
            };
            turns.push((key, turn));
        }
        tokio::time::sleep(random.millis(0, 500)).await;
        match trouble {
            Trouble::None => {}
            Trouble::Kill => {
                if session.state().status != LiveStatus::Ended {
                    processes::kill(session.execution().process_id());
                    worker::count("live agents killed");
                }
            }
            Trouble::Interrupt => {
                let interrupted = session.interrupt(turns[0].1.id());
                match timeout(SOON, interrupted).await? {
                    Ok(_) | Err(Error::TurnNotRunning { .. } | Error::SessionEnded { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Trouble::TakeBack => {
                let last = turns[prompts - 1].1.message();
                session.take_back(last);
            }
        }
        for (key, turn) in turns {
            let end = self.end_of(&key, &turn, trouble).await?;
            self.journal.ended(&key, end)?;
        }
        Ok(())
    }

    async fn end_of(&self, key: &str, turn: &Turn, trouble: Trouble) -> Result<TurnEnd> {
        let ended = timeout(SOON, turn.ended()).await;
        let ended = ended.map_err(|_| format!("no end of turn {key} for two minutes"))?;
        let report = match ended {
            Err(Error::NotDelivered { .. }) if trouble == Trouble::TakeBack => {
                worker::count("live messages taken back");
                return Ok(TurnEnd::NotDelivered);
            }
            report => report?,
        };
        match &report.outcome {
            TurnOutcome::Completed => {
                worker::count("live turns completed");
                if report.text != format!("answer {key}") {
                    return Err(format!("turn {key} was answered by {:?}", report.text).into());
                }
                Ok(TurnEnd::Delivered)
            }
            TurnOutcome::Interrupted if trouble == Trouble::Interrupt => {
                worker::count("live turns interrupted");
                Ok(TurnEnd::Delivered)
            }
            // The agent may have been killed in the round before, when it was idle again.
            TurnOutcome::Uncertain => {
                worker::count("live turns uncertain");
                Ok(TurnEnd::Uncertain)
            }
            outcome => Err(format!("turn {key} ended as {outcome:?}").into()),
        }
    }
}

/// What happens in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    Kill,
    Interrupt,
    TakeBack,
}

impl Trouble {
    const ALL: [Self; 6] = [
        Self::None,
        Self::None,
        Self::Kill,
        Self::Interrupt,
        Self::Interrupt,
        Self::TakeBack,
    ];
}

/// The session with its next process.
async fn next(session: &LiveSession) -> Result<LiveSession> {
    let next = timeout(SOON, session.restarted()).await;
    let next = next.map_err(|_| "the agent was not restarted for two minutes")?;
    next.ok_or_else(|| "the agent was not restarted".into())
}

/// Follows a session over all its processes, and answers permission requests. Returns the executions.
async fn follow(mut session: LiveSession) -> Result<Vec<ExecutionId>> {
    let mut executions = Vec::new();
    loop {
        executions.push(session.execution().id().clone());
        follow_process(&session).await?;
        match session.restarted().await {
            Some(next) => session = next,
            None => return Ok(executions),
        }
        worker::count("live agents restarted");
    }
}

async fn follow_process(session: &LiveSession) -> Result<()> {
    let mut random = Random::new();
    let mut events = session.execution().events();
    let mut sequence = 0;
    let (mut asked, mut settled) = (BTreeSet::new(), BTreeSet::new());
    while let Some(event) = events.next().await {
        if event.sequence != sequence {
            return Err(format!("event {} instead of {sequence}", event.sequence).into());
        }
        sequence += 1;
        match &event.kind {
            EventKind::Live(LiveEvent::PermissionAsked(request)) => {
                if !asked.insert(request.id.clone()) {
                    return Err(format!("{} was asked twice", request.id).into());
                }
                let decision = match random.below(8) {
                    0 => continue,
                    1 => Decision::Deny,
                    _ => Decision::Allow,
                };
                match session.answer(&request.id, decision) {
                    Ok(()) | Err(Error::AlreadySettled { .. } | Error::SessionEnded { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            EventKind::Live(LiveEvent::PermissionSettled { permission, .. }) => {
                // A request that crosses an interrupt is settled without a question.
                asked.remove(permission);
                if !settled.insert(permission.clone()) {
                    return Err(format!("{permission} was settled twice").into());
                }
                worker::count("live permission requests settled");
            }
            _ => {}
        }
    }
    match asked.first() {
        None => Ok(()),
        Some(open) => Err(format!("{open} was never settled").into()),
    }
}
