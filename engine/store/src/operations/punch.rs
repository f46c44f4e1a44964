//! Punches: the end of objects, dkeys and akeys at an epoch.

use crate::format::admissible::check_scope;
use crate::format::key::ObjectKey;
use crate::format::key::{ContainerNumber, Path};
use crate::format::record::{Change, growth};
use crate::format::value::Event;
use crate::index::existence::{Existence, existence};
use crate::index::fault::Halt;
use crate::index::tree::Tree;
use crate::log::checkpoint::wait_for_room;
use crate::operations::attribute::Along;
use crate::operations::update::{Clock, check_epoch};
use crate::state::error::UpdateError;
use crate::state::shard::Shard;
use crate::versions::intents::scopes_of_punch;
use weir_proto::object::{Conditions, PunchScope};
use weir_proto::{ContainerId, Epoch, ObjectId};

/// Checkpoints that a punch without room waits for: one that may be running, and one that frees what changed since.
pub(crate) const CHECKPOINTS_MAX: u32 = 2;

impl Shard {
    /// Removes an object, dkeys or akeys at an epoch; earlier epochs still show them until aggregation. Punching what
    /// doesn't exist changes nothing. Durable when it returns. Works when the pool is full, as long as the device has room
    /// for index nodes beyond those that aggregation needs to give back what was deleted before.
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub async fn punch(
        &self,
        container: ContainerId,
        object: ObjectId,
        scope: &PunchScope,
        epoch: Epoch,
        conditions: Conditions,
    ) -> Result<Epoch, UpdateError> {
        self.punch_at(container, object, scope, Clock::Stopped(epoch), conditions, &|_| Vec::new()).await
    }

    /// Like [`Shard::punch`], at the epoch that `clock` gives when the punch commits and with changes of attributes
    /// along with it, unless there is nothing to punch; see [`Shard::update_by_clock`].
    ///
    /// # Errors
    /// See [`UpdateError`].
    pub async fn punch_by_clock(
        &self,
        container: ContainerId,
        object: ObjectId,
        scope: &PunchScope,
        clock: &dyn Fn() -> Epoch,
        conditions: Conditions,
        along: Along<'_>,
    ) -> Result<Epoch, UpdateError> {
        self.punch_at(container, object, scope, Clock::Running(clock), conditions, along).await
    }

    /// Removes what the leader of a group of replicas has removed at this epoch; see [`Shard::update_as_replica`].
    ///
    /// # Errors
    /// [`UpdateError::Restart`]: the leader leads no more. Otherwise see [`UpdateError`].
    pub async fn punch_as_replica(
        &self,
        container: ContainerId,
        object: ObjectId,
        scope: &PunchScope,
        (epoch, holds): (Epoch, &dyn Fn() -> bool),
        along: Along<'_>,
    ) -> Result<Epoch, UpdateError> {
        let clock = Clock::Leader(epoch, holds);
        self.punch_at(container, object, scope, clock, Conditions::NONE, along).await
    }

    async fn punch_at(
        &self,
        container: ContainerId,
        object: ObjectId,
        scope: &PunchScope,
        clock: Clock<'_>,
        conditions: Conditions,
        along: Along<'_>,
    ) -> Result<Epoch, UpdateError> {
        if conditions.0 & !Conditions::PUNCH.0 != 0 {
            let text = format!("conditions {:#x} make no sense for a punch", conditions.0);
            return Err(UpdateError::Invalid(text));
        }
        check_scope(object, scope).map_err(UpdateError::Invalid)?;
        let number = self.locate(container)?;
        let touched = (self.number, number, object);
        if conditions == Conditions::NONE {
            // Before the punch: a repeated punch frees the rest after a crash in between.
            self.release_punched(container, object, scope).await?;
        }
        let planned = self.plan_with_room(&touched, scope, clock, conditions).await;
        // The container may have gone while index nodes were read.
        if self.locate(container)? != number {
            return Err(UpdateError::ContainerMissing(container));
        }
        let record = match planned {
            Ok((epoch, mut changes)) if !changes.is_empty() => {
                self.add_attributes(&along(epoch), &mut changes);
                let record = self.core.commit(&changes, Some(touched))?;
                for scope in scopes_of_punch(scope) {
                    self.core.timestamps.note_write(&touched, scope, epoch.0, false);
                }
                self.core.queue_for_aggregation(touched, epoch.0);
                Ok((epoch, record))
            }
            // That nothing existed at this epoch must stay so, as after a removal.
            Ok((epoch, _)) => {
                for scope in scopes_of_punch(scope) {
                    self.core.timestamps.note_write(&touched, scope, epoch.0, false);
                }
                Ok((epoch, self.core.journal.latest_record(&touched)))
            }
            Err(error) => {
                for scope in scopes_of_punch(scope) {
                    self.note_refusal(&touched, scope, &error);
                }
                Err((error, self.core.journal.latest_record(&touched)))
            }
        };
        // The answer depends on records that must be durable first.
        match record {
            Ok((epoch, record)) => {
                if conditions != Conditions::NONE {
                    self.release_punched(container, object, scope).await?;
                }
                let record = record.max(self.core.journal.latest_record(&touched));
                self.core.make_durable(record).await.map_err(UpdateError::Failed)?;
                Ok(epoch)
            }
            Err((error, seen)) => {
                self.core.make_durable(seen).await.map_err(UpdateError::Failed)?;
                Err(error)
            }
        }
    }

