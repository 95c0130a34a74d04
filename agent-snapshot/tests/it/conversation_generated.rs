//! Conversations generated from numbers: cheap to make, and they shrink well.

use agent_snapshot::conversation::{Message, Role, ToolCallRequest, ToolCallResult};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::json;

/// The shape of a generated conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Tools,
    Parallel,
    Japanese,
    /// One user message and many tool rounds.
    Agentic,
    /// With results that are missing, late, doubled or without a call.
    Interrupted,
}

/// Runs `check` on generated conversations. They are the same in every run unless
/// `CONVERSATION_SEED` is set; `CONVERSATION_CASES` replaces their number.
pub(crate) fn for_each(
    kind: Kind,
    cases: u32,
    check: impl Fn(&[Message]) -> Result<(), TestCaseError>,
) {
    let number = |name: &str| Some(std::env::var(name).ok()?.parse::<u64>().unwrap());
    let cases = number("CONVERSATION_CASES").map_or(cases, |n| n as u32);
    let mut seed = [kind as u8; 32];
    seed[..8].copy_from_slice(&number("CONVERSATION_SEED").unwrap_or(7).to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let length = if kind == Kind::Agentic { 20..80 } else { 1..24 };
    TestRunner::new_with_rng(config, rng)
        .run(&vec(any::<u32>(), length), |numbers| {
            check(&build(kind, &numbers))
        })
        .unwrap();
}

/// A conversation. Seven of eight start with a system prompt.
pub(crate) fn build(kind: Kind, numbers: &[u32]) -> Vec<Message> {
    let mut builder = Builder {
        kind,
        messages: Vec::with_capacity(numbers.len() * 2 + 2),
        calls: 0,
    };
    let first = numbers.first().copied().unwrap_or(0);
    if !first.is_multiple_of(8) {
        builder.push(Message::system(text(kind, first >> 3, 24)));
    }
    builder.push(Message::user(text(kind, first >> 9, 30)));
    for number in &numbers[1..] {
        builder.step(*number);
    }
    builder.messages
}

struct Builder {
    kind: Kind,
    messages: Vec<Message>,
    calls: usize,
}

impl Builder {
    fn push(&mut self, mut message: Message) {
        message.id = Some(format!("m{}", self.messages.len()));
        message.timestamp = Some("2026-01-01T00:00:00Z".into());
        self.messages.push(message);
    }

    fn step(&mut self, n: u32) {
        // Low bits choose the step, high bits its size: shrinking makes both simpler.
        let (choice, n) = (n % 16, n >> 4);
        match self.kind {
            Kind::Agentic => match choice {
                0 => self.say(Message::assistant(text(self.kind, n, 40))),
                _ => self.round(n, 1 + n % 3, 60),
            },
            Kind::Chat | Kind::Japanese => match choice {
                0..=6 => self.say(Message::user(text(self.kind, n, 60))),
                7 => self.say(Message::system(text(self.kind, n, 20))),
                8 => self.round(n, 1, 60),
                _ => self.say(Message::assistant(text(self.kind, n, 60))),
            },
            Kind::Tools | Kind::Parallel | Kind::Interrupted => match choice {
                0..=3 => self.say(Message::user(text(self.kind, n, 40))),
                4..=6 => self.say(Message::assistant(text(self.kind, n, 40))),
                7 if self.kind == Kind::Interrupted => self.stray_result(n),
                _ if self.kind == Kind::Tools => self.round(n, 1, 60),
                _ => self.round(n, 1 + n % 4, 60),
            },
        }
    }

    fn say(&mut self, message: Message) {
        self.push(message);
    }

    /// An assistant message with calls, and their results in one message or in many.
    fn round(&mut self, n: u32, calls: u32, size: u32) {
        let first = self.calls;
        self.calls += calls as usize;
        let requests = (first..self.calls).map(|id| {
            let args = json!({"path": text(self.kind, n >> 3, size / 8), "n": id});
            ToolCallRequest::new(format!("c{id}"), "read_file", args)
        });
        let mut asked = Message::new(Role::Assistant);
        if n.is_multiple_of(5) {
            asked.content = Some(text(self.kind, n >> 5, size / 4));
        }
        self.push(asked.with_tool_calls(requests.collect()));
        let mut results: Vec<_> = (first..self.calls)
            .map(|id| {
                let words = text(self.kind, (n >> 2).wrapping_add(id as u32 * 7), size);
                match id % 7 {
                    0 => ToolCallResult::error(format!("c{id}"), json!(words)),
                    1 => ToolCallResult::new(format!("c{id}"), json!({"out": words})),
                    _ => ToolCallResult::new(format!("c{id}"), json!(words)),
                }
            })
            .collect();
        if n % 4 == 1 {
            results.reverse();
        }
        if self.kind == Kind::Interrupted && n.is_multiple_of(3) {
            results.truncate(n as usize % (results.len() + 1));
        }
        if n.is_multiple_of(2) {
            for result in results {
                self.push(Message::tool(vec![result]));
            }
        } else if !results.is_empty() {
            self.push(Message::tool(results));
        }
    }

    /// A result that is late, doubled, or without a call.
    fn stray_result(&mut self, n: u32) {
        let id = format!("c{}", n as usize % (self.calls + 2));
        self.push(Message::tool(vec![ToolCallResult::new(id, json!("late"))]));
    }
}

fn text(kind: Kind, n: u32, words: u32) -> String {
    const ENGLISH: &str = "alpha beta gamma delta ";
    const JAPANESE: &str = "状態を保存する。";
    let count = 1 + (n % words.max(1)) as usize;
    // Whole repetitions: most of the time of these tests is spent on making texts.
    match kind {
        Kind::Japanese => JAPANESE.repeat(count.div_ceil(3)),
        _ => ENGLISH.repeat(count.div_ceil(4)),
    }
}
