//! tmux-bus beside the polling of its specification and, where it is installed, libtmux.
//!
//! The programs in the panes are this binary, started again.

use std::{
    fs,
    io::{BufRead, Read, Write, stdin, stdout},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use benches::{Bench, Goal};
use rustix::{
    termios::{OptionalActions, tcgetattr, tcsetattr},
    time::{ClockId, clock_gettime},
};
use tempfile::TempDir;
use tmux_bus::{AnswerEnd, Launch, PaneId, PaneIo, ResponseOptions, Server};
use tokio::runtime::Runtime;

const MARKER: &str = "BENCH OK";

fn main() {
    match std::env::var("BENCH_PROGRAM").as_deref() {
        Ok("replier") => return replier(),
        Ok("receiver") => return receiver(),
        _ => {}
    }
    let found = Command::new("tmux")
        .arg("-V")
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(
        found,
        "this bench needs tmux 3.2 or newer: `apt install tmux` or `brew install tmux`"
    );
    let mut bench = Bench::from_args("tmux-bus");
    latency(&mut bench);
    ends(&mut bench);
    round_trips(&mut bench);
    sends(&mut bench);
    idle(&mut bench);
}

/// Nanoseconds of a clock that all processes share.
fn clock() -> i128 {
    let now = clock_gettime(ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

fn since(nanoseconds: i128) -> Duration {
    Duration::from_nanos(u64::try_from(clock() - nanoseconds).unwrap_or(0))
}

/// Reads lines in canonical mode. `wait MICROSECONDS NUMBER` waits before it answers; `die` ends it;
/// each answer has the time at which it was printed.
fn replier() {
    let mut out = stdout();
    for line in stdin().lock().lines() {
        let line = line.unwrap();
        if line == "die" {
            out.write_all(format!("at {}\n", clock()).as_bytes())
                .unwrap();
            return;
        }
        let mut words = line.split(' ');
        if words.next() == Some("wait") {
            let micros = words.next().unwrap().parse().unwrap();
            std::thread::sleep(Duration::from_micros(micros));
        }
        let number = words.next().unwrap_or("0");
        out.write_all(format!("at {} {number} {MARKER}\n", clock()).as_bytes())
            .unwrap();
    }
}

/// Reads bracketed pastes in raw mode and answers each with its length and a checksum.
fn receiver() {
    let mut modes = tcgetattr(stdin()).unwrap();
    modes.make_raw();
    tcsetattr(stdin(), OptionalActions::Now, &modes).unwrap();
    let mut out = stdout();
    out.write_all(b"\x1b[?2004hready> ").unwrap();
    out.flush().unwrap();
    let mut message = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = stdin().read(&mut buffer).unwrap();
        if count == 0 {
            return;
        }
        let chunk = &buffer[..count];
        message.extend_from_slice(chunk);
        let text = if message.ends_with(b"\x1b[201~") {
            format!("[pasted {} bytes]", message.len() - 12)
        } else if message.ends_with(b"\x1b[201~\r") {
            let pasted = &message[6..message.len() - 7];
            let text = format!(
                "\r\n{} {:x} {MARKER}\r\nready> ",
                pasted.len(),
                checksum(pasted)
            );
            message.clear();
            text
        } else {
            continue;
        };
        out.write_all(text.as_bytes()).unwrap();
        out.flush().unwrap();
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A private server, ended with this value.
struct Panes {
    runtime: Runtime,
    server: Server,
    panes: Vec<PaneId>,
    _dir: TempDir,
}

impl Panes {
    fn start(program: &str, count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // One worker, which goes on reading while the bench's own thread waits.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let exe = std::env::current_exe().unwrap();
        let launch = if program == "idle" {
            Launch::new("exec sleep 100000")
        } else {
            Launch::new(format!("exec '{}'", exe.display())).env("BENCH_PROGRAM", program)
        };
        let (server, panes) = runtime.block_on(async {
            let size = if count > 5 { (2_400, 800) } else { (200, 50) };
            let server = Server::builder("bench")
                .runtime_dir(dir.path().join("run"))
                .size(size.0, size.1)
                .start()
                .await
                .unwrap();
            let mut panes = Vec::new();
            for _ in 0..count {
                panes.push(server.open_pane(&launch).await.unwrap());
            }
            (server, panes)
        });
        let started = Self {
            runtime,
            server,
            panes,
            _dir: dir,
        };
        if program == "receiver" {
            started.wait_for("ready>");
        }
        started
    }

    fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !capture(self.server.socket(), self.panes[0]).contains(text) {
            assert!(Instant::now() < deadline, "`{text}` did not appear");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ask(&self, message: &str) -> String {
        self.runtime
            .block_on(ask(&self.server.pane_io(), self.panes[0], message))
    }
}

impl Drop for Panes {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .arg("-S")
            .arg(self.server.socket())
            .arg("kill-server")
            .status();
    }
}

async fn ask(io: &PaneIo, pane: PaneId, message: &str) -> String {
    let options = ResponseOptions::default().end(AnswerEnd::AtMarker);
    let sent = io.send_message(pane, message).await.unwrap();
    io.get_response_with(sent, MARKER, &options).await.unwrap()
}

/// The specification's way: a process for each command.
fn tmux(socket: &Path, args: &[&str]) -> String {
    let output = Command::new("tmux")
        .arg("-S")
        .arg(socket)
        .args(args)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn capture(socket: &Path, pane: PaneId) -> String {
    tmux(socket, &["capture-pane", "-p", "-t", &pane.to_string()])
}

/// Sends as specified and looks every `interval` until the numbered answer is there.
fn poll(socket: &Path, pane: PaneId, message: &str, number: u64, interval: Duration) -> String {
    tmux(
        socket,
        &["send-keys", "-t", &pane.to_string(), message, "Enter"],
    );
    let wanted = format!(" {number} {MARKER}");
    loop {
        let screen = capture(socket, pane);
        if let Some(line) = screen.lines().find(|line| line.ends_with(&wanted)) {
            return line.to_owned();
        }
        std::thread::sleep(interval);
    }
}

fn printed_at(answer: &str) -> i128 {
    let words: Vec<&str> = answer.split_whitespace().collect();
    let at = words.iter().rposition(|&word| word == "at").unwrap();
    words[at + 1].parse().unwrap()
}

/// Not random enough for anything but the phase of a poll.
fn micros(number: u64, below: u64) -> u64 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % below
}

fn latency(bench: &mut Bench) {
    let (ours, theirs) = (Panes::start("replier", 1), Panes::start("replier", 1));
    let interval = Duration::from_millis(if bench.is_smoke() { 50 } else { 500 });
    let (mut a, mut b) = (0, 0);
    bench
        .compare("marker printed until seen")
        .ours_timed("get_response", || {
            a += 1;
            since(printed_at(
                &ours.ask(&format!("wait {} {a}", 500 + micros(a, 5_000))),
            ))
        })
        .peer_timed("the specification's polling", || {
            b += 1;
            let wait = micros(b, 500_000);
            since(printed_at(&poll(
                theirs.server.socket(),
                theirs.panes[0],
                &format!("wait {wait} {b}"),
                b,
                interval,
            )))
        })
        .goal(Goal::median_at_most_ms(0.5))
        .goal(Goal::p99_at_most_ms(5.0))
        .goal(Goal::peer_at_least("the specification's polling", 100.0))
        .run();
    libtmux(bench, &theirs);
}

/// Runs the peer script if its library is installed.
fn libtmux(bench: &mut Bench, panes: &Panes) {
    let installed = Command::new("python3")
        .args(["-c", "import libtmux"])
        .stderr(Stdio::null())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        println!(
            "tmux-bus: libtmux is not installed (`pip install libtmux`): its figures are left out"
        );
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/libtmux_peer.py");
    let rounds = if bench.is_smoke() { "1" } else { "20" };
    let output = Command::new("python3")
        .arg(script)
        .arg(panes.server.socket())
        .arg(panes.panes[0].to_string())
        .arg(rounds)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (name, value) = line.split_once('\t').unwrap();
        let (value, unit) = value.split_once('\t').unwrap();
        bench.figure(
            &format!("libtmux, {name}"),
            value.parse().unwrap(),
            unit,
            None,
        );
    }
}

/// How soon the end of a program is noticed by who waits for it.
fn ends(bench: &mut Bench) {
    let rounds = if bench.is_smoke() { 1 } else { 20 };
    let panes = Panes::start("replier", rounds);
    let io = panes.server.pane_io();
    let mut noticed: Vec<Duration> = panes
        .panes
        .iter()
        .map(|&pane| {
            panes.runtime.block_on(async {
                let sent = io.send_message(pane, "die").await.unwrap();
                let error = io
                    .get_response(sent, MARKER, Duration::from_secs(30))
                    .await
                    .unwrap_err();
                since(printed_at(error.partial().unwrap()))
            })
        })
        .collect();
    noticed.sort_unstable();
    for (name, at) in [("half", rounds / 2), ("the slowest", rounds - 1)] {
        let ms = noticed[at].as_secs_f64() * 1e3;
        bench.figure(
            &format!("a program's end until noticed, {name} of {rounds}"),
            ms,
            "ms",
            Some(Goal::at_most(20.0)),
        );
    }
}

fn round_trips(bench: &mut Bench) {
    let seconds = if bench.is_smoke() { 0.1 } else { 3.0 };
    for count in [1, 5, 50] {
        let panes = Panes::start(
            "replier",
            if bench.is_smoke() {
                count.min(5)
            } else {
                count
            },
        );
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        let start = Instant::now();
        let trips: u64 = panes.runtime.block_on(async {
            let mut asking = Vec::new();
            for &pane in &panes.panes {
                let io = panes.server.pane_io();
                asking.push(tokio::spawn(async move {
                    let mut trips = 0;
                    while Instant::now() < until {
                        ask(&io, pane, "now").await;
                        trips += 1;
                    }
                    trips
                }));
            }
            let mut trips = 0;
            for task in asking {
                trips += task.await.unwrap();
            }
            trips
        });
        let rate = trips as f64 / start.elapsed().as_secs_f64();
        let goal = (count == 1).then(|| Goal::at_least(2_000.0));
        bench.figure(
            &format!("round trips a second, panes: {count}"),
            rate,
            "1/s",
            goal,
        );
        if count == 1 {
            let (mut number, start) = (1_000_000, Instant::now());
            while start.elapsed().as_secs_f64() < seconds {
                number += 1;
                poll(
                    panes.server.socket(),
                    panes.panes[0],
                    &format!("wait 0 {number}"),
                    number,
                    Duration::ZERO,
                );
            }
            let rate = (number - 1_000_000) as f64 / start.elapsed().as_secs_f64();
            bench.figure(
                "the same by processes, polling without a pause",
                rate,
                "1/s",
                None,
            );
        }
    }
}

fn sends(bench: &mut Bench) {
    let panes = Panes::start("receiver", 1);
    let deliver = |message: &str| {
        let start = Instant::now();
        let answer = panes.ask(message);
        let took = start.elapsed();
        let expected = format!(
            "{} {:x} {MARKER}",
            message.len(),
            checksum(message.as_bytes())
        );
        assert!(
            answer.ends_with(&expected),
            "sent {} bytes, got `{answer}`",
            message.len()
        );
        took
    };
    for (name, length, goal) in [
        ("10 B", 10, None),
        ("10 KB", 10 << 10, None),
        ("1 MB", 1 << 20, Some(60.0)),
    ] {
        let mut seed = 0;
        let mut next = || {
            seed += 1;
            text(length, seed)
        };
        let mut comparison = bench.compare(&format!(
            "a message of {name} is sent, received and answered"
        ));
        comparison = comparison.ours_timed("send_message", || deliver(&next()));
        if let Some(ms) = goal {
            comparison = comparison.goal(Goal::median_at_most_ms(ms));
        }
        comparison.run();
    }
    // `deliver` stops the bench at the first difference.
    let rounds = if bench.is_smoke() { 2 } else { 1_000 };
    for seed in 0..rounds {
        deliver(&text(1 << 20, seed));
    }
    let goal = Some(Goal::at_least(rounds as f64));
    bench.figure(
        &format!("messages of 1 MB, exact of {rounds}"),
        rounds as f64,
        "",
        goal,
    );
}

/// Text with all that a terminal or tmux could take for its own.
fn text(length: usize, seed: u64) -> String {
    let line = format!("{seed:08x} 日本語 🎌 \"$HOME\" `x` \\ ; #{{pane_id}} \t\n");
    let mut text = line.repeat(length / line.len() + 1);
    let mut end = length;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

fn idle(bench: &mut Bench) {
    let (count, seconds) = if bench.is_smoke() {
        (4, 0.2)
    } else {
        (200, 10.0)
    };
    let panes = Panes::start("idle", count);
    let server: u32 = tmux(panes.server.socket(), &["display-message", "-p", "#{pid}"])
        .trim()
        .parse()
        .unwrap();
    let clients = tmux(
        panes.server.socket(),
        &["list-clients", "-F", "#{client_pid}"],
    );
    let client: u32 = clients.lines().next().unwrap().parse().unwrap();
    std::thread::sleep(Duration::from_secs_f64(f64::min(seconds, 2.0)));

    let cpu = || ticks(server, false) + ticks(client, false) + ticks(std::process::id(), true);
    let share = |before: u64, start: Instant| {
        (cpu() - before) as f64 / 100.0 / start.elapsed().as_secs_f64() * 100.0
    };
    let (before, start) = (cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let ours = share(before, start);
    bench.figure(
        &format!("idle, {count} panes, share of a core"),
        ours,
        "%",
        Some(Goal::at_most(0.05)),
    );

    let (before, start) = (cpu(), Instant::now());
    while start.elapsed().as_secs_f64() < seconds {
        let round = Instant::now();
        for &pane in &panes.panes {
            capture(panes.server.socket(), pane);
        }
        std::thread::sleep(Duration::from_millis(500).saturating_sub(round.elapsed()));
    }
    bench.figure(
        &format!("polling {count} idle panes each 500 ms, share of a core"),
        share(before, start),
        "%",
        None,
    );
}

/// Clock ticks (hundredths of a second) of a process, with those of its ended children if asked.
fn ticks(pid: u32, children: bool) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .expect("/proc is needed to measure idle cost");
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap_or(0))
        .collect();
    let own = fields[10] + fields[11];
    if children {
        own + fields[12] + fields[13]
    } else {
        own
    }
}
