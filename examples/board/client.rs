//! One connected client.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::access::{Access, Proof};
use super::action::ActionError;
use super::command::{Command, Request};
use super::hub::Hub;

/// The version of the JSON in `docs/board-json.md`.
pub const PROTOCOL: u32 = 1;

/// The close code for a client that reads too slowly. It may connect again and continue.
pub const TOO_SLOW: u16 = 4008;
/// The close code for a client that did not prove itself, or sent something that is not a command.
const REFUSED: u16 = 4003;

/// A client that is further behind is dropped.
const MAX_LAG: usize = 4 * 1024 * 1024;
/// The most bytes of events in one frame.
const FRAME_BYTES: usize = 256 * 1024;
/// The time between two frames of events: changes within it share a frame.
const FRAME_INTERVAL: Duration = Duration::from_millis(10);
/// Half of the commands of one client that may be at work: see the permits below.
const MAX_COMMANDS: usize = 32;
/// The time for the first frame.
const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// The time in which a frame must be taken by the system's buffers.
const SEND_LIMIT: Duration = Duration::from_secs(30);
/// A ping keeps the connection, and finds out when the other side is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Serves a client until it goes, is too slow, or breaks the rules.
pub(super) async fn serve(socket: WebSocket, hub: Hub, access: &Access, proof: Proof) {
    let (sink, stream) = socket.split();
    let (replies, answered) = mpsc::channel(MAX_COMMANDS * 2);
    let mut client = Client {
        version: hub.version(),
        hub,
        sink,
        replies,
        seq: 0,
        watched: None,
    };
    let reason = match client.run(stream, answered, access, proof).await {
        Ok(()) => return,
        Err(reason) => reason,
    };
    let frame = CloseFrame {
        code: reason.0,
        reason: reason.1.into(),
    };
    // A slow client may not take even this; it finds the connection closed then.
    let close = client.sink.send(Message::Close(Some(frame)));
    let _ = timeout(Duration::from_millis(200), close).await;
}

struct Client {
    hub: Hub,
    version: watch::Receiver<u64>,
    sink: SplitSink<WebSocket, Message>,
    replies: mpsc::Sender<Value>,
    /// The last event that was sent.
    seq: u64,
    watched: Option<Watched>,
}

/// The agent whose output the client shows, with the last line and screen that were sent.
struct Watched {
    agent: String,
    line: u64,
    screen: u64,
}

