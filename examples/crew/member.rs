//! A member: holds a role, takes the tasks of the role, asks its agent, and saves each step.
//!
//! # Theory
//!
//! A role is held by one process: a claim of timed-store, which ends with the process. Each step of a task is saved in
//! the snapshot of the role before the next one begins:
//!
//! | saved | a process that finds this after a crash |
//! |---|---|
//! | nothing | asks the agent |
//! | `under_way` without a receipt | asks the agent to continue: it may have the text |
//! | `under_way` with a receipt | waits for the answer, and asks the agent to continue if there is none |
//! | the answer | records it; the agent is not asked again |
//!
//! So a task is recorded once, an answer counts only when it is saved, and an agent is told when it may have begun
//! already. Two processes cannot both save: the second one to hydrate fences off the first by its epoch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentState, SnapshotStorage, Status};
use examples::task_list::{DoneTask, Overtaken, TakenTask, Task, TaskList};
use examples::{Result, scripted_agent, with_causes};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use timed_store::{Claim, KeepAlive};

use crate::crew::{Crew, worker};
use crate::crew_agent::CrewAgent;
use crate::crew_file::Role;
use crate::report::{Report, Tone, first_line};

/// How often an agent is asked to continue one task.
const MAX_ATTEMPTS: u32 = 5;
/// How long a process waits for a role that another one holds, before it looks again.
const ROLE_WAIT: Duration = Duration::from_secs(60);
/// The time that an agent has worked when `--kill` ends it.
const KILL_AFTER: Duration = Duration::from_millis(1500);

/// The variable with the task that the agent works on.
const UNDER_WAY: &str = "under_way";
/// The variable with the answers, by task.
const ANSWERS: &str = "answers";

pub struct Member {
    pub crew: Arc<Crew>,
    pub role: Role,
    pub agent: Box<dyn CrewAgent>,
    pub tasks: TaskList,
    pub storage: Arc<dyn SnapshotStorage>,
    pub report: Report,
    /// Whether the agent is to be killed once at work.
    pub kill: bool,
}

/// The right to act as a role. Dropping it releases the role.
struct Seat {
    _claim: KeepAlive<String>,
    state: AgentState,
}

