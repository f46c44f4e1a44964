//! Repair of versions whose data is damaged on this target's device, with the data that another member of their group has.
//!
//! The scrubber, reads and rebuilds find damage. Each damaged version is read from the other members that serve its group, one version
//! at a time, until all of it matches the checksums that stand with it here. The store then writes it anew
//! ([`weir_store::Shard::repair_version`]). What can't be repaired is tried again, more and more seldom, until it is whole or gone.
//! Objects without replicas have no other member, and stay as they are.
//!
//! The room calls the store's shard and other targets; operations and rebuild tell it of damage; the service starts it.

use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::history::{VersionData, VersionName, VersionRequest};
use weir_proto::{ContainerId, Der, Key, ObjectId, PoolId, Rank, opcode};
use weir_rpc::Status;
use weir_runtime::Instant;
use weir_store::{DamagedVersion, FetchError, RepairOutcome, RottenVersion};

use crate::admission::Admission;
use crate::admission::refusal::{self, ErrorSite};
use crate::groups::is_replicated;
use crate::unsettled::Place;

/// How often it is looked whether there is something to be repaired.
const LOOK: Duration = Duration::from_millis(200);

/// Bytes that are repaired in a second at most, so that clients have the device and the network.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// What a version costs beside its bytes, in bytes: its record, and the requests.
const VERSION_COST: u64 = 64 << 10;

/// Pause before a version that could not be repaired is tried again. It doubles each time.
const RETRY_FIRST: Duration = Duration::from_secs(5);

/// Longest of these pauses, and how often they double until then.
const RETRY_MAX: Duration = Duration::from_mins(10);
const DOUBLINGS_MAX: u32 = 7;

/// How long a dkey isn't gone through again: readers come again and again upon damage that stays.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Most dkeys that wait to be gone through, and most versions that wait to be repaired. What is beyond is found again by the next read
/// or the next pass of the scrubber.
const WAITING_MAX: usize = 10_000;

/// Longest wait for the data of a version.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Bytes of an answer beside its data, at most.
const ANSWER_EXTRA: usize = 4 << 10;

/// A dkey in which a read has met damage.
type Dkey = (PoolId, ContainerId, ObjectId, Key);

/// A damaged version.
#[derive(Default)]
struct Damage {
    /// What the scrubber has found of it and nobody has counted yet.
    found: Option<RottenVersion>,
    /// How often it was tried in vain, and when it is tried again.
    tries: u32,
    again: Option<Instant>,
    /// All other members have answered, and none has its data.
    is_lost: bool,
}

/// What became of an attempt.
enum Attempt {
    /// It is whole, by the data of this target among others.
    Repaired(Place, u64),
    /// It isn't damaged, or isn't here any more.
    Gone,
    /// No other target keeps a copy.
    Alone,
    /// Not at the moment.
    Hindered(String),
    /// All other members have answered, and none has its data.
    Lost,
}

/// Repairs the versions of one target.
pub(crate) struct Repair {
    admission: Admission,
    suspects: RefCell<VecDeque<Dkey>>,
    /// Dkeys that were suspected a short time ago, and when.
    suspected: RefCell<HashMap<Dkey, Instant>>,
    damaged: RefCell<BTreeMap<(PoolId, VersionName), Damage>>,
    repaired: Cell<u64>,
}

impl Repair {
    pub(crate) fn new(admission: Admission) -> Rc<Self> {
        let (suspects, suspected) = (RefCell::default(), RefCell::default());
        Rc::new(Self { admission, suspects, suspected, damaged: RefCell::default(), repaired: Cell::new(0) })
    }

    /// Gives data to others, and repairs what is damaged here from now on.
    pub(crate) fn start(self: &Rc<Self>) {
        let weak = Rc::downgrade(self);
        let handler = move |_: Rank, asked: VersionRequest| {
            let repair = weak.upgrade();
            async move {
                let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                let given = async { repair.ok_or_else(stopping)?.give(asked).await };
                given.await.map_err(refusal::between_engines)
            }
        };
        self.admission.pools.engines().serve(opcode::TARGET_VERSION, handler);
        self.admission.rt.spawn(watch(Rc::downgrade(self)));
    }

    /// Versions that were repaired since the start.
    pub(crate) const fn repaired(&self) -> u64 {
        self.repaired.get()
    }

    /// Versions that are known to be damaged, and could not be repaired so far.
    pub(crate) fn unrepaired(&self) -> u64 {
        self.damaged.borrow().values().filter(|damage| damage.tries > 0).count() as u64
    }

