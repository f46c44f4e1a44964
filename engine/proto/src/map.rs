//! Pool maps: the targets of a pool, their states, and the fault domains of its engines.

use core::fmt;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::{Rank, TargetIndex};

/// State of a target in a pool map (names of `DAOS_TS_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TargetState {
    /// Serves.
    UpIn,
    /// Lost; its data is unavailable, and nobody has taken its places over.
    Down,
    /// It is back and gets what it missed: it takes writes, and serves no reads.
    Up,
    /// It has joined the pool and gets its share of the data. Nothing is placed on it yet.
    New,
    /// Serves while its data moves to others.
    Drain,
    /// Lost, and others have taken its places over.
    DownOut,
}

impl TargetState {
    /// Whether the target serves reads and writes.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::UpIn | Self::Drain)
    }

    /// Whether the target takes writes.
    #[must_use]
    pub const fn takes_writes(self) -> bool {
        matches!(self, Self::UpIn | Self::Drain | Self::Up)
    }

    /// Whether the target is out of service.
    #[must_use]
    pub const fn is_lost(self) -> bool {
        matches!(self, Self::Down | Self::DownOut)
    }

    /// Name as `dmg` prints it, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UpIn => "up_in",
            Self::Down => "down",
            Self::Up => "up",
            Self::New => "new",
            Self::Drain => "drain",
            Self::DownOut => "down_out",
        }
    }
}

/// One target of a pool.
#[derive(Clone, PartialEq, Eq)]
pub struct PoolTarget {
    /// Number in the pool: stable for the pool's life.
    pub id: u32,
    /// Engine.
    pub rank: Rank,
    /// Target of that engine.
    pub index: TargetIndex,
    /// State.
    pub state: TargetState,
    /// Version of the map that brought the state; 0: an earlier release wrote the map, it isn't known. A target that is drained
    /// serves on: for it, the version since which it serves.
    pub since: u32,
    /// Version of the map in which others took its places over; 0: it has them. [`TargetState::DownOut`] sets it, and
    /// it stays while the target gets its data back ([`TargetState::Up`]).
    pub out: u32,
    /// It serves, and may have changes that no other member of their groups has, since it has started again: others are read
    /// before it.
    pub in_doubt: bool,
    /// Version of the map since which others fill its places, to take them over: of a target that is down or drained. 0: nobody does.
    pub leaving: u32,
    /// An administrator has taken it out of the pool: it doesn't come back by itself. Of a target that is new: it is away, and gets
    /// nothing until it is back.
    pub excluded: bool,
    /// An administrator has its data moved to others: it is drained whenever it serves.
    pub draining: bool,
    /// Version of the map in which it joined the pool; 0: the pool was made with it.
    pub joined: u32,
}

impl fmt::Debug for PoolTarget {
    /// Without what a map doesn't say that has none in doubt, none that leaves, and so on: recorded messages are compared by this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, rank, index, state, since, out, in_doubt, leaving, excluded, draining, joined } = self;
        let mut all = f.debug_struct("PoolTarget");
        all.field("id", id).field("rank", rank).field("index", index).field("state", state);
        all.field("since", since).field("out", out);
        if *in_doubt {
            all.field("in_doubt", in_doubt);
        }
        if *leaving > 0 {
            all.field("leaving", leaving);
        }
        if *excluded {
            all.field("excluded", excluded);
        }
        if *draining {
            all.field("draining", draining);
        }
        if *joined > 0 {
            all.field("joined", joined);
        }
        all.finish()
    }
}

impl PoolTarget {
    /// A target that serves since the first version of its map.
    #[must_use]
    pub const fn serving(id: u32, rank: Rank, index: TargetIndex) -> Self {
        Self { since: 1, ..Self::plain(id, (rank, index), TargetState::UpIn) }
    }

    /// A target of which nothing more is known than its state.
    #[must_use]
    pub const fn plain(id: u32, (rank, index): (Rank, TargetIndex), state: TargetState) -> Self {
        let (excluded, draining) = (false, false);
        Self {
            id,
            rank,
            index,
            state,
            since: 0,
            out: 0,
            in_doubt: false,
            leaving: 0,
            excluded,
            draining,
            joined: 0,
        }
    }

