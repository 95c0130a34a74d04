//! `instructions restore|framing|marker`: one hot path, many times over, on the same data each
//! time. `scripts/bench --instructions` runs it under callgrind and counts what happens inside
//! [`measured`], so that two commits can be compared without noise.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a program for measuring: what fails should stop it"
)]

use std::hint::black_box;

#[cfg(not(hot_paths))]
fn main() {
    eprintln!("instructions: run this through scripts/bench --instructions");
    std::process::exit(2);
}

#[cfg(hot_paths)]
fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("restore") => restore(),
        Some("framing") => framing(),
        Some("marker") => marker(),
        _ => {
            eprintln!("usage: instructions restore|framing|marker");
            std::process::exit(2);
        }
    }
}

/// The only function whose instructions count.
#[inline(never)]
#[cfg_attr(not(hot_paths), expect(dead_code, reason = "see main"))]
fn measured(times: usize, mut work: impl FnMut()) {
    for _ in 0..times {
        work();
    }
    black_box(());
}

/// One session's own entry among a hundred.
#[cfg(hot_paths)]
fn restore() {
    use timed_store::{SessionId, blocking::TimedStorage};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.json");
    let open = |session: usize| -> TimedStorage<String> {
        TimedStorage::builder_at(&path)
            .session(SessionId::new(format!("session-{session:03}")).unwrap())
            .open()
            .unwrap()
    };
    for session in 0..100 {
        open(session).store(&format!("value of {session}")).unwrap();
    }
    let store = open(50);
    measured(1_000, || {
        let value = black_box(&store).restore().unwrap();
        assert_eq!(value.as_deref(), Some("value of 50"));
    });
}

/// A megabyte of lines as an agent prints them, in reads of 64 KB.
#[cfg(hot_paths)]
fn framing() {
    let lines: Vec<u8> = (0..10_000)
        .flat_map(|i| {
            format!("{{\"type\":\"assistant\",\"text\":\"行 {i} of it: こんにちは\"}}\n")
                .into_bytes()
        })
        .collect();
    let chunks: Vec<&[u8]> = lines.chunks(64 * 1024).collect();
    measured(20, || {
        assert_eq!(
            exec_core::hot_paths::frame_lines(black_box(&chunks)),
            10_000
        );
    });
}

/// A long answer with colours and Japanese text, and the marker at its end.
#[cfg(hot_paths)]
fn marker() {
    let mut output: Vec<u8> = (0..2_000)
        .flat_map(|i| format!("\x1b[32m{i}\x1b[0m: CODING is 進行中, not yet OK\r\n").into_bytes())
        .collect();
    output.extend_from_slice(b"\x1b[1mCODING\x1b[0m OK\r\n");
    let chunks: Vec<&[u8]> = output.chunks(4 * 1024).collect();
    measured(20, || {
        let found = tmux_bus::hot_paths::markers_found("CODING OK", black_box(&chunks));
        assert_eq!(found, 1);
    });
}
