//! The sandbox of an agent, on bubblewrap.
//!
//! # Theory
//!
//! The command line of a sandboxed launch, and the processes that it becomes:
//!
//! ```text
//! host ── bwrap <namespaces> <mounts> -- /bin/sh -c <init.sh> exec-core-sandbox <agent> <args>
//!           └─ /bin/sh          process 1 of a new pid namespace
//!                └─ agent       process 2
//! ```
//!
//! **Why a shell is process 1.** bubblewrap's own process 1 is not waited for by the outer `bwrap`,
//! so the CPU time and the memory of the agent would be lost with it. With `--as-pid-1`, the
//! program that bubblewrap starts is process 1 and is waited for. That cannot be the agent: the
//! kernel ignores signals to a process 1 that has no handler for them, and a process 1 must reap
//! orphans. A shell that waits for a command in the foreground reaps every child, and its resources
//! pass through `wait4` to the host: agent, shell, `bwrap`, host. When the shell ends, the kernel
//! kills all processes of the namespace and counts their resources, too.
//!
//! **The start of the agent** (`agent_start.rs`). The shell starts a subshell, which writes to a
//! socket of the host and waits for an answer. The kernel adds the process id of the sender, as the
//! host sees it. The host opens a pidfd of it and answers, and the subshell becomes the agent. So
//! the host has a handle of the agent before its first instruction.
//!
//! **The exit status.** bubblewrap exits with 128 + n if a signal n ended the agent, as a shell
//! does. An agent that exits with that code looks the same. The pidfd tells them apart (Linux
//! 6.15); before, the code is read as a signal.
//!
//! **Stop** (`carrier.rs`). The steps of a ladder do not signal `bwrap` and the shell: the end of
//! either ends the agent without its grace. `KILL` goes to all.
//!
//! **Mounts** (`mounts.rs`, `bwrap_args.rs`). All paths are real paths: links are followed before
//! the launch. The rule of the deepest path applies, so mounts are made from the root downwards.
//!
//! **Fail closed** (`bubblewrap.rs`). The first sandboxed launch of a service tries bubblewrap with
//! a shell that only exits. Without success the launch is refused; only a success is remembered. If
//! bubblewrap fails later, it exits before the agent is started.

mod agent_folder;
mod agent_start;
mod bubblewrap;
mod bwrap_args;
mod carrier;
mod mounts;
mod policy;
mod sandbox_setting;

pub use agent_folder::AgentFolder;
pub(crate) use agent_start::AgentStart;
pub(crate) use bubblewrap::Bubblewrap;
pub(crate) use bwrap_args::{Enclosure, enclose};
pub(crate) use carrier::{is_shell_or_agent, signal_in_step};
pub(crate) use mounts::{AgentView, Mounts};
pub use policy::{ReadAccess, Sandbox};
pub use sandbox_setting::SandboxSetting;

/// The shell that is process 1, and its script.
const SHELL: &str = "/bin/sh";
const INIT: &str = include_str!("init.sh");
/// The name of the shell in lists of processes.
const INIT_NAME: &str = "exec-core-sandbox";

/// The descriptor of the socket in the shell; see `init.sh`.
pub(crate) const CONTROL_FD: i32 = 3;
