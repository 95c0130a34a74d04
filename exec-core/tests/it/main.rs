//! Each file tests one behaviour with real processes: the agents are shell scripts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod budgets;
mod checks;
mod environment;
mod escape;
mod health;
mod hops;
mod host_watcher;
mod lab;
mod live;
mod live_agent;
mod live_faults;
mod live_races;
mod live_sandbox;
mod live_stop;
mod orphans;
mod output;
mod prefix;
mod recovery;
mod report;
mod restarts;
mod runs;
mod sandbox;
mod session_ids;
mod shutdown;
mod spans;
mod stop;
mod watchdogs;
