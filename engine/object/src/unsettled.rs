//! Changes of objects with replicas that are stored here and aren't known to be stored at all members of their group.
//!
//! Whoever reads such a change waits: nobody may be told of it while another reader could miss it at another member. The leader
//! of the group knows when it is settled, and tells the other members. Where the leader is out of the pool map, and this
//! target is the only member left, what is stored here counts. So it does in a group of two where the leader was out since, and serves
//! again: it has got from here what it lacked, and has forgotten what was to be told. Of groups with more members the new
//! leader takes such changes over, and sees to it that all members that serve have them. For that the members keep what they were sent.
//!
//! Operations wait by it, the replication fills it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use weir_layout::{Layout, ObjectClass};
use weir_media::Slice;
use weir_pool::TargetPool;
use weir_proto::object::PunchScope;
use weir_proto::pool::PoolMap;
use weir_proto::replica::ChangeId;
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::sync::Gate;
use weir_runtime::{Handle, Instant, race};

/// How often somebody who waits looks whether the pool map has decided: a notice of the leader wakes him at once.
const LOOK: Duration = Duration::from_millis(20);

/// A target of the pool.
pub(crate) type Place = (Rank, TargetIndex);

/// An object of a pool.
pub(crate) type ObjectName = (PoolId, ContainerId, ObjectId);

/// Whether groups of an object have more than two members: when a leader is lost, some of the others may have a change of it, and some
/// not.
pub(crate) fn has_many_members(object: ObjectId) -> bool {
    ObjectClass::of(object).is_ok_and(|class| class.replicas() > 2)
}

/// A change as its leader has sent it: a new leader sends it to members that lack it.
pub(crate) struct Kept {
    pub(crate) id: ChangeId,
    /// Wall time, in nanoseconds since 1970, until which the name is kept.
    pub(crate) until: u64,
    /// The encoded change, and its data.
    bytes: RefCell<Slice>,
    /// Whether the bytes are in memory of their own, and not in that for transfers.
    is_copied: Cell<bool>,
}

impl Kept {
    pub(crate) const fn new(id: ChangeId, until: u64, bytes: Slice) -> Self {
        Self { id, until, bytes: RefCell::new(bytes), is_copied: Cell::new(false) }
    }

    pub(crate) fn bytes(&self) -> Slice {
        self.bytes.borrow().clone()
    }

    /// Puts the bytes into memory of their own.
    fn copy(&self) {
        if !self.is_copied.replace(true) {
            let bytes = self.bytes.borrow().to_vec();
            let len = bytes.len();
            if let Some(copied) = Slice::new(Rc::new(bytes), 0..len) {
                self.bytes.replace(copied);
            }
        }
    }
}

/// A change that isn't settled.
pub(crate) struct Pending {
    pub(crate) object: ObjectName,
    pub(crate) epoch: Epoch,
    /// The target that has chosen the epoch.
    pub(crate) leader: Place,
    /// Version of the map by which that one led; 0: another one has taken it over since.
    version: u32,
    /// The group in which it is.
    pub(crate) group: usize,
    pub(crate) is_punch: bool,
    /// The dkeys that it concerns; `None`: the whole object.
    dkeys: Option<Vec<Key>>,
    /// Opens when it is stored: at the leader by all other members, at another member by this one.
    pub(crate) stored: Gate,
    /// Opens when it is settled, or won't be stored.
    pub(crate) settled: Gate,
    is_withdrawn: Cell<bool>,
    /// Whether a later change of the same is settled.
    is_overtaken: Cell<bool>,
    /// The other targets that have it, as its leader knows.
    pub(crate) stored_at: RefCell<Vec<Place>>,
    /// What came, at another member of a group with more than two.
    kept: Option<Kept>,
    /// Whether this target is having the other members store it, as their new leader.
    pub(crate) is_taken: Cell<bool>,
    /// Those that have told this target, their new leader, that it is unsettled there.
    pub(crate) told_by: RefCell<BTreeSet<Place>>,
    /// How often it was looked at by who looks after all of them.
    looks: Cell<u32>,
}

impl Pending {
    pub(crate) fn new(
        object: ObjectName,
        epoch: Epoch,
        (leader, version, group): (Place, u32, usize),
        touched: (bool, Option<Vec<Key>>),
    ) -> Rc<Self> {
        Self::keeping(object, epoch, (leader, version, group), touched, None)
    }

