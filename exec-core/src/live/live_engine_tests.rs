use super::*;
use crate::{PermissionRule, ToolInput};

/// Each line of the agent is a signal; each command is a line for the agent.
#[derive(Default)]
struct Script {
    can_steer: bool,
    /// Refuses to interrupt and to allow.
    refuses: bool,
}

impl ProtocolDriver for Script {
    fn open(&mut self, out: &mut DriverOutput) {
        out.send("open");
    }

    fn line(&mut self, line: &str, out: &mut DriverOutput) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "opened" => out.opened((!rest.is_empty()).then(|| rest.to_owned())),
            "say" => out.event(AgentEventKind::Text {
                text: rest.to_owned(),
                delta: true,
            }),
            "tool" => out.event(AgentEventKind::ToolCall {
                id: None,
                name: rest.to_owned(),
                input: ToolInput::default(),
            }),
            "done" => out.turn_ended(TurnOutcome::Completed, None),
            "cancelled" => out.turn_ended(TurnOutcome::Interrupted, None),
            "ask" => {
                let mut request = PermissionRequest::new(rest, "Bash", ToolInput::default());
                request.command = Some(format!("run {rest}"));
                out.asked(request);
            }
            "withdraw" => out.withdrawn(rest),
            "steered" => out.steered(rest == "yes"),
            _ => {}
        }
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        match command {
            DriverCommand::Interrupt
            | DriverCommand::Answer {
                decision: Decision::Allow,
                ..
            } if self.refuses => out.refused("it cannot"),
            DriverCommand::Prompt(text) => out.send(format!("prompt {text}")),
            DriverCommand::Steer(text) => out.send(format!("steer {text}")),
            DriverCommand::Interrupt => out.send("interrupt"),
            DriverCommand::Answer {
                permission,
                decision,
            } => out.send(format!("answer {permission} {decision:?}")),
            DriverCommand::Withdraw { permission } => out.send(format!("void {permission}")),
            DriverCommand::SetMode(mode) => out.send(format!("mode {mode}")),
            _ => out.refused("no such command"),
        }
    }

    fn can_steer(&self) -> bool {
        self.can_steer
    }
}

/// An engine, everything that it wrote, and everything that it published.
struct Session {
    engine: LiveEngine,
    now: Instant,
    lines: Vec<String>,
    events: Vec<LiveEvent>,
    ended: Vec<TurnEnd>,
}

impl Session {
    fn new(policy: PermissionPolicy, can_steer: bool) -> Self {
        let refuses = false;
        Self::with_driver(policy, Script { can_steer, refuses })
    }

    fn refusing() -> Self {
        let driver = Script {
            can_steer: false,
            refuses: true,
        };
        let mut session = Self::with_driver(PermissionPolicy::default(), driver);
        session.line("opened");
        session
    }

    fn with_driver(policy: PermissionPolicy, driver: Script) -> Self {
        let limits = QueueLimits {
            messages: 3,
            bytes: 100,
        };
        let mut session = Self {
            engine: LiveEngine::new(Box::new(driver), policy, PathBuf::from("/"), limits),
            now: Instant::now(),
            lines: Vec::new(),
            events: Vec::new(),
            ended: Vec::new(),
        };
        let step = session.engine.open(session.now);
        session.take(step);
        session
    }

    fn open() -> Self {
        let mut session = Self::new(PermissionPolicy::default(), false);
        session.line("opened native");
        session
    }

    fn steering() -> Self {
        let mut session = Self::new(PermissionPolicy::default(), true);
        session.line("opened");
        session
    }

    fn take(&mut self, step: LiveStep) {
        self.lines.extend(step.lines);
        self.events.extend(step.events);
        self.ended.extend(step.ended_turns);
    }

    fn line(&mut self, line: &str) {
        let step = self.engine.line(line, self.now);
        self.take(step);
    }

    fn prompt(&mut self, text: &str) -> Result<TurnId, CommandError> {
        let (turn, step) = self.engine.prompt(text.to_owned(), self.now)?;
        self.take(step);
        Ok(turn)
    }

