//! The list of the system's pools, and their creation and destruction.
//!
//! The system service keeps it ([`Keeper`]), in attributes of a small pool of its own on one, three or five engines. What a
//! creation or destruction is going to do is durable before its first step, and every step is idempotent: after a crash, or
//! where another engine leads, the directory takes up what was begun. A creation that can't succeed is taken back.
//!
//! The room calls stored records, the pools of a target for what has become of its device, and other engines over the tree. The
//! daemon's management calls it; a target's pools ask it by requests only.

mod absent;
mod growth;
mod keeper;
mod members;
mod origin;
mod paces;
mod plan;
mod tenants;

pub use keeper::Keeper;
pub use plan::PoolSpec;
pub use tenants::{PoolUse, TenantUse};

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};
use std::time::Duration;

use uuid::Uuid;
use weir_group::{AskError, Engines, Spread};
use weir_proto::pool::{
    PoolTarget, ResolveReply, TargetPoolCreate, TargetPoolDestroy, TargetPoolResize, validate_label,
};
use weir_proto::{Der, PoolId, Rank, opcode};
use weir_raft::{Command, Lost};
use weir_runtime::join_all;
use weir_runtime::sync::Semaphore;
use weir_store::{AttributeChange, Shard};

use crate::error::Failed;
use crate::record::{self, DirectoryEntry, EntryState, PoolRecord, SCOPE_DIRECTORY, SYSTEM_POOL};
use crate::service::{Led, Made};
use crate::target::{ask_leader, newest_replicas};
use absent::Absent;
use plan::{SHARE_MIN, compare, share_of};
use tenants::Tenants;

/// Longest wait for one target to create or destroy its shard: a few writes to its log.
const STEP_LIMIT: Duration = Duration::from_secs(10);

/// Pause between attempts to finish what was begun while an engine was down.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Longest time for which what a deposed leader has sent may arrive: one step, and once more without the tree.
const EARLIER_LIMIT: Duration = Duration::from_secs(30);

/// The term of the first leader of a new group: the one before has none.
const FIRST_TERM: u64 = 2;

/// Replicas are taking the place of the only keeper.
const MOVED: Failed = Failed::NoKeeper("other engines are beginning to keep it, too");

/// The list of pools.
pub struct Directory {
    engines: Rc<Engines>,
    spread: Rc<Spread>,
    shard: Shard,
    /// By what it leads; nothing where only this engine keeps the list.
    led: Option<Led>,
    /// One batch is stored at a time.
    changing: Semaphore,
    /// Replicas take its place.
    retired: Cell<bool>,
    absent: Absent,
    tenants: Tenants,
    entries: RefCell<BTreeMap<PoolId, DirectoryEntry>>,
    /// One change at a time for each label.
    turns: RefCell<HashMap<String, Semaphore>>,
}

impl Directory {
    /// Loads the list and takes up what was begun. `led`: it is replicated, and this engine's replica leads.
    ///
    /// # Errors
    /// When the list can't be read.
    pub(crate) fn open(
        shard: Shard,
        engines: Rc<Engines>,
        spread: Rc<Spread>,
        led: Option<Led>,
    ) -> Result<Rc<Self>, Failed> {
        let mut entries = BTreeMap::new();
        for (_, bytes) in record::load_scope(&shard, SCOPE_DIRECTORY) {
            let entry: DirectoryEntry = record::decode(SYSTEM_POOL, &bytes)?;
            entries.insert(entry.pool.pool, entry);
        }
        let ready = entries.values().filter(|entry| entry.state == EntryState::Ready);
        let absent = Absent::load(&shard, ready)?;
        let tenants = Tenants::load(&shard)?;
        let directory = Rc::new(Self {
            engines,
            spread,
            shard,
            led,
            changing: Semaphore::new(1),
            retired: Cell::new(false),
            absent,
            tenants,
            entries: RefCell::new(entries),
            turns: RefCell::default(),
        });
        let rt = directory.engines.runtime().clone();
        rt.spawn(take_up(Rc::downgrade(&directory), rt.clone()));
        rt.spawn(absent::catch_up(Rc::downgrade(&directory), rt.clone()));
        Ok(directory)
    }