    /// The same with what came.
    pub(crate) fn keeping(
        object: ObjectName,
        epoch: Epoch,
        (leader, version, group): (Place, u32, usize),
        (is_punch, dkeys): (bool, Option<Vec<Key>>),
        kept: Option<Kept>,
    ) -> Rc<Self> {
        let (stored, settled) = (Gate::new(), Gate::new());
        let (is_withdrawn, is_overtaken) = (Cell::new(false), Cell::new(false));
        Rc::new(Self {
            object,
            epoch,
            leader,
            version,
            group,
            is_punch,
            dkeys,
            stored,
            settled,
            is_withdrawn,
            is_overtaken,
            stored_at: RefCell::default(),
            kept,
            is_taken: Cell::new(false),
            told_by: RefCell::default(),
            looks: Cell::new(0),
        })
    }

    /// What came.
    pub(crate) const fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// Whether it won't be stored.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.get()
    }

    /// Whether it concerns a dkey, or anything of the object.
    fn concerns(&self, dkey: Option<&Key>) -> bool {
        match (&self.dkeys, dkey) {
            (Some(own), Some(dkey)) => own.contains(dkey),
            _ => true,
        }
    }

    /// Whether both concern something.
    fn meets(&self, other: &Self) -> bool {
        match &other.dkeys {
            Some(dkeys) => dkeys.iter().any(|dkey| self.concerns(Some(dkey))),
            None => true,
        }
    }

    /// Whether what this target has stored counts, whatever the leader has: this one alone is left of the group. In a group of two also
    /// when it has been since, and the leader has caught up from it; or when the leader has no place there any more, which is
    /// handed over only when all of its changes are settled, or are at all who have its places. Of more than two the new leader
    /// says so.
    fn is_left_to(&self, own: Place, layout: &Layout, map: &PoolMap, is_taken_over: bool) -> bool {
        if self.group >= layout.group_count() || self.leader == own {
            return false;
        }
        let is_taken_over = is_taken_over && layout.replicas > 2;
        let is_leader = |id: &u32| map.target(*id).is_some_and(|one| (one.rank, one.index) == self.leader);
        if !is_taken_over && !layout.group(self.group).iter().any(is_leader) {
            return true;
        }
        let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
        let serving: Vec<Place> = layout.serving(self.group, map).filter_map(place).collect();
        let leader = map.targets.iter().find(|target| (target.rank, target.index) == self.leader);
        let was_out = leader.is_some_and(|leader| leader.since > self.version);
        serving.contains(&own) && (serving.len() == 1 || (was_out && !is_taken_over))
    }
}

/// The dkeys that a punch concerns; `None`: the whole object.
pub(crate) fn dkeys_of(scope: &PunchScope) -> Option<Vec<Key>> {
    match scope {
        PunchScope::Object => None,
        PunchScope::Dkeys(dkeys) => Some(dkeys.clone()),
        PunchScope::Akeys(dkey, _) | PunchScope::DkeyWith(dkey, _) => Some(vec![dkey.clone()]),
    }
}

/// A fault that a test plants, to see that its histories show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedBug {
    /// A leader takes a change for stored at the other members without sending it.
    LostForward,
    /// Readers don't wait for what isn't settled.
    NewThenOld,
    /// A target serves without a lease of the map.
    IgnoredLease,
    /// A target that gets what it lacks keeps what it had, also what was removed meanwhile.
    ResurrectedDeletion,
    /// A target that gets what it lacks stores no punch that comes meanwhile, as if nothing of what it ends could come later.
    PunchBeforeItsHistory,
    /// A target that gets what it lacks, or places of others, says that it has all before anything has come.
    SaidBeforeItCame,
    /// A leader doesn't know changes that come again.
    DoubleAnswer,
    /// A read takes a transaction that is prepared for one that never happens.
    SnapshotOfUndecided,
    /// A new leader of a group with more than two members doesn't see to it that all of them have what the one before it has left.
    NothingTakenOver,
}

/// Changes of one object, in the order of their epochs.
type Pendings = BTreeMap<(Epoch, Place), Rc<Pending>>;

