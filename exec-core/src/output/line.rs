use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

/// One line of output, without its line end.
///
/// The bytes are those that the process wrote. They need not be UTF-8: [`text`](Self::text)
/// replaces invalid sequences, [`as_bytes`](Self::as_bytes) does not.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let (_folder, execution) = doctest::launch(r"printf 'a\377\n'").await;
/// # let mut events = execution.events();
/// # while let Some(event) = events.next().await {
/// # if let exec_core::EventKind::Output(output) = &event.kind {
/// // The process wrote `a`, the byte 0xff and a line end.
/// assert_eq!(output.line.as_bytes(), b"a\xff");
/// assert_eq!(output.line.text(), "a\u{fffd}");
/// assert!(!output.line.is_truncated());
/// # }}}
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Line {
    bytes: Bytes,
    cut: u64,
}

impl Line {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self { bytes, cut: 0 }
    }

    /// The beginning of a line of which `cut` more bytes were discarded.
    pub(super) fn truncated(bytes: Bytes, cut: u64) -> Self {
        // The cap may have split a character: its first half is discarded, too.
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

    /// The line as text, with a replacement character for each invalid sequence.
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

/// Shows only the size: a line may contain anything that the agent has read.
impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("len", &self.bytes.len())
            .field("missing_bytes", &self.cut)
            .finish()
    }
}
