//! The MCP server as a client uses it: JSON-RPC, one message a line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tmux_bus::vocabulary::Request;

use crate::sandbox::{SIGNALS, Sandbox, eventually, stdout, with_default_signals};

const TOOLS: [&str; 7] = ["ask", "wait", "post", "inbox", "status", "claim", "release"];

/// Two scripted agents, `a` and `b`, in panes. Dropping it stops them.
struct Cluster {
    sandbox: Sandbox,
}

impl Cluster {
    fn new() -> Self {
        let sandbox = Sandbox::with_tmux();
        let mut text =
            "cluster: { name: mcp, session_name: mcp, work_dir: \".\" }\nagents:\n".to_owned();
        for (index, name) in ["a", "b"].iter().enumerate() {
            text.push_str(&format!(
                "  - {{ name: {name}, role: x, personality_prompt_path: you.txt, \
                 marker: {name} OK, pane_index: {index}, timeout_s: 60 }}\n"
            ));
        }
        std::fs::write(sandbox.home().join("you.txt"), "a OK, b OK").unwrap();
        std::fs::write(sandbox.home().join("cluster.yaml"), text).unwrap();
        let cluster = Self { sandbox };
        cluster.ok(&["--agents", "scripted", "start"]);
        cluster
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let mut command = self.sandbox.example("cluster");
        command.args(["--config", "cluster.yaml"]).args(arguments);
        self.sandbox.ok(&mut command)
    }

    /// What the command prints for a verb.
    fn by_command(&self, arguments: &[&str]) -> Value {
        let mut command = self.sandbox.example("tmux-bus");
        command.args(["--config", "cluster.yaml", "--json"]);
        let output = self.sandbox.run(command.args(arguments));
        serde_json::from_str(&stdout(&output)).unwrap()
    }

    /// A server outside of all panes.
    fn client(&self) -> Client {
        let mut command = self.sandbox.example("mcp");
        command.args(["--config", "cluster.yaml"]);
        Client::start(&mut command)
    }

    /// A server that the agent `a` starts.
    fn client_in_pane(&self) -> Client {
        let home = self.sandbox.home();
        let pipes = [home.join("in"), home.join("out")];
        let made = Command::new("mkfifo").args(&pipes).status().unwrap();
        assert!(made.success());
        let server = self.sandbox.example("mcp");
        let server = server.get_program().to_str().unwrap();
        self.ok(&["send", "b", "a", &format!("[[tool {server} < in > out]]")]);
        let input = File::options().write(true).open(&pipes[0]).unwrap();
        Client::new(None, input, File::open(&pipes[1]).unwrap())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut command = self.sandbox.example("cluster");
        self.sandbox
            .run(command.args(["--config", "cluster.yaml", "stop"]));
    }
}

/// The client of a server.
struct Client {
    child: Option<Child>,
    input: Box<dyn Write>,
    lines: Receiver<Value>,
    last_id: u64,
}

