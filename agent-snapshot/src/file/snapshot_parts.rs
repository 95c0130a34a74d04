use crate::backend::{SavePlan, Stamp, StreamChange};

/// The parts of a snapshot as texts, with the messages that are not in the archive.
///
/// The texts are never written anew from parsed values: digests are made from the text, and another
/// version of this crate may write the same value differently.
#[derive(Debug)]
pub(super) struct SnapshotParts {
    pub(super) stamp: Stamp,
    pub(super) body: String,
    pub(super) head: String,
    /// The messages from number `from` on.
    pub(super) messages: Vec<String>,
    pub(super) from: u64,
}

impl SnapshotParts {
    /// The parts before the first save.
    pub(super) fn before(plan: &SavePlan) -> Self {
        Self {
            stamp: plan.stamp.clone(),
            body: String::new(),
            head: "[]".to_owned(),
            messages: Vec::new(),
            from: plan.from,
        }
    }

    pub(super) fn apply(&mut self, plan: SavePlan) {
        if plan.stream == StreamChange::Replace {
            self.messages.clear();
            self.from = plan.from;
        }
        self.messages.extend(plan.messages);
        if let Some(head) = plan.head {
            self.head = head;
        }
        self.body = plan.body;
        self.stamp = plan.stamp;
    }

    /// How many of the messages are out of view.
    pub(super) fn hidden(&self) -> usize {
        self.stamp.first.saturating_sub(self.from) as usize
    }
}
