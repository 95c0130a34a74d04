//! The agents without a terminal, with exec-core and exec-profiles.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use examples::{Result, with_causes};
use exec_core::{
    AgentEventKind, ExecutionContext, ExecutionService, FailureKind, FollowUpRequest,
    NewChatRequest, RunResult, SessionId, StopOutcome,
};
use exec_profiles::ProfileRegistry;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::Context;
use crate::real_agent::{RealAgent, home_of};
use crate::table::Table;

/// A directive of the scripted model, and a test of the class of the failure.
type FailureCase = (&'static str, fn(&FailureKind) -> bool);

const FAILURES: [FailureCase; 4] = [
    ("[[ERR 400]]", |kind| matches!(kind, FailureKind::Agent)),
    ("[[ERR 401]]", |kind| {
        matches!(kind, FailureKind::Authentication)
    }),
    ("[[ERR 429]]", |kind| {
        matches!(kind, FailureKind::Limited { .. })
    }),
    ("[[ERR 529]]", |kind| {
        matches!(kind, FailureKind::Overloaded)
    }),
];

/// Agents retry for minutes; the class must be known before.
const FAILURE_LIMIT: Duration = Duration::from_secs(45);
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// The label of the profile of an agent.
pub(crate) fn label(agent: &str) -> &str {
    match agent {
        "claude" => "claude-code",
        other => other,
    }
}

/// One agent with a service of its own.
struct Host {
    real: RealAgent,
    service: ExecutionService,
}

impl Host {
    fn open(context: &Context, agent: &str) -> Result<Self> {
        let real = RealAgent::prepare(context, agent, true)?;
        let service = service(&profiles_file(&real)?, &real.folder.path().join("state"))?;
        Ok(Self { real, service })
    }

    fn open_sandboxed(context: &Context, agent: &str) -> Result<Self> {
        let real = prepare_sandboxed(context, agent)?;
        let path = profiles_file(&real)?;
        enclose(&real, &path)?;
        let service = service(&path, &real.folder.path().join("state"))?;
        Ok(Self { real, service })
    }

    fn context(&self) -> Result<ExecutionContext> {
        let label = label(&self.real.name);
        Ok(ExecutionContext::for_workspace(
            label,
            &self.real.workspace,
        )?)
    }

    fn new_chat(&self, prompt: &str) -> Result<NewChatRequest> {
        Ok(NewChatRequest {
            context: self.context()?,
            prompt: prompt.to_owned(),
        })
    }

    async fn run(&self, prompt: &str) -> Result<RunResult> {
        let request = self.new_chat(prompt)?;
        Ok(self.service.run(request).time_limit(RUN_LIMIT).await?)
    }

    async fn follow_up(&self, session: &SessionId, message: &str) -> Result<RunResult> {
        let request = FollowUpRequest {
            context: self.context()?,
            session_id: session.clone(),
            message: message.to_owned(),
        };
        Ok(self.service.run(request).time_limit(RUN_LIMIT).await?)
    }
}

/// An agent with a home that is not in `/tmp`, which a sandbox hides, and with a secret in it.
pub(crate) fn prepare_sandboxed(context: &Context, agent: &str) -> Result<RealAgent> {
    let program = std::env::current_exe()?;
    let parent = program.parent().ok_or("no folder")?;
    let real = RealAgent::prepare_in(parent, context, agent, true)?;
    let secrets = real.home().join(".ssh");
    fs::create_dir_all(&secrets)?;
    fs::write(secrets.join("id"), "secret")?;
    Ok(real)
}

/// Adds a sandbox to the profile of the agent in this user file.
pub(crate) fn enclose(real: &RealAgent, path: &Path) -> Result<()> {
    let mut file: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let mut write = vec!["{workspace}".to_owned()];
    // Not a built-in profile: its own folder is not known.
    if real.name == "qwen" || home_of(&real.name) != real.name {
        let own = format!(".{}", home_of(&real.name));
        fs::create_dir_all(real.home().join(&own))?;
        write.push(format!("~/{own}"));
    }
    let profile = &mut file["profiles"][label(&real.name)];
    profile["sandbox"] = json!({ "write": write, "hide": ["~/.ssh"] });
    Ok(fs::write(path, file.to_string())?)
}

/// The user file: the installed program, and the environment of the private home.
fn profiles_file(real: &RealAgent) -> Result<PathBuf> {
    let program = real.program();
    let profile = if real.name == "qwen" {
        json!({
            "binary": program,
            "args": ["--yolo", "--output-format=stream-json", "--session-id={session_id}"],
            "follow_up_args": ["--yolo", "--output-format=stream-json", "--resume={session_id}"],
            "events": "claude",
            "failures": [{ "contains": ["no saved session found"], "class": "session_gone" }],
            "env": real.env,
        })
    } else {
        json!({ "launcher": { "native_at": program }, "env": real.env })
    };
    let profiles = BTreeMap::from([(label(&real.name), profile)]);
    let path = real.folder.path().join("profiles.json");
    fs::write(&path, json!({ "profiles": profiles }).to_string())?;
    Ok(path)
}

pub(crate) fn service(profiles: &Path, state: &Path) -> Result<ExecutionService> {
    let registry = ProfileRegistry::new();
    if let Some(error) = registry.load_user_file(profiles)?.errors.into_iter().next() {
        return Err(error.into());
    }
    Ok(ExecutionService::builder(registry)
        .state_dir(state)
        .open()?)
}

pub(crate) async fn run(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let host = Host::open(context, agent)?;
    table.set(agent, "version", host.real.version()?, true);
    if context.wants("chat") {
        chat(&host, table).await?;
    }
    if context.wants("tool") {
        tool(&host, table).await?;
    }
    if context.wants("failures") {
        failures(&host, table).await?;
    }
    if context.wants("session") {
        unknown_session(&host, table).await?;
    }
    if context.wants("late") && !context.quick {
        late_token(&host, table).await?;
    }
    if context.wants("stop") {
        stop(context, &host, table).await?;
    }
    if context.wants("kill") {
        kill_of_the_host(&host, table).await?;
    }
    if context.wants("sandbox") {
        sandbox(context, agent, table).await?;
    }
    Ok(())
}

/// A new chat, and a follow-up with the same session id.
async fn chat(host: &Host, table: &mut Table) -> Result<()> {
    let agent = &host.real.name;
    let first = host.run("remember the word").await?;
    let mut is_met = check(table, agent, "new chat", &first, "pong: remember the word");
    let second = host.follow_up(&first.session_id, "second message").await?;
    is_met &= check(table, agent, "follow-up", &second, "pong: second message");
    let same = first.session_id == second.session_id;
    if !same {
        let text = format!(
            "{agent}: follow-up: {} became {}",
            first.session_id, second.session_id
        );
        table.note(text);
    }
    let text = format!(
        "ids equal: {same}, tokens {:?}",
        second.usage.run.output_tokens
    );
    table.set(agent, "new chat, follow-up", text, is_met && same);
    Ok(())
}

fn check(table: &mut Table, agent: &str, case: &str, result: &RunResult, text: &str) -> bool {
    let is_met = result.is_success() && result.text.contains(text);
    if !is_met {
        table.note(format!(
            "{agent}: {case}: {:?}, failure {:?}",
            result.text, result.failure
        ));
    }
    is_met
}

/// A tool, and for Claude a sub-agent: one start, one finish.
async fn tool(host: &Host, table: &mut Table) -> Result<()> {
    let agent = &host.real.name;
    let result = host.run("[[TOOL touch made-by-tool]]").await?;
    let mut is_met = check(table, agent, "tool", &result, "tool result seen");
    let is_made = host.real.workspace.join("made-by-tool").exists();
    is_met &= is_made;
    let mut text = format!("tool ran: {is_made}");
    if agent == "claude" {
        let execution = host
            .service
            .launch(host.new_chat("[[TASK say hello]]")?)
            .await?;
        let (mut started, mut finished, mut of_sub_agent) = (0, 0, 0);
        let mut events = execution.events();
        while let Some(event) = events.next().await {
            for event in event.agent_events() {
                of_sub_agent += usize::from(event.parent.is_some());
                match event.kind {
                    AgentEventKind::SessionStarted { .. } => started += 1,
                    AgentEventKind::Finished { .. } => finished += 1,
                    _ => {}
                }
            }
        }
        is_met &= (started, finished) == (1, 1) && of_sub_agent > 0;
        text =
            format!("{text}; sub-agent: {started} start, {finished} finish, {of_sub_agent} events");
    }
    table.set(agent, "tool, sub-agent", text, is_met);
    Ok(())
}

/// Errors of the model: each has its class, none is a success or a text.
async fn failures(host: &Host, table: &mut Table) -> Result<()> {
    let agent = &host.real.name;
    let (mut right, mut false_success) = (0, 0);
    for (directive, is_right) in FAILURES {
        let request = host.new_chat(&format!("{directive} please"))?;
        let result = host.service.run(request).time_limit(FAILURE_LIMIT).await?;
        let kind = result.failure.as_ref().map(|failure| &failure.kind);
        if kind.is_some_and(is_right) {
            right += 1;
        } else {
            let stderr = result.exit.stderr_tail.join(" / ");
            let text = format!(
                "{agent}: {directive}: {:?}, text {:?}",
                result.failure, result.text
            );
            table.note(format!("{text}, stderr {:.300}", stderr));
        }
        false_success += usize::from(result.is_success() || !result.text.trim().is_empty());
    }
    let text = format!("{right} of 4 classified, {false_success} as success or text");
    table.set(
        agent,
        "HTTP 400, 401, 429, 529",
        text,
        right == 4 && false_success == 0,
    );
    Ok(())
}

async fn unknown_session(host: &Host, table: &mut Table) -> Result<()> {
    let agent = &host.real.name;
    let context = host.context()?;
    let native = match agent.as_str() {
        "opencode" => "ses_0123456789abcdefABCDEFGHIJ",
        _ => "0f0e0d0c-0b0a-4908-8706-050403020100",
    };
    let session = SessionId::new(&context.executor_type, &context.actual_project_id, native)?;
    let result = host.follow_up(&session, "hello again").await?;
    let kind = result.failure.as_ref().map(|failure| &failure.kind);
    let is_met = matches!(kind, Some(FailureKind::SessionGone));
    if !is_met {
        let stderr = result.exit.stderr_tail.join(" / ");
        table.note(format!(
            "{agent}: unknown session: {:?}, text {:?}, stderr {stderr:.300}",
            result.failure, result.text
        ));
    }
    let text = kind.map_or("no failure", FailureKind::name).to_owned();
    table.set(agent, "unknown session", text, is_met);
    Ok(())
}

/// The first token comes after 35 s, later than the time in which an id is waited for.
async fn late_token(host: &Host, table: &mut Table) -> Result<()> {
    let agent = &host.real.name;
    let result = host.run("[[HANG 35]] please").await?;
    let again = host
        .follow_up(&result.session_id, "are you the same")
        .await?;
    let is_met = result.is_success() && again.is_success() && again.session_id == result.session_id;
    if !is_met {
        table.note(format!(
            "{agent}: first token after 35 s: {:?}, then {:?}",
            result.failure, again.failure
        ));
    }
    let text = format!("follow-up {}", if is_met { "ok" } else { "failed" });
    table.set(agent, "first token after 35 s", text, is_met);
    Ok(())
}

/// Stops while tools run that have left the process group and their environment.
async fn stop(context: &Context, host: &Host, table: &mut Table) -> Result<()> {
    let agent = &host.real.name;
    let count = context.count(20);
    let (mut stopped, mut left) = (0, 0);
    for i in 0..count {
        let marker = format!("31{}{i:03}", std::process::id() % 10_000);
        let tools = tools(&marker);
        let execution = host.service.launch(host.new_chat(&tools)?).await?;
        if !appears(&marker, 3).await {
            table.note(format!(
                "{agent}: stop: the tools did not start: {}",
                last_text(&execution).await
            ));
        }
        match execution.stop().await {
            Ok(StopOutcome::Stopped(_)) => stopped += 1,
            other => table.note(format!("{agent}: stop: {other:?}")),
        }
        left += sleepers(&marker).len();
    }
    let text = format!("{left} left after {stopped} of {count} stops");
    table.set(
        agent,
        "stop (setsid, env -i, double fork)",
        text,
        left == 0 && stopped == count,
    );
    Ok(())
}

/// A command that starts three tools, each in a way of its own.
pub(crate) fn tools(marker: &str) -> String {
    format!(
        "[[TOOL setsid sleep {marker} & env -i setsid sleep {marker} & (env -i setsid sh -c 'sleep {marker} & wait' &) ; tail -f /dev/null]]"
    )
}

async fn last_text(execution: &exec_core::Execution) -> String {
    let mut events = execution.events();
    let mut text = String::new();
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_secs(1), events.next()).await {
        if let exec_core::EventKind::Output(output) = &event.kind {
            text = output.line.text().chars().take(300).collect();
        }
    }
    text
}

