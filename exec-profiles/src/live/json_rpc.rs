//! JSON-RPC over lines, as far as the protocols of agents need it.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::events::{Json, parse_line};

/// How many requests of ours may wait for their answers; of more, the oldest is forgotten, except for
/// the prompt in flight.
const MAX_WAITING: usize = 256;

/// The longest id of a request of the agent that is kept. Agents number their requests or use UUIDs.
pub(super) const MAX_ID: usize = 256;

/// How many permission requests are remembered to recognise repetitions.
const MAX_SEEN: usize = 64;

/// The hashes of the latest permission requests. Each has an id of its own, so two equal lines are one
/// request. A repetition that comes after the answer must not be asked and answered again.
#[derive(Default)]
pub(super) struct SeenRequests(VecDeque<u64>);

impl SeenRequests {
    /// Whether the line was seen before. Remembers it.
    pub(super) fn is_repeated(&mut self, line: &str) -> bool {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(line);
        if self.0.contains(&hash) {
            return true;
        }
        if self.0.len() == MAX_SEEN {
            self.0.pop_front();
        }
        self.0.push_back(hash);
        false
    }
}

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
#[derive(Debug)]
pub(super) struct RpcError {
    pub(super) code: i64,
    message: String,
    details: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorBody<'a> {
    #[serde(borrow)]
    code: Json<'a>,
    message: Json<'a>,
    data: Json<'a>,
}

impl RpcError {
    fn parse(error: &RawValue) -> Self {
        let body: ErrorBody<'_> = serde_json::from_str(error.get()).unwrap_or_default();
        Self {
            code: body.code.text_of_number().parse().unwrap_or_default(),
            message: body.message.text().unwrap_or_default(),
            details: body.data.at("details").text(),
        }
    }

    /// The message with the details that some agents put into `data` alone.
    pub(super) fn text(&self) -> String {
        match &self.details {
            Some(details) => format!("{}: {details}", self.message),
            None => self.message.clone(),
        }
    }
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
        } = parse_line(line)?;
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
                    Some(error) => Err(RpcError::parse(error)),
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
    waiting: BTreeMap<u64, T>,
    /// The request of the last prompt. Only one is kept, so an agent that never answers one cannot make
    /// the table grow.
    prompt: Option<u64>,
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
            waiting: BTreeMap::new(),
            prompt: None,
        }
    }

    /// A request; [`take`](Self::take) returns `meaning` for its response.
    pub(super) fn request(&mut self, meaning: T, method: &str, params: &impl Serialize) -> String {
        self.last += 1;
        if self.waiting.len() == MAX_WAITING {
            let mut ids = self.waiting.keys().copied();
            if let Some(oldest) = ids.find(|id| Some(*id) != self.prompt) {
                self.waiting.remove(&oldest);
            }
        }
        self.waiting.insert(self.last, meaning);
        format!(
            r#"{{{}"id":{},"method":"{method}","params":{}}}"#,
            self.prefix,
            self.last,
            json(params)
        )
    }

    /// As [`request`](Self::request), for a request whose answer ends the turn, or names it: it is
    /// remembered until the next one, however many other requests the agent leaves unanswered.
    pub(super) fn prompt(&mut self, meaning: T, method: &str, params: &impl Serialize) -> String {
        let line = self.request(meaning, method, params);
        self.prompt = Some(self.last);
        line
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
        self.error(id, -32601, "method not found")
    }

    /// The answer to a request whose parameters cannot be read.
    pub(super) fn invalid_params(&self, id: &str) -> String {
        self.error(id, -32602, "invalid params")
    }

    fn error(&self, id: &str, code: i64, message: &str) -> String {
        format!(
            r#"{{{}"id":{id},"error":{{"code":{code},"message":"{message}"}}}}"#,
            self.prefix
        )
    }

    /// What the request with this id was. A second response to it has no meaning.
    pub(super) fn take(&mut self, id: u64) -> Option<T> {
        self.waiting.remove(&id)
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

    fn error_of(error: &str) -> RpcError {
        match Incoming::parse(&format!(r#"{{"id":3,"error":{error}}}"#)) {
            Some(Incoming::Response {
                result: Err(error), ..
            }) => error,
            _ => panic!("{error}"),
        }
    }

    #[test]
    fn details_of_an_error_are_part_of_its_text() {
        let error = r#"{"code":-32603,"message":"Internal error","data":{"details":"400"}}"#;
        assert_eq!(error_of(error).text(), "Internal error: 400");
    }

    #[test]
    fn an_error_keeps_its_message_whatever_its_other_fields_are() {
        let deep = "[".repeat(500) + &"]".repeat(500);
        for (code, data, expected) in [
            ("-32000", deep.as_str(), -32000),
            (r#""rate_limit""#, "null", 0),
            ("429", "7", 429),
        ] {
            let error = format!(r#"{{"code":{code},"message":"no","data":{data}}}"#);
            let error = error_of(&error);
            assert_eq!((error.code, error.text().as_str()), (expected, "no"));
        }
    }

    #[test]
    fn requests_without_an_answer_are_bounded() {
        let mut requests = Requests::without_version();
        for number in 0..10 * MAX_WAITING {
            requests.request(number, "m", &());
        }
        assert_eq!(requests.waiting.len(), MAX_WAITING);
        let last = 10 * MAX_WAITING;
        assert_eq!(requests.take(last as u64), Some(last - 1));
    }

    #[test]
    fn the_prompt_in_flight_is_not_forgotten() {
        let mut requests = Requests::version_2();
        requests.prompt(usize::MAX, "session/prompt", &());
        for number in 0..10 * MAX_WAITING {
            requests.request(number, "session/set_mode", &());
        }
        assert_eq!(requests.waiting.len(), MAX_WAITING);
        assert_eq!(requests.take(1), Some(usize::MAX));
        // Prompts that are never answered do not add up.
        for number in 0..10 * MAX_WAITING {
            requests.prompt(number, "session/prompt", &());
        }
        assert_eq!(requests.waiting.len(), MAX_WAITING);
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
