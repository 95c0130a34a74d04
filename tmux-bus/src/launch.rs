//! How a program is started in a pane.

use crate::error::Exit;

/// How long the wrapper stays after its program: control mode drops what a pane printed last when
/// the pane's process ends at once.
const LINGER: &str = "0.3";

/// The number of the operating system command that reports an exit. tmux passes it over, but hands
/// it on in the pane's output, after all that the program printed.
const REPORT: &str = "7770";

/// The shell command line for a pane: runs `command`, reports how it ended, and stays a moment.
///
/// `launch` is made for one start, so that no program prints another's report by chance. It is in
/// the environment too, which tells the pane's processes from others when they are to be ended.
pub(crate) fn wrapper(command: &str, launch: &str) -> String {
    // The program gets its stderr back within its own shell: dash announces a killed program on the
    // stderr that it last redirected.
    let command = shell_quote(&format!("exec 2>&3 3>&-\n{command}"));
    // The wrapper outlives an interrupt that is meant for the program, whose own handling of
    // signals starts at the default again.
    // Its own stderr goes nowhere: shells announce there that a program was killed.
    format!(
        "TMUX_BUS_LAUNCH={launch}; export TMUX_BUS_LAUNCH; trap : INT QUIT TSTP; \
         exec 3>&2 2>/dev/null; sh -c {command}; status=$?; \
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
    let status: i32 = status.parse().ok()?;
    // The shell's own convention.
    Some(if status > 128 {
        Exit::Signal(status - 128)
    } else {
        Exit::Status(status)
    })
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
