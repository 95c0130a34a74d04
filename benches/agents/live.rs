//! Live sessions of the agents: one process for many turns, with exec-core and exec-profiles.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use examples::{Result, with_causes};
use exec_core::{
    Decision, Error, EventKind, ExecutionContext, ExecutionService, FollowUpRequest, LiveEvent,
    LiveRequest, LiveSession, LiveStatus, PermissionPolicy, SessionId, SettledBy, Steered, Turn,
    TurnOutcome, TurnReport,
};
use rustix::process::{Pid, Signal};
use serde_json::json;
use tokio::time::timeout;

use crate::Context;
use crate::exec::{appears, enclose, label, prepare_sandboxed, service, sleepers, tools};
use crate::real_agent::{RealAgent, home_of};
use crate::table::Table;

/// On a busy machine Opencode needs more than a minute.
const OPEN_LIMIT: Duration = Duration::from_secs(150);
/// The longest turn.
const TURN_LIMIT: Duration = Duration::from_secs(60);

/// One agent with a service of its own.
struct Host<'a> {
    context: &'a Context,
    real: RealAgent,
    service: ExecutionService,
}

/// The text of a cell, and whether the goal is met.
type Cell = (String, bool);

pub(crate) async fn run(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let real = RealAgent::prepare(context, agent, true)?;
    let state = real.folder.path().join("state");
    let service = service(&profiles_file(context, &real)?, &state)?;
    let host = Host {
        context,
        real,
        service,
    };
    table.set(agent, "version", host.real.version()?, true);
    macro_rules! check {
        ($name:literal, $check:expr) => {
            if context.wants($name) {
                let (text, is_met) = match $check.await {
                    Ok(cell) => cell,
                    Err(error) => {
                        table.note(format!("{agent}: {}: {}", $name, with_causes(&*error)));
                        ("failed".to_owned(), false)
                    }
                };
                table.set(agent, $name, text, is_met);
            }
        };
    }
    check!("new, three turns", host.three_turns());
    check!("tool allowed", host.tool(Decision::Allow));
    check!("tool denied", host.tool(Decision::Deny));
    check!("deadline", host.deadline());
    check!("answer given twice", host.answer_twice());
    check!("answer after an interrupt", host.answer_after_interrupt());
    check!("queued prompt delivered once", host.queued());
    check!("steer", host.steer());
    check!("interrupts", host.interrupts());
    check!("resume after close", host.resume_after_close());
    check!("resume after kill -9", host.resume_after_kill());
    check!("stop with running tools", host.stop());
    check!("follow-up by one prompt", host.one_shot_follow_up());
    check!("sandbox", sandboxed_turns(context, agent));
    check!("sandbox: tools", sandboxed_stops(context, agent));
    if agent == "claude" {
        check!("next turn: live, new process", host.speed());
    }
    Ok(())
}

/// The user file: the installed program, and the environment of the private home.
fn profiles_file(context: &Context, real: &RealAgent) -> Result<PathBuf> {
    let program = real.program();
    let mut profiles = BTreeMap::new();
    let mut env = real.env.clone();
    let profile = match real.name.as_str() {
        "qwen" => json!({
            "binary": program,
            "args": ["--yolo", "--output-format=stream-json", "--session-id={session_id}"],
            "follow_up_args": ["--yolo", "--output-format=stream-json", "--resume={session_id}"],
            "events": "claude",
            "protocol": "acp",
            "live_args": ["--acp", "--approval-mode=default"],
            "env": env,
        }),
        "claude-acp" | "codex-acp" => {
            // It asks for what its sandbox forbids.
            env.insert("INITIAL_AGENT_MODE".to_owned(), "read-only".to_owned());
            json!({ "binary": program, "protocol": "acp", "env": env })
        }
        _ => json!({ "launcher": { "native_at": program }, "env": env }),
    };
    // The sessions of an adapter are those of its agent.
    let home = home_of(&real.name);
    if home != real.name {
        let program = context.agents_dir.join(home).join("node_modules/.bin");
        let agent = json!({ "launcher": { "native_at": program.join(home) }, "env": real.env });
        profiles.insert(label(home), agent);
    }
    profiles.insert(label(&real.name), profile);
    let path = real.folder.path().join("profiles.json");
    fs::write(&path, json!({ "profiles": profiles }).to_string())?;
    Ok(path)
}

