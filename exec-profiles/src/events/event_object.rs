use serde_json::{Map, Value};

/// A JSON object of an agent's output.
///
/// All access is lenient, because agents add, drop and retype fields between versions: a missing
/// field reads as null, a field of another type as no text.
pub(super) struct EventObject(Map<String, Value>);

impl EventObject {
    pub(super) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok().map(Self)
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.at(key).as_str()
    }

    pub(super) fn at(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }
}

pub(super) fn owned(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The text of a string or of a list of `{"text": …}` blocks. Any other value becomes JSON, so that
/// no content is lost.
pub(super) fn flatten(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<_> = blocks.iter().map(flatten).collect();
            texts.join("\n")
        }
        value => owned(&value["text"]).unwrap_or_else(|| value.to_string()),
    }
}

/// The sum of the counters that are present; `None` if all are missing.
pub(super) fn sum(counters: &[&Value]) -> Option<u64> {
    counters
        .iter()
        .filter_map(|counter| counter.as_u64())
        .reduce(u64::saturating_add)
}
