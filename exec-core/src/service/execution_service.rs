//! The service: the checks of a request, and the calls of the specification.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::execution_service_builder::ServiceSettings;
use crate::process::TAG_VARIABLE;
use crate::records::OwnerJournal;
use crate::run::LookupSlots;
use crate::shared::process_tree::ProcessScanner;
use crate::{
    ActiveExecutionRegistry, CommandConfig, Error, Execution, ExecutionKind, ExecutionResult,
    ExecutionServiceBuilder, FollowUpRequest, History, LaunchRequest, NewChatRequest,
    ProcessParameters, Profile, ProfileSource, SessionId, StopOutcome,
};

/// Starts, continues and stops executions of agents.
///
/// It needs a tokio runtime with I/O and time enabled. Cheap to clone. Dropping it, even the last
/// clone, stops nothing: each execution is supervised to its end as long as the runtime lives.
/// [`reap_orphans`](Self::reap_orphans) of the next run ends executions that outlived their host.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let profiles = doctest::Script("exec sleep 60");
/// # let request = doctest::request("go");
/// use exec_core::{ExecutionService, StopOutcome};
///
/// let service = ExecutionService::builder(profiles).state_dir(folder.path()).open()?;
/// let started = service.start_new_chat(request).await?;
/// assert!(service.active_executions().is_active(&started.session_id));
///
/// let outcome = service.stop_execution(&started.session_id).await?;
/// assert!(matches!(outcome, StopOutcome::Stopped(_)));
/// assert!(service.executions().is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ExecutionService {
    inner: Arc<ServiceInner>,
}

pub(crate) struct ServiceInner {
    pub(crate) profiles: Box<dyn ProfileSource>,
    pub(crate) settings: ServiceSettings,
    pub(crate) registry: Arc<ActiveExecutionRegistry>,
    pub(crate) scanner: Arc<ProcessScanner>,
    pub(crate) history: Arc<History>,
    pub(crate) owner: Arc<OwnerJournal>,
    pub(crate) lookup_slots: LookupSlots,
}

/// A request that has passed the checks, with the profile's command for it.
pub(crate) struct CheckedRequest {
    pub(crate) request: LaunchRequest,
    pub(crate) command: CommandConfig,
    profile: Arc<dyn Profile>,
}

impl ExecutionService {
    /// Opens the default state folder; see [`ExecutionServiceBuilder`] for other settings.
    ///
    /// # Errors
    ///
    /// As [`ExecutionServiceBuilder::open`].
    pub fn open(profiles: impl ProfileSource + 'static) -> Result<Self, Error> {
        Self::builder(profiles).open()
    }

    /// A service with other settings.
    pub fn builder(profiles: impl ProfileSource + 'static) -> ExecutionServiceBuilder {
        ExecutionServiceBuilder::new(Box::new(profiles))
    }

    pub(crate) fn with_settings(
        profiles: Box<dyn ProfileSource>,
        settings: ServiceSettings,
    ) -> Result<Self, Error> {
        let owner = OwnerJournal::open(&settings.state_dir, &settings.host_name)?;
        Ok(Self {
            inner: Arc::new(ServiceInner {
                profiles,
                registry: Arc::default(),
                scanner: Arc::new(ProcessScanner::new(TAG_VARIABLE)),
                history: Arc::new(History::new(&settings.state_dir)),
                owner: Arc::new(owner),
                lookup_slots: LookupSlots::default(),
                settings,
            }),
        })
    }

    /// Starts a new session and waits until its id is final.
    ///
    /// If the agent ends before it has reported its session id, the result has the minted id and
    /// no process id. The [history](Self::history) and the handle that [`launch`](Self::launch)
    /// returns then say how it ended.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped before the process is started, nothing has
    /// happened; after the start, the execution continues and is in the
    /// [registry](Self::active_executions).
    pub async fn start_new_chat(&self, request: NewChatRequest) -> Result<ExecutionResult, Error> {
        let execution = self.launch(request).await?;
        execution.resolved().await?;
        Ok(execution.result())
    }

