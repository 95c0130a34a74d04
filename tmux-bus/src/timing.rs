//! Every wait of this crate, with the reason for its value.
//!
//! Figures: tmux 3.3a on two cores. A new constant belongs here, so that the waits of one answer
//! can be read side by side.
//!
//! # Polls
//!
//! Nothing polls while it is idle. A poll exists only where the other side has no event:
//!
//! | poll | pause | limit |
//! |---|---|---|
//! | exit status of a program that has ended (`ControlClient::list_panes_and_exits`, `ExitWatch`) | [`EXIT_STATUS_PAUSE`] | [`EXIT_STATUS_LIMIT`] |
//! | unread input of a terminal after a paste (`wait_for_echo`) | [`SUBMIT_QUIET`] | [`TAKE_IN_LIMIT`] |
//! | exit of the tmux server after its last session (`SessionFolder::remove`) | [`SERVER_EXIT_PAUSE`] | [`SERVER_EXIT_LIMIT`] |
//! | the first process of a program that is being stopped while it starts (`pane_processes::end`) | [`PROGRAM_LOOK`] | the grace time |
//! | end of processes after a signal, on systems without pidfds (`shared/process_tree`) | 20 ms, then 100 ms, in `tree_ender.rs` | the grace time, then [`KILL_LIMIT`] |
//! | an agent that refused a message of its inbox (`Attempt`) | [`DELIVERY_RETRY`] | none: while it looks idle and refuses |
//! | an agent that has ended and has messages in its inbox (`Attempt`) | [`DEAD_AGENT_LOOK`] | none: its next output is the event |
//! | an agent that has no pane and has messages in its inbox (`Deliverer`) | [`ABSENT_AGENT_LOOK`] | none: while such a message waits |
//! | a cluster that cannot be attached to while messages wait (`courier`) | [`COURIER_RETRY`], doubled up to [`COURIER_RETRY_LIMIT`] | none: while the session exists |
//! | the stored bracketed-paste mode of a program that another process has started (`Sender::target_for`) | [`BRACKETING_PAUSE`] | [`BRACKETING_LIMIT`] |
//! | an idle agent whose turn no hook ends (`Ask::silent_end`) | [`HOOK_GRACE`] | the time limit of the answer |
//! | the process that carries out an ask (`AskFolder::wait`) | [`WORKER_LOOK`] | none: while a caller waits for the result |
//! | the log where file events are not available (`FileWatch`) | [`LOG_POLL`] | none: while a caller waits for an entry |

use std::time::Duration;

// Sending

/// Quiet time of a pane between the echo of a paste and the submit.
///
/// A program that reads single bytes takes a carriage return that arrives together with the paste
/// for a part of it. Text and return on one control line: 30 of 30 merged. With 15 ms of quiet:
/// 0 of 90.
pub(crate) const SUBMIT_QUIET: Duration = Duration::from_millis(15);

/// Wait for the first echo of a program that shows nothing, such as a password prompt.
///
/// An echo arrives within some milliseconds; a program that is still busy with its last answer
/// reads its input later and shows nothing now.
pub(crate) const ECHO_WAIT: Duration = Duration::from_millis(100);

/// Longest wait for quiet once the echo was seen: a spinner never stops printing.
pub(crate) const SPINNER_LIMIT: Duration = Duration::from_millis(300);

/// Longest wait for a program to take a short paste in, whatever it prints.
pub(crate) const TAKE_IN_LIMIT: Duration = Duration::from_secs(3);

/// Additional wait for each byte of a paste, for a program that reads 64 KB a second. An unoptimised
/// program on an overloaded machine takes more than 3 s for 1 MB, and a submit before it has read the
/// text can be taken for a part of it.
pub(crate) const TAKE_IN_PER_BYTE: Duration = Duration::from_micros(16);

/// How long the draft of a person in the input line of an agent delays a message before it is refused.
pub(crate) const DRAFT_WAIT: Duration = Duration::from_secs(10);

/// How long an agent may take to show a pasted message in its input line. It takes milliseconds; a
/// message of 1 MB on a loaded machine takes seconds.
pub(crate) const TYPE_LIMIT: Duration = Duration::from_secs(10);

/// How long a message may stay in the input line after Enter.
pub(crate) const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// How long an agent may take for the answer to an ask of the command, without a given limit. Delegated work takes
/// minutes; the caller need not wait, because the ask runs in the background.
pub(crate) const ASK_LIMIT: Duration = Duration::from_secs(3600);

/// How long the process that carries out an ask may take to start. It takes milliseconds.
pub(crate) const WORKER_LIMIT: Duration = Duration::from_secs(30);

// Reading

/// Default timeout of an answer, as specified.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Default quiet time after the marker that ends an answer: agents also write the marker first
/// and continue. A heuristic: a shorter time cuts more answers, a longer one delays all of them.
pub(crate) const ANSWER_QUIET: Duration = Duration::from_millis(300);

/// How many times longer the quiet time is while a program that had a prompt shows none: it runs a
/// tool, or thinks. Programs that show a prompt only once are answered late, but whole.
pub(crate) const NO_PROMPT_FACTOR: u32 = 10;

/// Quiet time after which a word at the end of the output is complete: an agent prints as it
/// thinks, and `CODING OK` can still become `CODING OKAY`. As long as [`ANSWER_QUIET`].
pub(crate) const WORD_QUIET: Duration = Duration::from_millis(300);

/// Quiet time after which a screen counts as drawn and a line as printed: about two frames at
/// 60 Hz.
pub(crate) const FRAME_QUIET: Duration = Duration::from_millis(30);

