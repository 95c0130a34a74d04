//! A member of the crew: what lives in a pane. It has a name that nobody else has, remembers
//! everything in snapshots, works through its coding agent, and talks to the other panes.

use std::path::Path;
use std::time::{Duration, Instant};

use agent_snapshot::{AgentState, Status, conversation::Message};
use examples::console::{self, Console};
use examples::{Result, with_causes};
use exec_core::{
    AgentEvent, EventKind, Execution, ExecutionContext, ExecutionService, FollowUpRequest,
    LaunchRequest, NewChatRequest, Outcome, SessionId,
};
use serde_json::{Value, json};
use timed_store::Claim;
use tmux_bus::{AskOptions, ClusterManager, Refusal};

use crate::crew::{CODING, Crew, GRAND_BOSS, MIDDLE_MANAGER, RESEARCH, ROLES, Role, TESTING};

/// How long a coding agent may take with everything that it waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1800);
/// How long somebody who has died may take to come back.
const ABSENCE: Duration = Duration::from_secs(60);
/// What a line begins with that shows progress and is no part of the answer.
const PROGRESS: &str = "· ";
/// What the answer begins with when the work failed.
pub(crate) const FAILED: &str = "FAILED: ";

/// Lives in the pane until the end of input.
pub(crate) async fn live(folder: &Path, name: &str) -> Result<()> {
    let role = ROLES.iter().find(|role| role.name == name);
    let role = role.ok_or("there is no such role")?;
    let mut member = Member::hydrate(Crew::load(folder)?, role).await?;
    let mut console = Console::open()?;
    loop {
        let read = move || (console.read_message("> "), console);
        let message;
        (message, console) = tokio::task::spawn_blocking(read).await?;
        let Some(message) = message? else {
            return Ok(());
        };
        if message.trim().is_empty() {
            continue;
        }
        let answer = member.answer(&message).await;
        let answer = answer.unwrap_or_else(|error| format!("{FAILED}{}", with_causes(&*error)));
        console::print(&format!("{}\n{}\n", unmarked(&answer), role.marker))?;
    }
}

struct Member {
    crew: Crew,
    role: &'static Role,
    state: AgentState,
    service: ExecutionService,
}

impl Member {
    /// Comes to life, or back to life.
    async fn hydrate(crew: Crew, role: &'static Role) -> Result<Self> {
        let snapshots = crew.snapshots().await?;
        let (mut state, recovery) =
            AgentState::hydrate(snapshots, crew.agent_id(role.name)?).await?;
        // The name that it had, if it had one; else the role's own, or one made from it.
        let had = state.variables().get("name").and_then(Value::as_str);
        let had = had.map(str::to_owned);
        let others = (2..=3).map(|number| format!("{}-{number}", role.name));
        let names = had.into_iter().chain([role.name.to_owned()]).chain(others);
        let lease = match crew.names(role.name)?.claim_any(names).await? {
            Claim::Granted(lease) => lease,
            Claim::Busy { holder, .. } => {
                let taken = format!("all names for {} are taken, one by {holder}", role.name);
                return Err(taken.into());
            }
        };
        let service = crew.executions(role.name)?;
        // A predecessor that was killed has left its coding agent behind, without a reader.
        let reaped = service.reap_orphans().await?.executions;
        let mut tick = state.begin_tick()?;
        // Was it about to launch one? Then what is under way is known only from the launch itself.
        for intent in recovery.uncertain_tools {
            let launches = intent.args["launches"].as_u64().unwrap_or(0);
            let past = service.history().read()?.entries;
            let entry = past.get(usize::try_from(launches)?);
            let session = reaped.last().map(|launch| &launch.session_id);
            if let Some(session) = session.or(entry.map(|entry| &entry.session_id)) {
                let under_way = json!({"work": intent.args["work"], "session": session});
                tick.variables().insert("under_way".into(), under_way);
            }
        }
        if let Some(under_way) = tick.variables().get("under_way") {
            progress(&format!("back to life; under way: {}", under_way["work"]));
        }
        tick.variables().insert("name".into(), json!(lease.value()));
        tick.variables()
            .insert("pid".into(), json!(std::process::id()));
        tick.commit().await?;
        progress(&format!("{} at tick {}", lease.value(), state.tick_index()));
        Ok(Self {
            crew,
            role,
            state,
            service,
        })
    }

