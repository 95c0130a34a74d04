//! Each file tests one behaviour with real processes: the agents are shell scripts.
//!
//! `target_os = "linux"`: the test reads `/proc` to see what is left, or makes the kernel refuse a call.
//! `portable_processes`: the limits of macOS are compiled in; see `scripts/test-portable`. The file
//! `weaker_promises.rs` tests what is then not promised, or promised otherwise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        unused_imports,
        reason = "tests that need Linux are compiled out"
    )
)]

mod admission;
mod budgets;
mod checks;
mod environment;
#[cfg(target_os = "linux")]
mod escape;
mod health;
#[cfg(target_os = "linux")]
mod hops;
#[cfg(target_os = "linux")]
mod host_watcher;
mod lab;
mod live;
mod live_agent;
mod live_faults;
mod live_races;
mod live_restarts;
#[cfg(all(target_os = "linux", not(portable_processes)))]
mod live_sandbox;
#[cfg(target_os = "linux")]
mod live_stop;
#[cfg(target_os = "linux")]
mod orphans;
mod output;
mod prefix;
#[cfg(target_os = "linux")]
mod recovery;
mod report;
mod restarts;
mod runs;
#[cfg(all(target_os = "linux", not(portable_processes)))]
mod sandbox;
mod session_ids;
mod shutdown;
mod spans;
#[cfg(target_os = "linux")]
mod stop;
mod watchdogs;
#[cfg(not(all(target_os = "linux", not(portable_processes))))]
mod weaker_promises;
