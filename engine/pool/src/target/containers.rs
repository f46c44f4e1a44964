//! The containers of a pool on a target: learned of when a client first uses them, with a share of their quota, and forgotten.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use weir_proto::pool::{GrantRequest, TargetContainerState, TargetContainerUsage};
use weir_proto::{ContainerId, Der, Epoch, opcode};
use weir_runtime::sync::Semaphore;
use weir_store::UpdateError;

use super::{TargetContainer, TargetPool};
use crate::error::Failed;
use crate::record::{self, SCOPE_LABEL};

/// Longest wait for the pool service when a target learns of a container or asks for quota: within a client's
/// patience for one request, and longer than a restart of the service's engine takes to be noticed.
const SERVICE_LIMIT: Duration = Duration::from_secs(5);

/// After a refused grant, writers of as much are refused without asking again for this long: quota that is freed is found
/// soon, and writers of equal pieces to a full container cost the service two requests a second.
const REFUSAL_PAUSE: Duration = Duration::from_millis(500);

/// Room asked for beyond a payload: keys, index and log of one request.
const OVERHEAD: u64 = 64 * 1024;

/// A container that is being learned of or forgotten.
pub(super) struct Learning {
    /// One request at a time; destroying the container waits for it.
    turn: Semaphore,
    /// Counts what the service said meanwhile: an answer from before that is out of date.
    told: Cell<u64>,
    /// Why asking the service has failed last.
    failed: RefCell<Option<Failed>>,
}

impl TargetPool {
    /// Loads the containers that were known before a restart.
    pub(crate) fn load_containers(&self) -> Result<(), Failed> {
        let pool = self.id();
        let summaries = self.shard.containers();
        for (name, label) in record::load_scope(&self.shard, SCOPE_LABEL) {
            let id = record::container_of(pool, &name)?;
            let live = summaries.iter().find(|summary| summary.container == id && !summary.destroying);
            if let Some(summary) = live {
                let grant = (summary.quota > 0).then_some(summary.quota);
                let label = String::from_utf8_lossy(&label).into_owned();
                self.containers.borrow_mut().insert(id, Rc::new(TargetContainer::new(id, label, grant)));
            }
        }
        Ok(())
    }

    /// A container of the pool. One that this target doesn't know is asked for at the pool service, and created.
    ///
    /// # Errors
    /// When the container doesn't exist, or isn't known and the service doesn't answer.
    pub async fn container(&self, id: ContainerId) -> Result<Rc<TargetContainer>, Failed> {
        if let Some(known) = self.containers.borrow().get(&id) {
            return Ok(Rc::clone(known));
        }
        let learning = self.learning(id);
        let is_asked = learning.turn.available() == 0;
        let result = {
            let _permit = learning.turn.acquire().await;
            let known = self.containers.borrow().get(&id).map(Rc::clone);
            // Of many that come at once the last would else wait for as many questions in vain.
            let failed = learning.failed.borrow().clone().filter(|_| is_asked);
            match (known, failed) {
                (Some(known), _) => Ok(known),
                (None, Some(failed)) => Err(failed),
                (None, None) => {
                    let learned = self.learn(id, &learning).await;
                    learning.failed.replace(learned.as_ref().err().cloned());
                    learned
                }
            }
        };
        self.leave_learning(id, &learning);
        result
    }

    /// Learns of a container as it is, also where the target knows it: what the service has said meanwhile it may have missed.
    ///
    /// # Errors
    /// As [`TargetPool::container`].
    pub async fn learn_again(&self, id: ContainerId) -> Result<(), Failed> {
        let known = self.container(id).await?;
        let told = known.told.get();
        let state = self.ask_grant(id, self.used(id), 0).await?;
        let _turn = known.setting.acquire().await;
        // What the service has said since is newer.
        if known.told.get() == told {
            self.observe(&state)?;
            self.shard.set_snapshots(id, &state.snapshots).await?;
            self.set_grant(&known, state.grant).await?;
        }
        Ok(())
    }

    fn learning(&self, id: ContainerId) -> Rc<Learning> {
        let new =
            || Rc::new(Learning { turn: Semaphore::new(1), told: Cell::new(0), failed: RefCell::default() });
        Rc::clone(self.learning.borrow_mut().entry(id).or_insert_with(new))
    }

    fn leave_learning(&self, id: ContainerId, learning: &Learning) {
        if learning.turn.waiting() == 0 && learning.turn.available() == 1 {
            self.learning.borrow_mut().remove(&id);
        }
    }

    async fn learn(&self, id: ContainerId, learning: &Learning) -> Result<Rc<TargetContainer>, Failed> {
        loop {
            let told = learning.told.get();
            let state = self.ask_grant(id, self.used(id), 0).await?;
            self.shard.create_container(id).await?;
            self.observe(&state)?;
            self.shard.set_snapshots(id, &state.snapshots).await?;
            self.shard.set_quota(id, quota_of(state.grant)).await?;
            let label = state.label.clone().into_bytes();
            self.shard
                .change_attributes(&[record::change(SCOPE_LABEL, id.0.as_bytes(), Some(label))])
                .await?;
            if learning.told.get() == told {
                let known = Rc::new(TargetContainer::new(id, state.label, state.grant));
                self.containers.borrow_mut().insert(id, Rc::clone(&known));
                return Ok(known);
            }
        }
    }