    /// Answers a task. Every step is remembered: asked again, it does none of them twice.
    async fn answer(&mut self, message: &str) -> Result<String> {
        let minted = uuid::Uuid::new_v4().simple().to_string();
        let (task, text) = match message
            .strip_prefix("task ")
            .and_then(|m| m.split_once('\n'))
        {
            Some((task, text)) => (task, text),
            None => (&minted[..8], message),
        };
        match self.role.name {
            GRAND_BOSS => {
                let result = self.ask(MIDDLE_MANAGER, task, text).await?;
                let report = "Report the result to the user";
                self.work(
                    task,
                    report,
                    &format!("The task: {text}\nThe result: {result}"),
                )
                .await
            }
            MIDDLE_MANAGER => {
                let plan = "Take the task apart";
                let plan = self.work(task, plan, text).await?;
                let part = format!("{text}\nThe plan: {plan}");
                let (code, facts) = tokio::join!(
                    self.ask(CODING, task, &part),
                    self.ask(RESEARCH, task, &part),
                );
                let (code, facts) = (code?, facts?);
                let delivered = format!("{text}\nDelivered: {code}");
                let tested = self.ask(TESTING, task, &delivered).await?;
                let parts = format!("Coding: {code}\nResearch: {facts}\nTesting: {tested}");
                self.work(task, "Put the results together", &parts).await
            }
            CODING => self.work(task, "Code and write", text).await,
            RESEARCH => self.work(task, "Research and analyse", text).await,
            _ => self.work(task, "Test what was delivered", text).await,
        }
    }

