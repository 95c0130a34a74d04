//! Conversations: updates of the token total, trimming, counting, the JSON of providers.

use std::cell::RefCell;
use std::fs::File;
use std::hint::black_box;
use std::io::BufWriter;
use std::process::Command;
use std::time::{Duration, Instant};

use agent_snapshot::History;
use agent_snapshot::conversation::{
    Conversation, Estimator, Message, OpenAiCounter, Provider, Role, StateManager, TokenCounter,
    ToolCallRequest, ToolCallResult, repair,
};
use benches::{Bench, Figure, Goal, Outside, Step, python, sample, thousands};
use serde_json::{Value, json};

/// Numbers of messages.
const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];

/// Appends in a sample.
const APPENDS: usize = 64;

fn main() {
    Bench::from_args("conversation").steps(vec![
        Step::new("append", 4, 2.0, append),
        Step::new("trim", 4, 5.0, trim),
        Step::new("counting", 4, 6.0, counting),
        Step::new("acceptance", 1, 6.0, acceptance),
        Step::new("providers", 4, 2.0, providers),
    ]);
}

fn append(bench: &mut Bench) {
    let state = StateManager::new(100_000_000);
    let small = filled(&state, 10);
    let mut runs = Vec::new();
    for size in SIZES {
        let list = filled(&state, size);
        let all: Vec<Message> = list.iter().cloned().collect();
        let name = thousands(size);
        let mut comparison = bench
            .compare(&format!("append with token upkeep, {name} messages"))
            .floor_timed("to 10 messages", || append_to(&state, &small))
            .differs("ours too, with a short list: an append without a long history")
            .ours_timed("to the list", || append_to(&state, &list))
            .peer_timed("counting the list anew", || {
                let start = Instant::now();
                let total: usize = all.iter().map(|m| Estimator.count_message(m)).sum();
                black_box(total);
                start.elapsed()
            })
            .differs("counts and does not append")
            .goal(Goal::at_most_floor(1.3));
        if size == 10_000 {
            comparison = comparison.headline();
        }
        runs.push((size, comparison.run()));
    }
    bench
        .growth("append with token upkeep", "messages", "ns")
        .rows(&runs)
        .report();
}

/// The time of one append, without the cost of the copy. The first appends are not timed: they
/// bring the copy into the processor's cache.
fn append_to(state: &StateManager, list: &Conversation) -> Duration {
    let mut list = list.clone();
    let messages: Vec<Message> = (0..2 * APPENDS).map(|n| chat(1_000_000 + n)).collect();
    let mut start = Instant::now();
    for (n, message) in messages.into_iter().enumerate() {
        if n == APPENDS {
            start = Instant::now();
        }
        black_box(state.append(&mut list, message).unwrap());
    }
    start.elapsed() / APPENDS as u32
}

fn filled(state: &StateManager, size: usize) -> Conversation {
    let history: History = (0..size).map(chat).collect();
    state.conversation(history).unwrap()
}

fn chat(n: usize) -> Message {
    let mut message = match n % 2 {
        0 => Message::user(sample::message(n, 200)),
        _ => Message::assistant(sample::message(n, 400)),
    };
    message.id = Some(format!("m{n}"));
    message.timestamp = Some("2026-01-01T00:00:00Z".into());
    message
}

