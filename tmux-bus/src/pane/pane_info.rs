//! A pane as tmux lists it.

use super::pane_id::PaneId;
use crate::Exit;
use crate::tmux::launch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PaneInfo {
    pub(crate) id: PaneId,
    pub(crate) dead: bool,
    pub(crate) exit: Exit,
    /// 0 for a pane without a process, and for a dead pane since tmux 3.8.
    pub(crate) pid: u32,
    pub(crate) tty: String,
    /// Id of the launch, empty for a pane without a program.
    pub(crate) launch: String,
    /// Name of the agent, empty outside a cluster.
    pub(crate) agent: String,
    pub(crate) bracketing: Option<bool>,
}

impl PaneInfo {
    /// The format string for `list-panes`.
    pub(crate) const FORMAT: &str = "#{pane_id}\t#{pane_dead}\t#{pane_dead_status}\t#{pane_dead_signal}\t#{pane_pid}\t#{pane_tty}\t#{@tmux_bus_launch}\t#{@tmux_bus_agent}\t#{@tmux_bus_bracketing}\t#{bracket_paste_flag}";

    pub(crate) fn parse_list(list: &str) -> Vec<Self> {
        list.lines().filter_map(Self::parse_line).collect()
    }

    fn parse_line(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let mut next = || fields.next();
        let id = PaneId::parse(next()?.as_bytes())?;
        let dead = next()? == "1";
        let (status, signal) = (next()?.parse().ok(), next()?.parse().ok());
        let pid = next()?.parse().unwrap_or(0);
        let (tty, launch, agent) = (next()?.to_owned(), next()?.to_owned(), next()?.to_owned());
        let exit = match (status, signal) {
            (_, Some(signal)) if signal != 0 => Exit::Signal(signal),
            (Some(status), _) if !launch.is_empty() => launch::exit_of_shell(status),
            (Some(status), _) => Exit::Status(status),
            _ => Exit::Unknown,
        };
        let stored = flag(next()?);
        // tmux 3.3 does not know `bracket_paste_flag`; newer versions do.
        let bracketing = next().and_then(flag).or(stored);
        Some(Self {
            id,
            dead,
            exit,
            pid,
            tty,
            launch,
            agent,
            bracketing,
        })
    }

    /// Whether the program has ended and tmux does not know its exit status yet: tmux hears of the
    /// end of the terminal and of the process separately.
    ///
    /// Only on Linux, where an `ExitWatch` asks again.
    pub(crate) fn is_ending(&self) -> bool {
        let had_process = self.pid != 0 || !self.launch.is_empty();
        cfg!(target_os = "linux") && self.dead && had_process && self.exit == Exit::Unknown
    }
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}