    /// Makes sure that this directory is the one that counts: what it says includes all that was acknowledged.
    ///
    /// # Errors
    /// When another engine keeps the list, or may.
    pub async fn confirm(&self) -> Result<(), Failed> {
        if self.retired.get() {
            return Err(MOVED);
        }
        let Some(led) = &self.led else { return Ok(()) };
        led.replica.confirm(led.leadership.term).await.map_err(|lost| self.lost(&lost))
    }

    /// Changes nothing any more, once what is being stored is stored.
    async fn retire(&self) {
        let _permit = self.changing.acquire().await;
        self.retired.set(true);
    }

    /// Whether this directory counts no more. Nobody is told anything then.
    fn is_over(&self) -> bool {
        let leads = |led: &Led| led.replica.leadership() == Some(led.leadership);
        self.retired.get() || self.led.as_ref().is_some_and(|led| !leads(led))
    }

    /// Whether another leader may have sent something that is still under way.
    fn follows_another(&self) -> bool {
        let now = self.engines.runtime().now();
        let is_new = |led: &Led| {
            led.leadership.term > FIRST_TERM
                && now.saturating_duration_since(led.leadership.since) < EARLIER_LIMIT
        };
        self.led.as_ref().is_some_and(is_new)
    }

    /// Makes changes durable, on most replicas where there are several.
    async fn commit(&self, changes: &[AttributeChange]) -> Result<(), Failed> {
        if let Some(led) = &self.led {
            let command = Command { changes: changes.to_vec(), ..Command::default() };
            let proposed = led.replica.propose(led.leadership.term, command).await;
            return proposed.map(drop).map_err(|lost| self.lost(&lost));
        }
        let _permit = self.changing.acquire().await;
        if self.retired.get() {
            return Err(MOVED);
        }
        Ok(self.shard.change_attributes(changes).await?)
    }

    fn lost(&self, lost: &Lost) -> Failed {
        match lost {
            Lost::NotLeader(_) => Failed::NoKeeper("another one is being found"),
            Lost::InDoubt => Failed::NoKeeper("this one has ceased to lead them"),
            Lost::TooLong { .. } => {
                Failed::Invalid { object: "the list of pools".to_owned(), reason: lost.to_string() }
            }
            Lost::Failed(reason) => Failed::OutOfService {
                rank: self.engines.own_rank(),
                index: self.engines.own_index(),
                reason: reason.clone(),
            },
        }
    }

    /// Answers where the service of a pool is. What is left of a destroyed pool is more than an unknown pool to an engine that
    /// still has a part of it.
    async fn answer(&self, name: &str) -> Result<ResolveReply, Failed> {
        self.confirm().await?;
        match Uuid::try_parse(name).map(PoolId) {
            Ok(pool) if self.absent.is_remnant(pool) => Err(Failed::Remnant(pool)),
            _ => self.find_service(name).await,
        }
    }

    /// The same as [`Directory::resolve`], but for an engine that is away: then it is one of those that replicate the service now.
    async fn find_service(&self, name: &str) -> Result<ResolveReply, Failed> {
        let found = self.resolve(name)?;
        let entry = self.find(name).filter(|_| self.spread.is_dead(found.service));
        let Some(entry) = entry else { return Ok(found) };
        let replicas = newest_replicas(&self.engines, &entry.pool, &entry.ranks).await;
        let service = replicas.into_iter().find(|rank| !self.spread.is_dead(*rank)).unwrap_or(found.service);
        Ok(ResolveReply { service, ..found })
    }

    /// Every pool, by identity.
    #[must_use]
    pub fn list(&self) -> Vec<DirectoryEntry> {
        self.entries.borrow().values().cloned().collect()
    }

