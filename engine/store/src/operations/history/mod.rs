//! History of a container's objects: read out, a page at a time, taken in, and erased. So a target gets what it lacks of
//! another one that has it.
//!
//! A target that is being *filled* takes changes of the present, too. The leader of a group of replicas sends these in an order
//! in which no punch is overtaken, but what was before them isn't here yet: a change that finds its dkey may be about to learn
//! that it was punched long ago. So while a pool's shard is being filled ([`Shard::fill`]), changes of leaders stand by
//! themselves. An update notes that object, dkey and akey exist at its epoch, unless that was noted at an epoch from which on all
//! changes come; a punch is noted whatever it finds. Such changes, and parts of history, amount to the same in any order.
//! Commits of transactions of groups are such changes, too.
//!
//! Aggregation of the pool stands still meanwhile: it drops punches that end nothing that is here. Nor does it go on where
//! history is read out ([`Shard::hold_history`]): between two pages it could move what the first has passed to where the second
//! has not come.

mod erase;
mod export;
mod import;
mod replace;
mod versions;

use crate::state::shard::Shard;
use core::time::Duration;
use weir_proto::Epoch;

pub use import::Imported;
pub use replace::{HeldHistory, Replacement};

impl Shard {
    /// The shard is being filled from now on, until [`Shard::end_fill`]. All changes of later epochs than `since` come from
    /// leaders; [`Epoch::MAX`]: it isn't known from which on, and others are about to be asked. All that transactions have
    /// committed before is in what those tell. To be said again when the engine was restarted.
    pub fn fill(&self, since: Epoch) {
        self.core.fills.begin(self.number, since.0);
    }

    /// The shard has all that it is to have.
    pub fn end_fill(&self) {
        self.core.fills.end(self.number);
        self.core.chores.notify_one();
    }

    /// Whether the shard is being filled.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        self.core.fills.since(self.number).is_some()
    }

    /// Keeps aggregation from the pool's history for so long from now on.
    pub fn hold_history(&self, span: Duration) {
        self.core.fills.hold(self.number, self.core.rt.now() + span);
    }
}
