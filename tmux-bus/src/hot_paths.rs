//! Private paths whose instructions are counted; present only with `--cfg hot_paths`.
#![allow(missing_docs, reason = "not part of the public surface")]

use crate::answer::answer_target::AnswerTarget;
use crate::answer::detector::Detector;
use crate::answer::marker::{Marker, fold};
use crate::answer::tokenizer::Tokenizer;

pub fn markers_found(marker: &str, chunks: &[&[u8]]) -> usize {
    let Ok(marker) = Marker::new(marker) else {
        return 0;
    };
    let mut detector = Detector::new(&AnswerTarget::new(marker, &fold("how far are you?")), false);
    let mut tokenizer = Tokenizer::default();
    for chunk in chunks {
        tokenizer.feed(chunk, |op| detector.apply(op, 0));
    }
    detector.quiet();
    detector.hits().len()
}
