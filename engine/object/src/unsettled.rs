//! Changes of objects with replicas that are stored here and aren't known to be stored at all members of their group.
//!
//! Whoever reads such a change waits: nobody may be told of it while another reader could miss it at another member. The leader
//! of the group knows when it is settled, and tells the other members. Where the leader is out of the pool map, and this
//! target is the only member left, what is stored here counts.
//!
//! Operations wait by it, the replication fills it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use weir_layout::Layout;
use weir_pool::TargetPool;
use weir_proto::object::PunchScope;
use weir_proto::pool::PoolMap;
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::sync::Gate;
use weir_runtime::{Handle, Instant, race};

/// How often somebody who waits looks whether the pool map has decided: a notice of the leader wakes him at once.
const LOOK: Duration = Duration::from_millis(20);

/// A target of the pool.
pub(crate) type Place = (Rank, TargetIndex);

/// An object of a pool.
pub(crate) type ObjectName = (PoolId, ContainerId, ObjectId);

/// A change that isn't settled.
pub(crate) struct Pending {
    pub(crate) object: ObjectName,
    pub(crate) epoch: Epoch,
    /// The target that has chosen the epoch.
    pub(crate) leader: Place,
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
}

impl Pending {
    pub(crate) fn new(
        object: ObjectName,
        epoch: Epoch,
        (leader, group): (Place, usize),
        (is_punch, dkeys): (bool, Option<Vec<Key>>),
    ) -> Rc<Self> {
        let (stored, settled, is_withdrawn) = (Gate::new(), Gate::new(), Cell::new(false));
        Rc::new(Self { object, epoch, leader, group, is_punch, dkeys, stored, settled, is_withdrawn })
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

    /// Whether this target alone is left of the group, so that what it has stored counts.
    fn is_left_to(&self, own: Place, layout: &Layout, map: &PoolMap) -> bool {
        if self.group >= layout.group_count() {
            return false;
        }
        let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
        let mut serving = layout.serving(self.group, map).filter_map(place);
        self.leader != own && serving.next() == Some(own) && serving.next().is_none()
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
}

/// Changes of one object, in the order of their epochs.
type Pendings = BTreeMap<(Epoch, Place), Rc<Pending>>;

/// The changes of one target that aren't settled.
#[derive(Default)]
pub(crate) struct Unsettled {
    objects: RefCell<HashMap<ObjectName, Pendings>>,
    /// The objects of changes, by who leads them.
    named: RefCell<HashMap<(PoolId, Place, Epoch), ObjectName>>,
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
            if pendings.is_empty() {
                objects.remove(&object);
            }
        }
        drop(objects);
        pending.settled.open();
    }

    /// It won't be stored here.
    pub(crate) fn withdraw(&self, pending: &Pending) {
        pending.is_withdrawn.set(true);
        pending.stored.open();
        self.settle(pending);
    }

    /// Nothing of a pool is known any more to be unsettled.
    pub(crate) fn forget(&self, pool: PoolId) {
        let all: Vec<Rc<Pending>> = {
            let objects = self.objects.borrow();
            let of_pool = objects.iter().filter(|(object, _)| object.0 == pool);
            of_pool.flat_map(|(_, pendings)| pendings.values().map(Rc::clone)).collect()
        };
        for pending in &all {
            self.settle(pending);
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
        let concerned: Vec<Rc<Pending>> = {
            let objects = self.objects.borrow();
            let Some(all) = objects.get(object) else { return true };
            let up_to = all.values().filter(|pending| pending.epoch <= epoch && pending.concerns(dkey));
            up_to.map(Rc::clone).collect()
        };
        for pending in concerned {
            while !pending.settled.is_open() {
                let is_left =
                    || pool.with_layout(object.2, |layout, map| pending.is_left_to(own, layout, map));
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
