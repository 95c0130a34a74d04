//! The service: the checks of a request, and the calls of the specification.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use super::execution_service_builder::ServiceSettings;
use super::known_sessions::KnownSessions;
use crate::admission::{AdmissionGate, AdmissionSlot, WaitList};
use crate::budget::{Ledger, group_path};
use crate::limits::CredentialHolds;
use crate::process::TAG_VARIABLE;
use crate::records::OwnerJournal;
use crate::run::LookupSlots;
use crate::sandbox::Bubblewrap;
use crate::shared::process_tree::ProcessScanner;
use crate::telemetry::TRACEPARENT_VARIABLE;
use crate::{
    ActiveExecutionRegistry, BudgetResource, CommandConfig, Error, Execution, ExecutionKind,
    ExecutionResult, ExecutionServiceBuilder, FollowUpRequest, History, LaunchRequest,
    NewChatRequest, ProcessParameters, Profile, ProfileSource, Run, SessionId, Spent, StopOutcome,
    Usage, UsageTotals, WaitingLaunch,
};

/// Starts, continues and stops executions of agents.
///
/// It needs a tokio runtime with I/O and time enabled. Cheap to clone. Dropping it, even the last
/// clone, stops nothing: each execution is supervised to its end as long as the runtime lives.
/// [`shutdown`](Self::shutdown) stops all executions before the host ends, and
/// [`shutdown_on_drop`](Self::shutdown_on_drop) makes a guard for it.
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
    /// Whether launches are refused; see `shutdown`.
    pub(crate) closed: RwLock<bool>,
    pub(crate) known_sessions: Arc<KnownSessions>,
    pub(crate) waits: Arc<WaitList>,
    pub(crate) holds: CredentialHolds,
    admission: Option<AdmissionGate>,
    pub(crate) bubblewrap: Arc<Bubblewrap>,
}

/// What a process is started for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The text of the request.
    OneTurn,
    /// Prompts that follow.
    Live,
}

