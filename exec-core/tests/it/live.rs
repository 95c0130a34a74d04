use exec_core::LiveStatus;

use crate::lab::{Lab, within};
use crate::live_agent::{agent, answer, open};

#[tokio::test]
async fn one_process_answers_many_prompts() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    assert_eq!(session.state().status, LiveStatus::Idle);
    assert_eq!(session.session_id().native_id(), "native-1");
    for text in ["one", "two", "three"] {
        assert_eq!(answer(&session, &format!("say {text}")).await, text);
    }
    let exit = within("the close", session.close()).await.unwrap();
    assert!(exit.is_success(), "{exit:?}");
    assert_eq!(session.state().status, LiveStatus::Ended);
    assert_eq!(lab.processes(), [0; 0]);
}
