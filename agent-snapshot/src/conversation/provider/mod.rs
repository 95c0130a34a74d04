//! The formats of providers, and lists of messages that all of them accept.
//!
//! # Theory
//!
//! A converter goes through a list once. The list was checked by [`Pairing`], so the results of a
//! message with calls follow it directly. The formats differ in these points:
//!
//! | | Anthropic | OpenAI Chat | OpenAI Responses | Gemini |
//! |---|---|---|---|---|
//! | system messages | field `system` | in place | in place | field `systemInstruction` |
//! | neighbours of one role | merged | as they are | as they are | merged, but for results |
//! | first message | user | any | any | user |
//! | last message | user | any | any | user |
//! | results | blocks of a user message | a message each | an item each | parts of a user content, in the order of the calls |
//! | images in results | in the result, behind the results if it failed | in a user message behind the results | in the result | behind the results |
//! | failed results | `is_error` | text `Error: ` | text `Error: ` | key `error` |
//! | reasoning | `thinking`, never last | `reasoning_content` | item `reasoning`, never last | `thought` |
//!
//! A piece that a provider has no form for becomes a text such as `[image: image/bmp]`, so that the
//! model knows of it. Reasoning and data of another provider are left out.

mod anthropic;
mod gemini;
mod openai_chat;
mod openai_responses;
mod read;
mod repair;
mod write;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Error, Message};

pub(super) use repair::abort;
pub use repair::{AbortedCall, Repaired, repair};
pub(super) use write::marked_text;

/// The format of a provider's API.
///
/// [`request`](Self::request) makes request JSON of messages, [`messages`](Self::messages) makes
/// messages of response JSON.
///
/// ```
/// use agent_snapshot::conversation::{Message, Provider};
/// use serde_json::json;
///
/// let mut messages = vec![Message::system("Be brief."), Message::user("hello")];
/// let request = Provider::Anthropic.request(&messages)?;
/// assert_eq!(request, json!({
///     "system": [{"type": "text", "text": "Be brief."}],
///     "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
/// }));
///
/// // The answer of the provider.
/// let response = json!({
///     "role": "assistant",
///     "content": [
///         {"type": "thinking", "thinking": "A greeting.", "signature": "EqQBCg=="},
///         {"type": "text", "text": "Hello."},
///     ],
/// });
/// messages.extend(Provider::Anthropic.messages(&response)?);
/// assert_eq!(messages[2].content.as_deref(), Some("Hello."));
///
/// // Another provider can continue. It gets the text, not the reasoning.
/// messages.push(Message::user("What time is it?"));
/// let request = Provider::Gemini.request(&messages)?;
/// assert_eq!(request["contents"][1], json!({"role": "model", "parts": [{"text": "Hello."}]}));
/// # Ok::<(), agent_snapshot::conversation::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Provider {
    /// The Messages API of Anthropic.
    Anthropic,
    /// The Chat Completions API of OpenAI, which many servers offer.
    #[serde(rename = "openai_chat")]
    OpenAiChat,
    /// The Responses API of OpenAI.
    #[serde(rename = "openai_responses")]
    OpenAiResponses,
    /// The `generateContent` API of Google's Gemini.
    Gemini,
}

impl Provider {
    /// All providers.
    pub const ALL: [Self; 4] = [
        Self::Anthropic,
        Self::OpenAiChat,
        Self::OpenAiResponses,
        Self::Gemini,
    ];

    /// The name in JSON, such as `openai_chat`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAiChat => "openai_chat",
            Self::OpenAiResponses => "openai_responses",
            Self::Gemini => "gemini",
        }
    }

    /// The part of a request that holds the messages.
    ///
    /// | provider | fields | the caller adds |
    /// |---|---|---|
    /// | Anthropic | `system`, `messages` | `model`, `max_tokens`, `tools` |
    /// | OpenAI Chat | `messages` | `model`, `tools` |
    /// | OpenAI Responses | `input` | `model`, `tools` |
    /// | Gemini | `systemInstruction`, `contents` | `tools` |
    ///
    /// The same messages always give the same JSON, so that a prompt cache sees the same prefix. The
    /// request is acceptable for the provider:
    ///
    /// - Call ids and tool names that it would refuse are replaced, see
    ///   [`tool_name`](Self::tool_name). Messages without contents are left out.
    /// - Where a list must start with a user message, `(start)` is put before it; where it must end
    ///   with one, `(continue)` is put behind it.
    /// - System messages between other messages are moved to the front where the provider has no
    ///   other place for them.
    /// - Reasoning and data of the provider are put back as they were received. Those of other
    ///   providers are left out.
    /// - An image or document that the provider cannot take, such as one in the text of an
    ///   assistant, is named in a text.
    ///
    /// # Errors
    ///
    /// - The provider would refuse the list: [`Error::DuplicateMessage`], [`Error::DuplicateCall`],
    ///   [`Error::UnknownCall`], [`Error::AlreadyAnswered`], [`Error::InvalidMessage`].
    ///   [`repair`](repair()) corrects the list.
    /// - [`Error::OpenCalls`]: a call has no result.
    /// - [`Error::EmptyRequest`]: no message but system messages has contents.
    pub fn request<'a>(
        self,
        messages: impl IntoIterator<Item = &'a Message>,
    ) -> Result<Value, Error> {
        let messages = write::checked(messages)?;
        let request = match self {
            Self::Anthropic => anthropic::request(&messages),
            Self::OpenAiChat => openai_chat::request(&messages),
            Self::OpenAiResponses => openai_responses::request(&messages),
            Self::Gemini => gemini::request(&messages),
        };
        request.ok_or(Error::EmptyRequest)
    }

    /// The messages of a response, of a request, of a list of messages, or of a single message, in
    /// the format of the provider.
    ///
    /// Reasoning with its signature, images, documents, and blocks that this version does not know
    /// are kept as [`parts`](Message::parts), and [`request`](Self::request) puts them back. Marks
    /// for a prompt cache are not kept: they belong to a request, not to a message. Where the
    /// provider gave a call no id, [`StateManager::append`](super::StateManager::append) makes one.
    ///
    /// # Errors
    ///
    /// [`Error::UnreadableJson`] if the JSON is not in the format of the provider.
    pub fn messages(self, json: &Value) -> Result<Vec<Message>, Error> {
        let messages = match self {
            Self::Anthropic => anthropic::messages(json),
            Self::OpenAiChat => openai_chat::messages(json),
            Self::OpenAiResponses => openai_responses::messages(json),
            Self::Gemini => gemini::messages(json),
        };
        messages.map_err(|reason| Error::UnreadableJson {
            provider: self,
            reason,
        })
    }

    /// The name under which the provider knows a tool. [`request`](Self::request) uses it for calls;
    /// the caller uses it for the field `tools`.
    ///
    /// A name that the provider accepts is not changed. In another one, characters that it refuses
    /// become `_`, and a digest of the name is added, so that different names stay different.
    ///
    /// ```
    /// use agent_snapshot::conversation::Provider;
    ///
    /// assert_eq!(Provider::Anthropic.tool_name("read_file"), "read_file");
    /// assert_eq!(Provider::Anthropic.tool_name("fs.read"), "fs_read_1388993b1e8c");
    /// ```
    #[must_use]
    pub fn tool_name(self, name: &str) -> String {
        write::tool_name(name)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
