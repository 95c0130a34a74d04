//! How a program is started in a pane.

use std::{fmt, path::PathBuf};

use crate::{
    error::{Error, Exit, Result},
    octal::{quote, quote_literal},
    pane::PaneId,
};

/// How long the wrapper stays after its program: control mode drops what a pane printed last when
/// the pane's process ends at once.
const LINGER: &str = "0.3";

/// The number of the operating system command that reports an exit. tmux passes it over, but hands
/// it on in the pane's output, after all that the program printed.
const REPORT: &str = "7770";

/// A program to start in a pane.
#[derive(Clone)]
pub struct Launch {
    command: String,
    work_dir: Option<PathBuf>,
    env: Vec<(String, String)>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.iter().map(|(name, _)| name).collect();
        f.debug_struct("Launch")
            .field("work_dir", &self.work_dir)
            .field("env", &names)
            .finish_non_exhaustive()
    }
}

impl Launch {
    /// A shell command line, run by `sh`.
    #[must_use]
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            work_dir: None,
            env: Vec::new(),
        }
    }

    /// The folder in which it runs. The default is the server's.
    #[must_use]
    pub fn work_dir(mut self, work_dir: impl Into<PathBuf>) -> Self {
        self.work_dir = Some(work_dir.into());
        self
    }

    /// Adds a variable to its environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The command of tmux that starts it in a pane, in place of what may run there.
    pub(crate) fn respawn(&self, pane: PaneId, id: &str) -> Result<String> {
        self.check()?;
        let mut line = format!("respawn-pane -k -t {pane}");
        if let Some(dir) = self.absolute_work_dir()? {
            let dir = quote_literal(dir.as_os_str().as_encoded_bytes());
            line.push_str(&format!(" -c {dir}"));
        }
        for (name, value) in &self.env {
            line.push_str(&format!(" -e {}", quote(format!("{name}={value}"))));
        }
        let wrapper = quote(wrapper(&self.command, id));
        line.push_str(&format!(" /bin/sh -c {wrapper}"));
        Ok(line)
    }

    /// Refuses what tmux would cut short or take for something else.
    fn check(&self) -> Result<()> {
        let refuse = |what, name: &str, reason| {
            Err(Error::InvalidName {
                what,
                name: name.to_owned(),
                reason,
            })
        };
        if let Some((before, _)) = self.command.split_once('\0') {
            let program = before.split(' ').next().unwrap_or_default();
            return refuse("command", program, "it has a NUL byte");
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return refuse("variable", name, "it must have a name without `=` and NUL");
            }
            if value.contains('\0') {
                return refuse("variable", name, "its value has a NUL byte");
            }
        }
        Ok(())
    }

    /// The folder in which it runs. tmux would take the home folder in place of one that is missing.
    fn absolute_work_dir(&self) -> Result<Option<PathBuf>> {
        let Some(dir) = &self.work_dir else {
            return Ok(None);
        };
        std::path::absolute(dir)
            .and_then(|dir| match std::fs::metadata(&dir)?.is_dir() {
                true => Ok(Some(dir)),
                false => Err(std::io::ErrorKind::NotADirectory.into()),
            })
            .map_err(|source| Error::file("start a program in", dir, source))
    }
}

/// The shell command line for a pane: runs `command`, reports how it ended, and stays a moment.
///
/// `launch` is made for one start, so that no program prints another's report by chance. It is in
/// the environment too, which tells the pane's processes from others when they are to be ended.
fn wrapper(command: &str, launch: &str) -> String {
    // The program gets its stderr back within its own shell: dash announces a killed program on the
    // stderr that it last redirected.
    let command = shell_quote(&format!("exec 2>&3 3>&-\n{command}"));
    // The wrapper outlives an interrupt that is meant for the program, whose own handling of
    // signals starts at the default again.
    // Its own stderr goes nowhere: shells announce there that a program was killed.
    format!(
        "TMUX_BUS_LAUNCH={launch}; export TMUX_BUS_LAUNCH; trap : INT QUIT TSTP; \
         exec 3>&2 2>/dev/null; /bin/sh -c {command}; status=$?; \
         printf '\\033]{REPORT};exit;%s;%s\\007' {launch} \"$status\"; \
         sleep {LINGER}; exit \"$status\""
    )
}

/// Reads a report of the wrapper.
pub(crate) fn exit_report(osc: &[u8], launch: &str) -> Option<Exit> {
    let text = std::str::from_utf8(osc).ok()?;
    let (id, status) = text
        .strip_prefix(REPORT)?
        .strip_prefix(";exit;")?
        .split_once(';')?;
    if launch.is_empty() || id != launch {
        return None;
    }
    Some(exit(status.parse().ok()?))
}

/// How a program ended whose shell gave this status.
pub(crate) fn exit(status: i32) -> Exit {
    // The shell's own convention.
    if status > 128 {
        Exit::Signal(status - 128)
    } else {
        Exit::Status(status)
    }
}

/// Quotes a word for sh.
pub(crate) fn shell_quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_report_of_this_launch_counts() {
        assert_eq!(
            exit_report(b"7770;exit;abc;0", "abc"),
            Some(Exit::Status(0))
        );
        assert_eq!(
            exit_report(b"7770;exit;abc;137", "abc"),
            Some(Exit::Signal(9))
        );
        assert_eq!(exit_report(b"7770;exit;abc;0", "abd"), None);
        assert_eq!(exit_report(b"7770;exit;;0", ""), None);
        assert_eq!(exit_report(b"0;title", "abc"), None);
    }

    #[test]
    fn quoted_words_survive_the_shell() {
        assert_eq!(shell_quote("it's"), r"'it'\''s'");
    }
}
