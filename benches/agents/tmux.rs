//! The TUIs of the agents in panes, with tmux-bus.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use examples::{Result, with_causes};
use tmux_bus::{Agent, AgentState, ClusterConfig, ClusterManager, Error, SendToOptions};

use crate::Context;
use crate::model::{MARKER, Model};
use crate::real_agent::RealAgent;
use crate::table::Table;

/// The name of the agent in the cluster.
const AGENT: &str = "coder";

/// How an agent is brought to ask before it runs a command.
const ASKING: [(&str, &str, &str); 4] = [
    ("claude", "claude --permission-mode default", "TOOL"),
    ("codex", "codex", "ESCALATE"),
    ("gemini", "gemini", "TOOL"),
    (
        "opencode",
        "OPENCODE_PERMISSION='{\"bash\":\"ask\"}' opencode",
        "TOOL",
    ),
];

/// How an agent runs commands without a question.
const TRUSTING: [(&str, &str); 4] = [
    ("claude", "claude"),
    ("codex", "codex"),
    ("gemini", "gemini --approval-mode yolo"),
    ("opencode", "opencode"),
];

pub(crate) async fn run(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let version = RealAgent::prepare(context, agent, true)?.version()?;
    table.set(agent, "version", version, true);
    if context.wants("ready") {
        ready(context, agent, table).await?;
    }
    if context.wants("dialogs") {
        dialogs(context, agent, table).await?;
    }
    if context.wants("inputs") {
        inputs(context, agent, table).await?;
    }
    if context.wants("answers") {
        answers(context, agent, table).await?;
    }
    if context.wants("late") {
        late(context, agent, table).await?;
    }
    if context.wants("approval") {
        approval(context, agent, table).await?;
    }
    if context.wants("draft") {
        draft(context, agent, table).await?;
    }
    Ok(())
}

/// A cluster with one agent.
struct Pane {
    real: RealAgent,
    cluster: ClusterManager,
    user: Agent,
}

impl Pane {
    async fn start(context: &Context, agent: &str, command: &str) -> Result<Self> {
        let real = RealAgent::prepare(context, agent, true)?;
        let cluster = builder(&real, command)?.start().await?;
        let user = cluster.outsider("user");
        Ok(Self {
            real,
            cluster,
            user,
        })
    }

    async fn ask(&self, text: &str, timeout: Duration) -> std::result::Result<String, Error> {
        let options = SendToOptions::default().timeout(timeout);
        self.user.send_to_with(AGENT, text, &options).await
    }

    /// Keys as a person types them.
    fn type_keys(&self, keys: &[&str]) -> Result<()> {
        let pane = self.cluster.get_pane(AGENT)?.to_string();
        let status = Command::new("tmux")
            .arg("-S")
            .arg(self.cluster.socket())
            .args(["send-keys", "-t", &pane])
            .args(keys)
            .status()?;
        if status.success() {
            Ok(())
        } else {
            Err("tmux send-keys failed".into())
        }
    }

    async fn wait_for(&self, state: AgentState) -> Result<()> {
        let timeout = Duration::from_secs(60);
        self.cluster.wait_for(AGENT, state, timeout).await?;
        Ok(())
    }

    async fn screen(&self) -> String {
        match self.cluster.explain(AGENT).await {
            Ok(explanation) => explanation.to_string(),
            Err(error) => with_causes(&error),
        }
    }
}

fn builder(real: &RealAgent, command: &str) -> Result<tmux_bus::ClusterBuilder> {
    let folder = real.folder.path();
    fs::write(
        folder.join("coder.txt"),
        "Every answer ends with the line CODING OK.",
    )?;
    let file = folder.join("cluster.yaml");
    let work_dir = real.workspace.display();
    fs::write(
        &file,
        format!(
            "cluster: {{ name: real, session_name: real, work_dir: \"{work_dir}\" }}\n\
             agents:\n  - name: {AGENT}\n    role: coder\n    personality_prompt_path: coder.txt\n    \
             marker: {MARKER}\n    pane_index: 0\n    agent: {}\n    timeout_s: 60\n",
            real.name
        ),
    )?;
    let mut config = ClusterConfig::load(&file)?;
    config.agents[0].command = Some(command.to_owned());
    config.agents[0].env = real.env.clone();
    Ok(ClusterManager::builder(config).runtime_dir(folder.join("run")))
}

