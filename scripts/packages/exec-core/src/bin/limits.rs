//! Budgets and admission: one execution at a time, a limit of its time, and a group whose turns are
//! used up.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use exec_core::{
    Budget, CommandConfig, Error as ExecError, ExecutionContext, ExecutionService, LaunchRequest,
    NewChatRequest, Profile, ProfileSource, StoppedBy, WaitReason,
};

struct Sleep;

impl Profile for Sleep {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }
    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        Some(CommandConfig::new("sleep", ["1000"]))
    }
}

impl ProfileSource for Sleep {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "sleep").then(|| Arc::new(Sleep) as Arc<dyn Profile>)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    let service = ExecutionService::builder(Sleep)
        .state_dir(state.path())
        .max_running(1)
        .open()?;
    let request = || -> Result<LaunchRequest, ExecError> {
        let context = ExecutionContext::for_workspace("sleep", state.path())?;
        let request = NewChatRequest { context, prompt: "go".into() };
        let request = LaunchRequest::try_from(request)?;
        Ok(request.budget(Budget::for_group("nightly").turns(2)))
    };

    let first = service.launch(request()?).await?;
    let waiting = tokio::spawn({
        let budget = Budget::new().wall_time(Duration::from_millis(200));
        let run = service.run(request()?.budget(budget));
        async move { run.await }
    });
    while !service
        .waiting()
        .iter()
        .any(|launch| matches!(launch.reason, WaitReason::Slot { max_running: 1 }))
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.stop().await?;

    let second = waiting.await??;
    assert_eq!(second.exit.stopped_by, Some(StoppedBy::Budget));
    let third = service.launch(request()?).await;
    assert!(matches!(third, Err(ExecError::BudgetExhausted { .. })));
    let turns = service.spent_by_group("nightly")?.turns;
    assert_eq!(turns, 2);
    println!("one at a time, {turns} turns, stopped by the budget after {:?}", second.duration);
    Ok(())
}
