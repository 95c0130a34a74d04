//! The window chooser: which messages stay in view when a conversation exceeds its budget.
//!
//! # Theory
//!
//! **Terms.**
//!
//! - An *exchange* is the unit of trimming: a user message, or an assistant message with its tool
//!   calls and all of their results.
//! - A *turn* is a user message and all exchanges up to the next user message.
//! - A *cut* is an index into the tail. The messages before it leave the view; they stay in the
//!   stream. A cut is at the start of an exchange, so never at a tool message.
//! - The *anchor* of a cut is the user message that opened the turn in which the cut lies.
//!   Providers want a user message first, so a cut inside a turn keeps its anchor, as a pinned
//!   message. A cut at a user message has no anchor.
//!
//! **Invariant.** `size(cut) = prompt + summary + anchor(cut) + tail[cut..]` never decreases when the
//! cut moves towards the start. Each step adds an exchange to the tail. The anchor changes at two
//! places only: at a user message it becomes part of the tail (the size stays the same), and before a
//! user message it is the anchor of the older turn (the size grows). So if a cut does not fit a
//! limit, no older one does, and the largest view that fits is found in one walk.
//!
//! **Choice.** In this order of preference:
//!
//! 1. the largest view within the low-water mark that has the newest turn whole;
//! 2. the newest turn alone, if it is within the budget (above the mark);
//! 3. the largest view within the low-water mark, which then cuts the newest turn;
//! 4. the newest exchange alone, if it is within the budget;
//! 5. else [`Error::OverLimit`].
//!
//! **Example.** Budget 100, low-water mark 75, prompt 10, and this tail:
//!
//! | index | message | tokens | size of a cut here | anchor |
//! |---|---|---|---|---|
//! | 0 | user | 5 | 110 | |
//! | 1 | assistant, calls a | 20 | 110 | 0 |
//! | 2 | tool, result of a | 15 | | |
//! | 3 | assistant | 10 | 75 | 0 |
//! | 4 | user | 5 | 60 | |
//! | 5 | assistant, calls b | 10 | 60 | 4 |
//! | 6 | tool, result of b | 20 | | |
//! | 7 | assistant | 15 | 30 | 4 |
//!
//! The conversation has 110 tokens. Rule 1 chooses the cut at 3: it has the newest turn (from 4)
//! whole, and 75 tokens. The view becomes the prompt, message 0 (the anchor), and 3 to 7.

use super::conversation::SummaryChange;
use super::{Conversation, StateManager};
use crate::conversation::{Error, Message, Role};

/// A position at which the tail can be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// The index of the first tail message that stays.
    pub(super) at: usize,
    anchor: Anchor,
    size: usize,
}

#[derive(Clone, Copy, Debug)]
enum Anchor {
    /// The cut is at a user message, or the conversation has none.
    None,
    /// Pinned by an earlier cut of the same turn.
    Pinned,
    /// At this index of the tail.
    Tail(usize),
}

/// Chooses a cut for a trim, and decides whether the summary stays.
///
/// The newest turn has priority over the summary, and the summary over older turns: the summary
/// is dropped only if the newest turn is whole without it and cut with it, or if not even the
/// newest exchange fits beside it.
pub(super) fn plan_trim(
    conversation: &Conversation,
    state: &StateManager,
) -> Result<(Cut, SummaryChange), Error> {
    let turn = newest_turn(conversation);
    let with = choose(conversation, state, conversation.summary_tokens());
    if let Ok(cut) = with
        && cut.at <= turn
    {
        return Ok((cut, SummaryChange::Keep));
    }
    let without = choose(conversation, state, 0)?;
    match with {
        Ok(cut) if without.at > turn => Ok((cut, SummaryChange::Keep)),
        _ => Ok((without, SummaryChange::Drop)),
    }
}

