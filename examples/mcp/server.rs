//! Calls of tools, carried out as requests of the vocabulary.

use std::path::PathBuf;

use examples::with_causes;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tmux_bus::vocabulary::{Failure, Reply, Request};
use tmux_bus::{Bus, Error};

use crate::claims::{self, ClaimRequest};
use crate::tools;

pub(crate) struct BusServer {
    pub(crate) config: Option<PathBuf>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) runtime_dir: Option<PathBuf>,
    pub(crate) claims: Option<PathBuf>,
}

impl ServerHandler for BusServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("tmux-bus", env!("CARGO_PKG_VERSION")))
            .with_instructions(tools::INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !tools::all().iter().any(|tool| tool.name == call.name) {
            let unknown = format!("unknown tool: {}", call.name);
            return Err(ErrorData::invalid_params(unknown, None));
        }
        let mut request = call.arguments.unwrap_or_default();
        // After the arguments: the tool that was called is the one that runs.
        request.insert("verb".to_owned(), json!(call.name));
        let result = match self.call(request).await {
            Ok(reply) if reply.get("error").is_none() => CallToolResult::structured(reply),
            Ok(reply) | Err(reply) => CallToolResult::structured_error(reply),
        };
        Ok(result.into())
    }
}

impl BusServer {
    /// The reply to a request; the error is `{"error": …}`, as the command prints it.
    async fn call(&self, request: JsonObject) -> Result<Value, Value> {
        let is_claim = ["claim", "release"]
            .map(Value::from)
            .contains(&request["verb"]);
        let request = Value::Object(request);
        // For every call: the server may outlive the cluster, and the sender must belong to the
        // cluster that gets the message.
        let connect = async || self.connect().await.map_err(|error| failed(&error));
        if is_claim {
            let request: ClaimRequest = serde_json::from_value(request).map_err(wrong)?;
            let bus = connect().await?;
            let beside = || bus.log_file().with_file_name("claims.json");
            let file = self.claims.clone().unwrap_or_else(beside);
            let claimed = claims::call(&file, bus.sender(), request).await;
            return claimed.map_err(|error| failure(with_causes(&*error)));
        }
        let request: Request = serde_json::from_value(request).map_err(wrong)?;
        let reply: Reply = connect()
            .await?
            .call(request)
            .await
            .map_err(|error| failed(&error))?;
        serde_json::to_value(reply).map_err(wrong)
    }

    async fn connect(&self) -> Result<Bus, Error> {
        let mut builder = Bus::builder();
        if let Some(config) = &self.config {
            builder = builder.config(config);
        } else if let Some(folder) = &self.folder {
            builder = builder.folder(folder);
        }
        if let Some(dir) = &self.runtime_dir {
            builder = builder.runtime_dir(dir);
        }
        builder.connect().await
    }
}

fn failed(error: &Error) -> Value {
    json!({"error": Failure::from(error)})
}

/// A failure outside of the bus, in the form of the vocabulary.
fn failure(message: String) -> Value {
    json!({"error": {"kind": "failed", "message": message}})
}

fn wrong(error: serde_json::Error) -> Value {
    failure(format!("wrong arguments: {error}"))
}
