//! Cases that only a server has: lost answers, partitions, restarts, failover, clusters.

use std::time::Duration;

use timed_store::{Claim, Error, SessionId};

use crate::redis_server::{Proxy, RedisServer};
use crate::support::{LONG, Store, s, wait_until};

const KEY: &str = "timed-store:{state}";

fn open(url: &str, session: &str) -> Store {
    Store::redis_builder(url, "state")
        .session(SessionId::new(session).unwrap())
        .connect()
        .unwrap()
}

fn granted(claim: Result<Claim<String>, Error>) -> Option<u64> {
    claim.unwrap().granted().map(|lease| lease.token())
}

fn number(server: &RedisServer, field: &str) -> u64 {
    let text: Option<String> = server.command(&["HGET", KEY, field]);
    text.map_or(0, |text| text.parse().unwrap())
}

#[test]
fn a_call_whose_answer_was_lost_is_executed_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let a = open(&proxy.url(), "a");
    a.store(&s("w")).unwrap();
    for value in ["x", "y", "z"] {
        let (version, token) = (number(&server, "version"), number(&server, "token"));
        proxy.lose_next_answer();
        let lease = granted(a.claim(s(value))).unwrap();
        assert!(proxy.has_lost_it());
        assert_eq!(number(&server, "version"), version + 1, "executed once");
        assert_eq!(number(&server, "token"), lease);
        assert!(lease > token);
    }
    proxy.lose_next_answer();
    assert!(a.remove().unwrap(), "the answer of the first execution");
    proxy.lose_next_answer();
    assert!(!a.refresh().unwrap());
    proxy.lose_next_answer();
    let counted = a.transaction(|entries| {
        let is_new = entries.mine().is_none();
        entries.store(s("t"));
        is_new
    });
    assert!(counted.unwrap());
}

/// A copy of a call waits in the network, and arrives after a later call of the same client.
#[test]
fn a_late_copy_of_a_call_is_not_executed() {
    type LoggedCall = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let server = RedisServer::start_with(&["--slowlog-log-slower-than", "0"]);
    let a = open(&server.url(), "a");
    // Afterwards the server knows the script, so one request executes it.
    assert!(granted(a.claim(s("w"))).is_some());
    let _: String = server.command(&["SLOWLOG", "RESET"]);
    assert!(granted(a.claim(s("x"))).is_some());
    let calls: Vec<LoggedCall> = server.command(&["SLOWLOG", "GET", "100"]);
    let mut calls = calls.iter().map(|(_, _, _, words, _, _)| words);
    let copy = calls.find(|words| words[0] == b"EVALSHA").unwrap();
    let copy: Vec<&str> = copy
        .iter()
        .map(|word| str::from_utf8(word).unwrap())
        .collect();
    assert_eq!(copy.last(), Some(&"\"x\""));
    let last = granted(a.claim(s("y"))).unwrap();
    let answer: Vec<String> = server.command(&copy);
    assert_eq!(answer, ["late"]);
    assert_eq!(a.restore().unwrap(), Some(s("y")));
    assert_eq!(number(&server, "token"), last);
}

/// Both copies of the call wait in the network, and arrive one after the other.
#[test]
fn a_call_that_timed_out_and_was_sent_again_is_executed_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (a, b) = (open(&proxy.url(), "a"), open(&server.url(), "b"));
    a.store(&s("first")).unwrap();
    proxy.stall(true);
    let removed = std::thread::scope(|scope| {
        let call = scope.spawn(|| a.remove());
        // The client gives the first copy up after its response time, and sends another one, which
        // waits as well. Both are executed when the network moves again.
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(b.get_other_entries().unwrap().len(), 1);
        proxy.stall(false);
        call.join().unwrap()
    });
    assert!(removed.unwrap());
    let version = number(&server, "version");
    assert!(granted(a.claim(s("x"))).is_some());
    assert_eq!(number(&server, "version"), version + 1);
    assert_eq!(a.restore().unwrap(), Some(s("x")));
}

