use serde_json::Value;

use crate::conversation::provider::marked_text;
use crate::conversation::{Message, Part};

/// Counts tokens as a provider bills them.
///
/// Only [`count_text`](Self::count_text) is required. The fixed costs default to the costs of
/// OpenAI's chat format, which are close to the costs of other providers.
///
/// ```
/// use agent_snapshot::conversation::{StateManager, TokenCounter};
///
/// struct Words;
///
/// impl TokenCounter for Words {
///     fn count_text(&self, text: &str) -> usize {
///         text.split_whitespace().count()
///     }
/// }
///
/// let state = StateManager::new(100).answer_tokens(20).counter(Words);
/// assert_eq!(state.budget(), 100 - 20 - Words.per_request());
/// ```
pub trait TokenCounter: Send + Sync {
    /// The tokens of a text.
    fn count_text(&self, text: &str) -> usize;

    /// The fixed cost of a message: role and separators.
    fn per_message(&self) -> usize {
        4
    }

    /// The fixed cost of a tool call and of a result: id and frame.
    fn per_call(&self) -> usize {
        8
    }

    /// The fixed cost of a request: the start of the answer.
    fn per_request(&self) -> usize {
        3
    }

    /// The tokens of the texts of a message, including its fixed cost. Images and documents are not
    /// texts: [`Conversation::tokens`](crate::conversation::Conversation::tokens) contains them.
    fn count_message(&self, message: &Message) -> usize {
        let mut total = self.per_message();
        for text in message.texts() {
            total += self.count_text(text);
        }
        for part in &message.parts {
            if let Part::Reasoning { text, .. } = part {
                total += self.count_text(text);
            }
        }
        for call in &message.tool_calls {
            total += self.per_call() + self.count_text(&call.name) + count_value(self, &call.args);
        }
        for result in &message.tool_results {
            total += self.per_call();
            if result.is_error {
                // As it is sent to providers that have no field for failures.
                total += self.count_text(&marked_text(result).unwrap_or_default());
            } else if !result.result.is_null() || result.parts.is_empty() {
                total += count_value(self, &result.result);
            }
            for part in &result.parts {
                if let Part::Text { text, .. } = part {
                    total += self.count_text(text);
                }
            }
        }
        total
    }
}

/// The tokens of a JSON value as it is sent: a string as text, any other value as JSON.
fn count_value(counter: &(impl TokenCounter + ?Sized), value: &Value) -> usize {
    match value {
        Value::String(text) => counter.count_text(text),
        value => counter.count_text(&value.to_string()),
    }
}

/// A prefix of `text` that has at most `tokens` tokens, and is as long as binary search finds.
///
/// Vocabularies are not monotone: the start of a word may have more tokens than the word. The
/// result always fits, and may be a few characters shorter than the longest that does.
pub(crate) fn fit_text<'a>(counter: &dyn TokenCounter, text: &'a str, tokens: usize) -> &'a str {
    if counter.count_text(text) <= tokens {
        return text;
    }
    let ends: Vec<usize> = text.char_indices().map(|(end, _)| end).collect();
    let fitting = ends.partition_point(|end| counter.count_text(&text[..*end]) <= tokens);
    let end = fitting.checked_sub(1).map_or(0, |last| ends[last]);
    &text[..end]
}
