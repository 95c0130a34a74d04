use serde::{Serialize, de::DeserializeOwned, ser::Error as _};

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
    let encoded = serde_json::to_string(value).and_then(|json| {
        if is_too_deep(&json) {
            let reason = format!("it is nested more than {MAX_DEPTH} levels deep");
            return Err(serde_json::Error::custom(reason));
        }
        if extra == Extra::Some {
            serde_json::from_str::<T>(&json)?;
        }
        Ok(json)
    });
    encoded.map_err(|source| Error::Encode {
        what: what(),
        source,
    })
}

fn is_too_deep(json: &str) -> bool {
    // Nearly always there are so few that they cannot be; counting is many times faster.
    brackets(json) > MAX_DEPTH && depth(json) > MAX_DEPTH
}

/// How many `[` and `{` there are, be it in strings.
fn brackets(json: &str) -> usize {
    // In counters of one byte, over as many bytes as they can count: the compiler then takes
    // sixteen bytes at a time. The two differ in one bit.
    let count = |chunk: &[u8]| {
        chunk
            .iter()
            .fold(0_u8, |count, byte| count + u8::from(byte | 0x20 == b'{'))
    };
    let chunks = json.as_bytes().chunks(usize::from(u8::MAX));
    chunks.map(|chunk| usize::from(count(chunk))).sum()
}

/// How deep arrays and objects are nested in JSON text.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => {
                            bytes.next();
                        }
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_outside_of_strings() {
        for (json, expected) in [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[{}]}"#, 3),
            (r#"["[[[","\"[[[",{}]"#, 2),
            (r#"[[],[]]"#, 2),
        ] {
            assert_eq!(depth(json), expected, "{json}");
        }
    }

    #[test]
    fn brackets_are_counted_wherever_they_stand() {
        for (json, expected) in [
            (String::new(), 0),
            ("[{".to_owned(), 2),
            ("]}(;:{".to_owned(), 1),
            ("[".repeat(1000), 1000),
            (format!("{}{{", "x".repeat(1021)), 1),
        ] {
            assert_eq!(brackets(&json), expected, "{json}");
        }
    }
}
