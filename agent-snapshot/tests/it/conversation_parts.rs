//! Images, documents, reasoning and data of providers: through JSON, storage, trims and summaries.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex};

use agent_snapshot::conversation::{
    Error, Message, Part, Provider, Role, SessionManager, Source, StateManager, Summarizer,
    SummaryRequest, ToolCallRequest, ToolCallResult,
};
use agent_snapshot::{History, MemoryStorage, SnapshotStorage};
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::conversation_rules::provider_rules;

/// Every kind of part, as version 0.2 writes it.
const MESSAGES: &str = include_str!("golden/messages.jsonl");

fn golden(provider: Provider) -> Value {
    let text = match provider {
        Provider::Anthropic => include_str!("golden/anthropic.json"),
        Provider::OpenAiChat => include_str!("golden/openai_chat.json"),
        Provider::OpenAiResponses => include_str!("golden/openai_responses.json"),
        _ => include_str!("golden/gemini.json"),
    };
    serde_json::from_str(text).unwrap()
}

fn messages() -> Vec<Message> {
    let lines = MESSAGES.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn messages_with_parts_survive_byte_for_byte() {
    for (line, message) in MESSAGES.lines().zip(messages()) {
        assert_eq!(serde_json::to_string(&message).unwrap(), line);
    }
    let kinds = messages();
    assert!(matches!(kinds[1].parts[0], Part::Image { .. }));
    assert!(matches!(kinds[2].parts[1], Part::Reasoning { .. }));
    assert!(matches!(kinds[2].parts[2], Part::Call { .. }));
    assert!(matches!(kinds[2].parts[3], Part::Provider { .. }));
    assert!(matches!(kinds[4].parts[2], Part::Unknown(_)));
    let state = StateManager::new(100_000);
    let conversation = state.conversation(kinds.into_iter().collect()).unwrap();
    for provider in Provider::ALL {
        let request = provider.request(conversation.iter()).unwrap();
        assert!(!request.to_string().contains("hologram"));
        if provider != Provider::Anthropic {
            provider_rules(provider, &request).unwrap();
        }
    }
}

#[test]
fn foreign_values_under_the_new_keys_survive() {
    for text in [
        r#"{"role":"user","content":"x","parts":["a",{"text":"b"},3]}"#,
        r#"{"role":"user","content":"x","parts":[{"source":"elsewhere","type":"image"}]}"#,
    ] {
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&message).unwrap(), text);
    }
}

#[test]
fn requests_survive_reading_and_writing_exactly() {
    for provider in Provider::ALL {
        let golden = golden(provider);
        let messages = provider.messages(&golden).unwrap();
        let request = provider.request(&messages).unwrap();
        assert_eq!(request, golden, "{provider}");
    }
}

#[test]
fn responses_are_read() {
    let anthropic = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
            {"type": "text", "text": "Reading.", "citations": null},
            {"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}},
        ],
        "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1},
    });
    let chat = json!({"id": "chatcmpl-1", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": "Reading.", "refusal": null, "annotations": [],
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "t", "type": "function",
                        "function": {"name": "read", "arguments": "{\"path\": \"a\"}"}}],
    }}]});
    let responses = json!({"id": "resp_1", "object": "response", "status": "completed", "output": [
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "c2ln", "status": null,
         "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Reading.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "t", "name": "read",
         "arguments": "{\"path\":\"a\"}", "status": "completed"},
    ]});
    let gemini = json!({"candidates": [{"finishReason": "STOP", "content": {"role": "model", "parts": [
        {"text": "Hm.", "thought": true, "thoughtSignature": "c2ln"},
        {"text": "Reading."},
        {"functionCall": {"name": "read", "args": {"path": "a"}}},
    ]}}], "usageMetadata": {"totalTokenCount": 3}});
    for (provider, response) in Provider::ALL
        .into_iter()
        .zip([anthropic, chat, responses, gemini])
    {
        let read = provider.messages(&response).unwrap();
        assert_eq!(read.len(), 1, "{provider}");
        assert_eq!(read[0].role, Role::Assistant);
        assert_eq!(read[0].content.as_deref(), Some("Reading."));
        assert_eq!(read[0].tool_calls[0].name, "read");
        assert_eq!(read[0].tool_calls[0].args, json!({"path": "a"}));
        let [
            Part::Reasoning {
                provider: of, text, ..
            },
        ] = &read[0].parts[..]
        else {
            panic!("{provider}: {:?}", read[0].parts);
        };
        assert_eq!((*of, &**text), (provider, "Hm."));
        // Gemini gives no id here: append makes one.
        let id = if provider == Provider::Gemini {
            ""
        } else {
            "t"
        };
        assert_eq!(read[0].tool_calls[0].id, id);
    }
}

