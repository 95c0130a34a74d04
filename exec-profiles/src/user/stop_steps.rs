//! Serde form of a [`StopLadder`]: a list of `{ action = "interrupt", grace_ms = 2000 }`.

use std::time::Duration;

use exec_core::{StopAction, StopLadder, StopStep};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileStep {
    action: FileAction,
    grace_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FileAction {
    CloseStdin,
    Interrupt,
    Terminate,
}

pub(super) fn serialize<S: Serializer>(
    ladder: &Option<StopLadder>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let file_step = |step: &StopStep| {
        let action = match step.action {
            StopAction::CloseStdin => FileAction::CloseStdin,
            StopAction::Interrupt => FileAction::Interrupt,
            StopAction::Terminate => FileAction::Terminate,
            action => return Err(S::Error::custom(format!("{action:?} has no name"))),
        };
        let grace_ms = u64::try_from(step.grace.as_millis()).map_err(S::Error::custom)?;
        Ok(FileStep { action, grace_ms })
    };
    let steps = ladder.iter().flat_map(StopLadder::steps);
    let steps: Vec<_> = steps.map(file_step).collect::<Result<_, _>>()?;
    steps.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<StopLadder>, D::Error> {
    let add = |ladder: StopLadder, step: FileStep| {
        let action = match step.action {
            FileAction::CloseStdin => StopAction::CloseStdin,
            FileAction::Interrupt => StopAction::Interrupt,
            FileAction::Terminate => StopAction::Terminate,
        };
        ladder.then(action, Duration::from_millis(step.grace_ms))
    };
    let steps = Option::<Vec<FileStep>>::deserialize(deserializer)?;
    Ok(steps.map(|steps| steps.into_iter().fold(StopLadder::kill_at_once(), add)))
}
