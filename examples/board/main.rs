//! Starts the board: a web page on loopback that shows running agents and steers them.
//!
//! ```sh
//! cargo run -p examples --bin board -- --demo
//! cargo run -p examples --bin board -- --live claude-code --live codex=reviewer --workspace .
//! cargo run -p examples --bin board -- --cluster examples/config/cc-cluster.yaml
//! cargo run -p examples --bin board -- --crew /tmp/crew-1000/3f9a1c22
//! ```
//!
//! It prints the address, which holds a secret: open it in a browser. `Ctrl-C` ends the board and its
//! live sessions; agents that it only follows go on.
//!
//! Exit codes: 1 failed, 2 wrong arguments, 128 + n ended by signal n.
#![allow(clippy::print_stdout, reason = "a command-line program prints")]

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use examples::board::sources::{
    ClaimsSource, ClusterSource, HistorySource, LiveSource, ScriptedSource, SnapshotSource,
};
use examples::board::{BoardServer, Budget, Change, Hub, Source};
use examples::{Result, report, scripted_agent, until_signal};
use exec_core::{ExecutionContext, ExecutionService, LiveRequest, PermissionPolicy};
use exec_profiles::ProfileRegistry;
use serde_json::{Value, json};
use timed_store::TimedStorage;
use tmux_bus::{Bus, ClusterConfig, ClusterManager};