    /// A target that joins a pool in version `version` of its map.
    #[must_use]
    pub const fn joining(id: u32, place: (Rank, TargetIndex), version: u32) -> Self {
        Self { since: version, joined: version, ..Self::plain(id, place, TargetState::New) }
    }

    /// Puts the target into a state, which version `version` of the map brings. A target whose places others have
    /// goes from [`TargetState::Down`] to [`TargetState::DownOut`] at once. One that is new, and has no places, stays so, whether it
    /// is there or away, until it serves. Returns whether that changes anything.
    pub fn enter(&mut self, state: TargetState, version: u32) -> bool {
        if self.state == TargetState::New && state != TargetState::UpIn {
            let is_away = state.is_lost();
            let changes = self.excluded != is_away;
            if changes {
                (self.excluded, self.since) = (is_away, version);
            }
            return changes;
        }
        let state = if state == TargetState::Down && self.out != 0 { TargetState::DownOut } else { state };
        if state == self.state {
            return false;
        }
        match state {
            TargetState::DownOut if self.out == 0 => self.out = version,
            TargetState::UpIn => (self.out, self.excluded) = (0, false),
            _ => {}
        }
        // Whose places others have taken after it was drained is not wanted back.
        if state == TargetState::DownOut && core::mem::take(&mut self.draining) {
            self.excluded = true;
        }
        // Who has served longest leads: to be drained, or not any more, changes nothing in that.
        let serves_on = self.state.serves() && state.serves();
        let (since, in_doubt) = if serves_on { (self.since, self.in_doubt) } else { (version, false) };
        let leaving = if state == TargetState::Drain { version } else { 0 };
        (self.state, self.since, self.in_doubt, self.leaving) = (state, since, in_doubt, leaving);
        true
    }

    /// Has what moves for the sake of this target move anew, since version `version` of the map: what has been said of places that were
    /// filled counts no more.
    pub fn move_anew(&mut self, version: u32) {
        match self.state {
            TargetState::Down | TargetState::Drain if self.leaving > 0 => self.leaving = version,
            TargetState::Up if self.out > 0 => self.since = version,
            TargetState::New if !self.excluded => self.since = version,
            _ => {}
        }
    }

    /// Whether the target is there, and gets all of its places from others that have them before it serves any.
    #[must_use]
    pub const fn gains_all(&self) -> bool {
        match self.state {
            TargetState::New => !self.excluded,
            TargetState::Up => self.out > 0,
            _ => false,
        }
    }

    /// Whether the target is there: it serves, or gets what it is to serve.
    #[must_use]
    pub const fn takes_part(&self) -> bool {
        self.state.takes_writes() || self.gains_all()
    }

    /// Lets others fill the places of a target that is down, from version `version` of the map on. Returns whether that changes
    /// anything.
    pub fn leave(&mut self, version: u32) -> bool {
        let changes = self.state == TargetState::Down && self.leaving == 0;
        if changes {
            self.leaving = version;
        }
        changes
    }

    /// Whether the target is in a state in which others may fill its places.
    const fn may_leave(&self) -> bool {
        matches!(self.state, TargetState::Down | TargetState::Drain)
    }

    /// Version of the map since which data moves so that the target gets or leaves places; `None`: it keeps those that it has.
    #[must_use]
    pub const fn moves_since(&self) -> Option<u32> {
        match self.state {
            TargetState::Down | TargetState::Drain if self.leaving > 0 => Some(self.leaving),
            TargetState::Up if self.out > 0 => Some(self.since),
            TargetState::New if !self.excluded => Some(self.since),
            _ => None,
        }
    }
}

/// What a pool map knows of an engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolEngine {
    /// The engine.
    pub rank: Rank,
    /// Where it is, from the widest fault domain to the narrowest, e.g. `["zone-a", "rack-3", "node-17"]`. Engines with
    /// equal paths share a fault domain. Empty: the engine is a fault domain of its own.
    pub path: Vec<String>,
}

