//! Whether a started agent is ready for messages.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::agent_config::AgentConfig;
use crate::answer::extract;
use crate::control::command_queue::Request;
use crate::control::tap::{OutputEnd, Tap, deadline};
use crate::pane::PaneId;
use crate::pane::ResponseOptions;
use crate::timing::PROMPT_QUIET;
use crate::tmux::Server;
use crate::{Error, PartialAnswer};

/// Output is only a signal to capture the screen. Bytes past this limit are dropped.
const MAX_STARTUP_OUTPUT: usize = 1 << 20;

/// Waits until the agent shows its prompt or, if there is a question, has answered it.
pub(super) async fn wait(
    server: &Server,
    pane: PaneId,
    agent: &AgentConfig,
    question: Option<&str>,
) -> Result<(), Error> {
    let start = Instant::now();
    let Some(question) = question else {
        return wait_for_prompt(server, pane, agent.timeout).await;
    };
    match wait_for_prompt(server, pane, agent.timeout / 2).await {
        // A program may have a prompt that we do not recognise: the answer decides.
        Ok(()) | Err(Error::NoPrompt { .. }) => {}
        Err(error) => return Err(error),
    }
    let io = server.pane_io();
    let sent = io.send_message(pane, question).await?;
    let left = agent.timeout.saturating_sub(start.elapsed());
    let options = ResponseOptions::default().timeout(left);
    io.get_response_with(sent, &agent.marker, &options).await?;
    Ok(())
}

/// Waits for the prompt. An agent that got a message counts as ready: a waiting sender can send before
/// the prompt is checked, and a working agent shows no prompt.
async fn wait_for_prompt(server: &Server, pane: PaneId, timeout: Duration) -> Result<(), Error> {
    let deadline = deadline(Instant::now(), timeout);
    let panes = server.control().panes();
    let tap = Arc::new(Tap::new(MAX_STARTUP_OUTPUT));
    tap.open();
    panes.add_tap(pane, &tap);
    loop {
        tap.quiet(PROMPT_QUIET, deadline).await;
        match tap.take().end {
            Some(OutputEnd::Exited(exit)) => {
                let shown = screen(server, pane).await.unwrap_or_default().0;
                return Err(Error::PaneDied {
                    pane,
                    exit,
                    partial: PartialAnswer::new(shown.trim_end().to_owned()),
                });
            }
            Some(OutputEnd::ServerGone) => {
                return Err(server.control().gone(PartialAnswer::default()));
            }
            None => {}
        }
        let (screen, row) = screen(server, pane).await?;
        if extract::waits_for_input(&screen, row) || panes.got_message(pane) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            // A sender of another process is not in our table, but it holds the lock.
            if panes.lock(pane).is_some_and(|lock| lock.is_held()) {
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
async fn screen(server: &Server, pane: PaneId) -> Result<(String, usize), Error> {
    let line =
        format!("display-message -p -t {pane} \"#{{cursor_y}}\" ; capture-pane -p -t {pane}");
    let request = Request::new("capture-pane", line).blocks(2);
    let bodies = server.control().run(request).await?;
    let [row, screen] = bodies.as_slice() else {
        return Err(Error::failed("capture-pane", "incomplete answer"));
    };
    let row = String::from_utf8_lossy(row).trim().parse().unwrap_or(0);
    Ok((String::from_utf8_lossy(screen).into_owned(), row))
}
