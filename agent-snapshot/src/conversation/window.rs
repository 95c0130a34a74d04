//! Where a conversation is cut.
//!
//! Cuts lie between exchanges. A cut inside a turn keeps the user message that opened the
//! turn (its *anchor*), because a request has to start with one. Cutting further back only
//! ever adds messages: sizes grow monotonically, and the best cut is the last one that fits.

use super::{Conversation, Message, Role, StateManager};
use crate::Error;

/// Keep the tail from `at` on, and the anchor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) at: usize,
    anchor: Anchor,
    size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Anchor {
    /// The cut is at a user message, or there is none.
    None,
    /// The one that an earlier cut left in front.
    Pinned,
    /// The one at this place of the tail.
    Tail(usize),
}

/// What a trim keeps, and whether the summary is kept too.
pub(super) fn plan(
    conversation: &Conversation,
    state: &StateManager,
) -> Result<(Cut, bool), Error> {
    let summary = conversation.summary_tokens();
    if summary == 0 {
        return Ok((choose(conversation, state, 0)?.cut, true));
    }
    // The newest turn goes before the summary, the summary before older turns.
    match choose(conversation, state, summary) {
        Ok(choice) if choice.whole_turn => Ok((choice.cut, true)),
        with => match (with, choose(conversation, state, 0)?) {
            (Ok(with), without) if !without.whole_turn => Ok((with.cut, true)),
            (_, without) => Ok((without.cut, false)),
        },
    }
}

/// What is kept beside a summary that is still to be made.
pub(super) fn plan_for_summary(
    conversation: &Conversation,
    state: &StateManager,
) -> Result<Cut, Error> {
    let summary = state.tokens().per_message()
        + state.tokens().count_text(state.prefix())
        + state.summary_tokens();
    choose(conversation, state, summary)
        .or_else(|_| choose(conversation, state, 0))
        .map(|choice| choice.cut)
}

struct Choice {
    cut: Cut,
    whole_turn: bool,
}

fn choose(
    conversation: &Conversation,
    state: &StateManager,
    summary: usize,
) -> Result<Choice, Error> {
    let (room, low) = (state.room(), state.low_water_mark());
    let entries = conversation.entries();
    let body = usize::from(conversation.prompt_in_tail());
    let fixed = conversation.prompt_tokens() + summary;
    let pinned_user = conversation.pinned_user();
    let last_user = conversation.last_user();
    let turn = last_user.unwrap_or(body);

    let mut anchors = Anchors::new(conversation, body);
    let (mut suffix, mut best, mut turn_cut, mut newest) = (0, None, None, None);
    for at in (body..entries.len()).rev() {
        suffix += entries[at].tokens;
        let anchor = match entries[at].role {
            Role::Tool => continue,
            Role::User => Anchor::None,
            _ => match anchors.before(at) {
                Some(user) => Anchor::Tail(user),
                None if pinned_user.is_some() => Anchor::Pinned,
                // Only an assistant's greeting lies before the first user message. It may
                // not come first where there is anything else.
                None if last_user.is_some() => break,
                None => Anchor::None,
            },
        };
        let anchor_tokens = match anchor {
            Anchor::None => 0,
            Anchor::Pinned => conversation.anchor_tokens(),
            Anchor::Tail(user) => entries[user].tokens,
        };
        let size = fixed + anchor_tokens + suffix;
        let cut = Cut { at, anchor, size };
        newest = newest.or(Some(cut));
        if at == turn {
            turn_cut = Some(cut);
        }
        if size <= low {
            best = Some(cut);
        } else if at <= turn {
            break;
        }
    }
    if let Some(cut) = best.filter(|cut| cut.at <= turn) {
        return Ok(Choice {
            cut,
            whole_turn: true,
        });
    }
    if let Some(cut) = turn_cut.filter(|cut| cut.size <= room) {
        return Ok(Choice {
            cut,
            whole_turn: true,
        });
    }
    best.or(newest.filter(|cut| cut.size <= room))
        .map(|cut| Choice {
            cut,
            whole_turn: false,
        })
        .ok_or_else(|| state.over_limit(newest.map_or(fixed, |cut| cut.size)))
}

/// The user message before a place, looked for once in each turn.
struct Anchors<'a> {
    conversation: &'a Conversation,
    body: usize,
    found: Option<Option<usize>>,
}

impl<'a> Anchors<'a> {
    fn new(conversation: &'a Conversation, body: usize) -> Self {
        Self {
            conversation,
            body,
            found: None,
        }
    }

    /// Places must come in descending order.
    fn before(&mut self, at: usize) -> Option<usize> {
        match self.found {
            Some(None) => None,
            Some(Some(user)) if user < at => Some(user),
            _ => {
                let entries = self.conversation.entries();
                let user = (self.body..at)
                    .rev()
                    .find(|i| entries[*i].role == Role::User);
                self.found = Some(user);
                user
            }
        }
    }
}

/// Cuts, and drops the summary unless it is kept.
pub(super) fn apply(
    conversation: &mut Conversation,
    state: &StateManager,
    cut: &Cut,
    keep_summary: bool,
) {
    let summary = (!keep_summary).then_some(None);
    apply_with(conversation, state, cut, summary);
}

pub(super) fn apply_with(
    conversation: &mut Conversation,
    state: &StateManager,
    cut: &Cut,
    summary: Option<Option<Message>>,
) {
    let in_tail = conversation.prompt_in_tail();
    let body = usize::from(in_tail);
    if cut.at <= body {
        conversation.cut(None, summary, 0, state.tokens());
        return;
    }
    let mut pinned: Vec<Message> = conversation.pinned_prompt().cloned().collect();
    if in_tail {
        pinned.extend(conversation.tail_message(0).cloned());
    }
    match cut.anchor {
        Anchor::None => {}
        Anchor::Pinned => pinned.extend(conversation.pinned_user().cloned()),
        Anchor::Tail(user) => pinned.extend(conversation.tail_message(user).cloned()),
    }
    conversation.cut(Some(pinned), summary, cut.at, state.tokens());
}

/// The cut at a place that was chosen before further messages came or went.
pub(super) fn cut_at(conversation: &Conversation, at: usize) -> Cut {
    let body = usize::from(conversation.prompt_in_tail());
    let is_user = conversation
        .entries()
        .get(at)
        .is_some_and(|entry| entry.role == Role::User);
    let anchor = match Anchors::new(conversation, body).before(at) {
        _ if is_user => Anchor::None,
        Some(user) => Anchor::Tail(user),
        None if conversation.pinned_user().is_some() => Anchor::Pinned,
        None => Anchor::None,
    };
    Cut {
        at,
        anchor,
        size: 0,
    }
}

/// The tokens that are left when everything goes but for the prompt, the user message of the
/// newest turn and the newest exchange, with `message` appended.
pub(super) fn least(conversation: &Conversation, message: &Message, tokens: usize) -> usize {
    let prompt = conversation.prompt_tokens();
    if message.role == Role::User {
        return prompt + tokens;
    }
    let entries = conversation.entries();
    let body = usize::from(conversation.prompt_in_tail());
    let user = match conversation.last_user() {
        Some(user) => entries[user].tokens,
        None => conversation.anchor_tokens(),
    };
    let mut exchange = 0;
    if message.role == Role::Tool {
        for entry in entries.range(body..).rev() {
            exchange += entry.tokens;
            if entry.role != Role::Tool {
                break;
            }
        }
    }
    prompt + user + exchange + tokens
}
