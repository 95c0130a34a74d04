//! Trimming, with 101,000 generated conversations.

use std::cell::Cell;

use agent_snapshot::History;
use agent_snapshot::conversation::{
    Error, Estimator, Message, Part, Role, Source, StateManager, TokenCounter, ToolCallRequest,
    ToolCallResult, repair,
};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};
use serde_json::json;

use crate::conversation_generated::{Kind, for_each};
use crate::conversation_rules::{acceptable, list_rules};

#[test]
fn trimmed_chats_are_acceptable() {
    for_each(Kind::Chat, 30_000, |list| grow(list, 300).map(drop));
}

#[test]
fn trimmed_tool_conversations_are_acceptable() {
    for_each(Kind::Tools, 20_000, |list| grow(list, 300).map(drop));
}

#[test]
fn trimmed_parallel_calls_are_acceptable() {
    for_each(Kind::Parallel, 12_000, |list| grow(list, 500).map(drop));
}

#[test]
fn trimmed_japanese_is_acceptable() {
    for_each(Kind::Japanese, 30_000, |list| grow(list, 500).map(drop));
}

#[test]
fn repaired_and_trimmed_interruptions_are_acceptable() {
    for_each(Kind::Interrupted, 8_000, |list| {
        let repaired = repair(list.to_vec()).messages;
        acceptable(&repaired).map_err(TestCaseError::fail)?;
        let again = repair(repaired.clone());
        prop_assert_eq!(&again.messages, &repaired, "repair is not idempotent");
        prop_assert!(again.aborted.is_empty() && again.dropped.is_empty());
        grow(&repaired, 500).map(drop)
    });
}

#[test]
fn trimmed_agentic_turns_use_95_percent_of_the_low_water_mark() {
    let (used, trims) = (Cell::new(0.0), Cell::new(0));
    for_each(Kind::Agentic, 1_000, |list| {
        for share in grow(list, 4_000)? {
            used.set(used.get() + share);
            trims.set(trims.get() + 1);
        }
        Ok(())
    });
    assert!(trims.get() > 100);
    let mean = used.get() / f64::from(trims.get());
    assert!(
        mean >= 0.95,
        "{mean} of the low-water mark is used on average"
    );
}

#[test]
fn trimmed_agentic_turns_with_images_use_95_percent_of_the_budget() {
    let (used, trims) = (Cell::new(0.0), Cell::new(0));
    for_each(Kind::Agentic, 20, |list| {
        let state = StateManager::new(80_000).low_water(100);
        let mut conversation = state.conversation(History::new()).unwrap();
        for message in list.iter().cycle().take(800) {
            let mut message = message.clone();
            message.id = None;
            for result in message.tool_results.iter_mut().take(1) {
                // A screen shot: 1,369 tokens.
                let source = Source::url("https://example.org/screen.png");
                result.parts = vec![Part::image(source)];
            }
            state.append(&mut conversation, message).unwrap();
            if state.needs_trim(&conversation) {
                state.trim(&mut conversation).unwrap();
                let share = conversation.tokens() as f64 / state.budget() as f64;
                prop_assert!(share <= 1.0);
                used.set(used.get() + share);
                trims.set(trims.get() + 1);
            }
        }
        Ok(())
    });
    assert!(trims.get() > 100);
    let mean = used.get() / f64::from(trims.get());
    assert!(mean >= 0.95, "{mean} of the budget is used on average");
}

