//! Who gets the data of an object with replicas beside those that serve it.

use weir_proto::ObjectId;
use weir_proto::pool::{PoolMap, TargetState};

use crate::placement::{Layout, LayoutError};

/// Where an object with replicas is served, and where it will be once the targets that are up have got what they missed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receivers {
    /// Where it is served.
    pub now: Layout,
    /// Where it will be; `None`: no target is up.
    filled: Option<Layout>,
}

impl Receivers {
    /// Those of an object.
    ///
    /// # Errors
    /// As [`Layout::of`].
    pub fn of(object: ObjectId, map: &PoolMap) -> Result<Self, LayoutError> {
        let is_up = map.targets.iter().any(|target| target.state == TargetState::Up);
        let filled = if is_up { Some(Layout::filled(object, map)?) } else { None };
        Ok(Self { now: Layout::of(object, map)?, filled })
    }

    /// The targets that don't serve a group, and get its changes and its data.
    pub fn of_group<'a>(&'a self, group: usize, map: &'a PoolMap) -> impl Iterator<Item = u32> + 'a {
        let is_up = |id: &u32| map.target(*id).is_some_and(|target| target.state == TargetState::Up);
        let filled = self.filled.as_ref().filter(|filled| group < filled.group_count());
        filled.into_iter().flat_map(move |filled| filled.group(group)).copied().filter(is_up)
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
}
