//! A crew on three hosts with one Redis server: one host dies, one is cut off and comes back, the
//! third takes over, and no effect happens twice.
//!
//! A host is a namespace for the network and for processes, with a virtual cable to the server's
//! namespace. A host dies by `kill -9` of all its processes. A host is cut off when its cable is set down.
//! Where namespaces are not allowed a host is a process, and to be cut off is SIGSTOP. In both cases
//! the host that comes back goes on with its work as if it had not lost its leases (`--ignore-loss`):
//! the fencing must refuse it. With namespaces the answers are on the Redis server, too; with processes
//! they are in PostgreSQL.
//!
//! `HOSTS_TASKS=600 cargo test -p examples --test it hosts -- --nocapture` is a larger run; the
//! default is 60 tasks. The figures are printed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use examples::postgres_server::PostgresServer;
use examples::redis_server::{RedisServer, SyncLog};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::sandbox::{SIGNALS, Sandbox, eventually, stderr, stdout, with_default_signals};

const LEASE: f64 = 2.0;
const HOSTS: usize = 3;
/// Agents of a host at the same time.
const PARALLEL: usize = 2;
const SERVER: &str = "10.77.0.1";

#[test]
fn a_dead_host_and_a_host_that_was_cut_off_are_replaced_and_no_effect_happens_twice() {
    match Switch::open() {
        Ok(switch) => run(&Network::Namespaces(switch)),
        Err(reason) => {
            println!("hosts are processes, because namespaces are not allowed: {reason}");
            run(&Network::Processes);
        }
    }
}

#[test]
fn a_stopped_host_that_wakes_up_after_its_leases_makes_no_effect_twice() {
    run(&Network::Processes);
}

fn run(network: &Network) {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox.tmp(), network);
    let database = match network {
        Network::Namespaces(_) => None,
        Network::Processes => Some(Database::start()),
    };
    let tasks = std::env::var("HOSTS_TASKS").map_or(60, |count| count.parse().unwrap());
    let ids: BTreeSet<String> = (0..tasks).map(|at| format!("t{at}")).collect();
    let tasks = ids.iter().map(|id| {
        let text = format!("[[slow 0.3]][[ponder 0.3]][[tool true]][[say answer of {id}]]");
        (id.as_str(), text, Vec::new())
    });
    write_crew(&sandbox, tasks);

    let events = Events::default();
    let started = Instant::now();
    let mut hosts: Vec<Host> = (0..HOSTS)
        .map(|number| {
            let worker = worker(&sandbox, number, &server, database.as_ref());
            Host::start(worker, network, number, &events)
        })
        .collect();
    for host in &hosts {
        eventually("each host has done a task", || {
            events.count(&host.name, "done") > 0
        });
    }

    // Dies with tasks at hand.
    let dying = hosts[0].name.clone();
    eventually("the first host is at work", || {
        events.at_work(&dying).len() == PARALLEL
    });
    let died = now();
    hosts.remove(0).kill();
    let orphaned = events.at_work(&dying);

    // Is cut off with tasks at hand. Race: it may have recorded their answers just before, and a host that
    // is stopped then has not told so.
    let answers = || match &database {
        Some(database) => database.answers(),
        None => Referee::look(&server).answers,
    };
    let cut = hosts[0].name.clone();
    let mut rescued = Vec::new();
    let mut cut_at = 0.0;
    for _ in 0..3 {
        eventually("the second host is at work", || {
            events.at_work(&cut).len() == PARALLEL
        });
        cut_at = now();
        hosts[0].cut_off();
        let lost = events.at_work(&cut);
        eventually("the tasks of the second host are taken over", || {
            let (left, answers) = (events.at_work(&cut), answers());
            let is_over = |task: &String| {
                !left.contains(task)
                    || answers.contains_key(task)
                    || events.taken_over(task, &cut, cut_at).is_some()
            };
            lost.iter().all(is_over)
        });
        hosts[0].come_back();
        let takeover = |task: &String| Some((task.clone(), events.taken_over(task, &cut, cut_at)?));
        rescued = lost.iter().filter_map(takeover).collect();
        if !rescued.is_empty() {
            break;
        }
    }
    assert!(!rescued.is_empty(), "no task was at hand in three cuts");

    for host in &mut hosts {
        host.ends();
    }
    let took = started.elapsed().as_secs_f64();
    let referee = Referee {
        answers: answers(),
        ..Referee::look(&server)
    };
    let of_dead = orphaned
        .iter()
        .filter_map(|task| events.taken_over(task, &dying, died));
    let of_dead: Vec<f64> = of_dead.map(|at| at - died).collect();
    let of_cut: Vec<f64> = rescued.iter().map(|(_, at)| at - cut_at).collect();
    println!(
        "{}: {} tasks in {took:.1} s; taken {} times; effects {}, twice {}, refused {}; \
         lease {LEASE} s, taken over after death {of_dead:.1?} s, after the cut {of_cut:.1?} s",
        network.name(),
        ids.len(),
        events.count("", "taken"),
        referee.effects.len(),
        referee.twice().len(),
        events.count("", "overtaken"),
    );
    assert_eq!(referee.twice(), Vec::<String>::new());
    assert_eq!(referee.tasks(), ids, "effects are missing");
    let once: BTreeMap<String, u64> = ids.iter().map(|id| (id.clone(), 1)).collect();
    assert_eq!(referee.answers, once, "answers in the storage");
    // The host that came back has tried, and has ended none of them. Of a call that was under way when
    // it was stopped it may hear only that there was no answer.
    for (task, _) in &rescued {
        let end = events.end(task, &cut);
        assert!(matches!(&*end, "overtaken" | "trouble"), "{task}: {end}");
    }
    sandbox.nothing_runs();
}

