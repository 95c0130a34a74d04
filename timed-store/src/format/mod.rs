//! The text of the data file: `{"storage": {"<session>": {"data": …, "updated_at": "<timestamp>"}}}`.
//!
//! Reading borrows from the text, and writing puts unchanged entries back as they stood, so that
//! fields of other tools and their formatting survive. Nothing here touches the disk.

pub(crate) mod timestamp;

mod document;
mod next_version;
mod raw_object;
mod salvage;
mod stored_entry;
mod token_record;

pub(crate) use document::Document;
pub(crate) use next_version::NextVersion;
pub(crate) use salvage::{SalvagedEntry, is_recognisable, salvage};
pub(crate) use stored_entry::{FieldChange, StoredEntry, new_line};
pub(crate) use token_record::{TokenRecord, parse_id};
