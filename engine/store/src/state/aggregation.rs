//! What aggregation has to visit.

use crate::format::key::ObjectKey;
use crate::format::key::Path;
use crate::format::key::{self, ContainerNumber, PoolNumber};
use crate::state::unread::Unread;

use core::ops::Bound::{self, Excluded, Included, Unbounded};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weir_proto::ObjectId;

/// Objects that are remembered to be visited, some 10 MiB. Of containers with more, all objects are visited.
const OBJECTS_MAX: usize = 64 * 1024;

/// Akeys that are remembered to be visited once more, some megabytes with the longest keys. A visit that finds no room here
/// goes on at once.
const RESTS_MAX: usize = 1024;

/// Objects and containers of which is remembered how often they couldn't be read; others count as read in vain very often.
const UNREAD_MAX: usize = 1024;

/// A container.
type Owner = (PoolNumber, ContainerNumber);

/// A container as a whole, or an object of it.
type Subject = (Owner, Option<ObjectId>);

/// What a visit has left to be done of an akey, so that others don't wait for longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnfinishedAkey {
    pub(crate) object: ObjectKey,
    pub(crate) place: AkeyPaths,
    /// The horizon of the visit before.
    pub(crate) since: u64,
    pub(crate) left: RemainingMerges,
    /// How often in a row its merges couldn't go on.
    pub(crate) failures: u32,
}

impl UnfinishedAkey {
    fn is_of(&self, other: &Self) -> bool {
        self.object == other.object && self.place == other.place
    }
}

/// A visit of a container as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ContainerVisit {
    /// Index key where it goes on.
    from: Vec<u8>,
    /// Behind its end it begins once more: there is something to do that it may have passed.
    again: bool,
}

/// What is to be visited.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Objects with the epoch of their oldest change since the last visit, and the horizon of that visit.
    objects: BTreeMap<ObjectKey, (u64, u64)>,
    order: BTreeSet<(u64, ObjectKey)>,
    /// Containers to be visited as a whole, after an open or when a snapshot was given up.
    containers: BTreeMap<Owner, ContainerVisit>,
    /// Containers with changed objects that aren't remembered, each with the epoch of the oldest change of one.
    crowded: BTreeMap<Owner, u64>,
    /// The container that was taken last; the one behind it is next.
    last: Owner,
    /// Of a container that was taken and has not gone on yet: whether it is to be visited once more.
    under_way: Option<(Owner, bool)>,
    /// Akeys that need more than one visit.
    rests: VecDeque<UnfinishedAkey>,
    /// Akeys that can't be gone on with at present, each with an epoch before which none is visited, in the order of those.
    late: VecDeque<(u64, UnfinishedAkey)>,
    /// Whose turn it is: a container's, an akey's, an object's.
    turn: u8,
    /// Whose task was taken last.
    at_work: Option<Owner>,
    /// How often those couldn't be read that couldn't be the last time; containers as long as the store is open, since one
    /// visit of them takes many reads.
    unread: BTreeMap<Subject, u32>,
    /// Objects that are being visited, each with the horizon of the visit.
    pub(crate) visited: BTreeMap<ObjectKey, u64>,
    /// What reclaim and the forgetting of decisions couldn't read.
    pub(crate) passed_over: Unread,
}

/// What background aggregation does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Visits an object, up to the last visit's horizon known.
    Object(ObjectKey, u64),
    /// Visits the next object of a container, from this index key on.
    Container(PoolNumber, ContainerNumber, Vec<u8>),
    /// Goes on with an akey.
    Akey(Box<UnfinishedAkey>),
}

impl Task {
    /// The pool that it is about.
    pub(crate) fn pool(&self) -> PoolNumber {
        self.subject().0.0
    }

    fn subject(&self) -> Subject {
        match self {
            Self::Object((pool, container, object), _) => ((*pool, *container), Some(*object)),
            Self::Container(pool, container, _) => ((*pool, *container), None),
            Self::Akey(rest) => ((rest.object.0, rest.object.1), Some(rest.object.2)),
        }
    }
}