impl Host<'_> {
    fn request(&self) -> Result<LiveRequest> {
        let request = LiveRequest::new(self.execution_context(&self.real.name)?);
        Ok(request.open_limit(OPEN_LIMIT))
    }

    fn execution_context(&self, agent: &str) -> Result<ExecutionContext> {
        let workspace = &self.real.workspace;
        Ok(ExecutionContext::for_workspace(label(agent), workspace)?)
    }

    async fn open(&self) -> Result<LiveSession> {
        Ok(self.service.open_live(self.request()?).await?)
    }

    /// A session that runs tools without a question.
    async fn open_allowing(&self) -> Result<LiveSession> {
        let request = self.request()?.policy(PermissionPolicy::allow_all());
        Ok(self.service.open_live(request).await?)
    }

    /// A prompt for a tool that the agent asks for.
    fn tool_prompt(&self, command: &str) -> String {
        match self.real.name.as_str() {
            "codex-acp" => format!("[[ESCALATE {command}]]"),
            _ => format!("[[TOOL {command}]]"),
        }
    }

    fn exists(&self, name: &str) -> bool {
        self.real.workspace.join(name).exists()
    }

    /// Whether the tool has made this file. On a busy machine an agent may go on before its tool.
    async fn is_made(&self, name: &str) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.exists(name) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.exists(name)
    }

    async fn three_turns(&self) -> Result<Cell> {
        let session = self.open().await?;
        let mut answered = 0;
        for word in ["one", "two", "three"] {
            answered += usize::from(echo(&session, word).await?);
        }
        let exit = session.close().await?;
        let text = format!(
            "{answered} of 3, closed {}",
            match exit.stopped_by {
                None => "by the end of its input",
                Some(_) => "by a signal",
            }
        );
        Ok((text, answered == 3))
    }

    async fn tool(&self, decision: Decision) -> Result<Cell> {
        let session = self.open().await?;
        let file = format!("{decision:?}");
        let turn = session.prompt(self.tool_prompt(&format!("touch {file}")))?;
        let permission = asked(&session).await?;
        session.answer(&permission, decision)?;
        let report = ended(&turn).await?;
        let is_made = match decision {
            Decision::Allow => self.is_made(&file).await,
            Decision::Deny => self.exists(&file),
        };
        let next = echo(&session, "next").await?;
        session.close().await?;
        // Some agents end the turn when a call is denied.
        let is_ended = match decision {
            Decision::Allow => report.outcome == TurnOutcome::Completed,
            Decision::Deny => !matches!(report.outcome, TurnOutcome::Failed { .. }),
        };
        let is_met = is_made == (decision == Decision::Allow) && is_ended && next;
        let text = format!("ran: {is_made}, {}", outcome(&report.outcome));
        Ok((text, is_met))
    }

    /// No caller answers.
    async fn deadline(&self) -> Result<Cell> {
        let policy = PermissionPolicy::default().deadline(Duration::from_millis(500));
        let request = self.request()?.policy(policy);
        let session = self.service.open_live(request).await?;
        let turn = session.prompt(self.tool_prompt("touch late"))?;
        let permission = asked(&session).await?;
        let report = ended(&turn).await?;
        let late = session.answer(&permission, Decision::Allow);
        let late = matches!(
            late,
            Err(Error::AlreadySettled {
                by: Some(SettledBy::Deadline),
                ..
            })
        );
        let next = echo(&session, "next").await?;
        session.close().await?;
        let text = format!("denied, {}", outcome(&report.outcome));
        Ok((text, late && !self.exists("late") && next))
    }

    async fn answer_twice(&self) -> Result<Cell> {
        let session = self.open().await?;
        let turn = session.prompt(self.tool_prompt("touch twice"))?;
        let permission = asked(&session).await?;
        session.answer(&permission, Decision::Allow)?;
        let second = session.answer(&permission, Decision::Deny);
        let is_refused = matches!(
            second,
            Err(Error::AlreadySettled {
                by: Some(SettledBy::Caller),
                ..
            })
        );
        ended(&turn).await?;
        session.close().await?;
        let text = format!("second refused: {is_refused}");
        Ok((text, is_refused && self.is_made("twice").await))
    }

    async fn answer_after_interrupt(&self) -> Result<Cell> {
        let session = self.open().await?;
        let turn = session.prompt(self.tool_prompt("touch interrupted"))?;
        let permission = asked(&session).await?;
        let report = timeout(TURN_LIMIT, session.interrupt(turn.id())).await??;
        let late = session.answer(&permission, Decision::Allow);
        let is_refused = matches!(
            late,
            Err(Error::AlreadySettled {
                by: Some(SettledBy::Cancel),
                ..
            })
        );
        let next = echo(&session, "next").await?;
        session.close().await?;
        let text = format!("refused: {is_refused}, {}", outcome(&report.turn().outcome));
        Ok((text, is_refused && next && !self.exists("interrupted")))
    }

    async fn queued(&self) -> Result<Cell> {
        let session = self.open().await?;
        let first = session.prompt("[[SLOW 2]]")?;
        let second = session.prompt("[[ECHO behind the first]]")?;
        ended(&first).await?;
        let report = ended(&second).await?;
        let delivered = live_events(&session, |event| {
            matches!(event, LiveEvent::MessageDelivered { message, .. } if *message == second.message())
        })
        .await;
        session.close().await?;
        let messages = self.real.model.messages()?;
        let asked = messages.iter().filter(|m| m.contains("behind the first"));
        let asked = asked.count();
        let is_answered = report.text.contains("pong: behind the first");
        let text = format!("{asked} of 1");
        Ok((text, asked == 1 && delivered == 1 && is_answered))
    }

    async fn steer(&self) -> Result<Cell> {
        let session = self.open().await?;
        let turn = session.prompt("[[SLOW 4]]")?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let steered = timeout(TURN_LIMIT, session.steer("[[ECHO steered]]")).await??;
        let (text, report) = match steered {
            Steered::Injected(_) => ("injected", ended(&turn).await?),
            Steered::Queued(turn) => ("queued", ended(&turn).await?),
        };
        let is_answered = report.text.contains("pong: steered");
        session.close().await?;
        if !is_answered {
            return Err(format!("{text}: {:?} {:?}", report.outcome, report.text).into());
        }
        Ok((text.to_owned(), true))
    }

    /// Interrupts at random moments of turns with text and with a tool.
    async fn interrupts(&self) -> Result<Cell> {
        let count = self.context.count(100);
        let session = self.open_allowing().await?;
        let mut random = Random::new();
        let (mut kept, mut completed, mut outlived) = (0, 0, 0);
        let mut slowest = Duration::ZERO;
        for i in 0..count {
            let prompt = match i % 4 {
                3 => self.tool_prompt("tail -f /dev/null"),
                _ => "[[SLOW 20]]".to_owned(),
            };
            let turn = session.prompt(prompt)?;
            tokio::time::sleep(Duration::from_millis(random.below(800))).await;
            let began = Instant::now();
            let report = timeout(TURN_LIMIT, session.interrupt(turn.id()))
                .await
                .map_err(|_| format!("interrupt {i} had no end"))??;
            slowest = slowest.max(began.elapsed());
            completed += usize::from(report.turn().outcome != TurnOutcome::Interrupted);
            if !report.process_ids().is_empty() {
                outlived += 1;
                session.end_processes(&report).await?;
            }
            let word = format!("after {i}");
            let next = ended(&session.prompt(format!("[[ECHO {word}]]"))?).await?;
            if next.text.contains(&format!("pong: {word}")) {
                kept += 1;
            } else {
                eprintln!(
                    "  {}: {i}: {:?} {:?}",
                    self.real.name, next.outcome, next.text
                );
            }
        }
        session.close().await?;
        let mut text = format!("{kept} of {count}, slowest {:.1} s", slowest.as_secs_f64());
        if completed > 0 {
            text.push_str(&format!(", {completed} not cancelled"));
        }
        if outlived > 0 {
            text.push_str(&format!(", tools outlived {outlived}"));
        }
        Ok((text, kept == count && completed == 0))
    }

    async fn resume_after_close(&self) -> Result<Cell> {
        let session = self.open().await?;
        let word = "before the close";
        echo(&session, word).await?;
        session.close().await?;
        self.minute_passes(&session).await;
        let resumed = session.resume().await?;
        self.is_continued(&session, &resumed, word).await
    }

    async fn resume_after_kill(&self) -> Result<Cell> {
        let session = self.open().await?;
        let word = "before the kill";
        echo(&session, word).await?;
        let turn = session.prompt("[[SLOW 20]]")?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        kill(&session)?;
        let report = ended(&turn).await?;
        session.execution().wait().await?;
        self.minute_passes(&session).await;
        let resumed = session.resume().await?;
        let (text, is_met) = self.is_continued(&session, &resumed, word).await?;
        let text = format!("{text}, turn {}", outcome(&report.outcome));
        Ok((text, is_met && report.outcome == TurnOutcome::Uncertain))
    }

    /// Gemini would overwrite a session that it loads in the minute of its start.
    async fn minute_passes(&self, session: &LiveSession) {
        let minute = |time: SystemTime| {
            let age = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            age.as_secs() / 60
        };
        let started = minute(session.execution().started_at());
        while self.real.name == "gemini" && minute(SystemTime::now()) <= started {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Whether the agent knows the conversation, and nothing of it was repeated as an event.
    async fn is_continued(
        &self,
        old: &LiveSession,
        resumed: &LiveSession,
        word: &str,
    ) -> Result<Cell> {
        let is_answered = echo(resumed, "resumed").await?;
        let is_same = old.session_id() == resumed.session_id();
        let before = self.real.model.length_at(word)?;
        let now = self.real.model.length_at("resumed")?;
        let repeated = texts(resumed).await.contains(word);
        resumed.close().await?;
        let is_known = now > before;
        let is_met = is_answered && is_same && is_known && !repeated;
        if !is_met {
            return Err(format!(
                "answered {is_answered}, same id {is_same}, messages {before} then {now}, repeated {repeated}"
            )
            .into());
        }
        Ok(("yes".to_owned(), true))
    }

    /// A session with three tools that sleep for so many seconds.
    async fn with_tools(&self, marker: &str) -> Result<LiveSession> {
        let session = self.open_allowing().await?;
        let tools = tools(marker);
        let command = tools.trim_start_matches("[[TOOL ").trim_end_matches("]]");
        session.prompt(self.tool_prompt(command))?;
        if !appears(marker, 3).await {
            return Err(format!("the tools did not start: {}", texts(&session).await).into());
        }
        Ok(session)
    }

    async fn stop(&self) -> Result<Cell> {
        let count = self.context.count(10);
        let mut left = 0;
        for i in 0..count {
            let marker = format!("33{}{i:03}", std::process::id() % 10_000);
            let session = self.with_tools(&marker).await?;
            session.execution().stop().await?;
            left += sleepers(&marker).len();
        }
        let text = format!("{left} left after {count} stops");
        Ok((text, left == 0))
    }

    async fn one_shot_follow_up(&self) -> Result<Cell> {
        let session = self.open().await?;
        echo(&session, "live").await?;
        session.close().await?;
        let agent = home_of(&self.real.name);
        let context = self.execution_context(agent)?;
        let native = session.session_id().native_id().to_owned();
        let session_id =
            SessionId::new(&context.executor_type, &context.actual_project_id, &native)?;
        let before = self.real.model.length_at("[[ECHO live]]")?;
        let request = FollowUpRequest {
            context,
            session_id,
            message: "[[ECHO one shot]]".to_owned(),
        };
        let result = self.service.run(request).time_limit(TURN_LIMIT).await?;
        let now = self.real.model.length_at("one shot")?;
        let is_met = result.text.contains("pong: one shot") && now > before;
        if !is_met {
            let stderr = result.exit.stderr_tail.join(" / ");
            return Err(format!(
                "{:?}, failure {:?}, messages {before} then {now}, stderr {stderr:.300}",
                result.text, result.failure
            )
            .into());
        }
        Ok(("yes".to_owned(), true))
    }

    /// The time of the next turn, in the live process and in one process for each turn.
    async fn speed(&self) -> Result<Cell> {
        let session = self.open().await?;
        echo(&session, "warm").await?;
        let mut live = Vec::new();
        for _ in 0..self.context.count(20).max(5) {
            let began = Instant::now();
            echo(&session, "live turn").await?;
            live.push(began.elapsed());
        }
        session.close().await?;
        let mut single = Vec::new();
        for _ in 0..5 {
            let request = FollowUpRequest {
                context: self.execution_context(&self.real.name)?,
                session_id: session.session_id(),
                message: "[[ECHO single turn]]".to_owned(),
            };
            let began = Instant::now();
            self.service.run(request).time_limit(TURN_LIMIT).await?;
            single.push(began.elapsed());
        }
        let [live, single] = [live, single].map(|mut times| {
            times.sort();
            times[times.len() / 2].as_secs_f64()
        });
        let ratio = single / live;
        let text = format!("{live:.3} s, {single:.2} s: {ratio:.0} times");
        Ok((text, ratio >= 20.0))
    }
}

/// A host whose agent is in a sandbox.
fn sandboxed<'a>(context: &'a Context, agent: &str) -> Result<Host<'a>> {
    let real = prepare_sandboxed(context, agent)?;
    let path = profiles_file(context, &real)?;
    enclose(&real, &path)?;
    let service = service(&path, &real.folder.path().join("state"))?;
    Ok(Host {
        context,
        real,
        service,
    })
}

