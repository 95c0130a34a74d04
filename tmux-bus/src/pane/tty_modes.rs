//! The input modes of a pane's terminal.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::ioctl_fionread;
use rustix::termios::{InputModes, LocalModes, SpecialCodeIndex, Termios, tcgetattr};

/// The longest line that a terminal in canonical mode accepts, without its newline.
pub(crate) const MAX_LINE: usize = if cfg!(target_os = "linux") {
    4095
} else {
    1023
};

/// The modes of a terminal at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TtyModes {
    /// The terminal driver collects whole lines (ICANON).
    pub(crate) canonical: bool,
    /// The terminal driver echoes input (ECHO).
    pub(crate) echo: bool,
    /// A carriage return is read as a newline (ICRNL).
    return_is_newline: bool,
    /// Bit set of the special characters, such as the interrupt character.
    special: u128,
}

impl TtyModes {
    pub(crate) fn read(tty: &str) -> Option<Self> {
        let modes = tcgetattr(open_tty(tty)?).ok()?;
        Some(Self {
            canonical: modes.local_modes.contains(LocalModes::ICANON),
            echo: modes.local_modes.contains(LocalModes::ECHO),
            return_is_newline: modes.input_modes.contains(InputModes::ICRNL),
            special: special_characters(&modes),
        })
    }

    /// Whether the terminal driver acts on this byte instead of passing it on. It does so also
    /// inside a bracketed paste, which it does not know.
    pub(crate) fn is_special(self, byte: u8) -> bool {
        byte < 128 && self.special & (1 << byte) != 0
    }

    /// The byte that submits a line.
    pub(crate) fn submit_byte(self) -> u8 {
        if self.canonical && !self.return_is_newline {
            b'\n'
        } else {
            b'\r'
        }
    }
}

fn special_characters(modes: &Termios) -> u128 {
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
    // A disabled one is 0 or 255.
    bytes
        .filter(|byte| (1..128).contains(byte))
        .fold(0, |set, byte| set | 1 << byte)
}

/// Whether the program has unread input.
pub(crate) fn has_unread_input(tty: &str) -> bool {
    open_tty(tty).is_some_and(|fd| ioctl_fionread(fd).is_ok_and(|count| count > 0))
}

/// Opened for each read: a terminal that is held open does not hang up when its program ends.
fn open_tty(tty: &str) -> Option<OwnedFd> {
    open(
        tty,
        OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()
}