    /// A read has met damage below a dkey, which is gone through soon.
    pub(crate) fn suspect(&self, pool: PoolId, container: ContainerId, (object, dkey): (ObjectId, &Key)) {
        if !is_replicated(object) || self.suspects.borrow().len() >= WAITING_MAX {
            return;
        }
        let (dkey, now) = ((pool, container, object, dkey.clone()), self.admission.rt.now());
        let mut suspected = self.suspected.borrow_mut();
        suspected.retain(|_, since| now.saturating_duration_since(*since) < LOOK_AGAIN);
        if suspected.insert(dkey.clone(), now).is_none() {
            self.suspects.borrow_mut().push_back(dkey);
        }
    }

    /// A version is damaged here.
    pub(crate) fn note(&self, pool: PoolId, version: VersionName) {
        let mut damaged = self.damaged.borrow_mut();
        if is_replicated(version.object) && damaged.len() < WAITING_MAX {
            damaged.entry((pool, version)).or_default();
        }
    }

    /// What the scrubber has found.
    fn take_found(&self) {
        let store = self.admission.pools.store();
        while let Some(found) = store.take_rotten() {
            let mut damaged = self.damaged.borrow_mut();
            let has_room = damaged.len() < WAITING_MAX;
            match damaged.entry((found.pool, found.version.clone())) {
                Entry::Occupied(mut known) if !known.get().is_lost => known.get_mut().found = Some(found),
                Entry::Vacant(free) if has_room && is_replicated(found.version.object) => {
                    free.insert(Damage { found: Some(found), ..Damage::default() });
                }
                _ => self.report(Some(found)),
            }
        }
    }

    /// Goes through the next dkey, or tries the next version. Returns how long to rest behind it; `None`: there was nothing to do.
    async fn step(&self) -> Option<Duration> {
        self.take_found();
        let suspect = self.suspects.borrow_mut().pop_front();
        if let Some((pool, container, object, dkey)) = suspect {
            self.go_through(pool, container, (object, &dkey)).await;
            return Some(Duration::ZERO);
        }
        let now = self.admission.rt.now();
        let is_due = |damage: &Damage| damage.again.is_none_or(|again| again <= now);
        let due =
            self.damaged.borrow().iter().find(|(_, damage)| is_due(damage)).map(|(name, _)| name.clone());
        let (pool, version) = due?;
        let attempt = self.attempt(pool, &version).await;
        Some(self.note_attempt((pool, version), attempt))
    }

    async fn go_through(&self, pool: PoolId, container: ContainerId, dkey: (ObjectId, &Key)) {
        let Ok(known) = self.admission.pools.get(pool) else { return };
        match known.shard().damaged_versions(container, dkey).await {
            Ok(versions) => versions.into_iter().for_each(|version| self.note(pool, version)),
            Err(error) => {
                tracing::debug!(pool = known.label(), %error, "a dkey with damage can't be gone through");
            }
        }
    }

    /// Draws the conclusions. Returns how long to rest.
    fn note_attempt(&self, name: (PoolId, VersionName), attempt: Attempt) -> Duration {
        let (pool, version) = &name;
        let bytes = match attempt {
            Attempt::Repaired((rank, target), bytes) => {
                tracing::info!(%pool, %version, bytes, %rank, %target, "a damaged version was repaired with the data of another replica");
                self.repaired.set(self.repaired.get() + 1);
                self.damaged.borrow_mut().remove(&name);
                bytes
            }
            Attempt::Gone => {
                self.damaged.borrow_mut().remove(&name);
                0
            }
            Attempt::Alone => {
                let damage = self.damaged.borrow_mut().remove(&name);
                self.report(damage.and_then(|damage| damage.found));
                0
            }
            Attempt::Hindered(reason) => {
                self.put_off(name, Some(&reason));
                0
            }
            Attempt::Lost => {
                self.put_off(name, None);
                0
            }
        };
        Duration::from_nanos((bytes + VERSION_COST) * 1_000_000_000 / BYTES_PER_SECOND)
    }

    /// A version can't be repaired now, for this reason, or since no other replica has its data.
    fn put_off(&self, name: (PoolId, VersionName), reason: Option<&str>) {
        let (pool, version) = name.clone();
        let mut damaged = self.damaged.borrow_mut();
        let damage = damaged.entry(name).or_default();
        let pause = RETRY_FIRST.saturating_mul(1 << damage.tries.min(DOUBLINGS_MAX)).min(RETRY_MAX);
        damage.tries = damage.tries.saturating_add(1);
        damage.again = Some(self.admission.rt.now() + pause);
        match reason {
            Some(reason) if damage.tries == 1 => {
                tracing::warn!(%pool, %version, reason, "a damaged version can't be repaired yet, and is tried again");
            }
            None if !damage.is_lost => {
                damage.is_lost = true;
                tracing::error!(%pool, %version, "a version is damaged at all replicas: readers are told so; restore it from a backup");
                self.report(damage.found.take());
            }
            _ => {}
        }
    }