/// A peer that went away without a word is found by the probes of the system.
#[cfg(target_os = "linux")]
#[test]
fn the_system_probes_an_idle_connection() {
    let server = RedisServer::start();
    let a = open(&server.url(), "a");
    a.store(&s("x")).unwrap();
    let port = format!(":{:04X}", server.port());
    wait_until("the timer of the probes runs", || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        sockets.lines().any(|socket| {
            // sl local_address rem_address st tx_queue:rx_queue tr:tm->when; see proc(5).
            let fields: Vec<&str> = socket.split_whitespace().collect();
            fields[2].ends_with(&port) && fields[3] == "01" && fields[5].starts_with("02:")
        })
    });
}

#[test]
fn a_reset_connection_is_opened_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let a = open(&proxy.url(), "a");
    for round in 0..5 {
        proxy.reset_all();
        a.store(&round.to_string()).unwrap();
        proxy.reset_all();
        assert_eq!(a.restore().unwrap(), Some(round.to_string()));
    }
}

#[test]
fn a_restarted_server_keeps_leases_tokens_and_identity() {
    let mut server = RedisServer::start();
    let (a, b) = (open(&server.url(), "a"), open(&server.url(), "b"));
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    server.kill();
    std::thread::scope(|scope| {
        let claim = scope.spawn(|| b.claim(s("x")));
        server.restart();
        assert_eq!(granted(claim.join().unwrap()), None);
    });
    assert_eq!(a.restore().unwrap(), Some(s("x")));
    let next = b.claim(s("y")).unwrap().granted().unwrap();
    assert!(next.token() > lease.token());
    assert_eq!(next.store_id(), lease.store_id());
}

/// Notifications are lost with the connection: the waiter finds the release by itself.
#[test]
fn a_waiter_survives_a_restart_and_a_partition() {
    let mut server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (a, b) = (open(&server.url(), "a"), open(&proxy.url(), "b"));
    assert!(granted(a.claim(s("x"))).is_some());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| b.claim_within(s("x"), LONG));
        let joined = || {
            let fields: Vec<String> = server.command(&["HKEYS", KEY]);
            fields.iter().any(|field| field.starts_with("w:"))
        };
        wait_until("the waiter has joined", joined);
        server.kill();
        server.restart();
        proxy.stall(true);
        a.remove().unwrap();
        proxy.reset_all();
        proxy.stall(false);
        assert!(granted(waiting.join().unwrap()).is_some());
    });
}

/// The ticket of a waiter that died is not renewed, and expires.
#[test]
fn a_dead_waiter_on_a_server_loses_its_place() {
    let server = RedisServer::start();
    let (a, b) = (open(&server.url(), "a"), open(&server.url(), "b"));
    assert!(granted(a.claim(s("x"))).is_some());
    let ticket = format!("w:{:020}", 0);
    let time: Vec<String> = server.command(&["TIME"]);
    let expiry = time[0].parse::<u64>().unwrap() * 1000 + 3000;
    let dead = format!("{expiry}\n\"x\"");
    let _: u64 = server.command(&["HSET", KEY, &ticket, &dead]);
    a.remove().unwrap();
    assert!(granted(b.claim_within(s("x"), LONG)).is_some());
}

/// The ticket in front is that of a waiter that renews it and does not take the value.
#[test]
fn a_waiter_on_a_server_that_overtakes_another_one_leaves_the_queue() {
    let server = RedisServer::start_with(&[]);
    let ticket = format!("w:{:020}", 0);
    let _: u64 = server.command(&["HSET", KEY, &ticket, "9999999999999\n\"x\""]);
    let b = open(&server.url(), "b");
    assert!(granted(b.claim_within(s("x"), LONG)).is_some());
    let mut fields: Vec<String> = server.command(&["HKEYS", KEY]);
    fields.retain(|field| field.starts_with("w:"));
    assert_eq!(fields, [ticket]);
}

/// A server with a replica, which follows through a proxy.
struct Pair {
    primary: RedisServer,
    replica: RedisServer,
    link: Proxy,
}

impl Pair {
    fn start() -> Self {
        let primary = RedisServer::start();
        let replica = RedisServer::start();
        let link = Proxy::start(primary.port());
        let port = link.port().to_string();
        let _: String = replica.command(&["REPLICAOF", "127.0.0.1", &port]);
        let pair = Self {
            primary,
            replica,
            link,
        };
        wait_until("the replica follows", || {
            let info: String = pair.replica.command(&["INFO", "replication"]);
            info.contains("master_link_status:up")
        });
        pair
    }

