//! The list of engines and its version: every request between engines carries the version, and two engines that meet
//! with different ones make them equal before they do anything else.
//!
//! The configuration gives the first list; a newer one comes from any engine that has it. So an engine that is added,
//! or moved, needs no restart of all others at the same moment. No engine acts on two meanings of one rank, as long as
//! lists that differ have different versions.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use weir_proto::Rank;
use weir_proto::group::{EngineInfo, GroupList};
use weir_rpc::Peer;
use weir_rpc::membership::{Group, Location};
use weir_runtime::sync::Semaphore;

use crate::refusal::Rejection;

/// A list of engines that can't be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidEngines {
    /// The own rank is missing.
    #[error("rank {0} is not in the list of engines; list every engine, this one too")]
    OwnRankMissing(Rank),
    /// A rank twice.
    #[error("rank {0} is listed twice; give each engine a rank of its own")]
    Repeated(Rank),
    /// An engine without targets, or with ports past the last one.
    #[error("rank {0} has no targets or its ports run past 65535; check `targets` and `fabric_port`")]
    Targets(Rank),
}

type Watcher = Rc<dyn Fn(&[EngineInfo])>;

/// The list of engines in use.
pub struct Roster {
    own: Rank,
    /// The same list, as the RPC layer has it.
    group: Rc<Group>,
    infos: RefCell<Rc<[EngineInfo]>>,
    peers: RefCell<HashMap<(Rank, u32), Peer>>,
    /// One list is fetched at a time.
    pub(crate) fetching: Semaphore,
    watchers: RefCell<Vec<Watcher>>,
    refused: Cell<u64>,
    adopted: Cell<u64>,
}

impl Roster {
    /// This list, as the engine `own` sees it.
    pub(crate) fn new(own: Rank, list: GroupList) -> Result<Self, InvalidEngines> {
        let GroupList { version, engines } = sorted(own, list)?;
        let group = Group::new(version, engines.iter().map(located));
        let peers = RefCell::new(peers_of(&engines, &HashMap::new())?);
        Ok(Self {
            own,
            group,
            infos: RefCell::new(engines.into()),
            peers,
            fetching: Semaphore::new(1),
            watchers: RefCell::default(),
            refused: Cell::new(0),
            adopted: Cell::new(0),
        })
    }

    /// Version of the list.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.group.version()
    }

    /// The list, as the RPC layer has it.
    #[must_use]
    pub const fn group(&self) -> &Rc<Group> {
        &self.group
    }

    /// Requests that were refused because they went by another version of the list.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Newer lists that were taken over from other engines.
    #[must_use]
    pub const fn adopted(&self) -> u64 {
        self.adopted.get()
    }

    /// Calls this with every list that is taken over from now on. It must not wait.
    pub fn watch(&self, watcher: impl Fn(&[EngineInfo]) + 'static) {
        self.watchers.borrow_mut().push(Rc::new(watcher));
    }

    /// Every engine, by ascending rank.
    pub(crate) fn infos(&self) -> Rc<[EngineInfo]> {
        Rc::clone(&self.infos.borrow())
    }

    /// A target as the RPC layer knows it; `None`: the list has no such rank or target.
    pub(crate) fn peer(&self, rank: Rank, index: u32) -> Option<Peer> {
        self.peers.borrow().get(&(rank, index)).cloned()
    }

    /// Refuses a request that goes by another version of the list.
    pub(crate) fn check(&self, theirs: u64) -> Result<(), Rejection> {
        let ours = self.version();
        if theirs == ours {
            return Ok(());
        }
        self.refused.set(self.refused.get() + 1);
        Err(Rejection::StaleGroup { theirs, ours })
    }

    /// The list with its version.
    pub(crate) fn list(&self) -> GroupList {
        GroupList { version: self.version(), engines: self.infos().to_vec() }
    }

    /// Takes over a newer list; an older one changes nothing.
    pub(crate) fn adopt(&self, list: GroupList) -> Result<(), InvalidEngines> {
        let before = self.version();
        let GroupList { version, engines } = sorted(self.own, list)?;
        let peers = peers_of(&engines, &self.peers.borrow())?;
        if self.group.replace(version, engines.iter().map(located)).is_err() {
            return Ok(());
        }
        self.peers.replace(peers);
        self.infos.replace(engines.into());
        self.adopted.set(self.adopted.get() + 1);
        let infos = self.infos();
        tracing::info!(before, version, engines = infos.len(), "a newer list of engines is used");
        let watchers: Vec<Watcher> = self.watchers.borrow().clone();
        for watcher in watchers {
            watcher(&infos);
        }
        Ok(())
    }
}