/// The targets of a pool.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "MapWire", into = "MapWire")]
pub struct PoolMap {
    /// Grows by one with each change.
    pub version: u32,
    /// Ascending by `id`.
    pub targets: Vec<PoolTarget>,
    /// Engines with a known place, ascending by rank.
    pub engines: Vec<PoolEngine>,
    /// Version of the map since which groups whose members are about to change take no changes, so that nothing of theirs is unsettled
    /// when they do; 0: none are.
    pub handing: u32,
    /// Engines that replicate the pool's service, at most [`SERVICE_RANKS_MAX`]; none: those that follow from the engines that the pool
    /// was made with.
    pub service: Vec<Rank>,
}

/// Most engines that a map names as those of the pool's service: five, and one that is about to take the place of one of them.
pub const SERVICE_RANKS_MAX: usize = 6;

impl fmt::Debug for PoolMap {
    /// Without what a map doesn't say that hands nothing over and names no engines of the service: recorded messages are compared by this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, targets, engines, handing, service } = self;
        let mut all = f.debug_struct("PoolMap");
        all.field("version", version).field("targets", targets).field("engines", engines);
        if *handing > 0 {
            all.field("handing", handing);
        }
        if !service.is_empty() {
            all.field("service", service);
        }
        all.finish()
    }
}

impl PoolMap {
    /// A map without places of engines.
    #[must_use]
    pub const fn new(version: u32, targets: Vec<PoolTarget>) -> Self {
        Self { version, targets, engines: Vec::new(), handing: 0, service: Vec::new() }
    }

    /// The engines of its targets, ascending.
    #[must_use]
    pub fn ranks(&self) -> Vec<Rank> {
        let ranks: BTreeSet<Rank> = self.targets.iter().map(|target| target.rank).collect();
        ranks.into_iter().collect()
    }

    /// The engines of targets in service, ascending.
    pub fn in_service(&self) -> impl Iterator<Item = Rank> {
        let serving = self.targets.iter().filter(|target| !target.state.is_lost());
        serving.map(|target| target.rank).collect::<BTreeSet<_>>().into_iter()
    }

    /// Targets that are out of service, ascending by id.
    pub fn down(&self) -> impl Iterator<Item = &PoolTarget> {
        self.targets.iter().filter(|target| target.state.is_lost())
    }

    /// The target of this id.
    #[must_use]
    pub fn target(&self, id: u32) -> Option<&PoolTarget> {
        // Ids are usually numbers from 0 on.
        let expected = usize::try_from(id).ok().and_then(|index| self.targets.get(index));
        if let Some(target) = expected.filter(|target| target.id == id) {
            return Some(target);
        }
        let index = self.targets.binary_search_by_key(&id, |target| target.id).ok()?;
        self.targets.get(index)
    }

    /// Targets that serve and are in doubt, ascending by id.
    pub fn in_doubt(&self) -> impl Iterator<Item = &PoolTarget> {
        self.targets.iter().filter(|target| target.state.serves() && target.in_doubt)
    }

    /// Version of the map since which data moves between targets as it does now; `None`: no places change their targets.
    #[must_use]
    pub fn moves_since(&self) -> Option<u32> {
        self.targets.iter().filter_map(PoolTarget::moves_since).max()
    }

    /// Whether a target serves reads and writes.
    #[must_use]
    pub fn serves(&self, id: u32) -> bool {
        self.target(id).is_some_and(|target| target.state.serves())
    }

    /// Where an engine is, from the widest fault domain to the narrowest; empty when nothing is known.
    #[must_use]
    pub fn path_of(&self, rank: Rank) -> &[String] {
        let found = self.engines.binary_search_by_key(&rank, |engine| engine.rank);
        found.ok().and_then(|index| self.engines.get(index)).map_or(&[], |engine| engine.path.as_slice())
    }
}

/// A map as it is sent.
#[derive(Serialize, Deserialize)]
struct MapWire {
    version: u32,
    targets: Vec<(u32, Rank, TargetIndex, TargetState)>,
    /// An encoded [`MapTail`]; empty when an earlier form was read. Bytes behind what is known here are of later releases.
    #[serde(with = "serde_bytes")]
    tail: Vec<u8>,
}