/// Longest wait for a quiet pane that looks idle: a program can print all the time, such as a clock.
pub(crate) const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// Quiet time after which a starting screen with an input line counts as idle: the user may have switched
/// off what the rules wait for. Codex shows such a screen for up to 2.5 s.
pub(crate) const SPLASH_LIMIT: Duration = Duration::from_secs(10);

/// How long a dialog of a starting agent must stay before the start fails: a screen that is being drawn
/// can look like a dialog for a moment.
pub(crate) const DIALOG_SETTLE: Duration = Duration::from_secs(1);

/// Quiet time of a program before a prompt is looked for: while it prints, any line can look like a
/// prompt for a moment.
pub(crate) const PROMPT_QUIET: Duration = Duration::from_millis(100);

/// Quiet time after which a prompt settles an owed answer: the reader that still waits for this answer logs it first.
/// Longer than [`ANSWER_QUIET`], after which that reader has it.
pub(crate) const PROMPT_GRACE: Duration = Duration::from_secs(1);

/// Longest timeout. A later point in time may not be representable.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Time for the first event of an agent that reports its start. Without one, its hooks are switched off. Claude reports its
/// start up to 2 s after it shows its input line.
pub(crate) const FIRST_EVENT_WAIT: Duration = Duration::from_secs(8);

/// How long a hook that reports work is believed while the screen is idle, for agents whose hooks report
/// every end of a turn. Bounds the damage of an event that was lost.
pub(crate) const HOOK_TRUST: Duration = Duration::from_secs(10);

/// Time for a hook that reports the end of a turn after the screen shows it. Hooks came 0.15 to 1.6 s
/// before the screen.
pub(crate) const HOOK_GRACE: Duration = Duration::from_secs(2);

/// Time for a transcript to have the answer that a hook reports. Usually it is written before.
pub(crate) const TRANSCRIPT_GRACE: Duration = Duration::from_secs(2);

// tmux

/// Time limit of one tmux command. tmux answers within a millisecond; a server that does not
/// answer for 10 s hangs.
pub(crate) const TMUX_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an attach and the pastes of other processes wait for each other. An attach takes some
/// milliseconds; a process that is stopped meanwhile must not stop the bus.
pub(crate) const ATTACH_LOCK_LIMIT: Duration = Duration::from_secs(2);

/// How long the launch wrapper stays after its program.
///
/// Control mode drops the last output of a pane whose process ends: a marker after 60 KB was seen
/// in 2 of 60 runs, with 0.3 s in 60 of 60.
pub(crate) const WRAPPER_LINGER: Duration = Duration::from_millis(300);

/// Time for the process that started a program to store its bracketed-paste mode in tmux. It takes
/// milliseconds unless the machine is overloaded.
pub(crate) const BRACKETING_LIMIT: Duration = Duration::from_secs(3);

/// Pause between two looks at the stored mode.
pub(crate) const BRACKETING_PAUSE: Duration = Duration::from_millis(50);

/// How long tmux may take to report the exit status of a process that has ended. It takes
/// microseconds unless the machine is overloaded.
pub(crate) const EXIT_STATUS_LIMIT: Duration = Duration::from_secs(1);

/// Pause between two requests for the exit status. Long beside a round trip (0.2 ms).
pub(crate) const EXIT_STATUS_PAUSE: Duration = Duration::from_millis(2);

/// How long the tmux server may take to exit after its last session. It takes milliseconds.
pub(crate) const SERVER_EXIT_LIMIT: Duration = Duration::from_secs(2);

/// Pause between two connections that test whether the server has exited.
pub(crate) const SERVER_EXIT_PAUSE: Duration = Duration::from_millis(2);

// Ending programs

/// Time between SIGTERM and SIGKILL when a cluster stops its agents: agents save their session.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(3);

/// Pause between two looks at a launch wrapper whose program has not started yet. It takes milliseconds; a look reads
/// all processes of the system.
pub(crate) const PROGRAM_LOOK: Duration = Duration::from_millis(50);

/// How long the kernel may take to end a process after SIGKILL. Only a process that waits for a
/// device takes longer than milliseconds.
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(10);

// The inbox

/// Pause before a retry of an inbox message that an idle agent refused. Causes: another sender was first, or the input
/// of the pane is off; neither has an event.
pub(crate) const DELIVERY_RETRY: Duration = Duration::from_millis(250);

/// How often an agent that has ended is looked at while messages wait for it. Output of its next program wakes the
/// deliverer at once; this is for a pane that was removed and for a program that prints nothing.
pub(crate) const DEAD_AGENT_LOOK: Duration = Duration::from_secs(10);

/// How often the pane of an agent is looked for while messages wait for it and it has none: tmux does not tell which
/// agent a new pane is for. A look takes a millisecond.
pub(crate) const ABSENT_AGENT_LOOK: Duration = Duration::from_secs(1);

/// How often a caller that waits for the result of an ask looks whether the process of that ask lives. A result is an
/// event; this is for a process that was killed.
pub(crate) const WORKER_LOOK: Duration = Duration::from_secs(1);

/// Pause before the process that delivers the inbox tries again after a failure: short, because a failure of an
/// overloaded tmux passes.
pub(crate) const COURIER_RETRY: Duration = Duration::from_millis(250);

/// Longest such pause. A person repairs a file within minutes; an attempt costs a few milliseconds.
pub(crate) const COURIER_RETRY_LIMIT: Duration = Duration::from_secs(30);

// The log

/// How often a follower reads the log where file events are not available.
pub(crate) const LOG_POLL: Duration = Duration::from_millis(100);
