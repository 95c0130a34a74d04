//! How a pane's terminal takes input.

use rustix::{
    fs::{Mode, OFlags, open},
    io::ioctl_fionread,
    termios::{InputModes, LocalModes, SpecialCodeIndex, Termios, tcgetattr},
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
    /// The characters on which the system acts, each a bit.
    acting: u128,
}

impl Terminal {
    pub(crate) fn of(tty: &str) -> Option<Self> {
        let modes = tcgetattr(look(tty)?).ok()?;
        Some(Self {
            canonical: modes.local_modes.contains(LocalModes::ICANON),
            echo: modes.local_modes.contains(LocalModes::ECHO),
            return_is_newline: modes.input_modes.contains(InputModes::ICRNL),
            acting: acting(&modes),
        })
    }

    /// Whether the system keeps this byte to itself and acts on it, as on an interrupt, also within
    /// a bracketed paste, of which it knows nothing.
    pub(crate) fn acts_on(self, byte: u8) -> bool {
        byte < 128 && self.acting & (1 << byte) != 0
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

fn acting(modes: &Termios) -> u128 {
    type Code = SpecialCodeIndex;
    let mut codes = Vec::new();
    if modes.local_modes.contains(LocalModes::ISIG) {
        codes.extend([Code::VINTR, Code::VQUIT, Code::VSUSP]);
    }
    if modes.input_modes.contains(InputModes::IXON) {
        codes.extend([Code::VSTART, Code::VSTOP]);
    }
    if modes.local_modes.contains(LocalModes::ICANON) {
        codes.extend([Code::VEOF, Code::VERASE, Code::VKILL]);
        if modes.local_modes.contains(LocalModes::IEXTEN) {
            codes.extend([Code::VWERASE, Code::VREPRINT, Code::VLNEXT]);
        }
    }
    let bytes = codes.into_iter().map(|code| modes.special_codes[code]);
    // One that is switched off is 0 or 255: no message has those.
    bytes
        .filter(|byte| (1..128).contains(byte))
        .fold(0, |set, byte| set | 1 << byte)
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
