//! What the scripted agents do.

use std::time::Duration;

use crate::scripted_agent::directive;

/// A step of a turn.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Wait(Duration),
    Print(&'static str, String),
    Say(String),
    /// A tool and its command.
    Ask(String, String),
    Claim(String),
    /// A class and a message.
    Fail(String, String),
    Hold,
    Die,
}

/// The steps that the directives of a message ask for.
pub(super) fn steps_of(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(line) = directive(text, "print") {
        steps.push(Step::Print("out", line.to_owned()));
    }
    if let Some(class) = directive(text, "fail") {
        let message = "the scripted agent was told to fail".to_owned();
        steps.push(Step::Fail(class.to_owned(), message));
    }
    if let Some(command) = directive(text, "ask") {
        steps.push(Step::Ask("Bash".to_owned(), command.to_owned()));
    }
    if let Some(answer) = directive(text, "say") {
        steps.push(Step::Say(answer.to_owned()));
    }
    if text.contains("[[hold]]") {
        steps.push(Step::Hold);
    }
    if text.contains("[[die]]") {
        steps.push(Step::Die);
    }
    steps
}

/// A task of the crew, told again and again.
#[derive(Clone, Copy)]
pub(super) struct Story;

/// Sender, receiver, text and what the receiver does.
type Part = (&'static str, &'static str, &'static str, Vec<Step>);

impl Story {
    /// Id, name, role and kind.
    pub(super) const AGENTS: [(&'static str, &'static str, &'static str, &'static str); 5] = [
        ("grand_boss", "Grand Boss", "leads", "claude-code"),
        (
            "middle_manager",
            "Middle Manager",
            "plans and delegates",
            "claude-code",
        ),
        ("coding", "Coding", "writes code and texts", "codex"),
        ("research", "Research", "reads and analyses", "gemini"),
        ("testing", "Testing", "tests", "opencode"),
    ];

    pub(super) fn round(self, number: u32) -> Vec<Part> {
        let wait = |ms| Step::Wait(Duration::from_millis(ms));
        let print = |stream, text: &str| Step::Print(stream, text.to_owned());
        let say = |text: &str| Step::Say(text.to_owned());
        let claim = |value: &str| Step::Claim(value.to_owned());
        let ask = |tool: &str, detail: &str| Step::Ask(tool.to_owned(), detail.to_owned());
        let mut parts: Vec<Part> = vec![
            (
                "user",
                "grand_boss",
                "Write a command that greets people and says which machine it runs on. Keep it small, and test it.",
                vec![
                    wait(900),
                    print(
                        "think",
                        "One deliverable, one test. The manager can split this.",
                    ),
                    wait(700),
                    say("Understood. I hand this to the Middle Manager and report back."),
                ],
            ),
            (
                "grand_boss",
                "middle_manager",
                "Please split this: a command `greet NAME` that prints a greeting and the host name. Small, tested, no dependencies.",
                vec![
                    wait(800),
                    print(
                        "think",
                        "Three parts: look at the workspace, write it, test it.",
                    ),
                    wait(800),
                    say(
                        "Plan:\n1. Research: which tools are in the workspace\n2. Coding: write greet.sh\n3. Testing: empty names, names with spaces",
                    ),
                ],
            ),
            (
                "middle_manager",
                "research",
                "What is in the workspace, and which shell may we rely on?",
                vec![
                    wait(500),
                    print("tool", "Bash: ls -la && readlink -f /bin/sh"),
                    wait(500),
                    print(
                        "out",
                        "total 12\ndrwx------ 2 dev dev 4096 .\n-rw-r--r-- 1 dev dev  312 README.md\n/usr/bin/dash",
                    ),
                    wait(900),
                    say(
                        "The workspace holds only README.md. /bin/sh is dash: use POSIX sh, no arrays and no [[ ]].",
                    ),
                ],
            ),
            (
                "middle_manager",
                "coding",
                "Write greet.sh in POSIX sh: `greet.sh NAME` prints `Hello, NAME, from HOST`. Without a name it greets the world.",
                vec![
                    wait(500),
                    claim("src/greet.sh"),
                    print("think", "printf, not echo: a name may begin with a dash."),
                    wait(900),
                    print("tool", "Write: src/greet.sh"),
                    print(
                        "out",
                        "#!/bin/sh\nset -eu\nprintf 'Hello, %s, from %s\\n' \"${1:-world}\" \"$(uname -n)\"",
                    ),
                    wait(700),
                    ask("Bash", "chmod +x src/greet.sh && src/greet.sh Ada"),
                    wait(500),
                    print("out", "Hello, Ada, from workbench"),
                    say(
                        "src/greet.sh is there: 3 lines, POSIX sh. `src/greet.sh Ada` prints `Hello, Ada, from workbench`.",
                    ),
                ],
            ),
            (
                "coding",
                "testing",
                "src/greet.sh is ready. Please test it with an empty name, a name with spaces and one that begins with a dash.",
                vec![
                    wait(600),
                    claim("tests/greet.bats"),
                    print("tool", "Bash: bats tests/greet.bats"),
                    wait(1_100),
                    print(
                        "out",
                        " ✓ greets the world without a name\n ✓ keeps spaces\n ✓ takes a name that begins with a dash\n\n3 tests, 0 failures",
                    ),
                    wait(400),
                    say("3 tests, 0 failures: no name, `Mary Ann`, `-n`."),
                ],
            ),
            (
                "middle_manager",
                "grand_boss",
                "greet.sh is written and tested: 3 lines, 3 tests, no dependencies.",
                vec![
                    wait(900),
                    say(
                        "Done: `src/greet.sh` greets people and names its machine. Written by Coding, tested by Testing (3 of 3).",
                    ),
                ],
            ),
        ];
        if number % 2 == 1 {
            let limit = "the provider refuses requests until its limit resets".to_owned();
            parts.insert(
                2,
                (
                    "middle_manager",
                    "research",
                    "Which greeting do other tools use?",
                    vec![
                        wait(400),
                        Step::Fail("limited".to_owned(), limit),
                        wait(1_200),
                        say("GNU hello prints `Hello, world!`. The limit was reached once; the second try worked."),
                    ],
                ),
            );
        }
        parts
    }
}
