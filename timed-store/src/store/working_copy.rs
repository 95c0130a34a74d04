//! The rules of the store: expiry, this session's entry, fencing tokens.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::settings::Settings;
use crate::disk::{LockRecord, slots};
use crate::format::{
    Document, FieldChange, NextVersion, SalvagedEntry, StoredEntry, TokenRecord, new_line,
    timestamp,
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
    /// Whether the file holds the named slots.
    is_slots: bool,
    /// The live entries of all sessions as they were read.
    live: Vec<StoredEntry<'a>>,
    /// The same of the store's other file.
    live_elsewhere: Vec<StoredEntry<'a>>,
    /// The same for the next version of the file, if the scope allows changes.
    next: NextVersion<'a>,
    /// The members of other tools beside `storage`.
    extra: Vec<&'a str>,
    /// The token record of the file as it will be written.
    record: Option<TokenRecord>,
    record_elsewhere: Option<TokenRecord>,
    lock_record: LockRecord,
    /// How many entries were recovered from a corrupt file.
    salvaged: usize,
    /// Whether the file must be written.
    pub(crate) is_changed: bool,
    /// Set if all files of the store must get this token record.
    pub(crate) new_record: Option<TokenRecord>,
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
    /// A working copy without entries.
    pub(crate) fn new(settings: &'a Settings, scope: Scope, now_ms: i64) -> Self {
        Self {
            settings,
            scope,
            now_ms,
            is_slots: settings.slot.is_some(),
            live: Vec::new(),
            live_elsewhere: Vec::new(),
            next: NextVersion::with_capacity(0),
            extra: Vec::new(),
            record: None,
            record_elsewhere: None,
            lock_record: LockRecord::default(),
            salvaged: 0,
            is_changed: false,
            new_record: None,
            incidents: Vec::new(),
        }
    }

    /// Takes over the token record of the lock file.
    pub(crate) fn set_lock_record(&mut self, record: LockRecord) {
        self.lock_record = record;
    }

    /// Takes over the entries of a file that is not corrupt.
    pub(crate) fn load(&mut self, document: Document<'a>) {
        self.extra = document.extra;
        self.record = document.record;
        self.load_entries(document.entries);
    }

    /// Takes over the entries of the store's other file, which the operation does not change.
    pub(crate) fn load_elsewhere(
        &mut self,
        record: Option<TokenRecord>,
        entries: impl Iterator<Item = StoredEntry<'a>>,
    ) {
        self.record_elsewhere = record;
        let is_slots = !self.is_slots;
        let entries = entries.filter(|entry| self.is_live(entry, is_slots));
        self.live_elsewhere = entries.collect();
    }

    /// Takes over the entries that were recovered from a corrupt file, which is to be replaced.
    pub(crate) fn load_salvaged(&mut self, salvaged: &'a [SalvagedEntry]) {
        let entries = salvaged
            .iter()
            .filter_map(|entry| StoredEntry::parse(&entry.line));
        self.load_entries(entries.collect());
        self.salvaged = salvaged.len();
        self.is_changed = true;
    }

    /// How many entries were recovered from a corrupt file.
    pub(crate) fn salvaged(&self) -> usize {
        self.salvaged
    }

    fn load_entries(&mut self, mut entries: Vec<StoredEntry<'a>>) {
        let count = entries.len();
        entries.retain(|entry| self.is_live(entry, self.is_slots));
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
    /// timestamp cannot be parsed does not count, because it would never expire. `is_slots` says that it
    /// stands among the named slots.
    fn is_live(&mut self, entry: &StoredEntry<'a>, is_slots: bool) -> bool {
        if entry.timestamp_ms.is_none() {
            let data = &self.settings.path;
            self.incidents.push(Incident::UnreadableTimestamp {
                path: if is_slots { slots(data) } else { data.clone() },
                timestamp: entry.timestamp_text(),
                session: SessionId::from_key(&*entry.session),
            });
            return false;
        }
        self.age_ms(entry) <= self.ttl_ms(entry) && !entry.owner.is_some_and(has_ended)
    }

    fn is_own(&self, entry: &StoredEntry<'_>) -> bool {
        self.settings.is_own_entry(&entry.session, self.is_slots)
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

    /// The entries of the other sessions, in all slots.
    pub(crate) fn others<'s>(&'s self) -> impl Iterator<Item = &'s StoredEntry<'a>> {
        let of_others = |entries: &'s [StoredEntry<'a>], slots: bool| {
            let entries = entries.iter();
            entries.filter(move |entry| !self.settings.is_own_session(&entry.session, slots))
        };
        let here = of_others(&self.live, self.is_slots);
        here.chain(of_others(&self.live_elsewhere, !self.is_slots))
    }

    /// The owner processes of all entries, also those of this session.
    pub(crate) fn owners(&self) -> Vec<OwnerProcess> {
        let live = self.live.iter().chain(&self.live_elsewhere);
        live.filter_map(|entry| entry.owner)
            .filter_map(|owner| serde_json::from_str(owner).ok())
            .collect()
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, entry: &StoredEntry<'_>) -> Result<T, Error> {
        serde_json::from_str(entry.data).map_err(|source| Error::Decode {
            path: self.settings.path.clone(),
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
        for entry in self.live.iter().chain(&self.live_elsewhere) {
            let decoded = Entry {
                value: self.decode(entry)?,
                token: entry.token,
                expires_in: self.expires_in(entry),
            };
            all.insert(SessionId::from_key(&*entry.session), decoded);
        }
        let others = self
            .others()
            .map(|entry| SessionId::from_key(&*entry.session));
        Ok(Entries {
            own: SessionId::from_key(self.settings.key()),
            others: others.collect(),
            all,
            incidents: Vec::new(),
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
        let (ttl_ms, owner) = (self.settings.ttl_ms, self.settings.owner_of(false));
        self.put(value, None, ttl_ms, owner)
    }

    /// Stores a claimed value and returns its token and its timeout. The token is a new one, unless
    /// the session already holds this value under a token (`is_renewal`).
    ///
    /// Another process of the session may keep the lease that is renewed, so a renewal never shortens
    /// it: the longer timeout counts, and an owner stays only if both claims name it.
    pub(crate) fn store_claimed<T: Serialize>(
        &mut self,
        value: &T,
        is_renewal: bool,
    ) -> Result<(u64, Duration), Error> {
        let last_token = self.last_token();
        let renewed = self.own().filter(|_| is_renewal);
        let renewed = renewed.and_then(|entry| Some((entry, entry.token?)));
        let (mut ttl_ms, mut owner) = (self.settings.ttl_ms, self.settings.owner_of(true));
        let (token, is_new) = match renewed {
            Some((entry, token)) => {
                ttl_ms = ttl_ms.max(entry.ttl_ms.unwrap_or(0));
                let earlier: Option<OwnerProcess> = entry
                    .owner
                    .and_then(|owner| serde_json::from_str(owner).ok());
                owner = owner.filter(|owner| earlier.as_ref() == Some(owner));
                (token, false)
            }
            None => (last_token + 1, true),
        };
        if token > LARGEST_NUMBER {
            return Err(Error::TokensExhausted {
                path: self.settings.path.clone(),
            });
        }
        let record = TokenRecord {
            store_id: self.store_id(),
            last_token: last_token.max(token),
        };
        self.put(value, Some(token), ttl_ms, owner)?;
        self.record = Some(record);
        // A lock file without identity is that of version 0.1, or a new one.
        if is_new || self.lock_record.store_id.is_none() {
            self.new_record = self.record;
        }
        Ok((token, Duration::from_millis(ttl_ms)))
    }

    /// The identity of the store; a new one if no file has it.
    pub(crate) fn store_id(&self) -> u64 {
        let records = self.record.or(self.record_elsewhere);
        let known = self.lock_record.store_id;
        known
            .or_else(|| records.map(|record| record.store_id))
            .unwrap_or_else(|| TokenRecord::new(self.now_ms).store_id)
    }

    /// Whether `token` is the token of a live entry.
    pub(crate) fn has_token(&self, token: u64) -> bool {
        let mut live = self.live.iter().chain(&self.live_elsewhere);
        live.any(|entry| entry.token == Some(token))
    }

    /// Whether the own entry has this token, or `token` is `None`.
    fn has_own_token(&self, token: Option<u64>) -> bool {
        token.is_none_or(|token| self.own().is_some_and(|own| own.token == Some(token)))
    }

    /// Restarts the time of the own entry, if there is one and it has this token.
    pub(crate) fn refresh(&mut self, token: Option<u64>) -> bool {
        let Some(own) = self.own().filter(|_| self.has_own_token(token)) else {
            return false;
        };
        let line = own.edited(&[self.new_timestamp()]);
        self.is_changed |= self.next.set_own(line);
        true
    }

    /// Removes the own entry, if it has this token, and returns whether there was one.
    pub(crate) fn remove(&mut self, token: Option<u64>) -> bool {
        let is_removed = self.has_own_token(token) && self.next.remove_own();
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
                self.refresh(None);
            }
            OwnChange::Remove => {
                self.remove(None);
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
        self.next.to_bytes(&self.extra, self.record)
    }

    fn put<T: Serialize>(
        &mut self,
        value: &T,
        token: Option<u64>,
        ttl_ms: u64,
        owner: Option<&OwnerProcess>,
    ) -> Result<(), Error> {
        let owner = owner.map(json).transpose()?;
        let changes = [
            ("data", Some(json(value)?)),
            self.new_timestamp(),
            ("ttl_ms", Some(ttl_ms.to_string())),
            ("token", token.map(|token| token.to_string())),
            ("owner", owner),
        ];
        let line = match self.own() {
            Some(entry) => entry.edited(&changes),
            None => new_line(&self.settings.key(), &[], &changes),
        };
        self.is_changed |= self.next.set_own(line);
        Ok(())
    }

    /// The largest token that any file of the store knows.
    fn last_token(&self) -> u64 {
        let counter = self.lock_record.last_token;
        let counter = counter.filter(|token| *token <= LARGEST_NUMBER);
        let counter = counter.unwrap_or_else(|| {
            // The lock file has no token: the store is new, the folder for temporary files was
            // cleaned up, or the number is too large and was written by hand. The other files know
            // the last token, unless the original tool has rewritten them. The time in milliseconds
            // is then above every earlier token, unless the clock was set back: no store grants a
            // claim every millisecond.
            u64::try_from(self.now_ms).unwrap_or(0)
        });
        let records = [self.record, self.record_elsewhere].into_iter().flatten();
        let live = self.live.iter().chain(&self.live_elsewhere);
        live.filter_map(|entry| entry.token)
            .chain(records.map(|record| record.last_token))
            .chain([counter])
            .filter(|token| *token <= LARGEST_NUMBER)
            .max()
            .unwrap_or(0)
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
