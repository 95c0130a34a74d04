use std::io::{self, Write};

use crate::{EventKind, Execution, Output, OutputStream};

/// Prints the output of an execution as it comes, each line as `[execution:{session id}] {line}`:
/// standard output to `out`, standard error to `err`. Returns when the execution has ended.
///
/// Each line is one `write_all`, so lines of several executions do not mix. The id is the one known
/// at the time of the line. Give it `std::io::stdout()` and `std::io::stderr()` for what the
/// specification describes.
///
/// # Errors
/// The first error of a writer ends the printing, not the execution.
///
/// # Cancel safety
/// Dropped, it prints no more. No line is printed in part.
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
