//! The programs in the panes.

use super::*;

/// The monotonic clock in nanoseconds, which is the same in all processes.
pub(crate) fn clock() -> i128 {
    let now = clock_gettime(ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

pub(crate) fn since(nanoseconds: i128) -> Duration {
    Duration::from_nanos(u64::try_from(clock() - nanoseconds).unwrap_or(0))
}

/// Reads lines in canonical mode. `wait MICROSECONDS NUMBER` delays the answer, `die` ends the
/// program. Each answer contains the time at which it was printed.
pub(crate) fn replier() {
    let mut out = stdout();
    for line in stdin().lock().lines() {
        let line = line.unwrap();
        if line == "die" {
            out.write_all(format!("at {}\n", clock()).as_bytes())
                .unwrap();
            return;
        }
        let mut words = line.split(' ');
        if words.next() == Some("wait") {
            let micros = words.next().unwrap().parse().unwrap();
            std::thread::sleep(Duration::from_micros(micros));
        }
        let number = words.next().unwrap_or("0");
        out.write_all(format!("at {} {number} {MARKER}\n", clock()).as_bytes())
            .unwrap();
    }
}

/// Reads bracketed pastes in raw mode. The answer is the length and a checksum of the paste.
pub(crate) fn receiver() {
    let mut modes = tcgetattr(stdin()).unwrap();
    modes.make_raw();
    tcsetattr(stdin(), OptionalActions::Now, &modes).unwrap();
    let mut out = stdout();
    out.write_all(b"\x1b[?2004hready> ").unwrap();
    out.flush().unwrap();
    let mut message = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = stdin().read(&mut buffer).unwrap();
        if count == 0 {
            return;
        }
        let chunk = &buffer[..count];
        message.extend_from_slice(chunk);
        let text = if message.ends_with(b"\x1b[201~") {
            format!("[pasted {} bytes]", message.len() - 12)
        } else if message.ends_with(b"\x1b[201~\r") {
            let pasted = &message[6..message.len() - 7];
            let text = format!(
                "\r\n{} {:x} {MARKER}\r\nready> ",
                pasted.len(),
                checksum(pasted)
            );
            message.clear();
            text
        } else {
            continue;
        };
        out.write_all(text.as_bytes()).unwrap();
        out.flush().unwrap();
    }
}

pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
