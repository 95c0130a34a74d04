//! A real Claude Code and a real Codex in one cluster talk to each other with the command `tmux-bus`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use examples::{Result, with_causes};
use tmux_bus::{Agent, ClusterConfig, ClusterManager, LogFilter, MessageLog, SendToOptions};

use crate::Context;
use crate::real_agent::RealAgent;
use crate::table::Table;

const AGENTS: [&str; 2] = ["claude", "codex"];
/// The column of the table.
const BOTH: &str = "claude and codex";
/// Claude asks before it runs a command, except for the command of the bus. The sandbox of Codex hides the socket.
const COMMANDS: [&str; 2] = ["claude", "codex --dangerously-bypass-approvals-and-sandbox"];

/// The agents live as long as it does.
struct Team {
    cluster: ClusterManager,
    user: Agent,
    command: PathBuf,
    _agents: [RealAgent; 2],
}

pub(crate) async fn run(context: &Context, table: &mut Table) -> Result<()> {
    let team = Team::start(context).await?;
    let checked = async {
        team.questions(context, table).await?;
        team.cycle(table).await?;
        team.background(context, table).await
    };
    let checked = checked.await;
    team.cluster.stop().await?;
    checked
}

impl Team {
    async fn start(context: &Context) -> Result<Self> {
        let command = std::env::current_exe()?.with_file_name("tmux-bus");
        if !command.is_file() {
            return Err(format!("there is no {}", command.display()).into());
        }
        let agents = [
            RealAgent::prepare(context, AGENTS[0], true)?,
            RealAgent::prepare(context, AGENTS[1], true)?,
        ];
        let folder = agents[0].folder.path();
        fs::write(folder.join("personality.txt"), "You answer briefly.")?;
        let mut text = format!(
            "cluster: {{ name: real, session_name: real, work_dir: \"{}\" }}\nagents:\n",
            agents[0].workspace.display()
        );
        for (i, name) in AGENTS.iter().enumerate() {
            text.push_str(&format!(
                "  - {{ name: {name}, role: x, personality_prompt_path: personality.txt, marker: {name} OK, \
                 pane_index: {i}, agent: {name}, timeout_s: 120 }}\n"
            ));
        }
        let file = folder.join("cluster.yaml");
        fs::write(&file, text)?;
        let mut config = ClusterConfig::load(&file)?;
        for (i, agent) in config.agents.iter_mut().enumerate() {
            agent.command = Some(COMMANDS[i].to_owned());
            agent.env = agents[i].env.clone();
        }
        // Codex trusts its own project only.
        let trusted = agents[0].workspace.display().to_string();
        let settings = PathBuf::from(&agents[1].env["CODEX_HOME"]).join("config.toml");
        let mut text = fs::read_to_string(&settings)?;
        text.push_str(&format!(
            "[projects.\"{trusted}\"]\ntrust_level = \"trusted\"\n"
        ));
        fs::write(&settings, text)?;
        let cluster = ClusterManager::builder(config)
            .runtime_dir(folder.join("run"))
            .command(&command)
            .start()
            .await?;
        Ok(Self {
            user: cluster.outsider("user"),
            cluster,
            command,
            _agents: agents,
        })
    }

    /// An agent runs the command with its shell tool.
    async fn tool(&self, agent: &str, arguments: &str) -> Result<String> {
        let text = format!("[[TOOL {} {arguments}]]", self.command.display());
        let options = SendToOptions::default().timeout(Duration::from_secs(120));
        Ok(self.user.send_to_with(agent, &text, &options).await?)
    }

    /// The entries of the log from one agent to another of one type.
    fn logged(&self, from: &str, to: &str, kind: &str) -> Result<Vec<String>> {
        let filter = LogFilter::default()
            .from(from)
            .to(to)
            .message_type(kind.into());
        let log = MessageLog::load(self.cluster.logger().path(), &filter)?;
        Ok(log.entries.into_iter().map(|entry| entry.content).collect())
    }

    async fn questions(&self, context: &Context, table: &mut Table) -> Result<()> {
        let count = context.count(20);
        let (mut exact, mut right) = (0, 0);
        for number in 0..count {
            let (from, to) = (AGENTS[number % 2], AGENTS[(number + 1) % 2]);
            let question = format!("number {number}");
            match self.tool(from, &format!("ask {to} '{question}'")).await {
                Ok(answer) if answer.contains(&format!("pong: {question}")) => exact += 1,
                Ok(answer) => table.note(format!("{from} asks {to}: {answer:?}")),
                Err(error) => table.note(format!("{from} asks {to}: {}", with_causes(&*error))),
            }
            let is_logged = self.logged(from, to, "task")?.contains(&question);
            right += usize::from(is_logged);
        }
        let text = format!("{exact} of {count}, right sender {right} of {count}");
        let is_met = exact == count && right == count;
        table.set(BOTH, "questions through the shell tool", text, is_met);
        Ok(())
    }

    async fn cycle(&self, table: &mut Table) -> Result<()> {
        let back = format!("((TOOL {} ask claude hello))", self.command.display());
        let answer = self.tool("claude", &format!("ask codex '{back}'")).await;
        let refused = self.logged("codex", "claude", "refused")?;
        let is_met =
            matches!(refused.as_slice(), [one] if one.contains("codex -> claude -> codex"));
        if !is_met || answer.is_err() {
            table.note(format!("cycle: {refused:?}, {answer:?}"));
        }
        let text = format!("{} of 1 refused with its chain", refused.len());
        table.set(BOTH, "cycle", text, is_met && answer.is_ok());
        Ok(())
    }

    /// Claude asks in the background, ends its turn, and waits in a later one.
    async fn background(&self, context: &Context, table: &mut Table) -> Result<()> {
        let delay = context.delay;
        let asks = self.cluster.socket().with_file_name("asks");
        let list = || -> Result<Vec<String>> {
            let entries = fs::read_dir(&asks)?;
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            Ok(names.collect())
        };
        let before = list().unwrap_or_default();
        self.tool("claude", &format!("ask --detach codex '((SLOW {delay}))'"))
            .await?;
        let id = list()?.into_iter().find(|id| !before.contains(id));
        let id = id.ok_or("claude has started no ask")?;
        // The tool ends after a minute, and is called again.
        let mut calls = 0;
        let last = format!("tick{}", delay * 2 - 1);
        let is_back = loop {
            calls += 1;
            let told = self
                .tool("claude", &format!("wait --timeout 60 {id}"))
                .await?;
            if told.contains(&last) {
                break true;
            }
            if calls > 2 + delay / 30 {
                break false;
            }
        };
        let own = Command::new(&self.command)
            .env("TMUX_BUS_FOLDER", self.cluster.socket().with_file_name(""))
            .args(["wait", &id])
            .output()?;
        let is_same = String::from_utf8_lossy(&own.stdout).contains(&last);
        let text = format!("answer after {delay} s by {calls} calls of wait");
        table.set(BOTH, "ask in the background", text, is_back && is_same);
        Ok(())
    }
}
