//! What the hooks of an agent report, weighed against its screen.

use std::time::SystemTime;

use super::agent_state::{AgentState, Evidence, EvidenceSource};
use super::screen_reading::ScreenReading;
use crate::definition::hook_rules::{EventMatch, HookRules};
use crate::timing::HOOK_TRUST;

/// The newest event of an agent that tells about its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookReport {
    pub(crate) signal: HookSignal,
    /// The name of the event.
    pub(crate) event: String,
    pub(crate) at: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookSignal {
    Ready,
    Working,
    Approval,
    TurnEnded,
    /// The session ends. The agent may begin another one.
    Exited,
}

impl HookRules {
    /// The signal of an event. `None` for events that tell nothing about the state.
    pub(crate) fn signal(&self, event: &str, payload: &serde_json::Value) -> Option<HookSignal> {
        let is = |events: &[EventMatch]| events.iter().any(|known| known.matches(event, payload));
        if is(&self.exited) {
            Some(HookSignal::Exited)
        } else if is(&self.approval) {
            Some(HookSignal::Approval)
        } else if is(&self.approval_ends) || is(&self.working) {
            Some(HookSignal::Working)
        } else if is(&self.failed) || self.answer.event == event {
            Some(HookSignal::TurnEnded)
        } else if is(&self.ready) {
            Some(HookSignal::Ready)
        } else {
            None
        }
    }
}

/// The state by the settled screen and by the newest report.
///
/// # Theory
///
/// A hook is exact about the moment of its event; the screen is about now. Events are missing for some
/// changes (an interrupt, an approval that was given), and the screen is behind for up to two seconds.
/// So:
///
/// | screen | newest report | state |
/// |---|---|---|
/// | approval, dialog | any | as the screen: a message would do harm |
/// | working | any | working: an approval was given, or a hook of the user made the agent continue |
/// | idle | working or approval | as the hook. Agents whose interrupt is silent: idle, because a working agent draws |
/// | no state | working or approval | as the hook |
/// | hidden by a hint | turn ended, ready | idle |
/// | other | other | as the screen |
///
/// An agent without an event for the begin of a turn has no standing report: its end-of-turn events do
/// not count.
pub(crate) fn weigh(
    reading: &ScreenReading,
    report: Option<&HookReport>,
    rules: Option<&HookRules>,
    now: SystemTime,
) -> (AgentState, Evidence) {
    let by_screen = || (reading.state.clone(), reading.evidence.clone());
    let (Some(report), Some(rules)) = (report, rules) else {
        return by_screen();
    };
    if rules.working.is_empty() {
        return by_screen();
    }
    let by_hook = |state| {
        let evidence = Evidence::new(EvidenceSource::Hook, report.event.clone());
        (state, evidence)
    };
    let reported = match report.signal {
        HookSignal::Working => AgentState::Working,
        HookSignal::Approval => AgentState::WaitingForApproval,
        HookSignal::TurnEnded | HookSignal::Ready => AgentState::Idle,
        HookSignal::Exited => return by_screen(),
    };
    let age = now.duration_since(report.at).unwrap_or_default();
    match &reading.state {
        state if *state == reported => by_hook(reported),
        AgentState::Idle if reported != AgentState::Idle => {
            if rules.interrupt_is_silent || age >= HOOK_TRUST {
                by_screen()
            } else {
                by_hook(reported)
            }
        }
        AgentState::Unknown if reading.held => by_hook(reported),
        AgentState::Unknown | AgentState::Starting if reported != AgentState::Idle => {
            by_hook(reported)
        }
        _ => by_screen(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::definition::agent_definitions::AgentDefinitions;
    use crate::state::input_line::InputLine;

    fn reading(state: AgentState, held: bool) -> ScreenReading {
        ScreenReading {
            state,
            evidence: Evidence::new(EvidenceSource::Screen, "test"),
            tried: Vec::new(),
            input: InputLine::Empty,
            held,
            say: None,
        }
    }

    #[test]
    fn events_become_signals() {
        let definitions = AgentDefinitions::builtin().unwrap();
        let check = |agent: &str, event: &str, payload, expected| {
            let rules = definitions.get(agent).unwrap().hook.as_ref().unwrap();
            assert_eq!(rules.signal(event, &payload), expected, "{agent} {event}");
        };
        check(
            "claude",
            "UserPromptSubmit",
            json!({}),
            Some(HookSignal::Working),
        );
        check(
            "claude",
            "PermissionRequest",
            json!({}),
            Some(HookSignal::Approval),
        );
        check("claude", "Stop", json!({}), Some(HookSignal::TurnEnded));
        check(
            "claude",
            "StopFailure",
            json!({}),
            Some(HookSignal::TurnEnded),
        );
        check("claude", "Notification", json!({}), None);
        let permission = json!({ "notification_type": "ToolPermission" });
        check(
            "gemini",
            "Notification",
            permission,
            Some(HookSignal::Approval),
        );
        check("gemini", "Notification", json!({}), None);
        check(
            "opencode",
            "permission.replied",
            json!({}),
            Some(HookSignal::Working),
        );
        check("opencode", "idle", json!({}), Some(HookSignal::TurnEnded));
        check("opencode", "load", json!({}), Some(HookSignal::Ready));
    }

    #[test]
    fn a_hook_is_weighed_against_the_screen() {
        use AgentState::{Idle, Unknown, WaitingForApproval, Working};
        let definitions = AgentDefinitions::builtin().unwrap();
        let dialog = || AgentState::Dialog { id: "menu".into() };
        let now = SystemTime::now();
        let check = |agent: &str, screen: AgentState, held, signal, age, expected| {
            let rules = definitions.get(agent).unwrap().hook.as_ref();
            let report = HookReport {
                signal,
                event: "event".to_owned(),
                at: now - age,
            };
            let reading = reading(screen, held);
            let found = weigh(&reading, Some(&report), rules, now);
            let name = format!("{agent} {:?} {signal:?}", reading.state);
            assert_eq!((found.0, found.1.source), expected, "{name}");
        };
        use EvidenceSource::{Hook, Screen};
        use HookSignal::{Approval, Ready, TurnEnded};
        let (zero, old) = (Duration::ZERO, HOOK_TRUST);
        let working = HookSignal::Working;
        check("claude", dialog(), false, working, zero, (dialog(), Screen));
        check(
            "claude",
            WaitingForApproval,
            false,
            TurnEnded,
            zero,
            (WaitingForApproval, Screen),
        );
        check(
            "claude",
            WaitingForApproval,
            false,
            Approval,
            zero,
            (WaitingForApproval, Hook),
        );
        check("claude", Working, false, TurnEnded, zero, (Working, Screen));
        check("claude", Working, false, Approval, zero, (Working, Screen));
        check("claude", Idle, false, working, zero, (Idle, Screen));
        check("gemini", Idle, false, working, zero, (Working, Hook));
        check("gemini", Idle, false, working, old, (Idle, Screen));
        check("claude", Unknown, true, working, zero, (Working, Hook));
        check("claude", Unknown, true, TurnEnded, zero, (Idle, Hook));
        check("claude", Unknown, false, Ready, zero, (Unknown, Screen));
        check(
            "claude",
            Unknown,
            false,
            Approval,
            zero,
            (WaitingForApproval, Hook),
        );
        check("claude", Idle, false, TurnEnded, zero, (Idle, Hook));
        // Its notifications come from other threads as well.
        check("codex", Unknown, true, TurnEnded, zero, (Unknown, Screen));
    }
}
