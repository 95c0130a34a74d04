//! The protocol between a peer and the bench: the peer prints `ready`, then answers each line.

use std::fmt::Display;
use std::io::Write;

/// Answers requests until the input ends.
pub fn serve<A: Display>(mut answer: impl FnMut(&str) -> A) {
    let mut out = std::io::stdout();
    let mut say = |line: &dyn Display| {
        writeln!(out, "{line}").expect("cannot write to the bench");
        out.flush().expect("cannot write to the bench");
    };
    say(&"ready");
    for request in std::io::stdin().lines() {
        say(&answer(&request.expect("a request is not UTF-8")));
    }
}
