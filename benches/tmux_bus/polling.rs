//! The polling of the specification: a process for each command, and a capture at each interval.

use super::*;

/// Runs a tmux command in a process of its own.
pub(crate) fn tmux(socket: &Path, args: &[&str]) -> String {
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

pub(crate) fn capture(socket: &Path, pane: PaneId) -> String {
    tmux(socket, &["capture-pane", "-p", "-t", &pane.to_string()])
}

/// Sends a message and captures the screen at each `interval` until it shows the numbered answer.
pub(crate) fn poll(
    socket: &Path,
    pane: PaneId,
    message: &str,
    number: u64,
    interval: Duration,
) -> String {
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

/// Sends a message to one pane and captures all panes at each `interval` until the answer is seen.
/// Returns the delay in nanoseconds.
pub(crate) fn poll_all(panes: &Panes, number: u64, interval: Duration) -> f64 {
    let (socket, asked) = (&panes.socket, panes.panes[panes.panes.len() - 1]);
    let wait = micros(number, 400_000);
    let message = format!("wait {wait} {number}");
    tmux(
        socket,
        &["send-keys", "-t", &asked.to_string(), &message, "Enter"],
    );
    let wanted = format!(" {number} {MARKER}");
    loop {
        let round = Instant::now();
        for &pane in &panes.panes {
            let screen = capture(socket, pane);
            if let Some(line) = screen.lines().find(|line| line.ends_with(&wanted)) {
                return since(printed_at(line)).as_nanos() as f64;
            }
        }
        std::thread::sleep(interval.saturating_sub(round.elapsed()));
    }
}