    fn steer(&mut self, text: &str) -> Result<SteerStart, CommandError> {
        let (start, step) = self.engine.steer(text.to_owned(), self.now)?;
        self.take(step);
        Ok(start)
    }

    fn interrupt(&mut self, turn: TurnId) -> Result<(), CommandError> {
        let step = self.engine.interrupt(turn, self.now)?;
        self.take(step);
        Ok(())
    }

    fn answer(&mut self, permission: &str, decision: Decision) -> Result<(), CommandError> {
        let step = self.engine.answer(permission, decision, self.now)?;
        self.take(step);
        Ok(())
    }

    fn end(&mut self) {
        let step = self.engine.process_ended();
        self.take(step);
    }

    fn settled(&self) -> Vec<(String, Option<Decision>, SettledBy)> {
        let settled = self.events.iter().filter_map(|event| match event {
            LiveEvent::PermissionSettled {
                permission,
                decision,
                by,
                ..
            } => Some((permission.clone(), *decision, *by)),
            _ => None,
        });
        settled.collect()
    }
}

#[test]
fn an_interrupt_that_is_refused_leaves_the_questions_open() {
    let mut session = Session::refusing();
    let turn = session.prompt("a").unwrap();
    session.line("ask p");
    session.interrupt(turn).unwrap();
    assert_eq!(session.engine.open_requests().count(), 1);
    assert_eq!(session.settled(), []);
    assert!(!session.lines.contains(&"void p".to_owned()));
    session.answer("p", Decision::Deny).unwrap();
    // A stop settles them nevertheless.
    session.line("ask q");
    let step = session.engine.wind_down(session.now);
    session.take(step);
    let last = session.settled().pop().unwrap();
    assert_eq!(last, ("q".to_owned(), None, SettledBy::Cancel));
}

#[test]
fn an_answer_that_is_refused_is_not_recorded_as_given() {
    let mut session = Session::refusing();
    session.prompt("a").unwrap();
    session.line("ask p");
    let step = session.engine.answer("p", Decision::Allow, session.now);
    let step = step.unwrap();
    assert_eq!(step.refused.as_deref(), Some("it cannot"));
    session.take(step);
    assert_eq!(
        session.settled(),
        [("p".to_owned(), None, SettledBy::Caller)]
    );
}

#[test]
fn a_second_prompt_waits_for_the_end_of_the_first_turn() {
    let mut session = Session::open();
    let first = session.prompt("a").unwrap();
    let second = session.prompt("b").unwrap();
    assert_eq!(session.lines, ["open", "prompt a"]);
    session.line("say hello");
    session.line("say  world");
    session.line("done");
    assert_eq!(session.lines, ["open", "prompt a", "prompt b"]);
    assert_eq!(session.ended[0].text, "hello world");
    assert_eq!(session.engine.turn_in_flight(), Some(second));
    session.line("done");
    assert_eq!(
        session.ended.iter().map(|end| end.turn).collect::<Vec<_>>(),
        [first, second]
    );
    assert_eq!(session.engine.turn_in_flight(), None);
}

#[test]
fn a_prompt_before_the_session_is_open_waits() {
    let mut session = Session::new(PermissionPolicy::default(), false);
    session.prompt("a").unwrap();
    assert_eq!(session.lines, ["open"]);
    session.line("opened");
    assert_eq!(session.lines, ["open", "prompt a"]);
}

#[test]
fn the_queue_is_bounded_and_can_be_taken_back() {
    let mut session = Session::open();
    session.prompt("a").unwrap();
    let taken = session.prompt("b").unwrap();
    session.prompt("c").unwrap();
    session.prompt("d").unwrap();
    assert_eq!(session.prompt("e"), Err(CommandError::QueueFull));
    let (message, step) = session.engine.take_back(taken.into()).unwrap();
    session.take(step);
    assert_eq!(message.text, "b");
    assert!(
        session.engine.take_back(taken.into()).is_none(),
        "only once"
    );
    let long = "x".repeat(99);
    assert_eq!(
        session.prompt(&long),
        Err(CommandError::QueueFull),
        "102 bytes"
    );
    session.line("done");
    session.line("done");
    session.line("done");
    assert_eq!(session.lines, ["open", "prompt a", "prompt c", "prompt d"]);
    session
        .prompt(&"x".repeat(1000))
        .expect("a message that does not wait needs no room");
}

