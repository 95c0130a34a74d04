//! The bus as one caller sees it: the verbs of the vocabulary, in the name of a proven sender.

mod ask_folder;
mod background;
#[expect(clippy::module_inception, reason = "the file is named after its type")]
mod bus;
mod bus_builder;
pub(crate) mod courier;
mod detached_ask;

pub use bus::Bus;
pub use bus_builder::BusBuilder;
