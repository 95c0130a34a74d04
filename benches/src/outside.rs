//! Peers that are separate programs: in another language, or too heavy for the normal build.
//!
//! The protocol is lines on standard input and output. The program prints `ready`, or `missing`
//! and the name of a package, and then answers each request line with one line. It is idle between
//! two requests, so it can take turns with the other contenders.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The command of a script in `benches/peers`.
pub fn python(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("peers")
            .join(script),
    );
    command
}

/// A peer in a separate process, started by [`Bench::outside`](crate::Bench::outside). Dropping it
/// closes its input and waits for its end.
pub struct Outside {
    name: String,
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Outside {
    /// Starts the program. The error is the reason why it is skipped.
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Self, String> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let program = command.get_program().to_string_lossy();
                return Err(format!("{program} is not on PATH"));
            }
            Err(error) => panic!("cannot start {command:?}: {error}"),
        };
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let name = name.to_owned();
        let mut peer = Self {
            name,
            child,
            answers,
        };
        match peer.answer().as_str() {
            "ready" => Ok(peer),
            why => match why.strip_prefix("missing ") {
                Some(package) => Err(format!("{package} is not installed")),
                None => panic!("{command:?} printed `{why}`, expected `ready` or `missing`"),
            },
        }
    }

    /// Sends a line and waits for the answer.
    pub fn ask(&mut self, request: &str) -> String {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        let sent = stdin.write_all(format!("{request}\n").as_bytes());
        if let Err(error) = sent.and_then(|()| stdin.flush()) {
            panic!("cannot send `{request}` to {}: {error}", self.name);
        }
        self.answer()
    }

    /// Sends a line whose answer is the duration of the work in nanoseconds.
    pub fn time(&mut self, request: &str) -> Duration {
        let answer = self.ask(request);
        let nanoseconds = answer.parse().unwrap_or_else(|_| {
            panic!("{} answered `{answer}`, expected nanoseconds", self.name);
        });
        Duration::from_nanos(nanoseconds)
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(1..) => line.trim_end().to_owned(),
            _ => panic!(
                "{} ended before it answered; its error output is above",
                self.name
            ),
        }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // `wait` closes the standard input, which ends the program.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Outside, String> {
        Outside::start("a shell", Command::new("/bin/sh").args(["-c", script]))
    }

    #[test]
    fn each_line_is_answered_by_a_line() {
        let mut peer = shell("echo ready; while read -r line; do echo 1$line; done").unwrap();
        assert_eq!(peer.ask("a"), "1a");
        assert_eq!(peer.time("500"), Duration::from_nanos(1_500));
    }

    #[test]
    fn a_missing_peer_gives_the_reason() {
        let missing = shell("echo missing langchain-core").err();
        assert_eq!(missing.as_deref(), Some("langchain-core is not installed"));
        let absent = Outside::start("absent", &mut Command::new("no-such-program"));
        let absent = absent.err();
        assert_eq!(absent.as_deref(), Some("no-such-program is not on PATH"));
    }
}
