use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Message, Provider, Role, ToolCallRequest};

/// A piece of a message that is more than its text: an image, a document, reasoning, or data that
/// only one provider understands.
///
/// # Order
///
/// [`Message::parts`] is the order in which a provider gets the pieces. Two pieces are not in the
/// list unless they stand in an unusual place:
///
/// - the text of the message, [`Message::content`]: behind the reasoning and the provider data at the
///   start of the list, and before everything else;
/// - the tool calls: at the end.
///
/// If the list has [`Part::Text`]s, they are the text, in their places, and `content` repeats them
/// joined, for readers that know only text. A [`Part::Call`] marks the place of a call.
///
/// # Fields of one provider
///
/// A part and a [`ToolCallRequest`] can have fields that only one provider knows, such as citations,
/// below the name of the provider in `extra`: `{"anthropic": {"citations": [...]}}`. They are sent
/// to that provider alone.
///
/// ```
/// use agent_snapshot::conversation::{Message, Part, Provider, Source};
///
/// let image = Part::image(Source::base64("image/png", "iVBORw0KGgo="));
/// let message = Message::user("What is this?").with_parts(vec![image]);
/// let request = Provider::OpenAiChat.request([&message])?;
/// let content = &request["messages"][0]["content"];
/// assert_eq!(content[0]["text"], "What is this?");
/// assert_eq!(content[1]["image_url"]["url"], "data:image/png;base64,iVBORw0KGgo=");
/// # Ok::<(), agent_snapshot::conversation::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// A piece of the text.
    Text {
        /// The text.
        text: String,
        /// Fields of providers, and fields that this version does not know.
        #[serde(flatten)]
        extra: Map<String, Value>,
    },
    /// An image.
    Image {
        /// Where the image is.
        source: Source,
        /// Fields of providers, and fields that this version does not know.
        #[serde(flatten)]
        extra: Map<String, Value>,
    },
    /// A document, such as a PDF.
    Document {
        /// Where the document is.
        source: Source,
        /// The name of the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Fields of providers, and fields that this version does not know.
        #[serde(flatten)]
        extra: Map<String, Value>,
    },
    /// The reasoning of a model before an answer or a tool call. It is sent to its own provider
    /// alone, unchanged.
    Reasoning {
        /// The provider of the model.
        provider: Provider,
        /// The readable part: the reasoning or a summary of it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        /// The proof that the provider needs to accept the reasoning again: a signature, or the
        /// reasoning in encrypted form.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
        /// Fields of providers, and fields that this version does not know.
        #[serde(flatten)]
        extra: Map<String, Value>,
    },
    /// The place of a tool call that is not at the end of the message.
    Call {
        /// The [`ToolCallRequest::id`].
        id: String,
    },
    /// A block that only one provider understands, such as the result of a search that the provider
    /// ran. It is sent to this provider alone, unchanged.
    Provider {
        /// The provider.
        provider: Provider,
        /// The block, as the provider sent it.
        data: Value,
    },
    /// A part of a kind that this version does not know. It is kept, and never sent.
    #[serde(untagged)]
    Unknown(Value),
}

/// Where an image or a document is.
///
/// ```
/// use agent_snapshot::conversation::{Part, Source};
///
/// let part = Part::document(Source::url("https://example.org/a.pdf"), "a.pdf");
/// let json = r#"{"type":"document","source":{"type":"url","url":"https://example.org/a.pdf"},"name":"a.pdf"}"#;
/// assert_eq!(serde_json::to_string(&part)?, json);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Source {
    /// In the message, as base64.
    Base64 {
        /// The media type, such as `image/png`.
        media_type: String,
        /// The bytes as base64.
        data: String,
    },
    /// At an address that the provider can read.
    Url {
        /// The address.
        url: String,
        /// The media type, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        media_type: Option<String>,
    },
    /// A file that was uploaded to a provider.
    File {
        /// The provider that has the file.
        provider: Provider,
        /// The id of the file.
        id: String,
    },
    /// A text.
    Text {
        /// The text.
        text: String,
    },
}