#[test]
fn one_machine_needs_no_server_and_a_second_run_finds_all_done() {
    let sandbox = Sandbox::new();
    let text = |text: &str| format!("[[slow 0]][[ponder 0]]{text}");
    let tasks = [
        ("sum", text("[[tool expr 20 + 22]]"), vec![]),
        ("report", text("Report.[[tool true]]"), vec!["sum"]),
        ("broken", text("[[crash]]"), vec![]),
    ];
    write_crew(&sandbox, tasks.into_iter());
    let worker = || {
        let mut worker = sandbox.example("crew");
        worker.args(["worker", "--json", "--parallel", "2", "crew.toml"]);
        worker
    };
    for taken in [3, 0] {
        let output = sandbox.run(&mut worker());
        let events = Events::default();
        for line in stdout(&output).lines() {
            let event = serde_json::from_str(line).unwrap();
            events.0.lock().unwrap().push(event);
        }
        // The answer of a task whose agent failed is the failure.
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        assert_eq!(events.count("", "taken"), taken);
        assert_eq!(events.count("", "done"), taken);
        let events = events.0.lock().unwrap();
        let last = events.last().unwrap();
        assert_eq!((&last["tasks"], &last["failed"]), (&3.into(), &1.into()));
    }
    sandbox.nothing_runs();
    sandbox.holds(&["crew-worker", "crew.toml"]);
    let folder = std::fs::metadata(sandbox.home().join("crew-worker")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&folder.permissions());
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_signal_ends_a_worker_and_its_agents() {
    for signal in SIGNALS {
        let sandbox = Sandbox::new();
        let task = ("long", "[[tool sleep 600]]".to_owned(), vec![]);
        write_crew(&sandbox, [task].into_iter());
        let mut worker = sandbox.example("crew");
        worker.args(["worker", "crew.toml"]);
        let mut worker = with_default_signals(&worker);
        let mut worker = worker.stdout(Stdio::null()).spawn().unwrap();
        eventually("the tool runs", || {
            let processes = sandbox.processes();
            processes.iter().any(|line| line.contains(": sleep 600"))
        });
        sandbox.ends_by(&mut worker, signal);
        sandbox.nothing_runs();
    }
}

/// A worker has no page on which a person could answer.
#[test]
fn a_worker_refuses_a_role_that_asks_for_permissions() {
    let sandbox = Sandbox::new();
    let task = ("one", "Begin.".to_owned(), vec![]);
    write_crew(&sandbox, [task].into_iter());
    change_crew(&sandbox, |text| {
        text.replace(
            "name = \"worker\"",
            "name = \"worker\"\npermissions = \"ask\"",
        )
    });
    let mut worker = sandbox.example("crew");
    worker.args(["worker", "crew.toml"]);
    sandbox.refuses(&mut worker, 1, &["role `worker`", "permissions"]);
    sandbox.holds(&["crew.toml"]);
}

#[test]
fn the_budget_and_the_time_limit_hold_for_a_worker() {
    for (budget, expected) in [("tokens = 1", "tokens"), ("wall_time_s = 1", "1 s")] {
        let sandbox = Sandbox::new();
        let text = "[[tool true]][[ponder 600]][[say long answer]]".to_owned();
        write_crew(&sandbox, [("one", text, vec![])].into_iter());
        change_crew(&sandbox, |text| format!("{text}[budget]\n{budget}\n"));
        let mut worker = sandbox.example("crew");
        worker.args(["worker", "crew.toml"]);
        let output = sandbox.run(&mut worker);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        let told = stdout(&output) + &stderr(&output);
        assert!(told.contains(expected), "{told}");
        sandbox.nothing_runs();
    }
}

#[test]
fn an_agent_that_cannot_be_started_fails_its_task() {
    let sandbox = Sandbox::new();
    let task = ("one", "Begin.".to_owned(), vec![]);
    write_crew(&sandbox, [task].into_iter());
    let mut worker = sandbox.example("crew");
    worker.args(["worker", "--agents", "claude-code", "crew.toml"]);
    // Neither the agent nor a program that could fetch it.
    worker.env("PATH", sandbox.bin());
    let output = sandbox.run(&mut worker);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let told = stdout(&output);
    assert!(told.contains("all 1 tasks are done, 1 failed"), "{told}");
}

#[test]
fn a_worker_refuses_an_unknown_role_and_a_storage_that_others_cannot_read() {
    let sandbox = Sandbox::new();
    let task = ("one", "Begin.".to_owned(), vec![]);
    write_crew(&sandbox, [task].into_iter());
    for (arguments, code, expected) in [
        (["--role", "wroker"], 1, "there is no role `wroker`"),
        (["--storage", "memory:"], 2, "unknown storage `memory`"),
    ] {
        let mut worker = sandbox.example("crew");
        worker.arg("worker").args(arguments).arg("crew.toml");
        sandbox.refuses(&mut worker, code, &[expected]);
    }
    sandbox.holds(&["crew.toml"]);
}

fn change_crew(sandbox: &Sandbox, change: impl FnOnce(String) -> String) {
    let file = sandbox.home().join("crew.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(file, change(text)).unwrap();
}

/// Writes `crew.toml` with one role and tasks of id, text and the tasks before.
fn write_crew<'a>(sandbox: &Sandbox, tasks: impl Iterator<Item = (&'a str, String, Vec<&'a str>)>) {
    let mut text = "[crew]\nname = \"hosts\"\ngoal = \"\"\n\
        [[role]]\nname = \"worker\"\npersonality = \"You work.\"\n"
        .to_owned();
    for (id, prompt, after) in tasks {
        text += &format!(
            "[[task]]\nid = \"{id}\"\nrole = \"worker\"\ntext = \"{prompt}\"\nafter = {after:?}\n"
        );
    }
    std::fs::write(sandbox.home().join("crew.toml"), text).unwrap();
}

fn worker(
    sandbox: &Sandbox,
    number: usize,
    server: &Server,
    database: Option<&Database>,
) -> (String, Command) {
    let name = format!("host{number}");
    let mut worker = sandbox.example("crew");
    let lease = LEASE.to_string();
    worker.args(["worker", "--json", "--ignore-loss", "--redis", &server.url]);
    worker.args(["--name", &name, "--dir", &name, "--lease", &lease]);
    worker.args(["--parallel", &PARALLEL.to_string(), "crew.toml"]);
    if let Some(database) = database {
        worker.args(["--storage", &database.server.url()]);
    }
    (name, worker)
}

fn now() -> f64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since_1970.as_secs_f64()
}

