//! A client other than the page: what `docs/board-json.md` says, and nothing more.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::board::Board;

/// Generous: everything happens on this machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Client {
    socket: WebSocketStream<TcpStream>,
    /// The frame `hello`.
    pub(crate) hello: Value,
    /// The frame `state`, if there was one.
    pub(crate) state: Value,
    /// The number of the last event.
    pub(crate) seq: u64,
    events: VecDeque<Value>,
    others: VecDeque<Value>,
    next_id: u64,
}

impl Client {
    pub(crate) async fn open(board: &Board) -> Self {
        Self::resume(board, json!({})).await
    }

    /// Opens with the fields of the frame `open`.
    pub(crate) async fn resume(board: &Board, open: Value) -> Self {
        Self::open_at(board.socket, &board.token, open).await
    }

    /// As [`resume`](Self::resume), for a board of another process.
    pub(crate) async fn open_at(board: SocketAddr, token: &str, open: Value) -> Self {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        let mut socket = connect_to(board, &headers).await.unwrap();
        let mut first = open;
        first["type"] = json!("open");
        send(&mut socket, &first).await;
        let hello = receive(&mut socket).await;
        assert_eq!(hello["type"], "hello", "{hello}");
        assert_eq!(hello["protocol"], 1);
        let (mut state, mut seq) = (Value::Null, first["after"].as_u64().unwrap_or_default());
        if hello["resumed"] == false {
            state = receive(&mut socket).await;
            assert_eq!(state["type"], "state", "{state}");
            seq = state["seq"].as_u64().unwrap();
        }
        Self {
            socket,
            hello,
            state,
            seq,
            events: VecDeque::new(),
            others: VecDeque::new(),
            next_id: 1,
        }
    }

    /// The next event. Its number must follow the last one.
    pub(crate) async fn event(&mut self) -> Value {
        loop {
            if let Some(event) = self.events.pop_front() {
                self.seq += 1;
                assert_eq!(event["seq"], self.seq, "a gap: {event}");
                return event;
            }
            self.read().await;
        }
    }

    /// Skips events until one is accepted.
    #[track_caller]
    pub(crate) fn event_when(
        &mut self,
        wanted: impl Fn(&Value) -> bool,
    ) -> impl Future<Output = Value> {
        let place = std::panic::Location::caller();
        async move {
            let found = timeout(LIMIT, async {
                loop {
                    let event = self.event().await;
                    if wanted(&event) {
                        return event;
                    }
                }
            });
            found
                .await
                .unwrap_or_else(|_| panic!("the event of {place} did not come"))
        }
    }

    /// Waits until the agent is there: in the state that was sent first, or by an event.
    pub(crate) async fn agent(&mut self, id: &str) {
        let agents = self.state["agents"].as_array().unwrap();
        if !agents.iter().any(|agent| agent["id"] == id) {
            self.event_when(|event| event["agent"]["id"] == id).await;
        }
    }

    /// The next frame of this type that is not an event.
    pub(crate) async fn frame(&mut self, kind: &str) -> Value {
        loop {
            if let Some(at) = self.others.iter().position(|frame| frame["type"] == kind) {
                return self.others.remove(at).unwrap();
            }
            self.read().await;
        }
    }

    async fn read(&mut self) {
        let frame = receive(&mut self.socket).await;
        match frame["type"].as_str().unwrap() {
            "events" => self
                .events
                .extend(frame["events"].as_array().unwrap().clone()),
            _ => self.others.push_back(frame),
        }
    }

    /// Sends a command and waits for its reply.
    pub(crate) async fn command(&mut self, mut command: Value) -> Value {
        let id = format!("test-{}", self.next_id);
        self.next_id += 1;
        command["id"] = json!(id);
        send(&mut self.socket, &command).await;
        let reply = self.frame("reply").await;
        assert_eq!(reply["id"], json!(id));
        reply
    }

    /// A command that is accepted.
    pub(crate) async fn ok(&mut self, command: Value) -> Value {
        let reply = self.command(command).await;
        assert_eq!(reply["ok"], true, "{reply}");
        reply
    }

    pub(crate) async fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// The close code after all frames.
    pub(crate) async fn close_code(mut self) -> Option<u16> {
        loop {
            match timeout(LIMIT, self.socket.next()).await.unwrap() {
                Some(Ok(Message::Close(frame))) => return frame.map(|frame| frame.code.into()),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    }
}

/// Opens a WebSocket with these headers.
pub(crate) async fn connect(
    board: &Board,
    headers: &[(&'static str, &str)],
) -> Result<WebSocketStream<TcpStream>, Error> {
    connect_to(board.socket, headers).await
}

/// The socket's receive buffer is small, so that a client that does not read is noticed soon.
async fn connect_to(
    board: SocketAddr,
    headers: &[(&'static str, &str)],
) -> Result<WebSocketStream<TcpStream>, Error> {
    let mut request = format!("ws://{board}/events").into_client_request()?;
    for (name, value) in headers {
        let value = HeaderValue::from_str(value).unwrap();
        request.headers_mut().insert(*name, value);
    }
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    let stream = socket.connect(board).await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async(request, stream).await?;
    Ok(socket)
}

pub(crate) async fn send(socket: &mut WebSocketStream<TcpStream>, frame: &Value) {
    socket.send(Message::text(frame.to_string())).await.unwrap();
}

pub(crate) async fn receive(socket: &mut WebSocketStream<TcpStream>) -> Value {
    loop {
        let frame = timeout(LIMIT, socket.next()).await.expect("no frame came");
        match frame.expect("the connection has ended").unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("unexpected: {other:?}"),
        }
    }
}