/// Waits until that many processes sleep for `marker` seconds.
pub(crate) async fn appears(marker: &str, count: usize) -> bool {
    let deadline = Instant::now() + Duration::from_secs(40);
    while Instant::now() < deadline {
        if sleepers(marker).len() >= count {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

/// The processes `sleep <marker>`.
pub(crate) fn sleepers(marker: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line == format!("sleep\0{marker}\0").into_bytes()
    })
    .collect()
}

/// The host is killed with SIGKILL: its next start ends what it has left.
async fn kill_of_the_host(host: &Host, table: &mut Table) -> Result<()> {
    let agent = &host.real.name;
    let marker = format!("32{}", std::process::id() % 10_000);
    let state = host.real.folder.path().join("killed");
    let profiles = profiles_file(&host.real)?;
    let mut child = tokio::process::Command::new(std::env::current_exe()?)
        .args(["--host", label(agent), &tools(&marker)])
        .args([&profiles, &state, &host.real.workspace])
        .stdout(Stdio::piped())
        .spawn()?;
    let is_running = appears(&marker, 3).await;
    child.kill().await?;
    let mut output = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut output).await?;
    }
    let alive = sleepers(&marker).len();
    let reaped = service(&profiles, &state)?.reap_orphans().await;
    let left = sleepers(&marker).len();
    if let Err(error) = &reaped {
        table.note(format!("{agent}: kill of the host: {}", with_causes(error)));
    }
    let text = format!("{alive} alive after the kill, {left} left after the next start");
    table.set(agent, "kill of the host", text, is_running && left == 0);
    Ok(())
}

