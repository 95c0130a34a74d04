use exec_core::StopOutcome;

use crate::lab::{Lab, script, within};

/// A tree that is never still: each process starts the next one and ends, hundreds of times, and
/// the last one stays.
const HOPS: &str = "
    hop() {
        [ $1 -ge 400 ] && exec sleep 60
        hop $(($1 + 1)) &
        exit 0
    }
    hop 0";

#[tokio::test]
async fn what_starts_the_next_one_and_ends_while_it_is_looked_for_does_not_get_away() {
    let lab = Lab::new();
    let service = lab.service(script(HOPS));
    for _ in 0..5 {
        let execution = lab.launch(&service).await;
        let outcome = within("the stop", execution.stop()).await.unwrap();
        assert!(matches!(outcome, StopOutcome::Stopped(_)), "{outcome:?}");
        assert_eq!(lab.processes(), [0; 0], "left behind");
    }
}
