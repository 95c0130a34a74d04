use super::frame;

/// What a delete leaves behind: files up to this generation do not count any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Tombstone {
    pub(super) generation: u64,
    /// The highest epoch that was ever saved.
    pub(super) epoch_floor: u64,
}

impl Tombstone {
    pub(super) fn write(&self) -> String {
        let mut out = String::new();
        let payload = format!(
            "{{\"generation\":{},\"epoch_floor\":{}}}",
            self.generation, self.epoch_floor
        );
        frame::push(&mut out, 0, &payload);
        out
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_str(frame::read(bytes).payloads.first()?).ok()
    }
}