impl Client {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self::new(Some(child), input, output)
    }

    fn new(
        child: Option<Child>,
        input: impl Write + 'static,
        output: impl Read + Send + 'static,
    ) -> Self {
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // A line that is no JSON ends the test.
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        let mut client = Self {
            child,
            input: Box::new(input),
            lines,
            last_id: 0,
        };
        let hello = client.request(
            "initialize",
            json!({
                "protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": {"name": "test", "version": "0"},
            }),
        );
        assert_eq!(hello["result"]["serverInfo"]["name"], "tmux-bus");
        assert!(hello["result"]["capabilities"]["tools"].is_object());
        client.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn write(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
        self.input.flush().unwrap();
    }

    #[track_caller]
    fn request(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let reply = self.lines.recv_timeout(Duration::from_secs(100)).unwrap();
            if reply["id"] == id {
                return reply;
            }
        }
    }

    /// The reply of a tool, and whether it is an error.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: Value) -> (Value, bool) {
        let params = json!({"name": tool, "arguments": arguments});
        let result = self.request("tools/call", params)["result"].take();
        let reply = result["structuredContent"].clone();
        // For clients that know texts only.
        let text = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), reply);
        (reply, result["isError"].as_bool().unwrap())
    }

    #[track_caller]
    fn ok(&mut self, tool: &str, arguments: Value) -> Value {
        let (reply, is_error) = self.call(tool, arguments);
        assert!(!is_error, "{reply}");
        assert_eq!(reply["verb"], tool);
        reply
    }

    /// The kind of the failure.
    #[track_caller]
    fn fails(&mut self, tool: &str, arguments: Value) -> String {
        let (reply, is_error) = self.call(tool, arguments);
        assert!(is_error, "{reply}");
        reply["error"]["kind"].as_str().unwrap().to_owned()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_tools_are_listed_and_mistakes_are_told() {
    let sandbox = Sandbox::new();
    let mut client = Client::start(&mut sandbox.example("mcp"));
    let tools = client.request("tools/list", json!({}))["result"]["tools"].take();
    let tools = tools.as_array().unwrap();
    let names: Vec<&str> = tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, TOOLS);
    assert_eq!(tools[0]["inputSchema"]["required"], json!(["to", "text"]));

    let unknown = client.request("tools/call", json!({"name": "explode", "arguments": {}}));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    // The sender is not an argument.
    let forged = json!({"to": "b", "text": "x", "from": "a"});
    let (reply, is_error) = client.call("ask", forged);
    assert!(is_error, "{reply}");
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(message.contains("unknown field `from`"), "{message}");
    let verb = json!({"verb": "status", "to": "b", "text": "x"});
    assert_eq!(client.fails("post", verb), "usage");
    // There is no cluster.
    assert_eq!(client.fails("status", json!({})), "usage");
}

/// A request with a value for each of these parameters of a tool.
fn request<'a>(
    tool: &Value,
    parameters: impl Iterator<Item = &'a str>,
) -> Result<Request, serde_json::Error> {
    let mut request = json!({"verb": tool["name"]});
    for name in parameters {
        let kind = &tool["inputSchema"]["properties"][name]["type"];
        request[name] = match kind.as_str().unwrap() {
            "string" => json!("x"),
            "boolean" => json!(true),
            _ => json!(1.5),
        };
    }
    serde_json::from_value(request)
}

#[test]
fn the_schemas_are_those_of_the_vocabulary() {
    let sandbox = Sandbox::new();
    let mut client = Client::start(&mut sandbox.example("mcp"));
    let tools = client.request("tools/list", json!({}))["result"]["tools"].take();
    for tool in &tools.as_array().unwrap()[..5] {
        let schema = &tool["inputSchema"];
        assert_eq!(schema["additionalProperties"], false);
        let all = schema["properties"].as_object().unwrap();
        let names = || all.keys().map(String::as_str);
        let required = schema["required"].as_array().unwrap();
        let required: Vec<&str> = required.iter().map(|it| it.as_str().unwrap()).collect();
        // The vocabulary has no parameter that the schema lacks.
        let full = serde_json::to_value(request(tool, names()).unwrap()).unwrap();
        assert_eq!(full.as_object().unwrap().len(), all.len() + 1, "{tool}");
        request(tool, required.iter().copied()).unwrap();
        for missing in &required {
            request(tool, names().filter(|name| name != missing)).unwrap_err();
        }
    }
}