/// Whose history is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    All,
    Pool(PoolNumber),
    Container(PoolNumber, ContainerNumber),
}

impl Whose {
    pub(crate) fn has(self, (pool, container): (PoolNumber, ContainerNumber)) -> bool {
        match self {
            Self::All => true,
            Self::Pool(number) => number == pool,
            Self::Container(of, number) => (of, number) == (pool, container),
        }
    }
}

/// Objects that are looked at, oldest change first, to find out whether somebody's are among them.
const LOOKS_MAX: usize = 1024;

impl Queue {
    /// An object has versions of this epoch that may hide others.
    pub(crate) fn add_object(&mut self, object: ObjectKey, epoch: u64) {
        // What a version hides is seen at no pin before it: of a visit behind it, the part up to there still holds.
        self.add(object, epoch, 0, epoch.saturating_sub(1));
    }

    /// Like [`Queue::add_object`], knowing that everything up to `since` was looked at.
    pub(crate) fn add_again(&mut self, object: ObjectKey, epoch: u64, since: u64) {
        self.add(object, epoch, since, since);
    }

    /// An object that isn't remembered was looked at up to `since`; of one that is, what was looked at holds up to `most` only.
    fn add(&mut self, object: ObjectKey, epoch: u64, since: u64, most: u64) {
        let is_full = self.objects.len() >= OBJECTS_MAX;
        match self.objects.entry(object) {
            // One that was put off is visited when its newest change asks for it.
            Entry::Occupied(mut known) => {
                let (oldest, settled) = known.get_mut();
                *settled = most.min(*settled);
                if epoch < *oldest {
                    self.order.remove(&(*oldest, object));
                    self.order.insert((epoch, object));
                    *oldest = epoch;
                }
            }
            Entry::Vacant(_) if is_full => self.crowd((object.0, object.1), epoch),
            Entry::Vacant(entry) => {
                entry.insert((epoch, since));
                self.order.insert((epoch, object));
            }
        }
    }

    /// All of a container is to be visited. A visit that is under way comes to its end first: begun anew each time, it might
    /// never.
    pub(crate) fn add_container(&mut self, pool: PoolNumber, container: ContainerNumber) {
        let begin = key::objects(pool, container);
        if let Some((_, again)) = self.under_way.as_mut().filter(|(owner, _)| *owner == (pool, container)) {
            *again = true;
            return;
        }
        let tour = ContainerVisit { from: begin.clone(), again: false };
        let tour = self.containers.entry((pool, container)).or_insert(tour);
        tour.again |= tour.from != begin;
    }

    /// The visit of the container that was taken goes on from this index key.
    pub(crate) fn resume_container(&mut self, pool: PoolNumber, container: ContainerNumber, from: Vec<u8>) {
        let under_way = self.under_way.take_if(|(owner, _)| *owner == (pool, container));
        let again = under_way.is_some_and(|(_, again)| again);
        self.containers.insert((pool, container), ContainerVisit { from, again });
    }

    /// An akey is to be visited once more. Returns what there is no room for.
    pub(crate) fn add_rest(&mut self, rest: UnfinishedAkey) -> Option<UnfinishedAkey> {
        if let Some(known) = self.rests.iter_mut().find(|known| known.is_of(&rest)) {
            // A visit of the whole object came between.
            *known = rest;
        } else if self.rests.len() < RESTS_MAX {
            self.rests.push_back(rest);
        } else {
            return Some(rest);
        }
        None
    }

    /// An akey is to be visited once more, but not before changes of this epoch are. Where there is no room for it, all of its
    /// object is, once changes of the other epoch are.
    pub(crate) fn put_off(&mut self, rest: UnfinishedAkey, epoch: u64, crowded: u64) {
        self.late.retain(|(_, known)| !known.is_of(&rest));
        if self.late.len() < RESTS_MAX {
            let at = self.late.partition_point(|(known, _)| *known <= epoch);
            self.late.insert(at, (epoch, rest));
        } else {
            self.add_again(rest.object, crowded, rest.since);
        }
    }

