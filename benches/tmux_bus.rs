//! tmux-bus beside the polling of its specification and, if it is installed, libtmux.
//!
//! The program in the panes is this binary.

#[path = "tmux_bus/bare.rs"]
mod bare;
#[path = "tmux_bus/command.rs"]
mod command;
#[path = "tmux_bus/cost.rs"]
mod cost;
#[path = "tmux_bus/growth.rs"]
mod growth;
#[path = "tmux_bus/hook.rs"]
mod hook;
#[path = "tmux_bus/inbox.rs"]
mod inbox;
#[path = "tmux_bus/panes.rs"]
mod panes;
#[path = "tmux_bus/polling.rs"]
mod polling;
#[path = "tmux_bus/programs.rs"]
mod programs;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use benches::{Bench, Figure, Goal, Outside, Step, python, resident_kib, sample};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use tmux_bus::{AnswerEnd, Launch, PaneId, PaneIo, ResponseOptions, Server};
use tokio::runtime::Runtime;

use bare::Bare;
use cost::{Bus, nanoseconds};
use panes::{Panes, ask};
use polling::{capture, poll, poll_all, tmux};
use programs::{checksum, clock, receiver, replier, since};

const MARKER: &str = "BENCH OK";

fn main() {
    match std::env::var("BENCH_PROGRAM").as_deref() {
        Ok("replier") => return replier(),
        Ok("receiver") => return receiver(),
        Ok("hooked") => return hook::agent(),
        Ok("inboxed") => return inbox::agent(),
        _ => {}
    }
    let found = Command::new("tmux")
        .arg("-V")
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(
        found,
        "this bench needs tmux 3.2 or newer: `scripts/setup tmux` installs it"
    );
    let bench = Bench::from_args("tmux-bus");
    let exact = 0.04 * exact_messages(&bench) as f64;
    bench.steps(vec![
        Step::new("latency", 1, 14.0, latency),
        Step::new("ends", 0, 4.0, ends),
        Step::new("hook", 0, 30.0, hook::hook),
        Step::new("command", 1, 5.0, command::command),
        Step::new("inbox", 1, 20.0, inbox::inbox),
        Step::new("round-trips", 0, 6.0, round_trips),
        Step::new("sends", 3, exact, sends),
        Step::new("growth", 0, 45.0, growth::growth),
    ]);
}

/// libtmux with a server, if it is installed.
fn libtmux(bench: &mut Bench, panes: &Panes) -> Option<Outside> {
    bench.outside("libtmux", python("libtmux_peer.py").arg(&panes.socket))
}

fn printed_at(answer: &str) -> i128 {
    let words: Vec<&str> = answer.split_whitespace().collect();
    let at = words.iter().rposition(|&word| word == "at").unwrap();
    words[at + 1].parse().unwrap()
}

/// A number below `below`, random enough to vary the phase of a poll.
fn micros(number: u64, below: u64) -> u64 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % below
}

fn latency(bench: &mut Bench) {
    let [ours, mut theirs, mut python] = [(); 3].map(|()| Panes::start("replier", 1));
    theirs.detach();
    python.detach();
    let mut libtmux = libtmux(bench, &python);
    let interval = Duration::from_millis(if bench.is_smoke() { 50 } else { 500 });
    let (mut a, mut b, mut c) = (0, 0, 0);
    let mut comparison = bench
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
                &theirs.socket,
                theirs.panes[0],
                &format!("wait {wait} {b}"),
                b,
                interval,
            )))
        })
        .differs("captures the screen every 500 ms; an answer that has scrolled off is never seen")
        .goal(Goal::median_at_most_ms(0.5))
        .goal(Goal::p99_at_most_ms(5.0))
        .goal(Goal::peer_at_least("the specification's polling", 100.0))
        .headline();
    if let Some(libtmux) = &mut libtmux {
        comparison = comparison
            .peer_timed("libtmux, polling each 500 ms", || {
                c += 1;
                let wait = micros(c, 500_000);
                libtmux.time(&format!("ask {wait} {c} {}", interval.as_secs_f64()))
            })
            .differs("like the polling of the specification, with a Python library");
    }
    comparison.run();
}

/// The time from the end of a program to the error of the pending request.
fn ends(bench: &mut Bench) {
    let rounds = if bench.is_smoke() { 1 } else { 20 };
    bench.progress("ends of programs");
    let panes = Panes::start("replier", rounds);
    let io = panes.server().pane_io();
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
    let within = |at: usize| {
        let ms = noticed[at].as_secs_f64() * 1e3;
        Figure::from(ms).goal(Goal::at_most(20.0))
    };
    bench
        .table(
            &format!("a program's end until noticed, {rounds} times"),
            &[("half of them within", "ms"), ("all of them within", "ms")],
        )
        .ours("get_response", [within(rounds / 2), within(rounds - 1)])
        .report();
}

