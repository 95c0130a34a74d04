//! The tokens that a `codex app-server` has used, of all its threads.
//!
//! Codex reports totals for each thread: the conversation and every sub-agent. The total of a thread
//! includes earlier processes, and for a sub-agent that was forked with the context of its parent also
//! the parent's. The tokens of this process are the differences since the first report of each thread.

use std::collections::BTreeMap;

use exec_core::Usage;

use super::json_rpc::MAX_ID;
use crate::events::Json;

/// How many threads are told apart. Of more, one becomes a part of the sum; if it reports again, its
/// later tokens are counted from there.
const MAX_THREADS: usize = 256;

/// Numbers of tokens in the order of [`KEYS`]; a number that Codex does not report is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tokens([Option<u64>; 5]);

const KEYS: [&str; 5] = [
    "inputTokens",
    "cachedInputTokens",
    "cacheWriteInputTokens",
    "outputTokens",
    "reasoningOutputTokens",
];

impl Tokens {
    pub(super) fn of(reported: Json<'_>) -> Self {
        Self(KEYS.map(|key| reported.at(key).number()))
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    fn with(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        let mut result = self;
        for (number, other) in result.0.iter_mut().zip(other.0) {
            *number = match (*number, other) {
                (None, None) => None,
                (number, other) => Some(combine(number.unwrap_or(0), other.unwrap_or(0))),
            };
        }
        result
    }

    fn usage(self) -> Usage {
        let [input, cache_read, cache_write, output, reasoning] = self.0;
        let mut usage = Usage::default();
        usage.input_tokens = input;
        usage.cache_read_tokens = cache_read;
        usage.cache_write_tokens = cache_write;
        usage.output_tokens = output;
        usage.reasoning_tokens = reasoning;
        usage
    }
}

#[derive(Default)]
pub(super) struct ThreadTokens {
    threads: BTreeMap<String, ThreadCount>,
    /// Of threads that are no longer told apart.
    forgotten: Tokens,
}

struct ThreadCount {
    /// The total when the thread was first seen, without its work in this process.
    before: Tokens,
    total: Tokens,
}

impl ThreadTokens {
    /// A thread has a new total. Returns what all threads have used in this process.
    ///
    /// `last` is the part of the total that the latest request to the model has used. `is_work` is
    /// `false` for a total of an earlier process: `None` is returned then, unless the thread is known.
    pub(super) fn count(
        &mut self,
        thread: String,
        total: Tokens,
        last: Tokens,
        is_work: bool,
    ) -> Option<Usage> {
        if thread.len() > MAX_ID {
            return None;
        }
        match self.threads.get_mut(&thread) {
            Some(count) => count.total = total,
            None => {
                if self.threads.len() == MAX_THREADS
                    && let Some((_, count)) = self.threads.pop_first()
                {
                    self.forgotten = self.forgotten.plus(count.total.minus(count.before));
                }
                let before = match is_work {
                    true => total.minus(last),
                    false => total,
                };
                self.threads.insert(thread, ThreadCount { before, total });
                if !is_work {
                    return None;
                }
            }
        }
        let used = self.threads.values();
        let used = used.map(|count| count.total.minus(count.before));
        Some(used.fold(self.forgotten, Tokens::plus).usage())
    }

    /// The last total of one thread, if it is known.
    pub(super) fn total_of(&self, thread: &str) -> Option<Usage> {
        self.threads.get(thread).map(|count| count.total.usage())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(tokens: u64) -> Tokens {
        Tokens([Some(tokens), None, None, None, None])
    }

    #[test]
    fn threads_are_bounded_and_each_token_counts_once() {
        let mut tokens = ThreadTokens::default();
        let mut count = |thread: usize, total, last| {
            let used = tokens.count(format!("{thread:04}"), input(total), input(last), true);
            let len = tokens.threads.len();
            assert!(len <= MAX_THREADS, "{len}");
            used.and_then(|usage| usage.input_tokens)
        };
        for thread in 0..3 * MAX_THREADS {
            assert_eq!(count(thread, 1, 1), Some(thread as u64 + 1));
        }
        // One that was forgotten reports again.
        let all = 3 * MAX_THREADS as u64;
        assert_eq!(count(0, 3, 2), Some(all + 2));
        assert_eq!(count(3 * MAX_THREADS - 1, 5, 4), Some(all + 6));
    }

    #[test]
    fn a_number_that_codex_does_not_report_stays_unknown() {
        let mut tokens = ThreadTokens::default();
        let used = tokens.count("t".to_owned(), input(3), input(3), true);
        let used = used.unwrap_or_default();
        assert_eq!((used.input_tokens, used.output_tokens), (Some(3), None));
    }
}
