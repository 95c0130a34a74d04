//! How a pane's terminal takes input.

use rustix::{
    fs::{Mode, OFlags, open},
    io::ioctl_fionread,
    termios::{InputModes, LocalModes, tcgetattr},
};

/// The longest line that a terminal in canonical mode hands on, without its newline.
pub(crate) const MAX_LINE: usize = if cfg!(target_os = "linux") {
    4095
} else {
    1023
};

/// The modes of a terminal at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    /// The system gathers whole lines and edits them.
    pub(crate) canonical: bool,
    /// The system echoes what is typed.
    pub(crate) echo: bool,
    /// A carriage return is read as a newline.
    return_is_newline: bool,
}

impl Terminal {
    pub(crate) fn of(tty: &str) -> Option<Self> {
        let modes = tcgetattr(look(tty)?).ok()?;
        Some(Self {
            canonical: modes.local_modes.contains(LocalModes::ICANON),
            echo: modes.local_modes.contains(LocalModes::ECHO),
            return_is_newline: modes.input_modes.contains(InputModes::ICRNL),
        })
    }

    /// What submits a line.
    pub(crate) fn submit(self) -> u8 {
        if self.canonical && !self.return_is_newline {
            b'\n'
        } else {
            b'\r'
        }
    }
}

/// Whether the program has input that it has not read yet.
pub(crate) fn has_unread_input(tty: &str) -> bool {
    look(tty).is_some_and(|fd| ioctl_fionread(fd).is_ok_and(|count| count > 0))
}

/// Opened for one look only: a terminal that someone holds open never hangs up.
fn look(tty: &str) -> Option<rustix::fd::OwnedFd> {
    open(
        tty,
        OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()
}
