//! Counting tokens.

mod estimator;
#[cfg(feature = "openai")]
mod openai_counter;
mod token_counter;

pub use estimator::Estimator;
#[cfg(feature = "openai")]
pub use openai_counter::OpenAiCounter;
pub use token_counter::TokenCounter;
pub(super) use token_counter::fit_text;
