//! A real Claude Code in a pane uses the MCP server `examples/mcp`: it asks a second one, and claims.

use std::fs;
use std::process::Command;
use std::time::Duration;

use examples::{Result, with_causes};
use serde_json::json;
use timed_store::{LockPolicy, SessionId, TimedStorage};
use tmux_bus::{Agent, ClusterConfig, ClusterManager, LogFilter, MessageLog, SendToOptions};

use crate::Context;
use crate::real_agent::RealAgent;
use crate::table::Table;

/// The agent with the server, and the agent that it asks.
const ASKER: &str = "asker";
const ANSWERER: &str = "answerer";
/// The column of the table.
const CLAUDE: &str = "claude";
/// A value that is claimed.
const VALUE: &str = "src/parser.rs";

struct Pair {
    cluster: ClusterManager,
    user: Agent,
    agents: [RealAgent; 2],
}

pub(crate) async fn run(context: &Context, table: &mut Table) -> Result<()> {
    let pair = Pair::start(context).await?;
    table.set(CLAUDE, "version", pair.agents[0].version()?, true);
    let checked = async {
        pair.questions(context, table).await?;
        pair.other_tools(table).await?;
        pair.claim(table).await
    };
    let checked = checked.await;
    pair.cluster.stop().await?;
    checked
}

impl Pair {
    async fn start(context: &Context) -> Result<Self> {
        let own = std::env::current_exe()?;
        let bus = own.with_file_name("tmux-bus");
        let server = own.with_file_name("examples").join("mcp");
        for program in [&bus, &server] {
            if !program.is_file() {
                return Err(format!("there is no {}", program.display()).into());
            }
        }
        let agents = [
            RealAgent::prepare(context, CLAUDE, true)?,
            RealAgent::prepare(context, CLAUDE, true)?,
        ];
        let folder = agents[0].folder.path();
        fs::write(folder.join("personality.txt"), "You answer briefly.")?;
        let servers = json!({"mcpServers": {"bus": {"command": server}}});
        let servers_file = folder.join("mcp.json");
        fs::write(&servers_file, servers.to_string())?;
        let mut text = format!(
            "cluster: {{ name: mcp, session_name: mcp, work_dir: \"{}\" }}\nagents:\n",
            agents[0].workspace.display()
        );
        for (i, name) in [ASKER, ANSWERER].iter().enumerate() {
            text.push_str(&format!(
                "  - {{ name: {name}, role: x, personality_prompt_path: personality.txt, marker: {name} OK, \
                 pane_index: {i}, agent: claude, timeout_s: 120 }}\n"
            ));
        }
        let file = folder.join("cluster.yaml");
        fs::write(&file, text)?;
        let mut config = ClusterConfig::load(&file)?;
        let commands = [
            format!(
                "claude --mcp-config {} --strict-mcp-config --allowedTools mcp__bus",
                servers_file.display()
            ),
            "claude".to_owned(),
        ];
        for ((agent, real), command) in config.agents.iter_mut().zip(&agents).zip(commands) {
            agent.command = Some(command);
            agent.env = real.env.clone();
            // By default the model searches for the tools of servers, which the scripted one cannot.
            let search = "ENABLE_TOOL_SEARCH".to_owned();
            agent.env.insert(search, "false".to_owned());
        }
        // The second one works in the project of the first, which its own home does not trust.
        let settings = agents[1].home().join(".claude.json");
        let trusted = |agent: &RealAgent| agent.workspace.display().to_string();
        let text = fs::read_to_string(&settings)?;
        fs::write(
            &settings,
            text.replace(&trusted(&agents[1]), &trusted(&agents[0])),
        )?;
        let cluster = ClusterManager::builder(config)
            .runtime_dir(folder.join("run"))
            .command(&bus)
            .start()
            .await?;
        Ok(Self {
            user: cluster.outsider("user"),
            cluster,
            agents,
        })
    }