impl Member {
    /// Works until all tasks of the role are done.
    pub async fn run(mut self) -> Result<()> {
        let worker = format!("{}.{}", worker(), self.role.name);
        let mut seat = None;
        loop {
            let done = self.tasks.done().await?;
            let is_done = |id: &str| done.iter().any(|done| done.id == id);
            let mine = self
                .tasks
                .tasks()
                .iter()
                .filter(|task| task.role == self.role.name);
            let open: Vec<&Task> = mine.filter(|task| !is_done(&task.id)).collect();
            if open.is_empty() {
                return Ok(());
            }
            if !open
                .iter()
                .any(|task| task.after.iter().all(|id| is_done(id)))
            {
                self.tasks.changed().await;
                continue;
            }
            let mut held = match seat.take() {
                Some(held) => held,
                None => self.sit_down().await?,
            };
            let Some(taken) = self.tasks.take(&worker, Some(&self.role.name)).await? else {
                self.tasks.changed().await;
                continue;
            };
            // Again: other tasks were done while this member waited for the role.
            let done = self.tasks.done().await?;
            match self.work(&mut held, taken, &done).await {
                // Of several machines, the first one that is free takes the next task.
                Ok(()) => seat = Some(held).filter(|_| self.crew.redis.is_none()),
                Err(error) if is_overtaken(&*error) => {
                    let text = format!(
                        "{}: another process has the task: {}",
                        self.role.name,
                        with_causes(&*error)
                    );
                    self.report.event(
                        "overtaken",
                        Tone::Bad,
                        json!({"role": self.role.name}),
                        &text,
                    );
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the role, and loads its state.
    async fn sit_down(&self) -> Result<Seat> {
        let roles = self.crew.roles(&self.role.name).await?;
        let mut claim = roles.claim(self.role.name.clone()).await?;
        let mut is_told = false;
        let lease = loop {
            match claim {
                Claim::Granted(lease) => break lease,
                Claim::Busy { holder, .. } => {
                    if !std::mem::replace(&mut is_told, true) {
                        let fields = json!({"role": self.role.name, "holder": holder.as_str()});
                        let text =
                            format!("{} is held by {holder}; waiting for it", self.role.name);
                        self.report.event("waiting", Tone::Dim, fields, &text);
                    }
                    claim = roles
                        .claim_within(self.role.name.clone(), ROLE_WAIT)
                        .await?;
                }
            }
        };
        let claim = roles.keep_alive(lease)?.release_on_drop();
        let id = self.crew.agent_id(&self.role.name)?;
        let (state, _) = AgentState::hydrate(self.storage.clone(), id).await?;
        Ok(Seat {
            _claim: claim,
            state,
        })
    }

    async fn work(&mut self, seat: &mut Seat, taken: TakenTask, done: &[DoneTask]) -> Result<()> {
        let task = taken.task().clone();
        let saved = seat
            .state
            .variables()
            .get(ANSWERS)
            .and_then(|answers| answers[&task.id].as_str());
        let answer = match saved.map(str::to_owned) {
            Some(answer) => answer,
            None => self.ask(&mut seat.state, &task, done).await?,
        };
        taken.finish(&answer).await?;
        let (role, id) = (&self.role.name, &task.id);
        let fields = json!({"role": role, "task": id, "answer": answer});
        self.report.event(
            "answered",
            Tone::Good,
            fields,
            &format!("{role} has done {id}: {}", first_line(&answer)),
        );
        Ok(())
    }

    /// Asks the agent, or continues what an earlier process has begun, until there is an answer.
    async fn ask(
        &mut self,
        state: &mut AgentState,
        task: &Task,
        done: &[DoneTask],
    ) -> Result<String> {
        let prompt = self.prompt(task, done);
        let mut lost_at: Option<Instant> = None;
        // Only a task that begins: a program that continues has been killed already.
        self.kill &= !state.variables().contains_key(UNDER_WAY);
        for attempt in 0.. {
            let under_way = state
                .variables()
                .get(UNDER_WAY)
                .filter(|work| work["task"] == task.id.as_str())
                .cloned();
            let saved = under_way
                .as_ref()
                .map(|work| work["receipt"].clone())
                .filter(|receipt| !receipt.is_null());
            let receipt = match saved {
                Some(receipt) => receipt,
                None => {
                    let text = match under_way {
                        Some(_) => self.continue_prompt(&prompt),
                        None => prompt.clone(),
                    };
                    save(state, UNDER_WAY, json!({"task": task.id}), Status::RUNNING).await?;
                    match self.agent.send(&text).await {
                        Ok(receipt) => {
                            let work = json!({"task": task.id, "receipt": receipt});
                            save(state, UNDER_WAY, work, Status::WAITING_FOR_TOOL).await?;
                            receipt
                        }
                        Err(error) if attempt < MAX_ATTEMPTS => {
                            self.lost(task, &with_causes(&*error), attempt, &mut lost_at)
                                .await;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            self.asked(task, lost_at.take()).await;
            let error = match self.agent.answer(&receipt).await {
                Ok(answer) => {
                    let mut tick = state.begin_tick()?;
                    tick.history().push(Message::user(prompt));
                    tick.history().push(Message::assistant(answer.clone()));
                    let answers = tick.variables().entry(ANSWERS).or_insert_with(|| json!({}));
                    answers[&task.id] = json!(answer);
                    tick.variables().remove(UNDER_WAY);
                    tick.set_status(Status::WAITING_FOR_EVENT);
                    tick.commit().await?;
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if !error.is_transient || attempt >= MAX_ATTEMPTS {
                let partial = first_line(error.partial.trim());
                let seen = if partial.is_empty() {
                    String::new()
                } else {
                    format!("; it had said: {partial}")
                };
                return Err(format!(
                    "{} has no answer to {}: {error}{seen}",
                    self.role.name, task.id
                )
                .into());
            }
            save(state, UNDER_WAY, json!({"task": task.id}), Status::RUNNING).await?;
            self.lost(task, &error.reason, attempt, &mut lost_at).await;
        }
        unreachable!("the loop ends with an answer or an error")
    }

    /// Tells that the agent has the task, and kills it if that was asked for.
    async fn asked(&mut self, task: &Task, lost_at: Option<Instant>) {
        let (role, id) = (self.role.name.clone(), &task.id);
        let pid = self.agent.process_id().await;
        if let Some(lost_at) = lost_at {
            let took_ms = u64::try_from(lost_at.elapsed().as_millis()).unwrap_or(u64::MAX);
            let fields = json!({"role": role, "task": id, "took_ms": took_ms, "process_id": pid});
            self.report.event(
                "recovered",
                Tone::Good,
                fields,
                &format!("{role} is back after {took_ms} ms and continues {id}"),
            );
        } else {
            let fields = json!({
                "role": role, "task": id, "agent": self.role.agent, "lives": self.role.lives, "process_id": pid,
            });
            let text = format!(
                "{role} ({}) works on {id}: {}",
                self.role.agent,
                first_line(&task.text)
            );
            self.report.event("asked", Tone::Plain, fields, &text);
        }
        let raw = pid
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        if let (true, Some(pid)) = (self.kill, raw) {
            self.kill = false;
            let report = self.report;
            tokio::spawn(async move {
                tokio::time::sleep(KILL_AFTER).await;
                if kill_process(pid, Signal::KILL).is_ok() {
                    let fields = json!({"role": role, "process_id": pid.as_raw_pid()});
                    report.event(
                        "killed",
                        Tone::Bad,
                        fields,
                        &format!(
                            "{role} is killed at work (SIGKILL, process {})",
                            pid.as_raw_pid()
                        ),
                    );
                }
            });
        }
    }

    /// Tells that there is no answer, and waits a moment before the next attempt.
    async fn lost(&self, task: &Task, reason: &str, attempt: u32, lost_at: &mut Option<Instant>) {
        lost_at.get_or_insert_with(Instant::now);
        let fields = json!({"role": self.role.name, "task": task.id, "reason": reason});
        let text = format!("{} has lost {}: {reason}", self.role.name, task.id);
        self.report.event("lost", Tone::Bad, fields, &text);
        // The first attempt follows at once: most often the agent was killed.
        tokio::time::sleep(Duration::from_secs(u64::from(attempt))).await;
    }

    /// The task, the answers that it builds on, and who the agent is.
    fn prompt(&self, task: &Task, done: &[DoneTask]) -> String {
        let mut text = task.text.clone();
        for before in done.iter().filter(|done| task.after.contains(&done.id)) {
            text += &format!("\n\nThe answer to {}:\n{}", before.id, before.answer);
        }
        text += &format!("\n\n{}", self.role.personality.trim());
        let others = self
            .crew
            .in_panes()
            .filter(|role| role.name != self.role.name);
        let others: Vec<&str> = others.map(|role| role.name.as_str()).collect();
        if let (Some(command), false) = (self.agent.ask_command(), others.is_empty()) {
            text += &format!(
                "\n\nYou are `{}`. You can ask {} with the shell command: {command} NAME \"text\"",
                self.role.name,
                others.join(", ")
            );
        }
        text
    }

    fn continue_prompt(&self, prompt: &str) -> String {
        let directive = if self.role.agent == scripted_agent::LABEL {
            scripted_agent::CONTINUE
        } else {
            ""
        };
        format!(
            "You were interrupted: continue this task, and do not repeat finished steps. {directive}\n{prompt}"
        )
    }
}

async fn save(state: &mut AgentState, name: &str, value: Value, status: Status) -> Result<()> {
    let mut tick = state.begin_tick()?;
    tick.variables().insert(name.to_owned(), value);
    tick.set_status(status);
    tick.commit().await?;
    Ok(())
}

fn is_overtaken(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    error.is::<Overtaken>()
        || error
            .downcast_ref()
            .is_some_and(agent_snapshot::Error::is_conflict)
}
