//! Commands to a running daemon: one JSON line each way over a socket in its private folder.

use std::io;
use std::path::PathBuf;

use examples::Result;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::config::DaemonConfig;

/// The longest request.
const MAX_REQUEST: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ControlRequest {
    Send { agent: String, text: String },
    Stop,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ControlReply {
    Done(String),
    Refused(String),
}

/// A request that waits for its reply.
pub(crate) struct ControlCall {
    pub(crate) request: ControlRequest,
    stream: UnixStream,
}

impl ControlCall {
    /// Sends the reply. A caller that has gone is no failure.
    pub(crate) async fn reply(mut self, result: Result<String>) {
        let reply = match result {
            Ok(text) => ControlReply::Done(text),
            Err(error) => ControlReply::Refused(error.to_string()),
        };
        if let Ok(mut line) = serde_json::to_vec(&reply) {
            line.push(b'\n');
            let _ = self.stream.write_all(&line).await;
        }
    }
}

fn socket(config: &DaemonConfig) -> PathBuf {
    config.folder.join("socket")
}

/// Listens, in the place of a daemon that was killed. The caller holds the lock of the folder.
pub(crate) fn listen(config: &DaemonConfig) -> Result<UnixListener> {
    let path = socket(config);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(&path);
    Ok(listener.map_err(|error| format!("cannot listen at {}: {error}", path.display()))?)
}

/// Reads one request. `None` if the caller has sent no valid one.
pub(crate) async fn accept(stream: UnixStream) -> Option<ControlCall> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream.take(MAX_REQUEST));
    reader.read_line(&mut line).await.ok()?;
    Some(ControlCall {
        request: serde_json::from_str(&line).ok()?,
        stream: reader.into_inner().into_inner(),
    })
}

/// Sends a request to the daemon; `None` if none runs.
pub(crate) async fn call(
    config: &DaemonConfig,
    request: &ControlRequest,
) -> Result<Option<String>> {
    let mut stream = match UnixStream::connect(socket(config)).await {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).await?;
    if reply.is_empty() {
        return Err("the daemon ended before it replied".into());
    }
    match serde_json::from_str(&reply)? {
        ControlReply::Done(text) => Ok(Some(text)),
        ControlReply::Refused(text) => Err(text.into()),
    }
}
