//! The messages of all agents in one table, in the order in which they were saved.
//!
//! Every save appends to the end of one B-tree, whichever agent it is for. Ordered by agent, each
//! save would split a page in the middle of the tree and rewrite its neighbours: with 64 agents
//! twice the time and twice the bytes. Each row names the previous message of its agent, so no
//! index has to be maintained: the messages of an agent are a chain, read from its end.

use std::ops::Range;

use rusqlite::{Connection, OptionalExtension, Result, params};

/// The end of an agent's chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainEnd {
    /// The number of the agent.
    pub(super) agent: i64,
    /// The row of the last message; `None` if the chain is empty.
    pub(super) last: Option<i64>,
}

impl ChainEnd {
    /// Appends messages, numbered from `first` on, and returns the new end.
    pub(super) fn append(
        mut self,
        connection: &Connection,
        first: u64,
        messages: &[String],
    ) -> Result<Self> {
        let mut insert = connection.prepare_cached(
            "INSERT INTO messages (agent, previous, json, seq) VALUES (?1, ?2, ?3, ?4)",
        )?;
        for (seq, json) in (first.cast_signed()..).zip(messages) {
            self.last = Some(insert.insert(params![self.agent, self.last, json, seq])?);
        }
        Ok(self)
    }

    /// Removes the messages before `start`, and returns the number and the size of them.
    ///
    /// SQLite uses the numbers of removed rows again, so `previous` of the oldest message may name
    /// a row of another agent: the chain ends there.
    pub(super) fn remove_before(self, connection: &Connection, start: u64) -> Result<(u64, i64)> {
        let mut delete = connection.prepare_cached(
            "WITH RECURSIVE chain (id, previous, seq) AS (
                 SELECT id, previous, seq FROM messages WHERE id = ?1 AND agent = ?3
                 UNION ALL SELECT m.id, m.previous, m.seq
                 FROM chain JOIN messages m
                 ON m.id = chain.previous AND m.id < chain.id AND m.agent = ?3)
             DELETE FROM messages WHERE id IN (SELECT id FROM chain WHERE seq < ?2)
             RETURNING octet_length(json)",
        )?;
        let mut sizes = delete.query(params![self.last, start.cast_signed(), self.agent])?;
        let (mut count, mut bytes) = (0, 0);
        while let Some(row) = sizes.next()? {
            count += 1;
            bytes += row.get::<_, i64>(0)?;
        }
        Ok((count, bytes))
    }

    /// The messages in `range`, oldest first. `next` is the number after the last message. A
    /// broken chain gives fewer messages.
    pub(super) fn read(
        self,
        connection: &Connection,
        next: u64,
        range: &Range<u64>,
    ) -> Result<Vec<String>> {
        let mut select = connection
            .prepare_cached("SELECT previous, json FROM messages WHERE id = ?1 AND agent = ?2")?;
        let mut messages = Vec::new();
        let (mut row, mut seq) = (self.last, next);
        while let Some(id) = row
            && seq > range.start
        {
            seq -= 1;
            let found = select.query_row([id, self.agent], |found| {
                let json = if seq < range.end {
                    Some(found.get(1)?)
                } else {
                    None
                };
                Ok((found.get::<_, Option<i64>>(0)?, json))
            });
            let Some((previous, json)) = found.optional()? else {
                break;
            };
            messages.extend(json);
            // Rows are numbered upwards: anything else is damage, and could be a loop.
            row = previous.filter(|previous| *previous < id);
        }
        messages.reverse();
        Ok(messages)
    }

    /// Removes the chain, which should have `len` messages.
    pub(super) fn remove(self, connection: &Connection, len: u64) -> Result<()> {
        let mut delete = connection.prepare_cached(
            "DELETE FROM messages WHERE id = ?1 AND agent = ?2 RETURNING previous",
        )?;
        let (mut row, mut removed) = (self.last, 0);
        while let Some(id) = row {
            let previous = delete.query_row([id, self.agent], |found| found.get(0));
            let Some(previous) = previous.optional()? else {
                break;
            };
            removed += 1;
            row = previous;
        }
        if removed != len {
            // The chain is broken. This reads the whole table, but only after damage.
            connection.execute("DELETE FROM messages WHERE agent = ?1", [self.agent])?;
        }
        Ok(())
    }
}