    /// The agent calls a tool of the server.
    async fn tool(&self, name: &str, arguments: serde_json::Value) -> Result<String> {
        let text = format!("[[MCP {name} {arguments}]]");
        let options = SendToOptions::default().timeout(Duration::from_secs(120));
        let answer = self.user.send_to_with(ASKER, &text, &options).await?;
        // The model repeats the result as JSON inside of JSON.
        Ok(answer.replace('\\', ""))
    }

    async fn questions(&self, context: &Context, table: &mut Table) -> Result<()> {
        let count = context.count(20);
        let (mut exact, mut right) = (0, 0);
        for number in 0..count {
            let question = format!("number {number}");
            let arguments = json!({"to": ANSWERER, "text": question});
            match self.tool("ask", arguments).await {
                Ok(answer) if answer.contains(&format!("pong: {question}")) => exact += 1,
                Ok(answer) => table.note(format!("ask: {answer:?}")),
                Err(error) => table.note(format!("ask: {}", with_causes(&*error))),
            }
            let filter = LogFilter::default().from(ASKER).to(ANSWERER);
            let log = MessageLog::load(self.cluster.logger().path(), &filter)?;
            right += usize::from(log.entries.iter().any(|entry| entry.content == question));
        }
        let text = format!("{exact} of {count}, right sender {right} of {count}");
        let is_met = exact == count && right == count;
        table.set(CLAUDE, "questions by MCP", text, is_met);
        Ok(())
    }

    async fn other_tools(&self, table: &mut Table) -> Result<()> {
        let calls = [
            ("status", json!({}), r#""you":"asker""#),
            (
                "post",
                json!({"to": ANSWERER, "text": "hello"}),
                r#""state":"waiting""#,
            ),
            ("inbox", json!({}), r#""agent":"asker""#),
            (
                "ask",
                json!({"to": "nobody", "text": "x"}),
                r#""kind":"not_found""#,
            ),
            ("release", json!({"value": "x"}), r#""state":"not_held""#),
        ];
        let (count, mut right) = (calls.len(), 0);
        for (name, arguments, expected) in calls {
            match self.tool(name, arguments).await {
                Ok(answer) if answer.contains(expected) => right += 1,
                Ok(answer) => table.note(format!("{name}: {answer:?}")),
                Err(error) => table.note(format!("{name}: {}", with_causes(&*error))),
            }
        }
        let text = format!("{right} of {count}");
        table.set(
            CLAUDE,
            "status, post, inbox, a failure, release",
            text,
            right == count,
        );
        Ok(())
    }

    /// The agent holds a value until it is killed.
    async fn claim(&self, table: &mut Table) -> Result<()> {
        let answer = self.tool("claim", json!({"value": VALUE})).await?;
        let file = self.cluster.logger().path().with_file_name("claims.json");
        let store = TimedStorage::<String>::builder(file)
            .session(SessionId::new("another")?)
            .lock(LockPolicy::Wait(Duration::from_secs(10)))
            .open()?;
        let is_held = store.claim(VALUE.to_owned()).await?.granted().is_none();
        let pid = Command::new("tmux")
            .arg("-S")
            .arg(self.cluster.socket())
            .args(["display-message", "-p", "-t"])
            .arg(self.cluster.get_pane(ASKER)?.to_string())
            .arg("#{pane_pid}")
            .output()?;
        let pid = String::from_utf8(pid.stdout)?;
        Command::new("kill").args(["-9", pid.trim()]).status()?;
        let limit = Duration::from_secs(30);
        let freed = store.claim_within(VALUE.to_owned(), limit).await?;
        let is_free = freed.granted().is_some();
        if !is_held {
            table.note(format!("claim: {answer:?}"));
        }
        let text = format!(
            "held: {}, free after kill -9 of the agent: {}",
            yes(is_held),
            yes(is_free)
        );
        table.set(CLAUDE, "claim", text, is_held && is_free);
        Ok(())
    }
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}