fn located(info: &EngineInfo) -> (Rank, Location) {
    (info.rank, Location { host: info.host.as_str().into(), port: info.fabric_port, tags: info.targets })
}

/// A list without contradictions, by ascending rank.
fn sorted(own: Rank, mut list: GroupList) -> Result<GroupList, InvalidEngines> {
    let mut seen = BTreeSet::new();
    for info in &list.engines {
        if !seen.insert(info.rank) {
            return Err(InvalidEngines::Repeated(info.rank));
        }
        let highest = u32::from(info.fabric_port).saturating_add(info.targets.saturating_sub(1));
        if info.targets == 0 || highest > u32::from(u16::MAX) {
            return Err(InvalidEngines::Targets(info.rank));
        }
    }
    if !seen.contains(&own) {
        return Err(InvalidEngines::OwnRankMissing(own));
    }
    list.engines.sort_by_key(|info| info.rank);
    Ok(list)
}

/// Every target of a list. Those that stay where they were keep what is known of them.
fn peers_of(
    infos: &[EngineInfo],
    before: &HashMap<(Rank, u32), Peer>,
) -> Result<HashMap<(Rank, u32), Peer>, InvalidEngines> {
    let mut peers = HashMap::new();
    for info in infos {
        for target in 0..info.targets {
            let port = u32::from(info.fabric_port) + target;
            let port = u16::try_from(port).map_err(|_| InvalidEngines::Targets(info.rank))?;
            let new = Peer::new(&info.host, port);
            let known = before.get(&(info.rank, target)).filter(|known| **known == new);
            peers.insert((info.rank, target), known.cloned().unwrap_or(new));
        }
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(rank: u32, host: &str) -> EngineInfo {
        let management = String::new();
        EngineInfo { rank: Rank(rank), host: host.to_owned(), fabric_port: 100, targets: 2, management }
    }

    fn ranks(roster: &Roster) -> Vec<u32> {
        roster.infos().iter().map(|info| info.rank.0).collect()
    }

    #[test]
    fn only_newer_lists_with_the_own_rank_are_taken_over_and_watchers_hear_of_it() {
        let list = GroupList::from(vec![info(1, "b"), info(0, "a")]);
        let roster = Roster::new(Rank(0), list.clone()).expect("a good list");
        let heard = Rc::new(Cell::new(0));
        let seen = Rc::clone(&heard);
        roster.watch(move |infos| seen.set(infos.len()));
        assert_eq!((roster.version(), ranks(&roster)), (2, vec![0, 1]));
        roster.adopt(list).expect("it is the same");
        assert_eq!((roster.adopted(), heard.get()), (0, 0));
        let foreign = GroupList { version: 9, engines: vec![info(1, "b")] };
        assert_eq!(roster.adopt(foreign), Err(InvalidEngines::OwnRankMissing(Rank(0))));
        let newer = GroupList { version: 7, engines: vec![info(0, "a"), info(1, "moved"), info(4, "c")] };
        roster.adopt(newer).expect("it is newer");
        assert_eq!((roster.version(), ranks(&roster), heard.get()), (7, vec![0, 1, 4], 3));
        assert_eq!(roster.peer(Rank(1), 1), Some(Peer::new("moved", 101)));
        assert_eq!(roster.peer(Rank(4), 2), None, "it has two targets");
        assert_eq!(roster.check(7), Ok(()));
        assert_eq!(roster.check(2), Err(Rejection::StaleGroup { theirs: 2, ours: 7 }));
        assert_eq!((roster.adopted(), roster.refused()), (1, 1));
    }

    #[test]
    fn contradictory_lists_are_refused() {
        let twice = GroupList::from(vec![info(0, "a"), info(0, "b")]);
        assert_eq!(Roster::new(Rank(0), twice).err(), Some(InvalidEngines::Repeated(Rank(0))));
        let mut beyond = info(0, "a");
        (beyond.fabric_port, beyond.targets) = (65_535, 2);
        assert_eq!(Roster::new(Rank(0), vec![beyond].into()).err(), Some(InvalidEngines::Targets(Rank(0))));
    }
}
