//! What one operation works on: the live entries of the file, and what is to become of them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::core::Settings;
use crate::entries::{self, Entries, Transaction};
use crate::format::{self, Change, Entry};
use crate::incident::Incident;
use crate::lines::Lines;
use crate::lock::Held;
use crate::process::Process;
use crate::salvage::Saved;
use crate::scan::Damage;
use crate::{Error, SessionId, stamp};

/// Above this, JavaScript's numbers are no longer exact, and its rewrite would change a token.
pub(crate) const LARGEST_NUMBER: u64 = (1 << 53) - 1;

pub(crate) struct State<'a> {
    settings: &'a Settings,
    held: &'a Held,
    scope: Scope,
    /// The own session's entry, as it was read.
    mine: Option<Entry<'a>>,
    /// Those of the others, if the operation looks at them.
    others: Vec<Entry<'a>>,
    /// What will stand in the file, if the operation changes it,
    lines: Lines<'a>,
    /// and beside `storage`.
    extra: Vec<&'a str>,
    largest_token: u64,
    now_ms: i64,
    /// Whether the file is to be written.
    pub(crate) changed: bool,
    /// A token that was given out, for the counter.
    pub(crate) token: Option<u64>,
    pub(crate) incidents: Vec<Incident>,
}

/// What an operation does with the file. All look at all entries, to see whether one has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    ReadMine,
    ReadAll,
    ChangeMine,
    /// Changes its own entry, and looks at all for that.
    ChangeAll,
}

impl Scope {
    fn looks_at_all(self) -> bool {
        matches!(self, Self::ReadAll | Self::ChangeAll)
    }

    fn changes(self) -> bool {
        matches!(self, Self::ChangeMine | Self::ChangeAll)
    }
}

impl<'a> State<'a> {
    /// A state without entries.
    pub(crate) fn new(settings: &'a Settings, held: &'a Held, scope: Scope) -> Self {
        Self {
            settings,
            held,
            scope,
            mine: None,
            others: Vec::new(),
            lines: Lines::after(""),
            extra: Vec::new(),
            largest_token: 0,
            now_ms: settings.clock.now_ms(),
            changed: false,
            token: None,
            incidents: Vec::new(),
        }
    }

    /// Takes the entries of the file; what of it is not sound is left to the caller.
    pub(crate) fn load(&mut self, text: &'a str) -> Result<(), Damage> {
        self.lines = Lines::after(text);
        self.extra = format::parse(text, |entry| self.admit(entry))?;
        Ok(())
    }

    /// Takes the entries that were saved of a corrupt file.
    pub(crate) fn load_saved(&mut self, saved: &'a [Saved]) {
        *self = Self::new(self.settings, self.held, self.scope);
        for entry in saved
            .iter()
            .filter_map(|saved| format::parse_line(&saved.line))
        {
            self.admit(entry);
        }
        self.changed = true;
    }

    /// Expired entries are left out first of all, as in every operation.
    #[inline]
    fn admit(&mut self, entry: Entry<'a>) {
        let Some(stamp_ms) = entry.stamp_ms else {
            self.incidents.push(Incident::UnreadableStamp {
                path: self.settings.location.file.clone(),
                stamp: entry.stamp(),
                session: SessionId::of_entry(entry.session),
            });
            self.changed = true;
            return;
        };
        if self.age_ms(&entry) > self.ttl_ms(&entry) || entry.owner.is_some_and(has_ended) {
            self.changed = true;
            return;
        }
        if let Some(token) = entry.token.filter(|token| *token <= LARGEST_NUMBER) {
            self.largest_token = self.largest_token.max(token);
        }
        let is_mine = entry.session == self.settings.session.as_str();
        if self.scope.changes() {
            self.keep(&entry, is_mine, stamp_ms);
        }
        if is_mine {
            // Of a session that is there twice, the last one counts, as in JavaScript.
            self.mine = Some(entry);
        } else if self.scope.looks_at_all() {
            self.others.push(entry);
        }
    }

    #[inline]
    fn keep(&mut self, entry: &Entry<'a>, is_mine: bool, stamp_ms: i64) {
        // It would live too long; one of a clock that was years off, for ever.
        let new = (stamp_ms > self.now_ms).then(|| entry.edited(&[self.new_stamp()]));
        self.changed |= new.is_some();
        match (is_mine, new) {
            (true, Some(line)) => self.lines.keep_mine(line.into()),
            (true, None) => self.lines.keep_mine(entry.line.into()),
            (false, Some(line)) => self.lines.push(line),
            (false, None) => self.lines.keep(entry),
        }
    }