/// Shows running agents on a web page and steers them.
#[derive(Parser)]
#[command(name = "board")]
struct Arguments {
    /// Play five scripted agents
    #[arg(long)]
    demo: bool,
    /// Follow a crew by its folder: its cluster, claims, snapshots and executions
    #[arg(long, value_name = "DIR")]
    crew: Option<PathBuf>,
    /// Follow a cluster by its configuration
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Follow the executions that a state folder records
    #[arg(long, value_name = "DIR")]
    state: Vec<PathBuf>,
    /// Follow the claims of a timed store
    #[arg(long, value_name = "FILE")]
    claims: Vec<PathBuf>,
    /// Follow the snapshots of a storage, such as sqlite:agents.db
    #[arg(long, value_name = "URL")]
    snapshots: Vec<String>,
    /// Open a live session of an agent, such as claude-code or codex=reviewer
    #[arg(long, value_name = "PROFILE[=NAME]")]
    live: Vec<String>,
    /// The workspace of live sessions
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,
    /// The most that all agents together, or the named one, may cost, in US dollars: live sessions
    /// are stopped beyond it
    #[arg(long, value_name = "[AGENT=]USD", value_parser = budget)]
    budget: Vec<Budget>,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Allow an address that other machines reach. The connection is not encrypted
    #[arg(long)]
    beyond_loopback: bool,
    /// A further name by which browsers address the board
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Print the address as one line of JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match scripted_agent::run_if_asked() {
        Some(code) => code,
        None => report(until_signal(run(Arguments::parse())).await),
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let mut sources: Vec<Arc<dyn Source>> = Vec::new();
    let mut title = "board".to_owned();
    if arguments.demo {
        title = "Demo crew".to_owned();
        sources.push(Arc::new(ScriptedSource::story()));
    }
    if let Some(folder) = &arguments.crew {
        title = name_of(folder);
        sources.extend(crew(folder).await?);
    }
    if let Some(config) = &arguments.cluster {
        let config = ClusterConfig::load(config)?;
        title.clone_from(&config.name);
        sources.push(Arc::new(ClusterSource::new(cluster(config).await?)));
    }
    for folder in &arguments.state {
        sources.push(Arc::new(HistorySource::new(folder)));
    }
    for file in &arguments.claims {
        let label = label_of(file, &arguments);
        sources.push(Arc::new(ClaimsSource::of_file(label, file)?));
    }
    for url in &arguments.snapshots {
        sources.push(snapshots(url).await?);
    }
    let service = match arguments.live.is_empty() {
        true => None,
        false => Some(ExecutionService::open(profiles(&arguments.workspace)?)?),
    };
    // Sessions that are live end with the board, however it ends.
    let _guard = service
        .as_ref()
        .map(|service| service.shutdown_on_drop(SHUTDOWN));
    if let Some(service) = &service {
        title = name_of(&std::path::absolute(&arguments.workspace)?);
        sources.push(live(service, &arguments).await?);
    }
    if sources.is_empty() {
        let known = "--demo, --live, --crew, --cluster, --state, --claims or --snapshots";
        return Err(format!("nothing to follow: give at least one of {known}").into());
    }
    let hub = Hub::new(title);
    for source in sources {
        let feed = hub.follow(source);
        for budget in &arguments.budget {
            feed.push(Change::Budget(budget.clone()));
        }
    }
    let mut server = BoardServer::builder(hub).listen(arguments.listen);
    if arguments.beyond_loopback {
        server = server.beyond_loopback();
    }
    for name in arguments.host {
        server = server.host(name);
    }
    let server = server.bind().await?;
    let address = server.address();
    match arguments.json {
        true => println!("{}", json!({"address": address})),
        false => println!("board: {address}"),
    }
    std::io::stdout().flush()?;
    server.serve().await
}

/// The label of the claims of a crew.
const ROLES: &str = "roles";
/// The time for live sessions to end with the board.
const SHUTDOWN: Duration = Duration::from_secs(10);
/// A permission request that is not answered in this time is denied.
const PERMISSION_LIMIT: Duration = Duration::from_secs(600);

/// The known agents, and the scripted one.
fn profiles(workspace: &Path) -> Result<ProfileRegistry> {
    let profiles = ProfileRegistry::new();
    profiles.register(scripted_agent::profile(&workspace.join(".scripted-agent"))?)?;
    Ok(profiles)
}

/// Opens live sessions; each asks the page for permissions, and is stopped beyond its budget.
async fn live(service: &ExecutionService, arguments: &Arguments) -> Result<Arc<dyn Source>> {
    let source = LiveSource::new();
    // What earlier boards have used does not count.
    let group = format!("board-{}", uuid::Uuid::new_v4().simple());
    for (label, name) in live_names(&arguments.live)? {
        let context = ExecutionContext::for_workspace(label, &arguments.workspace)?;
        let policy = PermissionPolicy::default().deadline(PERMISSION_LIMIT);
        let mut request = LiveRequest::new(context).policy(policy);
        for budget in &arguments.budget {
            let limit = match &budget.agent {
                None => exec_core::Budget::for_group(&group),
                Some(agent) if agent == name => exec_core::Budget::for_session(),
                Some(_) => continue,
            };
            request = request.budget(limit.cost_usd(budget.cost_usd.unwrap_or(f64::MAX)));
        }
        let session = service.open_live(request).await?;
        source.add(name, session, Some(PERMISSION_LIMIT));
    }
    Ok(Arc::new(source))
}

/// Profile and name of each live session. Commands find a session by its name.
fn live_names(given: &[String]) -> Result<Vec<(&str, &str)>> {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for given in given {
        let (label, name) = given.split_once('=').unwrap_or((given, given));
        if names.iter().any(|(_, other)| *other == name) {
            let reason = format!("two live sessions have the name `{name}`; use PROFILE=NAME");
            return Err(reason.into());
        }
        names.push((label, name));
    }
    Ok(names)
}

fn budget(text: &str) -> std::result::Result<Budget, String> {
    let (agent, usd) = match text.split_once('=') {
        Some((agent, usd)) => (Some(agent.to_owned()), usd),
        None => (None, text),
    };
    match usd.parse() {
        Ok(usd) if usd > 0.0 => Ok(Budget {
            agent,
            cost_usd: Some(usd),
            tokens: None,
        }),
        _ => Err("expected an amount above zero".to_owned()),
    }
}

/// All parts of a crew that its folder names.
async fn crew(folder: &Path) -> Result<Vec<Arc<dyn Source>>> {
    let refused =
        |reason: &str| format!("{} is not the folder of a crew: {reason}", folder.display());
    let crew = std::fs::read(folder.join("crew.json")).map_err(|_| refused("no crew.json"))?;
    let crew: Value = serde_json::from_slice(&crew)?;
    let id = crew["id"]
        .as_str()
        .ok_or_else(|| refused("crew.json has no id"))?;
    let mut sources: Vec<Arc<dyn Source>> = Vec::new();
    let config = folder.join("config/cluster.yaml");
    if config.exists() {
        match cluster(ClusterConfig::load(config)?).await {
            Ok(cluster) => sources.push(Arc::new(ClusterSource::new(cluster))),
            // A crew that is done, or was ended: the rest of it can still be seen.
            Err(tmux_bus::Error::NotRunning { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let redis = crew["redis"].as_str();
    let roles = match redis {
        Some(url) => {
            let store = TimedStorage::connect(url, &format!("{id}-roles")).await?;
            ClaimsSource::new(ROLES, store)
        }
        None => ClaimsSource::of_file(ROLES, folder.join("roles.json"))?,
    };
    sources.push(Arc::new(roles));
    let url = match (crew["file"]["storage"].as_str(), redis) {
        (Some("file" | "sqlite"), Some(url)) => url.to_owned(),
        (Some("sqlite"), None) => format!("sqlite:{}/snapshots.db", folder.display()),
        (Some(url), _) if url.contains(':') => url.to_owned(),
        _ => format!("file:{}/snapshots", folder.display()),
    };
    let states = SnapshotSource::new("states", agent_snapshot::open_storage(&url).await?);
    sources.push(Arc::new(states.only(format!("{id}."))));
    sources.push(Arc::new(HistorySource::new(folder.join("state"))));
    Ok(sources)
}

/// A cluster as it is: a follower starts and stops nothing. The process that started the cluster has chosen the log.
async fn cluster(config: ClusterConfig) -> std::result::Result<ClusterManager, tmux_bus::Error> {
    let bus = Bus::builder().config(&config.path).connect().await?;
    let cluster = ClusterManager::builder(config).log_file(bus.log_file());
    cluster.attach_unchanged().await
}

async fn snapshots(url: &str) -> Result<Arc<dyn Source>> {
    let storage = agent_snapshot::open_storage(url).await?;
    // An address may hold a password.
    let scheme = url.split(':').next().unwrap_or_default();
    Ok(Arc::new(SnapshotSource::new(scheme, storage)))
}

/// The name of a store; its path if another store has the name, because each would take the place of the other.
fn label_of(claims: &Path, arguments: &Arguments) -> String {
    let name = name_of(claims);
    let given = arguments.claims.iter().map(|file| name_of(file));
    let names = given.chain(arguments.crew.iter().map(|_| ROLES.to_owned()));
    match names.filter(|other| *other == name).count() {
        1 => name,
        _ => claims.display().to_string(),
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_stem().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}
