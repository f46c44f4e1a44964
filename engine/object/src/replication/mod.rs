//! Changes of objects with replicas: what the leader of a group does, and what its other members do. The protocol is described in
//! docs/explanation/replication.md.
//!
//! The room judges and stores a change by the operations' means, forwards it to the other members by sealed requests, and keeps
//! the table of what isn't settled. A new leader takes over what the one before it has left. The service hands it the requests of
//! clients.

mod leader;
mod member;
mod notices;
mod reserve;
mod room;
mod takeover;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use weir_pool::TargetPool;
use weir_proto::{Der, Epoch, ObjectId, PoolId};
use weir_rpc::Status;
use weir_runtime::Instant;
use weir_runtime::sync::Gate;

use crate::admission::Admission;
use crate::groups::Floors;
use crate::operations::UpdateData;
use crate::repeats::{Identity, Repeats};
use crate::succession::Succession;
use crate::unsettled::{Place, PlantedBug, Unsettled};
use notices::Notices;
use room::Room;
use takeover::Takeover;

/// Replicates the changes that reach one target.
pub(crate) struct Replication {
    admission: Admission,
    repeats: Rc<Repeats>,
    unsettled: Rc<Unsettled>,
    floors: Rc<Floors>,
    succession: Rc<Succession>,
    /// Changes that are being made: one with the same name waits for them.
    running: RefCell<HashMap<(PoolId, Identity), Gate>>,
    /// Up to which epoch this target has all that another one has stored, since it has caught up.
    caught_up: RefCell<HashMap<(PoolId, Place), Epoch>>,
    notices: Notices,
    room: Room,
    takeover: Takeover,
}

/// The right to make a change of a name, until it is dropped.
struct Claim {
    replication: Rc<Replication>,
    name: (PoolId, Identity),
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(gate) = self.replication.running.borrow_mut().remove(&self.name) {
            gate.open();
        }
    }
}

/// Data of a change, in memory of its own.
type OwnData = UpdateData<Rc<[u8]>>;

/// The other members of a group as its leader sees them, and those that get what they lack.
struct Members {
    /// Version of the map.
    version: u32,
    others: Vec<Place>,
}

impl Replication {
    pub(crate) fn new(
        admission: Admission,
        repeats: Rc<Repeats>,
        unsettled: Rc<Unsettled>,
        floors: Rc<Floors>,
        succession: Rc<Succession>,
    ) -> Rc<Self> {
        let (running, caught_up) = (RefCell::default(), RefCell::default());
        let (notices, room, takeover) = (Notices::default(), Room::default(), Takeover::default());
        Rc::new(Self {
            admission,
            repeats,
            unsettled,
            floors,
            succession,
            running,
            caught_up,
            notices,
            room,
            takeover,
        })
    }

    /// Answers leaders of groups from now on.
    pub(crate) fn start(self: &Rc<Self>) {
        self.serve_members();
        self.serve_notices();
        self.serve_room();
        self.serve_reserve();
        self.serve_takeover();
    }

    /// Plants a fault, for tests of the harness that looks for it.
    pub(crate) fn plant(&self, bug: PlantedBug) {
        self.unsettled.plant(bug);
    }

    /// This target.
    fn own(&self) -> Place {
        let engines = self.admission.pools.engines();
        (engines.own_rank(), engines.own_index())
    }

    /// The other members of a group that take its changes; `None`: this target doesn't lead it.
    fn members(&self, pool: &TargetPool, object: ObjectId, group: usize) -> Option<Members> {
        let own = self.own();
        let members = pool.with_layout(object, |layout, map| {
            let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
            if group >= layout.group_count() || layout.serving(group, map).find_map(place) != Some(own) {
                return None;
            }
            let all = crate::groups::members(object, layout, group, map);
            let others = all.into_iter().filter(|one| *one != own).collect();
            Some(Members { version: map.version, others })
        });
        members.ok().flatten()
    }

    /// Notes that this target has caught up, and has all that each of some targets has stored up to an epoch.
    pub(crate) fn note_caught_up(&self, pool: PoolId, with: impl Iterator<Item = (Place, Epoch)>) {
        let mut caught_up = self.caught_up.borrow_mut();
        caught_up.retain(|(of, _), _| self.admission.pools.get(*of).is_ok());
        caught_up.extend(with.map(|(place, until)| ((pool, place), until)));
    }

    /// Whether a change of a leader came with its history. While the shard is being filled, a change may come both ways, in any order.
    /// Later, an update that is stored once more is shown although a punch has ended it. The name of a change doesn't tell whether it is
    /// here: targets forget it when the client waits no longer.
    fn came_as_history(&self, pool: &TargetPool, leader: Place, epoch: Epoch) -> bool {
        let until = self.caught_up.borrow().get(&(pool.id(), leader)).copied();
        until.is_some_and(|until| epoch <= until) && !pool.shard().is_filling()
    }

    /// Changes of a pool that this target makes as a leader at this moment: each opens when its change has ended.
    pub(crate) fn running(&self, pool: PoolId) -> Vec<Gate> {
        let running = self.running.borrow();
        running.iter().filter(|((of, _), _)| *of == pool).map(|(_, gate)| gate.clone()).collect()
    }

    /// Claims a name, once nobody else has it.
    async fn claim(
        self: &Rc<Self>,
        pool: PoolId,
        identity: Identity,
        deadline: Instant,
    ) -> Result<Claim, Status> {
        let name = (pool, identity);
        loop {
            let running = self.running.borrow().get(&name).cloned();
            let Some(gate) = running else {
                self.running.borrow_mut().insert(name, Gate::new());
                return Ok(Claim { replication: Rc::clone(self), name });
            };
            let ended = self.admission.rt.timeout_at(deadline, gate.wait()).await;
            ended.map_err(|_| Status::new(Der::TIMEDOUT, "the same change is still being made"))?;
        }
    }
}