    /// Asks another member. Whoever dies over it is asked again when it is back: a task has an
    /// id, so asking twice does no harm.
    async fn ask(&self, to: &str, task: &str, text: &str) -> Result<String> {
        let cluster = ClusterManager::attach(self.crew.config()?).await?;
        let (me, marker) = (cluster.agent(self.role.name)?, cluster.get_marker(to)?);
        let message = format!("task {task}\n{text}");
        let options = AskOptions::default().timeout(PATIENCE);
        let mut gone: Option<Instant> = None;
        loop {
            match me.send_to_with(to, &message, &options).await {
                Ok(answer) => {
                    let answer = spoken(&answer, marker);
                    return match answer.strip_prefix(FAILED) {
                        Some(reason) => Err(format!("{to}: {reason}").into()),
                        None => Ok(answer),
                    };
                }
                Err(error) if is_gone(&error) => {
                    if gone.get_or_insert_with(Instant::now).elapsed() > ABSENCE {
                        return Err(error.into());
                    }
                    progress(&format!("{to} is gone, asking again"));
                    tokio::time::sleep(Duration::from_millis(250)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Has the coding agent do a piece of work, once.
    async fn work(&mut self, task: &str, what: &str, details: &str) -> Result<String> {
        let work = format!("{task}: {what}");
        if let Some(done) = self.state.variables().get(&work).and_then(Value::as_str) {
            progress("done before");
            return Ok(done.to_owned());
        }
        let variables = self.state.variables();
        let under_way = variables
            .get("under_way")
            .filter(|under_way| under_way["work"] == work);
        let (prompt, session) = match under_way {
            Some(under_way) => (self.go_on(), Some(&under_way["session"])),
            None => (self.prompt(task, what, details), variables.get("session")),
        };
        let session: Option<SessionId> =
            session.cloned().map(serde_json::from_value).transpose()?;
        let context = ExecutionContext::for_workspace(&self.crew.agents, self.crew.workspace())?;
        let request = match session {
            None => LaunchRequest::try_from(NewChatRequest {
                context,
                prompt: prompt.clone(),
            })?,
            Some(session_id) => {
                let message = prompt.clone();
                LaunchRequest::try_from(FollowUpRequest {
                    context,
                    session_id,
                    message,
                })?
            }
        };

        // The intent is saved before the launch, the session right after it.
        let launches = self.service.history().read()?.entries.len();
        let mut tick = self.state.begin_tick()?;
        tick.intend_tool("launch", json!({"work": work, "launches": launches}))
            .await?;
        let execution = self.service.launch(request).await?;
        let session = json!(execution.resolved().await?);
        let under_way = json!({"work": work, "session": session});
        tick.variables().insert("session".into(), session);
        tick.variables().insert("under_way".into(), under_way);
        tick.set_status(Status::WAITING_FOR_TOOL);
        tick.commit().await?;

        let answer = self.watch(&execution).await?;
        let mut tick = self.state.begin_tick()?;
        tick.history().push(Message::user(prompt));
        tick.history().push(Message::assistant(answer.clone()));
        tick.variables().insert(work, json!(answer));
        tick.variables().remove("under_way");
        tick.set_status(Status::WAITING_FOR_EVENT);
        tick.commit().await?;
        Ok(answer)
    }

    /// What the coding agent is told. The scripted one gets its script with it.
    fn prompt(&self, task: &str, what: &str, details: &str) -> String {
        let script = match self.crew.is_scripted() {
            true => script(self.role.name, task),
            false => String::new(),
        };
        let personality = self.role.personality.lines();
        let personality = personality.filter(|line| !line.contains(self.role.marker));
        let personality: Vec<&str> = personality.collect();
        format!("{what}\n{script}{details}\n\n{}", personality.join(" "))
    }

    /// What the coding agent is told when its member was killed over it.
    fn go_on(&self) -> String {
        progress("going on where the predecessor was");
        let directive = match self.crew.is_scripted() {
            true => " [[continue]]",
            false => "",
        };
        format!("You were interrupted: go on. Do not repeat what is done.{directive}")
    }

    /// Shows what the coding agent does, and gives its last word.
    async fn watch(&mut self, execution: &Execution) -> Result<String> {
        let (mut events, mut answer, mut failed) = (execution.events(), String::new(), false);
        while let Some(event) = events.next().await {
            let EventKind::Output(output) = &event.kind else {
                continue;
            };
            if output.events.is_empty() {
                progress(&output.line.text());
            }
            for event in output.events.clone() {
                match event {
                    AgentEvent::Text { text, .. } => {
                        progress(&text);
                        answer = text;
                    }
                    AgentEvent::ToolCall { name, input, .. } => {
                        progress(&format!("{name} {input}"));
                    }
                    AgentEvent::ToolResult { .. } => {
                        let mut tick = self.state.begin_tick()?;
                        let tools = tick.variables().get("tools").and_then(Value::as_u64);
                        tick.variables()
                            .insert("tools".into(), json!(tools.unwrap_or(0) + 1));
                        tick.commit().await?;
                    }
                    AgentEvent::Finished { outcome, text } => {
                        failed = outcome == Outcome::Failure;
                        answer = text.unwrap_or(answer);
                    }
                    _ => {}
                }
            }
        }
        let report = execution.wait().await?;
        if failed || !report.is_success() {
            let how = report
                .code
                .map_or("a signal".to_owned(), |code| format!("exit code {code}"));
            let last = report.stderr_tail.last().unwrap_or(&answer);
            return Err(format!("the coding agent ended with {how}: {last}").into());
        }
        Ok(answer)
    }
}

/// What the scripted agent does for a role: each piece of work leaves one line in `work.log`.
fn script(role: &str, task: &str) -> String {
    let line = format!("echo '{role} {task}' >> work.log");
    match role {
        // It takes its time, so that it can be killed at work.
        CODING => format!(
            "[[tool echo 'echo \"Hello from the crew\"' > greet.sh; {line}; echo wrote greet.sh]]\
             [[ponder 10]]\n"
        ),
        RESEARCH => format!("[[tool {line}; uname -sm]]\n"),
        TESTING => format!("[[tool {line}; echo \"greet.sh says: $(sh greet.sh)\"]]\n"),
        GRAND_BOSS => "[[tool sort work.log | uniq -c]]\n".to_owned(),
        _ => String::new(),
    }
}

fn is_gone(error: &tmux_bus::Error) -> bool {
    use tmux_bus::Error::{PaneDied, Refused};
    match error {
        PaneDied { .. } => true,
        // It is being started: its console is not there yet.
        Refused { reason, .. } => matches!(reason, Refusal::Dead | Refusal::Unbracketed),
        _ => false,
    }
}

/// An answer without the progress that was shown before it, and without its marker.
pub(crate) fn spoken(answer: &str, marker: &str) -> String {
    let lines = answer
        .lines()
        .filter(|line| !line.starts_with(PROGRESS) && *line != marker);
    lines.collect::<Vec<_>>().join("\n")
}

/// One line in the pane, for whoever watches.
fn progress(text: &str) {
    let line: String = text
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(100)
        .collect();
    let _ = console::print(&format!("{PROGRESS}{}\n", unmarked(&line)));
}

/// A marker is the member's own word, not the coding agent's.
fn unmarked(text: &str) -> String {
    let lower = |text: String, role: &Role| text.replace(role.marker, &role.marker.to_lowercase());
    ROLES.iter().fold(text.to_owned(), lower)
}
