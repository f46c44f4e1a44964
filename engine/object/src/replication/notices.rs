//! Notices that changes are settled, from the leader of a group to the other members, several in one.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use weir_group::Refusal;
use weir_proto::replica::{SettledChanges, SettledNotice};
use weir_proto::{Epoch, ObjectId, PoolId, Rank, opcode};

use super::Replication;
use crate::unsettled::{Place, has_many_members};

/// How long notices are gathered before they are sent: what reads at another member wait at most beside a round trip.
const GATHERED: Duration = Duration::from_micros(500);

/// Longest wait for an answer, and pause before a notice is sent again.
const LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

/// Settled changes of which one member is to be told.
#[derive(Default)]
struct Gathered {
    /// Of groups of two.
    pairs: Vec<Epoch>,
    /// Of larger groups, with who has chosen their epochs.
    others: Vec<(Place, Epoch)>,
}

/// Settled changes that other members haven't been told of.
#[derive(Default)]
pub(super) struct Notices {
    gathered: RefCell<HashMap<(PoolId, Place), Gathered>>,
    /// Those of groups with more than two members, and how many members haven't heard.
    untold: RefCell<BTreeMap<(PoolId, Epoch), u32>>,
}

impl Notices {
    /// The oldest change of groups with more than two members of which a member hasn't heard that it is settled.
    pub(super) fn oldest(&self, pool: PoolId) -> Option<Epoch> {
        let untold = self.untold.borrow();
        let of_pool = untold.range((pool, Epoch::ZERO)..=(pool, Epoch::MAX));
        of_pool.map(|((_, epoch), _)| *epoch).next()
    }

    fn end(&self, pool: PoolId, epoch: Epoch) {
        let mut untold = self.untold.borrow_mut();
        if let Some(left) = untold.get_mut(&(pool, epoch)) {
            *left -= 1;
            if *left == 0 {
                untold.remove(&(pool, epoch));
            }
        }
    }
}

impl Replication {
    /// Takes note of what leaders say from now on.
    pub(super) fn serve_notices(self: &Rc<Self>) {
        let engines = self.admission.pools.engines();
        let weak = Rc::downgrade(self);
        let handler = move |rank: Rank, notice: SettledNotice| {
            if let Some(replication) = weak.upgrade() {
                for epoch in notice.epochs {
                    let leader = (rank, notice.leader);
                    if let Some(pending) = replication.unsettled.find(notice.pool, leader, epoch) {
                        replication.unsettled.settle(&pending);
                    }
                }
            }
            async { Ok::<_, Refusal>(()) }
        };
        engines.serve(opcode::TARGET_REPLICA_SETTLED, handler);
        let weak = Rc::downgrade(self);
        let handler = move |rank: Rank, notice: SettledChanges| {
            if let Some(replication) = weak.upgrade() {
                for (of, index, epoch) in notice.changes {
                    if let Some(pending) = replication.unsettled.find(notice.pool, (of, index), epoch) {
                        replication.unsettled.settle_told(&pending);
                    }
                }
                replication.unsettled.forget_told(notice.pool, (rank, notice.leader), notice.floor);
            }
            async { Ok::<_, Refusal>(()) }
        };
        engines.serve(opcode::TARGET_REPLICA_SETTLED_CHANGES, handler);
    }

    /// Has a member told that a change of an object is settled, whose epoch `origin` has chosen: this target, or in a group with more than
    /// two members one that led before.
    pub(crate) fn tell(
        self: &Rc<Self>,
        (pool, object): (PoolId, ObjectId),
        (origin, epoch): (Place, Epoch),
        member: Place,
    ) {
        let to = (pool, member);
        let mut all = self.notices.gathered.borrow_mut();
        let is_first = !all.contains_key(&to);
        let gathered = all.entry(to).or_default();
        if has_many_members(object) {
            gathered.others.push((origin, epoch));
            *self.notices.untold.borrow_mut().entry((pool, epoch)).or_default() += 1;
        } else {
            gathered.pairs.push(epoch);
        }
        if is_first {
            self.admission.rt.spawn(Rc::clone(self).send_notices(to));
        }
    }

    async fn send_notices(self: Rc<Self>, to: (PoolId, Place)) {
        self.admission.rt.sleep(GATHERED).await;
        let gathered = self.notices.gathered.borrow_mut().remove(&to);
        let Some(Gathered { pairs, others }) = gathered else { return };
        let engines = self.admission.pools.engines();
        let (leader, (pool, (rank, index))) = (engines.own_index(), to);
        if !pairs.is_empty() {
            let notice = SettledNotice { leader, pool, epochs: pairs };
            let opcode = opcode::TARGET_REPLICA_SETTLED;
            self.until_told(to, async || {
                engines.ask::<_, ()>(rank, index, opcode, &notice, LIMIT).await.is_ok()
            })
            .await;
        }
        if !others.is_empty() {
            let changes = others.iter().map(|((rank, index), epoch)| (*rank, *index, *epoch)).collect();
            let notice = SettledChanges { leader, pool, changes, floor: self.floor(pool) };
            let opcode = opcode::TARGET_REPLICA_SETTLED_CHANGES;
            self.until_told(to, async || {
                engines.ask::<_, ()>(rank, index, opcode, &notice, LIMIT).await.is_ok()
            })
            .await;
            for (_, epoch) in others {
                self.notices.end(pool, epoch);
            }
        }
    }

    /// Tells a member until it has heard. One that is out of the map decides by that, and one that has started anew knows of none.
    async fn until_told(&self, (pool, member): (PoolId, Place), tell: impl AsyncFn() -> bool) {
        while self.admission.pools.get(pool).is_ok_and(|pool| pool.is_written_by(member)) {
            if tell().await {
                return;
            }
            self.admission.rt.sleep(PAUSE).await;
        }
    }

    /// All members know that the changes are settled that this target has led before this epoch, in groups with more than two members.
    fn floor(&self, pool: PoolId) -> Epoch {
        let here = self.admission.epoch();
        let led = self.unsettled.oldest_led(pool, self.own()).unwrap_or(here);
        self.notices.oldest(pool).unwrap_or(here).min(led)
    }
}
