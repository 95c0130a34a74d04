//! The rules of the store: expiry, this session's entry, fencing tokens.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::settings::Settings;
use crate::format::{
    Document, FieldChange, NextVersion, SalvagedEntry, StoredEntry, new_line, timestamp,
};
use crate::transaction::{OwnChange, Transaction};
use crate::{Entries, Entry, Error, Incident, OwnerProcess, SessionId};

/// Above this, JavaScript's numbers are not exact, and a rewrite by a JavaScript tool would change
/// a token.
pub(crate) const LARGEST_NUMBER: u64 = (1 << 53) - 1;

/// The live entries of the file, and the changes that one operation makes to them. It lives
/// between the read and the write of the file, under the lock.
pub(crate) struct WorkingCopy<'a> {
    settings: &'a Settings,
    scope: Scope,
    now_ms: i64,
    /// The live entries of all sessions as they were read.
    live: Vec<StoredEntry<'a>>,
    /// The same for the next version of the file, if the scope allows changes.
    next: NextVersion<'a>,
    /// The members beside `storage`.
    extra: Vec<&'a str>,
    /// The last token that was given out, if the store knows it.
    counter: Option<u64>,
    /// Whether the file must be written.
    pub(crate) is_changed: bool,
    /// The token that this operation gives out.
    pub(crate) new_token: Option<u64>,
    pub(crate) incidents: Vec<Incident>,
}

/// The rights of an operation on the working copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Read,
    /// Changes this session's entry.
    Change,
    /// Changes this session's entry, and may give out a token.
    Claim,
}

impl<'a> WorkingCopy<'a> {
    /// A working copy without entries. `counter` is the last token that was given out.
    pub(crate) fn new(settings: &'a Settings, scope: Scope, counter: Option<u64>) -> Self {
        Self {
            settings,
            scope,
            now_ms: settings.clock.now_ms(),
            live: Vec::new(),
            next: NextVersion::with_capacity(0),
            extra: Vec::new(),
            counter: counter.filter(|counter| *counter <= LARGEST_NUMBER),
            is_changed: false,
            new_token: None,
            incidents: Vec::new(),
        }
    }

    /// Takes over the entries of a file that is not corrupt.
    pub(crate) fn load(&mut self, document: Document<'a>) {
        self.extra = document.extra;
        self.load_entries(document.entries);
    }

    /// Takes over the entries that were recovered from a corrupt file, which is to be replaced.
    pub(crate) fn load_salvaged(&mut self, salvaged: &'a [SalvagedEntry]) {
        let entries = salvaged
            .iter()
            .filter_map(|entry| StoredEntry::parse(&entry.line));
        self.load_entries(entries.collect());
        self.is_changed = true;
    }

    fn load_entries(&mut self, mut entries: Vec<StoredEntry<'a>>) {
        let count = entries.len();
        entries.retain(|entry| self.is_live(entry));
        self.is_changed |= entries.len() < count;
        if self.scope != Scope::Read {
            self.next = NextVersion::with_capacity(entries.len() + 1);
            for entry in &entries {
                let line = self.line_to_keep(entry);
                if self.is_own(entry) {
                    self.next.push_own(line);
                } else {
                    self.next.push(line);
                }
            }
        }
        self.live = entries;
    }

    /// Whether the entry counts: it has not expired, and its owner process runs. An entry whose
    /// timestamp cannot be parsed does not count, because it would never expire.
    fn is_live(&mut self, entry: &StoredEntry<'a>) -> bool {
        if entry.timestamp_ms.is_none() {
            self.incidents.push(Incident::UnreadableTimestamp {
                path: self.settings.path(),
                timestamp: entry.timestamp_text(),
                session: SessionId::from_key(&*entry.session),
            });
            return false;
        }
        self.age_ms(entry) <= self.ttl_ms(entry) && !entry.owner.is_some_and(has_ended)
    }

    fn is_own(&self, entry: &StoredEntry<'_>) -> bool {
        entry.session == self.settings.session.as_str()
    }

    /// A timestamp ahead of the clock is set to now: the entry would live too long, or for ever if
    /// a clock was years off.
    fn line_to_keep(&mut self, entry: &StoredEntry<'a>) -> Cow<'a, str> {
        if entry.timestamp_ms.is_some_and(|time| time > self.now_ms) {
            self.is_changed = true;
            entry.edited(&[self.new_timestamp()]).into()
        } else {
            entry.line.into()
        }
    }

    /// This session's entry as it was read. If a session is in the file twice, its last entry
    /// counts, as in JavaScript.
    pub(crate) fn own(&self) -> Option<&StoredEntry<'a>> {
        self.live.iter().rfind(|entry| self.is_own(entry))
    }