fn trim(bench: &mut Bench) {
    let open = StateManager::new(100_000_000);
    let mut runs = Vec::new();
    for size in SIZES {
        let list = filled(&open, size);
        let all: Vec<Message> = list.iter().cloned().collect();
        // One token over the limit, so that a trim removes a quarter of the messages.
        let state = StateManager::new(list.tokens() - 1).answer_tokens(0);
        let budget = state.low_water_mark();
        let mut peer = LangChain::start(bench, [all.as_slice()], budget);
        let mut comparison = bench
            .compare(&format!("trim by a quarter, {} messages", thousands(size)))
            .ours_timed("down to the low-water mark", || {
                let mut list = list.clone();
                let start = Instant::now();
                black_box(state.trim(&mut list).unwrap());
                start.elapsed()
            })
            .peer_timed(PLAIN, || {
                let start = Instant::now();
                black_box(plain_window(&all, budget));
                start.elapsed()
            })
            .differs(PARTS_CALLS);
        if let Some(peer) = &mut peer {
            comparison = comparison
                .peer_timed(LANGCHAIN, || peer.trim(0, ""))
                .differs(LANGCHAIN_DIFFERS);
        }
        if size == 10_000 {
            comparison = comparison.goal(Goal::median_at_most_ms(10.0)).headline();
        }
        runs.push((size, comparison.run()));
    }
    bench
        .growth("trim by a quarter", "messages", "ns")
        .rows(&runs)
        .report();
}

const PLAIN: &str = "plain window, counting each time";
const PARTS_CALLS: &str = "can separate a tool call from its result";
const LANGCHAIN: &str = "LangChain trim_messages, counts given";
const LANGCHAIN_DIFFERS: &str = "gets the token count of each message; with its defaults it can separate a tool call from its \
     result";

fn counting(bench: &mut Bench) {
    let counter = OpenAiCounter::o200k();
    let mut estimates = Vec::new();
    for (name, text) in [
        ("English", sample::english()),
        ("Japanese", sample::japanese()),
        ("JSON lines", sample::transcripts()[0]),
        ("Rust source", sample::source()),
    ] {
        let mut other = bench.outside("bpe-openai", Command::new("bpe_openai_peer").arg(text));
        let mut comparison = bench
            .compare(&format!(
                "counting, {name}, {} bytes",
                thousands(text.len())
            ))
            .ours("OpenAiCounter (tiktoken-rs)", || {
                black_box(counter.count_text(black_box(text)));
            })
            .ours("Estimator", || {
                black_box(Estimator.count_text(black_box(text)));
            })
            .differs("an estimate; a table below shows its error");
        if let Some(other) = &mut other {
            assert_eq!(other.ask("count"), counter.count_text(text).to_string());
            comparison = comparison
                .peer_timed("bpe-openai", || other.time("32"))
                .differs("the same counts; its build takes most of a minute");
        }
        comparison.run();
        let estimate = Estimator.count_text(text) as f64 / counter.count_text(text) as f64;
        estimates.push((name, estimate));
    }
    let mut table = bench.table(
        "Estimator beside the vocabulary",
        &[("estimate / true count", "")],
    );
    for (name, estimate) in estimates {
        table = table.ours(name, [Figure::from(estimate)]);
    }
    table.report();
}

