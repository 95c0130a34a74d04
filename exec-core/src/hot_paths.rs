//! Private functions whose instructions are counted; only with `--cfg hot_paths`.
#![allow(missing_docs, reason = "not part of the public surface")]

use crate::output::LineFramer;

pub fn frame_lines(chunks: &[&[u8]]) -> usize {
    let mut framer = LineFramer::new(1024 * 1024);
    let mut lines = 0;
    for chunk in chunks {
        framer.push(chunk, |_| lines += 1);
    }
    lines + usize::from(framer.finish().is_some())
}