    async fn ask_grant(
        &self,
        id: ContainerId,
        used: u64,
        wanted: u64,
    ) -> Result<TargetContainerState, Failed> {
        let pool = self.id();
        let request = GrantRequest { pool, container: id, index: self.engines.own_index(), used, wanted };
        let asked = self.ask_service(opcode::TARGET_CONTAINER_GRANT, &request, SERVICE_LIMIT).await;
        asked.map_err(|error| {
            let object = format!("container {id} of pool {}", self.label());
            match Failed::asking(object, "asking the pool service about it", error) {
                Failed::Target { der: Der::CONT_NONEXIST | Der::NONEXIST, .. } => {
                    Failed::Destroyed { pool: self.label(), container: id }
                }
                other => other,
            }
        })
    }

    /// Gets a greater share of a container's quota for `wanted` more bytes. `Ok(false)`: the quota is used up.
    ///
    /// # Errors
    /// When the container is gone or the service doesn't answer.
    pub async fn enlarge(&self, container: &TargetContainer, wanted: u64) -> Result<bool, Failed> {
        let before = container.grant.get();
        let _permit = container.asking.acquire().await;
        if container.grant.get() != before {
            return Ok(true);
        }
        let now = self.engines.runtime().now();
        if container.is_refused(wanted, now) {
            return Ok(false);
        }
        let told = container.told.get();
        let used = self.used(container.id);
        match self.ask_grant(container.id, used, wanted.saturating_add(OVERHEAD)).await {
            Ok(state) => {
                let _turn = container.setting.acquire().await;
                if container.told.get() != told {
                    // The service changed the grant while its answer was under way: which came first is not known.
                    return Ok(true);
                }
                let larger = state.grant.is_none() || state.grant > before;
                self.set_grant(container, state.grant).await?;
                Ok(larger)
            }
            Err(Failed::Target { der: Der::NOSPACE, .. }) => {
                container.note_refusal(wanted, now + REFUSAL_PAUSE);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether an update of so many bytes, for which the store has no room, may find some soon: what was overwritten or
    /// deleted when such were first refused is not all gone yet. An update as large that has found room begins that anew.
    pub fn may_regain_room(&self, container: &TargetContainer, bytes: u64, refusal: &UpdateError) -> bool {
        let rt = self.engines.runtime();
        let since = container.note_shortage(bytes, (rt.now(), Epoch(rt.wall_ns())));
        let may = self.shard.may_regain_room(refusal, since);
        if !may {
            container.end_shortage();
        }
        may
    }

    async fn set_grant(&self, container: &TargetContainer, grant: Option<u64>) -> Result<(), Failed> {
        self.shard.set_quota(container.id, quota_of(grant)).await?;
        container.grant.set(grant);
        Ok(())
    }

    fn used(&self, id: ContainerId) -> u64 {
        let summaries = self.shard.containers();
        summaries.iter().find(|summary| summary.container == id).map_or(0, |summary| summary.counted)
    }

    fn observe(&self, state: &TargetContainerState) -> Result<(), Failed> {
        let wall = self.engines.runtime().wall_ns();
        for epoch in &state.snapshots {
            self.clock.observe(*epoch, wall)?;
        }
        Ok(())
    }

    /// Takes note of what the service says of a container. A target that doesn't know it has nothing to do.
    pub(crate) async fn set_container(
        &self,
        state: TargetContainerState,
    ) -> Result<TargetContainerUsage, Failed> {
        let known = self.containers.borrow().get(&state.container).map(Rc::clone);
        self.observe(&state)?;
        if let Some(learning) = self.learning.borrow().get(&state.container) {
            learning.told.set(learning.told.get() + 1);
        }
        if let Some(container) = known {
            container.told.set(container.told.get() + 1);
            let _turn = container.setting.acquire().await;
            let grant = state.grant.map(|grant| grant.max(self.used(state.container)));
            self.set_grant(&container, grant).await?;
            if self.shard.snapshots(state.container)? != state.snapshots {
                self.shard.set_snapshots(state.container, &state.snapshots).await?;
            }
        }
        let now = self.clock.now(self.engines.runtime().wall_ns());
        Ok(TargetContainerUsage { used: self.used(state.container), now })
    }

    /// Forgets a container and what it holds here.
    pub(crate) async fn destroy_container(&self, id: ContainerId) -> Result<(), Failed> {
        let learning = self.learning(id);
        let result = {
            let _permit = learning.turn.acquire().await;
            self.containers.borrow_mut().remove(&id);
            self.forget(id).await
        };
        self.leave_learning(id, &learning);
        result
    }

    async fn forget(&self, id: ContainerId) -> Result<(), Failed> {
        self.shard.destroy_container(id).await?;
        self.shard.change_attributes(&[record::change(SCOPE_LABEL, id.0.as_bytes(), None)]).await?;
        Ok(())
    }
}

/// A grant as the store takes it, to which 0 is "no limit".
fn quota_of(grant: Option<u64>) -> u64 {
    grant.map_or(0, |bytes| bytes.max(1))
}
