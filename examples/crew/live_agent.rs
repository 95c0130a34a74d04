//! Headless agents: live sessions of exec-core, which the page can steer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use examples::Result;
use examples::board::sources::LiveSource;
use exec_core::{
    Budget, ExecutionContext, ExecutionService, FailureKind, LiveRequest, LiveSession, LiveStatus,
    PermissionPolicy, SessionId, Turn, TurnOutcome,
};
use serde_json::{Value, json};

use crate::crew_agent::{CrewAgent, NoAnswer};
use crate::crew_file::{Permissions, Role};

/// A permission request that is not answered on the page in this time is denied.
const PERMISSION_LIMIT: Duration = Duration::from_secs(600);
/// The slowest agents need more than a minute on a busy machine.
const OPEN_LIMIT: Duration = Duration::from_secs(180);

/// How often an agent is started with its conversation before it gets a new one.
const MAX_RESUMES: u32 = 3;

/// What all headless agents of a crew share.
pub struct Headless {
    pub service: ExecutionService,
    pub workspace: PathBuf,
    pub budget: Option<Budget>,
    pub page: Option<LiveSource>,
    /// The command by which they ask agents in panes, if there are any.
    pub ask_command: Option<String>,
}

/// The agent of one role. It ends with the service.
pub struct LiveAgent {
    shared: Arc<Headless>,
    role: Role,
    session: Option<LiveSession>,
    /// The conversation, also of an earlier process.
    session_id: Option<SessionId>,
    turn: Option<Turn>,
    failed_resumes: u32,
}

impl LiveAgent {
    pub fn new(shared: Arc<Headless>, role: Role) -> Self {
        Self {
            shared,
            role,
            session: None,
            session_id: None,
            turn: None,
            failed_resumes: 0,
        }
    }

    /// The running session, or a new process with the same conversation.
    async fn open(&mut self) -> Result<LiveSession> {
        let Headless {
            service,
            workspace,
            budget,
            page,
            ..
        } = &*self.shared;
        // A restart on the page has made another one.
        let current = self
            .session_id
            .as_ref()
            .and_then(|id| service.live_session(id));
        let runs = |session: &LiveSession| session.state().status != LiveStatus::Ended;
        if let Some(session) = current.or_else(|| self.session.clone()).filter(runs) {
            return Ok(session);
        }
        let (policy, limit) = match self.role.permissions {
            Permissions::Allow => (PermissionPolicy::allow_all(), None),
            Permissions::Ask => (
                PermissionPolicy::default().deadline(PERMISSION_LIMIT),
                Some(PERMISSION_LIMIT),
            ),
        };
        let context = ExecutionContext::for_workspace(&self.role.agent, workspace)?;
        let prepare = |request: LiveRequest| {
            let request = request.policy(policy.clone()).open_limit(OPEN_LIMIT);
            match budget {
                Some(budget) => request.budget(budget.clone()),
                None => request,
            }
        };
        if let Some(old) = &self.session {
            // Its conversation is free when all its processes are gone.
            old.execution().wait().await?;
        }
        let session = match self.session_id.clone() {
            Some(id) if self.failed_resumes < MAX_RESUMES => {
                self.failed_resumes += 1;
                let request = prepare(LiveRequest::resume(context, id));
                service.open_live(request).await?
            }
            // Without its conversation the agent still gets the whole text of the task.
            _ => {
                service
                    .open_live(prepare(LiveRequest::new(context)))
                    .await?
            }
        };
        self.failed_resumes = 0;
        if let Some(page) = page {
            page.add(&self.role.name, session.clone(), limit);
        }
        Ok(self.session.insert(session).clone())
    }
}

#[async_trait]
impl CrewAgent for LiveAgent {
    async fn send(&mut self, text: &str) -> Result<Value> {
        let session = self.open().await?;
        self.turn = Some(session.prompt(text)?);
        let id = session.session_id();
        let receipt = json!({"session": id});
        self.session_id = Some(id);
        Ok(receipt)
    }

    async fn answer(&mut self, receipt: &Value) -> std::result::Result<String, NoAnswer> {
        let Some(turn) = self.turn.take() else {
            // The turn belonged to a process that was killed; its session goes on in the next one. Its agent may
            // still work: then its output has no reader, and it must not work beside the next one.
            let reaped = self.shared.service.reap_orphans().await;
            reaped.map_err(|error| NoAnswer::ended(examples::with_causes(&error)))?;
            // A session of another machine is unknown here.
            let id: Option<SessionId> = serde_json::from_value(receipt["session"].clone()).ok();
            let known = self.shared.service.history().load();
            let known = known.map(|history| history.entries).unwrap_or_default();
            self.session_id = id.filter(|id| known.iter().any(|entry| entry.session_id == *id));
            return Err(NoAnswer::ended("the program that asked has ended"));
        };
        let report = turn
            .ended()
            .await
            .map_err(|error| NoAnswer::ended(examples::with_causes(&error)))?;
        let (reason, is_transient) = match &report.outcome {
            TurnOutcome::Completed if report.is_whole => {
                return Ok(report.text.trim().to_owned());
            }
            TurnOutcome::Completed => ("its answer has holes, or is too long".to_owned(), false),
            TurnOutcome::Interrupted => ("the turn was interrupted".to_owned(), true),
            TurnOutcome::Failed { failure } => {
                let is_final = matches!(
                    failure.kind,
                    FailureKind::Authentication | FailureKind::Limited { .. }
                );
                (failure.to_string(), !is_final)
            }
            _ => ("the agent ended before its answer".to_owned(), true),
        };
        Err(NoAnswer {
            reason,
            partial: report.text.clone(),
            is_transient,
        })
    }

    async fn process_id(&self) -> Option<u32> {
        self.session
            .as_ref()
            .map(|session| session.execution().process_id())
    }

    fn ask_command(&self) -> Option<String> {
        let command = self.shared.ask_command.as_ref()?;
        Some(format!("{command} --from {} ask", self.role.name))
    }
}