impl Part {
    /// A piece of text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text {
            text: text.into(),
            extra: Map::new(),
        }
    }

    /// An image.
    #[must_use]
    pub fn image(source: Source) -> Self {
        Self::Image {
            source,
            extra: Map::new(),
        }
    }

    /// A document with a file name.
    #[must_use]
    pub fn document(source: Source, name: impl Into<String>) -> Self {
        Self::Document {
            source,
            name: Some(name.into()),
            extra: Map::new(),
        }
    }

    /// Reasoning, with the signature or the encrypted form that `provider` gave with it.
    #[must_use]
    pub fn reasoning(
        provider: Provider,
        text: impl Into<String>,
        signature: impl Into<String>,
    ) -> Self {
        Self::Reasoning {
            provider,
            text: text.into(),
            signature: Some(signature.into()),
            extra: Map::new(),
        }
    }

    /// An unknown field that has the name of a known one: the part could not be read again.
    pub(crate) fn ambiguous_field(&self) -> Option<&str> {
        let (extra, known): (_, &[&str]) = match self {
            Self::Text { extra, .. } => (extra, &["type", "text"]),
            Self::Image { extra, .. } => (extra, &["type", "source"]),
            Self::Document { extra, .. } => (extra, &["type", "source", "name"]),
            Self::Reasoning { extra, .. } => (extra, &["type", "provider", "text", "signature"]),
            Self::Call { .. } | Self::Provider { .. } | Self::Unknown(_) => return None,
        };
        known.iter().copied().find(|name| extra.contains_key(*name))
    }

    /// Whether the text of a message stands behind this part, if the part is at the start.
    fn precedes_text(&self) -> bool {
        matches!(self, Self::Reasoning { .. } | Self::Provider { .. })
    }
}

impl Source {
    /// Bytes as base64 with a media type such as `image/png`.
    #[must_use]
    pub fn base64(media_type: impl Into<String>, data: impl Into<String>) -> Self {
        Self::Base64 {
            media_type: media_type.into(),
            data: data.into(),
        }
    }

    /// An address that the provider can read.
    #[must_use]
    pub fn url(url: impl Into<String>) -> Self {
        Self::Url {
            url: url.into(),
            media_type: None,
        }
    }
}