    /// Plans a punch for which the index has room. Nobody else changes anything between this and what the caller does next.
    async fn plan_with_room(
        &self,
        touched: &ObjectKey,
        scope: &PunchScope,
        clock: Clock<'_>,
        conditions: Conditions,
    ) -> Result<(Epoch, Vec<Change>), UpdateError> {
        let mut checkpoints = 0;
        loop {
            self.core.admit().await.map_err(UpdateError::Failed)?;
            let planned = self.core.ask(|tree| {
                let epoch = clock.now();
                check_epoch(epoch)?;
                self.check_aggregated(touched, clock)?;
                clock.check_leader()?;
                for scope in scopes_of_punch(scope) {
                    if clock.is_judged() {
                        self.check_prepared(touched, scope, epoch.0)?;
                    } else {
                        self.check_write(touched, scope, epoch.0)?;
                    }
                }
                let changes = if self.apart(clock).is_some() {
                    self.plan_punch_apart(touched, scope, epoch.0)
                } else {
                    self.plan_punch(tree, touched.1, touched.2, scope, epoch.0, conditions)?
                };
                tree.reach(changes.iter().map(Change::key))?;
                Ok((epoch, changes))
            });
            let planned: Result<(Epoch, Vec<Change>), UpdateError> = planned.await;
            let (epoch, changes) = planned?;
            if changes.is_empty() || self.has_room_for_delete(&changes, 0) {
                return Ok((epoch, changes));
            }
            if checkpoints == CHECKPOINTS_MAX || !wait_for_room(&self.core).await {
                // What was deleted before may be waiting for aggregation.
                self.core.chores.notify_one();
                return Err(self.no_room(&changes));
            }
            checkpoints += 1;
        }
    }

    /// As [`Core::has_room_for_delete`](crate::state::core::Core::has_room_for_delete), of changes to whose keys the way was
    /// just found.
    pub(crate) fn has_room_for_delete(&self, changes: &[Change], later: u64) -> bool {
        let has_room = self.core.has_room_for_delete(changes, later);
        has_room.expect("invariant: nodes on the way to the keys are in memory")
    }

    pub(crate) fn no_room(&self, changes: &[Change]) -> UpdateError {
        let size = match self.core.catalog.borrow().pools.get(&self.number) {
            Some(pool) => pool.size,
            None => return UpdateError::PoolMissing(self.id()),
        };
        UpdateError::NoSpace { pool: self.id(), needed: growth(changes), free: 0, size }
    }

    /// The punch of what is named, whatever is here: what it ends may yet come.
    pub(crate) fn plan_punch_apart(
        &self,
        touched: &ObjectKey,
        scope: &PunchScope,
        epoch: u64,
    ) -> Vec<Change> {
        let object = Path::object(self.number, touched.1, touched.2);
        let paths = match scope {
            PunchScope::Object => vec![object],
            PunchScope::Dkeys(dkeys) => dkeys.iter().map(|dkey| object.dkey(dkey)).collect(),
            PunchScope::DkeyWith(dkey, _) => vec![object.dkey(dkey)],
            PunchScope::Akeys(dkey, akeys) => {
                let dkey = object.dkey(dkey);
                akeys.iter().map(|akey| dkey.akey(akey)).collect()
            }
        };
        paths.iter().map(|path| Change::put(&path.event(epoch), Event::Punch.encode())).collect()
    }

    pub(crate) fn plan_punch(
        &self,
        tree: &Tree,
        number: ContainerNumber,
        object: ObjectId,
        scope: &PunchScope,
        epoch: u64,
        conditions: Conditions,
    ) -> Result<Vec<Change>, Halt<UpdateError>> {
        let path = Path::object(self.number, number, object);
        let above = existence(tree, &path, Existence::ALWAYS, epoch)?;
        let mut changes = Vec::new();
        let mut end = |name: String, path: &Path, existence: Existence| {
            if existence.exists {
                changes.push(Change::put(&path.event(epoch), Event::Punch.encode()));
            } else if conditions.has(Conditions::PUNCH) {
                return Err(UpdateError::Missing(name));
            }
            Ok::<(), UpdateError>(())
        };
        match scope {
            PunchScope::Object => {
                end(format!("object {object}"), &path, above)?;
                return Ok(changes);
            }
            PunchScope::Dkeys(dkeys) => {
                for dkey in dkeys {
                    let path = path.dkey(dkey);
                    end(format!("dkey \"{dkey}\""), &path, existence(tree, &path, above, epoch)?)?;
                }
            }
            PunchScope::Akeys(dkey, akeys) => {
                let path = path.dkey(dkey);
                let above = existence(tree, &path, above, epoch)?;
                for akey in akeys {
                    let path = path.akey(akey);
                    end(format!("akey \"{akey}\""), &path, existence(tree, &path, above, epoch)?)?;
                }
            }
            PunchScope::DkeyWith(dkey, akeys) => {
                let path = path.dkey(dkey);
                let found = existence(tree, &path, above, epoch)?;
                for akey in akeys {
                    if !existence(tree, &path.akey(akey), found, epoch)?.exists {
                        return Err(UpdateError::Missing(format!("akey \"{akey}\"")).into());
                    }
                }
                end(format!("dkey \"{dkey}\""), &path, found)?;
            }
        }
        if let Some((at, Event::Object { newest })) = above.event
            && !changes.is_empty()
            && newest < epoch
        {
            changes.push(Change::put(&path.event(at), Event::Object { newest: epoch }.encode()));
        }
        Ok(changes)
    }
}
