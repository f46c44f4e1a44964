//! Giving up room that is kept for records.

use super::RecordRange;
use crate::format::codec::Malformed;
use crate::format::key::ObjectKey;
use crate::format::key::after;
use crate::format::key::has_integer_dkeys;
use crate::format::record::Change;
use crate::format::reserved::{Reserved, dkey_prefix, keys_from, place_from, prefix};
use crate::index::fault::Halt;
use crate::index::tree::Tree;
use crate::state::error::UpdateError;
use crate::state::shard::Shard;
use core::ops::{ControlFlow, Range};
use weir_proto::object::PunchScope;
use weir_proto::{ContainerId, Key, ObjectId};

/// Entries that are looked at in one turn, and changed by one record: some 200 µs of work.
const STEP_ENTRIES: usize = 128;

/// What is given up of the entry of a dkey and an akey: records, or none.
type Pick<'a> = &'a dyn Fn(u64, &Key) -> Range<u64>;

/// What a step finds.
struct Step {
    changes: Vec<Change>,
    /// Where the next one begins, if there is more.
    next: Option<Vec<u8>>,
}

impl Shard {
    /// Gives up the room that is kept for records. `dkeys`: only of those, ascending; of all where there are none. Durable when
    /// it returns.
    ///
    /// # Errors
    /// See [`UpdateError`]; some of it may have been given up then.
    pub async fn release(
        &self,
        container: ContainerId,
        records: &RecordRange<'_>,
        dkeys: &[Range<u64>],
    ) -> Result<(), UpdateError> {
        let object = self.reserved_of(container, records.object)?;
        if let Some(object) = object {
            let is_named = |dkey: u64| {
                let at = dkeys.partition_point(|run| run.end <= dkey);
                dkeys.is_empty() || dkeys.get(at).is_some_and(|run| run.contains(&dkey))
            };
            let pick = |dkey, akey: &Key| {
                if akey == records.akey && is_named(dkey) { records.of_dkey(dkey, u64::MAX) } else { 0..0 }
            };
            let range = (dkey_prefix(&object, records.from.0), after(&dkey_prefix(&object, records.below.0)));
            self.release_range(container, &object, range, &pick).await?;
        }
        let record = self.core.journal.latest_record(&(self.number, self.locate(container)?, records.object));
        self.core.make_durable(record).await.map_err(UpdateError::Failed)
    }

    /// Gives up the room that is kept for what a punch names. The punch's record makes it durable.
    pub(crate) async fn release_punched(
        &self,
        container: ContainerId,
        object: ObjectId,
        scope: &PunchScope,
    ) -> Result<(), UpdateError> {
        let Some(object) = self.reserved_of(container, object)? else { return Ok(()) };
        let below = |prefix: Vec<u8>| (prefix.clone(), after(&prefix));
        let of_dkey = |dkey: &Key| dkey.to_u64().map(|dkey| below(dkey_prefix(&object, dkey)));
        let all = |_, _: &Key| 0..u64::MAX;
        match scope {
            PunchScope::Object => self.release_range(container, &object, below(prefix(&object)), &all).await,
            PunchScope::Dkeys(dkeys) => {
                for range in dkeys.iter().filter_map(of_dkey) {
                    self.release_range(container, &object, range, &all).await?;
                }
                Ok(())
            }
            PunchScope::DkeyWith(dkey, _) => match of_dkey(dkey) {
                Some(range) => self.release_range(container, &object, range, &all).await,
                None => Ok(()),
            },
            PunchScope::Akeys(dkey, akeys) => {
                let pick = |_, akey: &Key| if akeys.contains(akey) { 0..u64::MAX } else { 0..0 };
                match of_dkey(dkey) {
                    Some(range) => self.release_range(container, &object, range, &pick).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// An object that may have reservations.
    fn reserved_of(
        &self,
        container: ContainerId,
        object: ObjectId,
    ) -> Result<Option<ObjectKey>, UpdateError> {
        let number = self.locate(container)?;
        let may_have = has_integer_dkeys(object) && self.has_reserved(number);
        Ok(may_have.then_some((self.number, number, object)))
    }

    /// Gives up what `pick` names of the entries from a key on below another, some at a time.
    async fn release_range(
        &self,
        container: ContainerId,
        object: &ObjectKey,
        (from, below): (Vec<u8>, Vec<u8>),
        pick: Pick<'_>,
    ) -> Result<(), UpdateError> {
        let mut next = Some(from);
        while let Some(from) = next {
            self.core.admit().await.map_err(UpdateError::Failed)?;
            let step = self.core.ask(|tree| {
                let step = step(tree, object, (&from, &below), pick)?;
                tree.reach(step.changes.iter().map(Change::key))?;
                Ok::<_, Halt<UpdateError>>(step)
            });
            let step = step.await?;
            if self.locate(container)? != object.1 {
                return Err(UpdateError::ContainerMissing(container));
            }
            if !step.changes.is_empty() {
                self.core.commit(&step.changes, Some(*object))?;
            }
            next = step.next;
            if next.is_some() {
                self.core.yield_to_io().await;
            }
        }
        Ok(())
    }
}

fn step(
    tree: &Tree,
    object: &ObjectKey,
    (from, below): (&[u8], &[u8]),
    pick: Pick<'_>,
) -> Result<Step, Halt<UpdateError>> {
    let (mut found, mut looks) = (Vec::new(), 0);
    let next = tree.scan(from, |key, value| {
        if key >= below {
            return ControlFlow::Break(None);
        }
        if looks == STEP_ENTRIES {
            return ControlFlow::Break(Some(key.to_vec()));
        }
        looks += 1;
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    let mut changes = Vec::new();
    for (key, value) in found {
        let rest = place_from(&key)
            .ok_or(Malformed("a reservation's key is too short"))
            .map_err(UpdateError::from)?;
        let (dkey, akey) = keys_from(object.2, rest).map_err(UpdateError::from)?;
        let gone = pick(dkey, &akey);
        if gone.is_empty() {
            continue;
        }
        let before = Reserved::decode(&value).map_err(UpdateError::from)?;
        let mut left = before.without(&gone);
        left.bytes = left.price(key.len()).min(before.bytes);
        if left.is_none() {
            changes.push(Change::remove(&key));
        } else if left != before {
            changes.push(Change::put(&key, left.encode()));
        }
    }
    Ok(Step { changes, next: next.flatten() })
}
