//! Tests of the public behaviour, one file per topic.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod builtin;
mod events;
mod failures;
mod gemini_files;
mod hostile;
mod live_agent;
mod live_hostile;
mod live_messages;
mod live_profiles;
mod live_replay;
mod live_service;
mod registry;
mod request;
mod sandbox;
mod service;
mod user_file;
mod user_profiles;
mod worker;