/// Chooses a cut that leaves tokens for a summary that is yet to be made.
pub(super) fn plan_summary(
    conversation: &Conversation,
    state: &StateManager,
) -> Result<Cut, Error> {
    choose(conversation, state, state.summary_cost()).or_else(|_| choose(conversation, state, 0))
}

/// The module documentation describes the choice.
fn choose(conversation: &Conversation, state: &StateManager, summary: usize) -> Result<Cut, Error> {
    let (budget, low) = (state.budget(), state.low_water_mark());
    let fixed = conversation.prompt_tokens() + summary;
    let turn = newest_turn(conversation);
    let (mut newest, mut whole_turn, mut best) = (None, None, None);
    for cut in cuts(conversation, fixed) {
        newest = newest.or(Some(cut));
        if cut.at <= turn {
            whole_turn = whole_turn.or(Some(cut));
        }
        if cut.size <= low {
            best = Some(cut);
        } else if whole_turn.is_some() {
            break;
        }
    }
    let within_budget = |cut: &Cut| cut.size <= budget;
    best.filter(|cut| cut.at <= turn)
        .or(whole_turn.filter(within_budget))
        .or(best)
        .or(newest.filter(within_budget))
        .ok_or_else(|| state.over_limit(newest.map_or(fixed, |cut| cut.size)))
}

/// The index at which the newest turn starts; it may have been cut before.
fn newest_turn(conversation: &Conversation) -> usize {
    let user = conversation.last_user();
    user.unwrap_or(conversation.body_start())
}

/// All cuts, newest first, so with ascending sizes.
fn cuts(conversation: &Conversation, fixed: usize) -> impl Iterator<Item = Cut> {
    let tail = conversation.tail();
    let pinned = conversation.pinned_anchor().is_some();
    let is_user = |index: &usize| tail[*index].role == Role::User;
    let first_user = (0..tail.len()).find(is_user);
    // An assistant's greeting before the first user message must not come first in the view.
    let oldest = first_user.filter(|_| !pinned);
    let oldest = oldest.unwrap_or(conversation.body_start());
    let mut suffix = 0;
    // The user message of the turn of the last cut: looked for once in each turn.
    let mut user = tail.len();
    (oldest..tail.len()).rev().filter_map(move |at| {
        let entry = tail[at];
        suffix += entry.tokens;
        let (anchor, anchor_tokens) = match entry.role {
            Role::Tool => return None,
            Role::User => (Anchor::None, 0),
            _ if first_user.is_some_and(|first| first < at) => {
                if user > at {
                    user = (oldest..at).rfind(is_user).unwrap_or(oldest);
                }
                (Anchor::Tail(user), tail[user].tokens)
            }
            _ if pinned => (Anchor::Pinned, conversation.anchor_tokens()),
            _ => (Anchor::None, 0),
        };
        let size = fixed + anchor_tokens + suffix;
        Some(Cut { at, anchor, size })
    })
}

/// The cut at a sequence number that was chosen earlier. It removes nothing if that message has
/// left the view since.
pub(super) fn cut_at(conversation: &Conversation, seq: u64) -> Cut {
    let first = conversation.history().first_seq();
    let at = seq.saturating_sub(first) as usize;
    let found = cuts(conversation, 0).find(|cut| cut.at == at);
    found.unwrap_or(Cut {
        at: 0,
        anchor: Anchor::None,
        size: 0,
    })
}

/// Moves the messages before the cut out of view.
pub(super) fn apply(
    conversation: &mut Conversation,
    state: &StateManager,
    cut: &Cut,
    summary: SummaryChange,
) {
    let body = conversation.body_start();
    if cut.at <= body {
        let pinned = conversation.history().pinned().to_vec();
        conversation.cut(pinned, summary, 0, state);
        return;
    }
    let anchor = match cut.anchor {
        Anchor::None => None,
        Anchor::Pinned => conversation.pinned_anchor(),
        Anchor::Tail(user) => conversation.tail_message(user),
    };
    let prompt = (0..body).filter_map(|index| conversation.tail_message(index));
    let pinned = conversation.pinned_prompt().chain(prompt).chain(anchor);
    let pinned: Vec<Message> = pinned.cloned().collect();
    conversation.cut(pinned, summary, cut.at, state);
}

