use exec_core::print_prefixed;

use crate::lab::{Lab, script, within};

#[tokio::test]
async fn every_line_has_the_session_id_of_its_time() {
    let lab = Lab::new();
    let profile = script(
        r"printf 'first \346'; printf '\227\245\n'; echo 'session: ses_1'; echo later; printf '\377 tail'; echo bad >&2",
    );
    let service = lab.service(profile.id_from_stdout());
    let execution = lab.launch(&service).await;
    let minted = execution.session_id();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    within("the end", print_prefixed(&execution, &mut out, &mut err))
        .await
        .unwrap();
    let resolved = execution.session_id();
    let expected = [
        format!("[execution:{minted}] first 日\n").into_bytes(),
        format!("[execution:{minted}] session: ses_1\n").into_bytes(),
        format!("[execution:{resolved}] later\n").into_bytes(),
        [
            format!("[execution:{resolved}] ").as_bytes(),
            b"\xff tail\n",
        ]
        .concat(),
    ];
    assert_eq!(out, expected.concat(), "{}", String::from_utf8_lossy(&out));
    assert!(
        err.ends_with(b"] bad\n"),
        "{}",
        String::from_utf8_lossy(&err)
    );
}

#[tokio::test]
async fn a_line_is_one_write() {
    struct Pieces(Vec<Vec<u8>>);
    impl std::io::Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lab = Lab::new();
    let service = lab.service(script("printf 'a'; printf 'b\nc'; printf 'd\n'"));
    let execution = lab.launch(&service).await;
    let mut out = Pieces(Vec::new());
    print_prefixed(&execution, &mut out, std::io::sink())
        .await
        .unwrap();
    assert_eq!(out.0.len(), 2);
    assert!(out.0.iter().all(|piece| piece.ends_with(b"\n")));
}
