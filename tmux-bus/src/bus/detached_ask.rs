//! The process that carries out an ask.

use std::path::Path;
use std::time::Duration;

use super::ask_folder::AskFolder;
use super::background;
use super::bus::attach;
use crate::Error;
use crate::cluster::SendToOptions;
use crate::cluster::cluster_record::ClusterRecord;

/// Starts the process for an ask, and returns when it has taken the ask.
pub(super) async fn start(command: &Path, session: &Path, ask: &AskFolder) -> Result<(), Error> {
    background::start(command, "carry-out", session, Some(ask.id())).await
}

/// Carries out an ask in this process. `is_ready` is called when it is certain that this process
/// does so.
pub(super) async fn carry_out(
    session: &Path,
    id: &str,
    is_ready: impl FnOnce(),
) -> Result<(), Error> {
    background::leave_launch();
    let (ask, request) = AskFolder::open(session, id)?;
    let Some(lock) = ask.take()? else {
        return Ok(());
    };
    is_ready();
    let started = async {
        let record = ClusterRecord::load(session)?;
        let record = record.ok_or_else(|| Error::NotRunning {
            session: session.display().to_string(),
            socket: session.join("tmux"),
        })?;
        let cluster = attach(&record).await?;
        let sender = match request.is_agent {
            true => cluster.agent(&request.from)?,
            false => cluster.outsider(&request.from),
        };
        let limit = Duration::from_millis(request.limit_ms);
        let options = SendToOptions::default().timeout(limit).framed();
        let started = sender.start_unguarded(&request.to, &request.text, &options);
        started.await
    };
    let mut started = match started.await {
        Ok(started) => started,
        Err(error) => return ask.store_result(Err(error)),
    };
    ask.store_result(started.answer().await)?;
    drop(lock);
    // A late answer is logged by this process.
    started.end().await;
    Ok(())
}