/// What is said of a map behind its targets. Later fields are appended: the reader ignores what it doesn't know.
#[derive(Default, Serialize, Deserialize)]
struct MapTail {
    /// For each target in the order of the map the versions `since` and `out`.
    marks: Vec<(u32, u32)>,
    engines: Vec<PoolEngine>,
}

/// What is said behind that: the ids of targets in doubt.
type Doubts = Vec<u32>;

/// What is said behind that: the ids of targets whose places others fill, and since which version of the map.
type Leavings = Vec<(u32, u32)>;

/// What is said behind that: the ids of targets that an administrator has taken out.
type Exclusions = Vec<u32>;

/// What is said behind that: since which version places are being handed over; none where they aren't.
type Handing = Vec<u32>;

/// What is said behind that: the ids of targets that are to be drained.
type Drains = Vec<u32>;

/// What is said behind that: the ids of targets that have joined the pool later, and in which version of the map.
type Joins = Vec<(u32, u32)>;

/// What is said behind that: the engines that replicate the pool's service, where they aren't those that it was made with.
type ServiceRanks = Vec<Rank>;

/// A list of a map's tail; nothing for an empty one.
fn list<T: Serialize>(entries: &[T]) -> Option<Vec<u8>> {
    (!entries.is_empty()).then(|| codec::encode(&entries))
}

/// A list of a map's tail and what is behind it; an empty one where earlier releases end.
fn next_list<T: serde::de::DeserializeOwned + Default>(
    bytes: &[u8],
) -> Result<(T, &[u8]), codec::DecodeError> {
    if bytes.is_empty() { Ok((T::default(), bytes)) } else { codec::decode_prefix(bytes) }
}

impl PoolMap {
    /// Encodes what a map says beside ids, engines, indexes and states of its targets, for messages and records.
    #[must_use]
    pub fn tail(&self) -> Vec<u8> {
        let marks = self.targets.iter().map(|target| (target.since, target.out)).collect();
        let tail = MapTail { marks, engines: self.engines.clone() };
        let mut all = codec::encode(&tail);
        let doubts: Doubts = self.in_doubt().map(|target| target.id).collect();
        let leaving = self.targets.iter().filter(|target| target.leaving > 0);
        let leavings: Leavings = leaving.map(|target| (target.id, target.leaving)).collect();
        let excluded = self.targets.iter().filter(|target| target.excluded);
        let exclusions: Exclusions = excluded.map(|target| target.id).collect();
        let handing: Handing = Vec::from_iter((self.handing > 0).then_some(self.handing));
        let drains: Drains =
            self.targets.iter().filter(|target| target.draining).map(|target| target.id).collect();
        let joined = self.targets.iter().filter(|target| target.joined > 0);
        let joins: Joins = joined.map(|target| (target.id, target.joined)).collect();
        let lists = [
            list(&doubts),
            list(&leavings),
            list(&exclusions),
            list(&handing),
            list(&drains),
            list(&joins),
            list(&self.service),
        ];
        // What has nothing to say and nothing behind it that has is left out, as by earlier releases.
        let said = lists.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        for list in lists.into_iter().take(said) {
            all.extend(list.unwrap_or_else(|| codec::encode::<[u32]>(&[])));
        }
        all
    }

