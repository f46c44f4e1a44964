//! Fault domains: which targets fail together.
//!
//! The tree of a pool is zone, rack, node, engine, target, as far as the map knows it. Two replicas never share the
//! narrowest domain above the engine: the node, where the map has a path for the engine, and else the engine itself.

use std::collections::HashMap;

use weir_proto::pool::{PoolMap, PoolTarget};

/// A target as placement sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seat {
    /// The target's id.
    pub(crate) id: u32,
    /// Number of its fault domain, from 0 on in the order of the map.
    pub(crate) domain: u32,
}

/// The targets that objects are laid out on, in the order of their ids. `is_seat` tells whether an element of
/// [`PoolMap::targets`] is one of them.
pub(crate) fn seats(map: &PoolMap, is_seat: impl Fn(usize) -> bool) -> Vec<Seat> {
    let mut by_path: HashMap<&[String], u32> = HashMap::new();
    let mut by_rank = HashMap::new();
    let mut count = 0;
    let mut next = || {
        count += 1;
        count - 1
    };
    let mut seats = Vec::with_capacity(map.targets.len());
    // Targets of an engine follow each other.
    let mut last = None;
    for (position, target) in map.targets.iter().enumerate() {
        let domain = match last {
            Some((rank, domain)) if rank == target.rank => domain,
            _ => match map.path_of(target.rank) {
                [] => *by_rank.entry(target.rank).or_insert_with(&mut next),
                path => *by_path.entry(path).or_insert_with(&mut next),
            },
        };
        last = Some((target.rank, domain));
        if is_seat(position) {
            seats.push(Seat { id: target.id, domain });
        }
    }
    seats
}

/// How many targets each fault domain has.
pub(crate) fn sizes(seats: &[Seat]) -> Vec<usize> {
    let mut sizes = Vec::new();
    for seat in seats {
        let domain = seat.domain as usize;
        if sizes.len() <= domain {
            sizes.resize(domain + 1, 0);
        }
        sizes[domain] += 1;
    }
    sizes.retain(|size| *size > 0);
    sizes
}

/// How many fault domains have a target of a kind.
#[must_use]
pub fn domains_with(map: &PoolMap, is_of_kind: impl Fn(&PoolTarget) -> bool) -> usize {
    sizes(&seats(map, |position| is_of_kind(&map.targets[position]))).len()
}

/// The greatest number of groups of so many replicas that have a target each and no domain twice; 0 when not even one has.
pub(crate) fn most_groups(sizes: &[usize], replicas: usize) -> usize {
    let fits = |groups: usize| sizes.iter().map(|size| size.min(&groups)).sum::<usize>() >= groups * replicas;
    // What fits is an interval from 0 on: a domain gives each group one target at most, so that more groups gain less and less.
    let (mut good, mut bad) = (0, sizes.iter().sum::<usize>() / replicas.max(1) + 1);
    while bad - good > 1 {
        let middle = usize::midpoint(good, bad);
        if fits(middle) { good = middle } else { bad = middle }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::pool::PoolEngine;
    use weir_proto::{Rank, TargetIndex};

    #[test]
    fn engines_of_one_node_are_one_domain() {
        let target = |id| PoolTarget::serving(id, Rank(id / 2), TargetIndex(id % 2));
        let mut map = PoolMap::new(1, (0..8).map(target).collect());
        let domains = |map: &PoolMap| seats(map, |_| true).iter().map(|seat| seat.domain).collect::<Vec<_>>();
        assert_eq!(domains(&map), [0, 0, 1, 1, 2, 2, 3, 3]);
        let place = |rank, node: &str| PoolEngine { rank: Rank(rank), path: vec!["z".into(), node.into()] };
        map.engines = vec![place(0, "a"), place(2, "b"), place(3, "a")];
        assert_eq!(domains(&map), [0, 0, 1, 1, 2, 2, 0, 0]);
        let of_ranks = |ranks: &[u32]| domains_with(&map, |target| ranks.contains(&target.rank.0));
        assert_eq!([of_ranks(&[]), of_ranks(&[0, 3]), of_ranks(&[0, 1, 3])], [0, 1, 2]);
    }

    #[test]
    fn as_many_groups_fit_as_domains_allow() {
        assert_eq!(most_groups(&[4, 4, 4], 2), 6);
        assert_eq!(most_groups(&[4, 4, 4], 3), 4);
        assert_eq!(most_groups(&[4, 4, 4], 4), 0);
        assert_eq!(most_groups(&[16, 1, 1], 2), 2);
        assert_eq!(most_groups(&[1, 1, 1], 2), 1);
        assert_eq!(most_groups(&[], 2), 0);
        assert_eq!(most_groups(&[7], 1), 7);
    }
}
