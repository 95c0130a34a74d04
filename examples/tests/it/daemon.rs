//! The daemon with real processes: kills of the daemon and of agents, and what is left.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use examples::redis_server::{RedisServer, SyncLog};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::sandbox::{SIGNALS, Sandbox, eventually, names, with_default_signals};

/// Agents in a sandbox, with a file that names them.
struct Daemon {
    sandbox: Sandbox,
}

impl Daemon {
    /// An agent for each pair of a name and a prompt, in a workspace of its own.
    fn new(agents: &[(&str, &str)]) -> Self {
        let daemon = Self {
            sandbox: Sandbox::new(),
        };
        daemon.write("agents.toml", "", agents);
        daemon
    }

    fn write(&self, file: &str, head: &str, agents: &[(&str, &str)]) {
        let mut text = head.to_owned();
        for (name, prompt) in agents {
            std::fs::create_dir_all(self.sandbox.home().join(name)).unwrap();
            text.push_str(&format!(
                "[[agent]]\nname = '{name}'\nprofile = 'scripted'\nworkspace = '{name}'\n\
                 prompt = \"{prompt}\"\npermissions = [{{ action = 'allow' }}]\n\
                 [agent.restart]\nfirst_s = 0.1\nmax_s = 0.15\ngive_up_after = 2\n\
                 message = '[[continue]]'\n"
            ));
        }
        std::fs::write(self.sandbox.home().join(file), text).unwrap();
    }

    fn command(&self, verb: &str, file: &str) -> Command {
        let mut command = self.sandbox.example("daemon");
        command.args([verb, file]);
        command
    }

