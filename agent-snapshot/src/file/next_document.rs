use super::{
    document::{Archive, Meta},
    place::Contents,
};
use crate::{
    Error,
    backend::{Stamp, Stream, Write},
};

/// The document that a rewrite makes.
pub(super) struct NextDocument {
    pub(super) meta: Meta,
    pub(super) stamp: Stamp,
    pub(super) state: String,
    pub(super) head: String,
    pub(super) messages: Vec<String>,
    pub(super) from: u64,
}

impl NextDocument {
    pub(super) fn empty(meta: Meta, write: &Write) -> Self {
        Self {
            meta,
            stamp: write.stamp.clone(),
            state: String::new(),
            head: "[]".to_owned(),
            messages: Vec::new(),
            from: write.from,
        }
    }

    pub(super) fn of(contents: Contents) -> Result<Self, Error> {
        let state = match contents.state {
            Some(state) => state,
            None => contents.document.state_json()?,
        };
        Ok(Self {
            meta: contents.meta,
            stamp: contents.stamp,
            state,
            head: contents.head,
            messages: contents.messages,
            from: contents.from,
        })
    }

    pub(super) fn apply(&mut self, write: Write) {
        if write.stream == Stream::Replace {
            self.messages.clear();
            self.from = write.from;
            self.meta.archive = Archive {
                birth: self.meta.generation + 1,
                ..Archive::default()
            };
        }
        self.messages.extend(write.messages);
        if let Some(head) = write.head {
            self.head = head;
        }
        self.state = write.state;
        self.stamp = write.stamp;
    }
}