/// The lines that the hosts have printed.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Value>>>);

impl Events {
    fn count(&self, host: &str, event: &str) -> usize {
        let events = self.0.lock().unwrap();
        let is_it = |it: &&Value| it["event"] == event && (host.is_empty() || it["worker"] == host);
        events.iter().filter(is_it).count()
    }

    /// The tasks that a host has taken and not ended.
    fn at_work(&self, host: &str) -> BTreeSet<String> {
        let mut tasks = BTreeSet::new();
        for event in self.0.lock().unwrap().iter() {
            let Some(task) = event["task"].as_str() else {
                continue;
            };
            if event["worker"] == host {
                match event["event"].as_str() {
                    Some("taken") => tasks.insert(task.to_owned()),
                    _ => tasks.remove(task),
                };
            }
        }
        tasks
    }

    /// The last event of a host about a task.
    fn end(&self, task: &str, host: &str) -> String {
        let events = self.0.lock().unwrap();
        let is_it = |it: &&Value| it["task"] == task && it["worker"] == host;
        let last = events.iter().rfind(is_it);
        last.map_or("none", |it| it["event"].as_str().unwrap())
            .to_owned()
    }

    /// When another host took the task after this moment.
    fn taken_over(&self, task: &str, from: &str, after: f64) -> Option<f64> {
        let events = self.0.lock().unwrap();
        let is_it =
            |it: &&Value| it["event"] == "taken" && it["task"] == task && it["worker"] != from;
        let times = events
            .iter()
            .filter(is_it)
            .filter_map(|it| it["at"].as_f64());
        times.filter(|&at| at > after).reduce(f64::min)
    }
}

