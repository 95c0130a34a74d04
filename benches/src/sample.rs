//! Real text for the benches: transcripts of agents, source files, and prose.
//!
//! Repeated ASCII hides costs: it has no characters that JSON must escape, no multi-byte characters,
//! and it fits into the processor's cache. All functions are deterministic: every contender of a
//! comparison, and every later run, gets the same text.

use std::sync::LazyLock;

macro_rules! data {
    ($($path:literal),* $(,)?) => {
        [$(include_str!(concat!("../data/", $path))),*]
    };
}

/// One run of an agent each, one JSON value a line.
const TRANSCRIPTS: [&str; 18] = data![
    "transcripts/claude-tool.jsonl",
    "transcripts/claude-plan-new.jsonl",
    "transcripts/claude-err-nokey.jsonl",
    "transcripts/claude-acp.jsonl",
    "transcripts/claude-japanese.jsonl",
    "transcripts/codex-tool.jsonl",
    "transcripts/codex-err-401.jsonl",
    "transcripts/codex-followup.jsonl",
    "transcripts/codex-acp.jsonl",
    "transcripts/gemini-tool.jsonl",
    "transcripts/gemini-followup.jsonl",
    "transcripts/gemini-acp.jsonl",
    "transcripts/opencode-tool.jsonl",
    "transcripts/opencode-followup.jsonl",
    "transcripts/opencode-acp.jsonl",
    "transcripts/qwen-new.jsonl",
    "transcripts/qwen-followup.jsonl",
    "transcripts/qwen-acp.jsonl",
];

const SOURCES: [&str; 5] = data![
    "source/vt.rs.txt",
    "source/event_log.rs.txt",
    "source/registry.rs.txt",
    "source/format.rs.txt",
    "source/snapshot.rs.txt",
];

const ENGLISH: &str = include_str!("../data/prose/english.txt");
const JAPANESE: &str = include_str!("../data/prose/japanese.txt");

/// All texts. The kinds alternate, so that a long excerpt contains each of them.
static MIXED: LazyLock<String> = LazyLock::new(|| {
    let mut mixed = String::new();
    for (number, transcripts) in TRANSCRIPTS.chunks(4).enumerate() {
        mixed.push_str(&transcripts.concat());
        mixed.push_str(SOURCES[number]);
        mixed.push_str(if number % 2 == 0 { JAPANESE } else { ENGLISH });
    }
    mixed
});

/// The text of a message: an excerpt of transcripts, source and prose. Its size is `bytes` or up to
/// three bytes less. Each number gives another excerpt.
pub fn message(number: usize, bytes: usize) -> String {
    let mixed = MIXED.as_str();
    // The multiples of the golden ratio modulo 1 are spread evenly, so that even a hundred messages
    // contain the kinds of text in proportion to their sizes.
    let share = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let start = (u128::from(share) * mixed.len() as u128) >> 64;
    let excerpt = mixed[boundary(mixed, start as usize)..].trim_start();
    let mut text = String::with_capacity(bytes);
    for part in std::iter::once(excerpt).chain(std::iter::repeat(mixed)) {
        let missing = bytes - text.len();
        if part.len() < missing {
            text.push_str(part);
        } else {
            text.push_str(&part[..boundary(part, missing)]);
            break;
        }
    }
    text
}

/// The last character boundary at or before a position.
fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The runs of agents, one JSON value a line.
pub fn transcripts() -> &'static [&'static str] {
    &TRANSCRIPTS
}

/// The lines of all transcripts without line ends, repeated forever.
pub fn lines() -> impl Iterator<Item = &'static str> {
    TRANSCRIPTS.iter().flat_map(|text| text.lines()).cycle()
}

/// A Rust source file of about 11 KB.
pub fn source() -> &'static str {
    SOURCES[0]
}

/// English prose of about 1 KB.
pub fn english() -> &'static str {
    ENGLISH
}

/// Japanese prose of about 5 KB.
pub fn japanese() -> &'static str {
    JAPANESE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_size_that_was_asked_for() {
        for bytes in [10, 200, 1 << 10, 1 << 20] {
            for number in 0..100 {
                let length = message(number, bytes).len();
                assert!(length <= bytes && bytes - length < 4, "{length} of {bytes}");
            }
        }
    }

    #[test]
    fn messages_repeat_by_number_only() {
        assert_eq!(message(7, 100), message(7, 100));
        assert_ne!(message(7, 100), message(8, 100));
    }

    #[test]
    fn lines_are_json() {
        let count = TRANSCRIPTS.iter().flat_map(|text| text.lines()).count();
        for line in lines().take(count) {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }
}