/// Tools in a sandbox: each is asked for; an allowed one can write to the workspace, but neither
/// outside of it, nor does it see what is hidden. Then an interrupt, and the session resumed.
async fn sandboxed_turns(context: &Context, agent: &str) -> Result<Cell> {
    let host = sandboxed(context, agent)?;
    let session = host.open().await?;
    if session.execution().sandbox().is_none() {
        return Err("no sandbox is enforced".into());
    }
    let home = host.real.home();
    // What is asked for, and the answer.
    let steps = [
        ("touch denied".to_owned(), Decision::Deny),
        ("touch inside".to_owned(), Decision::Allow),
        (
            format!("touch {}", home.join("outside").display()),
            Decision::Allow,
        ),
        ("cat ~/.ssh/id > secret".to_owned(), Decision::Allow),
    ];
    let mut asked = 0;
    for (command, decision) in &steps {
        let turn = session.prompt(host.tool_prompt(command))?;
        let (questions, report) = answering(&session, &turn, *decision).await?;
        asked += usize::from(questions > 0);
        if let TurnOutcome::Failed { failure } = &report.outcome {
            return Err(format!("{command}: {failure:?}").into());
        }
    }
    let inside = host.is_made("inside").await;
    let outside = home.join("outside").exists();
    let secret = fs::read_to_string(host.real.workspace.join("secret")).unwrap_or_default();
    let turn = session.prompt("[[SLOW 20]]")?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    timeout(TURN_LIMIT, session.interrupt(turn.id())).await??;
    let mut answered = usize::from(echo(&session, "after the interrupt").await?);
    session.close().await?;
    host.minute_passes(&session).await;
    let resumed = session.resume().await?;
    answered += usize::from(echo(&resumed, "resumed").await?);
    resumed.close().await?;
    let is_met = asked == steps.len()
        && inside
        && !outside
        && !host.exists("denied")
        && secret.is_empty()
        && answered == 2;
    let text = format!(
        "{asked} of {} asked, denied ran: {}, inside written: {inside}, outside written: {outside}, {} bytes of a hidden file, {answered} of 2 after interrupt and resume",
        steps.len(),
        host.exists("denied"),
        secret.len()
    );
    if !is_met {
        eprintln!("  {agent}: {}", texts(&session).await);
    }
    Ok((text, is_met))
}

