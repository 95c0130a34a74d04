//! The page in a real browser.

use examples::board::{Ability, AgentChange, AgentState, Change};
use serde_json::json;

use crate::board::Board;
use crate::browser::{Browser, Tab};

/// The texts of answers: a prompt may contain the text of its answer.
pub(crate) const ANSWER: &str = ".msg:has(.kind.result) .body";

/// A tab on which the board is live.
pub(crate) async fn open(board: &Board) -> Tab {
    let tab = Browser::open().await.tab(&board.address).await;
    tab.shows("#link", "live").await;
    tab
}

pub(crate) async fn write(tab: &Tab, text: &str) {
    tab.click("#text").await;
    tab.type_text(text).await;
    tab.press("Enter").await;
    tab.until("document.getElementById('text').value === ''")
        .await;
}

/// Stops the chosen agent. The page asks twice within four seconds, for which a busy machine may be too slow:
/// the second press is one with the first if that is over.
pub(crate) async fn stop(tab: &Tab) {
    tab.click("[data-act=stop]").await;
    tab.eval("{ const stop = document.querySelector('[data-act=stop]'); if (!stop.classList.contains('sure')) stop.click(); stop.click(); }").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_appear_and_a_message_is_sent_and_answered() {
    let board = Board::scripted(&["writer", "reviewer"]).await;
    let tab = open(&board).await;
    tab.shows(".agent[data-agent=writer]", "idle").await;
    tab.shows(".agent[data-agent=reviewer]", "session opened")
        .await;
    tab.click(".agent[data-agent=reviewer]").await;
    tab.shows("#who", "reviewer").await;
    write(&tab, "Is it good?").await;
    tab.shows(".msg .body", "Is it good?").await;
    tab.shows(".msg .body", "done: Is it good?").await;
    tab.click("#tab-output").await;
    tab.shows("#output .text", "done: Is it good?").await;
    // A new agent comes while the page is open.
    let change = AgentChange::new("late").state(AgentState::Idle, "event", "opened");
    board.feed.push(change.can([Ability::Send]));
    tab.shows(".agent[data-agent=late] .name", "late").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_once_however_often_enter_is_pressed() {
    let board = Board::scripted(&["writer"]).await;
    let tab = open(&board).await;
    tab.click(".agent[data-agent=writer]").await;
    tab.click("#text").await;
    tab.type_text("once").await;
    // In one task of the page: no reply comes between the two.
    tab.eval("{ const form = document.getElementById('composer'); form.requestSubmit(); form.requestSubmit(); }")
        .await;
    tab.until("document.getElementById('text').value === ''")
        .await;
    // The agent takes its messages in their order.
    write(&tab, "last").await;
    tab.shows(ANSWER, "done: last").await;
    let tasks = "board.messages.filter((m) => m.kind === 'task').map((m) => m.text)";
    assert_eq!(tab.eval(tasks).await, json!(["once", "last"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_loses_nothing() {
    let board = Board::scripted(&["writer"]).await;
    for n in 1..=1_500 {
        board.message(n, &format!("old {n}"));
    }
    let tab = open(&board).await;
    tab.click(".agent[data-agent=writer]").await;
    write(&tab, "remember me [[ask make]]").await;
    tab.shows("#needs .ask pre", "make").await;
    tab.click("#text").await;
    tab.type_text("a draft").await;
    let seen = "[board.messages.length, board.messages.at(-1).text, board.seq, view.agent]";
    let before = tab.eval(seen).await;
    tab.reload().await;
    tab.until("document.body.dataset.complete === 'true'").await;
    assert_eq!(tab.eval(seen).await, before);
    assert_eq!(before[0], 1_501);
    tab.shows("#needs .ask pre", "make").await;
    tab.shows("#who", "writer").await;
    tab.until("document.getElementById('text').value === 'a draft'")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_scrolls_up_stays_there_and_sees_every_message() {
    let board = Board::scripted(&["writer"]).await;
    for n in 1..=1_000 {
        board.message(n, &format!("text {n}"));
    }
    let tab = open(&board).await;
    tab.shows(".msg .body", "text 1000").await;
    tab.until("document.body.dataset.complete === 'true'").await;
    // Up to the first message, row by row: none is missing, and few are in the document.
    let first = "document.querySelector('.msg')?.dataset.number === '1'";
    tab.eval("window.seen = new Set(); window.most = 0; (function look() { const rows = document.querySelectorAll('.msg'); window.most = Math.max(window.most, rows.length); for (const row of rows) window.seen.add(row.dataset.number); requestAnimationFrame(look); })()").await;
    while tab.eval(first).await != true {
        tab.wheel("#feed", -3_000).await;
    }
    tab.until("window.seen.size === 1000").await;
    assert_eq!(tab.eval("window.most <= 200").await, true);
    board.message(1_001, "new below");
    tab.shows("#latest", "1 new").await;
    assert_eq!(
        tab.eval("document.querySelector('.msg').dataset.number")
            .await,
        "1"
    );
    tab.click("#latest").await;
    tab.shows(".msg .body", "new below").await;
    tab.until("document.getElementById('latest').hidden").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_continues_without_a_gap() {
    let board = Board::scripted(&["writer"]).await;
    let tab = open(&board).await;
    board.message(1, "before");
    tab.shows(".msg .body", "before").await;
    // Held back: the page stays disconnected until the messages are sent.
    tab.eval("link.retry = 600000; window.kept = board.messages; link.socket.close()")
        .await;
    tab.shows("#link", "reconnecting").await;
    for n in 2..=100 {
        board.message(n, &format!("away {n}"));
    }
    tab.eval("link.connect()").await;
    tab.shows(".msg .body", "away 100").await;
    let numbers = tab.eval("board.messages.map((m) => m.number)").await;
    assert_eq!(numbers, json!((1..=100).collect::<Vec<u64>>()));
    // The same list: it was continued, not fetched again.
    assert_eq!(tab.eval("window.kept === board.messages").await, true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_is_denied_and_then_allowed() {
    let board = Board::scripted(&["writer"]).await;
    let tab = open(&board).await;
    tab.click(".agent[data-agent=writer]").await;
    for (decision, word) in [("deny", "denied"), ("allow", "allowed")] {
        write(&tab, &format!("please [[ask make {word}]]")).await;
        tab.shows("#needs .ask pre", &format!("make {word}")).await;
        tab.shows(".agent[data-agent=writer]", "needs you").await;
        tab.click(&format!("[data-answer={decision}]")).await;
        tab.shows(".msg .body", &format!("{word}: make {word}"))
            .await;
        tab.until("document.querySelectorAll('#needs .ask').length === 0")
            .await;
        tab.shows("#settled .class", word).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_tabs_the_first_answer_wins_and_the_other_is_told() {
    let board = Board::scripted(&["writer"]).await;
    let browser = Browser::open().await;
    let (one, two) = (
        browser.tab(&board.address).await,
        browser.tab(&board.address).await,
    );
    for tab in [&one, &two] {
        tab.shows("#link", "live").await;
    }
    one.click(".agent[data-agent=writer]").await;
    write(&one, "[[ask deploy]]").await;
    for tab in [&one, &two] {
        tab.shows("#needs .ask pre", "deploy").await;
    }
    // Both press before either page has heard of the other's answer.
    let hold =
        "window.take = link.take; window.held = []; link.take = (frame) => window.held.push(frame)";
    two.eval(hold).await;
    one.click("[data-answer=deny]").await;
    one.shows("#settled .class", "denied").await;
    two.click("[data-answer=allow]").await;
    two.until("window.held.some((frame) => frame.type === 'reply')")
        .await;
    two.eval("link.take = window.take; for (const frame of window.held) link.take(frame)")
        .await;
    two.shows("#toasts", "already denied by page").await;
    two.shows("#settled .class", "denied").await;
    one.shows(".msg .body", "denied: deploy").await;
}

/// A page that is hidden or covered gets no frames, also those that it has asked for before.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_without_frames_shows_what_waits_in_its_title() {
    let board = Board::scripted(&["writer"]).await;
    let tab = open(&board).await;
    tab.click(".agent[data-agent=writer]").await;
    tab.eval("window.requestAnimationFrame = () => 0").await;
    write(&tab, "[[ask deploy]]").await;
    tab.until("document.title.startsWith('(1)')").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_dies_is_started_again_from_the_page() {
    let board = Board::scripted(&["writer"]).await;
    let tab = open(&board).await;
    tab.click(".agent[data-agent=writer]").await;
    write(&tab, "[[die]]").await;
    tab.shows(".agent[data-agent=writer]", "exited").await;
    tab.shows("#failures", "exited").await;
    tab.click("[data-act=restart]").await;
    tab.shows(".agent[data-agent=writer]", "idle").await;
    tab.shows("#facts", "restarts").await;
    write(&tab, "back?").await;
    tab.shows(".msg .body", "done: back?").await;
    // A stop asks twice.
    let asks = "document.querySelector('[data-act=stop]').textContent === 'Really stop?'";
    let press = format!("document.querySelector('[data-act=stop]').click(); {asks}");
    assert_eq!(tab.eval(&press).await, true);
    tab.shows(".agent[data-agent=writer]", "idle").await;
    stop(&tab).await;
    tab.shows(".agent[data-agent=writer]", "stopped by the user")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_message_is_taken_back_and_a_turn_interrupted() {
    let board = Board::scripted(&["writer"]).await;
    let tab = open(&board).await;
    tab.click(".agent[data-agent=writer]").await;
    write(&tab, "[[hold]]").await;
    tab.shows(".agent[data-agent=writer]", "working").await;
    write(&tab, "later").await;
    tab.shows("#queue .sub", "later").await;
    tab.click("#queue .take-back").await;
    tab.until("document.querySelectorAll('#queue li').length === 0")
        .await;
    tab.click("[data-act=interrupt]").await;
    tab.shows(".msg .body", "interrupted").await;
    assert_eq!(
        tab.eval("board.messages.some((m) => m.text === 'later')")
            .await,
        false
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_may_have_a_turn_can_be_interrupted() {
    let board = Board::scripted(&["writer"]).await;
    let tab = open(&board).await;
    tab.click(".agent[data-agent=writer]").await;
    for (state, word, is_off) in [
        (AgentState::Limited, "limited", false),
        (AgentState::Idle, "idle", true),
        (AgentState::Unknown, "unknown", false),
    ] {
        let change = AgentChange::new("writer").state(state, "event", "told by the test");
        board.feed.push(change);
        tab.shows("#state .word", word).await;
        let interrupt = "document.querySelector('[data-act=interrupt]').disabled";
        assert_eq!(tab.eval(interrupt).await, is_off, "{word}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn markup_and_tricks_of_agents_stay_text() {
    const MARKUP: &str =
        "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script><b>bold</b>";
    let board = Board::scripted(&["writer"]).await;
    let tab = open(&board).await;
    let text = format!("{MARKUP} \u{1b}[31mred\u{1b}[0m a\u{202e}b");
    board.message(1, &text);
    tab.shows(".msg .body", MARKUP).await;
    tab.shows(".msg .body", "red a‹U+202E›b").await;
    let name = AgentChange {
        name: Some(MARKUP.to_owned()),
        ..AgentChange::new("<i>id</i>")
    };
    board.feed.push(
        name.state(AgentState::Idle, "event", MARKUP)
            .can([Ability::Send]),
    );
    board.feed.push(Change::Failure {
        agent: MARKUP.to_owned(),
        class: "agent".to_owned(),
        message: text,
        resets: None,
        at: None,
    });
    tab.shows(".agent .name", MARKUP).await;
    tab.shows("#failures .sub", MARKUP).await;
    tab.click(".agent[data-agent=writer]").await;
    write(
        &tab,
        &format!("[[print {MARKUP}\u{1b}[1m]] [[ask {MARKUP}]]"),
    )
    .await;
    tab.shows("#needs .ask pre", MARKUP).await;
    tab.click("#tab-output").await;
    tab.shows("#output .out", MARKUP).await;
    let found = tab.eval("document.querySelectorAll('img:not(.brand img), b b, .body *, #output div *, script:not([src])').length").await;
    assert_eq!(found, 0);
    assert_eq!(tab.eval("window.pwned").await, json!(null));
    // The policy itself: even a mistake of the page could not make markup of a text.
    let refused = tab.eval("(() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } })()").await;
    assert_eq!(refused, true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_gets_nothing() {
    let board = Board::scripted(&["secret_agent"]).await;
    board.message(1, "secret text");
    let wrong = format!("{}#token=wrong", board.bare_address());
    for address in [board.bare_address(), wrong] {
        let tab = Browser::open().await.tab(&address).await;
        tab.shows("#gate", "This page needs its link").await;
        let text = tab.eval("document.documentElement.innerHTML").await;
        assert!(!text.as_str().unwrap().contains("secret_agent"));
        assert!(!text.as_str().unwrap().contains("secret text"));
        assert_eq!(
            tab.eval("board.agents.size + board.messages.length").await,
            0
        );
        assert_eq!(
            tab.eval("document.cookie + (localStorage.getItem('board-key') ?? '')")
                .await,
            ""
        );
    }
    assert_eq!(board.hub.clients(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_leaves_the_address_and_scripts_cannot_read_the_cookie() {
    let board = Board::scripted(&["writer"]).await;
    let tab = open(&board).await;
    assert_eq!(tab.eval("location.href").await, json!(board.bare_address()));
    assert_eq!(tab.eval("document.cookie").await, "");
    assert_eq!(tab.eval("document.referrer").await, "");
    let kept = tab
        .eval("JSON.stringify([localStorage, sessionStorage, history.state])")
        .await;
    assert!(!kept.as_str().unwrap().contains(&board.token));
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_by_keyboard() {
    let board = Board::scripted(&["writer", "reviewer"]).await;
    let tab = open(&board).await;
    tab.shows(".agent[data-agent=reviewer]", "idle").await;
    tab.press("j").await;
    tab.shows("#who", "writer").await;
    tab.press("ArrowDown").await;
    tab.shows("#who", "reviewer").await;
    tab.press("m").await;
    tab.type_text("by keys [[ask make]]").await;
    tab.press("Enter").await;
    tab.shows("#needs .ask pre", "make").await;
    tab.press("Escape").await;
    tab.press("p").await;
    tab.until("document.activeElement.matches('#needs pre')")
        .await;
    tab.press("Tab").await;
    tab.until("document.activeElement.dataset.answer === 'deny'")
        .await;
    // The focus is visible.
    let outline = tab
        .eval("getComputedStyle(document.activeElement).outlineStyle")
        .await;
    assert_eq!(outline, "solid");
    tab.press("Tab").await;
    tab.press("Enter").await;
    tab.shows(".msg .body", "allowed: make").await;
    tab.press("o").await;
    tab.shows("#output .text", "allowed: make").await;
    tab.press("?").await;
    tab.until("document.getElementById('keys').open").await;
    tab.press("Escape").await;
    tab.until("!document.getElementById('keys').open").await;
    tab.press("0").await;
    tab.shows("#who", "All agents").await;
    tab.press("/").await;
    tab.until("document.activeElement.id === 'find'").await;
    // Every control has a name for screen readers.
    let nameless = "[...document.querySelectorAll('button, input, select, textarea, [role=meter], [role=img]')].filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)";
    assert_eq!(tab.eval(nameless).await, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phone_shows_one_pane_at_a_time_and_nothing_is_cut() {
    let board = Board::scripted(&["writer"]).await;
    let tab = Browser::open().await.tab("about:blank").await;
    tab.screen(390, 844, "dark").await;
    tab.go(&board.address).await;
    tab.shows("#link", "live").await;
    tab.click(".bottom [data-pane=agents]").await;
    tab.click(".agent[data-agent=writer]").await;
    // The choice of an agent leads to its messages.
    write(&tab, "from the phone [[ask make]]").await;
    tab.shows("#b-needs", "1").await;
    tab.click(".bottom [data-pane=side]").await;
    tab.click("[data-answer=allow]").await;
    tab.click(".bottom [data-pane=main]").await;
    tab.shows(".msg .body", "allowed: make").await;
    let wide = tab
        .eval("document.documentElement.scrollWidth > innerWidth")
        .await;
    assert_eq!(wide, false);
    let small = "[...document.querySelectorAll('.bottom button, #send, .tabs button')].filter((e) => e.getBoundingClientRect().height < 44).length";
    assert_eq!(tab.eval(small).await, 0);
    let dark = tab
        .eval("getComputedStyle(document.body).backgroundColor")
        .await;
    assert_eq!(dark, "rgb(15, 17, 20)");
}
