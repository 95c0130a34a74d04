//! Clusters: start, messages, status, restart, stop, and attach.

use std::fs;
use std::ops::Deref;
use std::time::Duration;

use tmux_bus::{
    ClusterBuilder, ClusterConfig, ClusterManager, Error, LogFilter, MessageLog, MessageType,
    SendToOptions,
};

use crate::pane_program::MARKER;
#[cfg(target_os = "linux")]
use crate::support::is_running;
use crate::support::{LONG, TestDir, eventually, need_tmux, tmux};
use crate::worker;

/// A cluster of test programs. It is killed when the test ends.
struct TestCluster {
    cluster: ClusterManager,
    dir: TestDir,
}

impl Deref for TestCluster {
    type Target = ClusterManager;

    fn deref(&self) -> &ClusterManager {
        &self.cluster
    }
}

/// Writes a configuration with one agent for each program.
fn config(dir: &TestDir, programs: &[&str]) -> ClusterConfig {
    fs::create_dir_all(dir.path().join("config")).unwrap();
    let mut text = "cluster: { name: team, session_name: team, work_dir: . }\nagents:\n".to_owned();
    for (i, program) in programs.iter().enumerate() {
        fs::write(dir.path().join(format!("{i}.txt")), MARKER).unwrap();
        // All programs use the same marker, but the markers of a configuration are unique.
        let marker = if i == 0 {
            MARKER.to_owned()
        } else {
            format!("{MARKER} {i}")
        };
        let (variable, part, command) = worker::in_a_pane(&format!("pane {program}"));
        let command = serde_json::to_string(&command).unwrap();
        text.push_str(&format!(
            "  - {{ name: agent{i}, role: role{i}, personality_prompt_path: {i}.txt, marker: \"{marker}\", pane_index: {i}, timeout_s: 40, \
             command: {command}, env: {{ {variable}: {part} }} }}\n",
        ));
    }
    let path = dir.path().join("config/team.yaml");
    fs::write(&path, text).unwrap();
    ClusterConfig::load(path).unwrap()
}

fn builder(dir: &TestDir, config: ClusterConfig) -> ClusterBuilder {
    need_tmux();
    ClusterManager::builder(config).runtime_dir(dir.path().join("run"))
}

