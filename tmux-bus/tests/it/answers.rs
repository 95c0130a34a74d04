//! Answers are found whole, and nothing else is taken for an answer.

use std::time::Duration;

use tmux_bus::{AnswerEnd, Error, Launch, PaneId, ResponseOptions};

use crate::pane_program::{MARKER, Program, launch};
use crate::support::{LONG, TestDir, TestServer, builder, literal};

const ALL: [Program; 4] = [
    Program::Lines,
    Program::Raw,
    Program::RawPlain,
    Program::Screen,
];

async fn open(server: &TestServer, program: Program) -> PaneId {
    let pane = server.open_pane(&launch(program)).await.unwrap();
    server.shows(pane, ">");
    pane
}

/// Asks without getting an answer. The timeout is long enough for a false answer to be found.
async fn no_answer(server: &TestServer, pane: PaneId, message: &str) -> Error {
    let options = ResponseOptions::default().timeout(Duration::from_millis(700));
    let error = server
        .ask_with(pane, message, &options)
        .await
        .expect_err(message);
    assert!(matches!(error, Error::ResponseTimeout { .. }), "{error:?}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_quiet_time_ends_with_the_program() {
    let server = TestServer::start().await;
    let program = Launch::new("printf '> '; read -r line; echo got $line; echo TEST OK");
    let pane = server.open_pane(&program).await.unwrap();
    server.shows(pane, ">");
    let options = ResponseOptions::default().timeout(LONG);
    let options = options.end(AnswerEnd::Quiet(Duration::MAX));
    let answer = server.ask_with(pane, "it", &options).await.unwrap();
    assert_eq!(answer, "got it\nTEST OK");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_is_answered() {
    let server = TestServer::start().await;
    for program in ALL {
        let pane = open(&server, program).await;
        let answer = server.ask(pane, "hello").await.unwrap();
        assert_eq!(answer, "got 5 bytes\nTEST OK", "{program:?}");
        let answer = server
            .ask_with(pane, "hello again", &literal())
            .await
            .unwrap();
        assert_eq!(answer, "got 11 bytes\nTEST OK", "{program:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_answer_on_the_screen_does_not_count() {
    let server = TestServer::start().await;
    for program in ALL {
        let pane = open(&server, program).await;
        server.ask_with(pane, "hello", &literal()).await.unwrap();
        no_answer(&server, pane, "silent").await;
        // The next answer is found anyway.
        let answer = server.ask_with(pane, "hello", &literal()).await.unwrap();
        assert_eq!(answer, "got 5 bytes\nTEST OK", "{program:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_echo_of_a_message_that_quotes_the_marker_does_not_count() {
    let server = TestServer::start().await;
    for program in ALL {
        let pane = open(&server, program).await;
        no_answer(
            &server,
            pane,
            "silent please, although TEST OK is what you would say",
        )
        .await;
        no_answer(&server, pane, "silent until the end, TEST OK").await;
        let answer = server
            .ask_with(pane, "say fine\\nTEST OK", &literal())
            .await
            .unwrap();
        assert!(answer.ends_with("fine\nTEST OK"), "{program:?}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_marker_inside_another_word_does_not_count() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    no_answer(&server, pane, "say CONTEST OK").await;
    no_answer(&server, pane, "say TEST OKAY").await;
    // The program pauses inside the word.
    no_answer(&server, pane, "pieces a TEST OK|AY then").await;
    let pane = open(&server, Program::Screen).await;
    no_answer(&server, pane, "pieces a TE|ST OK|AY then").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_marker_is_found_however_it_is_drawn() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Raw).await;
    // The message itself must not have the marker, so that only the drawing can be found.
    for (i, (way, drawing)) in [
        ("first line", "T\\e[0mEST OK\\nand more"),
        ("coloured", "\\e[1;32mTEST\\e[0m \\e[4mOK\\e[0m"),
        ("cursor forward for a space", "TEST\\e[1COK"),
        ("split over two lines", "TEST\\nOK"),
        ("split in a word", "TE\\nST OK"),
        ("after a return", "xxxx\\rT\\e[0mEST OK"),
        ("with a title between", "TEST\\e]0;title\\b OK"),
        ("by columns", "\\e[1G\\e[KTEST\\e[6GOK"),
        ("by positions", "\\e[2J\\e[3;5HTEST\\e[3;10HOK"),
        ("letters before words", "\\e[2J\\e[3;10HOK\\e[3;5HTEST"),
        ("a part is drawn later", "\\e[2J\\e[3;5HTEST ??\\e[3;10HOK"),
        (
            "bottom up",
            "\\e[2J\\e[5;1Hlast\\e[4;1HT\\e[0mEST OK\\e[6;1H",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        // A clean screen: of two markers without context the new one cannot be determined.
        drop(
            server
                .pane_io()
                .send_message(pane, &format!("say \\e[2J\\e[Hclean {i}"))
                .await
                .unwrap(),
        );
        server.shows(pane, &format!("clean {i}\n"));
        let found = server
            .ask_with(pane, &format!("say {drawing}"), &literal())
            .await;
        assert!(found.is_ok(), "{way}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_after_the_marker_belongs_to_the_answer_by_default() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    let message = "pieces T\\e[0mEST OK first\\n|second\\n|third\\n";
    assert_eq!(
        server.ask(pane, message).await.unwrap(),
        "TEST OK first\nsecond\nthird"
    );
    assert_eq!(
        server.ask_with(pane, message, &literal()).await.unwrap(),
        "TEST OK first"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_a_hundred_thousand_lines_is_whole() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    // The marker is in the middle: on a loaded machine the program can pause for 300 ms after it.
    let quiet = AnswerEnd::Quiet(Duration::from_secs(3));
    let options = ResponseOptions::default().timeout(LONG).end(quiet);
    let answer = server.ask_with(pane, "flood 100000", &options).await;
    let answer = answer.unwrap();
    let mut lines = answer.lines();
    for i in 0..100_000 {
        if i == 50_000 {
            assert_eq!(lines.next(), Some(MARKER));
        }
        assert_eq!(
            lines.next().unwrap(),
            format!("line {i} {}", "あ🎌x".repeat(8))
        );
    }
    assert_eq!(lines.next(), None);
}

/// Each piece is shorter than the limit, and is read before the next one is printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_grows_past_the_limit_after_its_marker_is_an_error() {
    let dir = TestDir::new();
    let server = builder(&dir).max_answer(10_000).start().await.unwrap();
    let server = TestServer::from(server, dir);
    let program = "printf '> '; read -r line; echo TEST OK; for i in 1 2 3; do \
        head -c 6000 /dev/zero | tr '\\0' x; echo; sleep 0.6; done; printf '> '; exec cat";
    let pane = server.open_pane(&Launch::new(program)).await.unwrap();
    server.shows(pane, ">");
    let length = server.ask(pane, "go").await.map(|answer| answer.len());
    let error = length.unwrap_err();
    assert!(matches!(error, Error::AnswerTooLong { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_looks_like_a_prompt_stays_in_the_answer() {
    let server = TestServer::start().await;
    for program in ALL {
        let pane = open(&server, program).await;
        let message = "say # heading\\n> a quote\\n$ cargo test\\nT\\e[0mEST OK";
        let answer = server.ask(pane, message).await.unwrap();
        assert_eq!(
            answer, "# heading\n> a quote\n$ cargo test\nTEST OK",
            "{program:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_the_terminal_wraps_is_one_line() {
    let server = TestServer::start().await;
    for program in [Program::Lines, Program::Raw] {
        let pane = open(&server, program).await;
        let long = "0123456789".repeat(50);
        let answer = server
            .ask(pane, &format!("say {long}\\nT\\e[0mEST OK"))
            .await
            .unwrap();
        assert_eq!(answer, format!("{long}\nTEST OK"), "{program:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_just_before_the_exit_is_seen() {
    let rounds: usize = std::env::var("TMUX_BUS_ROUNDS").map_or(5, |n| n.parse().unwrap());
    let server = TestServer::start().await;
    // A session ends with its last pane: keep one open.
    open(&server, Program::Lines).await;
    for round in 0..rounds {
        let pane = open(&server, Program::Lines).await;
        let answer = server.ask(pane, "last 300").await.unwrap();
        assert_eq!(answer.len(), 300 * 10 * 99 + MARKER.len(), "round {round}");
        assert!(answer.ends_with(MARKER));
        server.tmux(&["kill-pane", "-t", &pane.to_string()]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_has_the_text_of_the_specification_and_the_partial_answer() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    let error = no_answer(&server, pane, "say half of it").await;
    assert_eq!(
        error.to_string(),
        format!(
            "no answer from pane {pane} within 700ms: \
             合言葉 'TEST OK' がタイムアウトまでに検出されませんでした"
        )
    );
    assert_eq!(error.partial(), Some("half of it"));
    assert!(
        !format!("{error:?}").contains("half"),
        "Debug must not show the text of answers"
    );
    assert!(error.is_timeout());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_over_the_limit_is_an_error_with_the_beginning() {
    let dir = TestDir::new();
    let server = builder(&dir).max_answer(200_000).start().await.unwrap();
    let server = TestServer::from(server, dir);
    let pane = open(&server, Program::Lines).await;
    let error = server.ask(pane, "flood 100000").await.unwrap_err();
    assert!(
        matches!(error, Error::AnswerTooLong { limit: 200_000, .. }),
        "{error:?}"
    );
    assert!(error.partial().unwrap().starts_with("line 0 "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_found_while_other_panes_flood() {
    let server = TestServer::start().await;
    let mut panes = Vec::new();
    for _ in 0..12 {
        panes.push(open(&server, Program::Lines).await);
    }
    let io = server.pane_io();
    for &pane in &panes[..8] {
        drop(io.send_message(pane, "run yes 0123456789").await.unwrap());
    }
    let asking = panes[8..].iter().map(|&pane| {
        let io = io.clone();
        tokio::spawn(async move {
            for i in 0..10 {
                let message = format!("say {i}\\nTE\\e[0mST OK");
                let sent = io.send_message(pane, &message).await.unwrap();
                let answer = io.get_response_with(sent, MARKER, &literal()).await;
                assert_eq!(answer.unwrap(), format!("{i}\nTEST OK"));
            }
        })
    });
    for task in asking.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Asks, and expects an error that says that the answer is not complete, with the text of the screen.
async fn incomplete(server: &TestServer, pane: PaneId, message: &str) -> String {
    let error = server.ask(pane, message).await.expect_err(message);
    assert!(
        matches!(error, Error::AnswerIncomplete { .. }),
        "{message}: {error:?}"
    );
    error.partial().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_whose_beginning_left_the_alternate_screen_is_an_error() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Screen).await;
    for lines in [40, 300] {
        let screen = incomplete(&server, pane, &format!("later {lines}")).await;
        assert!(
            screen.contains(&format!("line {}\n", lines - 1)),
            "{screen}"
        );
        assert!(!screen.contains("line 0\n"), "{screen}");
    }
    // A shorter one is whole.
    assert_eq!(
        server.ask(pane, "later 3").await.unwrap(),
        "line 0\nline 1\nline 2\nTEST OK"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cleared_screen_gives_the_whole_answer_or_an_error() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Raw).await;
    // Older lines in the scroll-back must not make the new ones look old.
    server.ask(pane, "flood 2000").await.unwrap();
    let answer = server.ask(pane, "wipe 300").await.unwrap();
    let lines: Vec<_> = answer.lines().collect();
    assert_eq!(lines.len(), 301, "{answer}");
    assert_eq!(
        (lines[0], lines[299], lines[300]),
        ("line 0", "line 299", MARKER)
    );
    let screen = incomplete(&server, pane, "halves").await;
    assert!(screen.contains("the second half"), "{screen}");
    incomplete(&server, pane, "vanish").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_do_not_cut_the_answer_of_a_program_with_a_prompt() {
    let server = TestServer::start().await;
    for program in [Program::Lines, Program::Raw, Program::RawPlain] {
        let pane = open(&server, program).await;
        for (message, expected) in [
            (
                "pauses T\\e[0mEST OK first\\n|second\\n|third\\n",
                "TEST OK first\nsecond\nthird",
            ),
            (
                "pauses I will say T\\e[0mEST OK when done\\n|work\\n|T\\e[0mEST OK\\n",
                "I will say TEST OK when done\nwork\nTEST OK",
            ),
        ] {
            let answer = server.ask(pane, message).await.unwrap();
            assert_eq!(answer, expected, "{program:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_marker_beside_changing_text_does_not_count() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::SideBar).await;
    server.shows(pane, "last: TEST OK");
    for _ in 0..3 {
        no_answer(&server, pane, "silent").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_answer_to_the_same_message_is_found_again() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Screen).await;
    // Message and answer fill the screen: the second answer stands where the first one stood.
    let expected = (0..17).map(|i| format!("line {i}\n")).collect::<String>() + MARKER;
    for _ in 0..3 {
        assert_eq!(server.ask(pane, "later 17").await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_partial_answer_of_a_program_that_draws_is_the_screen() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Screen).await;
    let error = no_answer(&server, pane, "say half of it").await;
    let screen = error.partial().unwrap();
    assert_eq!(screen.matches("half of it").count(), 2, "{screen}");
    assert!(
        screen.contains("> say half of it\nhalf of it\n"),
        "{screen}"
    );
    assert!(screen.ends_with("? for shortcuts"), "{screen}");
}
