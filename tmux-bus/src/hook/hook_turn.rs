//! Finds the answer to one message among the events of an agent.
//!
//! # Theory
//!
//! A turn begins with the event of its prompt, which gives the ids of session and turn, and ends with the event of
//! its answer, which has the same ids. An agent whose answers carry the prompt needs no such event.
//!
//! - **Invariant.** An event of another prompt, session or turn never ends the turn: a person may type into the
//!   pane, agents run turns of their own (Codex makes titles in a second thread), and the answer to an earlier
//!   message may arrive late.
//! - **Race.** The files of two events can have the same time, so their order means nothing. An answer that is read
//!   before its prompt is kept until the prompt is known.
//! - The same prompt may be sent twice. The reader passes over the events before the submit, and the first prompt
//!   after it is ours. Only this session counts from then on: a program that the agent itself starts inherits its
//!   hooks and may get the same prompt.
//!
//! **Example.** Sent: `hi`. Events: `prompt(s1, t7, "hi")`, `answer(s2, t9, "a title")`, `answer(s1, t7, "hello")`. The
//! second one is of another session; the third is the answer.

use std::path::PathBuf;

use super::hook_event::HookEvent;
use crate::definition::hook_rules::HookRules;

/// How the turn of a message ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// The text of the model, byte for byte.
    Answer(String),
    /// The text is in this transcript.
    Transcript(PathBuf),
    /// The agent failed, was interrupted, or ended the turn without a text.
    NoAnswer,
    /// The payload was longer than a hook may store.
    TooLong,
}

/// The turn of one message. See the theory above.
#[derive(Debug)]
pub(crate) struct HookTurn<'a> {
    rules: &'a HookRules,
    sent: String,
    begun: Option<TurnIds>,
    received: Option<String>,
    /// Events that came before that of the prompt.
    early: Vec<HookEvent>,
}

#[derive(Debug, PartialEq, Eq)]
struct TurnIds {
    session: Option<String>,
    turn: Option<String>,
}

/// Number of events that are kept before that of the prompt.
const MAX_EARLY: usize = 64;

impl<'a> HookTurn<'a> {
    pub(crate) fn new(rules: &'a HookRules, sent: String) -> Self {
        Self {
            rules,
            sent,
            begun: None,
            received: None,
            early: Vec::new(),
        }
    }

    pub(crate) fn rules(&self) -> &'a HookRules {
        self.rules
    }

    /// Whether the agent has reported the prompt.
    #[cfg(test)]
    fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// The prompt that the agent got, if the agent has changed it.
    pub(crate) fn altered(&self) -> Option<&str> {
        self.received
            .as_deref()
            .filter(|received| *received != self.sent)
    }

    /// Takes the next event; returns how the turn ended if this event ends it.
    pub(crate) fn observe(&mut self, event: HookEvent) -> Option<TurnEnd> {
        if self.begun.is_none() {
            self.begin(&event);
            if self.begun.is_some() {
                let early = std::mem::take(&mut self.early);
                return early
                    .iter()
                    .chain([&event])
                    .find_map(|event| self.end(event));
            }
            if self.early.len() < MAX_EARLY {
                self.early.push(event);
            }
            return None;
        }
        self.end(&event)
    }

    /// Begins the turn if the event says that it has our prompt.
    fn begin(&mut self, event: &HookEvent) {
        let Some(prompt) = self.prompt_of(event) else {
            return;
        };
        if !is_same_prompt(&self.sent, prompt) {
            return;
        }
        self.received = Some(prompt.to_owned());
        let turn = match event.kind == self.rules.prompt.event {
            true => self.rules.prompt.turn.as_ref(),
            false => self.rules.answer.turn.as_ref(),
        };
        self.begun = Some(self.ids_of(event, turn));
    }

    fn prompt_of<'e>(&self, event: &'e HookEvent) -> Option<&'e str> {
        let (prompt, answer) = (&self.rules.prompt, &self.rules.answer);
        if event.kind == prompt.event {
            match (&prompt.text, &prompt.last_of) {
                (Some(text), _) => event.text(text),
                (None, Some(list)) => event.last_text(list),
                (None, None) => None,
            }
        } else if event.kind == answer.event {
            event.text(answer.prompt.as_ref()?)
        } else {
            None
        }
    }

    fn ids_of(&self, event: &HookEvent, turn: Option<&String>) -> TurnIds {
        let turn = turn.or(self.rules.turn.as_ref());
        TurnIds {
            session: event.text(&self.rules.session).map(str::to_owned),
            turn: turn.and_then(|turn| event.text(turn)).map(str::to_owned),
        }
    }

    /// How the event ends the turn that has begun.
    fn end(&self, event: &HookEvent) -> Option<TurnEnd> {
        let answer = &self.rules.answer;
        if event.kind != answer.event && !self.rules.failed.iter().any(|rule| event.matches(rule)) {
            return None;
        }
        // The ids of a payload that was cut are unknown. Agents end one turn before the next.
        if event.is_too_long() {
            return Some(TurnEnd::TooLong);
        }
        if self.begun.as_ref() != Some(&self.ids_of(event, answer.turn.as_ref())) {
            return None;
        }
        if event.kind != answer.event {
            return Some(TurnEnd::NoAnswer);
        }
        // Where the answer carries its prompt, that counts too: not every agent has ids of turns.
        let carries_prompt = answer.prompt.is_some() || answer.event == self.rules.prompt.event;
        let is_ours = |prompt| is_same_prompt(&self.sent, prompt);
        if carries_prompt && !self.prompt_of(event).is_some_and(is_ours) {
            return None;
        }
        let is_complete = answer
            .needs
            .iter()
            .all(|(pointer, value)| event.text(pointer) == Some(value))
            && !answer.refuse.iter().any(|pointer| event.has(pointer));
        if !is_complete {
            return Some(TurnEnd::NoAnswer);
        }
        if let Some(transcript) = &answer.transcript {
            return Some(match event.text(transcript) {
                Some(path) => TurnEnd::Transcript(path.into()),
                None => TurnEnd::NoAnswer,
            });
        }
        let text = answer.text.as_ref().and_then(|text| event.text(text));
        Some(match text {
            Some(text) if !text.trim().is_empty() => TurnEnd::Answer(text.to_owned()),
            _ => TurnEnd::NoAnswer,
        })
    }
}

