//! What a member needs of its agent.

use std::fmt;

use async_trait::async_trait;
use examples::Result;
use serde_json::Value;

/// An agent that answers texts, one at a time.
///
/// A text is sent in two steps, so that its answer survives the asking process: `send` returns a receipt as soon as the
/// agent has the text, the caller saves the receipt, and `answer` waits. After a crash, `answer` with the saved receipt
/// returns the answer if it can still be had, and says what is known otherwise.
#[async_trait]
pub trait CrewAgent: Send + Sync {
    /// Sends a text; starts the agent first if it does not run, with its earlier conversation where it can.
    async fn send(&mut self, text: &str) -> Result<Value>;

    /// Waits for the exact answer to the text of this receipt.
    async fn answer(&mut self, receipt: &Value) -> std::result::Result<String, NoAnswer>;

    /// The process of the agent, if it is known.
    async fn process_id(&self) -> Option<u32>;

    /// The command by which the agent asks other agents, if there is one.
    fn ask_command(&self) -> Option<String>;
}

/// A text got no answer. The agent may have done a part of the work.
#[derive(Debug)]
pub struct NoAnswer {
    pub reason: String,
    /// The part of the answer that was seen.
    pub partial: String,
    /// Whether it makes sense to ask the agent to continue.
    pub is_transient: bool,
}

impl NoAnswer {
    /// The agent or its host has ended.
    pub fn ended(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            partial: String::new(),
            is_transient: true,
        }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
