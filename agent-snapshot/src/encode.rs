use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};
use std::io;

use crate::Error;

/// `serde_json` reads 128 levels; some are needed around what is encoded here.
const MAX_DEPTH: usize = 120;

/// Whether unknown fields go along, which may have the name of a known one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extra {
    None,
    Some,
}

/// Writes JSON that can be read again: what cannot must be refused here, for once it is
/// stored it is lost.
pub(crate) fn encode<T: DeserializeOwned>(
    value: &impl Serialize,
    extra: Extra,
    what: impl FnOnce() -> String,
) -> Result<String, Error> {
    let json = to_json(value).and_then(|json| {
        if extra == Extra::Some {
            serde_json::from_str::<T>(&json)?;
        }
        Ok(json)
    });
    json.map_err(|source| Error::Encode {
        what: what(),
        source,
    })
}

fn to_json(value: &impl Serialize) -> serde_json::Result<String> {
    let mut bytes = Vec::with_capacity(128);
    value.serialize(&mut Serializer::with_formatter(
        &mut bytes,
        DepthLimit::default(),
    ))?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

#[derive(Default)]
struct DepthLimit {
    depth: usize,
}

impl DepthLimit {
    fn enter(&mut self) -> io::Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let reason = format!("it is nested more than {MAX_DEPTH} levels deep");
            return Err(io::Error::other(reason));
        }
        Ok(())
    }
}

impl Formatter for DepthLimit {
    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.enter()?;
        CompactFormatter.begin_array(writer)
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        CompactFormatter.end_array(writer)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.enter()?;
        CompactFormatter.begin_object(writer)
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        CompactFormatter.end_object(writer)
    }
}
