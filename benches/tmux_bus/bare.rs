//! A minimal control client.

use super::*;

/// Sends a command line and reads until the answer has come. This is the minimal cost of a round trip
/// through control mode: no library and no checks.
pub(crate) struct Bare {
    pub(crate) client: Child,
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: BufReader<ChildStdout>,
    pub(crate) pane: PaneId,
}

impl Bare {
    pub(crate) fn attach(panes: &mut Panes) -> Self {
        panes.detach();
        let mut client = Command::new("tmux")
            .args(["-u", "-S"])
            .arg(&panes.socket)
            .args(["-C", "attach-session", "-f", "ignore-size"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = client.stdin.take().unwrap();
        let mut stdout = BufReader::with_capacity(1 << 16, client.stdout.take().unwrap());
        let mut line = Vec::new();
        while !line.starts_with(b"%session-changed") {
            line.clear();
            assert!(stdout.read_until(b'\n', &mut line).unwrap() > 0);
        }
        Self {
            client,
            stdin,
            stdout,
            pane: panes.panes[0],
        }
    }

    /// Sends a line of commands, and reads until all its blocks and the answer have come.
    pub(crate) fn trip(&mut self, line: &str, mut blocks: usize) {
        self.stdin.write_all(line.as_bytes()).unwrap();
        let output = format!("%output {} ", self.pane);
        let (mut line, mut text) = (Vec::new(), Vec::new());
        let ending = format!("{MARKER}\\015\\012");
        while blocks > 0 || !contains(&text, ending.as_bytes()) {
            line.clear();
            assert!(self.stdout.read_until(b'\n', &mut line).unwrap() > 0);
            assert!(!line.starts_with(b"%error"));
            if line.starts_with(b"%end ") {
                blocks -= 1;
            } else if let Some(part) = line.strip_prefix(output.as_bytes()) {
                text.extend_from_slice(part.trim_ascii_end());
            }
        }
    }

    /// The commands that `send_message` sends.
    pub(crate) fn like_ours(&mut self) {
        let pane = self.pane;
        let line = format!(
            "set-buffer -b bare -- \"now\\015\" ; \
             display-message -p -t {pane} \"#{{pane_width}} #{{pane_height}} #{{history_size}} #{{pane_dead}} #{{pane_input_off}} #{{pane_pid}}\" ; \
             capture-pane -p -J -t {pane} ; \
             if-shell -F -t {pane} \"#{{||:#{{||:#{{pane_dead}},#{{pane_input_off}}}},#{{!=:#{{pane_pid}},#{{pane_pid}}}}}}\" \
             {{ delete-buffer -b bare }} {{ paste-buffer -d -r -b bare -t {pane} }}\n"
        );
        self.trip(&line, 5);
    }

    pub(crate) fn paste_only(&mut self) {
        let pane = self.pane;
        let line =
            format!("set-buffer -b bare -- \"now\\015\" ; paste-buffer -d -r -b bare -t {pane}\n");
        self.trip(&line, 2);
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

pub(crate) fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