    /// A pool by label or UUID text.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<DirectoryEntry> {
        let entries = self.entries.borrow();
        match Uuid::try_parse(name) {
            Ok(uuid) => entries.get(&PoolId(uuid)).cloned(),
            Err(_) => entries.values().find(|entry| entry.pool.label == name).cloned(),
        }
    }

    /// Where the service of a pool runs.
    ///
    /// # Errors
    /// When there is no such pool, or it is being created or destroyed.
    pub fn resolve(&self, name: &str) -> Result<ResolveReply, Failed> {
        let shown = || name.chars().take(weir_proto::limits::LABEL_MAX).collect::<String>();
        let entry = self.find(name).ok_or_else(|| Failed::NoPool(shown()))?;
        match entry.state {
            EntryState::Ready => Ok(ResolveReply { pool: entry.pool.pool, service: entry.pool.service }),
            EntryState::Creating => Err(Failed::InTransition(shown(), "created")),
            EntryState::Destroying => Err(Failed::InTransition(shown(), "destroyed")),
        }
    }

    /// Creates a pool on its targets, or returns the existing one of the same label and properties. Of requests that come at
    /// once, one has made it.
    ///
    /// # Errors
    /// When the pool is impossible, its label is taken by another, or an engine refuses or doesn't answer; nothing
    /// is left then, or what is left goes in the background.
    pub async fn create(&self, spec: PoolSpec) -> Result<Made<DirectoryEntry>, Failed> {
        let object = format!("pool {}", spec.label);
        validate_label(&spec.label)
            .map_err(|error| Failed::Invalid { object: object.clone(), reason: error.to_string() })?;
        let turn = self.turn(&spec.label);
        let _permit = turn.acquire().await;
        if let Some(existing) = self.find(&spec.label) {
            // What was made for a request that is repeated may have been resized since.
            if spec.identity != Some(existing.pool.pool) {
                compare(&existing, &spec)?;
            }
            return match existing.state {
                EntryState::Ready => Ok(Made { it: existing, existed: true }),
                EntryState::Creating => self.finish_creation(existing).await.map(Made::now),
                EntryState::Destroying => Err(Failed::InTransition(spec.label, "destroyed")),
            };
        }
        let entry = self.plan(spec).await?;
        self.put(&entry).await?;
        self.finish_creation(entry).await.map(Made::now)
    }

    fn turn(&self, label: &str) -> Semaphore {
        let mut turns = self.turns.borrow_mut();
        // A task that holds or waits for a turn has a clone; the others are not needed any more.
        turns.retain(|_, turn| turn.available() == 0 || turn.waiting() > 0);
        turns.entry(label.to_owned()).or_insert_with(|| Semaphore::new(1)).clone()
    }

    /// Tells every target, the one with the service last, so that a pool that answers is complete.
    async fn finish_creation(&self, mut entry: DirectoryEntry) -> Result<DirectoryEntry, Failed> {
        let created = match self.create_everywhere(&entry.pool, &entry.ranks).await {
            Ok(()) => self.limit_new_pool(&entry.pool).await,
            Err(error) => Err(error),
        };
        if let Err(error) = created {
            tracing::warn!(pool = entry.pool.label, %error, "the creation of a pool is taken back");
            entry.state = EntryState::Destroying;
            self.put(&entry).await?;
            if let Err(left) = self.finish_destruction(&entry, false, false).await {
                tracing::info!(pool = entry.pool.label, error = %left, "the rest goes in the background");
            }
            return Err(Failed::asking(format!("pool {}", entry.pool.label), "creating it", error));
        }
        entry.state = EntryState::Ready;
        self.put(&entry).await?;
        tracing::info!(pool = %entry.pool.pool, label = entry.pool.label, size = entry.size, "pool created");
        Ok(entry)
    }

    async fn create_everywhere(&self, pool: &PoolRecord, ranks: &[Rank]) -> Result<(), AskError> {
        let opcode = opcode::TARGET_POOL_CREATE;
        let pool = &TargetPoolCreate::from(pool.clone());
        let others: Vec<Rank> = ranks.iter().copied().filter(|rank| *rank != pool.service).collect();
        if let Some(error) = self.spread.tell(&others, opcode, pool, STEP_LIMIT).await.into_iter().next() {
            return Err(error);
        }
        let serving = |target: &&PoolTarget| target.rank == pool.service;
        let (last, first): (Vec<_>, Vec<_>) =
            pool.map.targets.iter().filter(serving).partition(|target| target.index.0 == 0);
        for group in [first, last] {
            if self.is_over() {
                break;
            }
            let asked = group
                .iter()
                .map(|target| self.engines.ask::<_, ()>(target.rank, target.index, opcode, pool, STEP_LIMIT));
            join_all(asked).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    /// Destroys a pool. Destroying a missing one succeeds; the answer is whether there was one. Engines that are away, and targets out of service, give their
    /// parts back when they are here again; but one that goes on in the background waits for all, unless it is asked for again.
    ///
    /// # Errors
    /// When the pool has containers and `force` is not set; when it is not set and the service doesn't answer; or when a target refuses:
    /// the destruction then goes on in the background.
    pub async fn destroy(&self, name: &str, force: bool) -> Result<bool, Failed> {
        let Some(found) = self.find(name) else { return Ok(false) };
        let turn = self.turn(&found.pool.label);
        let _permit = turn.acquire().await;
        let Some(mut entry) = self.find(name) else { return Ok(false) };
        let only_if_empty = !force && entry.state == EntryState::Ready;
        entry.state = EntryState::Destroying;
        if !only_if_empty {
            self.put(&entry).await?;
        }
        self.finish_destruction(&entry, only_if_empty, true).await?;
        Ok(true)
    }

    /// Tells the target with the service first: it knows whether there are containers. `leaves_remnants`: what is away is
    /// told later, and the pool is gone already.
    async fn finish_destruction(
        &self,
        entry: &DirectoryEntry,
        only_if_empty: bool,
        leaves_remnants: bool,
    ) -> Result<(), Failed> {
        let object = format!("pool {}", entry.pool.label);
        let doing = "destroying it (which goes on in the background)";
        let request = TargetPoolDestroy { pool: entry.pool.pool, only_if_empty };
        if only_if_empty {
            let opcode = opcode::TARGET_POOL_DESTROY;
            let replicas = newest_replicas(&self.engines, &entry.pool, &entry.ranks).await;
            let (_, asked) =
                ask_leader::<_, ()>(&self.engines, (&replicas, None), opcode, &request, STEP_LIMIT).await;
            match asked {
                Ok(()) => self.put(entry).await?,
                Err(AskError::Refused { refusal, .. }) if refusal.der == Der::BUSY => {
                    return Err(Failed::Busy {
                        object: object.clone(),
                        reason: after_object(&refusal.message, &object),
                    });
                }
                Err(error) => return Err(Failed::asking(object, "finding out whether it is empty", error)),
            }
        }
        let request = TargetPoolDestroy { only_if_empty: false, ..request };
        let failed = self.spread.tell(&entry.ranks, opcode::TARGET_POOL_DESTROY, &request, STEP_LIMIT).await;
        let mut left: Vec<Rank> = failed.iter().map(AskError::rank).collect();
        if let Some(error) = failed.into_iter().find(|error| !(leaves_remnants && error.is_away())) {
            return Err(Failed::asking(object, doing, error));
        }
        if self.follows_another() {
            // A creation that an earlier leader has sent may come behind this.
            left.clone_from(&entry.ranks);
        }
        let gone = record::change(SCOPE_DIRECTORY, entry.pool.pool.0.as_bytes(), None);
        self.leave_remnant(&entry.pool, left, vec![gone]).await?;
        self.entries.borrow_mut().remove(&entry.pool.pool);
        tracing::info!(pool = %entry.pool.pool, label = entry.pool.label, "pool destroyed");
        Ok(())
    }

    /// Changes a pool's share on each of its targets. When one can't, the others keep what they had. Engines that are away,
    /// and targets out of service, follow when they are here again.
    ///
    /// # Errors
    /// When there is no such pool, the size is impossible, a target refuses, or no engine answers.
    pub async fn resize(&self, name: &str, size: u64) -> Result<DirectoryEntry, Failed> {
        let label = self
            .resolve(name)
            .and_then(|_| self.find(name).ok_or_else(|| Failed::NoPool(name.to_owned())))?;
        let turn = self.turn(&label.pool.label);
        let _permit = turn.acquire().await;
        self.resolve(name)?;
        let Some(entry) = self.find(name) else { return Err(Failed::NoPool(name.to_owned())) };
        let mut entry = self.finish_extension(entry).await?;
        let object = format!("pool {}", entry.pool.label);
        let share = share_of(size, entry.pool.map.targets.len());
        if share < SHARE_MIN {
            let reason = format!("{size} bytes are {share} on each target; at least {SHARE_MIN} are needed");
            return Err(Failed::Invalid { object, reason });
        }
        let failed = self.resize_on(&entry.ranks, entry.pool.pool, share).await;
        let away: Vec<Rank> = failed.iter().map(AskError::rank).collect();
        let is_told = failed.iter().any(|error| !error.is_silent()) || away.len() < entry.ranks.len();
        if let Some(error) = failed.into_iter().find(|error| !(is_told && error.is_away())) {
            let left = self.resize_on(&entry.ranks, entry.pool.pool, entry.pool.size).await;
            for error in &left {
                tracing::warn!(pool = entry.pool.label, %error, "a target keeps its new size until it is told again");
            }
            self.absent.note(entry.pool.pool, left.iter().map(AskError::rank));
            return Err(Failed::asking(object, "resizing it", error));
        }
        entry.pool.size = share;
        entry.size = size;
        if let Err(error) = self.put(&entry).await {
            // Targets have the new size, the list has the old one, which they are told again.
            self.absent.note(entry.pool.pool, entry.ranks.iter().copied());
            return Err(error);
        }
        if !away.is_empty() {
            tracing::warn!(
                pool = entry.pool.label,
                ?away,
                "some engines learn a pool's size when they are back"
            );
        }
        self.absent.note(entry.pool.pool, away);
        Ok(entry)
    }

    /// Has the targets of some engines change their share of a pool.
    async fn resize_on(&self, ranks: &[Rank], pool: PoolId, size: u64) -> Vec<AskError> {
        let request = TargetPoolResize { pool, size };
        self.spread.tell(ranks, opcode::TARGET_POOL_RESIZE, &request, STEP_LIMIT).await
    }

    /// Makes an entry durable, then visible.
    async fn put(&self, entry: &DirectoryEntry) -> Result<(), Failed> {
        let stored = record::encode(entry);
        let name = entry.pool.pool.0.as_bytes();
        self.commit(&[record::change(SCOPE_DIRECTORY, name, Some(stored))]).await?;
        self.entries.borrow_mut().insert(entry.pool.pool, entry.clone());
        Ok(())
    }

    /// Goes on with one pool that is being created, extended or destroyed.
    async fn go_on(&self, name: PoolId) {
        let Some(found) = self.entries.borrow().get(&name).cloned() else { return };
        let turn = self.turn(&found.pool.label);
        let _permit = turn.acquire().await;
        let Some(entry) = self.entries.borrow().get(&name).cloned() else { return };
        let outcome = match entry.state {
            EntryState::Ready => self.finish_extension(entry).await.map(drop),
            EntryState::Creating => self.finish_creation(entry).await.map(drop),
            EntryState::Destroying => self.finish_destruction(&entry, false, false).await,
        };
        if let Err(error) = outcome {
            tracing::debug!(pool = found.pool.label, %error, "not finished yet");
        }
    }
}

/// Takes up unfinished creations, extensions and destructions, for as long as the directory lives.
async fn take_up(directory: Weak<Directory>, rt: weir_runtime::Handle) {
    loop {
        let Some(strong) = directory.upgrade() else { return };
        let unfinished: Vec<PoolId> = {
            let entries = strong.entries.borrow();
            entries
                .values()
                .filter(|entry| entry.state != EntryState::Ready || !entry.joining().is_empty())
                .map(|entry| entry.pool.pool)
                .collect()
        };
        for pool in unfinished {
            strong.go_on(pool).await;
        }
        strong.settle_tenants().await;
        drop(strong);
        rt.sleep(RETRY_PAUSE).await;
    }
}

/// What a message says after the object it begins with.
fn after_object(message: &str, object: &str) -> String {
    message.strip_prefix(object).unwrap_or(message).trim_start().to_owned()
}
