//! The referee over a real server: clients are killed and stopped, their wall clocks jump,
//! connections are reset and stalled, and the server is killed and started again.
//!
//! `TIMED_STORE_ROUNDS` sets the number of claims (the default is a short run).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::redis_server::{Proxy, RedisServer};
use crate::referee::{SESSIONS, check_logs};
use crate::support::{LONG, Place, Random, endurance, wait_until};
use crate::worker::Worker;

/// Compiles the preloaded clock.
fn jumping_clock(folder: &Path) -> PathBuf {
    let library = folder.join("jumping_clock.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/jumping_clock.c");
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .arg("-ldl")
        .status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "cannot compile the jumping clock; install a C compiler (`apt install gcc`)"
    );
    library
}

/// Each session is a user of its own, so that its connections can be found.
fn users() -> Vec<String> {
    let mut options = Vec::new();
    for number in 0..SESSIONS {
        let rules = ["on", "nopass", "~*", "&*", "+@all"];
        options.extend(["--user".to_owned(), format!("session-{number}")]);
        options.extend(rules.map(str::to_owned));
    }
    options
}

/// Whether the server still has a connection of the session. A killed client has sent its last
/// call; the server executes it and then sees the end of the connection.
fn is_connected(server: &RedisServer, number: usize) -> bool {
    let clients: String = server.command(&["CLIENT", "LIST"]);
    clients.contains(&format!(" user=session-{number} "))
}

/// Checks that no two entries have the same value, at any moment. Expired ones may stay for a while,
/// so this is for long timeouts only.
fn check_server(server: &RedisServer) {
    let fields: BTreeMap<String, String> = server.command(&["HGETALL", "timed-store:{state}"]);
    let mut holders = BTreeMap::new();
    for (field, text) in fields.iter().filter(|(field, _)| field.starts_with("e:")) {
        let value = text.split('\n').next().unwrap();
        let other = holders.insert(value, field);
        assert_eq!(other, None, "two holders: {fields:?}");
    }
}

/// `calm` is the least time between two faults, in milliseconds.
fn referee(ttl: Duration, calm: u64, is_done: impl Fn(usize) -> bool) {
    let place = Place::new();
    let folder = place.folder.path();
    let clock = jumping_clock(folder);
    let users = users();
    let mut options = vec!["--appendonly", "yes", "--appendfsync", "always"];
    options.extend(users.iter().map(String::as_str));
    let mut server = RedisServer::start_with(&options);
    let proxy = Proxy::start(server.port());
    let start = |number: usize| {
        let url = format!("redis://session-{number}:x@127.0.0.1:{}/0", proxy.port());
        let part = format!("claim session-{number} {} {url}", ttl.as_millis());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("LD_PRELOAD", &clock);
        Worker::start_by(command, &part, folder)
    };
    let mut workers: Vec<Worker> = (0..SESSIONS).map(start).collect();
    let mut random = Random::new("redis referee");
    let (mut kills, mut stops, mut resets, mut restarts) = (0, 0, 0, 0);
    let (mut rounds, mut steps) = (0, 0);
    // On a busy machine a step takes long: the time may be over before enough has happened.
    let last = Instant::now() + 5 * LONG;
    let is_enough = || check_logs(folder).1 > 50 || Instant::now() > last;
    while !is_done(rounds) || kills <= 3 || stops <= 3 || resets <= 3 || !is_enough() {
        std::thread::sleep(Duration::from_millis(calm + random.below(40)));
        if ttl > LONG {
            check_server(&server);
        }
        let number = random.below(SESSIONS as u64) as usize;
        workers.iter_mut().for_each(Worker::must_run);
        match random.below(16) {
            0..5 => {
                workers[number].kill();
                wait_until("the server has seen the kill", || {
                    !is_connected(&server, number)
                });
                workers[number] = start(number);
                kills += 1;
            }
            5..10 => {
                workers[number].signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(random.below(60)));
                workers[number].signal(Signal::CONT);
                stops += 1;
            }
            10..14 => {
                proxy.reset_all();
                resets += 1;
            }
            14 => {
                proxy.stall(true);
                std::thread::sleep(Duration::from_millis(random.below(60)));
                proxy.stall(false);
            }
            _ => {
                // A long log takes longer to load than the clients repeat their calls.
                if restarts % 10 == 9 {
                    let _: String = server.command(&["BGREWRITEAOF"]);
                    wait_until("the log is rewritten", || {
                        let info: String = server.command(&["INFO", "persistence"]);
                        info.contains("aof_rewrite_in_progress:0")
                    });
                }
                server.kill();
                server.restart();
                restarts += 1;
            }
        }
        steps += 1;
        // The logs grow: to read them in every step would take most of the time.
        if steps % 50 == 0 {
            rounds = check_logs(folder).0;
        }
    }
    for worker in &mut workers {
        worker.must_run();
        worker.kill();
    }
    let (rounds, grants, tokens) = check_logs(folder);
    eprintln!(
        "redis referee, timeout {ttl:?}: {rounds} rounds, {grants} grants, {tokens} tokens, {kills} \
         kills, {stops} stops, {resets} resets, {restarts} restarts"
    );
    assert!(grants > 50, "too little happened to prove anything");
}

#[test]
fn no_value_on_a_server_has_two_holders_and_no_live_entry_is_lost() {
    let wanted = std::env::var("TIMED_STORE_ROUNDS").ok();
    let wanted: Option<usize> = wanted.and_then(|rounds| rounds.parse().ok());
    let end = Instant::now() + 2 * endurance();
    let is_done = move |rounds| wanted.map_or(Instant::now() > end, |wanted| rounds >= wanted);
    // Clients that start again have no time for claims: a long run has fewer faults a second.
    let calm = wanted.map_or(5, |_| 150);
    referee(60 * LONG, calm, is_done);
}

#[test]
fn tokens_of_a_server_never_go_back_when_holders_lose_their_values() {
    let ttl = Duration::from_millis(30);
    let end = Instant::now() + endurance();
    referee(ttl, 5, move |_| Instant::now() > end);
}