    /// What was taken could be read.
    pub(crate) fn note_read(&mut self, task: &Task) {
        if let subject @ (_, Some(_)) = task.subject() {
            self.unread.remove(&subject);
        }
    }

    /// What was taken couldn't be read. Returns how often it couldn't before.
    pub(crate) fn note_unread(&mut self, task: &Task) -> u32 {
        let subject = task.subject();
        if self.unread.len() >= UNREAD_MAX && !self.unread.contains_key(&subject) {
            return u32::MAX;
        }
        let failures = self.unread.entry(subject).or_default();
        *failures = failures.saturating_add(1);
        *failures - 1
    }

    /// What was taken couldn't be read: it is to be visited once more, but not before changes of this epoch are.
    pub(crate) fn put_back(&mut self, task: Task, epoch: u64) {
        match task {
            Task::Object(object, since) => self.add_again(object, epoch, since),
            Task::Akey(rest) => self.put_off(*rest, epoch, epoch),
            // Its visit goes on behind what couldn't be read.
            Task::Container(pool, container, _) => self.crowd((pool, container), epoch),
        }
    }

    /// Up to which epoch an object's history is being visited; 0 when it isn't.
    pub(crate) fn visits_up_to(&self, object: &ObjectKey) -> u64 {
        self.visited.get(object).copied().unwrap_or(0)
    }

    /// A container has changed objects that aren't remembered.
    fn crowd(&mut self, owner: Owner, epoch: u64) {
        let oldest = self.crowded.entry(owner).or_insert(epoch);
        *oldest = epoch.min(*oldest);
    }

    /// Takes an akey of an object that is to be visited once more.
    pub(crate) fn take_rest_of(&mut self, object: ObjectKey) -> Option<UnfinishedAkey> {
        let at = self.rests.iter().position(|rest| rest.object == object)?;
        self.rests.remove(at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
            && self.containers.is_empty()
            && self.crowded.is_empty()
            && self.rests.is_empty()
            && self.late.is_empty()
    }

    /// Takes what is next, of what has changed only what has gathered changes up to `ripe`. Objects that have changed,
    /// containers and akeys that take long take turns, so that none keeps the others waiting.
    pub(crate) fn take(&mut self, ripe: u64) -> Option<Task> {
        if let Some(((pool, container), true)) = self.under_way.take() {
            self.add_container(pool, container);
        }
        self.turn = (self.turn + 1) % 3;
        let task = (0..3).find_map(|step| match (self.turn + step) % 3 {
            0 => self.take_object(ripe),
            1 => self.take_container(ripe),
            _ => self.take_rest(ripe),
        });
        self.at_work = task.as_ref().map(|task| task.subject().0);
        task
    }

    /// Whether changes of theirs of this epoch or earlier wait to be visited or are being visited. Where that takes too long to
    /// find out, it is assumed. What was put off doesn't count: nobody gets room from what itself waits for some.
    pub(crate) fn has_changes(&self, whose: Whose, epoch: u64) -> bool {
        let owner = |object: &ObjectKey| (object.0, object.1);
        let mut oldest = self.order.iter().take_while(|(changed, _)| *changed <= epoch);
        oldest.by_ref().take(LOOKS_MAX).any(|(_, object)| whose.has(owner(object)))
            || oldest.next().is_some()
            || self.containers.keys().any(|container| whose.has(*container))
            || self.crowded.iter().any(|(container, oldest)| *oldest <= epoch && whose.has(*container))
            || self.rests.iter().any(|rest| whose.has(owner(&rest.object)))
            || self.at_work.is_some_and(|owner| whose.has(owner))
    }

    /// Takes an akey that was put off until now, or one that needs another visit.
    fn take_rest(&mut self, ripe: u64) -> Option<Task> {
        let late = self.late.pop_front_if(|(epoch, _)| *epoch <= ripe).map(|(_, rest)| rest);
        late.or_else(|| self.rests.pop_front()).map(|rest| Task::Akey(Box::new(rest)))
    }

    /// Takes an object whose oldest change is as old as this, with the horizon of its last visit.
    fn take_object(&mut self, ripe: u64) -> Option<Task> {
        let (epoch, object) = self.order.first().copied()?;
        if epoch > ripe {
            return None;
        }
        self.order.pop_first();
        let (_, since) = self.objects.remove(&object)?;
        Some(Task::Object(object, since))
    }

    /// Takes a container whose visit is to begin or to go on, one with changes as old as this that aren't remembered among
    /// them. They take turns, so that a large one doesn't keep the others waiting.
    fn take_container(&mut self, ripe: u64) -> Option<Task> {
        let next = |range: (Bound<Owner>, Bound<Owner>)| {
            let crowded = self.crowded.range(range).find(|(_, epoch)| **epoch <= ripe);
            let begun = self.containers.range(range).next();
            begun.map(|(owner, _)| *owner).into_iter().chain(crowded.map(|(owner, _)| *owner)).min()
        };
        let behind = next((Excluded(self.last), Unbounded));
        let (pool, container) = behind.or_else(|| next((Unbounded, Included(self.last))))?;
        self.last = (pool, container);
        if self.crowded.get(&self.last).is_some_and(|epoch| *epoch <= ripe) {
            self.crowded.remove(&self.last);
            self.add_container(pool, container);
        }
        let ContainerVisit { from, again } = self.containers.remove(&self.last)?;
        self.under_way = Some((self.last, again));
        Some(Task::Container(pool, container, from))
    }
}

/// The place of an akey: object, dkey, akey.
pub(crate) type AkeyPaths = [Path; 3];

/// What merges leave to be done of an akey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemainingMerges {
    /// The record where they go on; `None`: all that is worth it was merged.
    pub(crate) from: Option<u64>,
    /// What reaches beyond the parts that were merged may show nothing any more.
    pub(crate) hides: bool,
    /// They can't go on at present.
    pub(crate) is_stuck: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::key::Path;

