//! Observes the state of one agent.
//!
//! # Theory
//!
//! Nothing runs while no caller asks: an observation is one capture of the screen, evaluated by the
//! rules of the agent and weighed against the newest report of its hooks. A caller that waits for a
//! state is woken by events: output of the pane (a new title is output, too), a report of a hook, or
//! the end of the program.
//!
//! - **Hooks.** The events of the launch that runs are read before each capture, each event once for all
//!   callers. An event that is stored between the read and the wait wakes the waiter: the watch is armed, then
//!   the events are read again.
//! - **Settled.** A TUI draws a frame in several writes, and it shows that it works up to half a second
//!   after Enter. So an idle screen counts only after the pane has been quiet for `settle_ms` of the
//!   definition. Every other state counts at once: it never leads to typing.
//! - **Bound.** A program that prints all the time and looks idle all the time is idle after
//!   [`SETTLE_LIMIT`].
//! - **Splash.** Some agents show their input line before they know whether they need a dialog; rules tell such
//!   a screen from an idle one. A user can have switched off the line that these rules wait for, so after
//!   [`SPLASH_LIMIT`] of quiet the agent is idle.
//! - **Race.** Output between the capture and the check of the quiet time would make an old screen
//!   settled. The time of the last output is read before the capture and compared with the time of the
//!   capture; output after it wakes the waiter again.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
#[cfg(test)]
use unicode_width::UnicodeWidthStr;

use crate::control::command_queue::Request;
use crate::control::control_client::ControlClient;
use crate::control::tap::{Tap, deadline};
use crate::definition::agent_definition::AgentDefinition;
use crate::hook::{EventFolder, LaunchFolder};
use crate::log::FileWatch;
use crate::pane::PaneId;
use crate::state::hook_report::{HookReport, weigh};
use crate::state::input_line::InputLine;
use crate::state::screen::{Cursor, Screen};
use crate::state::screen_reading;
use crate::state::{AgentState, Evidence, EvidenceSource, TriedRule};
use crate::timing::{FRAME_QUIET, HOOK_TRUST, SETTLE_LIMIT, SPLASH_LIMIT};
use crate::{Error, Exit};

/// Clones observe the same agent.
#[derive(Clone, Debug)]
pub(crate) struct AgentMonitor {
    control: ControlClient,
    pane: PaneId,
    definition: Arc<AgentDefinition>,
    hooks: Arc<Mutex<ReadHooks>>,
}

/// The events of one launch, as far as they have been read.
#[derive(Debug, Default)]
struct ReadHooks {
    launch: String,
    events: Option<EventFolder>,
    /// The newest one.
    report: Option<HookReport>,
}

/// The state of an agent at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) state: AgentState,
    pub(crate) evidence: Evidence,
    pub(crate) input: InputLine,
    pub(crate) screen: Screen,
    /// Whether a person looks at the scroll-back: what is typed does not reach the program.
    pub(crate) in_copy_mode: bool,
    pub(crate) exit: Option<Exit>,
    /// The process of the pane, in the same step of tmux as the screen. 0 if there is none.
    pub(crate) pid: u32,
    /// What a dialog asks.
    pub(crate) say: Option<String>,
    pub(crate) tried: Vec<TriedRule>,
    /// The screen tells another state than the hooks.
    is_by_hook_alone: bool,
}

impl Observation {
    /// By the screen alone; the cursor stands behind the last character.
    #[cfg(test)]
    pub(crate) fn of_screen(definition: &AgentDefinition, text: &str) -> Self {
        let row = text.lines().count().saturating_sub(1);
        let column = text.lines().last().unwrap_or_default().width();
        let screen = Screen::new(text, 120, Cursor { row, column }, "");
        let reading = screen_reading::read(definition, &screen);
        Self {
            state: reading.state,
            evidence: reading.evidence,
            input: reading.input,
            screen,
            in_copy_mode: false,
            exit: None,
            pid: 0,
            say: reading.say,
            tried: reading.tried,
            is_by_hook_alone: false,
        }
    }

    /// Whether a message may be typed: the agent is idle, and its input line is known to be empty.
    pub(crate) fn admits_a_message(&self) -> bool {
        self.state == AgentState::Idle && self.input == InputLine::Empty && !self.in_copy_mode
    }
}

impl AgentMonitor {
    pub(crate) fn new(
        control: ControlClient,
        pane: PaneId,
        definition: Arc<AgentDefinition>,
    ) -> Self {
        Self {
            control,
            pane,
            definition,
            hooks: Arc::default(),
        }
    }

