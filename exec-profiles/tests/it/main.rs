//! Public behaviour, one file each.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod builtin;
mod events;
mod gemini_files;
mod registry;
mod request;
mod service;
mod user_file;
mod user_profiles;