/// The fewest tokens to which a trim can reduce the conversation with `message` appended: the
/// prompt, the user message of the newest turn, and the newest exchange.
pub(super) fn least(conversation: &Conversation, message: &Message, tokens: usize) -> usize {
    let prompt = conversation.prompt_tokens();
    if message.role == Role::User {
        return prompt + tokens;
    }
    let tail = conversation.tail();
    let user = match conversation.last_user() {
        Some(user) => tail[user].tokens,
        None => conversation.anchor_tokens(),
    };
    let exchange = match message.role {
        Role::Tool => {
            let asked = tail.iter().rposition(|entry| entry.role != Role::Tool);
            let asked = asked.unwrap_or_default();
            tail.range(asked..).map(|entry| entry.tokens).sum()
        }
        _ => 0,
    };
    prompt + user + exchange + tokens
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::{TokenCounter, ToolCallRequest, ToolCallResult};

    /// Counts the number in a text: a message says how many tokens it has.
    struct Given;

    impl TokenCounter for Given {
        fn count_text(&self, text: &str) -> usize {
            text.parse().unwrap_or_default()
        }

        fn per_message(&self) -> usize {
            0
        }

        fn per_call(&self) -> usize {
            0
        }

        fn per_request(&self) -> usize {
            0
        }
    }

    fn calls(tokens: &str, id: &str) -> Message {
        let call = ToolCallRequest::new(id, "tool", json!({}));
        Message::assistant(tokens).with_tool_calls(vec![call])
    }

    fn result(tokens: &str, id: &str) -> Message {
        Message::tool(vec![ToolCallResult::new(id, json!(tokens))])
    }

    /// Trims a list with a budget of 100 and a low-water mark of 75, and checks which messages are
    /// in view afterwards, by their tokens.
    #[track_caller]
    fn check(messages: &[Message], expected: &[&str]) {
        let state = StateManager::new(100).answer_tokens(0).counter(Given);
        let history = messages.iter().cloned().collect();
        let mut conversation = state.conversation(history).unwrap();
        state.trim(&mut conversation).unwrap();
        let text = |message: &Message| match message.tool_results.first() {
            Some(result) => result.result.as_str().unwrap_or_default().to_owned(),
            None => message.content.clone().unwrap_or_default(),
        };
        let view: Vec<String> = conversation.iter().map(text).collect();
        assert_eq!(view, expected);
    }

    /// The example of the module documentation.
    fn example() -> Vec<Message> {
        vec![
            Message::system("10"),
            Message::user("5"),
            calls("20", "a"),
            result("15", "a"),
            Message::assistant("10"),
            Message::user("5"),
            calls("10", "b"),
            result("20", "b"),
            Message::assistant("15"),
        ]
    }

    #[test]
    fn the_largest_view_within_the_low_water_mark_is_chosen() {
        let view = ["10", "5", "10", "5", "10", "20", "15"];
        check(&example(), &view);
    }

    #[test]
    fn a_whole_newest_turn_may_exceed_the_low_water_mark() {
        let mut messages = example();
        messages.push(Message::assistant("30"));
        check(&messages, &["10", "5", "10", "20", "15", "30"]);
    }

    #[test]
    fn a_newest_turn_over_the_budget_is_cut_behind_its_question() {
        let mut messages = example();
        messages.push(Message::assistant("45"));
        check(&messages, &["10", "5", "15", "45"]);
    }

    #[test]
    fn the_newest_exchange_may_exceed_the_low_water_mark() {
        let mut messages = example();
        messages.push(Message::assistant("80"));
        check(&messages, &["10", "5", "80"]);
    }
}
