//! libtmux, where it is installed.

use super::*;

/// Whether the peer's library is there: `scripts/bench --peers` installs it.
pub(crate) fn python_has_libtmux() -> bool {
    let installed = Command::new("python3")
        .args(["-c", "import libtmux"])
        .stderr(Stdio::null())
        .status();
    installed.is_ok_and(|status| status.success())
}

/// Runs the peer script and gives what it prints.
pub(crate) fn peer(panes: &Panes, args: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/libtmux_peer.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(&panes.socket)
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

pub(crate) fn libtmux(bench: &mut Bench, panes: &Panes) {
    if !python_has_libtmux() {
        println!(
            "tmux-bus: libtmux is not installed (`pip install libtmux`): its figures are left out"
        );
        return;
    }
    // By send-keys, which is not byte-exact, and a process for each look.
    let rounds = if bench.is_smoke() { "1" } else { "10" };
    let pane = panes.panes[0].to_string();
    for line in peer(panes, &["ask", &pane, rounds]).lines() {
        let (name, value) = line.split_once('\t').unwrap();
        let (value, unit) = value.split_once('\t').unwrap();
        bench.figure(
            &format!("libtmux (send-keys, a process a look), {name}"),
            value.parse().unwrap(),
            unit,
            None,
        );
    }
}
