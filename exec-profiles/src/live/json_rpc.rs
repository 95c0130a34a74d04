//! JSON-RPC over lines, as far as the protocols of agents need it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A message of the agent. Parameters and results stay text until their type is known, so that a
/// message that no event uses costs no memory.
pub(super) enum Incoming<'a> {
    Request {
        /// The id as JSON text, to be repeated in the answer.
        id: &'a str,
        method: Cow<'a, str>,
        params: &'a str,
    },
    Notification {
        method: Cow<'a, str>,
        params: &'a str,
    },
    Response {
        id: u64,
        result: Result<&'a str, RpcError>,
    },
}

/// The error of a response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

impl<'a> Incoming<'a> {
    /// `None` for a line that is no message: agents print other things, too.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let Envelope {
            id,
            method,
            params,
            result,
            error,
        } = serde_json::from_str(line).ok()?;
        let params = params.map_or("null", RawValue::get);
        match (method, id) {
            (Some(method), Some(id)) => Some(Self::Request {
                id: id.get(),
                method,
                params,
            }),
            (Some(method), None) => Some(Self::Notification { method, params }),
            (None, Some(id)) => {
                let result = match error {
                    Some(error) => Err(serde_json::from_str(error.get()).unwrap_or_default()),
                    None => Ok(result.map_or("null", RawValue::get)),
                };
                let id = id.get().parse().ok()?;
                Some(Self::Response { id, result })
            }
            (None, None) => None,
        }
    }
}

/// Writes messages, and remembers what each request of ours was.
pub(super) struct Requests<T> {
    /// What every message begins with.
    prefix: &'static str,
    last: u64,
    open: HashMap<u64, T>,
}

impl<T> Requests<T> {
    /// With the version field of JSON-RPC 2.0.
    pub(super) fn version_2() -> Self {
        Self::with_prefix(r#""jsonrpc":"2.0","#)
    }

    /// Without a version field.
    pub(super) fn without_version() -> Self {
        Self::with_prefix("")
    }

    fn with_prefix(prefix: &'static str) -> Self {
        Self {
            prefix,
            last: 0,
            open: HashMap::new(),
        }
    }

    /// A request; [`take`](Self::take) returns `meaning` for its response.
    pub(super) fn request(&mut self, meaning: T, method: &str, params: &impl Serialize) -> String {
        self.last += 1;
        self.open.insert(self.last, meaning);
        format!(
            r#"{{{}"id":{},"method":"{method}","params":{}}}"#,
            self.prefix,
            self.last,
            json(params)
        )
    }

    pub(super) fn notification(&self, method: &str, params: &impl Serialize) -> String {
        format!(
            r#"{{{}"method":"{method}","params":{}}}"#,
            self.prefix,
            json(params)
        )
    }

    /// The answer to a request of the agent. `id` is JSON text.
    pub(super) fn result(&self, id: &str, result: &impl Serialize) -> String {
        format!(r#"{{{}"id":{id},"result":{}}}"#, self.prefix, json(result))
    }

    /// The answer to a request that is not known.
    pub(super) fn method_not_found(&self, id: &str) -> String {
        let mut line = format!("{{{}", self.prefix);
        let _ = write!(
            line,
            r#""id":{id},"error":{{"code":-32601,"message":"method not found"}}}}"#
        );
        line
    }

    /// What the request with this id was. A second response to it has no meaning.
    pub(super) fn take(&mut self, id: u64) -> Option<T> {
        self.open.remove(&id)
    }
}

fn json(value: &impl Serialize) -> String {
    // The types that are written have no map with keys that are not text, so this does not fail.
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_by_their_fields() {
        let kind = |line| match Incoming::parse(line) {
            Some(Incoming::Request { id, method, params }) => {
                format!("request {id} {method} {params}")
            }
            Some(Incoming::Notification { method, .. }) => format!("notification {method}"),
            Some(Incoming::Response {
                id,
                result: Ok(result),
            }) => format!("result {id} {result}"),
            Some(Incoming::Response {
                id,
                result: Err(error),
            }) => format!("error {id} {}", error.code),
            None => "none".to_owned(),
        };
        assert_eq!(
            kind(r#"{"id":"a","method":"m","params":{"x":1}}"#),
            r#"request "a" m {"x":1}"#
        );
        assert_eq!(kind(r#"{"method":"m"}"#), "notification m");
        assert_eq!(kind(r#"{"id":3,"result":{}}"#), "result 3 {}");
        assert_eq!(
            kind(r#"{"id":3,"error":{"code":-1,"message":"no"}}"#),
            "error 3 -1"
        );
        assert_eq!(kind(r#"{"id":3,"error":"odd"}"#), "error 3 0");
        for noise in [
            "",
            "{",
            "[]",
            "null",
            r#"{"id":"x","result":{}}"#,
            "Loaded 3 extensions",
        ] {
            assert_eq!(kind(noise), "none", "{noise}");
        }
    }

    #[test]
    fn a_second_response_has_no_meaning() {
        let mut requests = Requests::version_2();
        let line = requests.request("prompt", "session/prompt", &serde_json::json!({"a": 1}));
        assert_eq!(
            line,
            r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"a":1}}"#
        );
        assert_eq!(requests.take(1), Some("prompt"));
        assert_eq!(requests.take(1), None);
    }
}
