//! The tokenizer bpe-openai, an alternative to tiktoken-rs.
//!
//! Usage: `bpe_openai_peer TEXT`. The answer to `count` is the number of tokens of the text. The
//! answer to a number is the time of one count in nanoseconds, averaged over that many counts.

use std::hint::black_box;
use std::time::Instant;

fn main() {
    let text = std::env::args()
        .nth(1)
        .expect("usage: bpe_openai_peer TEXT");
    let tokenizer = bpe_openai::o200k_base();
    peers::serve(|request| match request {
        "count" => tokenizer.count(text.as_str()) as u128,
        times => {
            let times: u32 = times.parse().expect("`count` or a number of times");
            let start = Instant::now();
            for _ in 0..times {
                black_box(tokenizer.count(black_box(text.as_str())));
            }
            (start.elapsed() / times).as_nanos()
        }
    });
}
