//! Tests of the suite: each storage here has one defect, and at least one clause finds it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_snapshot::conformance::{self, Fixture};
use agent_snapshot::conversation::Message;
use agent_snapshot::{
    AgentId, AgentInfo, AgentSnapshot, Error, History, MemoryStorage, Position, SnapshotStorage,
};
use async_trait::async_trait;

/// The defects, and a list of all of them.
macro_rules! defects {
    ($($name:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Defect {
            $($name,)*
        }

        const ALL: &[Defect] = &[$(Defect::$name,)*];
    };
}

defects! {
    LosesTheLastByte,
    CutsLongMessages,
    ForgetsDelete,
    ForgetsTheStreamWhenDeleting,
    ForgetsTheEpochWhenDeleting,
    AcceptsAStaleTick,
    AcceptsTheSameTickTwice,
    ComparesTicksAsText,
    ComparesTicksAsDoubles,
    IgnoresRevisions,
    IgnoresEpochs,
    RefusesARepeat,
    RaisesTheEpochWhenLoading,
    SwapsAgents,
    FoldsCase,
    DeletesByPrefix,
    NothingWhenDamaged,
    OverwritesDamage,
    LosesUnknownFields,
    ReversesEvents,
    DropsTheOldestEvent,
    MintsIds,
    LosesThePinnedMessages,
    LosesTheSummary,
    ForgetsTrimmedMessages,
    CountsFromOne,
    AppendsToAnotherHistory,
    ListsTwice,
    ListsUnsorted,
    ListsTheDeleted,
    LosesTheLastSaveWhenReopened,
    KeepsHandlesApart,
    LosesEverythingOnClose,
    ChecksAndThenWrites,
    SavesInTwoSteps,
    ReportsConflictsAsFailures,
    NamesAnotherAgentInAConflict,
    ReplacesAfterARewind,
    ReplacesUnknownHistories,
    AcceptsARewindToNothing,
    ReportsARewindOnce,
    ReportsARewindAsAConflict,
    SwapsThePositionsOfARewind,
    HidesThePositionAfterARewind,
    RefusesAFirstSaveWithATick,
    OverwriteIsASave,
    OverwriteBreaksTheFence,
    OverwriteForgetsTheStream,
    CutsLongIds,
    PagesRepeatTheLastAgent,
    PagesIgnoreTheLimit,
    PagesForgetLabels,
    PagesShowAnOldTick,
    PagesHideTheDamaged,
    ExpiresEveryAgent,
    ExpiresNoAgent,
    ExpiresByTheTimeOfTheSnapshot,
    ExpiresWithTheEpoch,
    CapsTheNewest,
    CapsTheView,
    CapsEveryAgent,
    CapsOneTooMany,
}

use Defect::*;

/// The data of one fixture, outside the correct storage.
#[derive(Debug, Default)]
struct Shared {
    good: Mutex<MemoryStorage>,
    damaged: Mutex<BTreeSet<AgentId>>,
    deleted: Mutex<BTreeSet<AgentId>>,
    streams: Mutex<BTreeMap<AgentId, Vec<Message>>>,
    last: Mutex<BTreeMap<AgentId, AgentSnapshot>>,
    backup: Mutex<MemoryStorage>,
    told: Mutex<BTreeSet<AgentId>>,
}

#[derive(Debug)]
struct Broken {
    defect: Defect,
    shared: Arc<Shared>,
}

struct BrokenFixture {
    defect: Defect,
    shared: Arc<Shared>,
    /// Whether to open the storage without its defect.
    is_correct: bool,
}

#[async_trait]
impl Fixture for BrokenFixture {
    async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error> {
        if self.is_correct {
            return Ok(Arc::new(self.shared.good()));
        }
        let shared = match self.defect {
            KeepsHandlesApart => Arc::default(),
            _ => self.shared.clone(),
        };
        if self.defect == LosesTheLastSaveWhenReopened {
            let last = std::mem::take(&mut *shared.last.lock().unwrap());
            for snapshot in last.values() {
                let good = shared.good();
                let stored = good.load(&snapshot.agent_id).await?;
                if stored.is_some_and(|stored| stored.tick_index == snapshot.tick_index) {
                    good.delete(&snapshot.agent_id).await?;
                }
            }
        }
        let defect = self.defect;
        Ok(Arc::new(Broken { defect, shared }))
    }

    async fn damage(&self, agent: &AgentId) -> bool {
        self.shared.damaged.lock().unwrap().insert(agent.clone());
        !self.is_correct
    }

    async fn back_up(&self) -> bool {
        *self.shared.backup.lock().unwrap() = self.shared.good().backup();
        true
    }

    async fn rewind(&self) {
        let backup = self.shared.backup.lock().unwrap();
        self.shared.good().rewind_to(&backup);
    }

    async fn age_an_hour(&self, agent: &AgentId) -> bool {
        self.shared.good().age(agent, Duration::from_secs(3600));
        true
    }
}

impl Shared {
    fn good(&self) -> MemoryStorage {
        self.good.lock().unwrap().clone()
    }

    fn check(&self, agent: &AgentId) -> Result<(), Error> {
        match self.damaged.lock().unwrap().contains(agent) {
            false => Ok(()),
            true => Err(Error::Damaged {
                agent: agent.clone(),
                location: "memory".into(),
                reason: "made up".into(),
            }),
        }
    }
}

impl Broken {
    fn good(&self) -> MemoryStorage {
        self.shared.good()
    }

    /// Saves without a comparison.
    async fn force(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        let fresh = MemoryStorage::new();
        let good = self.good();
        for agent in good.list().await? {
            if agent != snapshot.agent_id
                && let Some(other) = good.load(&agent).await?
            {
                fresh.save(&other).await?;
            }
        }
        fresh.save(snapshot).await?;
        *self.shared.good.lock().unwrap() = fresh;
        Ok(())
    }

    async fn save_with_defect(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        let good = self.good();
        let stored = good.load(&snapshot.agent_id).await?;
        let tick = stored.as_ref().map(|stored| stored.tick_index);
        let same_life = stored
            .as_ref()
            .is_some_and(|stored| stored.epoch <= snapshot.epoch);
        match self.defect {
            AcceptsAStaleTick if same_life && tick > Some(snapshot.tick_index) => {
                self.force(snapshot).await
            }
            AcceptsTheSameTickTwice if same_life && tick == Some(snapshot.tick_index) => {
                self.force(snapshot).await
            }
            ComparesTicksAsText
                if tick.is_some_and(|tick| tick.to_string() > snapshot.tick_index.to_string()) =>
            {
                good.save(&AgentSnapshot::new(snapshot.agent_id.clone()))
                    .await
            }
            ComparesTicksAsDoubles
                if tick.is_some_and(|tick| tick as f64 == snapshot.tick_index as f64) =>
            {
                good.save(&AgentSnapshot::new(snapshot.agent_id.clone()))
                    .await
            }
            IgnoresRevisions if snapshot.revision > 0 && tick == Some(snapshot.tick_index) => {
                Ok(())
            }
            IgnoresEpochs => match good.save(snapshot).await {
                Err(error) if error.is_fenced() => self.force(snapshot).await,
                result => result,
            },
            RefusesARepeat if stored.as_ref() == Some(snapshot) => {
                let mut other = snapshot.clone();
                other.set_timestamp(other.timestamp() + Duration::from_millis(1));
                good.save(&other).await
            }
            ChecksAndThenWrites
                if tick.is_none_or(|tick| tick < snapshot.tick_index) && same_life =>
            {
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                self.force(snapshot).await
            }
            SavesInTwoSteps if stored.is_some() && good.save(snapshot).await.is_ok() => {
                let mut half = snapshot.clone();
                half.memory.working_variables.clear();
                self.force(&half).await?;
                tokio::time::sleep(Duration::from_millis(2)).await;
                self.force(snapshot).await
            }
            RefusesAFirstSaveWithATick if stored.is_none() && snapshot.tick_index > 0 => {
                let committed = Position::of(snapshot);
                Err(Error::Rewound {
                    agent: snapshot.agent_id.clone(),
                    committed,
                    stored: None,
                })
            }
            _ => good.save(snapshot).await,
        }
    }

    /// Reports a rewind, with a defect.
    async fn rewound(&self, snapshot: &AgentSnapshot, error: Error) -> Result<(), Error> {
        let Error::Rewound {
            agent,
            committed,
            stored,
        } = error
        else {
            return Err(error);
        };
        let is_unknown = committed == Position::of(snapshot);
        let first = || self.shared.told.lock().unwrap().insert(agent.clone());
        let accepts = match self.defect {
            ReplacesAfterARewind => !is_unknown && stored.is_some(),
            ReplacesUnknownHistories => is_unknown,
            AcceptsARewindToNothing => stored.is_none(),
            ReportsARewindOnce => !first(),
            _ => false,
        };
        if accepts {
            return self.good().overwrite(snapshot).await;
        }
        match self.defect {
            ReportsARewindAsAConflict => Err(Error::Conflict {
                agent,
                tick: snapshot.tick_index,
                revision: 0,
                epoch: snapshot.epoch,
                stored_tick: committed.tick,
                stored_revision: 0,
                stored_epoch: committed.epoch,
            }),
            SwapsThePositionsOfARewind => Err(Error::Rewound {
                agent,
                committed: stored.unwrap_or(committed),
                stored: stored.is_some().then_some(committed),
            }),
            HidesThePositionAfterARewind => Err(Error::Rewound {
                agent,
                committed,
                stored: None,
            }),
            _ => Err(Error::Rewound {
                agent,
                committed,
                stored,
            }),
        }
    }

    fn spoil(&self, snapshot: &mut AgentSnapshot) {
        let history = &mut snapshot.memory.short_term_history;
        let change = |history: &mut History, change: &dyn Fn(&mut Message)| {
            let mut messages: Vec<Message> =
                history.tail().map(|(_, message)| message.clone()).collect();
            if history.first_seq() == 0 && history.pinned().is_empty() {
                messages.iter_mut().for_each(change);
                *history = messages.into_iter().collect();
            }
        };
        match self.defect {
            LosesTheLastByte => change(history, &|message| {
                message.content.as_mut().map(String::pop);
            }),
            CutsLongMessages => change(history, &|message| {
                if let Some(text) = &mut message.content
                    && text.len() > 65_535
                {
                    *text = text.chars().take(65_535).collect();
                }
            }),
            MintsIds => change(history, &|message| message.id = Some("minted".into())),
            LosesThePinnedMessages => history.pin(Vec::new()),
            LosesTheSummary => history.set_summary(None),
            LosesUnknownFields => snapshot.extra.clear(),
            ReversesEvents => snapshot.event_queue_backup.reverse(),
            DropsTheOldestEvent if !snapshot.event_queue_backup.is_empty() => {
                snapshot.event_queue_backup.remove(0);
            }
            RaisesTheEpochWhenLoading => snapshot.epoch += 1,
            _ => {}
        }
    }

    fn folded(&self, agent: &AgentId) -> AgentId {
        match self.defect {
            FoldsCase => AgentId::new(agent.as_str().to_lowercase()).unwrap(),
            CutsLongIds => {
                let short: String = agent.as_str().chars().take(64).collect();
                AgentId::new(short.trim()).unwrap()
            }
            _ => agent.clone(),
        }
    }
}

#[async_trait]
impl SnapshotStorage for Broken {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        if self.defect == OverwritesDamage {
            self.shared
                .damaged
                .lock()
                .unwrap()
                .remove(&snapshot.agent_id);
        }
        self.shared.check(&snapshot.agent_id)?;
        if [FoldsCase, CutsLongIds].contains(&self.defect) {
            let mut folded = snapshot.clone();
            folded.agent_id = self.folded(&snapshot.agent_id);
            return self.good().save(&folded).await;
        }
        let saved = match self.save_with_defect(snapshot).await {
            Err(error) if error.is_rewound() => self.rewound(snapshot, error).await,
            result => result,
        };
        match saved {
            Err(Error::Conflict { .. }) if self.defect == ReportsConflictsAsFailures => {
                Err(Error::Storage {
                    action: "save to",
                    location: "memory".into(),
                    source: "conflict".into(),
                })
            }
            Err(Error::Conflict {
                stored_tick,
                stored_revision,
                stored_epoch,
                tick,
                revision,
                epoch,
                ..
            }) if self.defect == NamesAnotherAgentInAConflict => {
                let agent = AgentId::new("another").unwrap();
                Err(Error::Conflict {
                    agent,
                    tick,
                    revision,
                    epoch,
                    stored_tick,
                    stored_revision,
                    stored_epoch,
                })
            }
            Err(error) => Err(error),
            Ok(()) => {
                let mut last = self.shared.last.lock().unwrap();
                last.insert(snapshot.agent_id.clone(), snapshot.clone());
                let mut streams = self.shared.streams.lock().unwrap();
                let stream = streams.entry(snapshot.agent_id.clone()).or_default();
                let tail = snapshot.memory.short_term_history.tail();
                for (_, message) in tail {
                    if !stream.contains(message) {
                        stream.push(message.clone());
                    }
                }
                Ok(())
            }
        }
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        if let Err(error) = self.shared.check(agent) {
            return if self.defect == NothingWhenDamaged {
                Ok(None)
            } else {
                Err(error)
            };
        }
        let good = self.good();
        let agent = match self.defect {
            SwapsAgents => good.list().await?.first().unwrap_or(agent).clone(),
            _ => self.folded(agent),
        };
        let mut snapshot = good.load(&agent).await?;
        if let Some(snapshot) = &mut snapshot {
            self.spoil(snapshot);
        }
        Ok(snapshot)
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.shared.damaged.lock().unwrap().remove(agent);
        let good = self.good();
        if good.load(agent).await?.is_some() {
            self.shared.deleted.lock().unwrap().insert(agent.clone());
        }
        match self.defect {
            ForgetsDelete => Ok(()),
            ForgetsTheEpochWhenDeleting => {
                let fresh = MemoryStorage::new();
                for other in good.list().await? {
                    if other != *agent
                        && let Some(snapshot) = good.load(&other).await?
                    {
                        fresh.save(&snapshot).await?;
                    }
                }
                *self.shared.good.lock().unwrap() = fresh;
                Ok(())
            }
            DeletesByPrefix => {
                for other in good.list().await? {
                    if other.as_str().starts_with(agent.as_str()) {
                        good.delete(&other).await?;
                    }
                }
                Ok(())
            }
            _ => good.delete(&self.folded(agent)).await,
        }
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        let mut agents = self.good().list().await?;
        match self.defect {
            ListsTwice => agents.extend(agents.clone()),
            ListsUnsorted => agents.reverse(),
            ListsTheDeleted => {
                let deleted = self.shared.deleted.lock().unwrap();
                agents.extend(deleted.iter().cloned());
                agents.sort();
                agents.dedup();
            }
            _ => {}
        }
        Ok(agents)
    }

    async fn overwrite(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        self.shared.check(&snapshot.agent_id)?;
        let good = self.good();
        if self.defect == OverwriteIsASave {
            return good.save(snapshot).await;
        }
        match (self.defect, good.overwrite(snapshot).await) {
            (OverwriteBreaksTheFence, Err(error)) if error.is_conflict() => {
                self.force(snapshot).await
            }
            (OverwriteForgetsTheStream, Ok(())) => self.force(snapshot).await,
            (_, result) => result,
        }
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        self.shared.check(agent)?;
        let good = self.good();
        let mut stream = good.stream(&self.folded(agent), range).await?;
        let kept = self
            .shared
            .streams
            .lock()
            .unwrap()
            .get(agent)
            .cloned()
            .unwrap_or_default();
        match self.defect {
            ForgetsTheStreamWhenDeleting if stream.is_empty() => {
                stream = (0..).zip(kept).collect();
            }
            AppendsToAnotherHistory if !stream.is_empty() && kept.len() > stream.len() => {
                stream = (0..).zip(kept).collect();
            }
            ForgetsTrimmedMessages => {
                let loaded = good.load(agent).await?;
                let first = loaded.map_or(0, |loaded| loaded.memory.short_term_history.first_seq());
                stream.retain(|(seq, _)| *seq >= first);
            }
            CountsFromOne => stream.iter_mut().for_each(|(seq, _)| *seq += 1),
            _ => {}
        }
        Ok(stream)
    }

    async fn page(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentInfo>, Error> {
        let good = self.good();
        let mut page = match (self.defect, after) {
            (PagesRepeatTheLastAgent, Some(after)) => {
                let all = good.page(None, usize::MAX).await?;
                let rest = all.into_iter().filter(|info| info.agent >= *after);
                rest.take(limit).collect()
            }
            (PagesIgnoreTheLimit, after) => good.page(after, usize::MAX).await?,
            (_, after) => good.page(after, limit).await?,
        };
        for info in &mut page {
            match self.defect {
                PagesForgetLabels => info.labels.clear(),
                PagesShowAnOldTick => {
                    if let Some(position) = &mut info.position {
                        position.tick -= position.tick.min(1);
                    }
                }
                _ => {}
            }
        }
        if self.defect == PagesHideTheDamaged {
            let damaged = self.shared.damaged.lock().unwrap();
            page.retain(|info| !damaged.contains(&info.agent));
        }
        Ok(page)
    }

    async fn expire(&self, older_than: Duration) -> Result<Vec<AgentId>, Error> {
        let good = self.good();
        match self.defect {
            ExpiresEveryAgent => good.expire(Duration::ZERO).await,
            ExpiresNoAgent => Ok(Vec::new()),
            ExpiresByTheTimeOfTheSnapshot => {
                let mut expired = Vec::new();
                for agent in good.list().await? {
                    let snapshot = good.load(&agent).await?.unwrap();
                    if snapshot.timestamp().elapsed().unwrap() >= older_than {
                        good.delete(&agent).await?;
                        expired.push(agent);
                    }
                }
                Ok(expired)
            }
            ExpiresWithTheEpoch => {
                let expired = good.expire(older_than).await?;
                if !expired.is_empty() {
                    *self.shared.good.lock().unwrap() = MemoryStorage::new();
                }
                Ok(expired)
            }
            _ => good.expire(older_than).await,
        }
    }

    async fn cap_stream(&self, agent: &AgentId, keep: u64) -> Result<u64, Error> {
        let good = self.good();
        match self.defect {
            CapsTheNewest | CapsTheView => {
                let Some(mut snapshot) = good.load(agent).await? else {
                    return Ok(0);
                };
                let removed = good.cap_stream(agent, keep).await?;
                let history = &mut snapshot.memory.short_term_history;
                if self.defect == CapsTheView {
                    history.drop_front(1);
                } else {
                    let kept: Vec<_> = good.stream(agent, 0..keep).await?;
                    *history = kept.into_iter().map(|(_, message)| message).collect();
                }
                self.force(&snapshot).await?;
                Ok(removed)
            }
            CapsEveryAgent => {
                for other in good.list().await? {
                    if other != *agent {
                        let mut snapshot = good.load(&other).await?.unwrap();
                        snapshot.memory.short_term_history.drop_front(1);
                        self.force(&snapshot).await?;
                    }
                }
                self.good().cap_stream(agent, keep).await
            }
            CapsOneTooMany => good.cap_stream(agent, keep.saturating_sub(1)).await,
            _ => good.cap_stream(agent, keep).await,
        }
    }

    async fn close(&self) -> Result<(), Error> {
        if self.defect == LosesEverythingOnClose {
            *self.shared.good.lock().unwrap() = MemoryStorage::new();
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_defect_is_caught() {
    assert!(ALL.len() >= 60);
    let mut tasks = Vec::new();
    for &defect in ALL {
        let run = move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            let fixture = async || BrokenFixture {
                defect,
                shared: Arc::default(),
                is_correct: false,
            };
            runtime.block_on(conformance::run(fixture))
        };
        tasks.push((defect, tokio::task::spawn_blocking(run)));
    }
    let mut missed = Vec::new();
    for (defect, task) in tasks {
        let report = task.await.unwrap();
        match report.failures().next() {
            Some(outcome) => {
                let count = report.failures().count();
                eprintln!("{defect:?}: {count} clauses, first: {}", outcome.clause);
            }
            None => missed.push(defect),
        }
    }
    assert_eq!(missed, [], "not caught");
}

/// The wrapper alone has no defect, so the suite finds the defects and not the wrapper.
#[tokio::test(flavor = "multi_thread")]
async fn the_storage_under_the_defects_is_correct() {
    let fixture = async || BrokenFixture {
        defect: ForgetsDelete,
        shared: Arc::default(),
        is_correct: true,
    };
    let report = conformance::run(fixture).await;
    assert!(report.passed(), "{report}");
}