async fn ready(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let count = context.count(10);
    let mut times = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let real = RealAgent::prepare(context, agent, true)?;
        match builder(&real, agent)?.start().await {
            Ok(cluster) => {
                times.push(start.elapsed());
                cluster.stop().await?;
            }
            Err(error) => {
                table.note(format!("{agent}: not ready: {}", with_causes(&error)));
                stop(&real, agent).await?;
            }
        }
    }
    times.sort();
    let slowest = times.last().map_or(0.0, Duration::as_secs_f64);
    let is_met = times.len() == count && slowest <= 15.0;
    let text = format!("{} of {count}, slowest {slowest:.1} s", times.len());
    table.set(agent, "ready (seeded home)", text, is_met);
    Ok(())
}

/// Ends a cluster whose start failed: it stays up for the person.
async fn stop(real: &RealAgent, command: &str) -> Result<()> {
    match builder(real, command)?.attach_unchanged().await {
        Ok(cluster) => cluster.stop().await?,
        Err(Error::NotRunning { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

async fn dialogs(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let count = context.count(10);
    let (mut named, mut answered, mut ready) = (0, 0, 0);
    for _ in 0..count {
        let real = RealAgent::prepare(context, agent, false)?;
        match builder(&real, agent)?
            .startup_question("Are you ready?")
            .start()
            .await
        {
            Ok(cluster) => {
                ready += 1;
                cluster.stop().await?;
            }
            Err(error) => {
                let text = with_causes(&error);
                answered += real.model.messages()?.len();
                let cluster = builder(&real, agent)?.attach_unchanged().await?;
                let status = cluster.status().await?;
                match &status.agents[0].state {
                    AgentState::Dialog { id } => {
                        let is_named = text.contains("ttach");
                        named += usize::from(is_named);
                        if !is_named {
                            table.note(format!("{agent}: unseeded home: {text}"));
                        }
                        table.note(format!("{agent}: unseeded home: dialog `{id}`"));
                    }
                    state => {
                        answered += 1;
                        table.note(format!("{agent}: unseeded home: {state:?}: {text}"));
                    }
                }
                cluster.stop().await?;
            }
        }
    }
    // Opencode has no question on its first run.
    let is_met = answered == 0 && (named == count || (agent == "opencode" && ready == count));
    let text = format!("{named} of {count} named, {ready} ready, {answered} answered");
    table.set(agent, "dialogs (unseeded home)", text, is_met);
    Ok(())
}

fn input_cases() -> Vec<(&'static str, String)> {
    let kb5 = "All work and no play makes a dull day. ".repeat(128);
    vec![
        ("one line", "A plain message.".to_owned()),
        (
            "three lines",
            "first line\nsecond line\nthird line".to_owned(),
        ),
        ("blank lines", "first\n\n\nfourth".to_owned()),
        (
            "Japanese",
            "日本語のメッセージです。\n二行目、全角「括弧」と絵文字🎉を含む。".to_owned(),
        ),
        ("5 KB", format!("{}end.", kb5)),
        ("tabs", "a\tb\tc\n\tindented with a tab".to_owned()),
        ("leading /", "/tmp/x is a path".to_owned()),
        ("leading @", "@README what is this".to_owned()),
        ("leading #", "# a heading first".to_owned()),
        ("leading !", "!echo this is not a command".to_owned()),
        ("leading -", "- an item first".to_owned()),
        ("leading ?", "? what is this".to_owned()),
        (
            "quotes the marker",
            format!("Do not say {MARKER} before the end;\n{MARKER}\nis the marker"),
        ),
    ]
}

async fn inputs(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let pane = Pane::start(context, agent, agent).await?;
    let (mut exact, mut count) = (0, 0);
    for round in 0..3 {
        for (name, text) in input_cases() {
            count += 1;
            let before = pane.real.model.messages()?.len();
            let answer = pane.ask(&text, Duration::from_secs(40)).await;
            let got = pane.real.model.messages()?.split_off(before);
            let header = format!("Message from user:\n{text}");
            let is_exact = match got.as_slice() {
                // Gemini puts its own context before the first message.
                [got] => *got == text || *got == header || got.ends_with(&format!("\n{text}")),
                _ => false,
            };
            exact += usize::from(is_exact);
            if !is_exact {
                let got: Vec<_> = got.iter().map(|text| short(text)).collect();
                table.note(format!("{agent}: input `{name}`: the model got {got:?}"));
            }
            if let Err(error) = answer {
                table.note(format!("{agent}: input `{name}`: {}", with_causes(&error)));
            }
        }
        if context.quick && round == 0 {
            break;
        }
    }
    pane.cluster.stop().await?;
    // Claude turns tabs into spaces by itself.
    let altered = if agent == "claude" { count / 13 } else { 0 };
    let text = format!("{exact} of {count}");
    table.set(agent, "inputs exact", text, exact + altered >= count);
    Ok(())
}

async fn answers(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    const KINDS: [&str; 10] = [
        "short",
        "markdown",
        "code",
        "long",
        "table",
        "japanese",
        "mention",
        "slowbegin",
        "short",
        "tool",
    ];
    let command = TRUSTING.iter().find(|(name, _)| *name == agent);
    let pane = Pane::start(
        context,
        agent,
        command.map_or(agent, |(_, command)| command),
    )
    .await?;
    let count = context.count(50).max(KINDS.len());
    let (mut exact, mut errors, mut wrong) = (0, 0, 0);
    for i in 0..count {
        let kind = KINDS[i % KINDS.len()];
        let (text, expected) = match kind {
            "tool" => (
                format!("[[TOOL echo {MARKER}]] please, number {i}"),
                format!("tool result seen\n\n{MARKER}"),
            ),
            // The same question and the same answer twice.
            "short" => ("[[SAY short]] please".to_owned(), Model::reply(kind)?),
            "slowbegin" => (
                format!("[[SAY {kind} 0.2]] please, number {i}"),
                Model::reply(kind)?,
            ),
            _ => (
                format!("[[SAY {kind}]] please, number {i}"),
                Model::reply(kind)?,
            ),
        };
        match pane.ask(&text, Duration::from_secs(60)).await {
            Ok(answer) if answer.trim() == expected.trim() => exact += 1,
            Ok(answer) => {
                wrong += 1;
                table.note(format!(
                    "{agent}: answer `{kind}`: {}",
                    difference(&answer, &expected)
                ));
            }
            Err(error) => {
                errors += 1;
                table.note(format!("{agent}: answer `{kind}`: {}", with_causes(&error)));
            }
        }
    }
    pane.cluster.stop().await?;
    let is_met = wrong == 0 && (errors == 0 || agent == "gemini");
    let text = format!("{exact} of {count}, {errors} errors, {wrong} wrong");
    table.set(agent, "answers exact", text, is_met);
    Ok(())
}

async fn late(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let pane = Pane::start(context, agent, agent).await?;
    let count = context.count(20);
    let (mut given, mut own, mut refused) = (0, 0, 0);
    for i in 0..count {
        let slow = format!("[[SLOW 3]] please, number {i}");
        if pane.ask(&slow, Duration::from_secs(1)).await.is_ok() {
            table.note(format!("{agent}: late: the first answer came in time"));
        }
        match pane
            .ask(&format!("second {i}"), Duration::from_secs(30))
            .await
        {
            Ok(answer) if answer.contains(&format!("pong: second {i}")) => own += 1,
            Ok(answer) => {
                given += 1;
                table.note(format!("{agent}: late: got {}", short(&answer)));
            }
            Err(error) => {
                refused += 1;
                table.note(format!("{agent}: late: {}", with_causes(&error)));
            }
        }
    }
    pane.cluster.stop().await?;
    let text = format!("{given} of {count} given to another ask, {own} own, {refused} errors");
    table.set(agent, "late answers", text, given == 0 && own == count);
    Ok(())
}

async fn approval(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let Some((_, command, directive)) = ASKING.iter().find(|(name, ..)| *name == agent) else {
        return Err(format!("no approval mode is known for {agent}").into());
    };
    let pane = Pane::start(context, agent, command).await?;
    let count = context.count(20);
    let made = pane.real.workspace.join("made-by-tool");
    let question = format!("[[{directive} touch {}]] please", made.display());
    let first = pane.ask(&question, Duration::from_secs(5)).await;
    if let Ok(answer) = first {
        table.note(format!(
            "{agent}: approval: the tool ran at once: {}",
            short(&answer)
        ));
    }
    pane.wait_for(AgentState::WaitingForApproval).await?;
    let before = pane.real.model.messages()?.len();
    let (mut refused, mut approved) = (0, 0);
    for i in 0..count {
        match pane
            .ask(&format!("1\nmessage {i}"), Duration::from_secs(2))
            .await
        {
            Err(error) if error.is_not_sent() => refused += 1,
            other => table.note(format!("{agent}: approval: {other:?}")),
        }
        approved += usize::from(made.exists());
    }
    let submitted = pane.real.model.messages()?.len() - before;
    if approved + submitted > 0 || refused < count {
        table.note(format!("{agent}: approval: {}", pane.screen().await));
    }
    pane.cluster.stop().await?;
    let text = format!("{approved} of {count} approved, {refused} refused");
    table.set(
        agent,
        "approval open",
        text,
        approved + submitted == 0 && refused == count,
    );
    Ok(())
}

async fn draft(context: &Context, agent: &str, table: &mut Table) -> Result<()> {
    let pane = Pane::start(context, agent, agent).await?;
    let count = context.count(20);
    pane.type_keys(&["-l", "please do not send this"])?;
    // A draft is what the screen shows: keys that the agent has not read yet are on no screen.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !pane.screen().await.contains("please do not send this") {
        if Instant::now() > deadline {
            return Err(format!("{agent} does not show the draft").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let before = pane.real.model.messages()?.len();
    let (mut refused, mut submitted) = (0, 0);
    for i in 0..count {
        match pane
            .ask(&format!("message {i}"), Duration::from_secs(2))
            .await
        {
            Err(error) if error.is_not_sent() => refused += 1,
            other => table.note(format!("{agent}: draft: {other:?}")),
        }
        submitted = pane.real.model.messages()?.len() - before;
    }
    // The draft is still there, and goes out alone when its author submits it.
    pane.type_keys(&["Enter"])?;
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut got = Vec::new();
    while got.is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
        got = pane.real.model.messages()?.split_off(before + submitted);
    }
    let is_kept = got
        .first()
        .is_some_and(|got| got.ends_with("please do not send this"));
    if !is_kept {
        table.note(format!("{agent}: draft: its author sent {got:?}"));
    }
    pane.cluster.stop().await?;
    let text =
        format!("{submitted} of {count} submitted, {refused} refused, draft kept: {is_kept}");
    table.set(
        agent,
        "draft in the input line",
        text,
        submitted == 0 && is_kept,
    );
    Ok(())
}

fn short(text: &str) -> String {
    let cut: String = text.chars().take(120).collect();
    if cut.len() < text.len() {
        format!("{cut}… ({} bytes)", text.len())
    } else {
        cut
    }
}

fn difference(answer: &str, expected: &str) -> String {
    let same = answer
        .chars()
        .zip(expected.chars())
        .take_while(|(a, b)| a == b)
        .count();
    let rest = |text: &str| short(&text.chars().skip(same).collect::<String>());
    format!(
        "{} of {} bytes; after {same} characters {:?} instead of {:?}",
        answer.len(),
        expected.len(),
        rest(answer),
        rest(expected)
    )
}
