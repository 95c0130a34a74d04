//! Summaries: no message is lost while one is made, and none enters another conversation.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_snapshot::conversation::{
    Conversation, Error, Message, Role, Session, SessionManager, StateManager, Summarizer,
    SummaryOutcome, SummaryRequest, TokenCounter,
};
use agent_snapshot::{History, MemoryStorage};
use async_trait::async_trait;
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};
use tokio::sync::Notify;

use crate::conversation_generated::{Kind, for_each};
use crate::conversation_rules::acceptable;
use crate::conversation_sessions::until;

/// A summariser that counts: `5 messages` and seven more give `12 messages`.
#[derive(Clone, Default)]
struct Counting {
    asked: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<SummaryRequest>>>,
    /// If set, the answer waits for it.
    gate: Option<Arc<Notify>>,
    fails: bool,
}

#[async_trait]
impl Summarizer for Counting {
    async fn summarize(
        &self,
        request: &SummaryRequest,
    ) -> Result<String, Box<dyn StdError + Send + Sync>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.requests.lock().unwrap().push(request.clone());
        if let Some(gate) = &self.gate {
            gate.notified().await;
        }
        if self.fails {
            return Err("no model".into());
        }
        let before = request.previous.as_deref().unwrap_or("0 messages");
        let before: usize = before.split(' ').next().unwrap().parse()?;
        Ok(format!("{} messages", before + request.messages.len()))
    }
}

fn state() -> StateManager {
    StateManager::new(600)
        .answer_tokens(100)
        .summary_timeout(Duration::from_secs(30))
}

fn sessions(storage: &MemoryStorage, summarizer: &Counting) -> SessionManager {
    SessionManager::new(Arc::new(storage.clone()), state()).summarizer(summarizer.clone())
}

fn turn(session: &mut Session, n: usize) {
    session
        .append(Message::user(format!("question {n}")))
        .unwrap();
    session
        .append(Message::assistant(format!(
            "answer {n} {}",
            "word ".repeat(10)
        )))
        .unwrap();
}

fn view(conversation: &Conversation) -> Vec<Message> {
    conversation.iter().cloned().collect()
}

#[tokio::test]
async fn a_new_summary_merges_the_previous_one() {
    let storage = MemoryStorage::new();
    let summarizer = Counting::default();
    let sessions = sessions(&storage, &summarizer);
    let mut session = sessions.create("alice", Some("prompt")).await.unwrap();
    let mut made = 0;
    for n in 0..100 {
        turn(&mut session, n);
        let committed = session.commit().await.unwrap();
        made += usize::from(matches!(committed.summary, SummaryOutcome::Made));
        let list = view(session.conversation());
        acceptable(&list).unwrap();
        assert!(session.conversation().tokens() <= state().budget());
        let system: Vec<_> = list.iter().filter(|m| m.role == Role::System).collect();
        assert_eq!(
            system.len(),
            1 + usize::from(made > 0),
            "one prompt, one summary"
        );
    }
    assert!(made > 2);
    // Every message that left the view was summarised.
    let again = sessions.get(session.id()).await.unwrap();
    let summary = again.conversation().history().summary().unwrap();
    let text = summary.content.as_deref().unwrap();
    let hidden = again.conversation().history().first_seq();
    assert_eq!(text, format!("前文の要約：{hidden} messages"));
    assert_eq!(sessions.stream(session.id()).await.unwrap().len(), 201);
}

/// A word is a token, and nothing else costs any.
struct Words;

