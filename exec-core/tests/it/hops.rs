use exec_core::StopOutcome;

use crate::lab::{Lab, script, within};

/// A tree that never rests: 400 times, a process forks the next one and ends. The last one stays.
const HOPS: &str = "
    hop() {
        [ $1 -ge 400 ] && exec sleep 60
        hop $(($1 + 1)) &
        exit 0
    }
    hop 0";

#[tokio::test]
async fn a_tree_that_keeps_forking_and_exiting_does_not_escape() {
    let lab = Lab::new();
    let service = lab.service(script(HOPS));
    for _ in 0..5 {
        let execution = lab.launch(&service).await;
        let outcome = within("the stop", execution.stop()).await.unwrap();
        assert!(matches!(outcome, StopOutcome::Stopped(_)), "{outcome:?}");
        assert_eq!(lab.processes(), [0; 0], "left behind");
    }
}
