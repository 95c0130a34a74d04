//! Prints the output of an execution with the specified prefix.

use std::io::{self, Write};

use crate::{EventKind, Execution, Output, OutputStream};

/// Prints the output of an execution as it arrives, each line as `[execution:{sessionId}] {output}`:
/// standard output to `out`, standard error to `err`. Returns when the execution has ended.
///
/// Each line is one `write_all`, so that lines of several executions do not mix. The session id is
/// the one known at the time of the line. With `std::io::stdout()` and `std::io::stderr()` this is
/// the log output of the specification.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("echo hello").await;
/// let mut printed = Vec::new();
/// exec_core::print_prefixed(&execution, &mut printed, std::io::stderr()).await?;
/// let expected = format!("[execution:{}] hello\n", execution.session_id());
/// assert_eq!(String::from_utf8(printed)?, expected);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The first error of a writer. It ends the printing, not the execution.
///
/// # Cancel safety
///
/// Cancel safe: dropping the future ends the printing. No line is printed in part.
pub async fn print_prefixed(
    execution: &Execution,
    mut out: impl Write,
    mut err: impl Write,
) -> io::Result<()> {
    let mut events = execution.events();
    let mut session_id = execution.session_id();
    let mut text = Vec::new();
    while let Some(event) = events.next().await {
        text.clear();
        write!(text, "[execution:{session_id}] ")?;
        match &event.kind {
            EventKind::SessionResolved { session_id: new } => session_id = new.clone(),
            EventKind::Output(Output { stream, line, .. }) => {
                text.extend_from_slice(line.as_bytes());
                if line.is_truncated() {
                    write!(text, " … ({} bytes more)", line.missing_bytes())?;
                }
                text.push(b'\n');
                match stream {
                    OutputStream::Stdout => out.write_all(&text)?,
                    OutputStream::Stderr => err.write_all(&text)?,
                }
            }
            EventKind::Gap { missed } => {
                writeln!(text, "({missed} events were dropped)")?;
                err.write_all(&text)?;
            }
            _ => {}
        }
    }
    out.flush()?;
    err.flush()
}