/// Whether providers accept the trimmed conversations, and the time of a trim.
fn acceptance(bench: &mut Bench) {
    let count = if bench.is_smoke() { 20 } else { 1_000 };
    let conversations: Vec<Vec<Message>> = (0..count).map(agentic).collect();
    let budget = 3_000;
    // A limit whose low-water mark is the budget, so that all contenders trim to the same size.
    let state = StateManager::new(budget * 4 / 3 + 4).answer_tokens(0);
    assert_eq!(state.low_water_mark(), budget);
    let open = |messages: &Vec<Message>| {
        state
            .conversation(messages.iter().cloned().collect())
            .unwrap()
    };
    let lists: Vec<Conversation> = conversations.iter().map(open).collect();
    let peer = LangChain::start(bench, conversations.iter().map(Vec::as_slice), budget);
    let peer = peer.map(RefCell::new);
    let (mut a, mut b, mut c, mut d) = (0, 0, 0, 0);
    let next = |turn: &mut usize| {
        *turn += 1;
        *turn % count
    };
    let mut comparison = bench
        .compare("trim of an agent's conversation, 150 messages to 3,000 tokens")
        .ours_timed("down to the low-water mark", || {
            let mut list = lists[next(&mut a)].clone();
            let start = Instant::now();
            black_box(state.trim(&mut list).unwrap());
            start.elapsed()
        })
        .peer_timed(PLAIN, || {
            let messages = &conversations[next(&mut b)];
            let start = Instant::now();
            black_box(plain_window(messages, budget));
            start.elapsed()
        })
        .differs(PARTS_CALLS)
        .headline();
    if let Some(peer) = &peer {
        comparison = comparison
            .peer_timed(LANGCHAIN, || peer.borrow_mut().trim(next(&mut c), ""))
            .differs(LANGCHAIN_DIFFERS)
            .peer_timed("the same with start_on=\"human\"", || {
                peer.borrow_mut().trim(next(&mut d), "human")
            })
            .differs("keeps only the prompt if a turn is longer than the budget");
    }
    comparison.run();

    let ours = lists.iter().map(|list| {
        let mut list = list.clone();
        state.trim(&mut list).unwrap();
        list.iter().cloned().collect()
    });
    let [refused, empty, used] = judge(ours, budget);
    let plain = conversations.iter().map(|all| plain_window(all, budget));
    let mut table = bench
        .table(
            &format!("{} trimmed conversations of agents", thousands(count)),
            &[
                ("refused by a provider", "%"),
                ("nothing left but the prompt", "%"),
                ("budget used", "%"),
            ],
        )
        .ours(
            "down to the low-water mark",
            [
                Figure::from(refused).goal(Goal::at_most(0.0)),
                empty.into(),
                Figure::from(used).goal(Goal::at_least(95.0)),
            ],
        )
        .peer(PLAIN, judge(plain, budget).map(Figure::from));
    if let Some(peer) = &peer {
        for (name, start_on) in [
            (LANGCHAIN, ""),
            ("the same with start_on=\"human\"", "human"),
        ] {
            let answer = peer.borrow_mut().peer.ask(&format!("judge {start_on}"));
            let shares: Vec<f64> = answer
                .split(' ')
                .map(|share| share.parse().unwrap())
                .collect();
            let [refused, empty, used] = shares[..] else {
                panic!("LangChain answered `{answer}`, not three shares");
            };
            table = table.peer(name, [refused, empty, used].map(Figure::from));
        }
    }
    table.report();
}

/// The JSON of each provider in both directions, for a conversation of recorded runs.
fn providers(bench: &mut Bench) {
    let list = transcript(150);
    for provider in Provider::ALL {
        let request = provider.request(&list).unwrap();
        let name = format!("JSON of {provider}, 150 messages of transcripts");
        bench
            .compare(&name)
            .floor("the messages as they are stored", || {
                black_box(serde_json::to_value(black_box(&list)).unwrap());
            })
            .differs("no check, no conversion")
            .ours("messages to request", || {
                black_box(provider.request(black_box(&list)).unwrap());
            })
            .ours("request to messages", || {
                black_box(provider.messages(black_box(&request)).unwrap());
            })
            .run();
    }
}

/// A conversation of recorded runs of Claude Code, which prints messages of the Anthropic API. The
/// runs repeat, and with them their call ids.
fn transcript(size: usize) -> Vec<Message> {
    let lines = sample::lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let spoken = lines.filter_map(|line| Provider::Anthropic.messages(line.get("message")?).ok());
    let mut list = vec![Message::system(sample::english())];
    for (number, message) in spoken.flatten().enumerate() {
        if message.role == Role::Assistant && !message.tool_calls.is_empty() {
            list.push(Message::user(sample::message(number, 300)));
        }
        list.push(message);
        if list.len() >= size {
            break;
        }
    }
    repair(list).messages
}

