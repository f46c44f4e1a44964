//! Room that is kept for records which aren't written yet, so that their first write succeeds however full pool and quota are
//! by then.
//!
//! What is kept counts as used from then on. An update of such records gives up as much of it as it takes itself
//! ([`draw`]), a hole or a punch gives it up for nothing. What was written once isn't kept room for: to overwrite takes room
//! like anything else.

mod draw;
mod release;

use crate::format::reserved::{self, Reserved};
pub(crate) use draw::{Drawable, draw, most};

use crate::format::admissible::check_keys;
use crate::format::key::ContainerNumber;
use crate::format::key::{ObjectKey, has_integer_dkeys};
use crate::format::record::Change;
use crate::format::record::growth;
use crate::index::fault::Halt;
use crate::index::tree::Tree;
use crate::state::error::UpdateError;
use crate::state::shard::{QuotaCheck, Shard};
use core::ops::{ControlFlow, Range};
use weir_proto::limits::RESERVED_DKEYS_MAX;
use weir_proto::object::{AkeyUpdate, Value};
use weir_proto::{ContainerId, Key, ObjectId};

/// Records of one akey in dkeys that are integers.
#[derive(Clone, Debug)]
pub struct RecordRange<'a> {
    /// Whose dkeys are integers.
    pub object: ObjectId,
    /// The akey.
    pub akey: &'a Key,
    /// Dkey and record of the first one.
    pub from: (u64, u64),
    /// Dkey and record behind the last one.
    pub below: (u64, u64),
}

impl RecordRange<'_> {
    /// Those of a dkey that are among the first so many.
    fn of_dkey(&self, dkey: u64, count: u64) -> Range<u64> {
        let start = if dkey == self.from.0 { self.from.1 } else { 0 };
        let end = if dkey == self.below.0 { self.below.1.min(count) } else { count };
        if dkey < self.from.0 || dkey > self.below.0 { 0..0 } else { start..end.max(start) }
    }
}

/// What a reservation changes.
struct Plan {
    changes: Vec<Change>,
    /// Bytes that are kept in addition.
    bytes: u64,
    /// Dkeys of which nothing was reserved before.
    fresh: Vec<Range<u64>>,
}

impl Shard {
    /// Bytes that are kept for records of a container.
    pub(crate) fn reserved_in(&self, number: ContainerNumber) -> u64 {
        let catalog = self.core.catalog.borrow();
        let container = catalog.pools.get(&self.number).and_then(|pool| pool.containers.get(&number));
        container.map_or(0, |container| container.usage.reserved)
    }

    /// Whether there are any.
    pub(crate) fn has_reserved(&self, number: ContainerNumber) -> bool {
        self.reserved_in(number) > 0
    }

    /// Keeps room for those of the first `count` records of each of these dkeys, ascending, that are holes: all of it or
    /// nothing. Records of which room is kept are counted once. Durable when it returns. Returns the dkeys of which nothing was
    /// reserved before.
    ///
    /// # Errors
    /// [`UpdateError::NoSpace`] or [`UpdateError::Quota`] where there is less room; [`UpdateError::Unsupported`] where the store
    /// is of an earlier format; or others.
    pub async fn reserve(
        &self,
        container: ContainerId,
        records: &RecordRange<'_>,
        size: (u32, u64),
        dkeys: &[Range<u64>],
    ) -> Result<Vec<Range<u64>>, UpdateError> {
        self.reserve_within(container, records, size, dkeys, QuotaCheck::Here).await
    }

    /// Keeps the room that the leader of a group of replicas keeps, beyond the container's quota. Otherwise as [`Shard::reserve`].
    ///
    /// # Errors
    /// As [`Shard::reserve`].
    pub async fn reserve_as_replica(
        &self,
        container: ContainerId,
        records: &RecordRange<'_>,
        size: (u32, u64),
        dkeys: &[Range<u64>],
    ) -> Result<Vec<Range<u64>>, UpdateError> {
        self.reserve_within(container, records, size, dkeys, QuotaCheck::AtLeader).await
    }

    /// Whether room is kept for all that an update stores, by what is in memory.
    #[must_use]
    pub fn keeps_room_for(
        &self,
        container: ContainerId,
        object: ObjectId,
        dkey: &Key,
        akeys: &[AkeyUpdate],
    ) -> bool {
        let Ok(number) = self.locate(container) else { return false };
        let Some(dkey) = dkey.to_u64().filter(|_| has_integer_dkeys(object) && self.has_reserved(number))
        else {
            return false;
        };
        let object = (self.number, number, object);
        let has_room = |akey: &AkeyUpdate, value: Option<Vec<u8>>| {
            let (Some(value), Value::Array { extents, .. }) = (value, &akey.value) else { return false };
            let Ok(kept) = Reserved::decode(&value) else { return false };
            extents.iter().all(|extent| {
                kept.runs.iter().any(|run| run.start <= extent.index && extent.end() <= run.end)
            })
        };
        let kept = self.core.ask_now(|tree| {
            for akey in akeys {
                let value = tree.get(&reserved::key_of(&object, dkey, &akey.akey))?;
                if !has_room(akey, value) {
                    return Ok::<_, Halt<UpdateError>>(false);
                }
            }
            Ok(true)
        });
        kept.unwrap_or(false)
    }

