use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

/// One line of output, without its line end.
///
/// The bytes are what the process wrote. They need not be UTF-8: [`text`](Self::text) replaces
/// what is not, [`as_bytes`](Self::as_bytes) does not.
#[derive(Clone, PartialEq, Eq)]
pub struct Line {
    bytes: Bytes,
    cut: u64,
}

impl Line {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self { bytes, cut: 0 }
    }

    /// The beginning of a line of which `cut` more bytes were thrown away.
    pub(crate) fn truncated(bytes: Bytes, cut: u64) -> Self {
        // The cap may have split a character; its first half is of no use to anyone.
        let kept = match std::str::from_utf8(&bytes) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => bytes.len(),
        };
        Self {
            cut: cut + (bytes.len() - kept) as u64,
            bytes: bytes.slice(..kept),
        }
    }

    /// The bytes of the line.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The line as text, with a replacement character for each sequence that is not UTF-8.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// Whether the line was longer than the cap, so that only its beginning is here.
    pub fn is_truncated(&self) -> bool {
        self.cut > 0
    }

    /// How many bytes of the line are missing.
    pub fn missing_bytes(&self) -> u64 {
        self.cut
    }
}

/// Shows the size only: a line may hold anything the agent has read.
impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("len", &self.bytes.len())
            .field("missing_bytes", &self.cut)
            .finish()
    }
}
