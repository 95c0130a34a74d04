//! Conversations: keeping token totals up, trimming, counting.

use std::{
    hint::black_box,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use agent_snapshot::{
    History,
    conversation::{
        Conversation, Estimator, Message, OpenAiCounter, Role, StateManager, TokenCounter,
        ToolCallRequest, ToolCallResult, anthropic_request, openai_request,
    },
};
use benches::{Bench, Goal};
use serde_json::json;

/// Numbers of messages.
const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];

/// As many appends as make a sample.
const APPENDS: usize = 64;

fn main() {
    let mut bench = Bench::from_args("conversation");
    append(&mut bench);
    trim(&mut bench);
    counting(&mut bench);
    acceptance(&mut bench);
}

fn append(bench: &mut Bench) {
    const ANEW: &str = "counting the list anew";
    let state = StateManager::new(100_000_000);
    let small = filled(&state, 10);
    let (mut ours, mut anew) = (Vec::new(), Vec::new());
    for size in SIZES {
        let list = filled(&state, size);
        let all: Vec<Message> = list.iter().cloned().collect();
        let name = grouped(size);
        let mut comparison = bench
            .compare(&format!("append with token upkeep, {name} messages"))
            .floor_timed("to 10 messages", || append_to(&state, &small))
            .ours_timed("to the list", || append_to(&state, &list))
            .peer_timed(ANEW, || {
                let start = Instant::now();
                let total: usize = all.iter().map(|m| Estimator.count_message(m)).sum();
                black_box(total);
                start.elapsed()
            })
            .differs("only the counting")
            .goal(Goal::at_most_floor(1.3));
        if size == 10_000 {
            comparison = comparison.headline();
        }
        for row in comparison.run() {
            match row.name.as_str() {
                "to the list" => ours.push((size, row.median_ns)),
                ANEW => anew.push((size, row.median_ns)),
                _ => {}
            }
        }
    }
    bench
        .growth("append with token upkeep", "messages", "ns")
        .ours("to the list", ours)
        .peer(ANEW, anew)
        .goal(Goal::at_most(1.3))
        .report();
}

/// The time of one append, without what the copy costs: making it, freeing it, and bringing
/// it into the processor's cache.
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
    state.open(history).unwrap()
}

fn chat(n: usize) -> Message {
    let text = "The quick brown fox jumps over the lazy dog, again and again. ";
    let mut message = match n % 2 {
        0 => Message::user(text.repeat(3)),
        _ => Message::assistant(text.repeat(6)),
    };
    message.id = Some(format!("m{n}"));
    message.timestamp = Some("2026-01-01T00:00:00Z".into());
    message
}

fn trim(bench: &mut Bench) {
    const PLAIN: &str = "plain window, counting each time";
    let open = StateManager::new(100_000_000);
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for size in SIZES {
        let list = filled(&open, size);
        let all: Vec<Message> = list.iter().cloned().collect();
        // Just over, so that a quarter of the messages goes.
        let state = StateManager::new(list.tokens() - 1).answer_room(0);
        let budget = state.low_water_mark();
        let mut comparison = bench
            .compare(&format!("trim, {} messages", grouped(size)))
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
            .differs("parts calls from their results");
        if size == 10_000 {
            comparison = comparison.goal(Goal::median_at_most_ms(10.0)).headline();
        }
        for row in comparison.run() {
            let points = if row.name == PLAIN {
                &mut plain
            } else {
                &mut ours
            };
            points.push((size, row.median_ns));
        }
    }
    let langchain = langchain_growth(bench, &open);
    bench
        .growth("trim by a quarter", "messages", "ns")
        .ours("down to the low-water mark", ours)
        .peer(PLAIN, plain)
        .peer("LangChain, counts given", langchain)
        .report();
}

fn grouped(size: usize) -> String {
    match size {
        ..1_000 => size.to_string(),
        _ => format!("{},{:03}", size / 1_000, size % 1_000),
    }
}

fn counting(bench: &mut Bench) {
    let counter = OpenAiCounter::o200k();
    let english = "In the beginning the agent reads the file, thinks and calls a tool. ".repeat(6);
    let japanese =
        "エージェントはファイルを読み、考えてから、必要な道具を呼び出します。".repeat(10);
    let json = json!({"path": "/src/main.rs", "lines": [1, 250], "text": &english[..200]});
    for (name, text) in [
        ("English", english),
        ("Japanese", japanese),
        ("JSON", json.to_string()),
    ] {
        bench
            .compare(&format!("counting, {name}, {} bytes", text.len()))
            .ours("tiktoken-rs", || {
                black_box(counter.count_text(black_box(&text)));
            })
            .peer("Estimator", || {
                black_box(Estimator.count_text(black_box(&text)));
            })
            .run();
        let estimate = Estimator.count_text(&text) as f64 / counter.count_text(&text) as f64;
        bench.figure(
            &format!("estimate, {name}"),
            estimate,
            "of the true count",
            None,
        );
    }
}