    async fn reserve_within(
        &self,
        container: ContainerId,
        records: &RecordRange<'_>,
        (record_size, count): (u32, u64),
        dkeys: &[Range<u64>],
        quota: QuotaCheck,
    ) -> Result<Vec<Range<u64>>, UpdateError> {
        if !self.core.keeps_reservations() {
            return Err(UpdateError::Unsupported { version: self.core.version });
        }
        check(records, record_size, dkeys).map_err(UpdateError::Invalid)?;
        let number = self.locate(container)?;
        let object = (self.number, number, records.object);
        let mut wanted: Vec<(u64, Vec<Range<u64>>)> = dkeys
            .iter()
            .cloned()
            .flatten()
            .map(|dkey| (dkey, vec![records.of_dkey(dkey, count)]))
            .filter(|(_, runs)| !runs[0].is_empty())
            .collect();
        self.leave_holes(container, records, count, &mut wanted).await?;
        self.core.admit().await.map_err(UpdateError::Failed)?;
        let plan = self.core.ask(|tree| {
            let plan = plan(tree, &object, records.akey, record_size, &wanted)?;
            tree.reach(plan.changes.iter().map(Change::key))?;
            Ok::<_, Halt<UpdateError>>(plan)
        });
        let Plan { changes, bytes, fresh } = plan.await?;
        // The container may have gone while index nodes were read.
        if self.locate(container)? != number {
            return Err(UpdateError::ContainerMissing(container));
        }
        let record = if changes.is_empty() {
            self.core.journal.latest_record(&object)
        } else {
            self.check_space((container, number), quota, (bytes.saturating_add(growth(&changes)), 0, 0))?;
            self.core.commit(&changes, Some(object))?
        };
        self.core.make_durable(record).await.map_err(UpdateError::Failed)?;
        Ok(fresh)
    }

    /// Takes off what is written. What changes meanwhile may be kept room for all the same, until it is given up.
    async fn leave_holes(
        &self,
        container: ContainerId,
        records: &RecordRange<'_>,
        count: u64,
        wanted: &mut Vec<(u64, Vec<Range<u64>>)>,
    ) -> Result<(), UpdateError> {
        let (Some((first, _)), Some((last, _))) = (wanted.first(), wanted.last()) else { return Ok(()) };
        let (mut next, last) = (Some((*first, 0)), *last);
        while let Some(from) = next.filter(|(dkey, _)| *dkey <= last) {
            let walk = self.walk_now(container, records, count)?;
            let mut at = 0;
            let take = |dkey, run: weir_proto::object::Extent| {
                if dkey > last {
                    return ControlFlow::Break(());
                }
                at += wanted[at..].partition_point(|(wanted, _)| *wanted < dkey);
                if let Some((_, runs)) = wanted.get_mut(at).filter(|(wanted, _)| *wanted == dkey) {
                    *runs = reserved::without(runs, &(run.index..run.end()));
                }
                ControlFlow::Continue(())
            };
            next = walk.run(from, None, take).await.map_err(UpdateError::from)?;
        }
        wanted.retain(|(_, runs)| !runs.is_empty());
        Ok(())
    }
}

fn check(records: &RecordRange<'_>, record_size: u32, dkeys: &[Range<u64>]) -> Result<(), String> {
    if !crate::format::key::has_integer_dkeys(records.object) {
        return Err(format!("dkeys of object {} are not integers and have no order", records.object));
    }
    check_keys(records.object, [], [records.akey])?;
    let are_ordered = dkeys.iter().all(|run| run.start <= run.end)
        && dkeys.windows(2).all(|pair| pair[0].end <= pair[1].start);
    let lens = dkeys.iter().map(|run| run.end.saturating_sub(run.start));
    let count = lens.fold(0, u64::saturating_add);
    if record_size == 0 || !are_ordered || count > RESERVED_DKEYS_MAX {
        return Err(format!(
            "{count} dkeys with records of {record_size} bytes: up to {RESERVED_DKEYS_MAX} in their order are reserved at once, with records of a byte or more"
        ));
    }
    Ok(())
}

fn plan(
    tree: &Tree,
    object: &ObjectKey,
    akey: &Key,
    record_size: u32,
    wanted: &[(u64, Vec<Range<u64>>)],
) -> Result<Plan, Halt<UpdateError>> {
    let mut plan = Plan { changes: Vec::new(), bytes: 0, fresh: Vec::new() };
    for (dkey, runs) in wanted {
        let key = reserved::key_of(object, *dkey, akey);
        let before = match tree.get(&key)? {
            Some(value) => Reserved::decode(&value).map_err(UpdateError::from)?,
            None => Reserved::none(record_size),
        };
        if before.record_size != record_size {
            let (stored, given) = (before.record_size, record_size);
            return Err(UpdateError::RecordSize { akey: akey.clone(), stored, given }.into());
        }
        if before.is_none() {
            match plan.fresh.last_mut() {
                Some(last) if last.end == *dkey => last.end += 1,
                _ => plan.fresh.push(*dkey..*dkey + 1),
            }
        }
        let mut after = before.with(runs);
        after.bytes = after.price(key.len()).max(before.bytes);
        if after != before {
            plan.bytes = plan.bytes.saturating_add(after.bytes - before.bytes);
            plan.changes.push(Change::put(&key, after.encode()));
        }
    }
    Ok(plan)
}
