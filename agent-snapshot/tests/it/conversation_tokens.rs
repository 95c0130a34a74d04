//! Counting tokens.

use agent_snapshot::conversation::{Estimator, Message, StateManager, TokenCounter};

/// Texts of different kinds.
#[cfg(feature = "openai")]
const TEXTS: [&str; 6] = [
    "Saving after each tick costs what the tick added, not what the history holds: at 10,000 \
     messages the last save takes at most 1.15 times the first.",
    "ステートマネージャーは、単一の対話セッションの完全なコンテキストを維持し、対話の連続性を確保する\
     責任を負います。主に「短期記憶」と「中期記憶」を管理します。",
    "今日はとても良い天気ですね。散歩に行きませんか？",
    "pub fn append<'a>(&self, list: &'a mut Conversation, message: Message) -> Result<&'a Message> \
     {\n    list.check(&message)?;\n    Ok(list.push(message))\n}\n",
    r#"{"id":"toolu_01","name":"read_file","input":{"path":"/src/main.rs","lines":[1,250]}}"#,
    "Ein Zustand, der einen Absturz übersteht; Größe und Übergänge bleiben erhalten.",
];

#[cfg(feature = "openai")]
#[test]
fn the_estimate_is_close_to_the_true_count() {
    use agent_snapshot::conversation::OpenAiCounter;

    let exact = OpenAiCounter::o200k();
    for text in TEXTS {
        let (estimate, count) = (Estimator.count_text(text), exact.count_text(text));
        let ratio = estimate as f64 / count as f64;
        assert!(
            (0.9..1.5).contains(&ratio),
            "{estimate} for {count}: {text}"
        );
    }
    assert_eq!(exact.count_text("hello world"), 2);
    assert_eq!(OpenAiCounter::cl100k().count_text("hello world"), 2);
    assert_eq!(exact.count_text("<|endoftext|>"), 7);
    assert!(OpenAiCounter::for_model("gpt-4o-mini").is_some());
    assert!(OpenAiCounter::for_model("claude").is_none());
}

#[test]
fn japanese_has_more_tokens_per_character_than_english() {
    let japanese = "状態管理と永続化の仕組みについて説明します。";
    let characters = japanese.chars().count();
    assert!(Estimator.count_text(japanese) * 10 >= characters * 7);
    assert!(Estimator.count_text(&"word ".repeat(100)) <= 125);
}

#[test]
fn long_runs_of_a_character_are_not_one_token() {
    for unit in ["a", "7", "=", " ", "\n", "あ", "😀"] {
        let (short, long) = (unit.repeat(100), unit.repeat(10_000));
        let (short, long) = (Estimator.count_text(&short), Estimator.count_text(&long));
        assert!(long >= short * 20, "{unit:?}: {short}, then {long}");
    }
}

#[test]
fn the_total_is_the_sum_of_the_messages_and_the_budget_excludes_the_answer() {
    let state = StateManager::new(1_000).answer_tokens(250);
    assert_eq!(state.budget(), 1_000 - 250 - Estimator.per_request());
    assert_eq!(state.low_water_mark(), state.budget() * 75 / 100);
    let unlimited = StateManager::new(usize::MAX).low_water(100);
    assert_eq!(unlimited.low_water_mark(), unlimited.budget());
    let messages = [Message::user("one"), Message::assistant("two and three")];
    let each: usize = messages.iter().map(|m| Estimator.count_message(m)).sum();
    let texts = Estimator.count_text("one") + Estimator.count_text("two and three");
    assert_eq!(each, texts + 2 * Estimator.per_message());
    let conversation = state.conversation(messages.into_iter().collect()).unwrap();
    assert_eq!(conversation.tokens(), each);
}

/// The texts of a request to the Chat Completions API are all that costs tokens beside the fixed costs.
#[cfg(feature = "openai")]
#[test]
fn the_count_of_texts_is_exact() {
    use std::cell::Cell;

    use agent_snapshot::conversation::{OpenAiCounter, Provider, repair};
    use proptest::prop_assert_eq;
    use serde_json::Value;

    use crate::conversation_generated::{Kind, for_each};

    let counter = OpenAiCounter::o200k();
    let state = StateManager::new(1_000_000).counter(counter);
    let lists = Cell::new(0);
    for kind in [Kind::Parallel, Kind::Japanese, Kind::Interrupted] {
        for_each(kind, 100, |list| {
            let list = repair(list.to_vec()).messages;
            let conversation = state.conversation(list.iter().cloned().collect()).unwrap();
            let request = Provider::OpenAiChat.request(&list).unwrap();
            let mut tokens = 0;
            for message in request["messages"].as_array().unwrap() {
                let text = |value: &Value| value.as_str().map_or(0, |t| counter.count_text(t));
                tokens += text(&message["content"]);
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    tokens += text(&function["name"]) + text(&function["arguments"]);
                }
            }
            let calls: usize = list.iter().map(|m| m.tool_calls.len()).sum();
            let results: usize = list.iter().map(|m| m.tool_results.len()).sum();
            let fixed = list.len() * counter.per_message() + (calls + results) * counter.per_call();
            prop_assert_eq!(conversation.tokens(), tokens + fixed);
            prop_assert_eq!(conversation.estimated_tokens(), 0);
            lists.set(lists.get() + 1);
            Ok(())
        });
    }
    assert!(lists.get() >= 300);
}