/// What providers would say to the same trimmed conversations.
fn acceptance(bench: &mut Bench) {
    let count = if bench.is_smoke() { 20 } else { 1_000 };
    let conversations: Vec<Vec<Message>> = (0..count).map(agentic).collect();
    let budget = 3_000;
    // All to the same budget: a limit of which the low-water mark is that budget.
    let state = StateManager::new(budget * 4 / 3 + 4).answer_room(0);
    assert_eq!(state.low_water_mark(), budget);
    let (mut refused, mut used, mut plain_refused) = (0, 0.0, 0);
    for messages in &conversations {
        let mut list = state.open(messages.iter().cloned().collect()).unwrap();
        state.trim(&mut list).unwrap();
        let kept: Vec<Message> = list.iter().cloned().collect();
        refused += usize::from(!acceptable(&kept));
        used += list.tokens() as f64 / budget as f64;
        plain_refused += usize::from(!acceptable(&plain_window(messages, budget)));
    }
    let percent = |n: usize| 100.0 * n as f64 / count as f64;
    let none = Some(Goal::at_most(0.0));
    bench.figure(
        "trimmed, refused by a provider",
        percent(refused),
        "%",
        none,
    );
    let share = 100.0 * used / count as f64;
    bench.figure(
        "trimmed, budget used",
        share,
        "%",
        Some(Goal::at_least(95.0)),
    );
    bench.figure(
        "plain window, refused by a provider",
        percent(plain_refused),
        "%",
        None,
    );
    langchain(bench, &conversations, budget);
}

fn acceptable(messages: &[Message]) -> bool {
    let first = messages.iter().find(|m| m.role != Role::System);
    first.is_some_and(|m| m.role == Role::User)
        && anthropic_request(messages).is_ok()
        && openai_request(messages).is_ok()
}

/// The oldest messages go, one by one, but for the prompt.
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

/// One in three is a single turn of many tool rounds, the others have several turns.
fn agentic(seed: usize) -> Vec<Message> {
    let mut random = seed as u64 * 2_654_435_761 + 1;
    let mut next = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    let words = |n: u64| "word ".repeat(n as usize + 1);
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
            ToolCallRequest::new(
                format!("c{id}"),
                "read_file",
                json!({"path": words(next(5))}),
            )
        });
        list.push(Message::assistant("").with_tool_calls(requests.collect()));
        for id in first..calls {
            let result = ToolCallResult::new(format!("c{id}"), json!(words(next(60))));
            list.push(Message::tool(vec![result]));
        }
    }
    list
}

fn langchain(bench: &mut Bench, conversations: &[Vec<Message>], budget: usize) {
    let data = json!({
        "budget": budget,
        "conversations": conversations.iter().map(|list| with_tokens(list)).collect::<Vec<_>>(),
    });
    for line in ask_langchain(&data) {
        let [name, value, unit] = &line[..] else {
            panic!("not understood: {line:?}");
        };
        let name = format!("LangChain, counts given, {name}");
        bench.figure(&name, value.parse().unwrap(), unit, None);
    }
}

/// What a trim by a quarter takes in LangChain.
fn langchain_growth(bench: &Bench, open: &StateManager) -> Vec<(usize, f64)> {
    let sizes = if bench.is_smoke() {
        &SIZES[..2]
    } else {
        &SIZES
    };
    let lists = sizes.iter().map(|&size| {
        let list = filled(open, size);
        let state = StateManager::new(list.tokens() - 1).answer_room(0);
        let messages: Vec<Message> = list.iter().cloned().collect();
        json!({"budget": state.low_water_mark(), "messages": with_tokens(&messages)})
    });
    let data = json!({"growth": lists.collect::<Vec<_>>()});
    let lines = ask_langchain(&data);
    lines
        .iter()
        .map(|line| (line[0].parse().unwrap(), line[1].parse().unwrap()))
        .collect()
}

fn with_tokens(messages: &[Message]) -> Vec<serde_json::Value> {
    let with_tokens = |message: &Message| {
        let mut value = serde_json::to_value(message).unwrap();
        value["tokens"] = json!(Estimator.count_message(message));
        value
    };
    messages.iter().map(with_tokens).collect()
}

/// What the peer script prints, by lines and columns; nothing where LangChain is not installed.
fn ask_langchain(data: &serde_json::Value) -> Vec<Vec<String>> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let installed = Command::new(&python)
        .args(["-c", "import langchain_core"])
        .stderr(Stdio::null())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        println!(
            "conversation: LangChain is not installed (`pip install langchain-core`): its figures are left out"
        );
        return Vec::new();
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(data.to_string().as_bytes()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/langchain_peer.py");
    let output = Command::new(&python)
        .arg(script)
        .arg(file.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let columns = |line: &str| line.split('\t').map(str::to_owned).collect();
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.lines().map(columns).collect()
}