/// Counts what has happened on the server, without the crates of this workspace.
struct Referee {
    /// "task token worker", in order.
    effects: Vec<String>,
    /// How many answers the storage has for each task.
    answers: BTreeMap<String, u64>,
}

impl Referee {
    fn look(server: &Server) -> Self {
        let client = redis::Client::open(server.socket.as_str()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut ask = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            command.query::<redis::Value>(&mut connection).unwrap()
        };
        let mut texts = |words: &[&str]| -> Vec<String> {
            redis::FromRedisValue::from_redis_value(ask(words)).unwrap()
        };
        let lists = texts(&["KEYS", "crew:*:effects"]);
        let effects = texts(&["LRANGE", &lists[0], "0", "-1"]);
        let keys = texts(&["KEYS", "agent-snapshot:{task*}:messages"]);
        let mut answers = BTreeMap::new();
        for key in keys {
            let task = key.split('}').next().unwrap().rsplit("%2e").next().unwrap();
            let count = redis::FromRedisValue::from_redis_value(ask(&["LLEN", &key]));
            answers.insert(task.to_owned(), count.unwrap());
        }
        Self { effects, answers }
    }

    fn tasks(&self) -> BTreeSet<String> {
        let tasks = self.effects.iter().filter_map(|it| it.split(' ').next());
        tasks.map(str::to_owned).collect()
    }

    /// The effects of tasks that had one before.
    fn twice(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let is_repeated = |it: &&String| !seen.insert(it.split(' ').next().unwrap().to_owned());
        self.effects.iter().filter(is_repeated).cloned().collect()
    }
}

enum Network {
    Namespaces(Switch),
    Processes,
}

impl Network {
    fn name(&self) -> &'static str {
        match self {
            Self::Namespaces(_) => "three network namespaces",
            Self::Processes => "three processes",
        }
    }
}

/// A namespace with a bridge that the cables of the hosts end in. It lives as long as its process, which
/// ends with its standard input.
struct Switch {
    process: Child,
}

impl Switch {
    fn open() -> Result<Self, String> {
        let script = format!(
            "ip link set lo up && ip link add br0 type bridge && \
             ip addr add {SERVER}/24 dev br0 && ip link set br0 up && echo ready && exec cat"
        );
        let mut command = Command::new("unshare");
        // Root needs no user namespace, and some systems forbid them.
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--net", "sh", "-c", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = command.stderr(Stdio::piped()).spawn();
        let mut switch = Self {
            process: process.map_err(|error| format!("unshare: {error}"))?,
        };
        switch.ready()?;
        // A host needs namespaces for processes and mounts too.
        let mut probe = switch.enter();
        probe.args([
            "unshare",
            "--net",
            "--pid",
            "--fork",
            "--mount-proc",
            "true",
        ]);
        let probed = probe
            .output()
            .map_err(|error| format!("nsenter: {error}"))?;
        match probed.status.success() {
            true => Ok(switch),
            false => Err(String::from_utf8_lossy(&probed.stderr).into_owned()),
        }
    }

    fn ready(&mut self) -> Result<(), String> {
        let mut line = String::new();
        let mut output = BufReader::new(self.process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        if line == "ready\n" {
            return Ok(());
        }
        let mut reason = String::new();
        let errors = self.process.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut BufReader::new(errors), &mut reason).unwrap();
        Err(reason)
    }

    /// A command in this namespace.
    fn enter(&self) -> Command {
        enter(self.process.id())
    }

    fn ip(&self, arguments: &str) {
        ip(self.enter(), arguments);
    }

