//! The agent's process: how its command line is made, how it is started and reaped, and how its
//! tree is stopped. Finding and ending process trees is in `shared::process_tree`.

mod child;
#[cfg(all(target_os = "linux", not(portable_processes)))]
mod lasting_thread;
mod launch_plan;
#[cfg(all(target_os = "linux", not(portable_processes)))]
mod marked_spawn;
#[cfg(not(all(target_os = "linux", not(portable_processes))))]
#[path = "portable_spawn.rs"]
mod marked_spawn;
mod stopped_tree;

pub(crate) use child::{Child, ChildExit, Pipes};
pub(crate) use launch_plan::{LaunchPlan, TAG_VARIABLE, find_on_path};
pub(crate) use stopped_tree::{LONGEST_LIMIT, StoppedTree, deadline_after, stop_tree};