    /// Adds what [`PoolMap::tail`] encodes. An empty tail adds nothing; what follows the known part is ignored.
    ///
    /// # Errors
    /// When the bytes are no such tail.
    pub fn with_tail(mut self, tail: &[u8]) -> Result<Self, codec::DecodeError> {
        if tail.is_empty() {
            return Ok(self);
        }
        let bytes = tail.len();
        let (tail, behind) = codec::decode_prefix::<MapTail>(tail)?;
        let (doubts, behind) = next_list::<Doubts>(behind)?;
        let (leavings, behind) = next_list::<Leavings>(behind)?;
        let (exclusions, behind) = next_list::<Exclusions>(behind)?;
        let (handing, behind) = next_list::<Handing>(behind)?;
        let (drains, behind) = next_list::<Drains>(behind)?;
        let (joins, behind) = next_list::<Joins>(behind)?;
        let (service, _later) = next_list::<ServiceRanks>(behind)?;
        for (target, (since, out)) in self.targets.iter_mut().zip(tail.marks) {
            (target.since, target.out) = (since, out);
        }
        for target in self.targets.iter_mut().filter(|target| target.state.serves()) {
            target.in_doubt = doubts.contains(&target.id);
        }
        for (id, version) in leavings {
            let found = self.targets.binary_search_by_key(&id, |target| target.id);
            let target = found.ok().and_then(|index| self.targets.get_mut(index));
            if let Some(target) = target.filter(|target| target.may_leave()) {
                target.leaving = version;
            }
        }
        for target in self.targets.iter_mut().filter(|target| !target.state.serves()) {
            target.excluded = exclusions.contains(&target.id);
        }
        for target in &mut self.targets {
            target.draining = drains.contains(&target.id);
            let joined = joins.iter().find(|(id, _)| *id == target.id);
            target.joined = joined.map_or(0, |(_, version)| *version);
        }
        self.handing = match handing[..] {
            [] => 0,
            [version] => version,
            _ => {
                let (what, source) = ("pool map that hands places over once", postcard::Error::SerdeDeCustom);
                return Err(codec::DecodeError { what, bytes, source });
            }
        };
        let is_one_of = |rank: &Rank| self.targets.iter().any(|target| target.rank == *rank);
        if service.len() > SERVICE_RANKS_MAX || !service.iter().all(is_one_of) {
            let (what, source) = ("pool map whose service is on its engines", postcard::Error::SerdeDeCustom);
            return Err(codec::DecodeError { what, bytes, source });
        }
        self.service = service;
        self.engines = tail.engines;
        self.engines.sort_unstable_by_key(|engine| engine.rank);
        Ok(self)
    }
}

impl From<PoolMap> for MapWire {
    fn from(map: PoolMap) -> Self {
        let target = |target: &PoolTarget| (target.id, target.rank, target.index, target.state);
        Self { version: map.version, targets: map.targets.iter().map(target).collect(), tail: map.tail() }
    }
}

impl TryFrom<MapWire> for PoolMap {
    type Error = codec::DecodeError;