/// A request that has passed the checks, with the profile's command for it.
pub(crate) struct CheckedRequest {
    pub(crate) request: LaunchRequest,
    pub(crate) command: CommandConfig,
    /// The total of the session before this launch, if it is known.
    pub(crate) used_before: Option<Usage>,
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
        let mut owner = OwnerJournal::open(&settings.state_dir, &settings.host_name)?;
        if settings.end_with_host {
            owner = owner.with_watcher();
        }
        Ok(Self {
            inner: Arc::new(ServiceInner {
                profiles,
                registry: Arc::default(),
                scanner: Arc::new(ProcessScanner::new(TAG_VARIABLE)),
                history: Arc::new(History::new(&settings.state_dir)),
                owner: Arc::new(owner),
                lookup_slots: LookupSlots::default(),
                closed: RwLock::new(false),
                known_sessions: Arc::default(),
                waits: Arc::default(),
                holds: CredentialHolds::default(),
                admission: AdmissionGate::open(&settings.state_dir, settings.admission)?,
                bubblewrap: Arc::default(),
                settings,
            }),
        })
    }

    /// Runs an agent to its end, and returns its answer, usage, failure and session in one value.
    ///
    /// The request is as in [`launch`](Self::launch). Nothing happens until the result is awaited:
    /// `service.run(request).await?`, or with another time limit than one hour
    /// `service.run(request).time_limit(limit).await?`.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch), and [`Error::StillAlive`] if processes outlive the stop at the
    /// time limit. A failure of the agent is not an error of the call: it is in
    /// [`RunResult::failure`](crate::RunResult::failure).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped, the execution is stopped in the background.
    pub fn run(&self, request: impl TryInto<LaunchRequest, Error: Into<Error>>) -> Run {
        Run::new(self.clone(), request.try_into().map_err(Into::into))
    }

    /// Starts a new session and waits until its id is known.
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

    /// Sends a message to a session: to a new process if the last execution has ended, or as a prompt
    /// to the process of a [live session](crate::LiveSession) of this service.
    ///
    /// The result of a message to a live session has the process and the start of that session. The
    /// message may wait in its queue; the answer is in its events.
    ///
    /// # Errors
    ///
    /// - As [`launch`](Self::launch).
    /// - [`Error::LiveElsewhere`] if the session is live with another profile, variant or workspace than
    ///   that of the request.
    /// - As [`LiveSession::prompt`](crate::LiveSession::prompt).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: as [`start_new_chat`](Self::start_new_chat).
    pub async fn send_follow_up(&self, request: FollowUpRequest) -> Result<ExecutionResult, Error> {
        if let Some(result) = self.follow_up_live(&request)? {
            return Ok(result);
        }
        let execution = self.launch(request).await?;
        Ok(execution.result())
    }

    /// Starts an execution and returns its handle at once, before the session id is known.
    ///
    /// The request is a [`NewChatRequest`], a [`FollowUpRequest`] or a [`LaunchRequest`]. The call
    /// waits if the profile looks up session ids in the file system: launches of the same profile in
    /// the same workspace then do so one after the other. It also waits for
    /// [`max_running`](ExecutionServiceBuilder::max_running) and
    /// [`min_free_memory`](ExecutionServiceBuilder::min_free_memory); see [`waiting`](Self::waiting).
    ///
    /// # Errors
    ///
    /// In the order of the checks:
    ///
    /// - the request: [`Error::Invalid`] (the session id), [`Error::ForeignSession`],
    ///   [`Error::WorkspaceMissing`], [`Error::WorkspaceNotDirectory`];
    /// - the profile: [`Error::Parameters`] (its configuration), [`Error::ProfileNotFound`],
    ///   [`Error::UnknownVariant`], [`Error::CommandNotFound`], [`Error::EmptyPrompt`];
    /// - [`Error::Invalid`] (the trace parent), [`Error::SessionBusy`];
    /// - [`Error::BudgetNotMeasurable`]; after a wait [`Error::Cancelled`], by
    ///   [`WaitingLaunch::cancel`];
    /// - the start: [`Error::Parameters`], [`Error::ShuttingDown`] after a
    ///   [`shutdown`](Self::shutdown), [`Error::BinaryNotFound`], [`Error::Invalid`] (the name of a
    ///   variable), [`Error::Sandbox`], [`Error::BudgetExhausted`], [`Error::Io`],
    ///   [`Error::NotPrivate`], [`Error::Spawn`].
    ///
    /// No process was started and nothing is registered.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it is ready, nothing has happened.
    pub async fn launch(
        &self,
        request: impl TryInto<LaunchRequest, Error: Into<Error>>,
    ) -> Result<Execution, Error> {
        let mut request = request.try_into().map_err(Into::into)?;
        if request.kind == ExecutionKind::FollowUp {
            self.inner.recall(&mut request).await;
        }
        let mut checked = self.inner.check(request, Purpose::OneTurn)?;
        let admission = self.inner.admit(&mut checked, Purpose::OneTurn).await?;
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
        if parameters.sandbox.is_some() {
            self.inner.try_bubblewrap().await?;
        }
        self.inner.start(checked, parameters, slot, admission, None)
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

    /// The launches of this service that wait, and why; the oldest first.
    ///
    /// Dropping the future of a launch, or [`WaitingLaunch::cancel`], ends the wait.
    pub fn waiting(&self) -> Vec<WaitingLaunch> {
        self.inner.waits.snapshot()
    }

    /// All live executions, in no particular order.
    pub fn executions(&self) -> Vec<Execution> {
        self.inner.registry.executions()
    }

    /// The sessions that have a live execution.
    pub fn active_executions(&self) -> &ActiveExecutionRegistry {
        &self.inner.registry
    }

    /// The usage of all executions that name a [group](crate::Budget::for_group), in all processes
    /// that share the state folder. The numbers of a running execution are at most a second old.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an invalid name, [`Error::Io`] or [`Error::NotPrivate`] if the file of
    /// the group cannot be read.
    pub fn spent_by_group(&self, name: &str) -> Result<Spent, Error> {
        Ledger::new(group_path(&self.inner.settings.state_dir, name)?).total()
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
    /// Tries bubblewrap without blocking the runtime, before the start of the process asks for it.
    pub(super) async fn try_bubblewrap(&self) -> Result<(), Error> {
        let bubblewrap = Arc::clone(&self.bubblewrap);
        let tried = move || bubblewrap.working_program().map(drop);
        // The runtime shuts down: the start of the process tries it.
        let tried = tokio::task::spawn_blocking(tried).await;
        tried.unwrap_or(Ok(()))
    }

    /// Looks up in the history what an earlier service knew of the session of a follow-up: its
    /// current id, and its usage. Once for each session: the result is kept.
    pub(super) async fn recall(&self, request: &mut LaunchRequest) {
        let current = self.registry.current_id(&request.session_id);
        if current != request.session_id || self.known_sessions.get(&current).is_some() {
            return;
        }
        let history = Arc::clone(&self.history);
        let searched = tokio::task::spawn_blocking(move || history.recall(&current)).await;
        match searched {
            Ok(Ok((current, usage))) => {
                self.known_sessions.put(current.clone(), usage);
                request.session_id = current;
            }
            // The follow-up works without: only the totals of the session are then unknown.
            Ok(Err(error)) => tracing::warn!(%error, "cannot read the history of the session"),
            Err(_) => {}
        }
    }

    /// Refuses a budget that cannot be measured, and waits until the launch may start.
    pub(super) async fn admit(
        &self,
        checked: &mut CheckedRequest,
        purpose: Purpose,
    ) -> Result<Option<AdmissionSlot>, Error> {
        checked.check_budgets(purpose, self.settings.prices.is_some())?;
        let Some(gate) = &self.admission else {
            return Ok(None);
        };
        let context = &checked.request.context;
        let ticket = (self.waits).ticket(&checked.request.session_id, &context.profile_label);
        let slot = tokio::select! {
            slot = gate.enter(&ticket) => slot?,
            error = ticket.ended() => return Err(error),
        };
        if ticket.has_waited() {
            // Another execution of the session may have begun or ended, the workspace may be gone.
            *checked = self.check(checked.request.clone(), purpose)?;
        }
        Ok(Some(slot))
    }

    /// The checks that need no process, in the order of the specification.
    pub(super) fn check(
        &self,
        mut request: LaunchRequest,
        purpose: Purpose,
    ) -> Result<CheckedRequest, Error> {
        let context = &mut request.context;
        context.workspace_path = check_workspace(&context.workspace_path)?;
        let label = &context.profile_label;
        let refused = |source| Error::Parameters {
            label: label.clone(),
            source,
        };
        self.profiles.check_profile(label).map_err(refused)?;
        let profile = self.profiles.find_profile(label).ok_or_else(|| {
            let known = self.profiles.labels();
            Error::ProfileNotFound {
                label: label.clone(),
                nearest: nearest_label(label, &known),
                known,
            }
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
        if purpose == Purpose::OneTurn
            && request.text.trim().is_empty()
            && !profile.accepts_empty_prompt()
        {
            return Err(Error::EmptyPrompt {
                label: label.clone(),
            });
        }
        if let Some(traceparent) = &context.traceparent {
            check_traceparent(traceparent)?;
        }
        if self.registry.is_active(&request.session_id) {
            return Err(Error::SessionBusy {
                session: request.session_id,
            });
        }
        // The agent knows its session by the current id only.
        request.session_id = self.registry.current_id(&request.session_id);
        let used_before = match request.kind {
            ExecutionKind::New => Some(UsageTotals::NOTHING),
            ExecutionKind::FollowUp => self.known_sessions.get(&request.session_id).flatten(),
        };
        Ok(CheckedRequest {
            used_before,
            request,
            command,
            profile,
        })
    }
}

impl CheckedRequest {
    /// Refuses limits that could never be enforced: the agent reports no such number.
    fn check_budgets(&self, purpose: Purpose, has_prices: bool) -> Result<(), Error> {
        let budgets = &self.request.budgets;
        let limited = |resource: BudgetResource| {
            let mut budgets = budgets.iter();
            budgets.any(|budget| budget.limit_of(resource).is_some())
        };
        if budgets.is_empty() {
            return Ok(());
        }
        let reports_cost = match purpose {
            Purpose::OneTurn => self.parameters()?.event_parser.map(|p| p.reports_cost()),
            Purpose::Live => (self.live_parameters()?.protocol_driver).map(|d| d.reports_cost()),
        };
        let missing = match reports_cost {
            None => {
                let counted = [
                    BudgetResource::Tokens,
                    BudgetResource::Cost,
                    BudgetResource::ToolCalls,
                ];
                let limited = counted.into_iter().find(|resource| limited(*resource));
                limited.map(|resource| (resource, "the profile reads no events from its output"))
            }
            Some(reports_cost) if reports_cost || has_prices => None,
            Some(_) => limited(BudgetResource::Cost).then_some((
                BudgetResource::Cost,
                "the agent reports no cost; give the service a `price_table`",
            )),
        };
        match missing {
            None => Ok(()),
            Some((resource, reason)) => Err(Error::BudgetNotMeasurable {
                label: self.request.context.profile_label.clone(),
                resource,
                reason,
            }),
        }
    }

    fn parameters(&self) -> Result<ProcessParameters, Error> {
        let built = self
            .profile
            .build_process_parameters(&self.command, &self.request);
        self.complete(built)
    }

    /// The parameters of a live session, with a driver.
    pub(super) fn live_parameters(&self) -> Result<ProcessParameters, Error> {
        let built = self
            .profile
            .build_live_parameters(&self.command, &self.request);
        let has_driver = |parameters: &ProcessParameters| parameters.protocol_driver.is_some();
        match built.map(|built| built.filter(has_driver)).transpose() {
            Some(built) => self.complete(built),
            None => Err(Error::NoLiveProtocol {
                label: self.request.context.profile_label.clone(),
            }),
        }
    }

    fn complete(
        &self,
        built: Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<ProcessParameters, Error> {
        let context = &self.request.context;
        let mut parameters = built.map_err(|source| Error::Parameters {
            label: context.profile_label.clone(),
            source,
        })?;
        if let Some(traceparent) = &context.traceparent {
            let name = TRACEPARENT_VARIABLE.to_owned();
            parameters.env.insert(name, traceparent.clone());
        }
        Ok(parameters)
    }
}

/// W3C Trace Context, version 00: `00-<32 hex>-<16 hex>-<2 hex>`. Later versions may append fields.
fn check_traceparent(text: &str) -> Result<(), Error> {
    let hex = |part: Option<&str>, len: usize| {
        part.is_some_and(|part| {
            part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    let mut parts = text.split('-');
    let version = parts.next();
    let valid = hex(version, 2)
        && hex(parts.next(), 32)
        && hex(parts.next(), 16)
        && hex(parts.next(), 2)
        && (version != Some("00") || parts.next().is_none())
        && version != Some("ff");
    match valid {
        true => Ok(()),
        false => Err(Error::Invalid {
            what: "traceparent",
            value: text.to_owned(),
            reason: "it is not of the form 00-<trace id>-<parent id>-<flags>".to_owned(),
        }),
    }
}

/// The known label that the given one was probably meant to be.
fn nearest_label(label: &str, known: &[String]) -> Option<String> {
    let label = label.to_lowercase();
    let related = |other: &&String| {
        let other = other.to_lowercase();
        !label.is_empty() && (other.starts_with(&label) || label.starts_with(&other))
    };
    let by_distance = || {
        let distances = known
            .iter()
            .map(|other| (edit_distance(&label, other), other));
        let (distance, other) = distances.min()?;
        // A typing error, not another word.
        (distance <= 1 + label.chars().count() / 4).then_some(other)
    };
    known.iter().find(related).or_else(by_distance).cloned()
}

/// Levenshtein, one row at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, b) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_label_is_a_typing_error_or_a_part() {
        let known = ["claude-code", "codex", "gemini", "opencode"].map(str::to_owned);
        for (label, expected) in [
            ("claude", Some("claude-code")),
            ("Claude-Code", Some("claude-code")),
            ("claude_code", Some("claude-code")),
            ("codx", Some("codex")),
            ("gemini-cli", Some("gemini")),
            ("opencoder", Some("opencode")),
            ("qwen", None),
            ("", None),
        ] {
            let nearest = nearest_label(label, &known);
            assert_eq!(nearest.as_deref(), expected, "{label}");
        }
    }

    #[test]
    fn a_trace_parent_has_the_form_of_the_standard() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        check_traceparent(valid).unwrap();
        check_traceparent(&valid.replacen("00", "cc", 1)).unwrap();
        check_traceparent(&format!("{}-later", valid.replacen("00", "cc", 1))).unwrap();
        for invalid in [
            "",
            "00",
            &valid[..54],
            &format!("{valid}-more"),
            &valid.to_uppercase(),
            &valid.replacen("00", "ff", 1),
            &valid.replace('-', "_"),
        ] {
            assert!(check_traceparent(invalid).is_err(), "{invalid}");
        }
    }
}
