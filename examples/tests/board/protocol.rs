//! The JSON of `docs/board-json.md`, with a client other than the page.

use std::time::Duration;

use examples::board::TOO_SLOW;
use serde_json::{Value, json};

use crate::board::Board;
use crate::client::{Client, LIMIT, connect, receive, send};

fn is_message(event: &Value, from: &str) -> bool {
    event["type"] == "message" && event["message"]["from"] == from
}

fn permission(event: &Value, open: bool) -> bool {
    event["type"] == "permission" && event["permission"]["settled"].is_null() == open
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_sees_agents_and_the_answer_to_its_message() {
    let board = Board::scripted(&["writer", "reviewer"]).await;
    let mut client = Client::open(&board).await;
    client.agent("writer").await;
    client.agent("reviewer").await;
    let mut client = Client::open(&board).await;
    let names = client.state["agents"].as_array().unwrap().iter();
    let names: Vec<&Value> = names.map(|agent| &agent["id"]).collect();
    assert_eq!(names, ["writer", "reviewer"]);
    client
        .ok(json!({"type": "send", "agent": "writer", "text": "hello"}))
        .await;
    let sent = client.event_when(|event| is_message(event, "user")).await;
    assert_eq!(sent["message"]["to"], "writer");
    let answer = client.event_when(|event| is_message(event, "writer")).await;
    assert_eq!(answer["message"]["text"], "done: hello");
    assert_eq!(answer["message"]["reply_to"], sent["message"]["id"]);
    client
        .event_when(|event| event["agent"]["state"] == "idle")
        .await;

    client.ok(json!({"type": "watch", "agent": "writer"})).await;
    let output = client.frame("output").await;
    let lines = output["lines"].as_array().unwrap();
    assert_eq!(lines.last().unwrap()["text"], "done: hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_answer_wins_and_the_second_is_told() {
    let board = Board::scripted(&["writer"]).await;
    let (mut one, mut two) = (Client::open(&board).await, Client::open(&board).await);
    one.agent("writer").await;
    one.ok(json!({"type": "send", "agent": "writer", "text": "[[ask rm -r build]]"}))
        .await;
    let asked = one.event_when(|event| permission(event, true)).await;
    let id = &asked["permission"]["id"];
    let deny = json!({"type": "answer", "permission": id, "decision": "deny"});
    let allow = json!({"type": "answer", "permission": id, "decision": "allow"});
    let (first, second) = tokio::join!(one.command(deny), two.command(allow));
    let (winner, loser) = match first["ok"] == true {
        true => ("deny", second),
        false => ("allow", first),
    };
    assert_eq!(loser["error"]["code"], "already_settled", "{loser}");
    for client in [&mut one, &mut two] {
        let settled = client.event_when(|event| permission(event, false)).await;
        assert_eq!(settled["permission"]["settled"]["decision"], winner);
        let answer = client.event_when(|event| is_message(event, "writer")).await;
        let word = if winner == "deny" {
            "denied"
        } else {
            "allowed"
        };
        assert_eq!(answer["message"]["text"], format!("{word}: rm -r build"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_has_no_gap() {
    let board = Board::scripted(&["alpha"]).await;
    let mut client = Client::open(&board).await;
    board.message(1, "before");
    client.event_when(|event| is_message(event, "alpha")).await;
    let (stream, after) = (client.hello["stream"].clone(), client.seq);
    drop(client);
    for n in 2..2_000 {
        board.message(n, "while away");
    }
    let open = json!({"stream": stream, "after": after});
    let mut client = Client::resume(&board, open).await;
    assert_eq!(client.hello["resumed"], true);
    for n in 2..2_000 {
        // `event` also checks the sequence numbers.
        let event = client.event_when(|event| is_message(event, "alpha")).await;
        assert_eq!(event["message"]["id"], format!("t{n}"));
    }
    // A number of another board, or one from the future, gives the whole state.
    let other = json!({"stream": "other", "after": after});
    assert_eq!(Client::resume(&board, other).await.hello["resumed"], false);
    let future = json!({"stream": stream, "after": 1_000_000});
    assert_eq!(Client::resume(&board, future).await.hello["resumed"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn older_messages_come_page_by_page() {
    let board = Board::scripted(&["alpha"]).await;
    for n in 1..=2_500 {
        board.message(n, "text");
    }
    let mut client = Client::open(&board).await;
    let state = client.state["messages"].as_array().unwrap().clone();
    assert_eq!(client.state["first_message"], 1);
    let mut numbers: Vec<u64> = state
        .iter()
        .map(|m| m["number"].as_u64().unwrap())
        .collect();
    assert!(numbers.len() < 2_500);
    while numbers[0] > 1 {
        let page = json!({"type": "messages", "before": numbers[0], "limit": 1000});
        let page = client.ok(page).await;
        let page = page["messages"].as_array().unwrap().iter();
        let page = page.map(|message| message["number"].as_u64().unwrap());
        numbers.splice(0..0, page);
    }
    assert_eq!(numbers, (1..=2_500).collect::<Vec<u64>>());
}

/// Reads nothing while the board has much to say: the server must drop the client at its cap, and a
/// new connection continues where the client was.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_is_dropped_and_comes_back_without_a_gap() {
    let board = Board::scripted(&["alpha"]).await;
    let slow = Client::open(&board).await;
    let (stream, after) = (slow.hello["stream"].clone(), slow.seq);
    assert_eq!(board.hub.clients(), 1);
    let text = "x".repeat(16 * 1024);
    let mut sent = 0;
    // The buffers of the system take some megabytes before the server notices.
    while board.hub.clients() > 0 {
        assert!(sent < 1_400, "the client was not dropped");
        sent += 1;
        board.message(sent, &text);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let code = tokio::time::timeout(LIMIT, slow.close_code())
        .await
        .unwrap();
    // The close frame may be lost behind the data that the client has not read.
    assert!(code.is_none_or(|code| code == TOO_SLOW), "{code:?}");
    let mut client = Client::resume(&board, json!({"stream": stream, "after": after})).await;
    assert_eq!(client.hello["resumed"], true);
    for n in 1..=sent {
        let event = client.event_when(|event| is_message(event, "alpha")).await;
        assert_eq!(event["message"]["id"], format!("t{n}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_cannot_be_done_are_refused_with_a_code() {
    let board = Board::scripted(&["writer"]).await;
    let mut client = Client::open(&board).await;
    let cases = [
        (
            json!({"type": "send", "agent": "nobody", "text": "x"}),
            "unknown",
        ),
        (
            json!({"type": "send", "agent": "writer", "text": " "}),
            "invalid",
        ),
        (
            json!({"type": "send", "agent": "writer", "text": "x".repeat(70_000)}),
            "invalid",
        ),
        (json!({"type": "interrupt", "agent": "writer"}), "gone"),
        (json!({"type": "restart", "agent": "writer"}), "busy"),
        (
            json!({"type": "answer", "permission": "p9", "decision": "allow"}),
            "unknown",
        ),
        (
            json!({"type": "answer", "permission": "p9", "decision": "maybe"}),
            "invalid",
        ),
        (json!({"type": "take_back", "item": "m9"}), "gone"),
        (json!({"type": "explode"}), "invalid"),
        (json!({"type": "open"}), "invalid"),
    ];
    client.agent("writer").await;
    for (command, code) in cases {
        let shown = command.to_string();
        let reply = client.command(command).await;
        assert_eq!(reply["error"]["code"], code, "{shown:.80}: {reply}");
    }
    client.send_text("not JSON").await;
    assert_eq!(client.frame("reply").await["error"]["code"], "invalid");
    // The connection still works.
    client.ok(json!({"type": "watch"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_message_is_taken_back_and_a_turn_interrupted() {
    let board = Board::scripted(&["writer"]).await;
    let mut client = Client::open(&board).await;
    client.agent("writer").await;
    client
        .ok(json!({"type": "send", "agent": "writer", "text": "[[hold]]"}))
        .await;
    client
        .event_when(|event| event["agent"]["state"] == "working")
        .await;
    client
        .ok(json!({"type": "send", "agent": "writer", "text": "later"}))
        .await;
    let later = |event: &Value| event["type"] == "queued" && event["item"]["text"] == "later";
    let queued = client.event_when(later).await;
    let take_back = json!({"type": "take_back", "item": queued["item"]["id"]});
    client.ok(take_back.clone()).await;
    let gone = client
        .event_when(|event| event["type"] == "queued_gone" && event["outcome"] == "taken_back")
        .await;
    assert_eq!(gone["id"], queued["item"]["id"]);
    assert_eq!(client.command(take_back).await["error"]["code"], "gone");
    client
        .ok(json!({"type": "interrupt", "agent": "writer"}))
        .await;
    let answer = client.event_when(|event| is_message(event, "writer")).await;
    assert_eq!(answer["message"]["text"], "interrupted");
    client.ok(json!({"type": "stop", "agent": "writer"})).await;
    client
        .event_when(|event| event["agent"]["state"] == "exited")
        .await;
    client
        .ok(json!({"type": "restart", "agent": "writer"}))
        .await;
    client
        .event_when(|event| event["agent"]["state"] == "idle")
        .await;
}

/// A board without agents; events are pushed by the test.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_must_open_first() {
    let board = Board::scripted(&[]).await;
    let bearer = format!("Bearer {}", board.token);
    let mut socket = connect(&board, &[("authorization", &bearer)])
        .await
        .unwrap();
    send(&mut socket, &json!({"type": "watch", "agent": "writer"})).await;
    let frame = tokio::time::timeout(LIMIT, futures_util::StreamExt::next(&mut socket)).await;
    let closed = frame.unwrap().unwrap().unwrap();
    assert!(closed.is_close(), "{closed:?}");
    let mut socket = connect(&board, &[("authorization", &bearer)])
        .await
        .unwrap();
    send(&mut socket, &json!({"type": "open"})).await;
    assert_eq!(receive(&mut socket).await["type"], "hello");
}