#[test]
fn an_interrupt_names_its_turn_and_is_sent_once() {
    let mut session = Session::open();
    let first = session.prompt("a").unwrap();
    session.interrupt(first).unwrap();
    session.interrupt(first).unwrap();
    session.line("cancelled");
    let second = session.prompt("b").unwrap();
    assert_eq!(
        session.interrupt(first),
        Err(CommandError::NotInFlight(first))
    );
    assert_eq!(session.lines, ["open", "prompt a", "interrupt", "prompt b"]);
    session.line("done");
    assert_eq!(session.ended[0].outcome, TurnOutcome::Interrupted);
    assert_eq!(
        (session.ended[1].turn, &session.ended[1].outcome),
        (second, &TurnOutcome::Completed)
    );
}

#[test]
fn the_first_answer_wins_and_later_ones_are_told_so() {
    let mut session = Session::open();
    session.prompt("a").unwrap();
    session.line("ask p1");
    assert!(session.engine.has_open_requests());
    session.answer("p1", Decision::Allow).unwrap();
    let late = session.answer("p1", Decision::Deny);
    assert_eq!(late, Err(CommandError::Settled(Some(SettledBy::Caller))));
    let unknown = session.answer("p2", Decision::Deny);
    assert_eq!(unknown, Err(CommandError::Settled(None)));
    assert_eq!(session.lines[2..], ["answer p1 Allow"]);
}

#[test]
fn a_question_is_denied_at_its_deadline() {
    let policy = PermissionPolicy::default().deadline(Duration::from_secs(10));
    let mut session = Session::new(policy, false);
    session.line("opened");
    session.prompt("a").unwrap();
    session.line("ask p1");
    let due = session.engine.deadline().unwrap();
    let early = session.engine.timer(due - Duration::from_millis(1));
    session.take(early);
    assert!(session.settled().is_empty());
    let step = session.engine.timer(due);
    session.take(step);
    assert_eq!(session.lines[2..], ["answer p1 Deny"]);
    let late = session.answer("p1", Decision::Allow);
    assert_eq!(late, Err(CommandError::Settled(Some(SettledBy::Deadline))));
    assert_eq!(session.engine.deadline(), None);
}

#[test]
fn the_policy_answers_without_a_question() {
    let policy = PermissionPolicy::default()
        .rule(PermissionRule::new(PermissionAction::Allow).command("run good"))
        .rule(PermissionRule::new(PermissionAction::Deny).command("run bad"));
    let mut session = Session::new(policy, false);
    session.line("opened");
    session.prompt("a").unwrap();
    session.line("ask good");
    session.line("ask bad");
    session.line("ask other");
    assert_eq!(session.lines[2..], ["answer good Allow", "answer bad Deny"]);
    let asked = session
        .events
        .iter()
        .filter(|event| matches!(event, LiveEvent::PermissionAsked(_)));
    assert_eq!(asked.count(), 1);
    assert_eq!(session.settled().len(), 2);
}

#[test]
fn an_interrupt_the_end_of_the_turn_and_the_agent_settle_open_requests() {
    let mut session = Session::open();
    let turn = session.prompt("a").unwrap();
    session.line("ask p1");
    session.interrupt(turn).unwrap();
    session.line("cancelled");
    session.prompt("b").unwrap();
    session.line("ask p2");
    session.line("withdraw p2");
    session.line("ask p3");
    session.line("done");
    session.prompt("c").unwrap();
    session.line("ask p4");
    session.end();
    let expected = ["p1", "p2", "p3", "p4"].map(|id| (id.to_owned(), None, SettledBy::Cancel));
    assert_eq!(session.settled(), expected);
    assert!(session.lines.contains(&"void p1".to_owned()));
    assert!(
        !session.lines.contains(&"void p2".to_owned()),
        "the agent withdrew it"
    );
    assert!(
        !session.lines.contains(&"void p4".to_owned()),
        "the agent has ended"
    );
}

