use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

/// Agents in tmux panes, and their user, talk to each other.
///
/// In a pane of a cluster the cluster and the sender are known. Elsewhere --config or --folder names
/// the cluster, and the sender is `user`.
#[derive(Parser)]
#[command(name = "tmux-bus", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    /// The configuration of the cluster
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The folder of the cluster's session, in place of --config: the one with its socket. For a
    /// cluster that was made in code
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// The folder for sockets, if the cluster was started with another one than the default
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// The name of the sender outside of all panes; not that of an agent [default: user]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) from: Option<String>,
    /// Print the reply, or the failure, as one JSON object
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: the system, tmux or the configuration
  2  wrong arguments, or no cluster is named
  3  there is no such cluster, agent or ask
  4  refused, nothing was sent: not allowed, a cycle, another sender, or the agent takes no message now
  5  no answer in time; an ask that still runs can be waited for again
  6  the agent ended, or ended its turn, without an answer
  7  uncertain: the agent may or may not have got the message";

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Send a message and print the answer
    Ask {
        /// The receiver
        #[arg(value_name = "AGENT")]
        to: String,
        /// The message; `-` reads it from the standard input
        #[arg(allow_hyphen_values = true)]
        text: String,
        /// Print an id at once; `wait ID` prints the answer
        #[arg(long)]
        detach: bool,
        /// Stop waiting after this time; the ask continues, and `wait` gets its answer
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<f64>,
        /// How long the agent may take [default: 3600]
        #[arg(long, value_name = "SECONDS")]
        limit: Option<f64>,
    },
    /// Leave a message without waiting for an answer
    Post {
        /// The receiver
        #[arg(value_name = "AGENT")]
        to: String,
        /// The message; `-` reads it from the standard input
        #[arg(allow_hyphen_values = true)]
        text: String,
        /// Type it now, or fail; it is not left in the inbox
        #[arg(long)]
        now: bool,
    },
    /// List the messages that wait for an agent, and those that could not be delivered
    Inbox {
        /// The agent [default: the sender]
        agent: Option<String>,
    },
    /// Show what each agent is doing
    Status,
    /// Show the screen of an agent, and how its state was found
    Explain {
        /// The agent
        agent: String,
    },
    /// Print the answer to an earlier ask; can be repeated
    Wait {
        /// The id that `ask` printed
        id: String,
        /// Stop waiting after this time
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<f64>,
    },
    /// Show the last messages
    Log {
        /// Only from this sender
        #[arg(long = "sender", value_name = "NAME")]
        from: Option<String>,
        /// Only to this receiver
        #[arg(long, value_name = "NAME")]
        to: Option<String>,
        /// Number of messages [default: 20]
        #[arg(short = 'n', long, value_name = "NUMBER")]
        last: Option<usize>,
        /// Print all messages, and those that come
        #[arg(short, long)]
        follow: bool,
    },
    /// Carries out an ask in the background
    #[command(hide = true)]
    CarryOut {
        #[command(flatten)]
        background: Background,
        id: String,
    },
    /// Delivers the inbox in the background
    #[command(hide = true)]
    Deliver {
        #[command(flatten)]
        background: Background,
    },
}

#[derive(Args)]
pub(crate) struct Background {
    /// The second of the two processes
    #[arg(long)]
    pub(crate) session_leader: bool,
}

impl Arguments {
    /// The arguments of this process.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let arguments = Self::try_parse()?;
        // By hand: clap does not compare options before the verb with options behind it.
        if arguments.config.is_some() && arguments.folder.is_some() {
            let message = "--config and --folder name two clusters: give one of them";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, message));
        }
        if let Some(own) = folder_of_pane()
            && arguments.names_another_cluster(&own)
        {
            let message = "in a pane of a cluster, --config, --folder and --runtime-dir are refused: \
                           outside of the panes, or without the variable TMUX_BUS_FOLDER, they name another cluster";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, message));
        }
        Ok(arguments)
    }

    /// An agent may run this command without asking a person. The folder of a cluster names the tmux
    /// program and the file of the log, so an agent that can only write files could have any program
    /// started, and any file appended to, by a folder that it has made.
    fn names_another_cluster(&self, own: &Path) -> bool {
        let whole = |folder: &Path| std::path::absolute(folder).ok();
        let is_other = |folder: &Path| whole(folder).is_none() || whole(folder) != whole(own);
        self.config.is_some()
            || self.runtime_dir.is_some()
            || self.folder.as_deref().is_some_and(is_other)
    }

    /// The command with the options by which it has found its cluster, for a shell.
    pub(crate) fn repeated(&self) -> String {
        let options = [
            ("--config", &self.config),
            ("--folder", &self.folder),
            ("--runtime-dir", &self.runtime_dir),
        ];
        let mut command = "tmux-bus".to_owned();
        for (option, value) in options {
            if let Some(value) = value {
                command.push_str(&format!(" {option} {}", quoted(value)));
            }
        }
        command
    }
}

/// The folder of the session, in a pane of a cluster.
pub(crate) fn folder_of_pane() -> Option<PathBuf> {
    let folder = std::env::var_os("TMUX_BUS_FOLDER");
    folder
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
}

fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    match path.chars().all(is_plain) {
        true => path.into_owned(),
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}
