//! From lines of output to events: one file per format.

mod claude;
mod codex;
mod cursor;
mod event_format;
mod event_object;
mod gemini;
mod opencode;

pub use event_format::EventFormat;