#[test]
fn a_repeated_request_is_one_request() {
    let mut session = Session::open();
    session.prompt("a").unwrap();
    session.line("ask p1");
    session.line("ask p1");
    session.answer("p1", Decision::Allow).unwrap();
    assert_eq!(session.lines[2..], ["answer p1 Allow"]);
    assert_eq!(session.settled().len(), 1);
}

#[test]
fn a_steered_text_is_injected_or_queued_but_not_both() {
    let mut session = Session::steering();
    let turn = session.prompt("a").unwrap();
    let SteerStart::Offered(first) = session.steer("b").unwrap() else {
        panic!("the agent can be steered");
    };
    session.line("steered yes");
    let delivered = LiveEvent::MessageDelivered {
        message: first,
        turn,
    };
    assert_eq!(session.events.last(), Some(&delivered));
    session.steer("c").unwrap();
    session.line("done");
    assert_eq!(
        session.engine.turn_in_flight(),
        None,
        "the outcome of the steer is not known"
    );
    session.line("steered no");
    assert_eq!(
        session.lines[1..],
        ["prompt a", "steer b", "steer c", "prompt c"]
    );
}

#[test]
fn a_steer_that_is_never_reported_does_not_block_the_queue_for_ever() {
    let mut session = Session::steering();
    session.prompt("a").unwrap();
    let SteerStart::Offered(offered) = session.steer("b").unwrap() else {
        panic!("the agent can be steered");
    };
    session.prompt("c").unwrap();
    assert_eq!(session.engine.deadline(), None, "the turn runs");
    session.line("done");
    let due = session.engine.deadline().unwrap();
    session.now += OFFER_LIMIT / 2;
    session.line("done");
    assert_eq!(session.engine.deadline(), Some(due), "a repeated end");
    let step = session.engine.timer(due);
    session.take(step);
    let dropped = LiveEvent::MessageDropped {
        message: offered,
        reason: DropReason::Uncertain,
    };
    assert!(session.events.contains(&dropped));
    session.line("steered no");
    assert_eq!(session.lines[1..], ["prompt a", "steer b", "prompt c"]);
    assert_eq!(session.engine.deadline(), None);
}

#[test]
fn a_question_that_crosses_a_cancel_is_void_at_once() {
    let mut session = Session::open();
    let turn = session.prompt("a").unwrap();
    session.interrupt(turn).unwrap();
    session.line("ask p1");
    assert_eq!(session.lines[2..], ["interrupt", "void p1"]);
    assert!(!session.engine.has_open_requests());
    session.line("cancelled");
    session.prompt("b").unwrap();
    session.line("ask p2");
    assert!(session.engine.has_open_requests(), "another turn");
}

#[test]
fn a_stop_delivers_nothing_and_keeps_the_queue() {
    let mut session = Session::open();
    session.prompt("a").unwrap();
    session.prompt("b").unwrap();
    session.line("ask p1");
    let step = session.engine.wind_down(session.now);
    session.take(step);
    let again = session.engine.wind_down(session.now);
    session.take(again);
    assert_eq!(session.lines[2..], ["interrupt", "void p1"], "one cancel");
    session.line("cancelled");
    assert_eq!(session.prompt("c"), Err(CommandError::Ended));
    assert_eq!(session.steer("c"), Err(CommandError::Ended));
    session.end();
    let kept: Vec<_> = session.engine.take_queue();
    assert_eq!(kept[0].text, "b");
    assert_eq!(session.lines.len(), 4);
}