impl TokenCounter for Words {
    fn count_text(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn per_message(&self) -> usize {
        0
    }

    fn per_request(&self) -> usize {
        0
    }
}

#[tokio::test]
async fn a_summary_leaves_the_view_if_the_newest_turn_needs_its_place() {
    let state = StateManager::new(100)
        .answer_tokens(0)
        .summary_tokens(10)
        .counter(Words);
    let sessions = SessionManager::new(Arc::new(MemoryStorage::new()), state);
    let sessions = sessions.summarizer(Counting::default());
    let mut session = sessions.create("alice", None).await.unwrap();
    let words = |count| "word ".repeat(count);
    session.append(Message::user(words(40))).unwrap();
    session.append(Message::assistant(words(40))).unwrap();
    session.append(Message::user(words(90))).unwrap();
    let committed = session.commit().await.unwrap();
    assert!(matches!(committed.summary, SummaryOutcome::Made));
    assert!(session.conversation().history().summary().is_some());

    // The turn has 99 words: there is nothing to summarise, and no place for a summary.
    session.append(Message::assistant(words(9))).unwrap();
    session.commit().await.unwrap();
    assert_eq!(session.conversation().tokens(), 99);
    assert_eq!(session.conversation().history().summary(), None);
    assert_eq!(sessions.stream(session.id()).await.unwrap().len(), 4);
}

#[tokio::test]
async fn messages_that_are_added_while_a_summary_is_made_stay() {
    let storage = MemoryStorage::new();
    let gate = Arc::new(Notify::new());
    let summarizer = Counting {
        gate: Some(gate.clone()),
        ..Counting::default()
    };
    let slow = sessions(&storage, &summarizer);
    let mut session = slow.create("alice", Some("prompt")).await.unwrap();
    let id = session.id().clone();
    for n in 0.. {
        turn(&mut session, n);
        if state().needs_trim(session.conversation()) {
            break;
        }
    }
    let before = session.uncommitted().len();
    let summarizing = tokio::spawn(async move {
        let committed = session.commit().await.unwrap();
        (session, committed)
    });
    let asked = summarizer.asked.clone();
    until(|| asked.load(Ordering::SeqCst) == 1).await;

    // The session continues, in this process and in another one.
    let mut here = slow.get(&id).await.unwrap();
    turn(&mut here, 1000);
    let committed = here.commit().await.unwrap();
    // Another summary is under way: this commit trims without one.
    assert!(matches!(
        committed.summary,
        SummaryOutcome::Failed(Error::SummaryRejected { .. })
    ));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let other = SessionManager::new(Arc::new(storage.clone()), state());
    let mut there = other.get(&id).await.unwrap();
    turn(&mut there, 2000);
    there.commit().await.unwrap();

    gate.notify_one();
    let (session, committed) = summarizing.await.unwrap();
    assert!(
        matches!(committed.summary, SummaryOutcome::Made),
        "{committed:?}"
    );
    assert_eq!(committed.merged, 4);
    let list = view(session.conversation());
    acceptable(&list).unwrap();
    assert!(
        list[1]
            .content
            .as_deref()
            .unwrap()
            .starts_with("前文の要約：")
    );
    let tail: Vec<_> = list
        .iter()
        .rev()
        .take(4)
        .filter_map(|m| m.content.as_deref())
        .collect();
    assert_eq!((tail[3], tail[1]), ("question 1000", "question 2000"));
    assert_eq!(slow.stream(&id).await.unwrap().len(), before + 5);
    assert_eq!(view(slow.get(&id).await.unwrap().conversation()), list);
}

#[tokio::test]
async fn without_an_answer_of_the_summariser_the_view_is_trimmed() {
    for summarizer in [
        Counting {
            fails: true,
            ..Counting::default()
        },
        Counting {
            gate: Some(Arc::default()),
            ..Counting::default()
        },
    ] {
        let state = state().summary_timeout(Duration::from_millis(50));
        let storage = Arc::new(MemoryStorage::new());
        let sessions = SessionManager::new(storage, state.clone()).summarizer(summarizer);
        let mut session = sessions.create("alice", Some("prompt")).await.unwrap();
        let mut failed = 0;
        for n in 0..30 {
            turn(&mut session, n);
            let committed = session.commit().await.unwrap();
            if let SummaryOutcome::Failed(error) = committed.summary {
                assert!(matches!(error, Error::Summary { .. }), "{error}");
                assert!(committed.trimmed.messages > 0);
                failed += 1;
            }
            acceptable(&view(session.conversation())).unwrap();
            assert!(session.conversation().tokens() <= state.budget());
        }
        assert!(failed > 0);
        assert_eq!(sessions.stream(session.id()).await.unwrap().len(), 61);
    }
}

fn over(state: &StateManager, from: usize) -> Conversation {
    let mut conversation = state.conversation(History::new()).unwrap();
    state
        .append(&mut conversation, Message::system("prompt"))
        .unwrap();
    for n in from.. {
        state
            .append(&mut conversation, Message::user(format!("question {n}")))
            .unwrap();
        state
            .append(&mut conversation, Message::assistant("word ".repeat(20)))
            .unwrap();
        if state.needs_trim(&conversation) {
            return conversation;
        }
    }
    unreachable!()
}

#[tokio::test]
async fn a_summary_of_another_conversation_is_rejected() {
    let state = state();
    let (mine, mut other) = (over(&state, 0), over(&state, 500));
    let job = state.begin_summary(&mine).unwrap().unwrap();
    let summary = job.run(&Counting::default()).await.unwrap();
    let before = view(&other);
    let error = state.apply_summary(&mut other, &summary).unwrap_err();
    assert!(matches!(error, Error::SummaryRejected { .. }));
    assert_eq!(view(&other), before);
}

#[tokio::test]
async fn the_second_of_two_concurrent_summaries_is_rejected() {
    let state = state();
    let mut conversation = over(&state, 0);
    let one = state.begin_summary(&conversation).unwrap().unwrap();
    let two = state.begin_summary(&conversation).unwrap().unwrap();
    let one = one.run(&Counting::default()).await.unwrap();
    let two = two.run(&Counting::default()).await.unwrap();
    state.apply_summary(&mut conversation, &one).unwrap();
    let after = view(&conversation);
    assert!(state.apply_summary(&mut conversation, &two).is_err());
    assert_eq!(view(&conversation), after);
}

#[tokio::test]
async fn a_long_summary_is_cut_and_the_prefix_is_a_setting() {
    struct Chatty;

    #[async_trait]
    impl Summarizer for Chatty {
        async fn summarize(
            &self,
            _: &SummaryRequest,
        ) -> Result<String, Box<dyn StdError + Send + Sync>> {
            Ok("要約です。".repeat(1_000))
        }
    }

    let state = state().summary_prefix("Summary: ").summary_tokens(40);
    let mut conversation = over(&state, 0);
    let job = state.begin_summary(&conversation).unwrap().unwrap();
    assert_eq!(job.request().max_tokens, 40);
    let summary = job.run(&Chatty).await.unwrap();
    state.apply_summary(&mut conversation, &summary).unwrap();
    assert!(conversation.tokens() <= state.low_water_mark());
    let text = view(&conversation)[1].content.clone().unwrap();
    assert!(
        text.starts_with("Summary: 要約です。") && text.chars().count() < 60,
        "{text}"
    );
}

#[test]
fn summarised_conversations_are_acceptable() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    for (kind, cases) in [
        (Kind::Parallel, 2_000),
        (Kind::Japanese, 2_000),
        (Kind::Agentic, 100),
    ] {
        for_each(kind, cases, |list| {
            // Small budgets: a summary has to fit beside one exchange.
            let state = StateManager::new(800).answer_tokens(0).summary_tokens(30);
            runtime.block_on(grow(list, &state))
        });
    }
}

