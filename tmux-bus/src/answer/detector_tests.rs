use proptest::prelude::*;

use super::*;
use crate::answer::marker::fold;
use crate::answer::tokenizer::Tokenizer;

fn detector(marker: &str, message: &str, echoed: bool) -> Detector {
    Detector::new(
        &AnswerTarget::new(Marker::new(marker).unwrap(), &fold(message)),
        echoed,
    )
}

fn hits(marker: &str, message: &str, pieces: &[&[u8]]) -> usize {
    let mut detector = detector(marker, message, true);
    let mut tokenizer = Tokenizer::default();
    for piece in pieces {
        tokenizer.feed(piece, |op| detector.apply(op, 0));
    }
    detector.quiet();
    detector.hits().len()
}

#[track_caller]
fn check(message: &str, output: &[u8], expected: usize) {
    assert_eq!(hits("CODING OK", message, &[output]), expected);
    let bytes: Vec<_> = output.chunks(1).collect();
    assert_eq!(hits("CODING OK", message, &bytes), expected, "byte by byte");
}

#[test]
fn the_marker_is_found_however_it_is_printed() {
    for output in [
        &b"CODING OK"[..],
        b"CODING OK\r\nand more",
        b"done. CODING OK.",
        b"\x1b[1mCODING\x1b[0m \x1b[32mOK\x1b[0m",
        b"CODING\r\nOK",
        b"COD\r\nING OK",
        b"CODING\x1b[1COK",
        b"CODING   OK",
        b"CODING\x1b[5;1HOK",
        b"**CODING OK**",
        "これはCODING OKです".as_bytes(),
        "│ CODING OK │".as_bytes(),
    ] {
        check("", output, 1);
    }
}

#[test]
fn the_marker_in_another_word_is_not_the_marker() {
    for output in [
        &b"ENCODING OK"[..],
        b"CODING OKAY",
        b"CODING OK2",
        b"xCODING OK_",
        b"CODINGOK",
        b"CODI NG OK",
        b"coding ok",
        b"CODING  KO",
    ] {
        check("", output, 0);
    }
    assert_eq!(hits("完了", "", &["作業完了です".as_bytes()]), 1);
}

#[test]
fn the_echo_of_a_message_that_quotes_the_marker_does_not_count() {
    let message = "please end with CODING OK when you are done";
    check(
        message,
        b"please end with CODING OK when you are done\r\n",
        0,
    );
    check(
        message,
        b"> please end with\r\n  CODING OK when you are done\r\nthinking",
        0,
    );
    check(
        message,
        b"please end with CODING OK when you are done\r\nfine\r\nCODING OK\r\n",
        1,
    );
    check(message, b"please end with CODING OK when yo", 0);
    check(
        "end with CODING OK",
        b"end with CODING OK\r\nCODING OK\r\n",
        1,
    );
    check(
        "CODING OK is what I want",
        b"CODING OK is what I want\r\n",
        0,
    );
    check(
        "CODING OK is what I want",
        b"CODING OK is what I want\r\nCODING OK\r\n",
        1,
    );
    check("CODING OK", b"CODING OK\r\n", 0);
    check("CODING OK", b"CODING OK\r\nCODING OK\r\n", 1);
}

#[test]
fn a_marker_at_the_end_is_undecided_until_quiet() {
    let mut detector = detector("CODING OK", "", false);
    Tokenizer::default().feed(b"CODING OK", |op| detector.apply(op, 3));
    assert!(detector.hits().is_empty() && detector.is_undecided());
    detector.quiet();
    assert_eq!(detector.hits()[0].line, 3);
}

proptest! {
    #[test]
    fn hits_do_not_depend_on_the_cut_of_the_output(
        pieces in prop::collection::vec("(CODING|OK| |\r\n|EN|x|\u{1b}\\[1m|\u{1b}\\[2C|say){0,5}", 0..8),
        message in "(say |CODING OK|x |EN){0,4}",
    ) {
        let whole = pieces.concat();
        let pieces: Vec<_> = pieces.iter().map(String::as_bytes).collect();
        prop_assert_eq!(hits("CODING OK", &message, &pieces), hits("CODING OK", &message, &[whole.as_bytes()]));
    }

    #[test]
    fn any_bytes_do_not_panic(bytes: Vec<u8>, marker in "[A-Z ]{0,4}X", message: String) {
        hits(&marker, &message, &[&bytes]);
    }

    #[test]
    fn a_marker_on_its_own_is_found_wherever_it_stands(before in "[a-z \n]{0,80}", after in "[a-z \n]{0,80}") {
        prop_assert_eq!(hits("CODING OK", "", &[format!("{before} CODING OK {after}").as_bytes()]), 1);
    }
}
