//! The checks of access, below the browser.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use tokio_tungstenite::tungstenite::Error;

use crate::board::Board;
use crate::client::{Client, connect, receive, send};

/// An HTTP request, byte by byte, so that no library corrects it. Returns head and body.
fn http(
    board: &Board,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (String, String) {
    let mut stream = TcpStream::connect(board.socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    stream
        .write_all(format!("{request}\r\n{body}").as_bytes())
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

/// Logs in and returns the cookie and the key of the page.
fn log_in(board: &Board) -> (String, String) {
    let host = board.socket.to_string();
    let origin = format!("http://{host}");
    let headers = [
        ("host", &*host),
        ("origin", &origin),
        ("content-type", "application/json"),
    ];
    let body = json!({"token": board.token}).to_string();
    let (head, body) = http(board, "POST", "/login", &headers, &body);
    assert_eq!(status(&head), "200", "{head}");
    let cookie = head
        .lines()
        .find(|line| line.starts_with("set-cookie:"))
        .unwrap();
    for part in ["httponly", "samesite=strict"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let cookie = cookie["set-cookie:".len()..]
        .split(';')
        .next()
        .unwrap()
        .trim();
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    (cookie.to_owned(), body["key"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_our_host_and_origin_get_an_answer() {
    let board = Board::scripted(&["secret_agent"]).await;
    let host = board.socket.to_string();
    let port = board.socket.port();
    let local = format!("localhost:{port}");
    for ours in [&host, &local] {
        let (head, body) = http(&board, "GET", "/", &[("host", ours)], "");
        assert_eq!(status(&head), "200");
        assert!(!body.contains("secret_agent") && !body.contains(&board.token));
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "require-trusted-types-for 'script'",
            "frame-ancestors 'none'",
            "referrer-policy: no-referrer",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
        ] {
            assert!(head.contains(header), "{header} is missing: {head}");
        }
    }
    let rebound = format!("evil.example:{port}");
    for headers in [
        vec![("host", &*rebound)],
        vec![("host", "evil.example")],
        vec![("host", &*host), ("host", &*rebound)],
        vec![("host", &*host), ("origin", "http://evil.example")],
        vec![("host", &*host), ("origin", "null")],
    ] {
        for path in ["/", "/board.js", "/login", "/events"] {
            let (head, body) = http(&board, "GET", path, &headers, "");
            assert!(
                ["400", "403"].contains(&status(&head)),
                "{headers:?} {path}: {head}"
            );
            assert_eq!(body, "", "{headers:?} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_needs_the_token_as_json() {
    let board = Board::scripted(&[]).await;
    let host = board.socket.to_string();
    let right = json!({"token": board.token}).to_string();
    let json_type = ("content-type", "application/json");
    let long = json!({"token": "x".repeat(100_000)}).to_string();
    for (kind, body) in [
        (json_type, r#"{"token":""}"#),
        (json_type, r#"{"token":"wrong"}"#),
        (json_type, "{}"),
        (json_type, ""),
        (json_type, &*long),
        // What a form or a script of another site can send without asking first.
        (("content-type", "text/plain"), &*right),
        (
            ("content-type", "application/x-www-form-urlencoded"),
            &*right,
        ),
    ] {
        let (head, answer) = http(&board, "POST", "/login", &[("host", &host), kind], body);
        assert_eq!(status(&head), "403", "{kind:?} {body:.60}");
        assert!(!head.contains("set-cookie") && answer.is_empty());
    }
    log_in(&board);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_need_the_token_or_the_cookie_with_origin_and_key() {
    let board = Board::scripted(&["writer"]).await;
    let (cookie, key) = log_in(&board);
    let origin = format!("http://{}", board.socket);
    let bearer = format!("Bearer {}", board.token);
    let key_as_token = format!("Bearer {key}");
    let refused: [&[(&'static str, &str)]; 7] = [
        &[],
        &[("authorization", "Bearer wrong")],
        &[("authorization", &key_as_token)],
        &[("origin", &origin)],
        &[("cookie", &cookie)],
        &[("cookie", &cookie), ("origin", "http://evil.example")],
        &[
            ("authorization", &bearer),
            ("origin", "http://evil.example"),
        ],
    ];
    for headers in refused {
        match connect(&board, headers).await {
            Err(Error::Http(response)) => {
                assert_eq!(response.status(), 403, "{headers:?}");
                assert!(response.body().as_ref().is_none_or(Vec::is_empty));
            }
            other => panic!("{headers:?}: {other:?}"),
        }
    }
    let page: [(&'static str, &str); 2] = [("cookie", &cookie), ("origin", &origin)];
    // The cookie alone, as another server on this machine could have got it, is not enough.
    for wrong in ["", "wrong", &*board.token] {
        let mut socket = connect(&board, &page).await.unwrap();
        send(&mut socket, &json!({"type": "open", "key": wrong})).await;
        let frame = futures_util::StreamExt::next(&mut socket)
            .await
            .unwrap()
            .unwrap();
        assert!(frame.is_close(), "{frame:?}");
    }
    let mut socket = connect(&board, &page).await.unwrap();
    send(&mut socket, &json!({"type": "open", "key": key})).await;
    assert_eq!(receive(&mut socket).await["type"], "hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_beyond_loopback_must_be_allowed() {
    use examples::board::{BoardServer, Hub};
    let listen = || BoardServer::builder(Hub::new("test")).listen("0.0.0.0:0".parse().unwrap());
    let refused = listen().bind().await.err().unwrap().to_string();
    assert!(refused.contains("other machines reach it"), "{refused}");
    assert!(listen().beyond_loopback().bind().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_the_page_and_its_two_doors_is_served() {
    let board = Board::scripted(&["secret_agent"]).await;
    let host = board.socket.to_string();
    let own = [("host", &*host)];
    for path in [
        "/index.html",
        "/page/board.js",
        "/../Cargo.toml",
        "/..%2f..%2fCargo.toml",
        "//etc/passwd",
        "/board.js/../../etc/passwd",
        "/%00",
        "/events/",
        "/login/x",
        "/board.css?../x",
        &format!("/?token={}", board.token),
    ] {
        let (head, body) = http(&board, "GET", path, &own, "");
        let is_page = path.starts_with("/?") || path.starts_with("/board.css?");
        let expected = if is_page { "200" } else { "404" };
        assert_eq!(status(&head), expected, "{path}: {head}");
        assert!(
            head.contains("content-security-policy: default-src 'none'"),
            "{path}: {head}"
        );
        // A token in the query is worth nothing.
        assert!(!head.contains("set-cookie"), "{path}: {head}");
        assert!(
            !body.contains("secret_agent") && !body.contains("root:x:"),
            "{path}"
        );
        assert!(is_page || body.is_empty(), "{path}: {body}");
    }
    for (method, path) in [
        ("POST", "/"),
        ("PUT", "/login"),
        ("DELETE", "/events"),
        ("GET", "/login"),
    ] {
        let (head, _) = http(&board, method, path, &own, "");
        assert_eq!(status(&head), "405", "{method} {path}: {head}");
    }
    // Not an upgrade, and an upgrade of another kind.
    let bearer = format!("Bearer {}", board.token);
    let upgrade = [
        ("host", &*host),
        ("authorization", &bearer),
        ("upgrade", "h2c"),
    ];
    let (head, body) = http(&board, "GET", "/events", &upgrade, "");
    assert!(
        status(&head).starts_with('4') && !body.contains("secret_agent"),
        "{head}"
    );
    // A header without an end, and a body that is longer than its limit.
    let long = "x".repeat(1 << 20);
    let mut stream = TcpStream::connect(board.socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let _ = stream.write_all(format!("GET / HTTP/1.1\r\nhost: {host}\r\nx: {long}").as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
}

/// Other users of the machine can connect, too.
#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_proof_end_and_do_not_keep_others_out() {
    let board = Board::with_unproved(2, Duration::from_secs(1)).await;
    let mut proved = Client::open(&board).await;
    let silent: Vec<TcpStream> = [
        "",
        "GET / HTTP/1.1\r\nhost: ",
        "POST /login HTTP/1.1\r\nhost: HOST\r\ncontent-length: 500\r\n\r\n{",
        "GET /events",
    ]
    .into_iter()
    .map(|begin| {
        let mut stream = TcpStream::connect(board.socket).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let begin = begin.replace("HOST", &board.socket.to_string());
        stream.write_all(begin.as_bytes()).unwrap();
        stream
    })
    .collect();
    // All places are taken. The page is served nevertheless, after the limit of the others.
    let is_served = || {
        let mut stream = TcpStream::connect(board.socket).unwrap();
        let request = format!(
            "GET / HTTP/1.1\r\nconnection: close\r\nhost: {}\r\n\r\n",
            board.socket
        );
        let mut answer = Vec::new();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_end(&mut answer);
        answer.starts_with(b"HTTP/1.1 200")
    };
    // Again, if a busy machine takes longer than the limit.
    assert!((0..10).any(|_| is_served()));
    for mut stream in silent {
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        let is_reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(ended.as_ref().map_or_else(is_reset, |_| true), "{ended:?}");
        assert!(!rest.starts_with(b"HTTP/1.1 200"));
    }
    // The client with the token is there longer than the limit, and counts for none.
    proved
        .ok(json!({"type": "messages", "before": 1, "limit": 1}))
        .await;
}