/// A piece of a message, in the order in which a provider gets it.
pub(super) enum Piece<'a> {
    Text {
        text: &'a str,
        extra: Option<&'a Map<String, Value>>,
    },
    /// Neither a text nor a call.
    Part(&'a Part),
    Call(&'a ToolCallRequest),
}

impl Message {
    /// The pieces of the message in order: see [`Part`].
    pub(super) fn pieces(&self) -> Vec<Piece<'_>> {
        let content = self.content.as_deref().unwrap_or_default();
        let mut pieces = Vec::with_capacity(self.parts.len() + self.tool_calls.len() + 1);
        let mut content_waits = !content.is_empty() && !self.has_text_parts();
        let mut placed = Vec::new();
        for part in &self.parts {
            if content_waits && !part.precedes_text() {
                content_waits = false;
                pieces.push(Piece::Text {
                    text: content,
                    extra: None,
                });
            }
            match part {
                Part::Text { text, extra } => pieces.push(Piece::Text {
                    text,
                    extra: Some(extra),
                }),
                Part::Call { id } => {
                    let call = self.tool_calls.iter().find(|call| call.id == *id);
                    if let Some(call) = call.filter(|_| !placed.contains(&id)) {
                        placed.push(id);
                        pieces.push(Piece::Call(call));
                    }
                }
                Part::Unknown(_) => {}
                part => pieces.push(Piece::Part(part)),
            }
        }
        if content_waits {
            pieces.push(Piece::Text {
                text: content,
                extra: None,
            });
        }
        let calls = self.tool_calls.iter();
        let others = calls.filter(|call| !placed.contains(&&call.id));
        pieces.extend(others.map(Piece::Call));
        pieces
    }

    /// The texts of the message, as they are sent.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let content = self.content.as_deref().filter(|_| !self.has_text_parts());
        let parts = self.parts.iter().filter_map(|part| match part {
            Part::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        content.into_iter().chain(parts)
    }

    /// Whether `content` repeats the text parts, as it must if there are any.
    pub(super) fn content_agrees_with_parts(&self) -> bool {
        if !self.has_text_parts() {
            return true;
        }
        let mut rest = self.content.as_deref().unwrap_or_default();
        for text in self.texts() {
            match rest.strip_prefix(text) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.is_empty()
    }

    /// Makes `content` agree with the text parts. A text that they lack becomes the first of them.
    pub(super) fn join_texts(&mut self) {
        if self.content_agrees_with_parts() {
            return;
        }
        let joined: String = self.texts().collect();
        match self.content.take() {
            Some(content) if !content.is_empty() && content != joined => {
                let at = self.parts.iter().take_while(|part| part.precedes_text());
                let at = at.count();
                self.parts.insert(at, Part::text(content.clone()));
                self.content = Some(content + &joined);
            }
            _ => self.content = Some(joined),
        }
    }

    /// A message of pieces in any order. `parts` contains all texts, and the places of all calls; the
    /// pieces that stand in their usual places are removed from it.
    pub(super) fn assemble(
        role: Role,
        mut parts: Vec<Part>,
        tool_calls: Vec<ToolCallRequest>,
    ) -> Self {
        let mut usual = tool_calls.len();
        while let (Some(Part::Call { id }), Some(last)) = (parts.last(), usual.checked_sub(1))
            && *id == tool_calls[last].id
        {
            parts.pop();
            usual = last;
        }
        let mut message = Self::new(role).with_tool_calls(tool_calls);
        let mut texts = parts
            .iter()
            .enumerate()
            .filter_map(|(index, part)| match part {
                Part::Text { text, extra } => Some((index, text, extra.is_empty())),
                _ => None,
            });
        let first = texts.next();
        let single = texts.next().is_none();
        if let Some((index, text, plain)) = first {
            let usual = parts[..index].iter().all(Part::precedes_text)
                && !parts.get(index + 1).is_some_and(Part::precedes_text);
            if single && plain && usual {
                message.content = Some(text.clone());
                parts.remove(index);
            }
        }
        message.parts = parts;
        message.join_texts();
        message
    }

    pub(super) fn has_text_parts(&self) -> bool {
        let is_text = |part: &Part| matches!(part, Part::Text { .. });
        self.parts.iter().any(is_text)
    }
}

// Conversations are private: `Debug` must not put a text, an address or data into a log.
impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { text, .. } => f.debug_struct("Text").field("bytes", &text.len()).finish(),
            Self::Image { source, .. } => f.debug_tuple("Image").field(source).finish(),
            Self::Document { source, .. } => f.debug_tuple("Document").field(source).finish(),
            Self::Reasoning { provider, text, .. } => f
                .debug_struct("Reasoning")
                .field("provider", provider)
                .field("bytes", &text.len())
                .finish_non_exhaustive(),
            Self::Call { id } => f.debug_struct("Call").field("id", id).finish(),
            Self::Provider { provider, .. } => f
                .debug_struct("Provider")
                .field("provider", provider)
                .finish_non_exhaustive(),
            Self::Unknown(_) => f.write_str("Unknown"),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base64 { media_type, data } => f
                .debug_struct("Base64")
                .field("media_type", media_type)
                .field("bytes", &data.len())
                .finish(),
            Self::Url { .. } => f.write_str("Url"),
            Self::File { provider, .. } => f.debug_tuple("File").field(provider).finish(),
            Self::Text { text } => f.debug_struct("Text").field("bytes", &text.len()).finish(),
        }
    }
}
