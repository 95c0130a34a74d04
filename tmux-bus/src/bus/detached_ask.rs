//! The process that carries out an ask.
//!
//! It is started twice: the first process starts the second and ends, so that the second is no descendant of the caller.
//! Agents end a tool that runs too long with all its descendants. The second one has its own session (`setsid`).

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::ask_folder::AskFolder;
use super::bus::attach;
use crate::cluster::SendToOptions;
use crate::cluster::cluster_record::ClusterRecord;
use crate::timing::WORKER_LIMIT;
use crate::tmux::launch::LAUNCH_VARIABLE;
use crate::{Error, error};

/// What the process prints when it has taken the ask.
pub(super) const READY: &str = "ready";

/// Starts the process for an ask, and returns when it has taken the ask.
pub(super) async fn start(command: &Path, session: &Path, ask: &AskFolder) -> Result<(), Error> {
    let failed = |source| error::Error::io("start", command)(source);
    let child = Command::new(command)
        .arg("carry-out")
        .arg("--folder")
        .arg(session)
        .arg(ask.id())
        .current_dir("/")
        // A restart of the agent ends the processes that have its tag.
        .env_remove(LAUNCH_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let read = tokio::time::timeout(WORKER_LIMIT, stdout.read_line(&mut line));
        let read = read
            .await
            .map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?;
        read.map_err(failed)?;
    }
    child.wait().await.map_err(failed)?;
    if line.trim_end() == READY {
        return Ok(());
    }
    let reason = "it did not take the ask; is it the command `tmux-bus`?";
    Err(failed(std::io::Error::other(reason)))
}

/// Carries out an ask in this process. `is_ready` is called when it is certain that this process does so.
pub(super) async fn carry_out(
    session: &Path,
    id: &str,
    is_ready: impl FnOnce(),
) -> Result<(), Error> {
    let (ask, request) = AskFolder::open(session, id)?;
    let Some(_lock) = ask.take()? else {
        return Ok(());
    };
    is_ready();
    let answer = async {
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
        sender
            .ask_unguarded(&request.to, &request.text, &options)
            .await
    };
    let answer = answer.await;
    ask.store_result(answer)
}