async fn start(programs: &[&str]) -> TestCluster {
    let dir = TestDir::new();
    let cluster = builder(&dir, config(&dir, programs)).start().await.unwrap();
    TestCluster { cluster, dir }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_and_answers_are_logged() {
    let team = start(&["Lines", "Raw", "Screen"]).await;
    let agent = team.agent("agent1").unwrap();
    assert_eq!(agent.name(), "agent1");
    let answer = agent.send_to("agent0", "hello").await.unwrap();
    assert_eq!(answer, "got 5 bytes\nTEST OK");
    let boss = team.agent("agent0").unwrap();
    boss.send_to("agent2", "say fine\\nTE\\e[0mST OK 2")
        .await
        .unwrap();
    boss.post_to("agent1", "silent note").await.unwrap();
    let short = SendToOptions::default().timeout(Duration::from_millis(300));
    boss.send_to_with("agent1", "silent question", &short)
        .await
        .unwrap_err();
    // Refused messages are not logged.
    boss.send_to("agent0", "two\nlines").await.unwrap_err();
    boss.send_to("unknown", "hello").await.unwrap_err();

    let log = MessageLog::load(team.logger().path(), &LogFilter::default()).unwrap();
    assert!(team.logger().path().ends_with("logs/messages.jsonl"));
    let kinds: Vec<_> = log
        .entries
        .iter()
        .map(|e| {
            (
                e.from_agent.as_str(),
                e.to_agent.as_str(),
                e.message_type.clone(),
            )
        })
        .collect();
    assert_eq!(
        kinds,
        [
            ("agent1", "agent0", MessageType::Task),
            ("agent0", "agent1", MessageType::Result),
            ("agent0", "agent2", MessageType::Task),
            ("agent2", "agent0", MessageType::Result),
            ("agent0", "agent1", MessageType::Info),
            ("agent0", "agent1", MessageType::Task),
            ("agent1", "agent0", MessageType::Error),
        ]
    );
    assert_eq!(log.entries[1].reply_to.as_ref(), Some(&log.entries[0].id));
    assert_eq!(log.entries[1].content, answer);
    assert_eq!(log.entries[6].reply_to.as_ref(), Some(&log.entries[5].id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_for_an_unknown_agent_names_the_known_ones() {
    let team = start(&["Lines", "Lines"]).await;
    for error in [
        team.get_pane("unknown").unwrap_err(),
        team.get_marker("unknown").unwrap_err(),
        team.agent("unknown").unwrap_err(),
        team.restart("unknown").await.unwrap_err(),
    ] {
        assert_eq!(
            error.to_string(),
            "there is no agent `unknown`; known agents: agent0, agent1"
        );
    }
    assert_eq!(team.get_marker("agent1").unwrap(), "TEST OK 1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_attaches_to_the_cluster() {
    let team = start(&["Lines", "Raw"]).await;
    let again = builder(&team.dir, config(&team.dir, &["Lines", "Raw"]))
        .attach()
        .await
        .unwrap();
    assert_eq!(again.socket(), team.socket());
    assert_eq!(
        again.get_pane("agent1").unwrap(),
        team.get_pane("agent1").unwrap()
    );
    // This client has not seen the output that enabled bracketed paste.
    let answer = again
        .agent("agent0")
        .unwrap()
        .send_to("agent1", "say several\\nTE\\e[0mST OK 1\n\nlines")
        .await
        .unwrap();
    assert!(answer.starts_with("several\nTEST OK 1"), "{answer}");
    // An agent that was added to the configuration later has no pane; the others are found.
    let again = builder(&team.dir, config(&team.dir, &["Lines", "Raw", "Lines"]))
        .attach_unchanged()
        .await
        .unwrap();
    let error = again.get_pane("agent2").unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no agent `agent2`; known agents: agent0, agent1"
    );
    assert_eq!(again.status().await.unwrap().agents.len(), 2);
    let user = again.outsider("user");
    user.send_to("agent0", "hello").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_shows_alive_busy_exit_and_socket() {
    let team = start(&["Lines", "Lines"]).await;
    let status = team.status().await.unwrap();
    assert_eq!(
        (status.session.as_str(), status.socket.as_path()),
        ("team", team.socket())
    );
    for agent in &status.agents {
        assert!(!agent.busy && agent.exit.is_none(), "{agent:?}");
        assert!(agent.last_activity.is_some());
    }
    let pane = team.get_pane("agent0").unwrap();
    let sent = team.pane_io().send_message(pane, "silent").await.unwrap();
    // Other processes see it too.
    let again = builder(&team.dir, config(&team.dir, &["Lines", "Lines"]))
        .attach()
        .await
        .unwrap();
    for cluster in [&team.cluster, &again] {
        let status = cluster.status().await.unwrap();
        assert_eq!(
            status.agents.iter().map(|a| a.busy).collect::<Vec<_>>(),
            [true, false]
        );
    }
    drop(sent);
    drop(team.pane_io().send_message(pane, "exit 5").await.unwrap());
    let deadline = tokio::time::Instant::now() + LONG;
    loop {
        let status = again.status().await.unwrap();
        if status.agents[0].exit.is_some() {
            assert_eq!(status.agents[0].exit.unwrap().to_string(), "exit status 5");
            assert_eq!(status.agents[1].exit, None);
            break;
        }
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_agent_keeps_its_pane() {
    let team = start(&["Lines", "Lines"]).await;
    let again = builder(&team.dir, config(&team.dir, &["Lines", "Lines"]))
        .attach()
        .await
        .unwrap();
    let pane = team.get_pane("agent0").unwrap();
    let boss = team.agent("agent1").unwrap();
    // A pending wait fails.
    let waiting = tokio::spawn({
        let boss = boss.clone();
        async move { boss.send_to("agent0", "say h\\e[0malf").await }
    });
    eventually("it was asked", || {
        tmux(
            team.socket(),
            &["capture-pane", "-p", "-t", &pane.to_string()],
        )
        .contains("half")
    });
    team.restart("agent0").await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::PaneDied { .. }), "{error:?}");
    assert_eq!(error.partial(), Some("half"));
    assert_eq!(team.get_pane("agent0").unwrap(), pane);
    for cluster in [&team.cluster, &again] {
        let answer = cluster
            .agent("agent1")
            .unwrap()
            .send_to("agent0", "hello")
            .await
            .unwrap();
        assert_eq!(answer, "got 5 bytes\nTEST OK");
    }
    // An agent that has ended by itself.
    drop(team.pane_io().send_message(pane, "exit 1").await.unwrap());
    team.restart("agent0").await.unwrap();
    boss.send_to("agent0", "hello").await.unwrap();
}

/// The program shows no prompt after its restart, like an agent that works at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_got_a_message_counts_as_restarted() {
    for by_this_process in [true, false] {
        let dir = TestDir::new();
        let mut config = config(&dir, &["Lines"]);
        config.agents[0].command =
            Some("[ -e started ] || printf '> '; touch started; exec cat".to_owned());
        let cluster = builder(&dir, config.clone()).start().await.unwrap();
        let team = TestCluster { cluster, dir };
        let pane = team.get_pane("agent0").unwrap();
        let id = pane.to_string();
        let pid = || {
            tmux(
                team.socket(),
                &["display-message", "-p", "-t", &id, "#{pane_pid}"],
            )
        };
        config.agents[0].timeout = Duration::from_secs(4);
        let other = builder(&team.dir, config).attach().await.unwrap();
        let (restarter, sender) = match by_this_process {
            true => (other.clone(), other.clone()),
            false => (other.clone(), team.cluster.clone()),
        };
        // Holds the lock until the program has been restarted; then the next sender gets it.
        let first = sender.pane_io().send_message(pane, "first").await.unwrap();
        let waiting = tokio::spawn({
            let io = sender.pane_io();
            async move { io.send_message(pane, "second").await.unwrap() }
        });
        let before = pid();
        let restarting = tokio::spawn(async move { restarter.restart("agent0").await });
        // tmux 3.8 has no process id for a dead pane.
        let is_restarted = |pid: &str| pid != before && !pid.trim().is_empty();
        eventually("it is started again", || is_restarted(&pid()));
        drop(first);
        let second = waiting.await.unwrap();
        restarting.await.unwrap().unwrap();
        drop(second);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_client_sees_the_same_signal() {
    let team = start(&["Lines"]).await;
    let agent = team.agent("agent0").unwrap();
    let error = agent
        .send_to("agent0", "run kill -KILL $PPID")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("signal 9"), "{error}");
    let pane = team.get_pane("agent0").unwrap().to_string();
    eventually("tmux has noticed", || {
        tmux(
            team.socket(),
            &["display-message", "-p", "-t", &pane, "#{pane_dead}"],
        )
        .trim()
            == "1"
    });
    let again = builder(&team.dir, config(&team.dir, &["Lines"]))
        .attach()
        .await
        .unwrap();
    for cluster in [&team.cluster, &again] {
        let status = cluster.status().await.unwrap();
        assert_eq!(status.agents[0].exit.unwrap().to_string(), "signal 9");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_ends_all_processes_and_is_idempotent() {
    let team = start(&["Lines", "Raw", "Screen"]).await;
    let pids: Vec<i32> = tmux(team.socket(), &["list-panes", "-s", "-F", "#{pane_pid}"])
        .lines()
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert_eq!(pids.len(), 3);
    team.stop().await.unwrap();
    for pid in pids {
        assert!(!is_running(&pid.to_string()), "{pid}");
    }
    team.stop().await.unwrap();
    let error = builder(&team.dir, config(&team.dir, &["Lines"]))
        .attach()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotRunning { .. }), "{error:?}");
    // It can be started again.
    let again = builder(&team.dir, config(&team.dir, &["Lines"]))
        .start()
        .await
        .unwrap();
    again
        .agent("agent0")
        .unwrap()
        .send_to("agent0", "hello")
        .await
        .unwrap();
    again.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_ready_when_it_has_answered_the_startup_question() {
    let dir = TestDir::new();
    let cluster = builder(&dir, config(&dir, &["Lines"]))
        .startup_question("are you there?")
        .start()
        .await
        .unwrap();
    let team = TestCluster { cluster, dir };
    let pane = team.get_pane("agent0").unwrap();
    let screen = tmux(
        team.socket(),
        &["capture-pane", "-p", "-t", &pane.to_string()],
    );
    assert!(
        screen.contains("are you there?") && screen.contains("got 14 bytes"),
        "{screen}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_not_ready_fails_the_start_and_leaves_the_others_running() {
    for (command, timeout, expected) in [
        (
            "echo no such luck; exit 9",
            LONG,
            "its program has ended (exit status 9)",
        ),
        (
            "echo no such luck; exec sleep 1000",
            Duration::from_millis(600),
            "no rule knows what it shows",
        ),
    ] {
        let dir = TestDir::new();
        let mut config = config(&dir, &["Lines", "Lines", "Lines"]);
        for agent in &mut config.agents[1..] {
            agent.command = Some(command.to_owned());
            agent.timeout = timeout;
        }
        let error = builder(&dir, config.clone()).start().await.unwrap_err();
        let Error::NotReady { agent, others, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(
            (agent.as_str(), others.as_slice()),
            ("agent1", &["agent2".to_owned()][..])
        );
        let cluster = builder(&dir, config).attach().await.unwrap();
        let team = TestCluster { cluster, dir };
        let attach = format!("tmux -S {} attach -t team", team.socket().display());
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains(&attach), "{text}");
        assert_eq!(error.partial(), Some("no such luck"));
        let user = team.outsider("user");
        user.send_to("agent0", "hello").await.unwrap();
        team.stop().await.unwrap();
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_guard_stops_the_cluster() {
    let dir = TestDir::new();
    let start = || async {
        let config = config(&dir, &["Lines", "Raw"]);
        builder(&dir, config).start().await.unwrap()
    };
    let guard = start().await.stop_on_drop();
    let socket = guard.socket().to_owned();
    let pids = tmux(&socket, &["list-panes", "-s", "-F", "#{pane_pid}"]);
    drop(guard);
    for pid in pids.lines() {
        assert!(!is_running(pid), "{pid}");
    }
    assert!(!socket.parent().unwrap().exists());

    // After an explicit stop there is nothing to do.
    let guard = start().await.stop_on_drop();
    guard.stop().await.unwrap();
    drop(guard);

    let team = start().await.stop_on_drop().release();
    let user = team.outsider("user");
    user.send_to("agent0", "hello").await.unwrap();
    team.stop().await.unwrap();
}

/// The destructor runs on the only thread of the runtime, which then cannot serve the client.
#[tokio::test]
async fn a_guard_can_be_dropped_by_a_panic_on_the_only_thread() {
    let dir = TestDir::new();
    let cluster = builder(&dir, config(&dir, &["Lines"]))
        .start()
        .await
        .unwrap();
    let socket = cluster.socket().to_owned();
    let failing = tokio::spawn(async move {
        let _guard = cluster.stop_on_drop();
        panic!("a test of the guard");
    });
    assert!(failing.await.unwrap_err().is_panic());
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn borders_show_the_agents_in_the_order_of_pane_index() {
    let team = start(&["Lines"; 5]).await;
    let format = "#{pane_index} #{@tmux_bus_agent}";
    let panes = tmux(team.socket(), &["list-panes", "-s", "-F", format]);
    let lines: Vec<_> = panes.lines().collect();
    assert_eq!(
        lines,
        ["0 agent0", "1 agent1", "2 agent2", "3 agent3", "4 agent4"]
    );
    // From left to right, then from top to bottom.
    let format = "#{pane_top} #{pane_left}";
    let places = tmux(team.socket(), &["list-panes", "-s", "-F", format]);
    let places: Vec<(u32, u32)> = places
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(top, left)| (top.parse().unwrap(), left.parse().unwrap()))
        .collect();
    assert!(places.is_sorted(), "{places:?}");
    let shown = tmux(
        team.socket(),
        &[
            "display-message",
            "-p",
            "-t",
            "agents.2",
            "#{pane-border-status} #{E:pane-border-format} #{pane_width} #{pane_height}",
        ],
    );
    assert!(shown.starts_with("top  agent2 "), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_for_one_message_is_requested_and_found() {
    let team = start(&["Lines"]).await;
    let agent = team.agent("agent0").unwrap();
    // The program answers with its usual marker, which is not the requested one.
    let options = SendToOptions::default()
        .nonce()
        .timeout(Duration::from_millis(700));
    let error = agent
        .send_to_with("agent0", "hello", &options)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::ResponseTimeout { marker, .. } if marker.starts_with("TEST OK ")),
        "{error:?}"
    );
    // This one repeats the end of the message.
    let answer = agent
        .send_to_with(
            "agent0",
            "repeat",
            &SendToOptions::default().nonce().timeout(LONG),
        )
        .await
        .unwrap();
    assert!(answer.contains("TEST OK "), "{answer}");
}