    /// Connects the namespace of a process, and gives it an address.
    fn plug_in(&self, number: usize, pid: u32) {
        self.ip(&format!(
            "link add v{number} type veth peer name eth0 netns {pid}"
        ));
        self.ip(&format!("link set v{number} master br0 up"));
        ip(enter(pid), "link set lo up");
        ip(
            enter(pid),
            &format!("addr add 10.77.0.{}/24 dev eth0", 10 + number),
        );
        ip(enter(pid), "link set eth0 up");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command in the network of a process.
fn enter(pid: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string(), "--net"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    command
}

#[track_caller]
fn ip(mut command: Command, arguments: &str) {
    let output = command.arg("ip").args(arguments.split(' ')).output();
    let output = output.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}

/// A Redis server that the hosts reach by the network, and the referee by a socket file.
struct Server {
    url: String,
    socket: String,
    _server: RedisServer,
}

impl Server {
    fn start(folder: &Path, network: &Network) -> Self {
        let sync = SyncLog::EverySecond;
        let server = match network {
            Network::Namespaces(switch) => {
                RedisServer::start_in(switch.enter(), SERVER, folder, sync)
            }
            Network::Processes => RedisServer::start(folder, sync),
        };
        let server = server.unwrap();
        let socket = server.url();
        let url = match network {
            Network::Namespaces(_) => format!("redis://{SERVER}:6379/0"),
            Network::Processes => socket.clone(),
        };
        Self {
            url,
            socket,
            _server: server,
        }
    }
}

/// A PostgreSQL server for the answers.
struct Database {
    server: PostgresServer,
    _folder: TempDir,
}

impl Database {
    fn start() -> Self {
        // The path of a socket must be short, and the folder is given to the user of the server.
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let server = PostgresServer::start(folder.path()).unwrap();
        Self {
            server,
            _folder: folder,
        }
    }

    /// How many answers each task has.
    fn answers(&self) -> BTreeMap<String, u64> {
        let url = self.server.url();
        let (config, driver) = (
            url.strip_prefix("postgres:").unwrap(),
            tokio_postgres::NoTls,
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(config, driver).await.unwrap();
            tokio::spawn(connection);
            let query = "SELECT agent, count(*) FROM agent_snapshot.stream GROUP BY agent";
            let rows = client.query(query, &[]).await.unwrap();
            let row = |row: &tokio_postgres::Row| {
                let (agent, count): (String, i64) = (row.get(0), row.get(1));
                let task = agent.rsplit('.').next().unwrap().to_owned();
                (task, u64::try_from(count).unwrap())
            };
            rows.iter().map(row).collect()
        })
    }
}

struct Host {
    name: String,
    process: Child,
    /// Its end would end the shell of the host.
    _input: ChildStdin,
    cable: Option<(u32, String)>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Host {
    fn start(
        (name, worker): (String, Command),
        network: &Network,
        number: usize,
        events: &Events,
    ) -> Self {
        let mut command = match network {
            Network::Processes => Command::new("sh"),
            Network::Namespaces(switch) => {
                let mut command = switch.enter();
                command.args(["unshare", "--net", "--pid", "--fork", "--kill-child"]);
                command.args(["--mount-proc", "sh"]);
                command
            }
        };
        // The worker is not the first process of its namespace, which would have to reap others.
        let script = match network {
            Network::Processes => "echo ready; read go; exec \"$@\"",
            Network::Namespaces(_) => "echo ready; read go; \"$@\"; exit $?",
        };
        command.args(["-c", script, "host"]);
        command.arg(worker.get_program()).args(worker.get_args());
        for (name, value) in worker.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(worker.get_current_dir().unwrap());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let mut cable = None;
        if let Network::Namespaces(switch) = network {
            switch.plug_in(number, process.id());
            cable = Some((switch.process.id(), format!("v{number}")));
        }
        let mut input = process.stdin.take().unwrap();
        input.write_all(b"go\n").unwrap();
        let events = events.clone();
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                events
                    .0
                    .lock()
                    .unwrap()
                    .push(serde_json::from_str(&line).unwrap());
            }
        });
        Self {
            name,
            process,
            _input: input,
            cable,
            reader: Some(reader),
        }
    }

    /// All processes of the host end at once. Of a host that is a process, the agents end with their input.
    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
    }

    fn cut_off(&self) {
        match &self.cable {
            Some((switch, cable)) => ip(enter(*switch), &format!("link set {cable} down")),
            None => kill_process(Pid::from_child(&self.process), Signal::STOP).unwrap(),
        }
    }

    fn come_back(&self) {
        match &self.cable {
            Some((switch, cable)) => ip(enter(*switch), &format!("link set {cable} up")),
            None => kill_process(Pid::from_child(&self.process), Signal::CONT).unwrap(),
        }
    }

    fn ends(&mut self) {
        eventually("the host ends", || {
            self.process.try_wait().unwrap().is_some()
        });
        assert!(self.process.wait().unwrap().success());
        self.reader.take().unwrap().join().unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