    /// The primary is cut off from its replica, which takes over. Old clients still reach the
    /// primary.
    fn fail_over(&self) {
        self.link.stall(true);
        let _: String = self.replica.command(&["REPLICAOF", "NO", "ONE"]);
    }
}

/// Ends the `WAIT` of a client with an error, as the demotion of a primary does; `false` if no client
/// waits.
fn try_unblock_wait(server: &RedisServer) -> bool {
    let clients: String = server.command(&["CLIENT", "LIST"]);
    let is_waiting = |client: &&str| client.contains(" flags=b ") && client.contains(" cmd=wait ");
    let Some(client) = clients.lines().find(is_waiting) else {
        return false;
    };
    let id = client.strip_prefix("id=").unwrap();
    let id = id.split(' ').next().unwrap();
    server.command::<u64>(&["CLIENT", "UNBLOCK", id, "ERROR"]) == 1
}

fn unblock_wait(server: &RedisServer) {
    wait_until("a client waits for the replicas", || {
        try_unblock_wait(server)
    });
}

fn unblock_all_waits(server: &RedisServer, is_finished: impl Fn() -> bool) {
    wait_until("the call has ended", || {
        try_unblock_wait(server);
        is_finished()
    });
}

fn wait_for_entry(server: &RedisServer, value: &str) {
    wait_until("the server has the entry", || {
        let entry: Option<String> = server.command(&["HGET", KEY, "e:a"]);
        entry.is_some_and(|entry| entry.starts_with(&format!("\"{value}\"\n")))
    });
}

/// For replicas that answer, on a busy machine late.
const AMPLE: Duration = LONG;
/// For replicas that are cut off.
const SHORT: Duration = Duration::from_millis(300);

fn open_acknowledged(url: &str, session: &str, within: Duration) -> Store {
    Store::redis_builder(url, "state")
        .session(SessionId::new(session).unwrap())
        .acknowledged_by(1, within)
        .connect()
        .unwrap()
}

#[test]
fn an_acknowledged_grant_survives_a_failover() {
    let pair = Pair::start();
    let a = open_acknowledged(&pair.primary.url(), "a", AMPLE);
    let lease = granted(a.claim(s("x"))).unwrap();
    assert!(a.refresh().unwrap());
    pair.fail_over();
    let b = open(&pair.replica.url(), "b");
    assert_eq!(granted(b.claim(s("x"))), None);
    assert!(b.validate(lease).unwrap());
    assert!(granted(b.claim(s("y"))).unwrap() > lease);
}

