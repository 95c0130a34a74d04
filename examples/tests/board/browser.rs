//! A real browser, driven by the DevTools protocol: no driver program of the right version is needed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::tungstenite::Message;

/// Generous: a shared machine may start a browser slowly.
const LIMIT: Duration = Duration::from_secs(60);
/// A condition is polled: the page may be between two documents, where nothing can be awaited.
const POLL: Duration = Duration::from_millis(15);

const PROGRAMS: [&str; 5] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
];

/// The browser of all tests of this process.
struct Process {
    address: String,
    _shell: Child,
}

/// The address of the browser. It is started once; each test has a context (cookies, storage) of
/// its own. A shell ends the browser when this process ends, however it ends: its standard input is
/// a pipe from here.
fn browser() -> &'static str {
    static BROWSER: OnceLock<Process> = OnceLock::new();
    &BROWSER.get_or_init(start).address
}

fn start() -> Process {
    let program = PROGRAMS.iter().find(|program| examples::on_path(program));
    let program = program.unwrap_or_else(|| {
        panic!("this test needs Chromium or Chrome: `./scripts/setup chromium` installs it")
    });
    let profile = tempfile::tempdir().unwrap().keep();
    let script = r#"folder=$1; shift; "$@" & browser=$!; cat >/dev/null; kill $browser; wait $browser; rm -rf "$folder""#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(&profile).arg(program);
    shell.args([
        "--headless=new",
        "--remote-debugging-port=0",
        "--no-first-run",
        "--no-default-browser-check",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-dev-shm-usage",
        "--disable-extensions",
        "--disable-sync",
        "--password-store=basic",
        "--enable-precise-memory-info",
    ]);
    if rustix::process::getuid().is_root() {
        // The sandbox of the browser refuses root; it only sees our own page.
        shell.arg("--no-sandbox");
    }
    shell.arg(format!("--user-data-dir={}", profile.display()));
    shell.arg("about:blank");
    let shell = shell
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let port_file = profile.join("DevToolsActivePort");
    let began = Instant::now();
    let (port, path) = loop {
        let text = std::fs::read_to_string(&port_file).unwrap_or_default();
        if let Some((port, path)) = text.split_once('\n')
            && path.starts_with('/')
        {
            break (port.to_owned(), path.trim().to_owned());
        }
        assert!(began.elapsed() < LIMIT, "{program} did not start");
        std::thread::sleep(POLL);
    };
    Process {
        address: format!("ws://127.0.0.1:{port}{path}"),
        _shell: shell,
    }
}

/// A window with cookies and storage of its own. Dropping it closes the connection; the context
/// ends with the browser.
#[derive(Clone)]
pub(crate) struct Browser {
    calls: mpsc::UnboundedSender<Call>,
    context: String,
}

struct Call {
    frame: Value,
    answer: oneshot::Sender<Value>,
}

impl Browser {
    pub(crate) async fn open() -> Self {
        let address = tokio::task::spawn_blocking(browser).await.unwrap();
        let (socket, _) = tokio_tungstenite::connect_async(address).await.unwrap();
        let (mut sink, mut stream) = socket.split();
        let (calls, mut queue) = mpsc::unbounded_channel::<Call>();
        let waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>> = Arc::default();
        let answers = waiting.clone();
        tokio::spawn(async move {
            while let Some(call) = queue.recv().await {
                let id = call.frame["id"].as_u64().unwrap();
                waiting.lock().unwrap().insert(id, call.answer);
                if sink
                    .send(Message::text(call.frame.to_string()))
                    .await
                    .is_err()
                {
                    return;
                }
            }
        });
        tokio::spawn(async move {
            while let Some(Ok(frame)) = stream.next().await {
                let Message::Text(text) = frame else { continue };
                let frame: Value = serde_json::from_str(&text).unwrap();
                let waiter = frame["id"]
                    .as_u64()
                    .and_then(|id| answers.lock().unwrap().remove(&id));
                if let Some(waiter) = waiter {
                    let _ = waiter.send(frame);
                }
            }
        });
        let mut browser = Self {
            calls,
            context: String::new(),
        };
        let context = browser
            .call("", "Target.createBrowserContext", json!({}))
            .await;
        browser.context = context["browserContextId"].as_str().unwrap().to_owned();
        browser
    }

    /// A new tab at this address, 1280 x 800, light.
    pub(crate) async fn tab(&self, address: &str) -> Tab {
        let target = json!({"url": "about:blank", "browserContextId": self.context});
        let target = self.call("", "Target.createTarget", target).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.call("", "Target.attachToTarget", attach).await;
        let tab = Tab {
            browser: self.clone(),
            session: session["sessionId"].as_str().unwrap().to_owned(),
        };
        tab.call("Page.enable", json!({})).await;
        tab.screen(1280, 800, "light").await;
        tab.go(address).await;
        tab
    }

    async fn call(&self, session: &str, method: &str, parameters: Value) -> Value {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut frame = json!({"id": id, "method": method, "params": parameters});
        if !session.is_empty() {
            frame["sessionId"] = json!(session);
        }
        let (answer, answered) = oneshot::channel();
        self.calls.send(Call { frame, answer }).unwrap();
        let answer = tokio::time::timeout(LIMIT, answered).await;
        let mut answer = answer
            .expect("the browser hangs")
            .expect("the browser is gone");
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].take()
    }
}

