//! The way from the output of an agent to a subscriber: JSON lines of real transcripts.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use benches::{Bench, Goal, sample};
use exec_core::{CommandConfig, EventKind, MemoryPolicy, OutputStream};
use tokio::runtime::Runtime;

use super::host::Host;

const BOUND: MemoryPolicy = MemoryPolicy::BlockChild { max_bytes: 4 << 20 };

pub fn compare(bench: &mut Bench, runtime: &Runtime) {
    let megabytes = if bench.is_smoke() { 1 } else { 128 };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("output.jsonl");
    let size = write_output(&file, megabytes << 20);
    let cat = || CommandConfig::new("/bin/cat", [file.to_string_lossy()]);
    let plain = Host::with_command(cat(), |builder| builder.memory_policy(BOUND));
    let logging = Host::with_command(cat(), |builder| {
        builder
            .memory_policy(BOUND)
            .log_dir(dir.path().join("logs"))
    });
    let replaced = check_once(runtime, &logging, &file);

    bench
        .compare(&format!("relay of {} MB, one subscriber", size >> 20))
        .floor_timed("tokio::process, 64 KB reads", || {
            runtime.block_on(read_chunks(&file))
        })
        .differs("counts bytes: no lines, no events, no log file, no replay for a late subscriber")
        .ours_timed("events and a log file", || {
            let (took, log) = runtime.block_on(relay(&logging, size));
            std::fs::remove_file(log.expect("a log file")).expect("cannot remove the log file");
            took
        })
        .ours_timed("events without a log file", || {
            runtime.block_on(relay(&plain, size)).0
        })
        .peer_timed("blocking read(2) of 64 KB, no runtime", || read_raw(&file))
        .differs("counts bytes; blocks one thread for each pipe")
        .peer_timed("tokio lines()", || runtime.block_on(read_lines(&file)))
        .differs("lines without a length limit for a single reader; fails at invalid UTF-8")
        // 0.80 of the speed of the floor.
        .goal(Goal::at_most_floor(1.25))
        .headline()
        .run();
    bench.figure(
        "replacement characters in the relayed lines",
        replaced as f64,
        "",
        Some(Goal::at_most(0.0)),
    );
}

/// Writes the lines of real transcripts, repeated up to the size. Returns the exact size.
fn write_output(path: &Path, bytes: usize) -> usize {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("a file"));
    let mut written = 0;
    for line in sample::lines() {
        if written >= bytes {
            break;
        }
        writeln!(file, "{line}").expect("written");
        written += line.len() + 1;
    }
    file.flush().expect("written");
    written
}

fn read_raw(file: &Path) -> Duration {
    let start = Instant::now();
    let mut child = Command::new("/bin/cat")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut stdout = child.stdout.take().expect("its output");
    let mut buffer = vec![0; 64 << 10];
    while stdout.read(&mut buffer).expect("read") > 0 {
        std::hint::black_box(&buffer);
    }
    child.wait().expect("an end");
    start.elapsed()
}

async fn read_chunks(file: &Path) -> Duration {
    use tokio::io::AsyncReadExt;
    let start = Instant::now();
    let (mut child, mut stdout) = spawn_cat(file);
    let mut buffer = vec![0; 64 << 10];
    while stdout.read(&mut buffer).await.expect("read") > 0 {
        std::hint::black_box(&buffer);
    }
    child.wait().await.expect("an end");
    start.elapsed()
}

async fn read_lines(file: &Path) -> Duration {
    use tokio::io::AsyncBufReadExt;
    let start = Instant::now();
    let (mut child, stdout) = spawn_cat(file);
    let mut lines = tokio::io::BufReader::with_capacity(64 << 10, stdout).lines();
    while let Some(line) = lines.next_line().await.expect("a line") {
        std::hint::black_box(&line);
    }
    child.wait().await.expect("an end");
    start.elapsed()
}

fn spawn_cat(file: &Path) -> (tokio::process::Child, tokio::process::ChildStdout) {
    let mut child = tokio::process::Command::new("/bin/cat")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let stdout = child.stdout.take().expect("its output");
    (child, stdout)
}

/// The time from the launch to the last event, and the path of the log file.
async fn relay(host: &Host, size: usize) -> (Duration, Option<std::path::PathBuf>) {
    let start = Instant::now();
    let execution = host.launch().await;
    let mut events = execution.events();
    let mut bytes = 0;
    while let Some(event) = events.next().await {
        match &event.kind {
            EventKind::Output(output) => bytes += output.line.as_bytes().len() + 1,
            EventKind::Gap { missed } => panic!("{missed} events were lost"),
            _ => {}
        }
    }
    let took = start.elapsed();
    assert_eq!(bytes, size);
    let log = execution.log_path(OutputStream::Stdout).map(Path::to_owned);
    (took, log)
}

/// Compares the log file with the original byte for byte, and counts the replacement characters in
/// the lines as text.
fn check_once(runtime: &Runtime, host: &Host, file: &Path) -> usize {
    runtime.block_on(async {
        let execution = host.launch().await;
        let mut events = execution.events();
        let mut replaced = 0;
        while let Some(event) = events.next().await {
            if let EventKind::Output(output) = &event.kind {
                replaced += output.line.text().matches('\u{FFFD}').count();
            }
        }
        let log = execution
            .log_path(OutputStream::Stdout)
            .expect("a log file");
        let same = std::fs::read(log).expect("the log") == std::fs::read(file).expect("the file");
        assert!(same, "the log file differs from the output");
        replaced
    })
}
