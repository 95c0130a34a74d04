//! Helper processes: this test binary, started again to play a part.

use std::process::{Child, Command, ExitStatus, Stdio};

use crate::{
    fake_agent, faults, inbox, inbox_storm, late, log, mail_agent, pane_program, reconcile, sends,
    typing,
};

const PART: &str = "TMUX_BUS_TEST_PART";
const ARGUMENTS: [&str; 5] = [
    "--quiet",
    "--exact",
    "worker::play",
    "--nocapture",
    "--test-threads=1",
];

/// Not a test: with the variable set, this process plays the part that it names.
#[test]
fn play() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    match part.split(' ').collect::<Vec<_>>()[..] {
        ["typed"] => typing::play(),
        ["agent", name] => fake_agent::run(name),
        ["ask", folder, message] => late::ask_and_wait(folder, message),
        #[cfg(feature = "cli")]
        ["library", folder, from, to] => crate::conversation::ask_by_library(folder, from, to),
        ["pane", program] => pane_program::run(program),
        ["send", folder, pane, name, count] => sends::send_messages(folder, pane, name, count),
        ["mail"] => mail_agent::run(),
        ["deliver", folder] => inbox::deliver(folder),
        ["storm-send", folder, sender, count] => inbox_storm::send(folder, sender, count),
        ["storm-deliver", folder] => inbox_storm::deliver(folder),
        ["attach", folder] => reconcile::attach(folder),
        ["attach-again", folder] => faults::attach_again_and_again(folder),
        ["log", path, name] => log::write_entries(path, name),
        _ => panic!("no part `{part}`"),
    }
    std::process::exit(0);
}

/// Environment variable and command line that start a part in a pane.
pub(crate) fn in_a_pane(part: &str) -> (&'static str, String, String) {
    let exe = std::env::current_exe().unwrap();
    let command = format!("exec '{}' {}", exe.display(), ARGUMENTS.join(" "));
    (PART, part.to_owned(), command)
}

/// A command line for `sh` that plays a part.
#[cfg(feature = "cli")]
pub(crate) fn shell_command(part: &str) -> String {
    let (variable, part, command) = in_a_pane(part);
    format!("{variable}='{part}' sh -c \"{command}\"")
}

/// A helper process. It is killed on drop.
pub(crate) struct Worker(Child);

impl Worker {
    pub(crate) fn start(part: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(ARGUMENTS)
            .env(PART, part)
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
