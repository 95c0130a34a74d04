//! The wait between a paste and its submit.

use tokio::time::Instant;

use super::tty_modes;
use crate::answer::echo_finder::EchoFinder;
use crate::answer::marker;
use crate::answer::tokenizer::{TerminalOp, Tokenizer};
use crate::control::tap::Tap;
use crate::timing::{ECHO_WAIT, SPINNER_LIMIT, SUBMIT_QUIET, TAKE_IN_LIMIT, TAKE_IN_PER_BYTE};

/// Number of visible characters of the message after which an echo is expected to continue.
const ECHO_BEGUN: usize = 4;

/// Waits until the program has taken a paste in: it shows the text and is quiet.
///
/// Why: a return that arrives with the text is taken for a part of it by programs that read bytes;
/// an echo that continues after the submit looks like an answer.
///
/// | shown so far | the wait ends |
/// |---|---|
/// | the end of the message | after `SUBMIT_QUIET`, or `SPINNER_LIMIT` after the echo |
/// | the beginning of the message | after `SPINNER_LIMIT` of quiet: the rest is on its way |
/// | other text, such as `[pasted 20 lines]` | after `SUBMIT_QUIET` of quiet |
/// | nothing | after `ECHO_WAIT` and a time for the length: tmux itself may still be writing |
///
/// In each case the program must also have read its input. The whole wait is bounded by
/// `TAKE_IN_LIMIT` and the length of the message.
pub(crate) async fn wait_for_echo(tap: &Tap, tty: &str, message: &str) {
    let start = Instant::now();
    // A message has at most 1 MiB.
    let bytes = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let limit = start + TAKE_IN_LIMIT + TAKE_IN_PER_BYTE * bytes;
    let folded = marker::fold(message);
    let mut echo = EchoFinder::new(message);
    let mut tokenizer = Tokenizer::default();
    let (mut has_output, mut echoed_at) = (false, None);
    // Length of the prefix of the message at the end of the output.
    let mut begun = 0;
    loop {
        let output = tap.take();
        has_output |= !output.bytes.is_empty();
        let mut is_echoed = false;
        tokenizer.feed(&output.bytes, |op| {
            if let TerminalOp::Print(c) = op
                && marker::gap_of(c).is_none()
            {
                is_echoed |= echo.print(c);
                let is_next = |at: usize| folded.get(at).is_some_and(|next| next.c == c);
                begun = match is_next(begun) {
                    true => begun + 1,
                    false => usize::from(is_next(0)),
                };
            }
        });
        let now = Instant::now();
        if is_echoed && echoed_at.is_none() {
            echoed_at = Some(now);
        }
        if output.end.is_some() || now >= limit {
            return;
        }
        let ready = match (has_output, echoed_at) {
            (_, Some(at)) => (output.last + SUBMIT_QUIET).min(at + SPINNER_LIMIT),
            (true, None) if begun >= ECHO_BEGUN => output.last + SPINNER_LIMIT,
            (true, None) => output.last + SUBMIT_QUIET,
            (false, None) => start + ECHO_WAIT + TAKE_IN_PER_BYTE * bytes,
        };
        let next = if now < ready {
            ready
        } else if tty_modes::has_unread_input(tty) {
            now + SUBMIT_QUIET
        } else {
            return;
        };
        tap.changed(next.min(limit)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    /// Shows the pieces, one every 100 ms, and returns how many were waited for.
    async fn pieces_waited_for(message: &str, shown: &[&str]) -> usize {
        let tap = Arc::new(Tap::new(1024));
        tap.open();
        let feeding = async {
            for piece in shown {
                tap.push(piece.as_bytes(), Instant::now());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            std::future::pending::<()>().await;
        };
        let start = Instant::now();
        tokio::select! {
            () = wait_for_echo(&tap, "/nowhere", message) => {}
            () = feeding => {}
        }
        let pieces = start.elapsed().as_millis() / 100 + 1;
        usize::try_from(pieces).unwrap().min(shown.len())
    }

    #[tokio::test(start_paused = true)]
    async fn an_echo_that_comes_in_pieces_is_waited_for() {
        let message = "take this task apart, please";
        let pieces = ["take this", " task apart,", " please"];
        assert_eq!(pieces_waited_for(message, &pieces).await, 3);
        let other = ["[pasted 1 line]", "something later"];
        assert_eq!(pieces_waited_for(message, &other).await, 1);
    }
}