/// Stops of sandboxed agents, and kills of the child, while tools run.
async fn sandboxed_stops(context: &Context, agent: &str) -> Result<Cell> {
    let host = sandboxed(context, agent)?;
    let count = context.count(10).max(2);
    let mut left = 0;
    for i in 0..count {
        let marker = format!("34{}{i:03}", std::process::id() % 10_000);
        let session = host.with_tools(&marker).await?;
        if i % 2 == 0 {
            session.execution().stop().await?;
        } else {
            kill(&session)?;
            session.execution().wait().await?;
        }
        left += sleepers(&marker).len();
    }
    let text = format!("{left} left after {count} stops and kills of the child");
    Ok((text, left == 0))
}

/// Answers every question of a turn in the same way; how many there were, and the end of the turn.
async fn answering(
    session: &LiveSession,
    turn: &Turn,
    decision: Decision,
) -> Result<(usize, TurnReport)> {
    let mut questions = 0;
    let waits = |status: &LiveStatus| *status == LiveStatus::WaitingForPermission;
    loop {
        tokio::select! {
            report = ended(turn) => return Ok((questions, report?)),
            waiting = session.wait_for(waits) => {
                waiting?;
                for permission in session.permissions() {
                    questions += usize::from(session.answer(&permission.id, decision).is_ok());
                }
            }
        }
    }
}