    /// Starts the daemon. Its log is in the file `log`.
    fn spawn(&self) -> Child {
        let mut command = with_default_signals(&self.command("run", "agents.toml"));
        let log = File::create(self.sandbox.home().join("log")).unwrap();
        command.stdout(log).spawn().unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.sandbox.home().join("log")).unwrap()
    }

    /// Starts the daemon, and returns when it runs its agents.
    fn start(&self) -> Child {
        let mut child = self.spawn();
        eventually("the daemon runs", || {
            assert!(child.try_wait().unwrap().is_none(), "{}", self.log());
            self.log().contains("daemon: runs")
        });
        child
    }

    #[track_caller]
    fn send(&self, agent: &str, text: &str) {
        let mut command = self.command("send", "agents.toml");
        self.sandbox.ok(command.args([agent, text]));
    }

    #[track_caller]
    fn stop(&self, child: &mut Child) -> String {
        let stopped = self.sandbox.ok(&mut self.command("stop", "agents.toml"));
        assert!(child.wait().unwrap().success());
        self.sandbox.nothing_runs();
        stopped
    }

    #[track_caller]
    fn status(&self) -> HashMap<String, Value> {
        let mut command = self.command("status", "agents.toml");
        let status = self.sandbox.json(command.arg("--json"));
        let agents = status["agents"].as_array().unwrap().iter();
        let named = agents.map(|agent| (agent["name"].as_str().unwrap().to_owned(), agent.clone()));
        named.collect()
    }

    /// The status of an agent when it has answered this many messages.
    #[track_caller]
    fn answered(&self, agent: &str, count: u64) -> Value {
        let mut status = Value::Null;
        eventually(&format!("{agent} has answered {count} messages"), || {
            status = self.status().remove(agent).unwrap();
            status["messages"] == count * 2 && status["waiting"] == 0
        });
        status
    }

    fn workspace(&self, agent: &str) -> PathBuf {
        self.sandbox.home().join(agent)
    }

    /// The conversations of the agents, by the agents' own ids of their sessions.
    fn conversations(&self) -> HashMap<String, Vec<Value>> {
        let folder = self.sandbox.home().join(".daemon/scripted-agent");
        let mut found = HashMap::new();
        for name in names(&folder) {
            let text = std::fs::read_to_string(folder.join(&name)).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            let id = name.strip_suffix(".jsonl").unwrap().to_owned();
            found.insert(id, lines.collect());
        }
        found
    }

    /// How many agents live in each workspace. The processes of a tool do not count, not even between
    /// their fork and their exec.
    fn agents_alive(&self) -> HashMap<PathBuf, usize> {
        let mut agents = Vec::new();
        for process in self.sandbox.processes() {
            let (pid, line) = process.split_once(':').unwrap();
            if !line.contains("scripted-agent") {
                continue;
            }
            let folder = PathBuf::from(format!("/proc/{pid}"));
            let stat = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
            let parent = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.split(' ').nth(1));
            if let (Ok(cwd), Some(parent)) = (folder.join("cwd").read_link(), parent) {
                agents.push((pid.to_owned(), parent.to_owned(), cwd));
            }
        }
        let mut alive = HashMap::new();
        for (_, parent, cwd) in &agents {
            if !agents.iter().any(|(pid, ..)| pid == parent) {
                *alive.entry(cwd.clone()).or_default() += 1;
            }
        }
        alive
    }
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn kill_agent(status: &Value) {
    let pid = i32::try_from(status["process"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// The native id of a session: its last part.
fn native(status: &Value) -> String {
    let session = status["session"].as_str().unwrap();
    session.rsplit_once(':').unwrap().1.to_owned()
}

/// A number below `limit`.
fn random(limit: u64) -> u64 {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    random % limit
}

#[test]
fn a_killed_daemon_continues_and_starts_nothing_twice() {
    let kills = std::env::var("DAEMON_KILLS").map_or(12, |kills| kills.parse().unwrap());
    let count = 4;
    // Two agents of one workspace would meet at the lock.
    let message = |number: u32| {
        format!(
            "[[slow 0.1]][[tool flock -n lock sleep 0.1 || echo overlap >> overlap]]\
             [[ponder 0.1]] message {number}"
        )
    };
    let first = message(0);
    let daemon = Daemon::new(&[("one", &first), ("two", &first)]);
    let has_ended = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most: HashMap<PathBuf, usize> = HashMap::new();
            while !has_ended.load(Ordering::Relaxed) {
                for (workspace, alive) in daemon.agents_alive() {
                    let most = most.entry(workspace).or_default();
                    *most = alive.max(*most);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            most
        });
        let mut running = daemon.start();
        for number in 1..=count {
            for agent in ["one", "two"] {
                daemon.send(agent, &message(number));
            }
        }
        kill(&mut running);
        for _ in 0..kills {
            // Not a wait for something: the moment of the kill, also during the start.
            let mut killed = daemon.spawn();
            std::thread::sleep(Duration::from_millis(random(900)));
            kill(&mut killed);
        }
        running = daemon.start();
        for agent in ["one", "two"] {
            daemon.answered(agent, u64::from(count) + 1);
        }
        daemon.stop(&mut running);
        has_ended.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    assert_eq!(most.len(), 2, "{most:?}");
    assert!(most.values().all(|&most| most == 1), "{most:?}");

    let status = daemon.status();
    let conversations = daemon.conversations();
    // One session for each agent, over all restarts.
    assert_eq!(conversations.len(), 2, "{conversations:?}");
    for agent in ["one", "two"] {
        assert!(!daemon.workspace(agent).join("overlap").exists());
        let lines = &conversations[&native(&status[agent])];
        for number in 0..=count {
            let text = message(number);
            let delivered = lines.iter().filter(|line| **line == *text).count();
            assert_eq!(delivered, 1, "message {number} of {agent}: {lines:#?}");
        }
    }
}

#[test]
fn a_killed_agent_is_restarted_and_hydrated() {
    let daemon = Daemon::new(&[("one", "Begin.")]);
    let mut running = daemon.start();
    let before = daemon.answered("one", 1);
    assert_eq!(before["state"], "idle");

    kill_agent(&before);
    eventually("the agent is restarted", || {
        let status = &daemon.status()["one"];
        status["process"] != before["process"] && status["state"] == "idle"
    });
    daemon.send("one", "Go on.");
    let after = daemon.answered("one", 2);
    assert_eq!(after["session"], before["session"]);
    assert_eq!(after["restarts"], 1);
    let answer = after["answer"].as_str().unwrap();
    assert!(
        answer.contains("Earlier messages: 1; the first was: Begin."),
        "{answer}"
    );

    // At work: its tool has run, and is not repeated.
    daemon.send("one", "[[tool echo x >> once]][[ponder 600]] Work.");
    let lines = || daemon.conversations().remove(&native(&before)).unwrap();
    eventually("the tool has run", || lines().len() == 6);
    assert_eq!(daemon.status()["one"]["state"], "working");
    kill_agent(&daemon.status()["one"]);
    let after = daemon.answered("one", 3);
    assert_eq!(after["session"], before["session"]);
    // The agent has the message in its session: it is not sent again.
    assert_eq!(lines()[6], "[[continue]]");
    let once = daemon.workspace("one").join("once");
    assert_eq!(std::fs::read_to_string(once).unwrap(), "x\n");
    assert_eq!(daemon.stop(&mut running), "stopped 1 agents\n");
    assert_eq!(daemon.status()["one"]["state"], "stopped");
}

#[test]
fn a_living_agent_of_a_killed_daemon_is_stopped_before_it_is_continued() {
    let daemon = Daemon::new(&[("one", "Begin.")]);
    let mut running = daemon.start();
    let before = daemon.answered("one", 1);
    // A second end of the pipe: the input of the agent does not end with the daemon.
    let input = format!("/proc/{}/fd/0", before["process"]);
    let _input = File::options().write(true).open(input).unwrap();
    kill(&mut running);
    assert_eq!(daemon.agents_alive()[&daemon.workspace("one")], 1);

    let mut running = daemon.start();
    daemon.send("one", "Go on.");
    let after = daemon.answered("one", 2);
    assert_eq!(after["session"], before["session"]);
    assert_ne!(after["process"], before["process"]);
    assert_eq!(daemon.agents_alive()[&daemon.workspace("one")], 1);
    let session = before["session"].as_str().unwrap();
    let line = format!("recovered {session}: adopted and stopped");
    assert!(daemon.log().contains(&line), "{}", daemon.log());
    daemon.stop(&mut running);
}

#[test]
fn a_daemon_that_has_lost_its_agent_leaves_no_process_of_it() {
    let daemon = Daemon::new(&[]);
    let head = |folder: &str| format!("folder = '{folder}'\nstorage = 'file:snapshots'\n");
    daemon.write("other.toml", &head("other"), &[("one", "Begin.")]);
    daemon.write("agents.toml", &head(".daemon"), &[("one", "Begin.")]);
    let file = daemon.sandbox.home().join("agents.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("first_s = 0.1\nmax_s = 0.15", "first_s = 3\nmax_s = 3");
    std::fs::write(&file, text).unwrap();
    let mut first = daemon.start();
    kill_agent(&daemon.answered("one", 1));
    eventually("the agent is about to be restarted", || {
        daemon.status()["one"]["state"] == "restarting"
    });
    kill_process(Pid::from_child(&first), Signal::STOP).unwrap();
    // Other claims and the same storage: the second daemon takes over.
    let mut second = with_default_signals(&daemon.command("run", "other.toml"));
    let log = daemon.sandbox.home().join("other-log");
    let mut second = second.stdout(File::create(&log).unwrap()).spawn().unwrap();
    eventually("the second daemon has its agent", || {
        std::fs::read_to_string(&log).unwrap().contains("process ")
    });
    kill_process(Pid::from_child(&first), Signal::CONT).unwrap();
    eventually("the first daemon gives up", || {
        daemon.log().contains("one: gave up")
    });
    assert_eq!(daemon.agents_alive()[&daemon.workspace("one")], 1);
    for child in [&mut first, &mut second] {
        daemon.sandbox.ends_by(child, Signal::TERM);
    }
    daemon.sandbox.nothing_runs();
}

#[test]
fn an_agent_survives_a_restart_of_the_storage() {
    let daemon = Daemon::new(&[]);
    let data = tempfile::tempdir().unwrap();
    let server = RedisServer::start(data.path(), SyncLog::EveryWrite).unwrap();
    let head = format!("storage = '{}'\n", server.url());
    daemon.write("agents.toml", &head, &[("one", "Begin.")]);
    let mut running = daemon.start();
    daemon.answered("one", 1);
    daemon.send(
        "one",
        "[[tool touch began; while ! test -e go; do sleep 0.1; done]] Work.",
    );
    let workspace = daemon.workspace("one");
    eventually("the tool runs", || workspace.join("began").exists());
    drop(server);
    std::fs::write(workspace.join("go"), "").unwrap();
    eventually("a save has failed", || {
        daemon.log().contains("the storage does not answer")
    });
    let _server = RedisServer::start(data.path(), SyncLog::EveryWrite).unwrap();
    daemon.answered("one", 2);
    daemon.send("one", "Go on.");
    let after = daemon.answered("one", 3);
    assert_eq!(
        (&after["state"], &after["restarts"]),
        (&"idle".into(), &0.into())
    );
    daemon.stop(&mut running);
}

#[test]
fn an_agent_that_dies_too_often_is_given_up() {
    let daemon = Daemon::new(&[("bad", "[[crash]]"), ("good", "Begin.")]);
    let mut running = daemon.start();
    eventually("the daemon gives up", || {
        daemon.status()["bad"]["state"] == "gave up"
    });
    let status = daemon.status();
    let reason = status["bad"]["reason"].as_str().unwrap();
    assert_eq!(reason, "2 restarts did not help: it died at work");
    assert_eq!(status["bad"]["restarts"], 2);
    // The delay doubles up to its cap.
    for (number, delay) in [(1, "0.10"), (2, "0.15")] {
        let line = format!("bad: it died at work; restart {number} follows in {delay} s");
        assert!(daemon.log().contains(&line), "{}", daemon.log());
    }
    let mut send = daemon.command("send", "agents.toml");
    let refusal = ["agent bad has given up", "it died at work"];
    daemon.sandbox.refuses(send.args(["bad", "x"]), 1, &refusal);
    daemon.answered("good", 1);
    daemon.stop(&mut running);
    // The snapshot has it, without a daemon.
    assert_eq!(daemon.status()["bad"]["state"], "gave up");
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::new(&[("one", "Begin.")]);
    let mut send = daemon.command("send", "agents.toml");
    send.args(["one", "x"]);
    daemon
        .sandbox
        .refuses(&mut send, 1, &["no daemon runs for"]);
    let status = daemon
        .sandbox
        .ok(&mut daemon.command("status", "agents.toml"));
    assert!(status.contains("never started"), "{status}");

    let mut running = daemon.start();
    let mut again = daemon.command("run", "agents.toml");
    let refusal = ["another daemon runs in", "daemon stop"];
    daemon.sandbox.refuses(&mut again, 1, &refusal);
    // Another folder, and the same claims.
    let head = "folder = 'other'\nclaims = '.daemon/claims.json'\n";
    daemon.write("other.toml", head, &[("one", "Begin.")]);
    let mut other = daemon.command("run", "other.toml");
    let holder = format!("agent one is held by daemon-{}-", running.id());
    // `env` has become the daemon.
    daemon.sandbox.refuses(&mut other, 1, &[&holder]);
    daemon.answered("one", 1);
    daemon.stop(&mut running);

    let stopped = daemon
        .sandbox
        .ok(&mut daemon.command("stop", "agents.toml"));
    assert!(stopped.starts_with("no daemon runs for"), "{stopped}");
    let mut running = daemon.start();
    daemon.stop(&mut running);
}

#[test]
fn a_signal_ends_the_daemon_and_its_agents() {
    for signal in SIGNALS {
        let daemon = Daemon::new(&[("one", "[[tool sleep 600]]")]);
        let mut running = daemon.start();
        eventually("the agent works", || {
            let processes = daemon.sandbox.processes();
            processes.iter().any(|it| it.contains("sleep 600"))
        });
        daemon.sandbox.ends_by(&mut running, signal);
        daemon.sandbox.nothing_runs();
        assert_eq!(daemon.status()["one"]["state"], "stopped");
    }
}

#[test]
fn a_mistake_in_the_file_is_named_and_changes_nothing() {
    let daemon = Daemon::new(&[]);
    let agent = "[[agent]]\nname = 'a'\nprofile = 'scripted'\nprompt = 'go'\n";
    let wrong = [
        (agent.repeat(2), "two agents have the name a"),
        (agent.replace("'a'", "'a/b'"), "\"a/b\""),
        (format!("{agent}promt = 'x'"), "promt"),
        (
            format!("{agent}[agent.restart]\nfirst_s = -1.0"),
            "agent a: restart: -1",
        ),
    ];
    for (text, expected) in wrong {
        std::fs::write(daemon.sandbox.home().join("agents.toml"), text).unwrap();
        let mut run = daemon.command("run", "agents.toml");
        daemon.sandbox.refuses(&mut run, 1, &[expected]);
        daemon.sandbox.holds(&["agents.toml"]);
    }

    daemon.write("agents.toml", "", &[("one", "Begin.")]);
    let folder = daemon.sandbox.home().join(".daemon");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    let mut run = daemon.command("run", "agents.toml");
    let refusal = ["refusing", ".daemon", "others cannot write"];
    daemon.sandbox.refuses(&mut run, 1, &refusal);
    assert!(names(&folder).is_empty());
}