#[test]
fn a_grant_that_was_not_acknowledged_is_withdrawn() {
    let pair = Pair::start();
    let ample = open_acknowledged(&pair.primary.url(), "a", AMPLE);
    let first = granted(ample.claim(s("w"))).unwrap();
    let a = open_acknowledged(&pair.primary.url(), "a", SHORT);
    pair.link.stall(true);
    for _ in 0..2 {
        match a.claim(s("x")).unwrap_err() {
            Error::NotAcknowledged {
                wanted: 1,
                acknowledged: 0,
                ..
            } => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(
            a.restore().unwrap(),
            Some(s("w")),
            "the earlier value is back"
        );
        assert!(a.validate(first).unwrap());
    }
    assert!(matches!(
        a.store(&s("y")),
        Err(Error::NotAcknowledged { .. })
    ));
    assert!(matches!(a.refresh(), Err(Error::NotAcknowledged { .. })));
    assert_eq!(a.restore().unwrap(), Some(s("w")));
    assert!(a.remove().unwrap(), "a removal needs no acknowledgement");
    assert!(matches!(
        a.claim(s("x")),
        Err(Error::NotAcknowledged { .. })
    ));
    assert_eq!(a.restore().unwrap(), None);
    pair.fail_over();
    // One holder only: the primary did not give `x`.
    let b = open(&pair.replica.url(), "b");
    assert!(granted(b.claim(s("x"))).unwrap() > first);
}

/// The script was executed, and only its `WAIT` fails.
#[test]
fn a_grant_whose_wait_failed_is_withdrawn() {
    let pair = Pair::start();
    let a = open_acknowledged(&pair.primary.url(), "a", AMPLE);
    let first = granted(a.claim(s("w"))).unwrap();
    pair.link.stall_requests(true);
    std::thread::scope(|scope| {
        let claim = scope.spawn(|| a.claim(s("x")));
        wait_for_entry(&pair.primary, "x");
        unblock_wait(&pair.primary);
        wait_for_entry(&pair.primary, "w");
        pair.link.stall_requests(false);
        let error = claim.join().unwrap().unwrap_err();
        assert!(keeps_earlier(&error), "{error:?}");
    });
    assert!(a.validate(first).unwrap());
    pair.fail_over();
    let b = open(&pair.replica.url(), "b");
    assert_eq!(granted(b.claim(s("w"))), None, "the replica has it back");
}

/// The replica has the claim, but not its withdrawal, and takes over: there the earlier value is free.
#[test]
fn a_withdrawal_that_was_not_acknowledged_says_that_a_failover_may_lose_the_earlier_value() {
    let pair = Pair::start();
    let a = open_acknowledged(&pair.primary.url(), "a", AMPLE);
    granted(a.claim(s("w"))).unwrap();
    pair.link.stall_requests(true);
    let error = std::thread::scope(|scope| {
        let claim = scope.spawn(|| a.claim(s("x")));
        wait_for_entry(&pair.replica, "x");
        pair.link.stall(true);
        unblock_wait(&pair.primary);
        wait_for_entry(&pair.primary, "w");
        unblock_wait(&pair.primary);
        claim.join().unwrap().unwrap_err()
    });
    pair.fail_over();
    let b = open(&pair.replica.url(), "b");
    assert!(granted(b.claim(s("w"))).is_some());
    assert!(!keeps_earlier(&error), "{error:?}");
}

/// Whether the error promises that the session still has its earlier value, also after a failover.
fn keeps_earlier(error: &Error) -> bool {
    matches!(
        error,
        Error::NotAcknowledged {
            earlier_may_be_lost: false,
            ..
        }
    )
}

#[test]
fn a_withdrawal_that_fails_leaves_the_change_in_doubt() {
    let pair = Pair::start();
    let a = open_acknowledged(&pair.primary.url(), "a", AMPLE);
    granted(a.claim(s("w"))).unwrap();
    pair.link.stall(true);
    let error = std::thread::scope(|scope| {
        let claim = scope.spawn(|| a.claim(s("x")));
        wait_for_entry(&pair.primary, "x");
        // The server refuses every write from now on.
        let _: String = pair
            .primary
            .command(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
        unblock_all_waits(&pair.primary, || claim.is_finished());
        claim.join().unwrap().unwrap_err()
    });
    let Error::Server { may_be_done, .. } = error else {
        panic!("{error:?}");
    };
    assert!(may_be_done, "`x` is granted");
    let _: String = pair
        .primary
        .command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(a.restore().unwrap(), Some(s("x")));
}

#[test]
fn a_withdrawal_leaves_a_change_of_another_process_of_the_session_alone() {
    let pair = Pair::start();
    let one = open_acknowledged(&pair.primary.url(), "a", AMPLE);
    let two = open(&pair.primary.url(), "a");
    one.store(&s("w")).unwrap();
    pair.link.stall(true);
    std::thread::scope(|scope| {
        let storing = scope.spawn(|| one.store(&s("y")));
        wait_for_entry(&pair.primary, "y");
        two.store(&s("z")).unwrap();
        unblock_all_waits(&pair.primary, || storing.is_finished());
        storing.join().unwrap().unwrap_err();
    });
    assert_eq!(two.restore().unwrap(), Some(s("z")));

    // A refresh by another process lengthens the lease.
    let lease = two.claim(s("v")).unwrap().granted().unwrap();
    let entry = || -> String { pair.primary.command(&["HGET", KEY, "e:a"]) };
    let first = entry();
    std::thread::scope(|scope| {
        let renewing = scope.spawn(|| one.claim(s("v")));
        wait_until("the claim is renewed", || entry() != first);
        let renewed = entry();
        wait_until("the clock moves", || {
            two.refresh().unwrap() && entry() != renewed
        });
        let refreshed = entry();
        unblock_all_waits(&pair.primary, || renewing.is_finished());
        renewing.join().unwrap().unwrap_err();
        assert_eq!(entry(), refreshed);
    });
    assert!(two.validate(lease.token()).unwrap());
}

/// Without acknowledgement a failover gives a value to two holders. The token of the later one is
/// larger, so that the resource refuses the earlier one.
#[test]
fn without_acknowledgement_the_token_still_fences() {
    let pair = Pair::start();
    let a = open(&pair.primary.url(), "a");
    pair.link.stall(true);
    let mut lost = granted(a.claim(s("x"))).unwrap();
    // Many grants that the replica does not see: a counter alone would repeat their tokens.
    for _ in 0..20 {
        a.remove().unwrap();
        lost = granted(a.claim(s("x"))).unwrap();
    }
    let time: Vec<String> = pair.primary.command(&["TIME"]);
    let now = time[0].parse::<u64>().unwrap() * 1000 + time[1].parse::<u64>().unwrap() / 1000;
    wait_until("the failover takes longer than the clocks differ", || {
        let time: Vec<String> = pair.replica.command(&["TIME"]);
        time[0].parse::<u64>().unwrap() * 1000 > now.max(lost)
    });
    pair.fail_over();
    let b = open(&pair.replica.url(), "b");
    let token = granted(b.claim(s("x")));
    assert!(
        token.unwrap() > lost,
        "two holders, but {token:?} fences {lost}"
    );
    assert_eq!(
        a.restore().unwrap(),
        Some(s("x")),
        "the old primary does not know"
    );
}

/// The answer of an acknowledged claim is lost. The repeated call writes nothing new, and its
/// acknowledgement must count for the first execution.
#[test]
fn a_repeated_call_is_acknowledged_for_its_first_execution() {
    let pair = Pair::start();
    let proxy = Proxy::start(pair.primary.port());
    open_acknowledged(&pair.primary.url(), "a", AMPLE)
        .store(&s("w"))
        .unwrap();
    let a = open_acknowledged(&proxy.url(), "a", SHORT);
    pair.link.stall(true);
    proxy.lose_next_answer();
    assert!(matches!(
        a.claim(s("x")),
        Err(Error::NotAcknowledged { .. })
    ));
    assert!(proxy.has_lost_it());
    assert_eq!(a.restore().unwrap(), Some(s("w")));
}

#[test]
fn a_cluster_is_a_server_too() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let _: String = server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("the cluster is up", || {
        let info: String = server.command(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok")
    });
    let (a, b) = (open(&server.url(), "a"), open(&server.url(), "b"));
    let first = granted(a.claim(s("x"))).unwrap();
    assert_eq!(granted(b.claim(s("x"))), None);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| b.claim_within(s("x"), LONG));
        a.remove().unwrap();
        assert!(granted(waiting.join().unwrap()).unwrap() > first);
    });
    let refused = Store::redis_builder(&server.url(), "state")
        .acknowledged_by(1, Duration::from_millis(100))
        .connect();
    assert!(matches!(refused, Err(Error::Invalid { .. })));
}