/// Whether the agent answers with this word.
async fn echo(session: &LiveSession, word: &str) -> Result<bool> {
    let report = ended(&session.prompt(format!("[[ECHO {word}]]"))?).await?;
    let is_answered =
        report.outcome == TurnOutcome::Completed && report.text.contains(&format!("pong: {word}"));
    if !is_answered {
        eprintln!("  echo: {:?} {:?}", report.outcome, report.text);
    }
    Ok(is_answered)
}

async fn ended(turn: &Turn) -> Result<TurnReport> {
    let report = timeout(TURN_LIMIT, turn.ended()).await;
    let report = report.map_err(|_| "the turn had no end")??;
    Ok(report.as_ref().clone())
}

/// Waits for a permission request; its id.
async fn asked(session: &LiveSession) -> Result<String> {
    let waits = session.wait_for(|status| *status == LiveStatus::WaitingForPermission);
    timeout(TURN_LIMIT, waits)
        .await
        .map_err(|_| "the agent did not ask")??;
    let permissions = session.permissions();
    let first = permissions.first().ok_or("the question is gone")?;
    Ok(first.id.clone())
}

/// How many events so far are like this.
async fn live_events(session: &LiveSession, is_one: impl Fn(&LiveEvent) -> bool) -> usize {
    let mut events = session.execution().events();
    let mut count = 0;
    while let Ok(Some(event)) = timeout(Duration::from_millis(200), events.next()).await {
        count += usize::from(matches!(&event.kind, EventKind::Live(event) if is_one(event)));
    }
    count
}

/// All texts of the agent so far.
async fn texts(session: &LiveSession) -> String {
    let mut events = session.execution().events();
    let mut texts = String::new();
    while let Ok(Some(event)) = timeout(Duration::from_millis(200), events.next()).await {
        for event in event.agent_events() {
            if let exec_core::AgentEventKind::Text { text, .. } = &event.kind {
                texts.push_str(text);
            }
        }
    }
    texts
}

/// SIGKILL for the agent itself.
fn kill(session: &LiveSession) -> Result<()> {
    let pid = i32::try_from(session.execution().process_id())?;
    let pid = Pid::from_raw(pid).ok_or("no process id")?;
    Ok(rustix::process::kill_process(pid, Signal::KILL)?)
}

fn outcome(outcome: &TurnOutcome) -> &'static str {
    match outcome {
        TurnOutcome::Completed => "completed",
        TurnOutcome::Interrupted => "interrupted",
        TurnOutcome::Failed { .. } => "failed",
        TurnOutcome::Uncertain => "uncertain",
        _ => "unknown",
    }
}

/// A linear congruential generator: moments, not secrets.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(now.unwrap_or_default().as_nanos() as u64)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit
    }
}
