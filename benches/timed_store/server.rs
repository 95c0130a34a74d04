//! Claims on a Redis server beside the raw script, and the wake-up of waiters.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use benches::{Bench, Goal, scratch};
use examples::redis_server::{RedisServer, SyncLog};
use redis::Script;
use tempfile::TempDir;
use timed_store::blocking::TimedStorage as BlockingStorage;
use timed_store::{SessionId, TimedStorage};
use tokio::runtime::Runtime;

use crate::session_of;

/// Entries of other sessions in the store.
const OTHERS: usize = 10;

/// The store's own script, sent by hand.
const SCRIPT: &str = concat!(
    include_str!("../../timed-store/src/redis/prelude.lua"),
    include_str!("../../timed-store/src/redis/claim.lua"),
);

/// The least that a claim needs on a server: one script over one hash, with the server's time.
const MINIMAL: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fields = redis.call('HGETALL', KEYS[1])
for at = 1, #fields, 2 do
  local updated, ttl, token, data = string.match(fields[at + 1], '^(%d+)\n(%d+)\n(%d+)\n(.*)$')
  if updated and data == ARGV[2] and fields[at] ~= ARGV[1]
    and now - tonumber(updated) <= tonumber(ttl) then
    return 0
  end
end
local token = math.max(tonumber(redis.call('HGET', KEYS[1], 'token') or '0'), now) + 1
redis.call('HSET', KEYS[1], 'token', string.format('%.0f', token))
local entry = string.format('%.0f\n%s\n%.0f\n%s', now, ARGV[3], token, ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], entry)
return string.format('%.0f', token)
";

struct Place {
    _server: RedisServer,
    _folder: TempDir,
    url: String,
}

impl Place {
    fn new() -> Self {
        let folder = scratch();
        let server = RedisServer::start(folder.path(), SyncLog::EverySecond).unwrap();
        let url = server.url();
        Self {
            _server: server,
            _folder: folder,
            url,
        }
    }
}

/// Each claim takes another value, so that each one is a grant with a new token.
pub(crate) fn claim(bench: &mut Bench) {
    let place = Place::new();
    let runtime = runtime();
    let store = runtime.block_on(async {
        for at in 1..=OTHERS {
            let other = open(&place.url, &session_of(at)).await;
            other
                .claim(format!("operator-{at}"))
                .await
                .unwrap()
                .granted()
                .unwrap();
        }
        open(&place.url, "me").await
    });
    let (script, minimal) = (Script::new(SCRIPT), Script::new(MINIMAL));
    let connect = || {
        runtime.block_on(async {
            let client = redis::Client::open(place.url.as_str()).unwrap();
            client.get_multiplexed_async_connection().await.unwrap()
        })
    };
    let (mut connection, mut other_connection) = (connect(), connect());
    for at in 1..=OTHERS {
        let mut call = minimal.key("minimal");
        call.arg(session_of(at))
            .arg(format!("\"operator-{at}\""))
            .arg(14_400_000);
        let _: String = runtime
            .block_on(call.invoke_async(&mut connection))
            .unwrap();
    }
    let [mut count, mut other_count, mut third_count] = [0u64; 3];
    bench
        .compare("claim on a Redis server, 10 other entries")
        .floor("the same script, sent by hand", || {
            count += 1;
            let mut call = script.key("timed-store:{bench}");
            call.key("timed-store:{bench}:request:raw")
                .arg(count)
                .arg(&[
                    "e:raw", "raw", "14400000", "", "id", "barge", "", "3000", "",
                ])
                .arg(format!("\"raw-{}\"", count % 2));
            let answer = runtime.block_on(call.invoke_async(&mut connection));
            let answer: Vec<String> = answer.unwrap();
            assert_eq!(answer[0], "granted");
        })
        .differs("does not encode values; a lost connection is an error")
        .peer("a minimal script", || {
            third_count += 1;
            let mut call = minimal.key("minimal");
            call.arg("me")
                .arg(format!("\"value-{}\"", third_count % 2))
                .arg(14_400_000);
            let token = runtime.block_on(call.invoke_async(&mut other_connection));
            let token: String = token.unwrap();
            assert_ne!(token, "0");
        })
        .differs("no waiters, no slots, no notifications; a repeated call is executed twice")
        .ours("claim", || {
            other_count += 1;
            let claim = runtime.block_on(store.claim(format!("value-{}", other_count % 2)));
            assert!(claim.unwrap().granted().is_some());
        })
        .goal(Goal::at_most_floor(1.15))
        .headline()
        .run();
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

async fn open(url: &str, session: &str) -> TimedStorage<String> {
    TimedStorage::redis_builder(url, "bench")
        .session(SessionId::new(session).unwrap())
        .connect()
        .await
        .unwrap()
}

/// The time from the release of a value to the grant for a waiter on another thread.
pub(crate) fn wake_up(bench: &mut Bench) {
    let folder = scratch();
    let file = folder.path().join("state.json");
    let in_file = |session: &str| crate::open(&file, session, timed_store::Durability::Process);
    let median = measure(bench, &in_file("holder"), &in_file("waiter"));
    let goal = Goal::at_most(5.0);
    bench.figure(
        "wake-up of a waiter, file, p50",
        median * 1e3,
        "ms",
        Some(goal),
    );

    let place = Place::new();
    let on_server = |session: &str| {
        BlockingStorage::<String>::redis_builder(&place.url, "bench")
            .session(SessionId::new(session).unwrap())
            .connect()
            .unwrap()
    };
    let (holder, waiter) = (on_server("holder"), on_server("waiter"));
    let median = measure(bench, &holder, &waiter);
    bench.figure("wake-up of a waiter, Redis, p50", median * 1e3, "ms", None);
    let mut trips: Vec<f64> = (0..200)
        .map(|_| {
            let start = Instant::now();
            holder.restore().unwrap();
            start.elapsed().as_secs_f64()
        })
        .collect();
    let trip = middle(&mut trips);
    bench.figure("round trip to the server, p50", trip * 1e3, "ms", None);
}

/// In seconds. It includes the release itself.
fn measure(
    bench: &Bench,
    holder: &BlockingStorage<String>,
    waiter: &BlockingStorage<String>,
) -> f64 {
    let rounds = if bench.is_smoke() { 3 } else { 200 };
    let value = || "tsukuyomi".to_owned();
    let (go, started) = mpsc::channel::<()>();
    let (granted, grants) = mpsc::channel::<Instant>();
    let mut times: Vec<f64> = std::thread::scope(|scope| {
        scope.spawn(move || {
            while started.recv().is_ok() {
                let claim = waiter
                    .claim_within(value(), Duration::from_secs(60))
                    .unwrap();
                let now = Instant::now();
                assert!(claim.granted().is_some());
                waiter.remove().unwrap();
                granted.send(now).unwrap();
            }
        });
        let times = (0..rounds).map(|_| {
            assert!(holder.claim(value()).unwrap().granted().is_some());
            go.send(()).unwrap();
            // Long enough for the waiter to be asleep.
            std::thread::sleep(Duration::from_millis(20));
            let start = Instant::now();
            holder.remove().unwrap();
            let grant: Instant = grants.recv().unwrap();
            grant.duration_since(start).as_secs_f64()
        });
        let times = times.collect();
        drop(go);
        times
    });
    middle(&mut times)
}

fn middle(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