#[test]
fn what_is_not_a_store_is_an_error() {
    let server = RedisServer::start_with(&[]);
    let _: String = server.command(&["SET", KEY, "precious"]);
    let a = open(&server.url(), "a");
    assert!(matches!(a.store(&s("x")), Err(Error::NotAStore { .. })));
    assert!(matches!(a.restore(), Err(Error::NotAStore { .. })));
    let text: String = server.command(&["GET", KEY]);
    assert_eq!(text, "precious");

    for name in ["", "a{b}", "a\nb"] {
        let refused = Store::connect(&server.url(), name);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{name:?}");
    }
    let error = Store::connect("redis://user:secret@127.0.0.1:1/0", "state").unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error:?}");
}

/// The password in every place where an address can have it, also if the address is wrong.
#[test]
fn a_password_is_in_no_error_of_a_wrong_address() {
    for url in [
        "nonsense://user:secret@host",
        "redis://user:secret@host:port/0",
        "redis://user:secret@host/number",
        "redis://host/0/1?password=secret",
        "redis+unix:///run/x.sock?db=number&pass=secret",
        "redis+unix:///run/x.sock?pass=a@secret&db=number",
        "redis//user:secret",
        "user:secret@host",
        "secret@host",
        "secret",
        "",
    ] {
        let Err(error) = Store::connect(url, "state") else {
            panic!("{url} is no address");
        };
        let shown = all_causes(&error);
        assert!(!shown.contains("secret"), "{url}: {shown}");
        let builder = Store::redis_builder(url, "state");
        assert!(!format!("{builder:?}").contains("secret"), "{url}");
    }
}

