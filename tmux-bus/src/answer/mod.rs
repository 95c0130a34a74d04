//! Finding the answer in the output of a pane.

pub(crate) mod answer_reader;
pub(crate) mod answer_target;
pub(crate) mod detector;
pub(crate) mod echo_finder;
pub(crate) mod extract;
mod line_reader;
pub(crate) mod marker;
mod partial_answer;
mod screen_markers;
mod screen_reader;
pub(crate) mod tokenizer;
mod transcript;

pub use partial_answer::PartialAnswer;
