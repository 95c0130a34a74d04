use std::time::Duration;

use tmux_bus::{ClusterManager, Message, MessageType, Result};

/// Asks an agent as `user`, who is no agent of the cluster: so the messages are logged by hand.
/// Without a timeout it is the agent's own.
pub async fn ask_as_user(
    cluster: &ClusterManager,
    to: &str,
    text: &str,
    timeout: Option<Duration>,
) -> Result<String> {
    let (io, pane) = (cluster.pane_io(), cluster.get_pane(to)?);
    let sent = io.send_message(pane, text).await?;
    let question = Message::new("user", to, text);
    let id = cluster.logger().log(&question, MessageType::Task)?;
    let agents = &cluster.config().agents;
    let own = agents.iter().find(|agent| agent.name == to);
    let timeout = timeout.or(own.map(|agent| agent.timeout));
    let timeout = timeout.unwrap_or(Duration::from_secs(30));
    let answer = io
        .get_response(sent, cluster.get_marker(to)?, timeout)
        .await;
    let (kind, content) = match &answer {
        Ok(answer) => (MessageType::Result, answer.clone()),
        Err(error) => (MessageType::Error, error.to_string()),
    };
    let reply = Message::new(to, "user", content);
    cluster.logger().log_reply(&reply, kind, &id)?;
    answer
}
