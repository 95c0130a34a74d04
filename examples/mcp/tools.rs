//! The tools as a client sees them.

use rmcp::model::Tool;
use serde_json::{Map, Value, json};

/// Told to the model together with the tools.
pub(crate) const INSTRUCTIONS: &str = "Talk to the other agents of this cluster. `status` lists them \
    and says who you are. `ask` waits for an answer, `post` does not. Claim a file or a resource \
    before you change it, and release it afterwards.";

/// Name, description, parameters as (name, JSON type, description), names of the required ones.
type Verb = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str, &'static str)],
    &'static [&'static str],
);

const TO: (&str, &str, &str) = ("to", "string", "The receiver");
const TEXT: (&str, &str, &str) = ("text", "string", "The message");
const VALUE: (&str, &str, &str) = ("value", "string", "What is claimed, such as a path");
const TIMEOUT: (&str, &str, &str) = (
    "timeout_s",
    "number",
    "Stop waiting after this time; the ask continues, and `wait` gets its answer",
);

#[rustfmt::skip]
const VERBS: [Verb; 7] = [
    ("ask", "Send a message to another agent and return its answer", &[
        TO, TEXT, TIMEOUT,
        ("detach", "boolean", "Return the id of the ask at once; `wait` gets its answer"),
        ("limit_s", "number", "How long the agent may take; the default is an hour"),
    ], &["to", "text"]),
    ("wait", "Return the answer to an earlier ask; can be repeated", &[
        ("id", "string", "The id of the ask"), TIMEOUT,
    ], &["id"]),
    ("post", "Leave a message for another agent without waiting for an answer", &[
        TO, TEXT, ("now", "boolean", "Type it now, or fail; it is not left in the inbox"),
    ], &["to", "text"]),
    ("inbox", "List the messages that wait for an agent, and those that could not be delivered", &[
        ("agent", "string", "The agent; the default is you"),
    ], &[]),
    ("status", "Show who you are and what each agent is doing", &[], &[]),
    ("claim", "Take a value that only one agent may hold", &[
        VALUE,
        ("ttl_s", "number", "How long you may hold it; the default is an hour"),
        ("wait_s", "number", "How long to wait until it is free; the default is not to wait"),
    ], &["value"]),
    ("release", "Give a claimed value back", &[VALUE], &["value"]),
];

pub(crate) fn all() -> Vec<Tool> {
    let tools = VERBS
        .iter()
        .map(|(name, description, parameters, required)| {
            let property = |(name, kind, description): &(&str, &str, &str)| {
                let property = json!({"type": kind, "description": description});
                ((*name).to_owned(), property)
            };
            let properties: Map<String, Value> = parameters.iter().map(property).collect();
            let mut schema = Map::new();
            schema.insert("type".to_owned(), json!("object"));
            schema.insert("properties".to_owned(), Value::Object(properties));
            schema.insert("required".to_owned(), json!(required));
            schema.insert("additionalProperties".to_owned(), json!(false));
            Tool::new(*name, *description, schema)
        });
    tools.collect()
}
