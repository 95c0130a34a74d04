//! When an agent that was started can be talked to.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    answer,
    config::ProcessConfig,
    control::Request,
    error::{Error, PartialAnswer, Result},
    pane::PaneId,
    pane_io::ResponseOptions,
    server::Server,
    tap::{End, Tap, deadline},
};

/// A prompt is looked for once the pane has been quiet for this long: while a program still prints,
/// a line may look like one.
const QUIET: Duration = Duration::from_millis(100);

/// Waits until the agent shows its prompt or, if there is a question, has answered it. One that got a
/// message counts as ready.
pub(crate) async fn wait(
    server: &Server,
    pane: PaneId,
    agent: &ProcessConfig,
    question: Option<&str>,
) -> Result<()> {
    let start = Instant::now();
    let Some(question) = question else {
        return prompt(server, pane, agent.timeout).await;
    };
    match prompt(server, pane, agent.timeout / 2).await {
        // Some programs have no prompt that one could know. The answer decides.
        Ok(()) | Err(Error::NoPrompt { .. }) => {}
        Err(error) => return Err(error),
    }
    let io = server.pane_io();
    let sent = io.send_message(pane, question).await?;
    let left = agent.timeout.saturating_sub(start.elapsed());
    io.get_response_with(
        sent,
        &agent.marker,
        &ResponseOptions::default().timeout(left),
    )
    .await
    .map(drop)
}

async fn prompt(server: &Server, pane: PaneId, timeout: Duration) -> Result<()> {
    let deadline = deadline(Instant::now(), timeout);
    let tap = Arc::new(Tap::new(1 << 20));
    tap.open();
    server.control().panes().tap(pane, &tap);
    loop {
        tap.quiet(QUIET, deadline).await;
        let taken = tap.take();
        match taken.end {
            Some(End::Exited(exit)) => {
                let shown = screen(server, pane)
                    .await
                    .map(|(screen, _)| screen)
                    .unwrap_or_default();
                return Err(Error::PaneDied {
                    pane,
                    exit,
                    partial: PartialAnswer::new(shown.trim_end().to_owned()),
                });
            }
            Some(End::ServerGone) => return Err(server.control().gone(PartialAnswer::default())),
            None => {}
        }
        let (screen, row) = screen(server, pane).await?;
        // A sender that waited for the pane may have been faster, and the agent works already.
        let panes = server.control().panes();
        if answer::waits_for_input(&screen, row) || panes.was_asked(pane) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            // The same for a sender of another process.
            if panes.queue(pane).is_some_and(|queue| queue.is_busy()) {
                return Ok(());
            }
            return Err(Error::NoPrompt {
                pane,
                after: timeout,
            });
        }
        tap.changed(deadline).await;
    }
}

/// The screen and the row of the cursor.
async fn screen(server: &Server, pane: PaneId) -> Result<(String, usize)> {
    let line =
        format!("display-message -p -t {pane} \"#{{cursor_y}}\" ; capture-pane -p -t {pane}");
    let bodies = server
        .control()
        .run(Request::new("capture-pane", line).blocks(2))
        .await?;
    let [row, screen] = bodies.as_slice() else {
        return Err(Error::failed("capture-pane", "an incomplete answer"));
    };
    let row = String::from_utf8_lossy(row).trim().parse().unwrap_or(0);
    Ok((String::from_utf8_lossy(screen).into_owned(), row))
}