/// Both forms of an error and of all its causes.
fn all_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|error| format!("{error:?} {error} ")).collect()
}

/// An entry that expires changes no version: its removal by hand stands for that.
#[test]
fn a_refresh_in_a_transaction_is_not_reported_if_the_entry_expired_meanwhile() {
    let server = RedisServer::start_with(&[]);
    let a = open(&server.url(), "a");
    a.store(&s("x")).unwrap();
    let is_refreshed = a.transaction(|entries| {
        let is_refreshed = entries.refresh();
        let _: u64 = server.command(&["HDEL", KEY, "e:a"]);
        is_refreshed
    });
    assert!(!is_refreshed.unwrap());
}

/// A detected id means nothing on another host.
#[test]
fn the_default_session_carries_the_host() {
    let server = RedisServer::start_with(&[]);
    let store = Store::connect(&server.url(), "state").unwrap();
    let host = rustix::system::uname();
    let host = host.nodename().to_str().unwrap();
    let session = store.session().as_str();
    assert!(session.contains(&format!("@{host}-")), "{session}");
    assert_eq!(open(&server.url(), "mine").session().as_str(), "mine");
}

/// Two values are equal if their JSON is: the order of keys does not matter.
#[test]
fn maps_are_compared_by_their_contents() {
    use std::collections::HashMap;
    use timed_store::blocking::TimedStorage;
    let server = RedisServer::start_with(&[]);
    let open = |session: &str| {
        TimedStorage::<HashMap<String, u8>>::redis_builder(&server.url(), "state")
            .session(SessionId::new(session).unwrap())
            .connect()
            .unwrap()
    };
    let map = |keys: &[&str]| {
        keys.iter()
            .map(|key| (s(key), 1))
            .collect::<HashMap<_, _>>()
    };
    assert!(
        open("a")
            .claim(map(&["x", "y", "z"]))
            .unwrap()
            .granted()
            .is_some()
    );
    for _ in 0..8 {
        assert!(
            open("b")
                .claim(map(&["z", "y", "x"]))
                .unwrap()
                .granted()
                .is_none()
        );
    }
}

#[tokio::test]
async fn the_async_store_on_a_server_is_the_same_store() {
    use timed_store::{Change, TimedStorage};
    let server = RedisServer::start_with(&[]);
    let open = async |session: &str| {
        TimedStorage::<String>::redis_builder(&server.url(), "state")
            .session(SessionId::new(session).unwrap())
            .ttl(Duration::from_secs(10))
            .connect()
            .await
            .unwrap()
    };
    let (a, b) = (open("a").await, open("b").await);
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap().release_on_drop();
    let mut changes = b.watch();
    assert!(matches!(changes.next().await.unwrap(), Change::Set { .. }));
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.claim_within(s("x"), LONG).await }
    });
    drop(guard);
    assert!(waiting.await.unwrap().unwrap().granted().is_some());
    // A blocking handle works on a thread of a runtime, too.
    let url = server.url();
    let blocking = tokio::task::spawn_blocking(move || self::open(&url, "c"));
    let blocking = blocking.await.unwrap();
    assert_eq!(blocking.restore().unwrap(), None);
    drop(blocking);
}

/// The part of a process whose `main` ends with its guard.
pub(crate) fn release_at_the_end_of_main(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = timed_store::TimedStorage::<String>::redis_builder(url, "state")
            .session(SessionId::new("short").unwrap())
            .connect()
            .await
            .unwrap();
        let lease = store.claim(s("x")).await.unwrap().granted().unwrap();
        let _guard = store.keep_alive(lease).unwrap().release_on_drop();
    });
}

#[test]
fn a_guard_that_is_dropped_at_the_end_of_a_process_releases_its_value() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let part = format!("release-at-end {}", server.url());
    let status = crate::worker::Worker::start(&part, folder.path()).wait();
    assert!(status.success(), "see above");
    assert!(number(&server, "token") > 0, "it was claimed");
    let b = open(&server.url(), "b");
    assert!(granted(b.claim(s("x"))).is_some());
}

