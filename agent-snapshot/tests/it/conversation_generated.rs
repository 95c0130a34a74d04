//! Conversations generated from numbers: cheap to make, and they shrink well.

use agent_snapshot::conversation::{
    Message, Part, Provider, Role, Source, ToolCallRequest, ToolCallResult,
};
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
    /// All of this, and images, documents, reasoning and data of all providers, system messages in
    /// between, call ids that are used again, odd ids and names, blank and oversize texts.
    Everything,
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
            Kind::Everything => match choice {
                0..=2 => self.say(Message::user(odd_text(n)).with_parts(media(n >> 3))),
                3 => self.say(Message::system(odd_text(n))),
                4..=6 => self.answer(n),
                7 => self.stray_result(n),
                8 => self.say(Message::new([Role::User, Role::Assistant][n as usize % 2])),
                _ => self.odd_round(n),
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

    fn answer(&mut self, n: u32) {
        let mut parts = reasoning(n);
        match n % 5 {
            0 => parts.push(Part::text(odd_text(n >> 2))),
            1 => parts.extend(media(n >> 2)),
            2 => parts.extend(provider_data(n >> 2)),
            _ => {}
        }
        self.say(Message::assistant(odd_text(n >> 3)).with_parts(parts));
    }

    /// Calls with odd ids and names, some of them used before, and most of their results.
    fn odd_round(&mut self, n: u32) {
        let count = 1 + n as usize % 3;
        let ids: Vec<String> = (0..count)
            .map(|at| match (n as usize + at) % 7 {
                0 => String::new(),
                1 => "call_0".to_owned(),
                2 => format!("functions.read:{at}"),
                3 => "x".repeat(70),
                4 => "状態".to_owned(),
                _ => format!("c{}", (n >> 4) as usize % (self.calls + 2)),
            })
            .collect();
        self.calls += count;
        let names = [
            "read_file",
            "fs.read",
            "9lives",
            "検索",
            "mcp__server__tool",
        ];
        let calls = ids.iter().enumerate().map(|(at, id)| {
            let args = match (n as usize + at) % 4 {
                0 => json!(null),
                1 => json!("not an object"),
                _ => json!({"path": odd_text(n >> 6), "n": at}),
            };
            let name = names[(n as usize + at) % names.len()];
            let mut call = ToolCallRequest::new(id.clone(), name, args);
            if n.is_multiple_of(6) {
                let own = json!({"thoughtSignature": "c2lnbmVk"});
                call.extra.insert("gemini".to_owned(), own);
            }
            call
        });
        let mut parts = reasoning(n >> 3);
        if n.is_multiple_of(4) {
            // The places of the calls, with reasoning in between.
            parts.push(Part::Call { id: ids[0].clone() });
            parts.extend(reasoning(n >> 5));
        }
        let mut asked = Message::new(Role::Assistant).with_tool_calls(calls.collect());
        if n.is_multiple_of(3) {
            asked.content = Some(odd_text(n >> 5));
        }
        self.push(asked.with_parts(parts));
        let mut results: Vec<_> = ids
            .iter()
            .enumerate()
            .map(|(at, id)| {
                let n = (n >> 2).wrapping_add(at as u32 * 5);
                let mut result = match n % 6 {
                    0 => ToolCallResult::error(id.clone(), json!(odd_text(n >> 3))),
                    1 => ToolCallResult::new(id.clone(), json!({"out": odd_text(n >> 3)})),
                    2 => ToolCallResult::new(id.clone(), json!({"output": 1, "error": [2]})),
                    3 => ToolCallResult::new(id.clone(), json!(null)),
                    _ => ToolCallResult::new(id.clone(), json!(odd_text(n >> 3))),
                };
                if n.is_multiple_of(5) {
                    result.parts = media(n >> 3);
                }
                result
            })
            .collect();
        if n % 4 == 1 {
            results.reverse();
        }
        if n.is_multiple_of(5) {
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

/// Texts of which some are blank, Japanese, oversize, or end with white space.
fn odd_text(n: u32) -> String {
    match n % 16 {
        0 => String::new(),
        1 => " \n".to_owned(),
        2 | 3 => format!("{} \n ", text(Kind::Chat, n >> 4, 8)),
        4..=6 => text(Kind::Japanese, n >> 4, 20),
        7 => "🦀 \"quoted\" \\ \u{0} <|endoftext|> ".repeat(1 + (n >> 4) as usize % 3),
        8 if (n >> 4).is_multiple_of(8) => text(Kind::Japanese, u32::MAX, 4_000),
        _ => text(Kind::Chat, n >> 4, 30),
    }
}

/// No more than two images or documents, from every kind of source.
fn media(n: u32) -> Vec<Part> {
    // A PNG of 1 by 1 pixel.
    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let one = |n: u32| match n % 16 {
        0 | 1 => Some(Part::image(Source::base64("image/png", PNG))),
        2 => Some(Part::image(Source::base64(
            "image/gif",
            "R0lGODlhAQABAAAAADs=",
        ))),
        3 => Some(Part::image(Source::base64("image/bmp", "Qk0="))),
        4 => Some(Part::image(Source::url("https://example.org/photo.jpg"))),
        5 => Some(Part::image(file(n))),
        6 => Some(Part::document(
            Source::base64("application/pdf", "JVBERi0xLjc="),
            "報告.pdf",
        )),
        7 => Some(Part::document(
            Source::base64("text/plain", "aGVsbG8="),
            "a.txt",
        )),
        8 => Some(Part::document(
            Source::url("https://example.org/a.pdf"),
            "a.pdf",
        )),
        9 => Some(Part::document(file(n), "b.pdf")),
        10 => Some(Part::text(odd_text(n >> 4))),
        _ => None,
    };
    one(n).into_iter().chain(one(n >> 7)).collect()
}

fn file(n: u32) -> Source {
    let file = json!({"type": "file", "provider": provider(n >> 4), "id": "file_1"});
    serde_json::from_value(file).unwrap()
}

fn provider(n: u32) -> Provider {
    Provider::ALL[n as usize % 4]
}

fn reasoning(n: u32) -> Vec<Part> {
    let provider = provider(n);
    let text = text(Kind::Chat, n >> 4, 12);
    let mut part = Part::reasoning(provider, text, "c2lnbmF0dXJl");
    if let Part::Reasoning {
        extra, signature, ..
    } = &mut part
    {
        match n % 8 {
            0 => *signature = None,
            1 => return Vec::new(),
            _ => {}
        }
        if provider == Provider::OpenAiResponses {
            extra.insert(provider.to_string(), json!({"id": format!("rs_{n}")}));
        }
        if provider == Provider::OpenAiChat {
            *signature = None;
        }
    }
    vec![part]
}

fn provider_data(n: u32) -> Option<Part> {
    let data = match provider(n) {
        Provider::Anthropic => json!({"type": "redacted_thinking", "data": "ZGF0YQ=="}),
        Provider::OpenAiResponses => json!({
            "type": "web_search_call", "id": "ws_1", "status": "completed",
            "action": {"type": "search", "query": "rust"},
        }),
        Provider::Gemini => json!({"executableCode": {"language": "PYTHON", "code": "1"}}),
        _ => return None,
    };
    let part = json!({"type": "provider", "provider": provider(n), "data": data});
    Some(serde_json::from_value(part).unwrap())
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
