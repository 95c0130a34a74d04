//! A client of the board, as `docs/board-json.md` describes it. It checks the order of the events.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use examples::Result;
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::worker;

/// Generous for a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// The address of a board, with its secret.
#[derive(Clone)]
pub(crate) struct Address {
    text: String,
    socket: SocketAddr,
    token: String,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let parts = text.strip_prefix("http://");
        let parts = parts.and_then(|rest| rest.split_once("/#token="));
        let (socket, token) = parts.ok_or("not the address of a board")?;
        Ok(Self {
            text: text.to_owned(),
            socket: socket.parse()?,
            token: token.to_owned(),
        })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn socket(&self) -> SocketAddr {
        self.socket
    }
}

/// The last event that a client has seen.
pub(crate) struct Place {
    stream: String,
    seq: u64,
    /// The number of the last message, if one was seen.
    message: Option<u64>,
}

/// How a connection has ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// With this code.
    Closed(u16),
    /// Without one.
    Reset,
}

/// A frame of the board. What is not checked is not read.
#[derive(Deserialize)]
struct Frame {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    events: Vec<EventHead>,
    seq: Option<u64>,
    stream: Option<String>,
    resumed: Option<bool>,
}

#[derive(Deserialize)]
struct EventHead {
    seq: u64,
    message: Option<MessageHead>,
}

#[derive(Deserialize)]
struct MessageHead {
    number: u64,
}

/// One connection.
pub(crate) struct Client {
    socket: WebSocketStream<TcpStream>,
    place: Place,
    is_resumed: bool,
}

impl Client {
    /// Connects, and continues at a place if the board still has the events behind it.
    pub(crate) async fn open(address: &Address, place: Option<Place>) -> Result<Self> {
        timeout(SOON, Self::connect(address, place)).await?
    }

    async fn connect(address: &Address, place: Option<Place>) -> Result<Self> {
        let mut request = format!("ws://{}/events", address.socket).into_client_request()?;
        let bearer = format!("Bearer {}", address.token).parse()?;
        request.headers_mut().insert("authorization", bearer);
        let socket = TcpSocket::new_v4()?;
        // Small, so that a client that does not read is noticed soon.
        socket.set_recv_buffer_size(16 << 10)?;
        let stream = socket.connect(address.socket).await?;
        let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await?;
        let open = match &place {
            Some(place) => json!({"type": "open", "stream": place.stream, "after": place.seq}),
            None => json!({"type": "open"}),
        };
        socket.send(Message::text(open.to_string())).await?;
        let mut client = Self {
            socket,
            place: place.unwrap_or(Place {
                stream: String::new(),
                seq: 0,
                message: None,
            }),
            is_resumed: false,
        };
        let hello = client.first_frame().await?;
        client.is_resumed = hello.resumed.ok_or("the first frame is not `hello`")?;
        if !client.is_resumed {
            let state = client.first_frame().await?;
            let seq = state.seq.ok_or("the second frame is not `state`")?;
            if seq < client.place.seq {
                let before = client.place.seq;
                return Err(format!("the state is that of event {seq}, before {before}").into());
            }
            client.place = Place {
                stream: hello.stream.ok_or("`hello` has no stream")?,
                seq,
                message: None,
            };
        }
        Ok(client)
    }

    pub(crate) fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Drops the connection without a word.
    pub(crate) fn leave(self) -> Place {
        self.place
    }

    pub(crate) async fn send(&mut self, command: &Value) -> Result<()> {
        let message = Message::text(command.to_string());
        Ok(timeout(SOON, self.socket.send(message)).await??)
    }

    /// Reads until the reply to a command, or until the end of the connection.
    pub(crate) async fn receive_reply(&mut self) -> Result<std::result::Result<Value, Ended>> {
        let deadline = Instant::now() + SOON;
        loop {
            match self.receive(deadline).await? {
                Received::Text(frame, text) if frame.kind == "reply" => {
                    return Ok(Ok(serde_json::from_str(&text)?));
                }
                Received::Text(..) => {}
                Received::Nothing => return Err("no reply for a minute".into()),
                Received::End(end) => return Ok(Err(end)),
            }
        }
    }

    /// Reads until a moment. Returns the end of the connection if it comes before.
    pub(crate) async fn read_until(&mut self, until: Instant) -> Result<Option<Ended>> {
        loop {
            match self.receive(until).await? {
                Received::Text(..) => {}
                Received::Nothing => return Ok(None),
                Received::End(end) => return Ok(Some(end)),
            }
        }
    }

    /// Does not read for some time.
    pub(crate) async fn lag(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && !worker::is_ending() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn first_frame(&mut self) -> Result<Frame> {
        match self.receive(Instant::now() + SOON).await? {
            Received::Text(frame, _) => Ok(frame),
            Received::Nothing => Err("no first frame for a minute".into()),
            Received::End(end) => Err(format!("refused: {end:?}").into()),
        }
    }

    /// The next frame, whose events must follow the last one.
    async fn receive(&mut self, until: Instant) -> Result<Received> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(next) = timeout(left, self.socket.next()).await else {
                return Ok(Received::Nothing);
            };
            let text = match next {
                Some(Ok(Message::Text(text))) => text,
                Some(Ok(Message::Close(frame))) => {
                    return Ok(Received::End(match frame {
                        Some(frame) => Ended::Closed(frame.code.into()),
                        None => Ended::Reset,
                    }));
                }
                Some(Ok(_)) => continue,
                Some(Err(_)) | None => return Ok(Received::End(Ended::Reset)),
            };
            let frame: Frame = serde_json::from_str(&text)?;
            frame.events.iter().try_for_each(|event| self.see(event))?;
            return Ok(Received::Text(frame, text));
        }
    }

    fn see(&mut self, event: &EventHead) -> Result<()> {
        let last = self.place.seq;
        if event.seq != last + 1 {
            return Err(format!("event {} after event {last}", event.seq).into());
        }
        self.place.seq = event.seq;
        if let Some(MessageHead { number }) = event.message {
            let before = self.place.message.replace(number);
            if before.is_some_and(|before| number != before + 1) {
                return Err(format!("message {number} after message {before:?}").into());
            }
        }
        worker::count("board events seen");
        Ok(())
    }
}

enum Received {
    Text(Frame, Utf8Bytes),
    /// Nothing came in time.
    Nothing,
    End(Ended),
}