    /// Sends a message to a session whose last execution has ended.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: as [`start_new_chat`](Self::start_new_chat).
    pub async fn send_follow_up(&self, request: FollowUpRequest) -> Result<ExecutionResult, Error> {
        let execution = self.launch(request).await?;
        Ok(execution.result())
    }

    /// Starts an execution and returns its handle at once, before the session id is known.
    ///
    /// The request is a [`NewChatRequest`], a [`FollowUpRequest`] or a [`LaunchRequest`]. The call
    /// waits only if the profile looks up session ids in the file system: launches of the same
    /// profile in the same workspace then do so one after the other.
    ///
    /// # Errors
    ///
    /// In the order of the checks: [`Error::Invalid`] (the session id), [`Error::ForeignSession`],
    /// [`Error::WorkspaceMissing`], [`Error::WorkspaceNotDirectory`], [`Error::ProfileNotFound`],
    /// [`Error::UnknownVariant`], [`Error::CommandNotFound`], [`Error::EmptyPrompt`],
    /// [`Error::SessionBusy`], [`Error::Parameters`], [`Error::BinaryNotFound`], [`Error::Invalid`]
    /// (the name of a variable), [`Error::Io`], [`Error::NotPrivate`] and [`Error::Spawn`]. No
    /// process was started and nothing is registered.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it is ready, nothing has happened.
    pub async fn launch(
        &self,
        request: impl TryInto<LaunchRequest, Error: Into<Error>>,
    ) -> Result<Execution, Error> {
        let request = request.try_into().map_err(Into::into)?;
        let checked = self.inner.check(request)?;
        let mut parameters = checked.parameters()?;
        let mut slot = None;
        if parameters.session_id_lookup.is_some() && checked.request.kind == ExecutionKind::New {
            let context = &checked.request.context;
            let timeout = self.inner.settings.resolution_timeout;
            slot = self
                .inner
                .lookup_slots
                .take(&context.profile_label, &context.workspace_path, timeout)
                .await;
            // The profile listed the session files when it built these parameters, before this
            // launch had the slot. The files of the previous launch would look new. Build them
            // again.
            parameters = checked.parameters()?;
        }
        self.inner.start(checked, parameters, slot)
    }

    /// Ends the live execution of a session with all its processes, by the ladder of its profile.
    /// Returns when no process is left, or with [`Error::StillAlive`].
    ///
    /// # Errors
    ///
    /// As [`Execution::stop`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once the future was polled, the stop continues even if the future is dropped.
    pub async fn stop_execution(&self, session_id: &SessionId) -> Result<StopOutcome, Error> {
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

    /// The sessions that have a live execution.
    pub fn active_executions(&self) -> &ActiveExecutionRegistry {
        &self.inner.registry
    }

    /// The executions of the past and present.
    pub fn history(&self) -> &History {
        &self.inner.history
    }

    pub(crate) fn inner(&self) -> &ServiceInner {
        &self.inner
    }
}

impl ServiceInner {
    /// The checks that need no process, in the order of the specification.
    fn check(&self, mut request: LaunchRequest) -> Result<CheckedRequest, Error> {
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
                session: request.session_id,
            });
        }
        // The agent knows its session by the current id only.
        request.session_id = self.registry.current_id(&request.session_id);
        Ok(CheckedRequest {
            request,
            command,
            profile,
        })
    }
}

impl CheckedRequest {
    fn parameters(&self) -> Result<ProcessParameters, Error> {
        self.profile
            .build_process_parameters(&self.command, &self.request)
            .map_err(|source| Error::Parameters {
                label: self.request.context.profile_label.clone(),
                source,
            })
    }
}

fn check_workspace(path: &Path) -> Result<PathBuf, Error> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => Error::WorkspaceMissing {
            path: path.to_owned(),
        },
        _ => Error::io("use the workspace", path)(source),
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
