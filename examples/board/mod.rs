//! The board: a web page on loopback that shows running agents and steers them.
//!
//! ```text
//! sources -> Change -> BoardModel -> BoardEvent -> EventRing -> WebSocket -> page
//! page -> Command -> BoardModel (abilities, first answer wins) -> Action -> source
//! ```
//!
//! [`BoardModel`] is the pure core: changes in, events out, no I/O and no clock. A [`Source`] follows
//! agents and carries out actions: [`sources`] has one for each kind. [`Hub`] joins them, and
//! [`BoardServer`] serves the page. `docs/board-json.md` describes the JSON between server and page.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use examples::board::sources::ScriptedSource;
//! use examples::board::{BoardServer, Hub};
//!
//! #[tokio::main]
//! async fn main() -> examples::Result<()> {
//!     let hub = Hub::new("demo");
//!     hub.follow(Arc::new(ScriptedSource::new(&["writer", "reviewer"])));
//!     let server = BoardServer::builder(hub).bind().await?;
//!     eprintln!("{}", server.address());
//!     server.serve().await
//! }
//! ```

mod access;
mod action;
mod board_event;
mod board_model;
mod board_server;
mod change;
mod client;
mod command;
mod connections;
mod entities;
mod event_ring;
mod hub;
mod neutral_text;
mod output_log;
mod source;
pub mod sources;

pub use access::Access;
pub use action::{Action, ActionError};
pub use board_event::BoardEvent;
pub use board_model::{BoardModel, Limits};
pub use board_server::{BoardServer, BoardServerBuilder};
pub use change::{AgentChange, Change};
pub use client::{PROTOCOL, TOO_SLOW};
pub use command::{Command, Request};
pub use entities::{
    Ability, Agent, AgentState, Budget, Claim, Decision, Evidence, Failure, Message, Permission,
    QueueItem, Settlement, Snapshot, Usage, milliseconds,
};
pub use event_ring::{EventRing, Missed};
pub use hub::{Feed, Hub};
pub use neutral_text::{neutral_line, neutral_text, visible_text};
pub use output_log::{OutputLine, OutputLog};
pub use source::Source;