#[test]
fn json_of_another_format_is_an_error_that_names_the_fault() {
    for provider in Provider::ALL {
        for json in [
            json!({"role": "ghost", "content": "x"}),
            json!([{"role": 1}]),
        ] {
            match provider.messages(&json) {
                Err(Error::UnreadableJson { provider: of, .. }) => assert_eq!(of, provider),
                // The Responses API has items without a role.
                Ok(messages)
                    if provider == Provider::OpenAiResponses || provider == Provider::Gemini =>
                {
                    assert!(messages.len() <= 1);
                }
                other => panic!("{provider}: {other:?}"),
            }
        }
    }
    let error = Provider::OpenAiChat
        .messages(&json!({"role": "ghost"}))
        .unwrap_err();
    let text = "cannot read the JSON of openai_chat: the role `ghost`";
    assert_eq!(error.to_string(), text);
}

#[test]
fn signatures_go_to_their_own_provider_alone() {
    let list: Vec<Message> = std::iter::once(Message::user("go"))
        .chain(Provider::ALL.into_iter().map(|provider| {
            let mut part = Part::reasoning(provider, format!("thought of {provider}"), "c2ln");
            if let Part::Reasoning { extra, .. } = &mut part {
                extra.insert("openai_responses".to_owned(), json!({"id": "rs_1"}));
            }
            Message::assistant("said").with_parts(vec![part])
        }))
        .collect();
    for provider in Provider::ALL {
        let request = provider.request(&list).unwrap();
        provider_rules(provider, &request).unwrap();
        let request = request.to_string();
        for of in Provider::ALL {
            let has = request.contains(&format!("thought of {of}"));
            assert_eq!(has, of == provider, "{of} in the request for {provider}");
        }
    }
}

#[test]
fn another_provider_gets_calls_of_gemini_signed_for_it() {
    let call = ToolCallRequest::new("c", "read", json!({}));
    let list = [
        Message::user("go"),
        Message::assistant("").with_tool_calls(vec![call]),
        Message::tool(vec![ToolCallResult::new("c", json!("text"))]),
    ];
    let request = Provider::Gemini.request(&list).unwrap();
    let signature = &request["contents"][1]["parts"][0]["thoughtSignature"];
    assert_eq!(signature, "skip_thought_signature_validator");
}

#[test]
fn text_parts_and_content_stay_the_same_text() {
    let text = Part::text;
    let message = Message::user("one ").with_parts(vec![text("two ")]);
    assert_eq!(message.content.as_deref(), Some("one two "));
    assert_eq!(message.parts, [text("one "), text("two ")]);
    let message = message.with_parts(vec![text("three")]);
    assert_eq!(message.content.as_deref(), Some("one two three"));
    let reasoning = Part::reasoning(Provider::Anthropic, "hm", "c2ln");
    let message = Message::assistant("b").with_parts(vec![reasoning.clone(), text("c")]);
    assert_eq!(message.parts, [reasoning, text("b"), text("c")]);
    let mut broken = Message::user("a");
    broken.parts = vec![text("b")];
    assert!(matches!(
        Provider::Gemini.request([&broken]),
        Err(Error::InvalidMessage { .. })
    ));
    let repaired = agent_snapshot::conversation::repair([broken]);
    assert_eq!(repaired.messages[0].content.as_deref(), Some("ab"));
}

/// A turn with reasoning, a call, and a screen shot of `number`.
fn turn(number: usize) -> [Message; 4] {
    let reasoning = Part::reasoning(
        Provider::Anthropic,
        "I need a look.",
        format!("sig{number}"),
    );
    let call = ToolCallRequest::new("call_0", "screenshot", json!({"n": number}));
    let image = Part::image(Source::base64("image/png", "iVBORw0KGgo="));
    let result = ToolCallResult::new("call_0", json!(format!("screen {number}")));
    [
        Message::user(format!("question {number}")),
        Message::new(Role::Assistant)
            .with_tool_calls(vec![call])
            .with_parts(vec![reasoning]),
        Message::tool(vec![result.with_parts(vec![image])]),
        Message::assistant(format!("answer {number}")),
    ]
}

/// Keeps the requests.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<SummaryRequest>>>);

#[async_trait]
impl Summarizer for Recorder {
    async fn summarize(
        &self,
        request: &SummaryRequest,
    ) -> Result<String, Box<dyn StdError + Send + Sync>> {
        self.0.lock().unwrap().push(request.clone());
        Ok("many screens".to_owned())
    }
}