/// A later claim of the same session has another token.
#[tokio::test]
async fn a_dropped_guard_on_a_server_leaves_a_later_claim_alone() {
    let server = RedisServer::start_with(&[]);
    let url = server.url();
    let store = timed_store::TimedStorage::<String>::connect(&url, "state").await;
    let store = store.unwrap();
    let lease = store.claim(s("x")).await.unwrap().granted().unwrap();
    let guard = store.keep_alive(lease).unwrap().release_on_drop();
    store.remove().await.unwrap();
    store.claim(s("x")).await.unwrap().granted().unwrap();
    drop(guard);
    assert_eq!(store.restore().await.unwrap(), Some(s("x")));
}

/// The calls below have far less time than a call without a limit takes to give up (ten seconds). The
/// outer limit stands between the two.
const ENDS: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_call_with_a_limit_ends_with_it_while_the_server_is_away() {
    let mut server = RedisServer::start();
    let url = server.url();
    let store = timed_store::TimedStorage::<String>::connect(&url, "state").await;
    let store = store.unwrap();
    let lease = store.claim(s("w")).await.unwrap().granted().unwrap();
    let guard = store.keep_alive(lease).unwrap().release_on_drop();
    server.kill();
    let limit = Duration::from_millis(100);
    let claim = tokio::time::timeout(ENDS, store.claim_within(s("x"), limit)).await;
    let error = claim.expect("the limit is over").unwrap_err();
    assert!(matches!(error, Error::Server { .. }), "{error:?}");
    // While another call of the handle repeats itself, nothing is sent.
    let value = s("v");
    let (long, short) = tokio::join!(
        tokio::time::timeout(ENDS / 2, store.store(&value)),
        tokio::time::timeout(ENDS, store.claim_within(s("x"), limit)),
    );
    assert!(long.is_err(), "it is repeated for longer");
    let error = short.expect("the limit is over").unwrap_err();
    let Error::Server { may_be_done, .. } = error else {
        panic!("{error:?}");
    };
    assert!(!may_be_done);
    let dropping = tokio::task::spawn_blocking(move || drop(guard));
    let dropped = tokio::time::timeout(ENDS, dropping).await;
    dropped.expect("the drop ends").unwrap();
}

/// The handle sends its calls one after the other. Each would repeat itself for ten seconds after the
/// call before it has given up.
#[tokio::test]
async fn calls_that_wait_for_each_other_give_up_together() {
    let mut server = RedisServer::start();
    let url = server.url();
    let store = timed_store::TimedStorage::<String>::connect(&url, "state").await;
    let store = store.unwrap();
    store.store(&s("w")).await.unwrap();
    server.kill();
    let slot = store.slot("one").unwrap();
    let calls = async {
        tokio::join!(
            store.refresh(),
            store.remove(),
            slot.refresh(),
            slot.remove()
        )
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), calls).await;
    let (one, two, three, four) = ended.expect("all calls end");
    for call in [one, two, three, four] {
        let error = call.unwrap_err();
        assert!(matches!(error, Error::Server { .. }), "{error:?}");
    }
}

/// The server grants the claim, and its answer does not arrive in time.
#[test]
fn a_claim_that_was_cut_says_that_it_may_be_granted_and_can_be_repeated() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let a = open(&proxy.url(), "a");
    // Afterwards the server knows the script, so one request executes it.
    assert!(granted(a.claim(s("w"))).is_some());
    proxy.stall_answers(true);
    let error = a.claim_within(s("x"), Duration::from_millis(100));
    let error = error.unwrap_err();
    let Error::Server { may_be_done, .. } = error else {
        panic!("{error:?}");
    };
    assert!(may_be_done, "it is granted");
    assert!(
        error
            .to_string()
            .ends_with("; the change may have been done")
    );
    let b = open(&server.url(), "b");
    assert_eq!(granted(b.claim(s("x"))), None, "the error is right");
    let first = number(&server, "token");
    proxy.stall_answers(false);
    assert_eq!(a.restore().unwrap(), Some(s("x")));
    assert_eq!(granted(a.claim(s("x"))), Some(first));
}

