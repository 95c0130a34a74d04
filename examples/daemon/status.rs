//! The agents of a file, as their snapshots and claims have them. Nothing is changed.

use std::time::Duration;

use agent_snapshot::conversation::Role;
use agent_snapshot::{AgentSnapshot, open_storage};
use examples::Result;
use serde_json::{Value, json};
use timed_store::{LockPolicy, TimedStorage};

use crate::config::DaemonConfig;

pub(crate) async fn print(config: &DaemonConfig, is_json: bool) -> Result<()> {
    if !config.folder.exists() {
        let names = config.agents.iter().map(|agent| &agent.name);
        let agents: Vec<Value> = names.map(|name| describe(name, None, None)).collect();
        return show(config, &agents, is_json);
    }
    // The daemon holds the lock for a moment when it renews its claims.
    let claims = TimedStorage::<String>::builder(config.claims_file())
        .lock(LockPolicy::Wait(Duration::from_secs(10)))
        .open()?;
    let holders = claims.entries().await?;
    let storage = open_storage(&config.storage()).await?;
    let mut agents = Vec::new();
    for agent in &config.agents {
        let mut holder = holders.iter().filter(|(_, it)| *it.value() == agent.name);
        let holder = holder.next().map(|(session, _)| session.as_str());
        // `daemon-PID-ID#AGENT`.
        let daemon = holder.and_then(|it| it.split('-').nth(1)?.parse::<u32>().ok());
        let snapshot = storage.load(&agent.id()?).await?;
        agents.push(describe(&agent.name, daemon, snapshot.as_ref()));
    }
    storage.close().await?;
    show(config, &agents, is_json)
}

fn describe(name: &str, daemon: Option<u32>, snapshot: Option<&AgentSnapshot>) -> Value {
    let Some(snapshot) = snapshot else {
        return json!({"name": name, "daemon": daemon, "state": "never started"});
    };
    let variables = &snapshot.memory.working_variables;
    let history = &snapshot.memory.short_term_history;
    let mut agent = json!({
        "name": name, "daemon": daemon, "tick": snapshot.tick_index, "messages": history.len(),
        "waiting": snapshot.event_queue_backup.len(), "session": variables.get("session"),
        "answer": history.iter().rev().find(|it| it.role == Role::Assistant).map(|it| &it.content),
    });
    if let (Some(agent), Some(Value::Object(supervision))) =
        (agent.as_object_mut(), variables.get("supervision"))
    {
        agent.extend(supervision.clone());
    }
    let is_working = variables.contains_key("delivering");
    let state = match agent["state"].as_str() {
        Some("gave up") => "gave up",
        _ if daemon.is_none() => "stopped",
        Some("restarting") => "restarting",
        Some("running") if is_working => "working",
        Some("running") => "idle",
        _ => "starting",
    };
    agent["state"] = json!(state);
    agent
}

fn show(config: &DaemonConfig, agents: &[Value], is_json: bool) -> Result<()> {
    if is_json {
        println!("{}", json!({"file": config.file, "agents": agents}));
        return Ok(());
    }
    if agents.iter().all(|agent| agent["daemon"].is_null()) {
        println!("{}", config.not_running());
    }
    for agent in agents {
        let text = |key: &str| agent[key].as_str().unwrap_or_default();
        let number = |key: &str| agent[key].as_u64().unwrap_or_default();
        println!(
            "{:<20} {:<12} {} messages, {} waiting, {} restarts {}",
            text("name"),
            text("state"),
            number("messages"),
            number("waiting"),
            number("restarts"),
            text("session"),
        );
        for key in ["reason", "answer"] {
            if let Some(line) = text(key).lines().next() {
                println!("    {key}: {line}");
            }
        }
    }
    Ok(())
}
