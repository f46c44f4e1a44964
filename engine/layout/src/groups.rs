//! Groups of replicas: which targets make up each group of an object.
//!
//! Targets are considered in the order of their ids, which is the order in which they joined the pool. As long as groups
//! have vacant places, a target takes one in a group with the fewest members, of which the object's salt picks one. Each
//! further target takes over the place of the occupant with the smallest weight, if its own weight for this object is
//! greater. A target never joins a group that has a member of its fault domain. So the occupants are a uniform sample,
//! and a target that joins the pool moves at most one place of an object: exactly the one it takes.
//!
//! A target that goes out leaves its places to others, one by one in the order in which targets went out: each goes to
//! the target with the greatest weight for that place of those that hold the fewest places of the object. So a loss moves
//! exactly the places of what is lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::domains::Seat;
use crate::placement::{mix, weight};

/// A place of a target, as an index into the list of seats; none while it is vacant.
type Place = Option<usize>;

/// What is under way while targets take places.
struct Groups<'a> {
    salt: u64,
    replicas: usize,
    seats: &'a [Seat],
    /// Group by group.
    places: Vec<Place>,
    /// Groups with vacant places, by their number of members.
    vacant: Vec<Vec<usize>>,
    /// Occupied places with the weights of their occupants, lightest first.
    occupied: BTreeSet<(u64, usize)>,
}

/// The seats of so many groups, group by group. Needs at least one group, with [`crate::domains::most_groups`] at most.
pub(crate) fn occupants(salt: u64, groups: usize, replicas: usize, seats: &[Seat]) -> Option<Vec<usize>> {
    let mut vacant = vec![Vec::new(); replicas];
    vacant.first_mut()?.extend(0..groups);
    let places = vec![None; groups * replicas];
    let mut state = Groups { salt, replicas, seats, places, vacant, occupied: BTreeSet::new() };
    let mut left = groups * replicas;
    for (seat, Seat { id, .. }) in seats.iter().enumerate() {
        let own = weight(salt, *id);
        if left > 0 && state.settle(seat, own) {
            left -= 1;
        } else if state.occupied.first().is_some_and(|(lightest, _)| *lightest < own) {
            state.challenge(seat, own);
        }
    }
    while left > 0 {
        state.rearrange()?;
        left -= 1;
    }
    state.places.into_iter().collect()
}

impl Groups<'_> {
    /// Whether a group has a member of the seat's domain, apart from the one at a place.
    fn conflicts(&self, group: usize, seat: usize, except: usize) -> bool {
        let first = group * self.replicas;
        let domain = self.seats[seat].domain;
        (first..first + self.replicas).any(|place| {
            place != except && self.places[place].is_some_and(|member| self.seats[member].domain == domain)
        })
    }

    /// Gives a target a vacant place, if a group can take it.
    fn settle(&mut self, seat: usize, own: u64) -> bool {
        for members in 0..self.replicas {
            let count = self.vacant[members].len();
            let start = reduce(mix(own), count);
            for step in 0..count {
                let position = (start + step) % count;
                let group = self.vacant[members][position];
                if self.conflicts(group, seat, usize::MAX) {
                    continue;
                }
                self.vacant[members].swap_remove(position);
                if members + 1 < self.replicas {
                    self.vacant[members + 1].push(group);
                }
                let place = group * self.replicas + members;
                self.places[place] = Some(seat);
                self.occupied.insert((own, place));
                return true;
            }
        }
        false
    }

    /// Gives a target the place of the lightest occupant that it may replace, if that is lighter.
    fn challenge(&mut self, seat: usize, own: u64) {
        let lighter = self.occupied.range(..(own, 0));
        let found = lighter.copied().find(|(_, place)| !self.conflicts(place / self.replicas, seat, *place));
        if let Some((lightest, place)) = found {
            self.occupied.remove(&(lightest, place));
            self.occupied.insert((own, place));
            self.places[place] = Some(seat);
        }
    }

    /// Fills one vacant place although no target that is left over fits its group: a member of another group moves there,
    /// and what is left over takes that one's place. Where that fails, too, a target takes a second place.
    fn rearrange(&mut self) -> Option<()> {
        let members = (0..self.replicas).find(|members| !self.vacant[*members].is_empty())?;
        let group = self.vacant[members].pop()?;
        let hole = group * self.replicas + members;
        let used: BTreeSet<usize> = self.places.iter().flatten().copied().collect();
        let spare: Vec<usize> = (0..self.seats.len()).filter(|seat| !used.contains(seat)).collect();
        let swap = self.places.iter().enumerate().find_map(|(place, member)| {
            let member = (*member).filter(|member| !self.conflicts(group, *member, usize::MAX))?;
            let fits = |seat: &&usize| !self.conflicts(place / self.replicas, **seat, place);
            spare.iter().find(fits).map(|seat| (place, member, *seat))
        });
        if let Some((place, member, seat)) = swap {
            self.places[place] = Some(seat);
            self.places[hole] = Some(member);
        } else {
            let fitting = (0..self.seats.len()).filter(|seat| !self.conflicts(group, *seat, usize::MAX));
            self.places[hole] = Some(fitting.max_by_key(|seat| weight(self.salt, self.seats[*seat].id))?);
        }
        if members + 1 < self.replicas {
            self.vacant[members + 1].push(group);
        }
        Some(())
    }
}

/// Hands the places of targets that are out to others. `out` has the seats that are out, the first one first, each with the version
/// of the map in which it went out. Returns the places that others have, ascending, each with the version in which the last of its
/// occupants went out.
pub(crate) fn replace(
    salt: u64,
    replicas: usize,
    seats: &[Seat],
    out: &[(usize, u32)],
    places: &mut [usize],
) -> Vec<(usize, u32)> {
    let mut taken = BTreeMap::new();
    if out.is_empty() {
        return Vec::new();
    }
    let mut held = vec![0_usize; seats.len()];
    for seat in &*places {
        held[*seat] += 1;
    }
    let mut is_gone = vec![false; seats.len()];
    for (lost, version) in out {
        is_gone[*lost] = true;
        if held[*lost] == 0 {
            continue;
        }
        for place in 0..places.len() {
            if places[place] != *lost {
                continue;
            }
            let group = place / replicas * replicas;
            let members: Vec<u32> = (group..group + replicas)
                .filter(|member| *member != place)
                .map(|member| seats[places[member]].domain)
                .collect();
            let own = mix(salt ^ mix(!(place as u64)));
            let fits = |seat: &usize| !is_gone[*seat] && !members.contains(&seats[*seat].domain);
            let heir = (0..seats.len())
                .filter(fits)
                .max_by_key(|seat| (core::cmp::Reverse(held[*seat]), weight(own, seats[*seat].id)));
            // Without another domain the place stays with what is lost.
            if let Some(heir) = heir {
                held[heir] += 1;
                held[*lost] -= 1;
                places[place] = heir;
                taken.insert(place, *version);
            }
        }
    }
    taken.into_iter().collect()
}

/// A number below `count`, evenly from a hash; 0 for 0.
pub(crate) fn reduce(hash: u64, count: usize) -> usize {
    let product = u128::from(hash) * (count as u128);
    usize::try_from(product >> 64).expect("invariant: the quotient is below a usize")
}
