//! What one operation works on: the live entries of the file, and what is to become of them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::core::Settings;
use crate::entries::{self, Entries, Transaction};
use crate::format::{self, Change, Entry};
use crate::incident::Incident;
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
    entries: Vec<Entry<'a>>,
    /// What stands beside `storage`.
    extra: Vec<&'a str>,
    /// The own entry, if it is new.
    added: Option<String>,
    now_ms: i64,
    /// Whether the file is to be written.
    pub(crate) changed: bool,
    /// A token that was given out, for the counter.
    pub(crate) token: Option<u64>,
    pub(crate) incidents: Vec<Incident>,
}

/// What an operation needs of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// To read its own entry. The others are looked at, to see whether one has expired.
    ReadMine,
    ReadAll,
    Change,
}

impl<'a> State<'a> {
    /// A state without entries.
    pub(crate) fn new(settings: &'a Settings, held: &'a Held, scope: Scope) -> Self {
        Self {
            settings,
            held,
            scope,
            entries: Vec::new(),
            extra: Vec::new(),
            added: None,
            now_ms: settings.clock.now_ms(),
            changed: false,
            token: None,
            incidents: Vec::new(),
        }
    }

    /// Takes the entries of the file; what of it is not sound is left to the caller.
    pub(crate) fn load(&mut self, text: &'a str) -> Result<(), Damage> {
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
    fn admit(&mut self, mut entry: Entry<'a>) {
        let Some(stamp_ms) = entry.stamp_ms else {
            self.incidents.push(Incident::UnreadableStamp {
                path: self.settings.location.file.clone(),
                session: SessionId::of_entry(entry.session),
                stamp: entry.updated_at.into_owned(),
            });
            self.changed = true;
            return;
        };
        if self.age_ms(&entry) > self.ttl_ms(&entry) || owner_has_ended(&entry) {
            self.changed = true;
            return;
        }
        // It would live too long; one of a clock that was years off, for ever.
        if stamp_ms > self.now_ms && self.scope == Scope::Change {
            entry.rewrite(entry.edited(&[self.new_stamp()]));
            self.changed = true;
        }
        if self.scope != Scope::ReadMine || entry.session == self.settings.session.as_str() {
            self.entries.push(entry);
        }
    }

    pub(crate) fn mine(&self) -> Option<&Entry<'a>> {
        // Of a session that is there twice, the last one counts, as in JavaScript.
        self.entries
            .iter()
            .rfind(|entry| entry.session == self.settings.session.as_str())
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = &Entry<'a>> {
        self.entries
            .iter()
            .filter(|entry| entry.session != self.settings.session.as_str())
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
        for entry in &self.entries {
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
        self.others()
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
        line.into_iter().for_each(|line| self.replace_mine(line));
        found
    }

    pub(crate) fn remove(&mut self) -> bool {
        let before = self.entries.len();
        self.entries
            .retain(|entry| entry.session != self.settings.session.as_str());
        let removed = self.entries.len() < before;
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
        format::to_bytes(&self.extra, &self.entries, self.added.as_deref())
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
        self.replace_mine(line);
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
        let tokens = self.entries.iter().filter_map(|entry| entry.token);
        let tokens = tokens.filter(|token| *token <= LARGEST_NUMBER);
        let token = tokens.fold(counter, u64::max) + 1;
        if token > LARGEST_NUMBER {
            return Err(Error::TokensExhausted {
                path: self.settings.location.file.clone(),
            });
        }
        self.token = Some(token);
        Ok(token)
    }

    /// From here on only the line of the entry counts: the rest is what was read.
    fn replace_mine(&mut self, line: String) {
        let session = self.settings.session.as_str();
        let Some(last) = self
            .entries
            .iter()
            .rposition(|entry| entry.session == session)
        else {
            self.added = Some(line);
            self.changed = true;
            return;
        };
        self.changed |= self.entries[last].rewrite(line);
        let mut at = 0;
        self.entries.retain(|entry| {
            at += 1;
            entry.session != session || at == last + 1
        });
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
fn owner_has_ended(entry: &Entry<'_>) -> bool {
    let owner = entry
        .owner
        .and_then(|owner| serde_json::from_str::<Process>(owner).ok());
    owner.is_some_and(|owner| owner.has_ended())
}

fn json<T: Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|source| Error::Encode {
        source: source.into(),
    })
}
