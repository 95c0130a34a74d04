use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_postgres::types::Type;

use super::connection::{Connection, ConnectionError};
use crate::backend::{SavePlan, Stamp, StreamChange};
use crate::storage::StoredStamp;
use crate::{AgentId, Error};

/// The queue of saves, and a task that sends them in batches. See the theory of the module.
///
/// If the queue is full, callers wait. The task ends when the queue is dropped, after the saves in it.
pub(super) struct SaveQueue(mpsc::Sender<Swap>);

/// One compare-and-swap.
pub(super) struct Swap {
    pub(super) agent: AgentId,
    pub(super) expected: StoredStamp,
    pub(super) plan: SavePlan,
    answer: oneshot::Sender<Result<Answer, Arc<ConnectionError>>>,
}

/// The answer of the server: done, or the stamp and the floor that it has.
pub(super) struct Answer {
    pub(super) done: bool,
    pub(super) stamp: Option<String>,
    pub(super) floor: String,
}

const QUEUE: usize = 1024;

/// The bounds of one batch.
const MAX_SAVES: usize = 128;
const MAX_BYTES: usize = 8 << 20;

impl SaveQueue {
    pub(super) fn start(connection: Arc<Connection>, schema: &str) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE);
        let sql =
            format!("SELECT * FROM {schema}.save($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)");
        tokio::spawn(work(connection, sql, queue));
        Self(sender)
    }

    /// Queues a save. It is made even if the future is dropped.
    pub(super) async fn swap(
        &self,
        agent: &AgentId,
        expected: &StoredStamp,
        plan: SavePlan,
    ) -> Result<Result<Answer, Arc<ConnectionError>>, Error> {
        let (answer, answered) = oneshot::channel();
        let swap = Swap {
            agent: agent.clone(),
            expected: expected.clone(),
            plan,
            answer,
        };
        // The task ends early only if its runtime does.
        self.0.send(swap).await.map_err(|_| Error::ShuttingDown)?;
        answered.await.map_err(|_| Error::ShuttingDown)
    }
}

async fn work(connection: Arc<Connection>, sql: String, mut queue: mpsc::Receiver<Swap>) {
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(first) => Some(first),
            None => queue.recv().await,
        };
        let Some(first) = first else { return };
        let mut bytes = size(&first);
        let mut batch = vec![first];
        while batch.len() < MAX_SAVES
            && let Ok(swap) = queue.try_recv()
        {
            bytes += size(&swap);
            if bytes > MAX_BYTES {
                next = Some(swap);
                break;
            }
            batch.push(swap);
        }
        send(&connection, &sql, batch).await;
    }
}

fn size(swap: &Swap) -> usize {
    let messages: usize = swap.plan.messages.iter().map(String::len).sum();
    messages + swap.plan.body.len() + swap.plan.head.as_ref().map_or(0, String::len)
}

async fn send(connection: &Connection, sql: &str, mut batch: Vec<Swap>) {
    // Stable: two saves of one agent keep their order.
    batch.sort_by(|one, two| one.agent.cmp(&two.agent));
    match execute(connection, sql, &batch).await {
        Ok(answers) => {
            for (swap, answer) in batch.into_iter().zip(answers) {
                // The caller may have dropped its future.
                let _ = swap.answer.send(Ok(answer));
            }
        }
        // One save that the server refuses must not fail the others: each one runs alone. After a
        // temporary error that would only repeat all retries for each save, while the queue waits.
        Err(error) if batch.len() > 1 && error.is_lasting_refusal() => {
            for swap in batch {
                let alone = [swap];
                let result = execute(connection, sql, &alone).await;
                let [swap] = alone;
                let answer = match result {
                    Ok(answers) => answers.into_iter().next().map(Ok),
                    Err(error) => Some(Err(Arc::new(error))),
                };
                if let Some(answer) = answer {
                    let _ = swap.answer.send(answer);
                }
            }
        }
        Err(error) => {
            let error = Arc::new(error);
            for swap in batch {
                let _ = swap.answer.send(Err(error.clone()));
            }
        }
    }
}

async fn execute(
    connection: &Connection,
    sql: &str,
    batch: &[Swap],
) -> Result<Vec<Answer>, ConnectionError> {
    let text = |part: fn(&Swap) -> String| batch.iter().map(part).collect::<Vec<_>>();
    let agents: Vec<&str> = batch.iter().map(|swap| swap.agent.as_str()).collect();
    let expected: Vec<Option<String>> = batch
        .iter()
        .map(|swap| swap.expected.stamp.as_ref().map(Stamp::to_text))
        .collect();
    let floors = text(|swap| swap.expected.epoch_floor.to_string());
    let stamps = text(|swap| swap.plan.stamp.to_text());
    let states: Vec<&str> = batch.iter().map(|swap| swap.plan.body.as_str()).collect();
    let heads: Vec<Option<&str>> = batch.iter().map(|swap| swap.plan.head.as_deref()).collect();
    let labels: Vec<&str> = batch.iter().map(|swap| swap.plan.labels.as_str()).collect();
    let replaces: Vec<bool> = batch
        .iter()
        .map(|swap| swap.plan.stream == StreamChange::Replace)
        .collect();
    let starts: Vec<i64> = batch
        .iter()
        .map(|swap| swap.plan.from.cast_signed())
        .collect();
    let counts: Vec<i32> = batch
        .iter()
        .map(|swap| i32::try_from(swap.plan.messages.len()).unwrap_or(i32::MAX))
        .collect();
    let messages: Vec<&str> = batch
        .iter()
        .flat_map(|swap| swap.plan.messages.iter().map(String::as_str))
        .collect();
    let rows = connection
        .query(
            sql,
            &[
                (&agents, Type::TEXT_ARRAY),
                (&expected, Type::TEXT_ARRAY),
                (&floors, Type::TEXT_ARRAY),
                (&stamps, Type::TEXT_ARRAY),
                (&states, Type::TEXT_ARRAY),
                (&heads, Type::TEXT_ARRAY),
                (&labels, Type::TEXT_ARRAY),
                (&replaces, Type::BOOL_ARRAY),
                (&starts, Type::INT8_ARRAY),
                (&counts, Type::INT4_ARRAY),
                (&messages, Type::TEXT_ARRAY),
            ],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Answer {
                done: row.try_get(0)?,
                stamp: row.try_get(1)?,
                floor: row.try_get(2)?,
            })
        })
        .collect()
}
