use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::builder::{ExecutionServiceBuilder, Settings};
use crate::error::Result;
use crate::session_resolution::LookupTurns;
use crate::shared::process_tree::ProcessScanner;
use crate::state::Owner;
use crate::{
    ActiveExecutionRegistry, CommandConfig, Error, Execution, ExecutionKind, ExecutionResult,
    FollowUpRequest, History, LaunchRequest, NewChatRequest, ProcessParameters, Profile,
    ProfileSource, SessionId, StopOutcome,
};

/// Starts, continues and stops the executions of agents.
///
/// It needs a tokio runtime with I/O and time enabled. Cheap to clone. Dropping it, even the last
/// clone, does not stop what runs: each execution is supervised to its end as long as the runtime
/// lives. What is still alive when the host ends is found by [`reap_orphans`](Self::reap_orphans)
/// of its next run.
#[derive(Clone)]
pub struct ExecutionService {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) profiles: Box<dyn ProfileSource>,
    pub(crate) settings: Settings,
    pub(crate) registry: Arc<ActiveExecutionRegistry>,
    pub(crate) scanner: Arc<ProcessScanner>,
    pub(crate) history: Arc<History>,
    pub(crate) owner: Arc<Owner>,
    pub(crate) turns: LookupTurns,
}

/// A request that has passed the checks.
pub(crate) struct Prepared {
    pub(crate) request: LaunchRequest,
    pub(crate) command: CommandConfig,
    profile: Arc<dyn Profile>,
}

impl ExecutionService {
    /// A service with the default settings and state folder.
    ///
    /// # Errors
    /// As [`ExecutionServiceBuilder::build`].
    pub fn new(profiles: impl ProfileSource + 'static) -> Result<Self> {
        Self::builder(profiles).build()
    }

    /// A service with settings of one's own.
    pub fn builder(profiles: impl ProfileSource + 'static) -> ExecutionServiceBuilder {
        ExecutionServiceBuilder::new(Box::new(profiles))
    }

    pub(crate) fn from_parts(profiles: Box<dyn ProfileSource>, settings: Settings) -> Result<Self> {
        let owner = Owner::open(&settings.state_dir, &settings.host_name)?;
        Ok(Self {
            inner: Arc::new(Inner {
                profiles,
                registry: Arc::default(),
                scanner: Arc::new(ProcessScanner::new(crate::launch_plan::TAG_VARIABLE)),
                history: Arc::new(History::in_state_dir(&settings.state_dir)),
                owner: Arc::new(owner),
                turns: LookupTurns::default(),
                settings,
            }),
        })
    }

    /// Starts a new session and waits until its id is final.
    ///
    /// An agent that ends before it has named its session is an answer, too: with the minted id
    /// and without a process id; how it ended is in the [history](Self::history) and in the report
    /// of a handle from [`launch`](Self::launch).
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Cancel safety
    /// Dropped before the process is started, nothing has happened. Dropped later, the execution
    /// runs on and is in the [registry](Self::active_executions).
    pub async fn start_new_chat(&self, request: NewChatRequest) -> Result<ExecutionResult> {
        let execution = self.launch(request.try_into()?).await?;
        execution.resolved().await?;
        Ok(execution.result())
    }

    /// Sends a message to a session whose last execution has ended.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Cancel safety
    /// As [`start_new_chat`](Self::start_new_chat).
    pub async fn send_follow_up(&self, request: FollowUpRequest) -> Result<ExecutionResult> {
        let execution = self.launch(request.try_into()?).await?;
        Ok(execution.result())
    }

