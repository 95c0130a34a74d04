//! A member of the crew: the program in a pane. It claims a unique name, saves its state in
//! snapshots, starts a coding agent for its work, and sends messages to the other panes.

use std::path::Path;
use std::time::{Duration, Instant};

use agent_snapshot::{AgentState, Status, conversation::Message};
use examples::console::{self, Console};
use examples::{Result, with_causes};
use exec_core::{
    AgentEventKind, EventKind, Execution, ExecutionContext, ExecutionService, FollowUpRequest,
    LaunchRequest, NewChatRequest, Outcome, SessionId, termination_signal,
};
use serde_json::{Value, json};
use timed_store::Claim;
use tmux_bus::{ClusterManager, Refusal, SendToOptions};

use crate::crew::{CODING, Crew, GRAND_BOSS, MIDDLE_MANAGER, RESEARCH, ROLES, Role, TESTING};

/// Time for the answer of a member, including the answers that it waits for.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_secs(1800);
/// Time for the restart of a member that has died.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// Prefix of a line that shows progress and is not part of the answer.
const PROGRESS: &str = "· ";
/// Prefix of an answer that reports a failure.
pub(crate) const FAILED: &str = "FAILED: ";

/// Answers messages in the pane until the end of input, or until a signal: the coding agent is then
/// stopped.
pub(crate) async fn run(folder: &Path, name: &str) -> Result<()> {
    let role = ROLES.iter().find(|role| role.name == name);
    let role = role.ok_or_else(|| format!("unknown role `{name}`"))?;
    let signal = termination_signal()?;
    let mut member = Member::hydrate(Crew::load(folder)?, role).await?;
    let service = member.service.clone();
    tokio::select! {
        answered = answer_messages(&mut member) => answered,
        signal = signal => {
            service.shutdown(Duration::from_secs(2)).await;
            // Without the end of the runtime, which waits for the blocking read of a message.
            std::process::exit(128 + signal)
        }
    }
}

async fn answer_messages(member: &mut Member) -> Result<()> {
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
        console::print(&format!("{}\n{}\n", unmarked(&answer), member.role.marker))?;
    }
}

struct Member {
    crew: Crew,
    role: &'static Role,
    state: AgentState,
    service: ExecutionService,
}

impl Member {
    /// Starts a member, or restarts one that was killed.
    async fn hydrate(crew: Crew, role: &'static Role) -> Result<Self> {
        let snapshots = crew.snapshots().await?;
        let (mut state, recovery) =
            AgentState::hydrate(snapshots, crew.agent_id(role.name)?).await?;
        // In this order: the name before the restart, the name of the role, the same with a number.
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
        // The coding agent of a killed predecessor may still run; nothing reads its output.
        let reaped = service.reap_orphans().await?.executions;
        let mut tick = state.begin_tick()?;
        // If the predecessor died between the saved intent and the saved session, the session of
        // the launch is known only from the executions that were reaped or recorded.
        for intent in recovery.uncertain_tools {
            let launches = intent.args["launches"].as_u64().unwrap_or(0);
            let past = service.history().load()?.entries;
            let entry = past.get(usize::try_from(launches)?);
            let session = reaped.last().map(|launch| &launch.session_id);
            if let Some(session) = session.or(entry.map(|entry| &entry.session_id)) {
                let under_way = json!({"work": intent.args["work"], "session": session});
                tick.variables().insert("under_way".into(), under_way);
            }
        }
        if let Some(under_way) = tick.variables().get("under_way") {
            progress(&format!(
                "restarted; unfinished work: {}",
                under_way["work"]
            ));
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

    /// Answers a task. Each finished step is saved, so that a repeated request is idempotent.
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
            _ => self.work(task, "Test the delivery", text).await,
        }
    }

