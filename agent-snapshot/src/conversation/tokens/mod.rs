//! Counting tokens.

mod estimator;
mod media;
#[cfg(feature = "openai")]
mod openai_counter;
mod token_count;
mod token_counter;

pub use estimator::Estimator;
pub(super) use media::decode_base64;
#[cfg(feature = "openai")]
pub use openai_counter::OpenAiCounter;
pub(super) use token_count::TokenCount;
pub use token_counter::TokenCounter;
pub(super) use token_counter::fit_text;
