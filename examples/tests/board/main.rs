//! The board as its users meet it: the page in a real browser, and the JSON with a client of its own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod board;
mod browser;
mod capacity;
mod client;
mod closed;
mod cluster;
mod live;
mod look;
mod page;
mod program;
mod protocol;
mod sources;
