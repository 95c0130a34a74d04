//! What one operation works on: the live entries of the file, and what is to become of them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::core::Settings;
use crate::entries::{self, Entries, Transaction};
use crate::format::{self, Change, Document, Entry};
use crate::incident::Incident;
use crate::lock::{Access, Held};
use crate::process::Process;
use crate::{Error, SessionId, stamp};

/// Above this, JavaScript's numbers are no longer exact, and its rewrite would change a token.
pub(crate) const LARGEST_NUMBER: u64 = (1 << 53) - 1;

pub(crate) struct State<'a> {
    settings: &'a Settings,
    held: &'a Held,
    document: Document<'a>,
    /// The own entry, if it is new.
    added: Option<String>,
    now_ms: i64,
    /// Whether the file is to be written.
    pub(crate) changed: bool,
    /// A token that was given out, for the counter.
    pub(crate) token: Option<u64>,
    pub(crate) incidents: Vec<Incident>,
}

impl<'a> State<'a> {
    /// Removes the expired entries first, as every operation does.
    pub(crate) fn new(
        settings: &'a Settings,
        held: &'a Held,
        document: Document<'a>,
        access: Access,
    ) -> Result<Self, Error> {
        let now_ms = settings.clock.now_ms();
        let mut state = Self {
            settings,
            held,
            document,
            added: None,
            now_ms,
            changed: false,
            token: None,
            incidents: Vec::new(),
        };
        state.clean();
        if access == Access::Exclusive {
            state.bring_back_stamps()?;
        }
        Ok(state)
    }

    pub(crate) fn mine(&self) -> Option<&Entry<'a>> {
        // Of a session that is there twice, the last one counts, as in JavaScript.
        self.document
            .entries
            .iter()
            .rfind(|entry| entry.session == self.settings.session.as_str())
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = &Entry<'a>> {
        self.document
            .entries
            .iter()
            .filter(|entry| entry.session != self.settings.session.as_str())
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, entry: &Entry<'_>) -> Result<T, Error> {
        serde_json::from_str(entry.fields.data.get()).map_err(|source| Error::Decode {
            path: self.settings.location.file.clone(),
            session: SessionId::of_entry(&*entry.session),
            source: source.into(),
        })
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.settings.ttl_ms)
    }

    pub(crate) fn expires_in(&self, entry: &Entry<'_>) -> Duration {
        let left = self
            .ttl_ms(entry)
            .saturating_sub(self.age_ms(entry).unwrap_or(0));
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    pub(crate) fn entries<T: DeserializeOwned>(&self) -> Result<Entries<T>, Error> {
        let mut all = BTreeMap::new();
        for entry in &self.document.entries {
            let decoded = entries::Entry {
                value: self.decode(entry)?,
                token: entry.fields.token,
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
        let token = match self
            .mine()
            .and_then(|entry| entry.fields.token)
            .filter(|_| renews)
        {
            Some(token) => token,
            None => self.next_token()?,
        };
        self.put(value, Some(token))?;
        Ok(token)
    }

    pub(crate) fn refresh(&mut self) -> Result<bool, Error> {
        let Some(entry) = self.mine() else {
            return Ok(false);
        };
        let text = edit(&entry.text, &[self.new_stamp()])?;
        self.replace_mine(text);
        Ok(true)
    }

    pub(crate) fn remove(&mut self) -> bool {
        let before = self.document.entries.len();
        self.document
            .entries
            .retain(|entry| entry.session != self.settings.session.as_str());
        let removed = self.document.entries.len() < before;
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
                self.refresh()?;
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
        let added = self
            .added
            .as_deref()
            .map(|text| (self.settings.session.as_str(), text));
        self.document.to_bytes(added)
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
        let old = self.mine().map_or("{}", |entry| &entry.text);
        let text = edit(old, &changes)?;
        self.replace_mine(text);
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
        let tokens = self
            .document
            .entries
            .iter()
            .filter_map(|entry| entry.fields.token);
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

    /// From here on only the text of the entry counts: its parsed fields are those it had.
    fn replace_mine(&mut self, text: String) {
        let session = self.settings.session.as_str();
        let entries = &mut self.document.entries;
        let Some(last) = entries.iter().rposition(|entry| entry.session == session) else {
            self.added = Some(text);
            self.changed = true;
            return;
        };
        self.changed |= entries[last].text != text;
        entries[last].text = text.into();
        let mut at = 0;
        entries.retain(|entry| {
            at += 1;
            entry.session != session || at == last + 1
        });
    }

    fn clean(&mut self) {
        let mut entries = std::mem::take(&mut self.document.entries);
        let before = entries.len();
        entries.retain(|entry| match self.age_ms(entry) {
            Some(age) => age <= self.ttl_ms(entry) && !owner_has_ended(entry),
            None => {
                self.incidents.push(Incident::UnreadableStamp {
                    path: self.settings.location.file.clone(),
                    session: SessionId::of_entry(&*entry.session),
                    stamp: entry.fields.updated_at.clone().into_owned(),
                });
                false
            }
        });
        self.changed |= entries.len() < before;
        self.document.entries = entries;
    }

    /// Sets stamps that are ahead of our clock to now: they would live too long, those of a
    /// clock that was years off for ever.
    fn bring_back_stamps(&mut self) -> Result<(), Error> {
        let new_stamp = [self.new_stamp()];
        for entry in &mut self.document.entries {
            if entry
                .fields
                .stamp_ms()
                .is_some_and(|stamp| stamp > self.now_ms)
            {
                entry.text = edit(&entry.text, &new_stamp)?.into();
                self.changed = true;
            }
        }
        Ok(())
    }

    fn new_stamp(&self) -> Change<'static> {
        (
            "updated_at",
            Some(format!("\"{}\"", stamp::format(self.now_ms))),
        )
    }

    /// At least zero, also for a stamp that is ahead of our clock.
    fn age_ms(&self, entry: &Entry<'_>) -> Option<i64> {
        entry
            .fields
            .stamp_ms()
            .map(|stamp| self.now_ms.saturating_sub(stamp).max(0))
    }

    fn ttl_ms(&self, entry: &Entry<'_>) -> i64 {
        i64::try_from(entry.fields.ttl_ms.unwrap_or(self.settings.ttl_ms)).unwrap_or(i64::MAX)
    }
}

/// Only entries that name a process can end with one. An owner that we do not understand is
/// some other tool's field.
fn owner_has_ended(entry: &Entry<'_>) -> bool {
    let owner = entry
        .fields
        .owner
        .and_then(|owner| serde_json::from_str::<Process>(owner.get()).ok());
    owner.is_some_and(|owner| owner.has_ended())
}

fn json<T: Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|source| Error::Encode {
        source: source.into(),
    })
}

fn edit(text: &str, changes: &[Change<'_>]) -> Result<String, Error> {
    format::edit(text, changes).map_err(|source| Error::Encode {
        source: source.into(),
    })
}