    fn try_from(wire: MapWire) -> Result<Self, Self::Error> {
        let target = |(id, rank, index, state)| PoolTarget::plain(id, (rank, index), state);
        let targets = wire.targets.into_iter().map(target).collect();
        Self::new(wire.version, targets).with_tail(&wire.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_handed_over_since_one_version_or_not_at_all() {
        let handed = |versions: &[u32]| {
            let mut tail = codec::encode(&MapTail { marks: Vec::new(), engines: Vec::new() });
            // Doubts, leavings and exclusions.
            tail.extend([0; 3]);
            tail.extend(codec::encode(versions));
            map().with_tail(&tail).map(|map| map.handing)
        };
        assert_eq!((handed(&[]), handed(&[5])), (Ok(0), Ok(5)));
        handed(&[5, 6]).expect_err("two versions");
    }

    fn map() -> PoolMap {
        let target = |id| PoolTarget::serving(id, Rank(id / 2), TargetIndex(id % 2));
        let mut map = PoolMap::new(7, (0..4).map(target).collect());
        map.targets[1].enter(TargetState::Down, 5);
        map.targets[3].enter(TargetState::DownOut, 6);
        map.targets[2].in_doubt = true;
        map.engines = vec![PoolEngine { rank: Rank(1), path: vec!["zone".to_owned(), "node".to_owned()] }];
        map
    }

    #[test]
    fn a_map_survives_its_encoding() {
        let map = map();
        assert_eq!(codec::decode::<PoolMap>(&codec::encode(&map)), Ok(map.clone()));
        assert_eq!(map.path_of(Rank(1)), ["zone", "node"]);
        assert!(map.path_of(Rank(0)).is_empty());
        assert_eq!(map.in_service().collect::<Vec<_>>(), [Rank(0), Rank(1)]);
    }

    #[test]
    fn what_later_releases_add_is_ignored_and_what_is_damaged_is_refused() {
        let mut newest = map();
        assert!(newest.targets[1].leave(7));
        newest.targets[3].excluded = true;
        let mut later: MapWire = newest.clone().into();
        // All lists that are known here, and what is behind them.
        later.tail.extend([0, 0, 0, 0, 1, 2, 3]);
        assert_eq!(PoolMap::try_from(later).expect("a later map"), newest);
        let mut damaged: MapWire = map().into();
        damaged.tail.truncate(3);
        assert!(PoolMap::try_from(damaged).is_err());
        let mut earlier: MapWire = map().into();
        earlier.tail.clear();
        let earlier = PoolMap::try_from(earlier).expect("an earlier map");
        assert!(earlier.targets.iter().all(|target| (target.since, target.out) == (0, 0)));
        assert_eq!(earlier.in_doubt().count(), 0);
    }

    #[test]
    fn a_map_with_nobody_in_doubt_is_said_as_before() {
        let mut map = map();
        assert_eq!(map.in_doubt().map(|target| target.id).collect::<Vec<_>>(), [2]);
        let doubted = map.tail();
        map.targets[2].in_doubt = false;
        let plain = map.tail();
        assert!(doubted.starts_with(&plain) && doubted.len() > plain.len());
        assert!(!format!("{map:?}").contains("in_doubt"));
        map.targets[2].in_doubt = true;
        assert!(
            map.targets[2].enter(TargetState::Up, 8) && !map.targets[2].in_doubt,
            "it is known what it is"
        );
    }

    #[test]
    fn a_map_says_which_engines_replicate_the_service_where_others_do_than_at_first() {
        let mut map = map();
        let plain = map.tail();
        map.service = vec![Rank(1), Rank(0)];
        assert!(map.tail().starts_with(&plain) && map.tail().len() > plain.len());
        assert_eq!(codec::decode::<PoolMap>(&codec::encode(&map)), Ok(map.clone()));
        for wrong in [vec![Rank(7)], vec![Rank(0); SERVICE_RANKS_MAX + 1]] {
            map.service = wrong;
            codec::decode::<PoolMap>(&codec::encode(&map)).expect_err("no such engines, or too many");
        }
    }

    #[test]
    fn a_map_says_whose_places_others_fill_and_since_when() {
        let mut map = map();
        assert_eq!(map.moves_since(), None);
        assert!(map.targets[1].leave(8) && !map.targets[1].leave(9), "it leaves already");
        assert!(!map.targets[2].leave(9) && !map.targets[3].leave(9), "it serves, or is out");
        assert_eq!(map.moves_since(), Some(8));
        for (doubts, excluded) in [(true, false), (false, false), (false, true), (true, true)] {
            map.targets[2].in_doubt = doubts;
            map.targets[3].excluded = excluded;
            assert_eq!(codec::decode::<PoolMap>(&codec::encode(&map)), Ok(map.clone()));
        }
        let mut back = map.clone();
        assert!(back.targets[1].enter(TargetState::Up, 9));
        assert_eq!((back.targets[1].leaving, back.moves_since()), (0, None), "nothing has moved");
        assert!(map.targets[1].enter(TargetState::DownOut, 9));
        assert_eq!(map.moves_since(), None, "it has moved");
        assert!(map.targets[1].enter(TargetState::Up, 10));
        assert_eq!(map.moves_since(), Some(10), "it moves back");
        assert!(map.targets[0].enter(TargetState::Drain, 11));
        assert_eq!((map.targets[0].since, map.moves_since()), (1, Some(11)));
    }

    #[test]
    fn states_remember_since_when_they_are_and_whether_others_have_the_places() {
        let mut target = PoolTarget::serving(0, Rank(0), TargetIndex(0));
        assert!(!target.enter(TargetState::UpIn, 2), "it is in that state");
        assert!(target.enter(TargetState::Down, 2));
        assert_eq!((target.since, target.out), (2, 0));
        assert!(target.enter(TargetState::DownOut, 3));
        assert!(target.enter(TargetState::Up, 4));
        assert_eq!((target.since, target.out), (4, 3), "others have its places");
        assert!(target.enter(TargetState::Down, 5));
        assert_eq!((target.state, target.out), (TargetState::DownOut, 3));
        assert!(target.enter(TargetState::UpIn, 6));
        assert_eq!((target.since, target.out), (6, 0));
    }
}
