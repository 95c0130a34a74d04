//! The messages of all agents in one table, in the order in which they were saved.
//!
//! Every save then appends at the end of one tree, whoever it is for. Ordered by agent, each
//! would split a page in the middle and rewrite its neighbours: with 64 agents twice the time
//! and twice the bytes. Each row names the one before it in its agent's stream, so that no
//! index has to be kept up.

use std::ops::Range;

use rusqlite::{Connection, OptionalExtension, Result, params};

/// Where the stream of an agent ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// The agent's number.
    pub(super) agent: i64,
    /// The row of the last message, if there is one.
    pub(super) last: Option<i64>,
}

/// Messages that were read, in one piece of memory: one by one they would be as many
/// allocations of one thread that another has to free.
#[derive(Debug, Default)]
pub(super) struct Rows {
    text: String,
    /// Where each message is in it, the newest first.
    places: Vec<Range<usize>>,
}

impl Rows {
    fn push(&mut self, json: &str) {
        let start = self.text.len();
        self.text.push_str(json);
        self.places.push(start..self.text.len());
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let places = self.places.iter().rev();
        places.map(|place| &self.text[place.clone()])
    }
}

impl End {
    /// Appends messages and returns the new end.
    pub(super) fn append(mut self, connection: &Connection, messages: &[String]) -> Result<Self> {
        let mut insert = connection
            .prepare_cached("INSERT INTO messages (agent, previous, json) VALUES (?1, ?2, ?3)")?;
        for json in messages {
            self.last = Some(insert.insert(params![self.agent, self.last, json])?);
        }
        Ok(self)
    }

    /// The messages within `range`, where `next` is the number after the last one. They are
    /// fewer where the chain is broken.
    pub(super) fn read(
        self,
        connection: &Connection,
        next: u64,
        range: &Range<u64>,
    ) -> Result<Rows> {
        let mut walk = connection.prepare_cached(
            "SELECT id, agent, previous, json FROM messages WHERE id <= ?1 ORDER BY id DESC",
        )?;
        let mut found = Rows::default();
        let (mut wanted, mut seq) = (self.last, next);
        while let Some(start) = wanted
            && seq > range.start
        {
            // The rows of an agent that saves alone are neighbours: one scan finds them all.
            let mut rows = walk.query([start])?;
            while let Some(id) = wanted
                && seq > range.start
                && let Some(row) = rows.next()?
                && (row.get(0), row.get(1)) == (Ok(id), Ok(self.agent))
            {
                seq -= 1;
                if seq < range.end {
                    found.push(row.get_ref(3)?.as_str()?);
                }
                let previous: Option<i64> = row.get(2)?;
                wanted = previous.filter(|previous| *previous < id);
            }
            if wanted == Some(start) {
                break;
            }
        }
        Ok(found)
    }

    /// Removes the stream, of which `len` messages should be there.
    pub(super) fn remove(self, connection: &Connection, len: u64) -> Result<()> {
        let mut delete = connection.prepare_cached(
            "DELETE FROM messages WHERE id = ?1 AND agent = ?2 RETURNING previous",
        )?;
        let (mut wanted, mut removed) = (self.last, 0);
        while let Some(id) = wanted {
            let previous = delete.query_row([id, self.agent], |row| row.get(0));
            let Some(previous) = previous.optional()? else {
                break;
            };
            removed += 1;
            wanted = previous;
        }
        if removed != len {
            // The chain is broken. This reads the whole table, which is the price of damage.
            connection.execute("DELETE FROM messages WHERE agent = ?1", [self.agent])?;
        }
        Ok(())
    }
}
