//! Names of span attributes.
//!
//! The `gen_ai.*` names are those of the OpenTelemetry semantic conventions for generative AI. Their
//! status is still "Development": if they change, this file changes.

/// The name of the span for OpenTelemetry, where it is not constant.
pub(crate) const OTEL_NAME: &str = "otel.name";
/// The class of the error, if the operation failed.
pub(crate) const ERROR_TYPE: &str = "error.type";

/// `invoke_agent` or `execute_tool`.
pub(crate) const OPERATION: &str = "gen_ai.operation.name";
pub(crate) const INVOKE_AGENT: &str = "invoke_agent";
pub(crate) const EXECUTE_TOOL: &str = "execute_tool";

/// The label of the profile.
pub(crate) const AGENT_NAME: &str = "gen_ai.agent.name";
/// The session id.
pub(crate) const CONVERSATION_ID: &str = "gen_ai.conversation.id";
pub(crate) const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub(crate) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(crate) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(crate) const TOOL_NAME: &str = "gen_ai.tool.name";
pub(crate) const TOOL_CALL_ID: &str = "gen_ai.tool.call.id";

/// The environment variable by which a child continues a trace (W3C Trace Context).
pub(crate) const TRACEPARENT_VARIABLE: &str = "TRACEPARENT";