/// Whether an agent got the prompt that was sent. Agents change white space: Claude makes four spaces of a tab,
/// Opencode adds a space to some pastes.
pub(super) fn is_same_prompt(sent: &str, received: &str) -> bool {
    sent == received || sent.split_whitespace().eq(received.split_whitespace())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::{Value, json};

    use super::*;

    fn spec(text: &str) -> HookRules {
        toml::from_str(text).unwrap()
    }

    fn claude() -> HookRules {
        spec(
            r#"
            session = "/session_id"
            turn = "/prompt_id"
            event = "/hook_event_name"
            prompt = { event = "UserPromptSubmit", text = "/prompt" }
            answer = { event = "Stop", text = "/last_assistant_message" }
            failed = ["StopFailure"]
        "#,
        )
    }

    fn codex() -> HookRules {
        spec(
            r#"
            session = "/thread-id"
            turn = "/turn-id"
            event = "/type"
            prompt = { event = "agent-turn-complete", last_of = "/input-messages" }
            answer = { event = "agent-turn-complete", text = "/last-assistant-message" }
        "#,
        )
    }

    fn gemini() -> HookRules {
        spec(
            r#"
            session = "/session_id"
            event = "/hook_event_name"
            prompt = { event = "BeforeAgent", text = "/prompt" }
            answer = { event = "AfterAgent", prompt = "/prompt", transcript = "/transcript_path" }
            transcript = "gemini-chat"
        "#,
        )
    }

    fn opencode() -> HookRules {
        spec(
            r#"
            session = "/session"
            prompt = { event = "prompt", text = "/text", turn = "/message" }
            answer = { event = "idle", text = "/text", turn = "/parent", needs = { "/finish" = "stop" }, refuse = ["/error"] }
        "#,
        )
    }

    fn event(name: &str, payload: &Value, spec: &HookRules) -> HookEvent {
        let file = format!("{name}.1.0.json");
        let bytes = payload.to_string();
        let now = SystemTime::UNIX_EPOCH;
        HookEvent::parse(&file, bytes.as_bytes(), now, spec.event.as_deref())
    }

    /// Which event ends the turn of the prompt `hi`, and how.
    #[track_caller]
    fn check(spec: &HookRules, events: &[(&str, Value)], expected: Option<(usize, TurnEnd)>) {
        let mut turn = HookTurn::new(spec, "hi".to_owned());
        let mut events = events.iter().enumerate();
        let found = events.find_map(|(index, (name, payload))| {
            let end = turn.observe(event(name, payload, spec))?;
            Some((index, end))
        });
        assert_eq!(found, expected);
    }

    fn answer(text: &str) -> TurnEnd {
        TurnEnd::Answer(text.to_owned())
    }

    #[test]
    fn an_answer_is_matched_by_session_and_turn() {
        let prompt = |session, turn, text| {
            let payload = json!({"hook_event_name": "UserPromptSubmit", "session_id": session, "prompt_id": turn, "prompt": text});
            ("x", payload)
        };
        let stop = |session, turn, text| {
            let payload = json!({"hook_event_name": "Stop", "session_id": session, "prompt_id": turn, "last_assistant_message": text});
            ("x", payload)
        };
        let failure = |session, turn| {
            let payload =
                json!({"hook_event_name": "StopFailure", "session_id": session, "prompt_id": turn});
            ("x", payload)
        };
        let spec = claude();
        let ours = prompt("s1", "t2", "hi");
        check(
            &spec,
            &[ours.clone(), stop("s1", "t2", "yes\n")],
            Some((1, answer("yes\n"))),
        );
        // A late answer, another session, a turn of a person.
        let others = [
            stop("s1", "t1", "late"),
            ours.clone(),
            stop("s1", "t1", "late"),
            stop("s2", "t2", "other"),
            prompt("s1", "t3", "from a person"),
            stop("s1", "t3", "to a person"),
        ];
        check(&spec, &others, None);
        // The order of files of the same moment means nothing.
        check(
            &spec,
            &[stop("s1", "t2", "yes"), ours.clone()],
            Some((1, answer("yes"))),
        );
        // Another prompt only.
        check(
            &spec,
            &[prompt("s1", "t2", "hi there"), stop("s1", "t2", "no")],
            None,
        );
        check(&spec, &[ours.clone(), failure("s1", "t1")], None);
        check(
            &spec,
            &[ours.clone(), failure("s1", "t2")],
            Some((1, TurnEnd::NoAnswer)),
        );
        check(
            &spec,
            &[ours.clone(), stop("s1", "t2", " \n")],
            Some((1, TurnEnd::NoAnswer)),
        );
        check(
            &spec,
            &[
                ours,
                (
                    "x",
                    json!({"hook_event_name": "Stop", "session_id": "s1", "prompt_id": "t2"}),
                ),
            ],
            Some((1, TurnEnd::NoAnswer)),
        );
    }

    #[test]
    fn a_second_thread_that_quotes_the_prompt_is_not_the_answer() {
        let complete = |thread, messages: &[&str], text| {
            let payload = json!({"type": "agent-turn-complete", "thread-id": thread, "turn-id": "t", "input-messages": messages, "last-assistant-message": text});
            ("notify", payload)
        };
        check(
            &codex(),
            &[
                complete("title", &["Make a title of: hi"], "A title"),
                complete("main", &["hi", "and more"], "not ours"),
                complete("main", &["first", "hi"], "ours"),
            ],
            Some((2, answer("ours"))),
        );
    }

    #[test]
    fn without_ids_of_turns_the_prompt_of_the_answer_counts() {
        let before = |session, text| {
            let payload =
                json!({"hook_event_name": "BeforeAgent", "session_id": session, "prompt": text});
            ("x", payload)
        };
        let after = |session, text| {
            let payload = json!({"hook_event_name": "AfterAgent", "session_id": session, "prompt": text, "transcript_path": "/t"});
            ("x", payload)
        };
        let transcript = || TurnEnd::Transcript("/t".into());
        check(
            &gemini(),
            &[before("s", "hi"), after("s", "hi")],
            Some((1, transcript())),
        );
        check(&gemini(), &[before("s", "hi"), after("s", "other")], None);
        // A program that the agent started has the same hooks and got the same prompt.
        let nested = [
            before("s", "hi"),
            before("s2", "hi"),
            after("s2", "hi"),
            after("s", "hi"),
        ];
        check(&gemini(), &nested, Some((3, transcript())));
    }

    #[test]
    fn an_answer_that_is_not_complete_is_no_answer() {
        let prompt = (
            "prompt",
            json!({"session": "s", "message": "m1", "text": "hi"}),
        );
        let idle = |parent: &str, finish: &str, error: Value| {
            let payload = json!({"session": "s", "parent": parent, "finish": finish, "error": error, "text": "yes"});
            ("idle", payload)
        };
        let spec = opencode();
        check(
            &spec,
            &[prompt.clone(), idle("m0", "stop", Value::Null)],
            None,
        );
        check(
            &spec,
            &[prompt.clone(), idle("m1", "stop", Value::Null)],
            Some((1, answer("yes"))),
        );
        check(
            &spec,
            &[prompt.clone(), idle("m1", "stop", json!({"name": "x"}))],
            Some((1, TurnEnd::NoAnswer)),
        );
        check(
            &spec,
            &[prompt.clone(), idle("m1", "length", Value::Null)],
            Some((1, TurnEnd::NoAnswer)),
        );
        let long = (
            "idle",
            json!({"session": "s", "parent": "m1", "finish": "stop", "too_long": 9_000_000}),
        );
        check(&spec, &[prompt, long], Some((1, TurnEnd::TooLong)));
    }

    #[test]
    fn white_space_that_an_agent_changes_is_reported() {
        let spec = opencode();
        let mut turn = HookTurn::new(&spec, "a\tb\n".to_owned());
        let observed = |text: &str| event("prompt", &json!({"session": "s", "text": text}), &spec);
        assert_eq!(turn.observe(observed("ab")), None);
        assert!(!turn.has_begun() && turn.altered().is_none());
        assert_eq!(turn.observe(observed("a    b")), None);
        assert!(turn.has_begun());
        assert_eq!(turn.altered(), Some("a    b"));
        let mut turn = HookTurn::new(&spec, "same".to_owned());
        assert_eq!(turn.observe(observed("same")), None);
        assert!(turn.has_begun() && turn.altered().is_none());
    }
}