/// Appends message by message, trims when needed, and checks each trim. Returns, for each trim,
/// the share of the low-water mark that is in use after it.
fn grow(list: &[Message], limit: usize) -> Result<Vec<f64>, TestCaseError> {
    let state = StateManager::new(limit).answer_tokens(limit / 10);
    let mut conversation = state.conversation(History::new()).unwrap();
    let mut shares = Vec::new();
    for message in list {
        // A message that does not fit alone ends the conversation.
        match state.append(&mut conversation, message.clone()) {
            Ok(_) => {}
            Err(Error::OverLimit { over, .. }) => {
                prop_assert!(over > 0);
                break;
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
        if !state.needs_trim(&conversation) {
            continue;
        }
        let before = conversation.history().clone();
        let trimmed = state.trim(&mut conversation).unwrap();
        prop_assert!(trimmed.messages > 0);
        check_trim(&state, &before, conversation.history())?;
        shares.push(conversation.tokens() as f64 / state.low_water_mark() as f64);
    }
    state.abort_open_calls(&mut conversation);
    if state.needs_trim(&conversation) {
        // The error results of the aborted calls may exceed the budget.
        match state.trim(&mut conversation) {
            Ok(_) => {}
            Err(Error::OverLimit { .. }) => return Ok(shares),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }
    let view: Vec<Message> = conversation.iter().cloned().collect();
    acceptable(&view).map_err(TestCaseError::fail)?;
    prop_assert_eq!(conversation.tokens(), tokens(&view));
    Ok(shares)
}

fn tokens(messages: &[Message]) -> usize {
    messages.iter().map(|m| Estimator.count_message(m)).sum()
}

/// Compares a trim with all possible cuts; each is counted independently.
fn check_trim(
    state: &StateManager,
    before: &History,
    after: &History,
) -> Result<(), TestCaseError> {
    let before: Vec<&Message> = before.iter().collect();
    let after: Vec<&Message> = after.iter().collect();
    let (budget, low) = (state.budget(), state.low_water_mark());
    let choices = choices(&before);
    let is_after = |choice: &Choice| {
        choice
            .kept(&before)
            .map(|m| &m.id)
            .eq(after.iter().map(|m| &m.id))
    };

    let chosen = choices.iter().position(is_after);
    prop_assert!(chosen.is_some(), "kept {:?} of {:?}", after, before);
    let chosen = chosen.unwrap();
    let used = choices[chosen].tokens;
    prop_assert!(used <= budget, "{used} of {budget}");

    let last_user = before.iter().rposition(|m| m.role == Role::User);
    let turn = choices
        .iter()
        .find(|choice| last_user.is_none_or(|user| choice.from <= user));
    let turn = turn.unwrap();
    let whole_turn = choices[chosen].from <= turn.from;
    if turn.tokens <= budget {
        prop_assert!(whole_turn, "the newest turn was cut though it fits");
    }
    if used <= low {
        let more = choices
            .get(chosen + 1)
            .map_or(usize::MAX, |choice| choice.tokens);
        prop_assert!(more > low, "more would have fitted");
    } else {
        // Above the mark only for the newest turn, or the newest exchange, alone.
        let least = if whole_turn { turn } else { &choices[0] };
        prop_assert_eq!(choices[chosen].from, least.from);
    }
    // The last exchange may have open calls; all before it must be acceptable.
    let answered = match after.iter().rposition(|m| !m.tool_calls.is_empty()) {
        Some(asked) if !answers_all(&after[asked..]) => &after[..asked],
        _ => &after[..],
    };
    list_rules(answered).map_err(TestCaseError::fail)
}

fn answers_all(exchange: &[&Message]) -> bool {
    let results: usize = exchange.iter().map(|m| m.tool_results.len()).sum();
    results >= exchange[0].tool_calls.len()
}

/// A possible view: the prompt, the anchor, and all messages from an index on.
struct Choice {
    prompt: usize,
    user: Option<usize>,
    from: usize,
    tokens: usize,
}

impl Choice {
    fn kept<'a>(&self, messages: &'a [&Message]) -> impl Iterator<Item = &'a Message> {
        let kept = (0..self.prompt)
            .chain(self.user)
            .chain(self.from..messages.len());
        kept.map(|index| messages[index])
    }
}

/// All possible views, the smallest first.
fn choices(messages: &[&Message]) -> Vec<Choice> {
    let counts: Vec<usize> = messages
        .iter()
        .map(|m| Estimator.count_message(m))
        .collect();
    let prompt = usize::from(messages[0].role == Role::System);
    let fixed: usize = counts[..prompt].iter().sum();
    let mut choices: Vec<Choice> = Vec::new();
    let mut suffix = 0;
    for from in (prompt..messages.len()).rev() {
        suffix += counts[from];
        if messages[from].role == Role::Tool {
            continue;
        }
        let user = match messages[from].role {
            Role::User => None,
            _ => messages[..from].iter().rposition(|m| m.role == Role::User),
        };
        let tokens = fixed + suffix + user.map_or(0, |user| counts[user]);
        // A cut behind a user message and a cut at it give the same view.
        let same = |last: &Choice| last.user == Some(from) && last.from == from + 1;
        if choices.last().is_some_and(same) {
            choices.pop();
        }
        choices.push(Choice {
            prompt,
            user,
            from,
            tokens,
        });
    }
    choices
}

fn rounds(count: usize) -> Vec<Message> {
    let mut list = vec![
        Message::system("You are an agent."),
        Message::user("Do it all."),
    ];
    for n in 0..count {
        let call = ToolCallRequest::new(format!("c{n}"), "step", json!({"n": n}));
        list.push(Message::assistant("").with_tool_calls(vec![call]));
        let result = ToolCallResult::new(format!("c{n}"), json!("output ".repeat(20)));
        list.push(Message::tool(vec![result]));
    }
    list
}

#[test]
fn a_turn_of_80_rounds_is_cut_inside_and_keeps_its_question() {
    let state = StateManager::new(1_500).answer_tokens(0);
    let mut conversation = state
        .conversation(rounds(80).into_iter().collect())
        .unwrap();
    assert!(state.needs_trim(&conversation));
    let trimmed = state.trim(&mut conversation).unwrap();
    assert!(trimmed.messages > 100, "{trimmed:?}");
    let view: Vec<Message> = conversation.iter().cloned().collect();
    acceptable(&view).unwrap();
    assert_eq!(view[0].content.as_deref(), Some("You are an agent."));
    assert_eq!(view[1].content.as_deref(), Some("Do it all."));
    assert_eq!(view.last().unwrap().tool_results[0].tool_call_id, "c79");
    assert!(conversation.tokens() <= state.low_water_mark());
    // The stream is complete.
    assert_eq!(conversation.history().next_seq(), 162);
}

#[test]
fn a_message_over_the_budget_is_refused_with_the_excess_and_changes_nothing() {
    let state = StateManager::new(200).answer_tokens(50);
    let mut conversation = state.conversation(History::new()).unwrap();
    state
        .append(&mut conversation, Message::user("short"))
        .unwrap();
    let before = conversation.history().clone();
    let long = Message::user("word ".repeat(1_000));
    let needed = Estimator.count_message(&long);
    let error = state.append(&mut conversation, long.clone()).unwrap_err();
    let over = needed - state.budget();
    assert!(
        error.to_string().ends_with(&format!("by {over}")),
        "{error}"
    );
    assert_eq!(*conversation.history(), before);

    // The same for a list that is given as a whole.
    let mut given = state
        .conversation([Message::user("first"), long].into_iter().collect())
        .unwrap();
    let before = given.history().clone();
    assert!(matches!(state.trim(&mut given), Err(Error::OverLimit { over: o, .. }) if o == over));
    assert_eq!(*given.history(), before);
}

#[test]
fn the_low_water_mark_keeps_the_prefix_stable() {
    let stable = |percent: u8| {
        let state = StateManager::new(4_000).answer_tokens(0).low_water(percent);
        let mut conversation = state.conversation(History::new()).unwrap();
        let (mut kept, mut sent) = (0, 0);
        let mut last: Vec<Message> = Vec::new();
        for message in rounds(400) {
            state.append(&mut conversation, message).unwrap();
            if !conversation.open_calls().is_empty() {
                continue;
            }
            state.trim(&mut conversation).unwrap();
            let view: Vec<Message> = conversation.iter().cloned().collect();
            // Only when the window is full: before, no message is trimmed.
            if conversation.history().first_seq() > 0 {
                sent += 1;
                kept += usize::from(view.starts_with(&last));
            }
            last = view;
        }
        kept as f64 / f64::from(sent)
    };
    let (with, without) = (stable(75), stable(100));
    assert!(with > 0.9, "{with}");
    assert!(without < 0.1, "{without}");
}
