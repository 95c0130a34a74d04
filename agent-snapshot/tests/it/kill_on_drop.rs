//! Processes that tests start: a server, or this test binary again with one of its ignored tests.

use std::io;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};

/// A process that is killed when the test ends, also by a panic.
pub(crate) struct KillOnDrop(Child);

impl KillOnDrop {
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Sends SIGKILL and reaps the process.
    pub(crate) fn kill_and_wait(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Deref for KillOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that runs one `#[ignore]`d test of this binary: the program of a helper process.
#[cfg(any(feature = "file", feature = "postgres", feature = "sqlite"))]
pub(crate) fn test_program(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--ignored", "--nocapture"]);
    command
}
