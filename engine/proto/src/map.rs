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
    /// Version of the map that brought the state; 0: an earlier release wrote the map, it isn't known.
    pub since: u32,
    /// Version of the map in which others took its places over; 0: it has them. [`TargetState::DownOut`] sets it, and
    /// it stays while the target gets its data back ([`TargetState::Up`]).
    pub out: u32,
    /// It serves, and may have changes that no other member of their groups has, since it has started again: others are read
    /// before it.
    pub in_doubt: bool,
}

impl fmt::Debug for PoolTarget {
    /// Without what a map doesn't say that has none in doubt: recorded messages are compared by this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, rank, index, state, since, out, in_doubt } = self;
        let mut all = f.debug_struct("PoolTarget");
        all.field("id", id).field("rank", rank).field("index", index).field("state", state);
        all.field("since", since).field("out", out);
        if *in_doubt {
            all.field("in_doubt", in_doubt);
        }
        all.finish()
    }
}

impl PoolTarget {
    /// A target that serves since the first version of its map.
    #[must_use]
    pub const fn serving(id: u32, rank: Rank, index: TargetIndex) -> Self {
        Self { id, rank, index, state: TargetState::UpIn, since: 1, out: 0, in_doubt: false }
    }

    /// Puts the target into a state, which version `version` of the map brings. A target whose places others have
    /// goes from [`TargetState::Down`] to [`TargetState::DownOut`] at once. Returns whether that changes anything.
    pub fn enter(&mut self, state: TargetState, version: u32) -> bool {
        let state = if state == TargetState::Down && self.out != 0 { TargetState::DownOut } else { state };
        if state == self.state {
            return false;
        }
        match state {
            TargetState::DownOut if self.out == 0 => self.out = version,
            TargetState::UpIn => self.out = 0,
            _ => {}
        }
        (self.state, self.since, self.in_doubt) = (state, version, false);
        true
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
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "MapWire", into = "MapWire")]
pub struct PoolMap {
    /// Grows by one with each change.
    pub version: u32,
    /// Ascending by `id`.
    pub targets: Vec<PoolTarget>,
    /// Engines with a known place, ascending by rank.
    pub engines: Vec<PoolEngine>,
}

impl PoolMap {
    /// A map without places of engines.
    #[must_use]
    pub const fn new(version: u32, targets: Vec<PoolTarget>) -> Self {
        Self { version, targets, engines: Vec::new() }
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

impl PoolMap {
    /// Encodes what a map says beside ids, engines, indexes and states of its targets, for messages and records.
    #[must_use]
    pub fn tail(&self) -> Vec<u8> {
        let marks = self.targets.iter().map(|target| (target.since, target.out)).collect();
        let tail = MapTail { marks, engines: self.engines.clone() };
        let doubts: Doubts = self.in_doubt().map(|target| target.id).collect();
        if doubts.is_empty() { codec::encode(&tail) } else { codec::encode_with_tail(&tail, &doubts) }
    }

    /// Adds what [`PoolMap::tail`] encodes. An empty tail adds nothing; what follows the known part is ignored.
    ///
    /// # Errors
    /// When the bytes are no such tail.
    pub fn with_tail(mut self, tail: &[u8]) -> Result<Self, codec::DecodeError> {
        if tail.is_empty() {
            return Ok(self);
        }
        let (tail, doubts): (MapTail, Doubts) = codec::decode_with_tail(tail)?;
        for (target, (since, out)) in self.targets.iter_mut().zip(tail.marks) {
            (target.since, target.out) = (since, out);
        }
        for target in self.targets.iter_mut().filter(|target| target.state.serves()) {
            target.in_doubt = doubts.contains(&target.id);
        }
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
        let target = |(id, rank, index, state)| PoolTarget {
            id,
            rank,
            index,
            state,
            since: 0,
            out: 0,
            in_doubt: false,
        };
        let targets = wire.targets.into_iter().map(target).collect();
        Self::new(wire.version, targets).with_tail(&wire.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut later: MapWire = map().into();
        later.tail.extend([1, 2, 3]);
        assert_eq!(PoolMap::try_from(later).expect("a later map"), map());
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