/// The changes of one target that aren't settled.
#[derive(Default)]
pub(crate) struct Unsettled {
    objects: RefCell<HashMap<ObjectName, Pendings>>,
    /// The objects of changes, by who leads them.
    named: RefCell<BTreeMap<(PoolId, Place, Epoch), ObjectName>>,
    /// Changes of groups with more than two members that are settled, by who has led them, as long as another member may not have
    /// heard: its new leader may send them once more.
    told: RefCell<HashMap<(PoolId, Place), BTreeSet<Epoch>>>,
    planted: Cell<Option<PlantedBug>>,
}

impl Unsettled {
    /// Plants a fault.
    pub(crate) fn plant(&self, bug: PlantedBug) {
        self.planted.set(Some(bug));
    }

    /// Whether a fault is planted.
    pub(crate) fn has_planted(&self, bug: PlantedBug) -> bool {
        self.planted.get() == Some(bug)
    }

    /// Whether new leaders of groups with more than two members take over what others have left.
    pub(crate) fn takes_over(&self) -> bool {
        !self.has_planted(PlantedBug::NothingTakenOver)
    }

    /// From now on readers wait for it.
    pub(crate) fn add(&self, pending: &Rc<Pending>) {
        let (object, key) = (pending.object, (pending.epoch, pending.leader));
        self.named.borrow_mut().insert((object.0, pending.leader, pending.epoch), object);
        self.objects.borrow_mut().entry(object).or_default().insert(key, Rc::clone(pending));
    }

    /// Whether there are any of an object.
    pub(crate) fn has(&self, object: &ObjectName) -> bool {
        self.objects.borrow().contains_key(object)
    }

    /// How many there are, and the epoch of the oldest one.
    pub(crate) fn waiting(&self) -> (u64, Option<Epoch>) {
        let objects = self.objects.borrow();
        let firsts = objects.values().filter_map(|pendings| pendings.keys().next());
        (self.named.borrow().len() as u64, firsts.map(|(epoch, _)| *epoch).min())
    }

    /// A change of this leader and epoch.
    pub(crate) fn find(&self, pool: PoolId, leader: Place, epoch: Epoch) -> Option<Rc<Pending>> {
        let object = *self.named.borrow().get(&(pool, leader, epoch))?;
        self.objects.borrow().get(&object)?.get(&(epoch, leader)).map(Rc::clone)
    }

    /// It is stored at all members.
    pub(crate) fn settle(&self, pending: &Pending) {
        let (object, key) = (pending.object, (pending.epoch, pending.leader));
        self.named.borrow_mut().remove(&(object.0, pending.leader, pending.epoch));
        let mut objects = self.objects.borrow_mut();
        if let Some(pendings) = objects.get_mut(&object) {
            pendings.remove(&key);
            if !pending.is_withdrawn() {
                let before = pendings.range(..key).map(|(_, other)| other);
                before.filter(|other| other.meets(pending)).for_each(|other| other.is_overtaken.set(true));
            }
            if pendings.is_empty() {
                objects.remove(&object);
            }
        }
        drop(objects);
        pending.settled.open();
    }

    /// The same, where another member may not have heard of it yet.
    pub(crate) fn settle_told(&self, pending: &Pending) {
        if has_many_members(pending.object.2) {
            let leader = (pending.object.0, pending.leader);
            self.told.borrow_mut().entry(leader).or_default().insert(pending.epoch);
        }
        self.settle(pending);
    }

    /// Whether a change of a group with more than two members was settled of late.
    pub(crate) fn is_told(&self, pool: PoolId, leader: Place, epoch: Epoch) -> bool {
        self.told.borrow().get(&(pool, leader)).is_some_and(|epochs| epochs.contains(&epoch))
    }

    /// All members have heard of all changes of a leader that were made before an epoch.
    pub(crate) fn forget_told(&self, pool: PoolId, leader: Place, before: Epoch) {
        let mut told = self.told.borrow_mut();
        if let Some(epochs) = told.get_mut(&(pool, leader)) {
            *epochs = epochs.split_off(&before);
            if epochs.is_empty() {
                told.remove(&(pool, leader));
            }
        }
    }