/// Appends message by message, and summarises when needed. Each summary is applied two messages
/// late, as if it took time to make.
async fn grow(list: &[Message], state: &StateManager) -> Result<(), TestCaseError> {
    let mut conversation = state.conversation(History::new()).unwrap();
    let mut job = None;
    let mut late = 0;
    for message in list {
        match state.append(&mut conversation, message.clone()) {
            Ok(_) => {}
            Err(Error::OverLimit { .. }) => break,
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
        late += 1;
        if job.is_none() {
            job = state.begin_summary(&conversation).unwrap();
            late = 0;
        } else if late == 2 {
            let appended = conversation.history().next_seq();
            let summary = job.take().unwrap().run(&Counting::default()).await.unwrap();
            state.apply_summary(&mut conversation, &summary).unwrap();
            prop_assert_eq!(conversation.history().next_seq(), appended);
            state.trim(&mut conversation).unwrap();
            prop_assert!(conversation.tokens() <= state.budget());
            prop_assert_eq!(conversation.iter().next_back().unwrap(), message);
            if list[0].role == Role::System {
                prop_assert_eq!(conversation.iter().next().unwrap(), &list[0]);
            }
            if conversation.open_calls().is_empty() {
                acceptable(&view(&conversation)).map_err(TestCaseError::fail)?;
            }
        }
    }
    Ok(())
}