fn round_trips(bench: &mut Bench) {
    bench.progress("round trips, by slices in turn");
    // One server for each contender, so that none receives the output of another.
    let [ours, mut same, mut only, mut theirs, mut python] =
        [(); 5].map(|()| Panes::start("replier", 1));
    let (mut same, mut only) = (Bare::attach(&mut same), Bare::attach(&mut only));
    theirs.detach();
    python.detach();
    let mut libtmux = libtmux(bench, &python);
    let mut number = 1_000_000;
    let mut by_processes = || {
        number += 1;
        let (socket, pane) = (&theirs.socket, theirs.panes[0]);
        poll(
            socket,
            pane,
            &format!("wait 0 {number}"),
            number,
            Duration::ZERO,
        );
    };
    // Each contender runs without pauses for a slice of time, in turn.
    let slice = Duration::from_millis(if bench.is_smoke() { 20 } else { 100 });
    let rounds = if bench.is_smoke() { 1 } else { 10 };
    let mut rates = [(0, 0.0); 4];
    let mut by_libtmux = (0, 0.0);
    for round in 0..rounds {
        rates[0] = add(rates[0], many(&ours, slice));
        let others: [&mut dyn FnMut(); 3] = [
            &mut || same.like_ours(),
            &mut || only.paste_only(),
            &mut by_processes,
        ];
        for (rate, trip) in rates[1..].iter_mut().zip(others) {
            let (mut trips, start) = (0, Instant::now());
            while start.elapsed() < slice {
                trip();
                trips += 1;
            }
            *rate = add(*rate, (trips, start.elapsed().as_secs_f64()));
        }
        if let Some(libtmux) = &mut libtmux {
            let answer = libtmux.ask(&format!("trips {round} {}", slice.as_secs_f64()));
            let (trips, seconds) = answer.split_once(' ').unwrap();
            by_libtmux = add(
                by_libtmux,
                (trips.parse().unwrap(), seconds.parse().unwrap()),
            );
        }
    }
    let rate = |(trips, seconds): (u64, f64)| trips as f64 / seconds;
    let [ours, same, only, theirs] = rates.map(rate);
    let limit = format!(
        "tmux itself: a bare client with the same commands reaches {same:.0} in the same run (ours / floor {:.2}), with only the paste {only:.0}",
        same / ours,
    );
    let goal = Goal::at_least(2_000.0).limited_by(&limit);
    let mut table = bench
        .table("one pane, again and again", &[("round trips a second", "")])
        .floor(
            "a bare control client, only the paste",
            [Figure::from(only)],
        )
        .differs("a single command: checks neither the pane nor whether its program is alive")
        .floor(
            "a bare control client, the same commands",
            [Figure::from(same)],
        )
        .differs("does not check the answers of tmux")
        .ours(
            "send_message, get_response",
            [Figure::from(ours).goal(goal)],
        )
        .peer(
            "a process a command, polling without a pause",
            [Figure::from(theirs)],
        );
    if libtmux.is_some() {
        table = table.peer(
            "libtmux, polling without a pause",
            [Figure::from(rate(by_libtmux))],
        );
    }
    table.report();
}

fn add(sum: (u64, f64), more: (u64, f64)) -> (u64, f64) {
    (sum.0 + more.0, sum.1 + more.1)
}

/// The number of round trips of all panes at once, and the seconds that they took.
fn many(panes: &Panes, time: Duration) -> (u64, f64) {
    let start = Instant::now();
    let trips = panes.runtime.block_on(async {
        let mut asking = Vec::new();
        for &pane in &panes.panes {
            let io = panes.server().pane_io();
            asking.push(tokio::spawn(async move {
                let mut trips = 0;
                while start.elapsed() < time {
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
    (trips, start.elapsed().as_secs_f64())
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
    // Each send includes a deliberate wait of 15 ms: a program that reads single bytes takes a carriage
    // return directly after a paste as part of the paste.
    for (name, length, goal) in [
        ("10 B", 10, None),
        ("10 KB", 10 << 10, None),
        ("1 MB", 1 << 20, Some(60.0)),
    ] {
        let mut number = 0;
        let mut next = || {
            number += 1;
            sample::message(number, length)
        };
        let mut comparison = bench.compare(&format!(
            "a message of {name} is sent, received and answered"
        ));
        comparison = comparison
            .ours_timed("send_message, get_response", || deliver(&next()))
            .differs("includes a deliberate wait of 15 ms after the paste");
        if let Some(ms) = goal {
            comparison = comparison.goal(Goal::median_at_most_ms(ms)).headline();
        }
        comparison.run();
    }
    // `deliver` panics at the first difference.
    let rounds = exact_messages(bench);
    for seed in 0..rounds {
        deliver(&hostile(1 << 20, seed));
    }
    let goal = Some(Goal::at_least(rounds as f64));
    bench.figure(
        &format!("messages of 1 MB, exact of {rounds}"),
        rounds as f64,
        "",
        goal,
    );
}

fn exact_messages(bench: &Bench) -> u64 {
    match (bench.is_smoke(), bench.is_full()) {
        (true, _) => 1,
        (_, true) => 1_000,
        _ => 100,
    }
}

/// Text with sequences that have a meaning for a shell, tmux or a terminal.
fn hostile(length: usize, seed: u64) -> String {
    let line = format!("{seed:08x} 日本語 🎌 \"$HOME\" `x` \\ ; #{{pane_id}} \t\n");
    let mut text = line.repeat(length / line.len() + 1);
    let mut end = length;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