    /// Starts an execution and gives its handle at once, before the session's id is known.
    ///
    /// It waits only for its turn: of the launches whose id is looked up in the file system, one
    /// profile has one at a time in a workspace.
    ///
    /// # Errors
    /// In the order of the checks: [`Error::WorkspaceMissing`], [`Error::WorkspaceNotDirectory`],
    /// [`Error::ProfileNotFound`], [`Error::UnknownVariant`], [`Error::CommandNotFound`],
    /// [`Error::EmptyPrompt`], [`Error::SessionBusy`], [`Error::Parameters`],
    /// [`Error::InvalidVariable`], [`Error::BinaryNotFound`], [`Error::State`] and
    /// [`Error::Spawn`]. In every case nothing was started and nothing stays registered.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, nothing has happened.
    pub async fn launch(&self, request: LaunchRequest) -> Result<Execution> {
        let prepared = self.inner.prepare(request)?;
        let mut parameters = prepared.parameters()?;
        let mut turn = None;
        if parameters.session_id_lookup.is_some() && prepared.request.kind == ExecutionKind::New {
            let context = &prepared.request.context;
            let timeout = self.inner.settings.resolution_timeout;
            turn = self
                .inner
                .turns
                .take(&context.profile_label, &context.workspace_path, timeout)
                .await;
            // Once more: what the lookup found there before its turn is out of date.
            parameters = prepared.parameters()?;
        }
        self.inner.start(prepared, parameters, turn)
    }

    /// Ends the live execution of a session with all its processes, by the ladder of its profile.
    /// Returns when none is left. A session without a live execution is an answer.
    ///
    /// # Errors
    /// As [`Execution::stop`].
    ///
    /// # Cancel safety
    /// Once polled, the stop goes on even if the future is dropped.
    pub async fn stop_execution(&self, session_id: &SessionId) -> Result<StopOutcome> {
        match self.execution(session_id) {
            Some(execution) => execution.stop().await,
            None => Ok(StopOutcome::NotFound),
        }
    }

    /// The live execution of a session.
    pub fn execution(&self, session_id: &SessionId) -> Option<Execution> {
        self.inner.registry.execution(session_id)
    }

    /// All live executions, in no particular order.
    pub fn executions(&self) -> Vec<Execution> {
        self.inner.registry.executions()
    }

    /// Which sessions have a live execution.
    pub fn active_executions(&self) -> &ActiveExecutionRegistry {
        &self.inner.registry
    }

    /// The executions of the past and present.
    pub fn history(&self) -> &History {
        &self.inner.history
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl Inner {
    /// The checks that need no process, in the specification's order.
    fn prepare(&self, mut request: LaunchRequest) -> Result<Prepared> {
        let context = &mut request.context;
        context.workspace_path = check_workspace(&context.workspace_path)?;
        let label = &context.profile_label;
        let profile = self
            .profiles
            .find_profile(label)
            .ok_or_else(|| Error::ProfileNotFound {
                label: label.clone(),
            })?;
        if let Some(variant) = &context.variant_label {
            let known = profile.variant_labels();
            if !known.contains(variant) {
                return Err(Error::UnknownVariant {
                    label: label.clone(),
                    variant: variant.clone(),
                    known,
                });
            }
        }
        let command = profile
            .command(context.variant_label.as_deref())
            .filter(|command| !command.binary.trim().is_empty())
            .ok_or_else(|| Error::CommandNotFound {
                label: label.clone(),
            })?;
        if request.text.trim().is_empty() && !profile.accepts_empty_prompt() {
            return Err(Error::EmptyPrompt {
                label: label.clone(),
            });
        }
        if self.registry.is_active(&request.session_id) {
            return Err(Error::SessionBusy {
                session_id: request.session_id,
            });
        }
        Ok(Prepared {
            request,
            command,
            profile,
        })
    }
}

impl Prepared {
    fn parameters(&self) -> Result<ProcessParameters> {
        self.profile
            .build_process_parameters(&self.command, &self.request)
            .map_err(|source| Error::Parameters {
                label: self.request.context.profile_label.clone(),
                source,
            })
    }
}

fn check_workspace(path: &Path) -> Result<PathBuf> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => Error::WorkspaceMissing {
            path: path.to_owned(),
        },
        _ => Error::Workspace {
            path: path.to_owned(),
            source,
        },
    };
    if path.as_os_str().is_empty() {
        return Err(failed(io::ErrorKind::NotFound.into()));
    }
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Err(Error::WorkspaceNotDirectory {
            path: path.to_owned(),
        });
    }
    std::path::absolute(path).map_err(failed)
}

impl std::fmt::Debug for ExecutionService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutionService")
            .field("state_dir", &self.inner.settings.state_dir)
            .field("active", &self.inner.registry)
            .finish_non_exhaustive()
    }
}
