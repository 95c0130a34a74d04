//! How the page looks: nothing is cut, and all text can be read. With `BOARD_SCREENSHOTS=DIR`, the
//! pictures of the demo.

use std::sync::Arc;

use examples::board::sources::ScriptedSource;
use examples::board::{Budget, Change};
use serde_json::json;

use crate::board::Board;
use crate::browser::Browser;

/// Text that is in view and has less than the contrast that WCAG AA asks for.
const FAINT_TEXT: &str = "(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const part = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b); };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || !e.checkVisibility() || e.closest(':disabled, svg, [aria-hidden=true], .hidden, .skip, dialog')) continue;
    const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${e.tagName}.${e.className} ${ratio.toFixed(2)}: ${e.textContent.slice(0, 30)}`);
  }
  return bad;
})()";

/// The page has drawn itself, and no colour is on its way.
const DRAWN: &str = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))).then(() => Promise.allSettled(document.getAnimations().filter((a) => a instanceof CSSTransition).map((a) => a.finished))).then(() => true)";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_cut_and_all_text_can_be_read_in_every_size_and_scheme() {
    let board = Board::of(Arc::new(ScriptedSource::story())).await;
    board.feed.push(Change::Budget(Budget {
        cost_usd: Some(0.5),
        ..Budget::default()
    }));
    board.feed.push(Change::Failure {
        agent: "research".to_owned(),
        class: "limited".to_owned(),
        message: "the provider refuses requests".to_owned(),
        resets: None,
        at: None,
    });
    board.feed.push(Change::Failure {
        agent: "coding".to_owned(),
        class: "agent".to_owned(),
        message: "the answer is not complete".to_owned(),
        resets: None,
        at: None,
    });
    let tab = Browser::open().await.tab(&board.address).await;
    tab.shows("#link", "live").await;
    tab.shows(".msg .body", "I hand this to the Middle Manager")
        .await;
    if std::env::var_os("BOARD_SCREENSHOTS").is_some() {
        tab.shows("#needs .ask pre", "greet.sh").await;
    }
    let mut found = Vec::new();
    for (name, width, height, scheme) in [
        ("light", 1440, 900, "light"),
        ("dark", 1440, 900, "dark"),
        ("tablet", 900, 1100, "light"),
        ("phone-light", 390, 844, "light"),
        ("phone-dark", 390, 844, "dark"),
    ] {
        tab.screen(width, height, scheme).await;
        for pane in ["main", "side", "agents"] {
            tab.eval(&format!("showPane('{pane}')")).await;
            tab.eval(DRAWN).await;
            let faint = tab.eval(FAINT_TEXT).await;
            if faint != json!([]) {
                found.push(format!("{name} {pane}: {faint}"));
            }
            let wide = tab
                .eval("[document.documentElement.scrollWidth, innerWidth]")
                .await;
            assert!(
                wide[0].as_u64() <= wide[1].as_u64(),
                "{name} {pane}: {wide}"
            );
            let cut = "[...document.querySelectorAll('.agents, .side, #feed, #output')].filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth).map((e) => e.className)";
            assert_eq!(tab.eval(cut).await, json!([]), "{name} {pane}");
            match (width < 1100, pane) {
                (false, "main") => tab.screenshot(name).await,
                (true, _) => tab.screenshot(&format!("{name}-{pane}")).await,
                _ => {}
            }
        }
    }
    for scheme in ["light", "dark"] {
        tab.screen(1440, 900, scheme).await;
        tab.eval("showPane('main'); select('research'); showTab('output')")
            .await;
        tab.until("document.querySelector('#output div')").await;
        tab.eval(DRAWN).await;
        let faint = tab.eval(FAINT_TEXT).await;
        if faint != json!([]) {
            found.push(format!("output {scheme}: {faint}"));
        }
        tab.screenshot(&format!("output-{scheme}")).await;
    }
    assert_eq!(found, Vec::<String>::new(), "too faint");
}

/// Takes the pictures of a board that runs already, while its agents are at work.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the address of a running board in BOARD_ADDRESS; `scripts/pictures` runs it"]
async fn picture_of_a_running_board() {
    let address = std::env::var("BOARD_ADDRESS").expect("BOARD_ADDRESS is not set");
    let tab = Browser::open().await.tab(&address).await;
    tab.screen(1440, 900, "light").await;
    tab.shows("#link", "live").await;
    // In the middle of the work: two agents work, another one asks.
    tab.until("document.querySelector('#needs .ask') && document.querySelectorAll('.agent[data-state=working]').length > 1")
        .await;
    for scheme in ["light", "dark"] {
        tab.screen(1440, 900, scheme).await;
        tab.eval(DRAWN).await;
        tab.screenshot(&format!("board-{scheme}")).await;
    }
}
