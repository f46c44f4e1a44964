//! Which groups and targets the changes of a transaction concern.

use std::collections::{BTreeMap, HashMap};

use weir_layout::Layout;
use weir_pool::TargetPool;
use weir_proto::object::PunchScope;
use weir_proto::replica_transaction::{GROUPS_MAX, GroupName, PreparedChange};
use weir_proto::transaction::Change;
use weir_proto::{Der, Key, ObjectId};
use weir_rpc::Status;

use crate::admission::refusal;
use crate::groups::{check_kept, members};
use crate::unsettled::Place;

/// What each target has to prepare, by one version of the map.
pub(super) struct Plan {
    pub(super) version: u32,
    /// The groups, the leading one first: the first with replicas that the changes concern.
    pub(super) groups: Vec<GroupName>,
    pub(super) parts: BTreeMap<Place, Vec<PreparedChange>>,
}

impl Plan {
    /// Lays changes out by the newest map here.
    pub(super) fn of(pool: &TargetPool, changes: Vec<Change>) -> Result<Self, Status> {
        let version = pool.with_map(|map| map.version);
        let mut plan = Self { version, groups: Vec::new(), parts: BTreeMap::new() };
        let mut layouts: HashMap<ObjectId, Layout> = HashMap::new();
        let mut lead = None;
        for change in changes {
            let object = object_of(&change);
            let layout = match layouts.entry(object) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(new) => {
                    let layout = pool.with_map(|map| Layout::of(object, map)).map_err(refusal::invalid)?;
                    new.insert(layout)
                }
            };
            for number in groups_of(&change, layout)? {
                check_kept(pool, object, number)?;
                let name = GroupName { object, number: u32::try_from(number).map_err(refusal::invalid)? };
                if !plan.groups.contains(&name) {
                    if lead.is_none() && layout.replicas > 1 {
                        lead = Some(plan.groups.len());
                    }
                    plan.groups.push(name);
                }
                plan.add(pool, layout, number, &change)?;
            }
        }
        let lead = lead.ok_or_else(|| refusal::invalid("no object of the transaction has replicas"))?;
        plan.groups[..=lead].rotate_right(1);
        if plan.groups.len() > GROUPS_MAX {
            let count = plan.groups.len();
            return Err(refusal::invalid(format!("{count} groups take part, at most {GROUPS_MAX} can")));
        }
        Ok(plan)
    }

    /// The other target that takes part, where all is about one group, which `own` leads, and which has these two members alone. Both have
    /// parts then.
    pub(super) fn other_of_pair(&self, pool: &TargetPool, own: Place) -> Option<Place> {
        let [group] = self.groups[..] else { return None };
        let number = usize::try_from(group.number).ok()?;
        let serving = pool.with_layout(group.object, |layout, map| {
            let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
            let is_known = map.version == self.version && number < layout.group_count();
            is_known.then(|| layout.serving(number, map).filter_map(place).collect::<Vec<Place>>())
        });
        let serving = serving.ok().flatten()?;
        let is_all =
            self.parts.len() == serving.len() && serving.iter().all(|place| self.parts.contains_key(place));
        match serving[..] {
            [first, other] if first == own && is_all => Some(other),
            _ => None,
        }
    }

    /// Has the members of a group prepare a change.
    fn add(
        &mut self,
        pool: &TargetPool,
        layout: &Layout,
        number: usize,
        change: &Change,
    ) -> Result<(), Status> {
        let members = pool.with_map(|map| members(object_of(change), layout, number, map));
        if members.is_empty() {
            let message = format!("no target serves group {number} of object {}", object_of(change));
            return Err(Status::new(Der::AGAIN, message));
        }
        for (at, place) in members.into_iter().enumerate() {
            let part = self.parts.entry(place).or_default();
            match part.iter_mut().find(|known| known.change == *change) {
                // It is in another group of the object, too.
                Some(known) => known.is_judged |= at == 0,
                None => part.push(PreparedChange { change: change.clone(), is_judged: at == 0 }),
            }
        }
        Ok(())
    }
}

pub(super) fn object_of(change: &Change) -> ObjectId {
    match change {
        Change::Update { object, .. } | Change::Punch { object, .. } => *object,
    }
}

/// The dkey that a change concerns; `None`: all of the object.
pub(super) fn dkey_of(change: &Change) -> Option<&Key> {
    match change {
        Change::Update { dkey, .. } => Some(dkey),
        Change::Punch { scope, .. } => match scope {
            PunchScope::Object => None,
            PunchScope::Dkeys(dkeys) => dkeys.first(),
            PunchScope::Akeys(dkey, _) | PunchScope::DkeyWith(dkey, _) => Some(dkey),
        },
    }
}

/// Numbers of the groups that a change concerns.
fn groups_of(change: &Change, layout: &Layout) -> Result<Vec<usize>, Status> {
    if let Change::Punch { scope: PunchScope::Dkeys(dkeys), .. } = change
        && dkeys.len() != 1
    {
        // Each may have its own group.
        return Err(refusal::invalid("a punch in a transaction names one dkey"));
    }
    Ok(match dkey_of(change) {
        Some(dkey) => vec![layout.group_index(dkey.hash())],
        None => (0..layout.group_count()).collect(),
    })
}