/// Why the server ends a connection: the close code and a sentence.
struct Closed(u16, &'static str);

/// The other side is gone: nothing is left to say.
const GONE: Closed = Closed(1001, "gone");

impl Client {
    async fn run(
        &mut self,
        mut stream: SplitStream<WebSocket>,
        mut answered: mpsc::Receiver<Value>,
        access: &Access,
        proof: Proof,
    ) -> Result<(), Closed> {
        let first = timeout(OPEN_LIMIT, stream.next()).await;
        let Ok(Some(Ok(Message::Text(first)))) = first else {
            return Err(Closed(REFUSED, "the first frame must be `open`"));
        };
        let open = serde_json::from_str::<Request>(&first);
        let Ok(Command::Open {
            key,
            stream: name,
            after,
        }) = open.map(|open| open.command)
        else {
            return Err(Closed(REFUSED, "the first frame must be `open`"));
        };
        if proof == Proof::Cookie && !access.is_page_key(&key) {
            return Err(Closed(REFUSED, "the key of the page is wrong"));
        }
        let _present = Present::new(self.hub.clone());
        let (frames, seq) = self.hub.welcome(&name, after);
        self.seq = seq;
        for frame in frames {
            self.send(Message::text(frame)).await?;
        }
        let mut ping = tokio::time::interval(PING_INTERVAL);
        let mut next_frame = Instant::now();
        self.version.mark_changed();
        loop {
            let pause = tokio::time::sleep_until(next_frame);
            tokio::select! {
                biased;
                frame = stream.next() => match frame {
                    Some(Ok(Message::Text(text))) => self.take(&text).await?,
                    Some(Ok(Message::Binary(_))) => {
                        return Err(Closed(REFUSED, "frames must be text"));
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
                },
                Some(reply) = answered.recv() => self.send(Message::text(reply.to_string())).await?,
                _ = ping.tick() => self.send(Message::Ping(Bytes::new())).await?,
                () = changed_after(&mut self.version, pause) => {
                    next_frame = Instant::now() + FRAME_INTERVAL;
                    if self.flush().await? {
                        self.version.mark_changed();
                    }
                }
            }
        }
    }

    /// Sends what is new; `true` if more is left.
    async fn flush(&mut self) -> Result<bool, Closed> {
        let Some(events) = self.hub.events_after(self.seq, FRAME_BYTES) else {
            return Err(Closed(TOO_SLOW, "too slow"));
        };
        let more_events = events.is_some();
        if let Some((frame, seq)) = events {
            self.send(Message::text(frame)).await?;
            self.seq = seq;
        }
        let Some(watched) = &mut self.watched else {
            return Ok(more_events);
        };
        let output = self
            .hub
            .output_after(&watched.agent, watched.line, watched.screen);
        let Some((frame, line, screen)) = output else {
            return Ok(more_events);
        };
        (watched.line, watched.screen) = (line, screen);
        self.send(Message::text(frame)).await?;
        Ok(true)
    }

    /// Sends a frame. While the client does not take it, the lag is watched.
    async fn send(&mut self, message: Message) -> Result<(), Closed> {
        let (hub, seq) = (&self.hub, self.seq);
        let mut version = hub.version();
        let sending = timeout(SEND_LIMIT, self.sink.send(message));
        tokio::pin!(sending);
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => return match sent {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(_)) => Err(GONE),
                    Err(_) => Err(Closed(TOO_SLOW, "too slow")),
                },
                _ = version.changed() => {
                    if hub.lag(seq).is_none_or(|lag| lag > MAX_LAG) {
                        return Err(Closed(TOO_SLOW, "too slow"));
                    }
                }
            }
        }
    }

    /// Takes a frame of the client. A command runs in a task of its own, which goes on if the client
    /// goes: an answer to a permission request must not be lost half-way.
    async fn take(&mut self, text: &str) -> Result<(), Closed> {
        let request = match serde_json::from_str::<Request>(text) {
            Ok(request) => request,
            Err(error) => {
                let id = serde_json::from_str::<Value>(text).unwrap_or_default();
                let id = id["id"].as_str().unwrap_or_default();
                let error = ActionError::new("invalid", error.to_string());
                return self
                    .send(Message::text(reply(id, Err(error)).to_string()))
                    .await;
            }
        };
        let Request { id, command } = request;
        match command {
            Command::Open { .. } => {
                let error = ActionError::new("invalid", "the connection is open already");
                self.send(Message::text(reply(&id, Err(error)).to_string()))
                    .await
            }
            Command::Watch { agent, after } => {
                let watched = agent.map(|agent| Watched {
                    agent,
                    line: after,
                    screen: 0,
                });
                self.watch(watched);
                self.version.mark_changed();
                self.send(Message::text(reply(&id, Ok(())).to_string()))
                    .await
            }
            Command::Messages { before, limit } => {
                let mut reply = reply(&id, Ok(()));
                reply["messages"] = self.hub.messages_before(before, limit);
                self.send(Message::text(reply.to_string())).await
            }
            command => {
                // One permit for each command at work, and as many for replies on their way.
                let Ok(permit) = self.replies.clone().try_reserve_owned() else {
                    let error = ActionError::new("busy", "too many commands at once");
                    let reply = reply(&id, Err(error)).to_string();
                    return self.send(Message::text(reply)).await;
                };
                let hub = self.hub.clone();
                tokio::spawn(async move {
                    let done = hub.perform(&command).await;
                    permit.send(reply(&id, done));
                });
                Ok(())
            }
        }
    }

    fn watch(&mut self, watched: Option<Watched>) {
        let before = std::mem::replace(&mut self.watched, watched);
        let after = self.watched.as_ref().map(|watched| watched.agent.clone());
        self.hub.change_audience(|audience| {
            if let Some(agent) = before.map(|watched| watched.agent)
                && let Some(count) = audience.watched.get_mut(&agent)
            {
                *count -= 1;
                if *count == 0 {
                    audience.watched.remove(&agent);
                }
            }
            if let Some(agent) = after {
                *audience.watched.entry(agent).or_default() += 1;
            }
        });
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.watch(None);
    }
}

/// Counts a client while it is there.
struct Present(Hub);

impl Present {
    fn new(hub: Hub) -> Self {
        hub.change_audience(|audience| audience.clients += 1);
        Self(hub)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.change_audience(|audience| audience.clients -= 1);
    }
}

/// Waits for the pause, then for a change.
async fn changed_after(version: &mut watch::Receiver<u64>, pause: tokio::time::Sleep) {
    pause.await;
    if version.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn reply(id: &str, done: Result<(), ActionError>) -> Value {
    match done {
        Ok(()) => json!({"type": "reply", "id": id, "ok": true}),
        Err(error) => {
            let (code, message) = (
                error.code,
                super::neutral_text::neutral_text(&error.message),
            );
            let error = json!({"code": code, "message": message});
            json!({"type": "reply", "id": id, "ok": false, "error": error})
        }
    }
}
