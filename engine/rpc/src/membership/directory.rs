//! Where the members of a group are.

use crate::contact::Peer;
use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_proto::Rank;

/// Where the contexts of one member are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// Host name or address.
    pub host: Rc<str>,
    /// Port of tag 0; tag `t` listens on `port + t`.
    pub port: u16,
    /// Number of tags: the member's contexts, one for each target.
    pub tags: u32,
}

/// A list of members that is older than the one in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("version {offered} of the group is not newer than version {present}, which is in use")]
pub struct StaleGroup {
    /// Version of the list that was offered.
    pub offered: u64,
    /// Version in use.
    pub present: u64,
}

/// Ranks and tags: the members of a group and their addresses. Two sides that act on the same version mean the same
/// members by the same ranks.
#[derive(Debug)]
pub struct Group {
    version: Cell<u64>,
    members: RefCell<BTreeMap<Rank, Location>>,
}

impl Group {
    /// A group of these members.
    #[must_use]
    pub fn new(version: u64, members: impl IntoIterator<Item = (Rank, Location)>) -> Rc<Self> {
        let members = RefCell::new(members.into_iter().collect());
        Rc::new(Self { version: Cell::new(version), members })
    }

    /// Version of the list.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version.get()
    }

    /// Takes over a newer list.
    ///
    /// # Errors
    /// When it isn't newer; nothing changes then.
    pub fn replace(
        &self,
        version: u64,
        members: impl IntoIterator<Item = (Rank, Location)>,
    ) -> Result<(), StaleGroup> {
        if version <= self.version.get() {
            return Err(StaleGroup { offered: version, present: self.version.get() });
        }
        self.version.set(version);
        self.members.replace(members.into_iter().collect());
        Ok(())
    }

    /// Every rank, ascending.
    #[must_use]
    pub fn ranks(&self) -> Vec<Rank> {
        self.members.borrow().keys().copied().collect()
    }

    /// The context `tag` of a member; `None` when there is no such member or tag.
    #[must_use]
    pub fn peer(&self, rank: Rank, tag: u32) -> Option<Peer> {
        let members = self.members.borrow();
        let location = members.get(&rank).filter(|location| tag < location.tags)?;
        let port = u16::try_from(u32::from(location.port) + tag).ok()?;
        Some(Peer::new(&location.host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(host: &str) -> Location {
        Location { host: host.into(), port: 65_000, tags: 600 }
    }

    #[test]
    fn a_tag_is_a_port_and_what_is_not_there_has_none() {
        let group = Group::new(3, [(Rank(7), located("a"))]);
        assert_eq!(group.peer(Rank(7), 2), Some(Peer::new("a", 65_002)));
        assert_eq!(group.peer(Rank(7), 600), None, "beyond the tags");
        assert_eq!(group.peer(Rank(7), 599), None, "beyond the ports");
        assert_eq!(group.peer(Rank(8), 0), None);
    }

    #[test]
    fn only_a_newer_list_replaces_the_present_one() {
        let group = Group::new(3, [(Rank(0), located("a"))]);
        let offered = [(Rank(1), located("b"))];
        assert_eq!(group.replace(3, offered.clone()), Err(StaleGroup { offered: 3, present: 3 }));
        assert_eq!(group.ranks(), [Rank(0)]);
        group.replace(4, offered).expect("it is newer");
        assert_eq!((group.version(), group.ranks()), (4, vec![Rank(1)]));
    }
}