    /// Forgets what was settled before an epoch, whoever has led it, and all of pools that are gone.
    pub(crate) fn forget_old(&self, before: Epoch, lives: impl Fn(PoolId) -> bool) {
        self.told.borrow_mut().retain(|(pool, _), epochs| {
            *epochs = epochs.split_off(&before);
            lives(*pool) && !epochs.is_empty()
        });
        let gone: BTreeSet<PoolId> =
            self.objects.borrow().keys().map(|(pool, ..)| *pool).filter(|pool| !lives(*pool)).collect();
        for pool in gone {
            self.of_pool(pool).iter().for_each(|pending| self.withdraw(pending));
        }
    }

    /// Changes of groups with more than two members that a target leads.
    fn led_of_many(&self, pool: PoolId, leader: Place) -> Vec<Rc<Pending>> {
        let is_of_many =
            |pending: &Rc<Pending>| pending.leader == leader && has_many_members(pending.object.2);
        self.of_pool(pool).into_iter().filter(is_of_many).collect()
    }

    /// Epoch of the oldest change that a target leads.
    pub(crate) fn oldest_led(&self, pool: PoolId, leader: Place) -> Option<Epoch> {
        let named = self.named.borrow();
        let led = named.range((pool, leader, Epoch::ZERO)..=(pool, leader, Epoch::MAX));
        led.map(|((.., epoch), _)| *epoch).next()
    }

    /// Epoch of the oldest of those that `own` leads, and not all other members have that serve.
    pub(crate) fn oldest_not_at_serving(&self, pool: &TargetPool, own: Place) -> Option<Epoch> {
        let is_missing = |pending: &Rc<Pending>| {
            let found = pool.with_layout(pending.object.2, |layout, map| {
                let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
                let has = |one: Place| one == own || pending.stored_at.borrow().contains(&one);
                pending.group < layout.group_count()
                    && !layout.serving(pending.group, map).filter_map(place).all(has)
            });
            found.unwrap_or(false)
        };
        let all = self.led_of_many(pool.id(), own);
        all.iter().filter(|pending| is_missing(pending)).map(|pending| pending.epoch).min()
    }

    /// Changes of groups with more than two members that the target which leads now has not made, each with who leads; `None`: nobody.
    pub(crate) fn left(&self, pool: &TargetPool) -> Vec<(Rc<Pending>, Option<Place>)> {
        let version = pool.with_map(|map| map.version);
        let may_be_left =
            |pending: &Rc<Pending>| pending.version < version && has_many_members(pending.object.2);
        let leader = |pending: &Pending| {
            let found = pool.with_layout(pending.object.2, |layout, map| {
                let leader = (pending.group < layout.group_count())
                    .then(|| layout.leader(pending.group, map))
                    .flatten()?;
                map.target(leader).map(|target| (target.rank, target.index))
            });
            found.ok().flatten()
        };
        let all = self.of_pool(pool.id()).into_iter().filter(may_be_left);
        let all = all.map(|pending| {
            let leader = leader(&pending);
            (pending, leader)
        });
        all.filter(|(pending, leader)| *leader != Some(pending.leader)).collect()
    }

    /// Whether anything of a group of an object is unsettled that `own`, which leads it by version `version` of the map, has not made.
    pub(crate) fn has_left(&self, own: Place, object: &ObjectName, group: usize, version: u32) -> bool {
        let is_left = |pending: &Rc<Pending>| {
            pending.leader != own && pending.group == group && pending.version < version
        };
        self.objects.borrow().get(object).is_some_and(|pendings| pendings.values().any(is_left))
    }

    /// Gives memory for transfers back that changes hold which aren't settled soon. To be called again and again.
    pub(crate) fn release_memory(&self, pool: PoolId) {
        for pending in self.of_pool(pool) {
            let looks = pending.looks.get();
            pending.looks.set(looks.saturating_add(1));
            if looks > 0
                && let Some(kept) = pending.kept()
            {
                kept.copy();
            }
        }
    }

    /// It won't be stored here.
    pub(crate) fn withdraw(&self, pending: &Pending) {
        pending.is_withdrawn.set(true);
        pending.stored.open();
        self.settle(pending);
    }

    /// All changes of a pool that aren't settled.
    fn of_pool(&self, pool: PoolId) -> Vec<Rc<Pending>> {
        let objects = self.objects.borrow();
        let of_pool = objects.iter().filter(|(object, _)| object.0 == pool);
        of_pool.flat_map(|(_, pendings)| pendings.values().map(Rc::clone)).collect()
    }

