use serde::{Deserialize, Serialize};

use super::checksummed_lines;

/// The record of a delete: files of this generation or lower are dead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tombstone {
    pub(super) generation: u64,
    /// The highest epoch that was ever saved.
    pub(super) epoch_floor: u64,
}

impl Tombstone {
    pub(super) fn to_text(&self) -> String {
        let mut out = String::new();
        let payload = format!(
            "{{\"generation\":{},\"epoch_floor\":{}}}",
            self.generation, self.epoch_floor
        );
        checksummed_lines::push(&mut out, 0, &payload);
        out
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let lines = checksummed_lines::read(bytes);
        serde_json::from_str(lines.payloads.first()?).ok()
    }
}