#[test]
fn each_tool_replies_as_the_command_does() {
    let cluster = Cluster::new();
    let mut client = cluster.client();
    let mut status = client.ok("status", json!({}));
    assert_eq!(
        (&status["you"], &status["agents"][1]["name"]),
        (&json!("user"), &json!("b"))
    );
    let mut expected = cluster.by_command(&["status"]);
    for status in [&mut status, &mut expected] {
        for agent in status["agents"].as_array_mut().unwrap() {
            agent["last_activity_ms"].take();
        }
    }
    assert_eq!(status, expected);

    let ask = json!({"to": "b", "text": "[[say Fine.]]"});
    let asked = client.ok("ask", ask);
    assert_eq!(asked["state"], "answered", "{asked}");
    assert_eq!(asked["answer"], "Fine.\nb OK");
    assert_eq!(asked["from"], "user");
    let detached = json!({"to": "b", "text": "[[say Late.]]", "detach": true});
    let id = client.ok("ask", detached)["id"].take();
    assert_eq!(
        client.ok("wait", json!({"id": id}))["answer"],
        "Late.\nb OK"
    );
    let again = cluster.by_command(&["wait", id.as_str().unwrap()]);
    assert_eq!(client.ok("wait", json!({"id": id})), again);

    let nobody = json!({"to": "nobody", "text": "x"});
    assert_eq!(client.fails("ask", nobody.clone()), "not_found");
    let (told, _) = client.call("post", nobody);
    assert_eq!(told, cluster.by_command(&["post", "nobody", "x"]));
    // An ask without an answer is no success, as for the command.
    let crash = json!({"to": "b", "text": "[[crash]]"});
    assert_eq!(client.fails("ask", crash), "no_answer");

    let left = json!({"to": "a", "text": "[[tool touch heard]]"});
    assert_eq!(client.ok("post", left)["state"], "waiting");
    eventually("the message is delivered", || {
        cluster.sandbox.home().join("heard").exists()
    });
    // The agent has died: its inbox keeps the message.
    let kept = json!({"to": "b", "text": "later"});
    client.ok("post", kept);
    let inbox = client.ok("inbox", json!({"agent": "b"}));
    assert_eq!(inbox["waiting"][0]["text"], "later", "{inbox}");
    assert_eq!(inbox, cluster.by_command(&["inbox", "b"]));
    assert_eq!(client.fails("inbox", json!({})), "not_found");
}

#[test]
fn a_claim_belongs_to_the_agent_and_ends_with_its_server() {
    let cluster = Cluster::new();
    let mut user = cluster.client();
    let mut agent = cluster.client_in_pane();
    // The sender is proven by the pane.
    assert_eq!(agent.ok("status", json!({}))["you"], "a");
    let asked = agent.ok("ask", json!({"to": "b", "text": "[[say Yes.]]"}));
    assert_eq!(
        (&asked["from"], &asked["answer"]),
        (&json!("a"), &json!("Yes.\nb OK"))
    );

    let file = json!({"value": "src/parser.rs"});
    let claimed = agent.ok("claim", file.clone());
    assert_eq!(claimed["state"], "granted", "{claimed}");
    assert_eq!(
        agent.ok("claim", json!({"value": "src/lexer.rs"}))["state"],
        "granted"
    );
    let busy = user.ok("claim", file.clone());
    assert_eq!(
        (&busy["state"], &busy["holder"]),
        (&json!("busy"), &json!("a"))
    );
    assert_eq!(user.ok("release", file.clone())["state"], "not_held");
    assert_eq!(
        agent.ok("release", json!({"value": "src/lexer.rs"}))["state"],
        "released"
    );
    assert_eq!(
        user.ok("claim", json!({"value": "src/lexer.rs"}))["state"],
        "granted"
    );
    assert_eq!(user.fails("claim", json!({})), "failed");
    // Neither an endless value nor a path instead of an id.
    let long = json!({"value": "x".repeat(5000)});
    assert_eq!(agent.fails("claim", long.clone()), "failed");
    assert_eq!(agent.fails("release", long), "failed");
    let path = json!({"id": "../../../etc/passwd"});
    assert_eq!(agent.fails("wait", path), "not_found");

    let own = user.child.as_ref().unwrap().id().to_string();
    let servers = cluster.sandbox.processes();
    let servers = servers.iter().filter_map(|it| it.split_once(": "));
    let mut servers = servers.filter(|(pid, line)| *pid != own && line.contains("/examples/mcp"));
    // Not the shell that waits for it.
    let (pid, _) = servers.find(|(_, line)| !line.contains("sh -c")).unwrap();
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let wait = json!({"value": "src/parser.rs", "wait_s": 60});
    let taken = user.ok("claim", wait);
    assert_eq!(taken["state"], "granted", "{taken}");
    assert!(taken["token"].as_u64() > claimed["token"].as_u64());
}

#[test]
fn the_end_of_the_input_and_a_signal_end_the_server() {
    let sandbox = Sandbox::new();
    let mut client = Client::start(&mut sandbox.example("mcp"));
    client.input = Box::new(std::io::sink());
    let child = client.child.as_mut().unwrap();
    eventually("the server ends", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
    for signal in SIGNALS {
        let mut client = Client::start(&mut with_default_signals(&sandbox.example("mcp")));
        sandbox.ends_by(client.child.as_mut().unwrap(), signal);
    }
    sandbox.nothing_runs();
}