#[test]
fn nothing_comes_back_into_the_queue_of_a_closed_session() {
    let mut session = Session::steering();
    session.prompt("a").unwrap();
    let SteerStart::Offered(offered) = session.steer("b").unwrap() else {
        panic!("the agent can be steered");
    };
    let queued = session.prompt("c").unwrap();
    let step = session.engine.close(session.now);
    session.take(step);
    // The agent refuses the text because its turn is cancelled.
    session.line("steered no");
    session.line("cancelled");
    // A restart hands the queue of the former process over.
    let id = MessageId(99);
    let text = "d".to_owned();
    let step = (session.engine).adopt(vec![WaitingMessage { id, text }], session.now);
    session.take(step);
    session.end();
    assert_eq!(session.lines[1..], ["prompt a", "steer b", "interrupt"]);
    assert_eq!(session.engine.take_queue().len(), 0);
    let dropped: Vec<_> = (session.events.iter())
        .filter_map(|event| match event {
            LiveEvent::MessageDropped { message, reason } => Some((*message, *reason)),
            _ => None,
        })
        .collect();
    let reason = DropReason::SessionEnded;
    assert_eq!(
        dropped,
        [queued.into(), offered, id].map(|message| (message, reason))
    );
}

#[test]
fn a_prompt_that_the_driver_refuses_is_a_failed_turn() {
    struct Refusing;
    impl ProtocolDriver for Refusing {
        fn open(&mut self, out: &mut DriverOutput) {
            out.opened(None);
        }
        fn line(&mut self, _line: &str, _out: &mut DriverOutput) {}
        fn command(&mut self, _command: DriverCommand<'_>, out: &mut DriverOutput) {
            out.refused("no");
        }
    }
    let mut session = Session::open();
    let limits = QueueLimits {
        messages: 5_000,
        bytes: usize::MAX,
    };
    let policy = PermissionPolicy::default();
    session.engine = LiveEngine::new(Box::new(Refusing), policy, PathBuf::from("/"), limits);
    for _ in 0..5_000 {
        session.prompt("x").unwrap();
    }
    let step = session.engine.open(session.now);
    assert_eq!(step.ended_turns.len(), 5_000, "without recursion");
    assert_eq!(step.refused, None);
    let failed = |end: &TurnEnd| matches!(end.outcome, TurnOutcome::Failed { .. });
    assert!(step.ended_turns.iter().all(failed));
}

