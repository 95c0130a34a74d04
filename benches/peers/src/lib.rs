//! How a peer takes turns with ours: it says `ready`, and then answers each line with a line.

use std::fmt::Display;
use std::io::Write;

/// Answers requests until there are no more.
pub fn serve<A: Display>(mut answer: impl FnMut(&str) -> A) {
    let mut out = std::io::stdout();
    let mut say = |line: &dyn Display| {
        writeln!(out, "{line}").expect("the bench reads what we say");
        out.flush().expect("the bench reads what we say");
    };
    say(&"ready");
    for request in std::io::stdin().lines() {
        say(&answer(&request.expect("the bench sends text")));
    }
}
