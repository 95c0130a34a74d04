//! Attaching brings the agents to the configuration, and touches no other agent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tmux_bus::{
    AgentConfig, AgentState, ClusterBuilder, ClusterConfig, ClusterManager, DeadReason, Error,
    MessageState, StopOnDrop,
};

use crate::support::{LONG, TestDir, eventually, need_tmux, tmux};
use crate::worker::Worker;

fn echo(name: &str) -> AgentConfig {
    let upper = name.to_uppercase();
    let command = format!("while printf '> '; read -r x; do echo $WORD $x; echo {upper} OK; done");
    AgentConfig::new(name)
        .command(command)
        .timeout(LONG)
        .env("WORD", "heard")
}

fn builder(dir: &Path, agents: impl IntoIterator<Item = AgentConfig>) -> ClusterBuilder {
    need_tmux();
    let config = ClusterConfig::builder("team").work_dir(dir);
    let config = agents
        .into_iter()
        .fold(config, |config, agent| config.agent(agent));
    ClusterManager::builder(config.build().unwrap()).runtime_dir(dir.join("run"))
}

async fn start(dir: &TestDir, names: &[&str]) -> StopOnDrop {
    let agents = names.iter().map(|name| echo(name));
    builder(dir.path(), agents)
        .start()
        .await
        .unwrap()
        .stop_on_drop()
}