/// A copy of a claim that was given up may wait in the network. A read that came before it would be
/// false a moment later, so the server is told first to refuse the copy: by a later number.
#[test]
fn a_read_after_a_claim_without_an_answer_fences_late_copies() {
    let mut server = RedisServer::start();
    let a = open(&server.url(), "a");
    a.store(&s("w")).unwrap();
    let last_request = |server: &RedisServer| {
        let keys: Vec<String> = server.command(&["KEYS", "*:request:*"]);
        let number: Vec<u8> = server.command(&["GETRANGE", &keys[0], "0", "0"]);
        number[0] - b'0'
    };
    assert_eq!(last_request(&server), 1);
    assert_eq!(a.restore().unwrap(), Some(s("w")));
    assert_eq!(last_request(&server), 1, "a read has no number");
    server.kill();
    a.claim_within(s("x"), Duration::from_millis(1))
        .unwrap_err();
    server.restart();
    assert_eq!(a.restore().unwrap(), Some(s("w")));
    assert_eq!(last_request(&server), 3, "2 is the claim");
    assert_eq!(a.restore().unwrap(), Some(s("w")));
    assert_eq!(last_request(&server), 3);
}

/// A limit that is shorter than the time of the replicas still withdraws the grant.
#[test]
fn a_claim_with_a_limit_is_withdrawn_within_it() {
    let pair = Pair::start();
    let a = open_acknowledged(&pair.primary.url(), "a", AMPLE);
    pair.link.stall(true);
    for limit in [Duration::ZERO, SHORT] {
        // The server of a busy machine may need longer than the limit for its own answer.
        let is_late = |claim: &_| {
            matches!(
                claim,
                Err(Error::Server {
                    may_be_done: true,
                    ..
                })
            )
        };
        let mut claims = (0..50).map(|_| a.claim_within(s("x"), limit));
        let claim = claims.find(|claim| !is_late(claim)).expect("an answer");
        assert!(
            matches!(claim, Err(Error::NotAcknowledged { .. })),
            "{claim:?}"
        );
        assert_eq!(a.restore().unwrap(), None);
    }
}

#[test]
fn a_time_for_replicas_without_an_end_is_accepted() {
    let pair = Pair::start();
    let a = open_acknowledged(&pair.primary.url(), "a", Duration::MAX);
    assert!(granted(a.claim(s("x"))).is_some());
}

/// The read comes after a call without an answer, and the server refuses every write.
#[test]
fn a_failed_read_says_that_nothing_was_changed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let a = open(&proxy.url(), "a");
    assert!(granted(a.claim(s("w"))).is_some());
    proxy.stall_answers(true);
    a.claim_within(s("x"), Duration::from_millis(100))
        .unwrap_err();
    proxy.stall_answers(false);
    let _: String = server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    match a.restore().unwrap_err() {
        Error::Server {
            action: "read",
            may_be_done: false,
            ..
        } => {}
        other => panic!("{other:?}"),
    }
}

/// The part of a process that trusts the test's certificates.
#[cfg(feature = "redis-tls")]
pub(crate) fn use_tls(url: &str) {
    let store = open(url, "a");
    assert!(granted(store.claim(s("x"))).is_some());
    assert_eq!(store.restore().unwrap(), Some(s("x")));
    assert!(store.watch().next().unwrap().is_ok());
}

#[cfg(feature = "redis-tls")]
#[test]
fn a_server_with_tls_is_reached() {
    use std::process::Command;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let openssl = |arguments: &str| {
        let done = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(folder.path())
            .output()
            .expect("cannot run openssl; install it with your package manager");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    };
    std::fs::write(file("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1").unwrap();
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=test");
    openssl("req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost");
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 -extfile names",
    );
    let port = crate::redis_server::free_port().to_string();
    let _server = RedisServer::start_with(&[
        "--tls-port",
        &port,
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &file("server.crt"),
        "--tls-key-file",
        &file("server.key"),
        "--tls-ca-cert-file",
        &file("ca.crt"),
    ]);
    let url = format!("rediss://localhost:{port}/0");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("SSL_CERT_FILE", file("ca.crt"));
    let part = format!("tls {url}");
    let status = crate::worker::Worker::start_by(command, &part, folder.path()).wait();
    assert!(status.success(), "see above");
    // Without the certificate the server is refused.
    let refused = Store::connect(&url, "state");
    assert!(matches!(refused, Err(Error::Server { .. })), "{refused:?}");
}