    /// This target has caught up, up to an epoch, with all that serve: nothing of that is known any more to be unsettled, and nothing
    /// of who serves no more. What this target has led is gone where others don't have it.
    pub(crate) fn forget(&self, own: Place, pool: PoolId, (serving, up_to): (&[Place], Epoch)) {
        let is_had = |pending: &Rc<Pending>| pending.epoch <= up_to || !serving.contains(&pending.leader);
        for pending in self.of_pool(pool).iter().filter(|pending| is_had(pending)) {
            if pending.leader == own {
                self.withdraw(pending);
            } else {
                self.settle(pending);
            }
        }
    }

    /// Settles what counts whatever its leader has: nobody tells of it any more, and it would stay until somebody reads it.
    pub(crate) fn settle_left(&self, pool: &TargetPool, own: Place) {
        for pending in self.of_pool(pool.id()).iter().filter(|pending| pending.stored.is_open()) {
            let is_left =
                |layout: &Layout, map: &PoolMap| pending.is_left_to(own, layout, map, self.takes_over());
            if pool.with_layout(pending.object.2, is_left).unwrap_or(false) {
                self.settle(pending);
            }
        }
    }

    /// Changes of the same object before it that have to be stored at a member before it is: a punch removes what is there,
    /// and an update creates what isn't.
    pub(crate) fn ahead_of(&self, pending: &Pending) -> Vec<Rc<Pending>> {
        let objects = self.objects.borrow();
        let Some(all) = objects.get(&pending.object) else { return Vec::new() };
        let before = all.range(..(pending.epoch, pending.leader)).map(|(_, other)| other);
        let ordered = before.filter(|other| pending.is_punch || other.is_punch);
        ordered.map(Rc::clone).collect()
    }

    /// An epoch at which a dkey, or the whole object, is as it is without what isn't settled at this moment. Nobody has been told
    /// of that where this target leads all of it, which decides what is settled. `None`: it doesn't, nothing is unsettled, or there is no
    /// such epoch, since a later change of the same is settled.
    pub(crate) fn before(&self, own: Place, object: &ObjectName, dkey: Option<&Key>) -> Option<Epoch> {
        let objects = self.objects.borrow();
        let mut concerned = objects.get(object)?.values().filter(|pending| pending.concerns(dkey)).peekable();
        let first = concerned.peek()?.epoch;
        let is_own = concerned.all(|pending| pending.leader == own && !pending.is_overtaken.get());
        is_own.then(|| Epoch(first.0 - 1))
    }