/// The processes of the agents.
fn pids(team: &ClusterManager) -> BTreeMap<String, String> {
    let format = "#{@tmux_bus_agent} #{pane_pid}";
    let list = tmux(team.socket(), &["list-panes", "-s", "-F", format]);
    let parse = |line: &str| {
        line.split_once(' ')
            .map(|(a, p)| (a.to_owned(), p.to_owned()))
    };
    list.lines().filter_map(parse).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attach_without_a_change_touches_nothing() {
    let dir = TestDir::new();
    let team = start(&dir, &["a", "b"]).await;
    let before = pids(&team);
    // Neither time limit nor role changes the program.
    let mut patient = echo("b").role("tester".into());
    patient.timeout *= 2;
    let again = builder(dir.path(), [echo("a"), patient])
        .attach()
        .await
        .unwrap();
    assert_eq!(pids(&again), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_added_is_started() {
    let dir = TestDir::new();
    let team = start(&dir, &["a", "b"]).await;
    let before = pids(&team);
    let agents = ["a", "new", "b"].map(echo);
    let again = builder(dir.path(), agents).attach().await.unwrap();
    let mut after = pids(&again);
    assert!(after.remove("new").is_some());
    assert_eq!(after, before);
    let user = again.outsider("user");
    assert_eq!(
        user.send_to("new", "you").await.unwrap(),
        "heard you\nNEW OK"
    );
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_removed_is_stopped_and_its_messages_are_dead_letters() {
    let dir = TestDir::new();
    let team = start(&dir, &["a", "b"]).await;
    let id = team.inbox().leave("user", "b", "hello").unwrap();
    let mut before = pids(&team);
    let again = builder(dir.path(), [echo("a")]).attach().await.unwrap();
    let removed = before.remove("b").unwrap();
    assert_eq!(pids(&again), before);
    #[cfg(target_os = "linux")]
    assert!(!crate::support::is_running(&removed), "{removed}");
    let error = again.outsider("user").send_to("b", "hello").await;
    assert!(matches!(error, Err(Error::UnknownAgent { .. })));
    let entries = again.inbox().all_entries().unwrap();
    let reason = DeadReason::AgentRemoved;
    assert_eq!(
        (&entries[0].id, &entries[0].state),
        (&id, &MessageState::Dead { reason })
    );
}

/// By a person, or by a process whose configuration does not have the agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_pane_was_closed_has_ended_and_the_others_have_their_states() {
    let dir = TestDir::new();
    let team = start(&dir, &["a", "b"]).await;
    let waiting = tokio::spawn({
        let team = ClusterManager::clone(&team);
        async move { team.wait_for("b", AgentState::Working, LONG).await }
    });
    let pane = team.get_pane("b").unwrap().to_string();
    tmux(team.socket(), &["kill-pane", "-t", &pane]);
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::PaneDied { .. }), "{error:?}");
    team.wait_for("b", AgentState::Exited, LONG).await.unwrap();
    let states = team.status().await.unwrap().agents.into_iter();
    let states: Vec<_> = states.map(|agent| (agent.name, agent.state)).collect();
    let expected = [("a", AgentState::Idle), ("b", AgentState::Exited)];
    assert_eq!(
        states,
        expected.map(|(name, state)| (name.to_owned(), state))
    );
    assert_eq!(team.explain("b").await.unwrap().state, AgentState::Exited);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_changed_is_restarted() {
    let dir = TestDir::new();
    let personality = dir.path().join("b.txt");
    fs::write(&personality, "first").unwrap();
    let from_file = || echo("b").personality_prompt_path(&personality);
    let agents = || [echo("a"), from_file(), echo("c")];
    let team = builder(dir.path(), agents())
        .start()
        .await
        .unwrap()
        .stop_on_drop();
    let changed = async |agents: [AgentConfig; 3]| {
        let before = pids(&team);
        let again = builder(dir.path(), agents).attach().await.unwrap();
        let after = pids(&again);
        assert_eq!(
            before.keys().collect::<Vec<_>>(),
            after.keys().collect::<Vec<_>>()
        );
        let is_changed = |name: &&String| before[*name] != after[*name];
        let changed = after.keys().filter(is_changed).cloned();
        (again, changed.collect::<Vec<_>>())
    };
    let [a, b, c] = agents();
    let (again, names) = changed([a.env("WORD", "got"), b, c]).await;
    assert_eq!(names, ["a"]);
    let answer = again.outsider("user").send_to("a", "it").await;
    assert_eq!(answer.unwrap(), "got it\nA OK");
    fs::write(&personality, "second").unwrap();
    let [_, b, c] = agents();
    let (_, names) = changed([echo("a").env("WORD", "got"), b, c]).await;
    assert_eq!(names, ["b"], "the content of the file counts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_yaml_file_is_applied() {
    let dir = TestDir::new();
    fs::write(dir.path().join("p.txt"), "A OK, B OK").unwrap();
    let builder = |names: &[&str]| {
        let mut text = "cluster: { name: t, session_name: t, work_dir: . }\nagents:\n".to_owned();
        for (index, name) in names.iter().enumerate() {
            let command = serde_json::Value::from(echo(name).command.unwrap());
            text.push_str(&format!(
                "  - {{ name: {name}, role: x, personality_prompt_path: p.txt, marker: {} OK, pane_index: {index}, \
                 timeout_s: 40, command: {command}, env: {{ WORD: heard }} }}\n",
                name.to_uppercase()
            ));
        }
        let path = dir.path().join("team.yaml");
        fs::write(&path, text).unwrap();
        ClusterManager::builder(ClusterConfig::load(path).unwrap())
            .runtime_dir(dir.path().join("run"))
    };
    need_tmux();
    let team = builder(&["a"]).start().await.unwrap().stop_on_drop();
    let before = pids(&team)["a"].clone();
    let again = builder(&["a", "b"]).attach().await.unwrap();
    assert_eq!(pids(&again)["a"], before);
    again.outsider("user").send_to("b", "you").await.unwrap();
    let again = builder(&["b"]).attach().await.unwrap();
    assert_eq!(pids(&again).into_keys().collect::<Vec<_>>(), ["b"]);
}

/// Attaches with two more agents.
pub fn attach(folder: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let agents = ["a", "x", "y"].map(echo);
        let builder = builder(folder.as_ref(), agents);
        fs::write(format!("{folder}/ready-{}", std::process::id()), "").unwrap();
        eventually("all are ready", || {
            Path::new(&format!("{folder}/go")).exists()
        });
        builder.attach().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_attach_at_once_start_an_agent_once() {
    let dir = TestDir::new();
    let team = start(&dir, &["a"]).await;
    let part = format!("attach {}", dir.path().display());
    let mut workers = [(); 4].map(|()| Worker::start(&part));
    eventually("all are ready", || {
        let entries = fs::read_dir(dir.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("ready-")).count() == workers.len()
    });
    fs::write(dir.path().join("go"), "").unwrap();
    for worker in &mut workers {
        assert!(worker.wait().success());
    }
    let format = "#{@tmux_bus_agent}";
    let list = tmux(team.socket(), &["list-panes", "-s", "-F", format]);
    let mut names: Vec<_> = list.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "x", "y"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_of_a_process_that_died_is_finished_by_the_next() {
    let dir = TestDir::new();
    let team = start(&dir, &["a", "b", "c"]).await;
    // Died after it named a new pane, before it started the program, and while it restarted `b` and
    // removed `c`.
    let new = tmux(
        team.socket(),
        &[
            "new-window",
            "-d",
            "-P",
            "-F",
            "#{pane_id}",
            "exec sleep 1000",
        ],
    );
    tmux(
        team.socket(),
        &[
            "set-option",
            "-p",
            "-t",
            new.trim(),
            "@tmux_bus_agent",
            "new",
        ],
    );
    let before = pids(&team);
    for agent in ["b", "c"] {
        let pid = rustix::process::Pid::from_raw(before[agent].parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        team.wait_for(agent, AgentState::Exited, LONG)
            .await
            .unwrap();
    }
    let agents = [echo("a"), echo("b").env("WORD", "got"), echo("new")];
    let again = builder(dir.path(), agents).attach().await.unwrap();
    let after = pids(&again);
    assert_eq!(after.keys().collect::<Vec<_>>(), ["a", "b", "new"]);
    assert_eq!(after["a"], before["a"]);
    let user = again.outsider("user");
    assert_eq!(user.send_to("b", "it").await.unwrap(), "got it\nB OK");
    assert_eq!(user.send_to("new", "it").await.unwrap(), "heard it\nNEW OK");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_personality_of_an_agent_in_code_reaches_its_program() {
    let dir = TestDir::new();
    let file = dir.path().join("agents.toml");
    let definition = "[reader]\ncommand = 'cat {personality} >read; printf \"> \"; exec cat'\n";
    fs::write(&file, definition).unwrap();
    let config = ClusterConfig::builder("team")
        .work_dir(dir.path())
        .agent_definitions(&file)
        .agent(
            AgentConfig::new("a")
                .agent("reader")
                .personality_text("it's me"),
        )
        .build()
        .unwrap();
    let builder = ClusterManager::builder(config).runtime_dir(dir.path().join("run"));
    let _team = builder.start().await.unwrap().stop_on_drop();
    assert_eq!(
        fs::read_to_string(dir.path().join("read")).unwrap(),
        "it's me"
    );
}

#[test]
fn mistakes_of_a_configuration_in_code_are_reported() {
    let dir = TestDir::new();
    let check = |agents: &[AgentConfig], expected: &str| {
        let config = ClusterConfig::builder("team").work_dir(dir.path());
        let config = agents
            .iter()
            .cloned()
            .fold(config, |config, agent| config.agent(agent));
        let error = config.build().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&[], "there are no agents");
    check(&[echo("a"), echo("a")], "agent `a`: name `a` is not unique");
    check(
        &[echo("a"), echo("b").marker("A OK")],
        "marker `A OK` is not unique",
    );
    check(&[echo("a b")], "no spaces");
    check(&[echo("a").env("A=B", "")], "not the name of a variable");
    check(&[echo("a").marker("")], "agent `a`");
    let error = ClusterConfig::builder("a.b").agent(echo("a")).build();
    assert!(matches!(error, Err(Error::Invalid { .. })));
    assert_eq!(
        AgentConfig::new("middle_manager").marker,
        "MIDDLE MANAGER OK"
    );
}