#[test]
fn a_request_of_a_sub_agent_is_asked() {
    struct SubAgent;
    impl ProtocolDriver for SubAgent {
        fn open(&mut self, out: &mut DriverOutput) {
            out.opened(None);
        }
        fn line(&mut self, line: &str, out: &mut DriverOutput) {
            let mut request = PermissionRequest::new(line, "Bash", ToolInput::default());
            request.parent = Some("task_1".to_owned());
            out.asked(request);
        }
        fn command(&mut self, _command: DriverCommand<'_>, _out: &mut DriverOutput) {}
    }
    let mut session = Session::open();
    let policy = PermissionPolicy::default();
    let limits = QueueLimits::default();
    session.engine = LiveEngine::new(Box::new(SubAgent), policy, PathBuf::from("/"), limits);
    session.engine.open(session.now);
    // Also outside of a turn: a sub-agent may work in the background.
    session.line("p1");
    let asked = session.events.iter().filter_map(|event| match event {
        LiveEvent::PermissionAsked(request) => request.parent.as_deref(),
        _ => None,
    });
    assert_eq!(asked.collect::<Vec<_>>(), ["task_1"]);
    assert_eq!(session.engine.open_requests().count(), 1);
}

#[test]
fn open_and_settled_requests_are_bounded() {
    let mut session = Session::open();
    session.prompt("a").unwrap();
    for number in 0..2 * MAX_OPEN {
        session.line(&format!("ask {number}"));
    }
    assert_eq!(session.engine.open_requests().count(), MAX_OPEN);
    assert_eq!(session.settled().len(), MAX_OPEN, "denied");
    session.line("done");
    assert_eq!(session.settled().len(), 2 * MAX_OPEN);
    assert_eq!(session.engine.settled.len(), MAX_SETTLED);
    session.prompt("b").unwrap();
    for number in 0..20 {
        let id = format!("{number}{}", "x".repeat(MAX_SETTLED_BYTES / 4));
        session.line(&format!("ask {id}"));
        session.answer(&id, Decision::Deny).unwrap();
    }
    let bytes: usize = session.engine.settled.iter().map(|(id, _)| id.len()).sum();
    assert!(bytes <= MAX_SETTLED_BYTES, "{bytes}");
    let large = "y".repeat(MAX_OPEN_BYTES);
    session.line(&format!("ask 1{large}"));
    assert_eq!(
        session.engine.open_requests().count(),
        1,
        "one may be large"
    );
    session.line(&format!("ask 2{large}"));
    assert_eq!(session.engine.open_requests().count(), 1);
}

#[test]
fn text_outside_of_a_turn_is_not_the_text_of_one() {
    let mut session = Session::open();
    session.line("say replayed");
    session.prompt("a").unwrap();
    session.line("done");
    session.line("say late");
    session.prompt("b").unwrap();
    session.line("say own");
    session.line("done");
    let texts: Vec<_> = session.ended.iter().map(|end| end.text.as_str()).collect();
    assert_eq!(texts, ["", "own"]);
}

#[test]
fn an_agent_that_cannot_be_steered_gets_the_text_as_the_next_prompt() {
    let mut session = Session::open();
    session.prompt("a").unwrap();
    assert!(matches!(session.steer("b"), Ok(SteerStart::Queued(_))));
    session.line("done");
    assert_eq!(session.lines[1..], ["prompt a", "prompt b"]);
}

#[test]
fn the_end_of_the_process_leaves_the_outcome_uncertain_and_the_queue_whole() {
    let mut session = Session::steering();
    session.prompt("a").unwrap();
    session.prompt("b").unwrap();
    session.steer("c").unwrap();
    session.line("say half");
    session.end();
    assert_eq!(session.ended[0].outcome, TurnOutcome::Uncertain);
    assert_eq!(session.ended[0].text, "half");
    assert_eq!(session.prompt("d"), Err(CommandError::Ended));
    session.line("done");
    assert_eq!(session.ended.len(), 1, "lines after the end mean nothing");
    let resumed = LiveEngine::new(
        Box::new(Script::default()),
        PermissionPolicy::default(),
        PathBuf::from("/"),
        QueueLimits::default(),
    );
    let mut resumed = resumed.numbered_after(session.engine.last_message());
    resumed.open(session.now);
    resumed.line("opened", session.now);
    let step = resumed.adopt(session.engine.take_queue(), session.now);
    assert_eq!(
        step.lines,
        ["prompt b"],
        "`a` and `c` may have run and are not sent again"
    );
}

#[test]
fn a_turn_that_was_not_started_does_not_end() {
    let mut session = Session::open();
    session.line("done");
    session.line("cancelled");
    assert!(session.ended.is_empty());
    assert_eq!(session.events, [LiveEvent::Opened]);
}

mod any_order {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Input {
        Line(&'static str),
        Prompt,
        Steer,
        Interrupt,
        Answer(&'static str),
        TakeBack(u64),
        Timer,
        WindDown,
        End,
    }

    fn input() -> impl Strategy<Value = Input> {
        prop_oneof![
            prop::sample::select(vec![
                "opened",
                "say x",
                "done",
                "cancelled",
                "ask p1",
                "ask p2",
                "withdraw p1",
                "steered yes",
                "steered no",
                "noise",
            ])
            .prop_map(Input::Line),
            Just(Input::Prompt),
            Just(Input::Steer),
            Just(Input::Interrupt),
            prop::sample::select(vec!["p1", "p2"]).prop_map(Input::Answer),
            (1..20_u64).prop_map(Input::TakeBack),
            Just(Input::Timer),
        ]
    }

    proptest! {
        /// Whatever happens: one turn in flight, each message delivered or dropped at most once,
        /// each request settled as often as it was asked.
        #[test]
        fn no_message_is_delivered_twice(
            inputs in prop::collection::vec(input(), 0..60),
            stops in any::<bool>(),
        ) {
            let mut session = Session::steering();
            let stop = stops.then_some(Input::WindDown).into_iter();
            let rest = [Input::Line("done"), Input::Line("ask p3"), Input::Prompt, Input::End];
            let after = [Input::Line("ask p1"), Input::Line("done"), Input::Prompt, Input::Steer];
            let inputs = inputs.into_iter().chain(stop).chain(rest).chain(after);
            for (i, input) in inputs.enumerate() {
                match input {
                    Input::Line(line) => session.line(line),
                    Input::Prompt => drop(session.prompt(&i.to_string())),
                    Input::Steer => drop(session.steer(&i.to_string())),
                    Input::Interrupt => {
                        let turn = session.engine.turn_in_flight().unwrap_or(TurnId(0));
                        drop(session.interrupt(turn));
                    }
                    Input::Answer(id) => drop(session.answer(id, Decision::Allow)),
                    Input::Timer => {
                        let step = session.engine.timer(session.now + Duration::from_secs(3600));
                        session.take(step);
                    }
                    Input::TakeBack(number) => {
                        if let Some((_, step)) = session.engine.take_back(MessageId(number)) {
                            session.take(step);
                        }
                    }
                    Input::WindDown => {
                        let step = session.engine.wind_down(session.now);
                        session.take(step);
                    }
                    Input::End => session.end(),
                }
                prop_assert!(session.engine.open_requests().count() <= 3);
            }
            prop_assert!(session.engine.has_ended());
            prop_assert_eq!(session.engine.open_requests().count(), 0);
            prop_assert_eq!(session.engine.turn_in_flight(), None);
            let asked = session.events.iter().filter_map(|event| match event {
                LiveEvent::PermissionAsked(request) => Some(request.id.as_str()),
                _ => None,
            });
            for id in asked {
                let asked = session.events.iter().filter(|event| {
                    matches!(event, LiveEvent::PermissionAsked(request) if request.id == id)
                });
                let settled = session.settled();
                let settled = settled.iter().filter(|(settled, ..)| settled == id);
                // A request that crosses a cancel is settled without a question.
                prop_assert!(settled.count() >= asked.count());
            }
            let mut ends: Vec<_> = session.events.iter().filter_map(|event| match event {
                LiveEvent::MessageDelivered { message, .. }
                | LiveEvent::MessageDropped { message, .. } => Some(*message),
                _ => None,
            }).collect();
            let all = ends.len();
            ends.sort();
            ends.dedup();
            prop_assert_eq!(all, ends.len(), "one end for each message");
            let count = |predicate: &dyn Fn(&LiveEvent) -> bool| {
                session.events.iter().filter(|event| predicate(event)).count()
            };
            let mut delivered: Vec<_> = session.events.iter().filter_map(|event| match event {
                LiveEvent::MessageDelivered { message, .. } => Some(*message),
                _ => None,
            }).collect();
            let all = delivered.len();
            delivered.sort();
            delivered.dedup();
            prop_assert_eq!(all, delivered.len());
            let started = count(&|event| matches!(event, LiveEvent::TurnStarted { .. }));
            let ended = count(&|event| matches!(event, LiveEvent::TurnEnded { .. }));
            prop_assert_eq!(started, ended);
            let prompts = session.lines.iter().filter(|line| line.starts_with("prompt ")).count();
            prop_assert_eq!(prompts, started);
        }
    }
}

/// A line that is too long may have been a part of the last message, or a later one.
#[test]
fn a_text_is_not_whole_if_a_line_was_missed() {
    for (lines, text, is_whole) in [
        (&["say a", "say b"][..], "ab", true),
        (&["say a", MISSED, "say b"], "ab", false),
        (&["say a", MISSED], "a", false),
        (&[MISSED, "say a"], "a", false),
        (&[MISSED, "tool x", "say a"], "a", true),
        (&["say a", MISSED, "tool x", "say b"], "b", true),
    ] {
        let mut session = Session::open();
        session.prompt("p").unwrap();
        for line in lines {
            match *line {
                MISSED => session.engine.missed_line(),
                line => session.line(line),
            }
        }
        session.line("done");
        let end = &session.ended[0];
        assert_eq!((&*end.text, end.is_whole), (text, is_whole), "{lines:?}");
    }
}

const MISSED: &str = "missed";
