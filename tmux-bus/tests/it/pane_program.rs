//! The programs in the panes.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{Read, Write, stdin, stdout};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use tmux_bus::Launch;

use crate::worker;

/// A program that runs in a pane.
///
/// A message is a command: `say TEXT` prints the text, with `\n`, `\e`, `\t` as in Rust strings;
/// `flood N` prints N lines with the marker in the middle; any other message is answered by
/// `got N bytes` and the marker. See [`act`] for the rest.
#[derive(Debug, Clone, Copy)]
pub enum Program {
    /// Reads lines from a terminal in canonical mode.
    Lines,
    /// Reads bytes, enables bracketed paste and prints its answers as lines. Takes a return in the
    /// same read as the end of a paste for a part of it, as some programs do.
    Raw,
    /// As `Raw`, without bracketed paste.
    RawPlain,
    /// As `Raw`, with a full screen: the conversation above an input box. Each key and each answer
    /// redraws all of it.
    Screen,
    /// As `Screen`, with a column at the right that counts the frames and quotes the marker.
    SideBar,
}

/// The marker of all programs.
pub const MARKER: &str = "TEST OK";

/// Clears the screen and the scroll-back.
const WIPE: &str = "\x1b[2J\x1b[3J\x1b[H";

pub fn launch(program: Program) -> Launch {
    let (variable, part, command) = worker::in_a_pane(&format!("pane {program:?}"));
    Launch::new(command).env(variable, part)
}

/// As [`launch`]; the program appends each message to a file: its length, a newline, the bytes, a
/// newline.
pub fn launch_recording(program: Program, file: &Path) -> Launch {
    launch(program).env("PANE_RECORD", file.to_str().unwrap())
}

/// The messages that a recording program received.
pub fn recorded(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let mut rest = bytes.as_slice();
    let mut messages = Vec::new();
    while let Some(end) = rest.iter().position(|&b| b == b'\n') {
        let length: usize = std::str::from_utf8(&rest[..end]).unwrap().parse().unwrap();
        let Some(message) = rest.get(end + 1..end + 1 + length) else {
            break;
        };
        messages.push(message.to_vec());
        rest = &rest[(end + 2 + length).min(rest.len())..];
    }
    messages
}

/// Runs a program by its name.
pub fn run(program: &str) {
    match program {
        "Lines" => lines(),
        "Raw" => raw(true),
        "RawPlain" => raw(false),
        "Screen" => screen(false),
        "SideBar" => screen(true),
        other => panic!("no program `{other}`"),
    }
}

fn print(text: &str) {
    stdout().write_all(text.as_bytes()).unwrap();
    stdout().flush().unwrap();
}

fn record(message: &[u8]) {
    if let Ok(path) = std::env::var("PANE_RECORD") {
        let mut line = format!("{}\n", message.len()).into_bytes();
        line.extend_from_slice(message);
        line.push(b'\n');
        File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap()
            .write_all(&line)
            .unwrap();
    }
}

fn lines() {
    print("> ");
    let mut pending = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let count = stdin().read(&mut buffer).unwrap();
        if count == 0 {
            return;
        }
        pending.extend_from_slice(&buffer[..count]);
        while let Some(end) = pending.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let line = &line[..end];
            record(line);
            act(&String::from_utf8_lossy(line), &mut |text| print(text));
            print("> ");
        }
    }
}

/// Executes a message.
fn act(message: &str, show: &mut dyn FnMut(&str)) {
    let (verb, rest) = message.split_once(' ').unwrap_or((message, ""));
    match verb {
        "say" => {
            let text = rest
                .replace("\\n", "\r\n")
                .replace("\\e", "\x1b")
                .replace("\\t", "\t")
                .replace("\\r", "\r")
                .replace("\\b", "\x07");
            show(&format!("{text}\r\n"));
        }
        // As `say`, in pieces with pauses.
        "pieces" => {
            for piece in rest.split('|') {
                show(&piece.replace("\\n", "\r\n").replace("\\e", "\x1b"));
                std::thread::sleep(Duration::from_millis(40));
            }
        }
        // As `pieces`, with pauses that are longer than the quiet time of an answer.
        "pauses" => {
            for piece in rest.split('|') {
                show(&piece.replace("\\n", "\r\n").replace("\\e", "\x1b"));
                std::thread::sleep(Duration::from_millis(600));
            }
        }
        // Works for a while, then prints a number of lines and the marker.
        "later" => {
            std::thread::sleep(Duration::from_millis(200));
            let count: usize = rest.parse().unwrap();
            let lines: String = (0..count).map(|i| format!("line {i}\r\n")).collect();
            show(&format!("{lines}{MARKER}\r\n"));
        }
        // Clears screen and scroll-back, then prints a number of lines and the marker.
        "wipe" => {
            let count: usize = rest.parse().unwrap();
            let lines: String = (0..count).map(|i| format!("line {i}\r\n")).collect();
            show(&format!("{WIPE}{lines}{MARKER}\r\n"));
        }
        // Clears screen and scroll-back in the middle of its answer.
        "halves" => {
            show("the first half\r\n");
            show(&format!("{WIPE}the second half\r\n{MARKER}\r\n"));
        }
        // Clears screen and scroll-back shortly after its answer.
        "vanish" => {
            show(&format!("\x1b[2K\x1b[1Aall of it\r\n{MARKER}\r\n"));
            std::thread::sleep(Duration::from_millis(100));
            show(WIPE);
        }
        "flood" => {
            let count: usize = rest.parse().unwrap();
            let mut text = String::new();
            for i in 0..count {
                if i == count / 2 {
                    text.push_str(&format!("{MARKER}\r\n"));
                }
                text.push_str(&format!("line {i} {}\r\n", "あ🎌x".repeat(8)));
                if text.len() > 60_000 {
                    show(&text);
                    text.clear();
                }
            }
            show(&text);
        }
        "forever" => loop {
            show("0123456789012345678901234567890123456789012345678901234567890123456789\r\n");
        },
        "slow" => {
            std::thread::sleep(Duration::from_millis(rest.parse().unwrap()));
            show(&format!("slow\r\n{MARKER}\r\n"));
        }
        // Answers with the marker that the message asks for.
        "repeat" => {
            let (_, marker) = rest.trim_end_matches(')').rsplit_once(": ").unwrap();
            show(&format!("as you wish\r\n{marker}\r\n"));
        }
        // Never answers.
        "silent" => {}
        "exit" => std::process::exit(rest.parse().unwrap()),
        // Prints a number of KB and the marker, and ends at once.
        "last" => {
            let kilobytes: usize = rest.parse().unwrap();
            let line = format!("{}\r\n", "x".repeat(98));
            show(&format!("{}{MARKER}\r\n", line.repeat(kilobytes * 10)));
            std::process::exit(3);
        }
        // Runs a shell command.
        "run" => {
            Command::new("sh").args(["-c", rest]).status().unwrap();
            show(&format!("{MARKER}\r\n"));
        }
        _ => show(&format!("got {} bytes\r\n{MARKER}\r\n", message.len())),
    }
}