async fn parts_survive(storage: Arc<dyn SnapshotStorage>) {
    let recorder = Recorder::default();
    let state = StateManager::new(9_000).provider(Provider::Anthropic);
    let sessions = SessionManager::new(storage, state).summarizer(recorder.clone());
    let mut session = sessions.create("alice", Some("Be brief.")).await.unwrap();
    let id = session.id().clone();
    let mut appended = Vec::new();
    for number in 0..12 {
        for message in turn(number) {
            appended.push(session.append(message).unwrap().clone());
        }
        session.commit().await.unwrap();
        // As after a restart.
        session = sessions.get(&id).await.unwrap();
    }
    let stream = sessions.stream(&id).await.unwrap();
    assert!(stream[1..] == appended);
    let view: Vec<Message> = session.messages().cloned().collect();
    assert!(view.len() < appended.len());
    let request = Provider::Anthropic.request(&view).unwrap();
    provider_rules(Provider::Anthropic, &request).unwrap();
    let images = view.iter().flat_map(|m| &m.tool_results).count();
    assert_eq!(request.to_string().matches("iVBORw0KGgo=").count(), images);
    assert_eq!(
        request.to_string().matches("\"signature\":\"sig").count(),
        images
    );
    let requests = recorder.0.lock().unwrap();
    assert!(!requests.is_empty());
    let reasoning = |m: &&Message| matches!(m.parts.first(), Some(Part::Reasoning { .. }));
    let summarised = requests.iter().flat_map(|r| &r.messages);
    let summarised = summarised.filter(reasoning).count();
    assert_eq!(summarised + images, 12);
}

#[tokio::test]
async fn parts_survive_trims_summaries_and_storage() {
    parts_survive(Arc::new(MemoryStorage::new())).await;
}

#[cfg(feature = "file")]
#[tokio::test]
async fn parts_survive_files() {
    let folder = tempfile::tempdir().unwrap();
    let storage = agent_snapshot::FileStorage::open(folder.path())
        .await
        .unwrap();
    parts_survive(Arc::new(storage)).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn parts_survive_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let storage = agent_snapshot::SqliteStorage::open(path).await.unwrap();
    parts_survive(Arc::new(storage)).await;
}

#[tokio::test]
async fn a_part_that_could_not_be_read_again_is_refused() {
    let mut part = Part::text("a");
    if let Part::Text { extra, .. } = &mut part {
        extra.insert("text".to_owned(), json!("b"));
    }
    let sessions = SessionManager::new(Arc::new(MemoryStorage::new()), StateManager::new(1_000));
    let mut session = sessions.create("alice", None).await.unwrap();
    session
        .append(Message::user("").with_parts(vec![part]))
        .unwrap();
    let error = session.commit().await.unwrap_err();
    assert!(matches!(error, Error::Storage { .. }), "{error}");
}

#[test]
fn images_and_documents_are_counted_by_the_formula_of_the_provider() {
    // PNG, 1,920 by 1,080 pixels.
    let png = "iVBORw0KGgoAAAANSUhEUgAAB4AAAAQ4CAYAAADo08FD";
    let image = || Part::image(Source::base64("image/png", png));
    let pdf = || {
        Part::document(
            Source::base64("application/pdf", "L1R5cGUvUGFnZQ=="),
            "a.pdf",
        )
    };
    for (provider, expected) in [
        (Some(Provider::Anthropic), 2_691 + 3_000),
        (Some(Provider::OpenAiResponses), 2_448 + 3_000),
        (Some(Provider::Gemini), 1_120 + 560),
        (None, 2_691 + 3_000),
    ] {
        let mut state = StateManager::new(100_000);
        if let Some(provider) = provider {
            state = state.provider(provider);
        }
        let mut conversation = state.conversation(History::new()).unwrap();
        let text = Message::user("What is this?");
        state.append(&mut conversation, text.clone()).unwrap();
        let exact = conversation.tokens();
        assert_eq!(conversation.estimated_tokens(), 0);
        let message = text.with_parts(vec![image(), pdf()]);
        state.append(&mut conversation, message).unwrap();
        assert_eq!(conversation.estimated_tokens(), expected, "{provider:?}");
        assert_eq!(conversation.tokens(), 2 * exact + expected);
        let reloaded = state.conversation(conversation.history().clone()).unwrap();
        assert_eq!(reloaded.tokens(), conversation.tokens());
        assert_eq!(reloaded.estimated_tokens(), expected);
    }
}

#[test]
fn estimates_leave_with_their_messages() {
    let state = StateManager::new(12_000).provider(Provider::Anthropic);
    let mut conversation = state.conversation(History::new()).unwrap();
    for number in 0..30 {
        for message in turn(number) {
            state.append(&mut conversation, message).unwrap();
        }
        state.trim(&mut conversation).unwrap();
        let images = conversation.iter().flat_map(|m| &m.tool_results).count();
        assert_eq!(conversation.estimated_tokens(), images * 1_369);
    }
}
