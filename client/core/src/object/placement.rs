//! Where an object lies, for people who look.

use weir_proto::pool::TargetState;
use weir_proto::{Rank, TargetIndex};

use super::Object;
use crate::session::Context;
use crate::{ObjectClass, Result};

/// A target that holds a part of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedTarget {
    /// Its engine.
    pub rank: Rank,
    /// Its index there.
    pub index: TargetIndex,
    /// Its state in the pool map.
    pub state: TargetState,
    /// Whether it orders the changes of the group. No target does while none of the group serves.
    pub leads: bool,
}

/// Where an object lies, by one version of the pool map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The object's class.
    pub class: ObjectClass,
    /// Version of the map.
    pub map_version: u32,
    /// The targets of each group; of each shard one, where the object has no replicas.
    pub groups: Vec<Vec<PlacedTarget>>,
}

impl Object {
    /// Where the object lies with the pool map that `context` knows. Sends nothing.
    ///
    /// # Errors
    /// When the object can't be placed.
    pub fn placement(&self, context: &Context) -> Result<Placement> {
        let map = context.map_of(self.container.pool());
        let layout = self.layout(context, &map)?;
        let class =
            ObjectClass::of(self.oid).map_err(|error| crate::Error::invalid("place object", error))?;
        let groups = (0..layout.group_count()).map(|number| {
            let leader = layout.leader(number, &map);
            let targets = layout.group(number).iter().filter_map(|id| map.target(*id));
            let placed = targets.map(|target| PlacedTarget {
                rank: target.rank,
                index: target.index,
                state: target.state,
                leads: leader == Some(target.id),
            });
            placed.collect()
        });
        Ok(Placement { class, map_version: map.version, groups: groups.collect() })
    }
}
