//! Tests of the public behaviour, one file per topic.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]
#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        unused_imports,
        reason = "tests that need Linux are compiled out"
    )
)]

mod builtin;
mod events;
mod failures;
mod gemini_files;
#[cfg(target_os = "linux")]
mod hostile;
mod live_agent;
mod live_hostile;
mod live_messages;
mod live_profiles;
mod live_replay;
mod live_service;
mod own_protocol;
mod registry;
mod request;
#[cfg(target_os = "linux")]
mod sandbox;
mod service;
mod user_file;
mod user_profiles;
mod worker;
