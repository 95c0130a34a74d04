//! Ports for servers that cannot listen on a Unix socket alone.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port of 127.0.0.1 that no other test of this process gets and no program uses.
///
/// The ports are below those that a kernel gives to outgoing connections (32768 and more on
/// Linux): such a connection could take the port before the server listens on it. The port 10,000 higher is free as well: a
/// node of a Redis cluster listens there for the other nodes.
pub(crate) fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 10_000 * 97 % 10_000).unwrap();
    std::iter::repeat_with(|| 10_000 + (start + TAKEN.fetch_add(1, Ordering::Relaxed)) % 10_000)
        .take(10_000)
        .find(|port| [*port, port + 10_000].iter().all(is_free))
        .expect("a free port between 10000 and 20000")
}

fn is_free(port: &u16) -> bool {
    TcpListener::bind(("127.0.0.1", *port)).is_ok()
}
