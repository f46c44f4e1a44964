//! What goes from one target to another: the groups that one leads and the other one lacks.

use std::cell::RefCell;

use weir_layout::{Layout, Receivers};
use weir_proto::pool::PoolMap;
use weir_proto::replica_transaction::GroupName;
use weir_proto::{Key, ObjectId};

use crate::groups::is_replicated;
use crate::unsettled::Place;

/// Which dkeys of an object go from one target to another.
struct Share {
    layout: Layout,
    groups: Vec<bool>,
    /// Whether the receiver has other groups of the object, or gets them from others.
    is_shared: bool,
}

/// What goes from one target to another by a version of the map.
pub(super) struct Shares {
    map: PoolMap,
    from: u32,
    to: u32,
    /// The object that was asked for last.
    last: RefCell<Option<(ObjectId, Option<Share>)>>,
}

impl Shares {
    /// `None`: one of them isn't the pool's.
    pub(super) fn new(map: PoolMap, from: Place, to: Place) -> Option<Self> {
        let id = |place| {
            let named = map.targets.iter().find(|target| (target.rank, target.index) == place);
            named.map(|target| target.id)
        };
        let (from, to) = (id(from)?, id(to)?);
        Some(Self { map, from, to, last: RefCell::default() })
    }

    /// Whether an object, or a dkey of it, goes there.
    pub(super) fn has(&self, object: ObjectId, dkey: Option<&Key>) -> bool {
        self.with(object, |share| dkey.is_none_or(|dkey| share.groups[share.layout.group_index(dkey.hash())]))
    }

    /// Whether a group goes there.
    pub(super) fn has_group(&self, GroupName { object, number }: GroupName) -> bool {
        let number = usize::try_from(number).ok();
        self.with(object, |share| number.and_then(|number| share.groups.get(number)) == Some(&true))
    }

    /// Whether the receiver has other groups of an object, or gets them from others.
    pub(super) fn is_shared(&self, object: ObjectId) -> bool {
        self.with(object, |share| share.is_shared)
    }

    fn with(&self, object: ObjectId, look: impl FnOnce(&Share) -> bool) -> bool {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(known, _)| *known != object) {
            *last = Some((object, self.share(object)));
        }
        matches!(&*last, Some((_, Some(share))) if look(share))
    }

    fn share(&self, object: ObjectId) -> Option<Share> {
        let receivers = Receivers::of(object, &self.map).ok().filter(|_| is_replicated(object))?;
        let groups = receivers.between(&self.map, self.from, self.to);
        if !groups.contains(&true) {
            return None;
        }
        let gets = |group| receivers.of_group(group, &self.map).any(|id| id == self.to);
        let has = |group| receivers.now.group(group).contains(&self.to);
        let is_shared = groups.iter().enumerate().any(|(group, comes)| !comes && (gets(group) || has(group)));
        Some(Share { layout: receivers.now, groups, is_shared })
    }
}
