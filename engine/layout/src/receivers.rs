//! Who gets the data of an object with replicas beside those that serve it.

use weir_proto::ObjectId;
use weir_proto::pool::{PoolMap, TargetState};

use crate::placement::{Layout, LayoutError};

/// Where an object with replicas is served, and where it will be when all moves of data that are under way have ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receivers {
    /// Where it is served.
    pub now: Layout,
    /// Where it will be; `None`: there, too.
    next: Option<Layout>,
}

impl Receivers {
    /// Those of an object.
    ///
    /// # Errors
    /// As [`Layout::of`].
    pub fn of(object: ObjectId, map: &PoolMap) -> Result<Self, LayoutError> {
        let next = map.moves_since().map(|_| Layout::next(object, map)).transpose()?;
        Ok(Self { now: Layout::of(object, map)?, next })
    }

    /// The targets that don't serve a group, and get its changes and its data: members that are up, and targets that have a place in
    /// it when all moves have ended.
    pub fn of_group<'a>(&'a self, group: usize, map: &'a PoolMap) -> impl Iterator<Item = u32> + 'a {
        let is_up = |id: &u32| map.target(*id).is_some_and(|target| target.state == TargetState::Up);
        let members = self.now.group(group).iter().copied().filter(is_up);
        members.chain(self.gaining(group, map))
    }

    /// The targets that have no place in a group, and will have one when all moves have ended.
    pub fn gaining<'a>(&'a self, group: usize, map: &'a PoolMap) -> impl Iterator<Item = u32> + 'a {
        let takes = |id: &u32| map.target(*id).is_some_and(|target| !target.state.is_lost());
        let next = self.next_group(group).into_iter().flatten().copied();
        next.filter(move |id| !self.now.group(group).contains(id) && takes(id))
    }

    /// Whether a group has other members when all moves have ended.
    #[must_use]
    pub fn changes(&self, group: usize) -> bool {
        let Some(next) = self.next_group(group) else { return false };
        let now = self.now.group(group);
        !(now.iter().all(|id| next.contains(id)) && next.iter().all(|id| now.contains(id)))
    }

    /// Whether a target is a member of a group, and will be none when all moves have ended.
    #[must_use]
    pub fn leaves(&self, group: usize, id: u32) -> bool {
        self.now.group(group).contains(&id) && self.next_group(group).is_some_and(|next| !next.contains(&id))
    }

    fn next_group(&self, group: usize) -> Option<&[u32]> {
        let next = self.next.as_ref().filter(|next| group < next.group_count())?;
        Some(next.group(group))
    }

    /// For each group, whether one target leads it and another one gets its data.
    #[must_use]
    pub fn between(&self, map: &PoolMap, leader: u32, receiver: u32) -> Vec<bool> {
        let gets = |group| {
            self.now.leader(group, map) == Some(leader) && self.of_group(group, map).any(|id| id == receiver)
        };
        (0..self.now.group_count()).map(gets).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::ObjectClass;
    use weir_proto::pool::PoolTarget;
    use weir_proto::{Rank, TargetIndex};

    fn map() -> PoolMap {
        PoolMap::new(1, (0..6).map(|id| PoolTarget::serving(id, Rank(id), TargetIndex(0))).collect())
    }

    fn object(number: u64) -> ObjectId {
        let class: ObjectClass = "RP_2G2".parse().expect("a registered name");
        class.encode(ObjectId { hi: 0, lo: number }, 0)
    }

    /// Who gets what in a map: receivers of each group, for some objects.
    fn received(map: &PoolMap) -> Vec<Vec<u32>> {
        let of = |number| {
            let receivers = Receivers::of(object(number), map).expect("six domains");
            let groups = receivers.now.group_count();
            (0..groups).map(|group| receivers.of_group(group, map).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        (0..50).flat_map(of).collect()
    }

    #[test]
    fn a_target_that_is_up_gets_what_its_places_have() {
        let whole = map();
        assert!(received(&whole).iter().all(Vec::is_empty));
        let mut down = whole.clone();
        down.targets[2].enter(TargetState::Down, 2);
        assert!(received(&down).iter().all(Vec::is_empty));
        let mut out = down.clone();
        out.targets[2].enter(TargetState::DownOut, 3);
        assert!(received(&out).iter().all(Vec::is_empty));
        for before in [down, out] {
            let mut up = before.clone();
            up.targets[2].enter(TargetState::Up, 4);
            for number in 0..50 {
                let place = Layout::of(object(number), &whole).expect("six domains");
                let receivers = Receivers::of(object(number), &up).expect("six domains");
                for group in 0..2 {
                    let is_placed = place.group(group).contains(&2);
                    let expected: &[u32] = if is_placed { &[2] } else { &[] };
                    assert_eq!(receivers.of_group(group, &up).collect::<Vec<_>>(), expected);
                    let leader = receivers.now.leader(group, &up).expect("five serve");
                    assert_eq!(receivers.between(&up, leader, 2)[group], is_placed);
                    assert!(!receivers.between(&up, 2, leader)[group], "it leads nothing");
                }
            }
        }
    }

    #[test]
    fn heirs_get_what_the_places_of_a_lost_target_have() {
        let mut map = map();
        map.targets[2].enter(TargetState::Down, 2);
        map.targets[2].leave(3);
        let mut out = map.clone();
        out.targets[2].enter(TargetState::DownOut, 4);
        let mut heirs = 0;
        for number in 0..50 {
            let receivers = Receivers::of(object(number), &map).expect("six domains");
            let after = Layout::of(object(number), &out).expect("six domains");
            for group in 0..2 {
                let (now, then) = (receivers.now.group(group), after.group(group));
                let gained: Vec<u32> = then.iter().copied().filter(|id| !now.contains(id)).collect();
                assert_eq!(gained.len(), usize::from(now.contains(&2)));
                assert_eq!(receivers.of_group(group, &map).collect::<Vec<_>>(), gained);
                let leader = receivers.now.leader(group, &map).expect("five serve");
                assert_eq!(after.leader(group, &out), Some(leader), "nobody takes the lead over");
                for heir in gained {
                    assert!(receivers.between(&map, leader, heir)[group]);
                    heirs += 1;
                }
            }
        }
        assert!(heirs > 10, "{heirs}");
        map.targets[2].enter(TargetState::Up, 4);
        for number in 0..50 {
            let receivers = Receivers::of(object(number), &map).expect("six domains");
            assert!((0..2).all(|group| receivers.gaining(group, &map).next().is_none()), "it is back");
        }
    }
}