pub fn make_raw() {
    let mut modes = tcgetattr(stdin()).unwrap();
    modes.make_raw();
    tcsetattr(stdin(), OptionalActions::Now, &modes).unwrap();
}

/// Reads messages from a terminal in raw mode. A return outside a paste ends a message.
fn read_messages(bracketed: bool, mut typed: impl FnMut(&[u8]), mut message: impl FnMut(Vec<u8>)) {
    const START: &[u8] = b"\x1b[200~";
    const END: &[u8] = b"\x1b[201~";
    let mut line = Vec::new();
    let mut input: Vec<u8> = Vec::new();
    let (mut pasting, mut searched) = (false, 0);
    let mut buffer = [0; 65536];
    loop {
        let count = stdin().read(&mut buffer).unwrap();
        if count == 0 {
            return;
        }
        let chunk = &buffer[..count];
        if !bracketed {
            // A return among other bytes counts as pasted text.
            if count > 1 {
                line.extend_from_slice(chunk);
                typed(&line);
            } else if chunk == b"\r" {
                message(std::mem::take(&mut line));
            } else {
                line.push(chunk[0]);
                typed(&line);
            }
            continue;
        }
        input.extend_from_slice(chunk);
        let mut swallow = false;
        loop {
            if pasting {
                // Only new bytes, and a possible beginning of the end sequence.
                let Some(end) = find(&input[searched..], END).map(|at| searched + at) else {
                    searched = input.len().saturating_sub(END.len());
                    break;
                };
                searched = 0;
                line.extend(input.drain(..end));
                input.drain(..END.len());
                pasting = false;
                swallow = true;
                typed(&line);
            } else if input.starts_with(START) {
                input.drain(..START.len());
                pasting = true;
            } else if input.is_empty() || (START.starts_with(&input) && input.len() < START.len()) {
                break;
            } else {
                let byte = input.remove(0);
                if byte == b'\r' && !swallow {
                    message(std::mem::take(&mut line));
                } else {
                    line.push(byte);
                    typed(&line);
                }
            }
        }
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn raw(bracketed: bool) {
    make_raw();
    print(if bracketed {
        "\x1b[?2004hraw> "
    } else {
        "raw> "
    });
    read_messages(
        bracketed,
        |line| {
            if line.len() > 200 {
                print(&format!("\r\x1b[Kraw> [pasted {} bytes]", line.len()));
            } else {
                print(&format!(
                    "\r\x1b[Kraw> {}",
                    String::from_utf8_lossy(line).replace(['\n', '\r', '\x1b'], " ")
                ));
            }
        },
        |message| {
            record(&message);
            print("\r\n");
            act(&String::from_utf8_lossy(&message), &mut |text| print(text));
            print("raw> ");
        },
    );
}

fn screen(side_bar: bool) {
    make_raw();
    print("\x1b[?1049h\x1b[?2004h");
    let conversation = RefCell::new(String::new());
    let frames = Cell::new(0);
    let draw = |input: &str| {
        let rows = 20;
        let text = conversation.borrow().clone();
        let lines: Vec<&str> = text.split("\r\n").collect();
        let mut frame = String::from("\x1b[2J\x1b[H");
        for line in &lines[lines.len().saturating_sub(rows)..] {
            frame.push_str(&format!("{line}\x1b[K\r\n"));
        }
        if side_bar {
            frames.set(frames.get() + 1);
            frame.push_str(&format!("\x1b[3;70Hframes {}", frames.get()));
            frame.push_str(&format!("\x1b[5;70Hlast: {MARKER}"));
        }
        frame.push_str("\x1b[22;1H╭──────────────────────╮");
        frame.push_str(&format!("\x1b[23;1H│ > {input}"));
        frame.push_str("\x1b[24;1H╰──────────────────────╯");
        frame.push_str("\x1b[25;1H  ? for shortcuts");
        frame.push_str(&format!("\x1b[23;{}H", 5 + input.len()));
        print(&frame);
    };
    draw("");
    read_messages(
        true,
        |line| draw(&String::from_utf8_lossy(line)),
        |message| {
            record(&message);
            let message = String::from_utf8_lossy(&message).into_owned();
            conversation
                .borrow_mut()
                .push_str(&format!("> {message}\r\n"));
            draw("");
            act(&message, &mut |text| {
                conversation.borrow_mut().push_str(text);
                draw("");
            });
        },
    );
}