/// A tab of the browser.
pub(crate) struct Tab {
    browser: Browser,
    session: String,
}

impl Tab {
    pub(crate) async fn call(&self, method: &str, parameters: Value) -> Value {
        self.browser.call(&self.session, method, parameters).await
    }

    /// The ids of the browser's processes of this type.
    pub(crate) async fn processes(&self, kind: &str) -> Vec<u32> {
        let all = self
            .browser
            .call("", "SystemInfo.getProcessInfo", json!({}))
            .await;
        let all = all["processInfo"].as_array().unwrap().iter();
        let ours = all.filter(|process| process["type"] == kind);
        let ids = ours.filter_map(|process| u32::try_from(process["id"].as_u64()?).ok());
        ids.collect()
    }

    pub(crate) async fn go(&self, address: &str) {
        self.call("Page.navigate", json!({"url": address})).await;
    }

    /// Loads the page again; returns when the old document is gone.
    pub(crate) async fn reload(&self) {
        self.eval("window.old = true").await;
        self.call("Page.reload", json!({})).await;
        self.until("window.old === undefined && document.readyState === 'complete'")
            .await;
    }

    /// The size of the window and the preferred colours.
    pub(crate) async fn screen(&self, width: u32, height: u32, scheme: &str) {
        let phone = width < 600;
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": if phone { 2 } else { 1 }, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", metrics)
            .await;
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}))
            .await;
    }

    /// The value of an expression.
    pub(crate) async fn eval(&self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut result = self.call("Runtime.evaluate", parameters).await;
        let failure = &result["exceptionDetails"];
        assert!(failure.is_null(), "{expression}: {failure}");
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, condition: &str) {
        let began = Instant::now();
        let guarded =
            format!("(() => {{ try {{ return !!({condition}); }} catch {{ return false; }} }})()");
        loop {
            let parameters = json!({"expression": guarded, "returnByValue": true});
            let result = self.call("Runtime.evaluate", parameters).await;
            if result["result"]["value"] == true {
                return;
            }
            if began.elapsed() > LIMIT {
                let text = self.eval("document.body.innerText").await;
                panic!(
                    "never true: {condition}\n{}",
                    text.as_str().unwrap_or_default()
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until an element shows this text.
    pub(crate) async fn shows(&self, selector: &str, text: &str) {
        let (selector, text) = (json!(selector), json!(text));
        let found = format!(
            "[...document.querySelectorAll({selector})].some((e) => e.textContent.includes({text}) && e.checkVisibility())"
        );
        self.until(&found).await;
    }

    /// Clicks the middle of an element with the mouse, until the element gets it: the layout can change
    /// between the look at its place and the press.
    pub(crate) async fn click(&self, selector: &str) {
        let quoted = json!(selector);
        let began = Instant::now();
        loop {
            self.until(&format!("document.querySelector({quoted})?.checkVisibility() && !document.querySelector({quoted}).disabled")).await;
            self.eval(&format!("window.clicked = false; document.querySelector({quoted})?.addEventListener('click', () => window.clicked = true, {{capture: true, once: true}})")).await;
            let place = self.middle(selector).await;
            for kind in ["mousePressed", "mouseReleased"] {
                let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
                self.call("Input.dispatchMouseEvent", event).await;
            }
            if self.eval("window.clicked").await == true {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{selector} gets no click");
        }
    }

    /// Turns the wheel over an element; negative is up.
    pub(crate) async fn wheel(&self, selector: &str, by: i64) {
        let place = self.middle(selector).await;
        let event =
            json!({"type": "mouseWheel", "x": place[0], "y": place[1], "deltaX": 0, "deltaY": by});
        self.call("Input.dispatchMouseEvent", event).await;
    }

    async fn middle(&self, selector: &str) -> Value {
        let quoted = json!(selector);
        let place = format!(
            "(() => {{ const e = document.querySelector({quoted}); e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        );
        self.eval(&place).await
    }

    /// Types into the focused element.
    pub(crate) async fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Presses a key: a letter, a digit, `Enter`, `Tab`, …
    pub(crate) async fn press(&self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            "Escape" => (27, ""),
            "ArrowDown" => (40, ""),
            "ArrowUp" => (38, ""),
            "ArrowRight" => (39, ""),
            "Shift" => (16, ""),
            letter => (u32::from(letter.to_ascii_uppercase().as_bytes()[0]), letter),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Writes a picture to the folder that `BOARD_SCREENSHOTS` names, if it names one.
    pub(crate) async fn screenshot(&self, name: &str) {
        let Some(folder) = std::env::var_os("BOARD_SCREENSHOTS") else {
            return;
        };
        let picture = self
            .call("Page.captureScreenshot", json!({"format": "png"}))
            .await;
        let picture = picture["data"].as_str().unwrap();
        let path = PathBuf::from(folder).join(format!("{name}.png"));
        std::fs::write(path, decode_base64(picture)).unwrap();
    }
}

/// Enough of base64 for a picture of the browser.
fn decode_base64(text: &str) -> Vec<u8> {
    let digits = text.bytes().filter_map(|byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    });
    let digits: Vec<u8> = digits.collect();
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits = group
            .iter()
            .fold(0, |bits: u32, digit| bits << 6 | u32::from(*digit));
        let bits = bits << (6 * (4 - group.len()));
        let bytes = bits.to_be_bytes();
        out.extend_from_slice(&bytes[1..group.len()]);
    }
    out
}
