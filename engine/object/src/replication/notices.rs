//! Notices that changes are settled, from the leader of a group to the other members, several in one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use weir_group::Refusal;
use weir_proto::replica::SettledNotice;
use weir_proto::{Epoch, PoolId, Rank, opcode};

use super::Replication;
use crate::unsettled::Place;

/// How long notices are gathered before they are sent: what reads at another member wait at most beside a round trip.
const GATHERED: Duration = Duration::from_micros(500);

/// Longest wait for an answer, and pause before a notice is sent again.
const LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

/// Settled changes that other members haven't been told of.
#[derive(Default)]
pub(super) struct Notices(RefCell<HashMap<(PoolId, Place), Vec<Epoch>>>);

impl Replication {
    /// Takes note of what leaders say from now on.
    pub(super) fn serve_notices(self: &Rc<Self>) {
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
        self.admission.pools.engines().serve(opcode::TARGET_REPLICA_SETTLED, handler);
    }

    /// Has a member told that a change of this epoch is settled.
    pub(crate) fn tell(self: &Rc<Self>, pool: PoolId, epoch: Epoch, member: Place) {
        let to = (pool, member);
        let mut notices = self.notices.0.borrow_mut();
        let epochs = notices.entry(to).or_default();
        epochs.push(epoch);
        if epochs.len() == 1 {
            self.admission.rt.spawn(Rc::clone(self).send_notices(to));
        }
    }

    async fn send_notices(self: Rc<Self>, (pool, member): (PoolId, Place)) {
        self.admission.rt.sleep(GATHERED).await;
        let gathered = self.notices.0.borrow_mut().remove(&(pool, member));
        let Some(epochs) = gathered else { return };
        let engines = self.admission.pools.engines();
        let notice = SettledNotice { leader: engines.own_index(), pool, epochs };
        // One that is out of the map decides by that, and one that has started anew knows of none.
        while self.admission.pools.get(pool).is_ok_and(|pool| pool.is_written_by(member)) {
            let opcode = opcode::TARGET_REPLICA_SETTLED;
            if engines.ask::<_, ()>(member.0, member.1, opcode, &notice, LIMIT).await.is_ok() {
                return;
            }
            self.admission.rt.sleep(PAUSE).await;
        }
    }
}
