//! Clients that repeat an operation for some time, and the processor time of the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, SnapshotStorage};
use benches::sample;
use tokio::task::JoinSet;

/// A message of this size is added in each tick.
const MESSAGE: usize = 1 << 10;

/// Runs the clients side by side, and prints one line.
///
/// A client is a function that repeats its operation until the deadline, and returns how often.
pub(crate) async fn drive<F>(name: &str, server: u32, time: Duration, clients: Vec<F>)
where
    F: AsyncClient,
{
    let count = clients.len();
    let (cpu, start) = (processor_time(server), Instant::now());
    let deadline = start + time;
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(client.repeat(deadline));
    }
    let operations: u64 = running.join_all().await.into_iter().sum();
    let (took, cpu) = (start.elapsed(), processor_time(server) - cpu);
    let rate = operations as f64 / took.as_secs_f64();
    let each = cpu.as_secs_f64() * 1e6 / operations as f64;
    println!("| {name} | {count} | {rate:.0}/s | {each:.0} µs |");
}

pub(crate) trait AsyncClient: Send + 'static {
    fn repeat(self, deadline: Instant) -> impl Future<Output = u64> + Send;
}

/// An agent that saves a tick with one new message, again and again.
pub(crate) struct Saver {
    storage: Arc<dyn SnapshotStorage>,
    snapshot: AgentSnapshot,
}

impl Saver {
    pub(crate) fn many(storage: &Arc<dyn SnapshotStorage>, name: &str, count: usize) -> Vec<Self> {
        let saver = |at| Self {
            storage: Arc::clone(storage),
            snapshot: AgentSnapshot::new(AgentId::new(format!("{name}-{count}-{at}")).unwrap()),
        };
        (0..count).map(saver).collect()
    }

    /// One tick: only the last message stays in view.
    pub(crate) async fn save(&mut self) {
        self.snapshot.tick_index += 1;
        let tick = usize::try_from(self.snapshot.tick_index).unwrap();
        let history = &mut self.snapshot.memory.short_term_history;
        history.push(Message::user(sample::message(tick, MESSAGE)));
        history.drop_front(history.tail_len().saturating_sub(1));
        history.release_hidden();
        self.storage.save(&self.snapshot).await.unwrap();
    }
}

impl AsyncClient for Saver {
    async fn repeat(mut self, deadline: Instant) -> u64 {
        let mut done = 0;
        while Instant::now() < deadline {
            self.save().await;
            done += 1;
        }
        done
    }
}

/// Saves many agents with this many messages each, sixteen at a time.
pub(crate) async fn fill(
    storage: &Arc<dyn SnapshotStorage>,
    name: &str,
    agents: usize,
    messages: usize,
) {
    let mut savers = Saver::many(storage, name, agents);
    while !savers.is_empty() {
        let mut running = JoinSet::new();
        for mut saver in savers.split_off(savers.len().saturating_sub(16)) {
            running.spawn(async move {
                for _ in 0..messages {
                    saver.save().await;
                }
            });
        }
        running.join_all().await;
    }
}

/// The processor time of a process and its children.
pub(crate) fn processor_time(pid: u32) -> Duration {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok());
    let ticks: u64 = pids.filter_map(|it| ticks_if_of(it, pid)).sum();
    // USER_HZ is 100 on every Linux.
    Duration::from_millis(ticks * 10)
}

fn ticks_if_of(pid: u32, group: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let is_in_group = pid == group || field(1)? == u64::from(group);
    is_in_group.then_some(field(11)? + field(12)?)
}
