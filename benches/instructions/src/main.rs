//! Usage: `instructions restore|framing|marker`. Runs one hot path many times on the same data.
//! `scripts/bench --instructions` runs it under callgrind and counts the instructions inside
//! [`measured`], which compares two commits without noise.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a measuring program stops at the first failure"
)]

use std::hint::black_box;

#[cfg(not(hot_paths))]
fn main() {
    eprintln!("instructions: run it with scripts/bench --instructions");
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

/// The only function whose instructions are counted.
#[inline(never)]
#[cfg_attr(not(hot_paths), expect(dead_code, reason = "see main"))]
fn measured(times: usize, mut work: impl FnMut()) {
    for _ in 0..times {
        work();
    }
    black_box(());
}

/// Restores the own entry of one session among a hundred.
#[cfg(hot_paths)]
fn restore() {
    use timed_store::{SessionId, blocking::TimedStorage};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.json");
    let open = |session: usize| -> TimedStorage<String> {
        TimedStorage::builder(&path)
            .session(SessionId::new(format!("w0t{session}p0:6BC70640-E45D")).unwrap())
            .open()
            .unwrap()
    };
    let value = |session| format!("operator-{session}: 「設定」の \"timeout\" を直す");
    for session in 0..100 {
        open(session).store(&value(session)).unwrap();
    }
    let (store, own) = (open(50), value(50));
    measured(1_000, || {
        let value = black_box(&store).restore().unwrap();
        assert_eq!(value.as_deref(), Some(&*own));
    });
}

/// Splits two megabytes of transcripts, in chunks of 64 KB, into lines.
#[cfg(hot_paths)]
fn framing() {
    let transcripts = [
        include_str!("../../data/transcripts/claude-tool.jsonl"),
        include_str!("../../data/transcripts/claude-japanese.jsonl"),
        include_str!("../../data/transcripts/codex-tool.jsonl"),
    ]
    .concat()
    .repeat(120);
    let count = transcripts.lines().count();
    let chunks: Vec<&[u8]> = transcripts.as_bytes().chunks(64 * 1024).collect();
    measured(20, || {
        let framed = exec_core::hot_paths::frame_lines(black_box(&chunks));
        assert_eq!(framed, count);
    });
}

/// Finds the marker at the end of a long answer: Japanese text and source with colours.
#[cfg(hot_paths)]
fn marker() {
    let text = [
        include_str!("../../data/prose/japanese.txt"),
        include_str!("../../data/source/event_log.rs.txt"),
    ]
    .concat()
    .repeat(6);
    let lines = text.lines().enumerate();
    let mut output: Vec<u8> = lines
        .flat_map(|(i, line)| format!("\x1b[32m{i}\x1b[0m: {line} CODING\r\n").into_bytes())
        .collect();
    output.extend_from_slice(b"\x1b[1mCODING\x1b[0m OK\r\n");
    let chunks: Vec<&[u8]> = output.chunks(4 * 1024).collect();
    measured(20, || {
        let found = tmux_bus::hot_paths::markers_found("CODING OK", black_box(&chunks));
        assert_eq!(found, 1);
    });
}
