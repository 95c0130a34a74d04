use std::borrow::Cow;

use super::{
    document::{Archive, Meta},
    place::Contents,
};
use crate::backend::{Stamp, Stream, Write};

/// The document that a rewrite makes.
pub(super) struct NextDocument<'a> {
    pub(super) meta: Meta,
    pub(super) stamp: Stamp,
    pub(super) state: Cow<'a, str>,
    pub(super) head: Cow<'a, str>,
    pub(super) messages: Vec<Cow<'a, str>>,
    pub(super) from: u64,
}

impl<'a> NextDocument<'a> {
    pub(super) fn empty(meta: Meta, write: &Write) -> Self {
        Self {
            meta,
            stamp: write.stamp.clone(),
            state: Cow::Borrowed(""),
            head: Cow::Borrowed("[]"),
            messages: Vec::new(),
            from: write.from,
        }
    }

    pub(super) fn of(contents: Contents<'a>) -> Self {
        Self {
            meta: contents.meta,
            stamp: contents.stamp,
            state: contents.state,
            head: contents.head,
            messages: contents.messages,
            from: contents.from,
        }
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
        self.messages
            .extend(write.messages.into_iter().map(Cow::Owned));
        if let Some(head) = write.head {
            self.head = Cow::Owned(head);
        }
        self.state = Cow::Owned(write.state);
        self.stamp = write.stamp;
    }
}
