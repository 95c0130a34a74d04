use std::collections::HashMap;

use tracing::Span;
use tracing::field::Empty;

use crate::AgentEventKind;
use crate::telemetry::{ERROR_TYPE, EXECUTE_TOOL, OPERATION, OTEL_NAME, TOOL_CALL_ID, TOOL_NAME};

/// How many tools can be open. Further calls get no span.
const MAX_OPEN: usize = 256;

/// One `tracing` span for each tool, from its call to its result.
///
/// Spans of tools that do not return end with the execution.
pub(crate) struct ToolSpans {
    execution: Span,
    /// By the id of the call.
    open: HashMap<String, Span>,
}

impl ToolSpans {
    pub(crate) fn new(execution: Span) -> Self {
        Self {
            execution,
            open: HashMap::new(),
        }
    }

    pub(crate) fn execution(&self) -> &Span {
        &self.execution
    }

    /// Ends the spans of tools that have not returned, and lets the span of the execution end: a
    /// handle of the execution may live much longer.
    pub(crate) fn close(&mut self) {
        self.open.clear();
        self.execution = Span::none();
    }

    pub(crate) fn observe(&mut self, event: &AgentEventKind) {
        match event {
            AgentEventKind::ToolCall {
                id: Some(id), name, ..
            } if self.open.len() < MAX_OPEN => {
                let span = tracing::info_span!(
                    parent: &self.execution,
                    "tool",
                    { OTEL_NAME } = format!("{EXECUTE_TOOL} {name}"),
                    { OPERATION } = EXECUTE_TOOL,
                    { TOOL_NAME } = name,
                    { TOOL_CALL_ID } = id,
                    { ERROR_TYPE } = Empty,
                );
                if !span.is_disabled() {
                    self.open.insert(id.clone(), span);
                }
            }
            AgentEventKind::ToolResult {
                id: Some(id),
                is_error,
                ..
            } => {
                if let Some(span) = self.open.remove(id)
                    && *is_error
                {
                    span.record(ERROR_TYPE, "tool");
                }
            }
            _ => {}
        }
    }
}