    pub(crate) fn mine(&self) -> Option<&Entry<'a>> {
        self.mine.as_ref()
    }

    pub(crate) fn others(&self) -> &[Entry<'a>] {
        &self.others
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, entry: &Entry<'_>) -> Result<T, Error> {
        serde_json::from_str(entry.data).map_err(|source| Error::Decode {
            path: self.settings.location.file.clone(),
            session: SessionId::of_entry(&*entry.session),
            source: source.into(),
        })
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.settings.ttl_ms)
    }

    pub(crate) fn expires_in(&self, entry: &Entry<'_>) -> Duration {
        let left = self.ttl_ms(entry).saturating_sub(self.age_ms(entry));
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    pub(crate) fn entries<T: DeserializeOwned>(&self) -> Result<Entries<T>, Error> {
        let mut all = BTreeMap::new();
        for entry in self.others.iter().chain(&self.mine) {
            let decoded = entries::Entry {
                value: self.decode(entry)?,
                token: entry.token,
                expires_in: self.expires_in(entry),
            };
            all.insert(SessionId::of_entry(&*entry.session), decoded);
        }
        Ok(Entries {
            session: self.settings.session.clone(),
            all,
        })
    }

    pub(crate) fn restore<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        self.mine().map(|entry| self.decode(entry)).transpose()
    }

    pub(crate) fn other_values<T: DeserializeOwned>(
        &self,
    ) -> Result<BTreeMap<SessionId, T>, Error> {
        self.others
            .iter()
            .map(|entry| Ok((SessionId::of_entry(&*entry.session), self.decode(entry)?)))
            .collect()
    }

    pub(crate) fn store<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        self.put(value, None)
    }

    /// Stores a claimed value under a token: a new one, unless the claim `renews` what the
    /// session held under a token already.
    pub(crate) fn store_claimed<T: Serialize>(
        &mut self,
        value: &T,
        renews: bool,
    ) -> Result<u64, Error> {
        let token = match self.mine().and_then(|entry| entry.token).filter(|_| renews) {
            Some(token) => token,
            None => self.next_token()?,
        };
        self.put(value, Some(token))?;
        Ok(token)
    }

    pub(crate) fn refresh(&mut self) -> bool {
        let line = self.mine().map(|entry| entry.edited(&[self.new_stamp()]));
        let found = line.is_some();
        if found {
            self.changed |= self.lines.set_mine(line);
        }
        found
    }

    pub(crate) fn remove(&mut self) -> bool {
        let removed = self.lines.set_mine(None);
        self.changed |= removed;
        removed
    }

    pub(crate) fn transaction<T, R>(
        &mut self,
        body: impl FnOnce(&mut Transaction<T>) -> R,
    ) -> Result<R, Error>
    where
        T: Serialize + DeserializeOwned,
    {
        let (entries, ttl) = (self.entries()?, self.ttl());
        let mut transaction = Transaction {
            entries,
            ttl,
            change: entries::Change::None,
        };
        let answer = body(&mut transaction);
        match transaction.change {
            entries::Change::None => {}
            entries::Change::Refresh => {
                self.refresh();
            }
            entries::Change::Remove => {
                self.remove();
            }
            entries::Change::Store => {
                if let Some(entry) = transaction.entries.mine() {
                    self.store(&entry.value)?;
                }
            }
        }
        Ok(answer)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.lines.to_bytes(&self.extra)
    }

    fn put<T: Serialize>(&mut self, value: &T, token: Option<u64>) -> Result<(), Error> {
        let owner = match (token, &self.settings.owner, self.settings.session.process()) {
            (Some(_), Some(owner), _) | (_, _, Some(owner)) => Some(json(owner)?),
            _ => None,
        };
        let changes = [
            ("data", Some(json(value)?)),
            self.new_stamp(),
            ("ttl_ms", Some(self.settings.ttl_ms.to_string())),
            ("token", token.map(|token| token.to_string())),
            ("owner", owner),
        ];
        let line = match self.mine() {
            Some(entry) => entry.edited(&changes),
            None => format::line(self.settings.session.as_str(), &[], &changes),
        };
        self.changed |= self.lines.set_mine(Some(line));
        Ok(())
    }

    /// One above all that the file and the counter know of.
    fn next_token(&mut self) -> Result<u64, Error> {
        let known = self
            .held
            .counter()
            .filter(|counter| *counter <= LARGEST_NUMBER);
        // Without a counter (a new file, or a cleaned-up folder for temporary files) the time
        // is as good as certain to be above what was given out before.
        let counter = known.unwrap_or_else(|| u64::try_from(self.now_ms).unwrap_or(0));
        let token = counter.max(self.largest_token) + 1;
        if token > LARGEST_NUMBER {
            return Err(Error::TokensExhausted {
                path: self.settings.location.file.clone(),
            });
        }
        self.token = Some(token);
        Ok(token)
    }

    fn new_stamp(&self) -> Change<'static> {
        (
            "updated_at",
            Some(format!("\"{}\"", stamp::format(self.now_ms))),
        )
    }

    /// At least zero, also for a stamp that is ahead of our clock.
    fn age_ms(&self, entry: &Entry<'_>) -> i64 {
        entry
            .stamp_ms
            .map_or(0, |stamp| self.now_ms.saturating_sub(stamp).max(0))
    }

    fn ttl_ms(&self, entry: &Entry<'_>) -> i64 {
        i64::try_from(entry.ttl_ms.unwrap_or(self.settings.ttl_ms)).unwrap_or(i64::MAX)
    }
}

/// Only entries that name a process can end with one. An owner that we do not understand is
/// some other tool's field.
fn has_ended(owner: &str) -> bool {
    serde_json::from_str::<Process>(owner).is_ok_and(|owner| owner.has_ended())
}

fn json<T: Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|source| Error::Encode {
        source: source.into(),
    })
}