/// In percent: lists that a provider refuses, lists with only the prompt, and the used part of the
/// budget.
fn judge(lists: impl ExactSizeIterator<Item = Vec<Message>>, budget: usize) -> [f64; 3] {
    let count = lists.len() as f64;
    let (mut refused, mut empty, mut used) = (0.0, 0.0, 0.0);
    for list in lists {
        if list.iter().all(|message| message.role == Role::System) {
            empty += 1.0;
        } else if !acceptable(&list) {
            refused += 1.0;
        }
        let tokens: usize = list.iter().map(|m| Estimator.count_message(m)).sum();
        used += tokens as f64 / budget as f64;
    }
    [refused, empty, used].map(|share| 100.0 * share / count)
}

fn acceptable(messages: &[Message]) -> bool {
    let first = messages.iter().find(|m| m.role != Role::System);
    first.is_some_and(|m| m.role == Role::User)
        && Provider::ALL.iter().all(|p| p.request(messages).is_ok())
}

/// Removes the oldest messages, except the prompt, until the rest fits.
fn plain_window(messages: &[Message], budget: usize) -> Vec<Message> {
    let counts: Vec<usize> = messages
        .iter()
        .map(|m| Estimator.count_message(m))
        .collect();
    let mut total: usize = counts.iter().sum();
    let mut first = 1;
    while total > budget {
        total -= counts[first];
        first += 1;
    }
    let kept = messages[..1].iter().chain(&messages[first..]);
    kept.cloned().collect()
}

/// The conversation of an agent. One in three is a single turn with many tool calls, the others have
/// several turns.
fn agentic(seed: usize) -> Vec<Message> {
    let mut random = seed as u64 * 2_654_435_761 + 1;
    let mut next = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    let mut number = seed * 1_000;
    let mut words = move |count: u64| {
        number += 1;
        sample::message(number, 5 * (count as usize + 1))
    };
    let mut list = vec![Message::system(words(30)), Message::user(words(20))];
    let mut calls = 0;
    while list.len() < 150 {
        if !seed.is_multiple_of(3) && next(6) == 0 {
            list.push(Message::assistant(words(next(40))));
            list.push(Message::user(words(next(40))));
        }
        let first = calls;
        calls += 1 + next(3);
        let requests = (first..calls).map(|id| {
            let path = format!("src/{}/mod.rs", "module/".repeat(next(4) as usize));
            ToolCallRequest::new(format!("c{id}"), "read_file", json!({"path": path}))
        });
        list.push(Message::assistant("").with_tool_calls(requests.collect()));
        for id in first..calls {
            let result = ToolCallResult::new(format!("c{id}"), json!(words(next(60))));
            list.push(Message::tool(vec![result]));
        }
    }
    list
}

/// LangChain's trim_messages, if it is installed. It reads the lists from a file at its start.
struct LangChain {
    peer: Outside,
    /// Deleted on drop, after the peer has ended.
    _data: tempfile::NamedTempFile,
}

impl LangChain {
    fn start<'a>(
        bench: &mut Bench,
        lists: impl IntoIterator<Item = &'a [Message]>,
        budget: usize,
    ) -> Option<Self> {
        let lists = lists
            .into_iter()
            .map(|list| json!({"budget": budget, "messages": with_tokens(list)}));
        let lists: Vec<_> = lists.collect();
        let data = tempfile::NamedTempFile::new().unwrap();
        let file = BufWriter::new(File::create(data.path()).unwrap());
        serde_json::to_writer(file, &lists).unwrap();
        let peer = bench.outside("LangChain", python("langchain_peer.py").arg(data.path()))?;
        Some(Self { peer, _data: data })
    }

    fn trim(&mut self, number: usize, start_on: &str) -> Duration {
        self.peer.time(&format!("trim {number} {start_on}"))
    }
}

fn with_tokens(messages: &[Message]) -> Vec<serde_json::Value> {
    let with_tokens = |message: &Message| {
        let mut value = serde_json::to_value(message).unwrap();
        value["tokens"] = json!(Estimator.count_message(message));
        value
    };
    messages.iter().map(with_tokens).collect()
}
