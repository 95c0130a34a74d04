//! Agents with names, by a configuration file.

mod agent;
mod agent_config;
mod agent_launch;
pub(crate) mod agent_monitor;
mod answer;
mod answer_wait;
mod ask;
mod ask_gate;
mod cluster_builder;
mod cluster_config;
mod cluster_config_builder;
mod cluster_manager;
pub(crate) mod cluster_record;
mod cluster_status;
pub(crate) mod frame;
mod owed_answer;
mod primer;
pub(crate) mod readiness;
mod reconciler;
mod stop_on_drop;
pub(crate) mod wait_graph;

pub use agent::{Agent, SendToOptions};
pub use agent_config::{AgentConfig, AgentRole};
pub use answer::Answer;
pub use cluster_builder::ClusterBuilder;
pub use cluster_config::ClusterConfig;
pub use cluster_config_builder::ClusterConfigBuilder;
pub use cluster_manager::ClusterManager;
pub use cluster_status::{AgentStatus, ClusterStatus};
pub use stop_on_drop::StopOnDrop;