    #[test]
    fn a_queue_has_changes_until_who_took_them_comes_for_more() {
        let object = |container, lo| (1, container, ObjectId { hi: 0, lo });
        let mut queue = Queue::default();
        let has = |queue: &Queue, epoch| {
            [Whose::Container(1, 1), Whose::Container(1, 2), Whose::Pool(1), Whose::Pool(2), Whose::All]
                .map(|whose| queue.has_changes(whose, epoch))
        };
        assert_eq!(has(&queue, u64::MAX), [false; 5]);
        queue.add_object(object(1, 7), 100);
        assert_eq!(has(&queue, 99), [false; 5]);
        let of_first = [true, false, true, false, true];
        assert_eq!(has(&queue, 100), of_first);
        assert!(queue.take(100).is_some());
        assert_eq!(has(&queue, 100), of_first, "it is being visited");
        assert!(queue.take(100).is_none());
        assert_eq!(has(&queue, 100), [false; 5]);
        queue.add_container(1, 2);
        assert_eq!(has(&queue, 0), [false, true, true, false, true]);
        assert!(queue.take(0).is_some() && queue.take(0).is_none());
        let (path, left) = (
            Path::object(1, 1, object(1, 7).2),
            RemainingMerges { from: Some(0), hides: false, is_stuck: false },
        );
        let place = [path.clone(), path.clone(), path];
        assert_eq!(
            queue.add_rest(UnfinishedAkey { object: object(1, 7), place, since: 0, left, failures: 0 }),
            None
        );
        assert_eq!(has(&queue, 0), of_first);
        assert!(queue.take(0).is_some() && queue.take(0).is_none());
        for lo in 0..=LOOKS_MAX as u64 {
            queue.add_object(object(1, lo), 5);
        }
        assert!(queue.has_changes(Whose::Pool(2), 5), "nobody looks at all of so many");
        assert!(!queue.has_changes(Whose::Pool(2), 4));
        let mut queue = Queue { crowded: BTreeMap::from([((1, 2), 5)]), ..Queue::default() };
        assert_eq!(has(&queue, 5), [false, true, true, false, true]);
        assert_eq!(has(&queue, 4), [false; 5]);
        assert!(queue.take(5).is_some());
    }

