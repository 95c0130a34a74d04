//! From lines of output to events: one file per format.

mod claude;
mod codex;
mod cursor;
mod event_format;
mod gemini;
mod json;
mod opencode;

pub use event_format::EventFormat;

pub(crate) use codex::error as codex_error;
pub(crate) use json::{Json, parse_line};