    /// Waits until all changes of a dkey, or of the whole object, are settled that are here now and were made up to `epoch`.
    /// `false`: one isn't at that time.
    pub(crate) async fn wait(
        &self,
        rt: &Handle,
        (pool, own): (&TargetPool, Place),
        object: &ObjectName,
        (dkey, epoch): (Option<&Key>, Epoch),
        until: Instant,
    ) -> bool {
        if self.has_planted(PlantedBug::NewThenOld) {
            return true;
        }
        // What comes to places that this target has not yet is shown to nobody.
        let is_shown = |pending: &Pending| {
            let has_place = |layout: &Layout, map: &PoolMap| {
                let members = layout.shards.chunks(layout.replicas).nth(pending.group);
                let mut members = members.into_iter().flatten().filter_map(|id| map.target(*id));
                members.any(|target| (target.rank, target.index) == own)
            };
            pending.leader == own || pool.with_layout(object.2, has_place).unwrap_or(true)
        };
        let concerned: Vec<Rc<Pending>> = {
            let objects = self.objects.borrow();
            let Some(all) = objects.get(object) else { return true };
            let up_to = all.values().filter(|pending| pending.epoch <= epoch && pending.concerns(dkey));
            up_to.filter(|pending| is_shown(pending)).map(Rc::clone).collect()
        };
        for pending in concerned {
            while !pending.settled.is_open() {
                let is_left = || {
                    pool.with_layout(object.2, |layout, map| {
                        pending.is_left_to(own, layout, map, self.takes_over())
                    })
                };
                if pending.stored.is_open() && is_left().unwrap_or(false) {
                    self.settle(&pending);
                    break;
                }
                if rt.now() >= until {
                    return false;
                }
                race(pending.settled.wait(), rt.sleep(LOOK)).await;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;
    use weir_layout::ObjectClass;
    use weir_proto::pool::{PoolTarget, TargetState};

    const OWN: Place = (Rank(0), TargetIndex(0));
    const OTHER: Place = (Rank(1), TargetIndex(0));

    /// The map of two engines in the last of some versions, each of which brings the other one a state.
    fn map(states: &[TargetState]) -> PoolMap {
        let targets = (0..2).map(|id| PoolTarget::serving(id, Rank(id), TargetIndex(0)));
        let mut map = PoolMap::new(1, targets.collect());
        for state in states {
            map.version += 1;
            map.targets[1].enter(*state, map.version);
        }
        map
    }

    /// Whether a change counts here that a target led by a version of the map.
    fn counts((leader, version): (Place, u32), map: &PoolMap) -> bool {
        let class: ObjectClass = "RP_2G1".parse().expect("a registered name");
        let object = class.encode(ObjectId { hi: 0, lo: 7 }, 0);
        let layout = Layout::of(object, map).expect("two engines");
        let name = (PoolId(Uuid::nil()), ContainerId(Uuid::nil()), object);
        let pending = Pending::new(name, Epoch(5), (leader, version, 0), (false, None));
        pending.is_left_to(OWN, &layout, map, true)
    }

    #[test]
    fn what_is_stored_in_a_group_of_three_counts_by_itself_where_one_member_is_left() {
        use TargetState::Down;
        let class: ObjectClass = "RP_3G1".parse().expect("a registered name");
        let object = class.encode(ObjectId { hi: 0, lo: 7 }, 0);
        let targets = (0..3).map(|id| PoolTarget::serving(id, Rank(id), TargetIndex(0)));
        let mut map = PoolMap::new(1, targets.collect());
        let name = (PoolId(Uuid::nil()), ContainerId(Uuid::nil()), object);
        let pending = Pending::new(name, Epoch(5), (OTHER, 1, 0), (false, None));
        let counts = |map: &PoolMap, is_taken_over| {
            let layout = Layout::of(object, map).expect("three engines");
            pending.is_left_to(OWN, &layout, map, is_taken_over)
        };
        assert!(!counts(&map, true), "the leader knows");
        map.version = 2;
        map.targets[1].enter(Down, 2);
        assert!(!counts(&map, true), "the third one may lack it");
        assert!(counts(&map, false), "as the planted fault has it");
        map.version = 3;
        map.targets[2].enter(Down, 3);
        assert!(counts(&map, true), "nobody else is left");
    }

    #[test]
    fn what_is_settled_is_known_until_all_members_have_heard() {
        let class: ObjectClass = "RP_3G1".parse().expect("a registered name");
        let object = class.encode(ObjectId { hi: 0, lo: 7 }, 0);
        let (pool, unsettled) = (PoolId(Uuid::nil()), Unsettled::default());
        for epoch in [5, 6, 7] {
            let name = (pool, ContainerId(Uuid::nil()), object);
            let pending = Pending::new(name, Epoch(epoch), (OTHER, 1, 0), (false, None));
            unsettled.add(&pending);
            assert!(!unsettled.is_told(pool, OTHER, Epoch(epoch)));
            unsettled.settle_told(&pending);
        }
        unsettled.forget_told(pool, OTHER, Epoch(6));
        let told = |epoch| unsettled.is_told(pool, OTHER, Epoch(epoch));
        assert_eq!([told(5), told(6), told(7)], [false, true, true]);
        unsettled.forget_old(Epoch(7), |_| true);
        assert_eq!([told(6), told(7)], [false, true]);
        unsettled.forget_old(Epoch::ZERO, |_| false);
        assert!(!told(7), "its pool is gone");
    }

    #[test]
    fn what_is_stored_counts_once_its_leader_was_out_whether_or_not_that_one_is_back() {
        use TargetState::{Down, Up, UpIn};
        assert!(!counts((OTHER, 1), &map(&[])), "the leader knows");
        assert!(counts((OTHER, 1), &map(&[Down])) && counts((OTHER, 1), &map(&[Down, Up])));
        let back = map(&[Down, Up, UpIn]);
        assert!(counts((OTHER, 1), &back), "it has forgotten, and has caught up from here");
        assert!(!counts((OTHER, back.version), &back), "it leads by this map");
        assert!(!counts((OWN, 1), &back), "this one leads");
    }
}