    #[test]
    fn what_comes_late_is_looked_at_once_more_and_nothing_else_is() {
        let (object, mut queue) = ((1, 1, ObjectId { hi: 0, lo: 7 }), Queue::default());
        let take = |queue: &mut Queue| match queue.take(u64::MAX) {
            Some(Task::Object(_, since)) => since,
            other => panic!("no object's turn: {other:?}"),
        };
        for (late, settled) in [(None, 100), (Some(101), 100), (Some(100), 99), (Some(40), 39)] {
            queue.add_again(object, 110, 100);
            queue.add_object(object, 120);
            late.inspect(|epoch| queue.add_object(object, *epoch));
            assert_eq!(take(&mut queue), settled, "{late:?}");
        }
        // A visit of an akey that knows of less.
        queue.add_again(object, 110, 100);
        queue.add_again(object, 130, 50);
        assert_eq!(take(&mut queue), 50);
    }

    #[test]
    fn containers_take_turns_and_are_visited_to_their_ends() {
        let mut queue = Queue::default();
        let begin = |container| key::objects(1, container);
        let at = |container, place: u8| [begin(container), vec![place]].concat();
        // Visits what is next, of which something is left behind the place.
        let visit = |queue: &mut Queue, left: Option<u8>| {
            let Some(Task::Container(1, container, from)) = queue.take(10) else {
                panic!("no container's turn")
            };
            if let Some(left) = left {
                queue.resume_container(1, container, at(container, left));
            }
            (container, from)
        };
        (1..=2).for_each(|container| queue.add_container(1, container));
        queue.crowded = BTreeMap::from([((1, 3), 10), ((1, 4), 11), ((1, 2), 9)]);
        assert_eq!(visit(&mut queue, Some(1)), (1, begin(1)));
        // A snapshot goes.
        queue.add_container(1, 1);
        assert_eq!(visit(&mut queue, Some(1)), (2, begin(2)));
        assert_eq!(visit(&mut queue, None), (3, begin(3)));
        assert_eq!(visit(&mut queue, Some(2)), (1, at(1, 1)));
        assert_eq!(visit(&mut queue, None), (2, at(2, 1)));
        assert_eq!(visit(&mut queue, None), (1, at(1, 2)));
        assert!(queue.has_changes(Whose::Container(1, 1), 0), "it is being visited");
        assert_eq!(visit(&mut queue, None), (1, begin(1)), "what it had passed is visited, too");
        // While it is being visited for the last time, before it is known that it was.
        queue.add_container(1, 1);
        assert_eq!(visit(&mut queue, None), (1, begin(1)));
        assert_eq!(queue.take(10), None);
        assert!(!queue.has_changes(Whose::All, 10) && queue.has_changes(Whose::Container(1, 4), 11));
        assert!(queue.under_way.is_none() && queue.containers.is_empty());
    }

    #[test]
    fn of_more_objects_than_are_remembered_those_of_their_containers_are_visited() {
        let object = |container, lo| (1, container, ObjectId { hi: 0, lo });
        let (mut queue, most) = (Queue::default(), OBJECTS_MAX as u64);
        (0..most).for_each(|lo| queue.add_object(object(7, lo), 10));
        for epoch in [30, 20] {
            (most..2 * most).for_each(|lo| queue.add_object(object(8, lo), epoch));
        }
        assert_eq!(queue.objects.len(), OBJECTS_MAX);
        queue.add_object(object(7, 0), 40);
        let mut visit = |ripe| core::iter::from_fn(|| queue.take(ripe)).collect::<Vec<Task>>();
        assert_eq!(visit(9), [], "nothing is old enough");
        let visited = visit(19);
        assert!(visited.len() == OBJECTS_MAX && visited.iter().all(|task| matches!(task, Task::Object(..))));
        assert_eq!(visit(20), [Task::Container(1, 8, key::objects(1, 8))]);
        assert!(queue.is_empty());
    }
}