    /// What the scrubber has found counts as rotten.
    fn report(&self, found: Option<RottenVersion>) {
        if let Some(found) = found {
            self.admission.pools.store().report_rotten(found);
        }
    }

    async fn attempt(&self, pool: PoolId, version: &VersionName) -> Attempt {
        if !is_replicated(version.object) {
            return Attempt::Alone;
        }
        let Ok(pool) = self.admission.pools.get(pool) else { return Attempt::Gone };
        let mut damaged = match pool.shard().damaged_version(version).await {
            Ok(Some(damaged)) => damaged,
            Ok(None) => return Attempt::Gone,
            Err(error) if is_absence(&error) => return Attempt::Gone,
            Err(error) => return Attempt::Hindered(error.to_string()),
        };
        let (len, source) = (damaged.len(), self.gather(&pool, version, &mut damaged).await);
        let source = match source {
            Ok(Some(source)) => source,
            Ok(None) => return Attempt::Lost,
            Err(reason) => return Attempt::Hindered(reason),
        };
        match pool.shard().repair_version(damaged).await {
            Ok(RepairOutcome::Repaired) => Attempt::Repaired(source, len),
            // By the next attempt it is seen what stands there.
            Ok(RepairOutcome::Changed) => Attempt::Hindered("it has changed meanwhile".to_owned()),
            Ok(RepairOutcome::NoRoom) => Attempt::Hindered("the device has no room for it".to_owned()),
            Err(error) => Attempt::Hindered(error.to_string()),
        }
    }

    /// Asks the other members that serve for the data of a version, until all of it is there. Returns who has given the last of it;
    /// `None`: all have answered, and it isn't.
    async fn gather(
        &self,
        pool: &TargetPool,
        version: &VersionName,
        damaged: &mut DamagedVersion,
    ) -> Result<Option<Place>, String> {
        let (others, map_version) = self.others(pool, version)?;
        if others.is_empty() {
            return Err("no other replica serves at the moment".to_owned());
        }
        let len = damaged.len();
        let request = VersionRequest { pool: pool.id(), map_version, version: version.clone(), len };
        let room = usize::try_from(len).map_err(|error| error.to_string())? + ANSWER_EXTRA;
        let mut silent = None;
        for place in others {
            let engines = self.admission.pools.engines();
            let asked = engines.ask_long(place, opcode::TARGET_VERSION, &request, room, ANSWER_LIMIT);
            match asked.await {
                Ok(VersionData { data }) => damaged.take(&data),
                Err(error) => silent = Some(error.to_string()),
            }
            if damaged.is_whole() {
                return Ok(Some(place));
            }
        }
        silent.map_or(Ok(None), Err)
    }

    /// The other members of a version's group that serve, and the version of the map that says so.
    fn others(&self, pool: &TargetPool, version: &VersionName) -> Result<(Vec<Place>, u32), String> {
        let engines = self.admission.pools.engines();
        let own = (engines.own_rank(), engines.own_index());
        let found = pool.with_layout(version.object, |layout, map| {
            let serving = layout.serving(layout.group_index(version.dkey.hash()), map);
            let places = serving.filter_map(|id| map.target(id)).map(|target| (target.rank, target.index));
            (places.filter(|place| *place != own).collect(), map.version)
        });
        found.map_err(|error| error.to_string())
    }

    /// The data of a version for a target whose own is damaged.
    async fn give(&self, asked: VersionRequest) -> Result<VersionData, Status> {
        let VersionRequest { pool, map_version, version, len } = asked;
        let pool = self.admission.pool(pool)?;
        self.admission.check_placed(&pool, map_version)?;
        let label = version.container.to_string();
        let place = ErrorSite { pools: &self.admission.pools, pool: pool.id(), container: &label };
        match pool.shard().version_data(&version, len).await {
            Ok(data) => Ok(VersionData { data }),
            // It is damaged here, too, as another version.
            Err(error) if error.is_of_data() || is_absence(&error) => Ok(VersionData::default()),
            Err(error) => Err(refusal::fetch(&error, &place)),
        }
    }
}

/// Whether a container, and so all versions in it, is gone.
fn is_absence(error: &FetchError) -> bool {
    matches!(error.der(), Der::NONEXIST | Der::CONT_NONEXIST | Der::CONT_DESTROYING)
}

/// Repairs for as long as the service lives.
async fn watch(repair: Weak<Repair>) {
    let mut pause = LOOK;
    loop {
        let Some(rt) = repair.upgrade().map(|repair| repair.admission.rt.clone()) else { return };
        rt.sleep(pause).await;
        let Some(repair) = repair.upgrade() else { return };
        pause = repair.step().await.unwrap_or(LOOK);
    }
}