    pub(crate) fn pane(&self) -> PaneId {
        self.pane
    }

    pub(crate) fn definition(&self) -> &Arc<AgentDefinition> {
        &self.definition
    }

    /// The state now. Waits until the pane is quiet if it looks idle, at most for [`SETTLE_LIMIT`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(crate) async fn observe(&self) -> Result<Observation, Error> {
        let limit = Instant::now() + SETTLE_LIMIT;
        match self.wait_until(limit, |_| true).await? {
            Ok(observation) | Err(observation) => Ok(observation),
        }
    }

    /// Waits for an observation that `accept` accepts, at most until `limit`. `Err` has the last one. The
    /// end of the program ends the wait.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(crate) async fn wait_until(
        &self,
        limit: Instant,
        mut accept: impl FnMut(&Observation) -> bool,
    ) -> Result<Result<Observation, Observation>, Error> {
        let settle = self.definition.idle.settle;
        let mut watch = None;
        let (mut tap, mut opened) = self.tap();
        // Of a pane that has printed nothing to this process, the last output may be just before.
        let mut last_output = self.known_quiet().unwrap_or(opened);
        let mut idle_since: Option<Instant> = None;
        loop {
            let report = self.newest_report();
            let taken = tap.take();
            if taken.last > opened {
                last_output = taken.last;
            }
            let mut observation = self.capture(report.as_ref()).await?;
            if taken.end.is_some() && observation.exit.is_none() {
                // The program was started again.
                (tap, opened) = self.tap();
                continue;
            }
            let now = Instant::now();
            let is_splash = observation.state == AgentState::Starting
                && observation.input != InputLine::Missing;
            if is_splash && now >= last_output + SPLASH_LIMIT {
                observation.state = AgentState::Idle;
            }
            let looks_idle = observation.state == AgentState::Idle;
            idle_since = looks_idle.then(|| idle_since.unwrap_or(now));
            let is_settled = now >= last_output + settle
                || idle_since.is_none_or(|since| now >= since + SETTLE_LIMIT);
            if is_settled && accept(&observation) {
                return Ok(Ok(observation));
            }
            if now >= limit || observation.exit.is_some() {
                return Ok(Err(observation));
            }
            let mut wake = limit;
            if !is_settled {
                wake = wake.min(last_output + settle);
            } else if is_splash {
                wake = wake.min(last_output + SPLASH_LIMIT);
            } else if observation.is_by_hook_alone {
                wake = wake.min(now + HOOK_TRUST);
            }
            if self.definition.hook.is_some() {
                let watch = watch.get_or_insert_with(FileWatch::new);
                watch.arm(&self.events().join("event"));
                if self.newest_report() != report {
                    continue;
                }
            }
            let stored = async {
                match &watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tap.changed(wake) => {}
                () = stored => continue,
            }
            // A frame has several writes. A spinner is never quiet for long.
            let frame = (Instant::now() + settle).min(limit);
            tap.quiet(FRAME_QUIET, frame).await;
        }
    }

    /// The newest event of the launch that runs that tells about the state.
    fn newest_report(&self) -> Option<HookReport> {
        let rules = self.definition.hook.as_ref()?;
        let launch = self.launch();
        let mut hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        if hooks.launch != launch {
            *hooks = ReadHooks {
                launch,
                events: Some(EventFolder::new(self.events(), rules.event.clone())),
                report: None,
            };
        }
        let stored = hooks.events.as_mut()?.read_new().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the events of an agent");
            Vec::new()
        });
        let newest = stored.iter().rev().find_map(|event| {
            Some(HookReport {
                signal: event.signal(rules)?,
                event: event.kind.clone(),
                at: event.at,
            })
        });
        if newest.is_some() {
            hooks.report = newest;
        }
        hooks.report.clone()
    }

    /// The id of the launch that runs.
    fn launch(&self) -> String {
        let launch = self.control.panes().launch(self.pane);
        launch.unwrap_or_default()
    }

    /// The folder of its events.
    fn events(&self) -> PathBuf {
        let folder = self.control.panes().folder();
        LaunchFolder::new(folder, &self.launch()).events()
    }

    /// A tap that keeps no output and tells when there is some, and when it was opened.
    fn tap(&self) -> (Arc<Tap>, Instant) {
        let tap = Arc::new(Tap::new(0));
        tap.open();
        let opened = tap.take().last;
        self.control.panes().add_tap(self.pane, &tap);
        (tap, opened)
    }

    /// Since when the pane is quiet, if this process has seen its output.
    pub(super) fn known_quiet(&self) -> Option<Instant> {
        let last = self.control.panes().last_output(self.pane)?;
        let quiet = SystemTime::now().duration_since(last).unwrap_or_default();
        Instant::now().checked_sub(quiet)
    }

    /// The state by the screen alone as it is now, settled or not.
    pub(crate) async fn look(&self) -> Result<Observation, Error> {
        self.capture(None).await
    }

    async fn capture(&self, report: Option<&HookReport>) -> Result<Observation, Error> {
        let had_ended = self.exit().is_some();
        let seen = match self.capture_once(report).await {
            Err(error @ Error::TmuxFailed { .. }) => return self.closed(error, report).await,
            seen => seen?,
        };
        let is_blank = seen.screen.text().is_empty();
        if had_ended || seen.exit.is_none() || !is_blank {
            return Ok(seen);
        }
        // The program printed its last words and ended after the capture. Not for a screen with text:
        // tmux writes over a dead pane.
        Ok(self.capture_once(report).await.unwrap_or(seen))
    }

    /// An agent whose pane was closed has ended. For a capture that tmux refused; any other cause stays an error.
    async fn closed(
        &self,
        error: Error,
        report: Option<&HookReport>,
    ) -> Result<Observation, Error> {
        self.control.list_panes_and_exits().await?;
        if self.control.panes().contains(self.pane) {
            return Err(error);
        }
        let screen = Screen::new("", 0, Cursor { row: 0, column: 0 }, "");
        Ok(self.evaluate(screen, false, report))
    }

    async fn capture_once(&self, report: Option<&HookReport>) -> Result<Observation, Error> {
        let pane = self.pane;
        let line = format!(
            "display-message -p -t {pane} \"#{{cursor_x}} #{{cursor_y}} #{{pane_width}} #{{pane_in_mode}} #{{pane_pid}} #{{pane_title}}\" ; capture-pane -p -t {pane}"
        );
        let request = Request::new("capture-pane", line).blocks(2);
        let bodies = self.control.run(request).await?;
        let incomplete = || Error::failed("capture-pane", "incomplete answer");
        let [facts, text] = bodies.as_slice() else {
            return Err(incomplete());
        };
        let facts = String::from_utf8_lossy(facts);
        let mut fields = facts.trim_end_matches('\n').splitn(6, ' ');
        let mut number = || -> Option<usize> { fields.next()?.parse().ok() };
        let (column, row) = (number().ok_or_else(incomplete)?, number().unwrap_or(0));
        let width = number().unwrap_or(0);
        let in_copy_mode = number().is_some_and(|modes| modes > 0);
        // tmux 3.8 has no process id for a dead pane.
        let pid = number().and_then(|pid| u32::try_from(pid).ok());
        let title = fields.next().unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let screen = Screen::new(&text, width, Cursor { row, column }, title);
        let mut seen = self.evaluate(screen, in_copy_mode, report);
        seen.pid = pid.unwrap_or(0);
        Ok(seen)
    }

    fn exit(&self) -> Option<Exit> {
        match self.control.panes().target(self.pane) {
            Some(target) => target.exit,
            None => Some(Exit::Unknown),
        }
    }

    fn evaluate(
        &self,
        screen: Screen,
        in_copy_mode: bool,
        report: Option<&HookReport>,
    ) -> Observation {
        let reading = screen_reading::read(&self.definition, &screen);
        let rules = self.definition.hook.as_ref();
        let (mut state, mut evidence) = weigh(&reading, report, rules, SystemTime::now());
        let is_by_hook_alone = state != reading.state;
        let exit = self.exit();
        if let Some(exit) = exit {
            state = AgentState::Exited;
            evidence = Evidence::new(EvidenceSource::Process, exit.to_string());
        }
        Observation {
            state,
            evidence,
            input: reading.input,
            screen,
            in_copy_mode,
            exit,
            pid: 0,
            say: reading.say,
            tried: reading.tried,
            is_by_hook_alone,
        }
    }
}

/// The point in time of a timeout, also for one that the clock cannot represent.
pub(crate) fn until(timeout: Duration) -> Instant {
    deadline(Instant::now(), timeout)
}