    /// The entries of the other sessions.
    pub(crate) fn others(&self) -> impl Iterator<Item = &StoredEntry<'a>> {
        self.live.iter().filter(|entry| !self.is_own(entry))
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, entry: &StoredEntry<'_>) -> Result<T, Error> {
        serde_json::from_str(entry.data).map_err(|source| Error::Decode {
            path: self.settings.path(),
            session: SessionId::from_key(&*entry.session),
            source: source.into(),
        })
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.settings.ttl_ms)
    }

    pub(crate) fn expires_in(&self, entry: &StoredEntry<'_>) -> Duration {
        let left = self.ttl_ms(entry).saturating_sub(self.age_ms(entry));
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    pub(crate) fn entries<T: DeserializeOwned>(&self) -> Result<Entries<T>, Error> {
        let mut all = BTreeMap::new();
        for entry in &self.live {
            let decoded = Entry {
                value: self.decode(entry)?,
                token: entry.token,
                expires_in: self.expires_in(entry),
            };
            all.insert(SessionId::from_key(&*entry.session), decoded);
        }
        Ok(Entries {
            session: self.settings.session.clone(),
            all,
        })
    }

    pub(crate) fn restore<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        self.own().map(|entry| self.decode(entry)).transpose()
    }

    pub(crate) fn other_values<T: DeserializeOwned>(
        &self,
    ) -> Result<BTreeMap<SessionId, T>, Error> {
        self.others()
            .map(|entry| Ok((SessionId::from_key(&*entry.session), self.decode(entry)?)))
            .collect()
    }

    pub(crate) fn store<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        self.put(value, None)
    }

    /// Stores a claimed value and returns its token: a new one, unless the session already holds
    /// this value under a token (`is_renewal`).
    pub(crate) fn store_claimed<T: Serialize>(
        &mut self,
        value: &T,
        is_renewal: bool,
    ) -> Result<u64, Error> {
        let old_token = self.own().and_then(|entry| entry.token);
        let token = match old_token.filter(|_| is_renewal) {
            Some(token) => token,
            None => self.next_token()?,
        };
        self.put(value, Some(token))?;
        Ok(token)
    }

    pub(crate) fn refresh(&mut self) -> bool {
        let Some(own) = self.own() else {
            return false;
        };
        let line = own.edited(&[self.new_timestamp()]);
        self.is_changed |= self.next.set_own(line);
        true
    }

    pub(crate) fn remove(&mut self) -> bool {
        let is_removed = self.next.remove_own();
        self.is_changed |= is_removed;
        is_removed
    }

    pub(crate) fn transaction<T, R>(
        &mut self,
        body: &mut impl FnMut(&mut Transaction<T>) -> R,
    ) -> Result<R, Error>
    where
        T: Serialize + DeserializeOwned,
    {
        let mut transaction = Transaction {
            entries: self.entries()?,
            ttl: self.ttl(),
            change: OwnChange::None,
        };
        let answer = body(&mut transaction);
        match transaction.change {
            OwnChange::None => {}
            OwnChange::Refresh => {
                self.refresh();
            }
            OwnChange::Remove => {
                self.remove();
            }
            OwnChange::Store => {
                if let Some(entry) = transaction.entries.mine() {
                    self.store(&entry.value)?;
                }
            }
        }
        Ok(answer)
    }

    /// The text of the next version of the file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.next.to_bytes(&self.extra)
    }

    fn put<T: Serialize>(&mut self, value: &T, token: Option<u64>) -> Result<(), Error> {
        let owner = match (token, &self.settings.owner, self.settings.session.process()) {
            (Some(_), Some(owner), _) | (_, _, Some(owner)) => Some(json(owner)?),
            _ => None,
        };
        let changes = [
            ("data", Some(json(value)?)),
            self.new_timestamp(),
            ("ttl_ms", Some(self.settings.ttl_ms.to_string())),
            ("token", token.map(|token| token.to_string())),
            ("owner", owner),
        ];
        let line = match self.own() {
            Some(entry) => entry.edited(&changes),
            None => new_line(self.settings.session.as_str(), &[], &changes),
        };
        self.is_changed |= self.next.set_own(line);
        Ok(())
    }

    /// One above every token that the counter and the entries know.
    fn next_token(&mut self) -> Result<u64, Error> {
        let known = self.counter.unwrap_or_else(|| {
            // Without a counter (a new store, or a cleaned-up folder for temporary files) the time
            // in milliseconds is above every earlier token, unless the clock was set back: no
            // store grants a claim every millisecond.
            u64::try_from(self.now_ms).unwrap_or(0)
        });
        let tokens = self.live.iter().filter_map(|entry| entry.token);
        let largest = tokens.filter(|token| *token <= LARGEST_NUMBER).max();
        let token = known.max(largest.unwrap_or(0)) + 1;
        if token > LARGEST_NUMBER {
            return Err(Error::TokensExhausted {
                path: self.settings.path(),
            });
        }
        self.new_token = Some(token);
        Ok(token)
    }

    fn new_timestamp(&self) -> FieldChange<'static> {
        let json = format!("\"{}\"", timestamp::format(self.now_ms));
        ("updated_at", Some(json))
    }

    /// At least zero, also if the timestamp is ahead of the clock.
    fn age_ms(&self, entry: &StoredEntry<'_>) -> i64 {
        entry
            .timestamp_ms
            .map_or(0, |time| self.now_ms.saturating_sub(time).max(0))
    }

    fn ttl_ms(&self, entry: &StoredEntry<'_>) -> i64 {
        i64::try_from(entry.ttl_ms.unwrap_or(self.settings.ttl_ms)).unwrap_or(i64::MAX)
    }
}

/// An owner in another form is another tool's field, and ends nothing.
fn has_ended(owner: &str) -> bool {
    serde_json::from_str::<OwnerProcess>(owner).is_ok_and(|owner| owner.has_ended())
}

fn json<T: Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|source| Error::Encode {
        source: source.into(),
    })
}
