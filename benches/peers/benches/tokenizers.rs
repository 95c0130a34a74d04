//! The tokenizer that we chose beside the one that we did not.
//!
//! `cd benches/peers && cargo bench --bench tokenizers -- --side-by-side`

use std::hint::black_box;

use agent_snapshot::conversation::{OpenAiCounter, TokenCounter};
use benches::Bench;
use serde_json::json;

fn main() {
    let mut bench = Bench::from_args("conversation");
    let counter = OpenAiCounter::o200k();
    let other = bpe_openai::o200k_base();
    let english = "In the beginning the agent reads the file, thinks and calls a tool. ".repeat(6);
    let japanese =
        "エージェントはファイルを読み、考えてから、必要な道具を呼び出します。".repeat(10);
    let json = json!({"path": "/src/main.rs", "lines": [1, 250], "text": &english[..200]});
    for (name, text) in [
        ("English", english),
        ("Japanese", japanese),
        ("JSON", json.to_string()),
    ] {
        assert_eq!(counter.count_text(&text), other.count(text.as_str()));
        bench
            .compare(&format!(
                "counting by vocabulary, {name}, {} bytes",
                text.len()
            ))
            .ours("tiktoken-rs", || {
                black_box(counter.count_text(black_box(&text)));
            })
            .peer("bpe-openai", || {
                black_box(other.count(black_box(text.as_str())));
            })
            .run();
    }
}
