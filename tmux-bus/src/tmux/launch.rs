use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::control::quoting::{quote, quote_literal};
use crate::pane::PaneId;
use crate::timing::WRAPPER_LINGER;
use crate::{Error, Exit};

/// Number of the operating system command that reports an exit. tmux ignores it, but passes it on
/// in the output of the pane, behind everything that the program printed.
const EXIT_REPORT: &str = "7770";

/// The environment variable with the id of the launch.
pub(crate) const LAUNCH_VARIABLE: &str = "TMUX_BUS_LAUNCH";

/// The environment variables by which the command `tmux-bus` in a pane finds its cluster: the name of the agent, the
/// folder of the session, the command itself, and the file with the personality of the agent.
pub(crate) const AGENT_VARIABLE: &str = "TMUX_BUS_AGENT";
pub(crate) const FOLDER_VARIABLE: &str = "TMUX_BUS_FOLDER";
pub(crate) const COMMAND_VARIABLE: &str = "TMUX_BUS_COMMAND";
pub(crate) const PERSONALITY_VARIABLE: &str = "TMUX_BUS_PERSONALITY";

/// A program to start in a pane.
///
/// ```
/// use tmux_bus::Launch;
///
/// let launch = Launch::new("claude --model opus")
///     .work_dir("/home/me/project")
///     .env("API_KEY", "secret");
/// assert!(!format!("{launch:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct Launch {
    command: String,
    work_dir: Option<PathBuf>,
    env: Vec<(String, String)>,
    id: Option<String>,
    also_on_path: Option<PathBuf>,
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
    /// A command line for `sh`.
    #[must_use]
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            work_dir: None,
            env: Vec::new(),
            id: None,
            also_on_path: None,
        }
    }

    /// Sets the working folder; the default is that of the server.
    #[must_use]
    pub fn work_dir(mut self, work_dir: impl Into<PathBuf>) -> Self {
        self.work_dir = Some(work_dir.into());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Adds a folder to the end of `PATH`: programs of the user with the same names come first.
    pub(crate) fn also_on_path(mut self, folder: &Path) -> Self {
        self.also_on_path = Some(folder.to_owned());
        self
    }

    /// The id of this launch: the one that was set, or a new one.
    pub(crate) fn new_id(&self) -> String {
        let new = || uuid::Uuid::new_v4().simple().to_string();
        self.id.clone().unwrap_or_else(new)
    }

    /// The value of a variable that was added.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let mut env = self.env.iter().rev();
        let found = env.find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    #[cfg(test)]
    pub(crate) fn variables(&self) -> &[(String, String)] {
        &self.env
    }

    /// Adds an argument, quoted for `sh`, to the last program of the command line.
    pub(crate) fn arg(mut self, quoted: &str) -> Self {
        self.command.push(' ');
        self.command.push_str(quoted);
        self
    }

    /// Sets the id of the launch; the default is a new one.
    pub(crate) fn id(mut self, id: String) -> Self {
        self.id = Some(id);
        self
    }

    /// The tmux command that starts it in a pane, in place of the program that may run there.
    pub(crate) fn respawn(&self, pane: PaneId, id: &str) -> Result<String, Error> {
        self.check()?;
        let mut line = format!("respawn-pane -k -t {pane}");
        if let Some(dir) = self.absolute_work_dir()? {
            let dir = quote_literal(dir.as_os_str().as_encoded_bytes());
            line.push_str(&format!(" -c {dir}"));
        }
        for (name, value) in &self.env {
            line.push_str(&format!(" -e {}", quote(format!("{name}={value}"))));
        }
        let path = self.also_on_path.as_ref().map(|folder| {
            let folder = shell_quote(&folder.to_string_lossy());
            format!("PATH=\"${{PATH:+$PATH:}}\"{folder}; export PATH; ")
        });
        let command = format!("{}{}", path.unwrap_or_default(), self.command);
        let wrapper = quote(wrapper(&command, id));
        line.push_str(&format!(" /bin/sh -c {wrapper}"));
        Ok(line)
    }

    /// Refuses text that tmux would cut or misread.
    fn check(&self) -> Result<(), Error> {
        let refuse = |what, value: &str, reason| {
            Err(Error::Invalid {
                what,
                value: value.to_owned(),
                reason,
            })
        };
        if let Some((before, _)) = self.command.split_once('\0') {
            let program = before.split(' ').next().unwrap_or_default();
            return refuse("command", program, "it has a NUL byte");
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return refuse(
                    "variable",
                    name,
                    "its name must not be empty or have `=` or NUL",
                );
            }
            if value.contains('\0') {
                return refuse("variable", name, "its value has a NUL byte");
            }
        }
        Ok(())
    }

    /// The working folder. In place of a missing one tmux would silently use the home folder.
    pub(crate) fn absolute_work_dir(&self) -> Result<Option<PathBuf>, Error> {
        let Some(dir) = &self.work_dir else {
            return Ok(None);
        };
        std::path::absolute(dir)
            .and_then(|dir| match std::fs::metadata(&dir)?.is_dir() {
                true => Ok(Some(dir)),
                false => Err(io::ErrorKind::NotADirectory.into()),
            })
            .map_err(Error::io("start a program in", dir))
    }
}

/// The command line for a pane: runs `command`, reports its exit, and lingers.
///
/// `launch` is a new id for each start, so that another program cannot print this report by accident. It is
/// also in the environment, where it marks all processes of the pane.
fn wrapper(command: &str, launch: &str) -> String {
    // Shells announce a killed program on their stderr, so the wrapper's own goes to /dev/null. The
    // program gets its stderr back inside its own shell: dash announces on the stderr that it
    // redirected last.
    let command = shell_quote(&format!("exec 2>&3 3>&-\n{command}"));
    // The trap: an interrupt for the program must not end the wrapper. A trap, unlike an ignored
    // signal, is reset to the default in the program.
    let linger = WRAPPER_LINGER.as_secs_f64();
    format!(
        "{LAUNCH_VARIABLE}={launch}; export {LAUNCH_VARIABLE}; trap : INT QUIT TSTP; \
         exec 3>&2 2>/dev/null; /bin/sh -c {command}; status=$?; \
         printf '\\033]{EXIT_REPORT};exit;%s;%s\\007' {launch} \"$status\"; \
         sleep {linger}; exit \"$status\""
    )
}

/// The exit in a report of the wrapper with this launch id.
pub(crate) fn exit_report(osc: &[u8], launch: &str) -> Option<Exit> {
    let text = std::str::from_utf8(osc).ok()?;
    let (id, status) = text
        .strip_prefix(EXIT_REPORT)?
        .strip_prefix(";exit;")?
        .split_once(';')?;
    if launch.is_empty() || id != launch {
        return None;
    }
    Some(exit_of_shell(status.parse().ok()?))
}

/// The exit of a program by the exit status of its shell, which adds 128 to a signal.
pub(crate) fn exit_of_shell(status: i32) -> Exit {
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

/// A path as a word for sh in a text for people and agents: quoted only if it must be.
pub(crate) fn shell_word(path: &Path) -> String {
    let word = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    match word.chars().all(is_plain) {
        true => word.into_owned(),
        false => shell_quote(&word),
    }
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
        assert_eq!(shell_word(Path::new("/opt/a-b_1.2")), "/opt/a-b_1.2");
        assert_eq!(shell_word(Path::new("/my tools")), "'/my tools'");
    }
}
