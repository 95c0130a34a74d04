use std::fmt;

/// The part of an answer that had arrived when the wait for it failed. Its `Debug` shows only the
/// length.
///
/// ```
/// use tmux_bus::PartialAnswer;
///
/// let nothing = PartialAnswer::default();
/// assert_eq!(nothing.as_str(), "");
/// assert_eq!(format!("{nothing:?}"), "PartialAnswer(0 bytes)");
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PartialAnswer(String);

impl PartialAnswer {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PartialAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartialAnswer({} bytes)", self.0.len())
    }
}