/// A chat and its follow-up in a sandbox: a tool can write to the workspace, but neither outside of
/// it nor to a file of another folder, and sees nothing that is hidden. Then stops, and a kill of the
/// child.
async fn sandbox(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let host = Host::open_sandboxed(context, agent)?;
    let home = host.real.home();
    let tool = "[[TOOL touch inside; touch ../outside; cat ~/.ssh/id > secret; true]]";
    let first = host.run(tool).await?;
    let mut is_met = check(table, agent, "sandbox", &first, "tool result seen");
    let second = host.follow_up(&first.session_id, "second message").await?;
    is_met &= check(table, agent, "sandbox", &second, "pong: second message");
    let inside = host.real.workspace.join("inside").exists();
    let outside = home.join("outside").exists();
    let secret = fs::read_to_string(host.real.workspace.join("secret"))?;
    is_met &= inside && !outside && secret.is_empty();
    let text = format!(
        "inside written: {inside}, outside written: {outside}, {} bytes of a hidden file",
        secret.len()
    );
    table.set(agent, "sandbox", text, is_met);

    let count = context.count(20);
    let (mut left, mut ended) = (0, 0);
    for i in 0..count {
        let marker = format!("33{}{i:03}", std::process::id() % 10_000);
        let execution = host.service.launch(host.new_chat(&tools(&marker))?).await?;
        if !appears(&marker, 3).await {
            let text = last_text(&execution).await;
            table.note(format!("{agent}: sandbox: the tools did not start: {text}"));
        }
        if i % 2 == 0 {
            ended += usize::from(execution.stop().await.is_ok());
        } else {
            let pid = rustix::process::Pid::from_raw(execution.process_id().cast_signed());
            let pid = pid.ok_or("no process id")?;
            rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
            ended += usize::from(execution.wait().await.is_ok());
        }
        left += sleepers(&marker).len();
    }
    let text = format!("{left} left after {ended} of {count} stops and kills of the child");
    table.set(agent, "sandbox: tools", text, left == 0 && ended == count);
    Ok(())
}

/// The host of [`kill_of_the_host`]: runs one prompt.
pub(crate) async fn host(arguments: &[String]) -> Result<()> {
    let [label, prompt, profiles, state, workspace] = arguments else {
        return Err("the host needs five arguments".into());
    };
    let service = service(Path::new(profiles), Path::new(state))?;
    let request = NewChatRequest {
        context: ExecutionContext::for_workspace(label, workspace)?,
        prompt: prompt.clone(),
    };
    service.launch(request).await?.wait().await?;
    Ok(())
}
