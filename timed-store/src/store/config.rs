//! The specified configuration: `{"operatorTimeout": 14400000}`.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::Error;

pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(4 * 60 * 60);

const KEY: &str = "operatorTimeout";

/// The timeout, or `None` if the file does not set it.
pub(crate) fn read_timeout(path: &Path) -> Result<Option<Duration>, Error> {
    let text = std::fs::read(path).map_err(Error::io("read the configuration", path))?;
    parse(&text).map_err(|mistake| Error::Config {
        path: path.to_owned(),
        position: mistake.position,
        reason: mistake.reason,
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    position: String,
    reason: String,
}

fn parse(text: &[u8]) -> Result<Option<Duration>, Mistake> {
    let config: Map<String, Value> = serde_json::from_slice(text).map_err(|error| {
        let reason = if error.is_data() {
            "it is not a JSON object"
        } else {
            "it is not valid JSON"
        };
        Mistake {
            position: format!("line {} column {}", error.line(), error.column()),
            reason: reason.to_owned(),
        }
    })?;
    let Some(value) = config.get(KEY) else {
        return Ok(None);
    };
    // JavaScript has one type of number, and may write this one as 1.44e7.
    value
        .as_f64()
        .filter(|ms| *ms >= 0.0)
        .and_then(|ms| Duration::try_from_secs_f64((ms / 1000.0).min(1e15)).ok())
        .map(Some)
        .ok_or_else(|| Mistake {
            position: format!("`{KEY}`"),
            reason: format!("{value} is not a number of milliseconds"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<u64>) {
        assert_eq!(
            parse(text.as_bytes()),
            Ok(expected.map(Duration::from_millis)),
            "{text}"
        );
    }

    #[test]
    fn the_timeout_is_read_and_other_keys_are_ignored() {
        check(r#"{"operatorTimeout": 14400000}"#, Some(14_400_000));
        check(
            r#"{"operatorTimeout": 1.44e7, "voice": {"rate": 200}}"#,
            Some(14_400_000),
        );
        check(r#"{"operatorTimeout": 0}"#, Some(0));
        check(r#"{"voice": 1}"#, None);
        check("{}", None);
    }

    #[test]
    fn a_wrong_type_is_an_error() {
        for text in [
            "",
            "[]",
            "4",
            r#"{"operatorTimeout": "4h"}"#,
            r#"{"operatorTimeout": null}"#,
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        let mistake = |text: &str| {
            let mistake = parse(text.as_bytes()).unwrap_err();
            (mistake.position, mistake.reason)
        };
        let expected = ("`operatorTimeout`", "-1 is not a number of milliseconds");
        assert_eq!(
            mistake(r#"{"operatorTimeout": -1}"#),
            (expected.0.to_owned(), expected.1.to_owned())
        );
        assert_eq!(mistake("{\n]").0, "line 2 column 1");
    }
}