    /// Asks another member. A member that dies is asked again after its restart: the request has
    /// the id of the task, so repeating it is safe.
    async fn ask(&self, to: &str, task: &str, text: &str) -> Result<String> {
        let cluster = ClusterManager::builder(self.crew.config()?);
        let cluster = cluster.attach_unchanged().await?;
        let (me, marker) = (cluster.agent(self.role.name)?, cluster.get_marker(to)?);
        let message = format!("task {task}\n{text}");
        let options = SendToOptions::default().timeout(ASK_TIMEOUT);
        let mut died_at: Option<Instant> = None;
        loop {
            match me.send_to_with(to, &message, &options).await {
                Ok(answer) => {
                    let answer = answer_text(&answer, marker);
                    return match answer.strip_prefix(FAILED) {
                        Some(reason) => Err(format!("{to}: {reason}").into()),
                        None => Ok(answer),
                    };
                }
                Err(error) if has_died(&error) => {
                    let died_at = died_at.get_or_insert_with(Instant::now);
                    if died_at.elapsed() > RESTART_TIMEOUT {
                        return Err(error.into());
                    }
                    progress(&format!("{to} has died, asking again"));
                    tokio::time::sleep(Duration::from_millis(250)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Lets the coding agent do a piece of work. A finished piece is not repeated.
    async fn work(&mut self, task: &str, what: &str, details: &str) -> Result<String> {
        let work = format!("{task}: {what}");
        if let Some(done) = self.state.variables().get(&work).and_then(Value::as_str) {
            progress("already done");
            return Ok(done.to_owned());
        }
        let variables = self.state.variables();
        let under_way = variables
            .get("under_way")
            .filter(|under_way| under_way["work"] == work);
        let (prompt, session) = match under_way {
            Some(under_way) => (self.continue_prompt(), Some(&under_way["session"])),
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

        // The intent is saved before the launch and the session after it: a crash between the two
        // leaves an intent without a session, which `hydrate` resolves.
        let launches = self.service.history().load()?.entries.len();
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

    /// The prompt for the coding agent. The scripted agent also gets its directives.
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

    /// The prompt for work that was interrupted by a kill.
    fn continue_prompt(&self) -> String {
        progress("continuing the work of the killed process");
        let directive = match self.crew.is_scripted() {
            true => " [[continue]]",
            false => "",
        };
        format!("You were interrupted: continue. Do not repeat finished steps.{directive}")
    }

    /// Prints the events of the coding agent and returns its answer.
    async fn watch(&mut self, execution: &Execution) -> Result<String> {
        let (mut events, mut answer, mut failed) = (execution.events(), String::new(), false);
        while let Some(event) = events.next().await {
            if let EventKind::Output(output) = &event.kind
                && output.events.is_empty()
            {
                progress(&output.line.text());
            }
            for event in event.agent_events() {
                // Sub-agents answer to their agent.
                if event.parent.is_some() {
                    continue;
                }
                match event.kind.clone() {
                    AgentEventKind::Text { text, .. } => {
                        progress(&text);
                        answer = text;
                    }
                    AgentEventKind::ToolCall { name, input, .. } => {
                        progress(&format!("{name} {input}"));
                    }
                    AgentEventKind::ToolResult { .. } => {
                        let mut tick = self.state.begin_tick()?;
                        let tools = tick.variables().get("tools").and_then(Value::as_u64);
                        tick.variables()
                            .insert("tools".into(), json!(tools.unwrap_or(0) + 1));
                        tick.commit().await?;
                    }
                    AgentEventKind::Finished { outcome, text, .. } => {
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

/// The directives of a role for the scripted agent. Each piece of work appends a line to
/// `work.log`.
fn script(role: &str, task: &str) -> String {
    let line = format!("echo '{role} {task}' >> work.log");
    match role {
        // The wait leaves time to kill it.
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

fn has_died(error: &tmux_bus::Error) -> bool {
    use tmux_bus::Error::{PaneDied, Refused};
    match error {
        PaneDied { .. } => true,
        // Unbracketed: the member is starting, and its console has not turned on bracketed paste.
        Refused { reason, .. } => matches!(reason, Refusal::Dead | Refusal::Unbracketed),
        _ => false,
    }
}

/// An answer without its progress lines and its marker.
pub(crate) fn answer_text(answer: &str, marker: &str) -> String {
    let lines = answer
        .lines()
        .filter(|line| !line.starts_with(PROGRESS) && *line != marker);
    lines.collect::<Vec<_>>().join("\n")
}

/// Prints a progress line in the pane.
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

/// Changes markers in the text of the coding agent, which would end the answer too early.
fn unmarked(text: &str) -> String {
    let lower = |text: String, role: &Role| text.replace(role.marker, &role.marker.to_lowercase());
    ROLES.iter().fold(text.to_owned(), lower)
}
