//! Updates and punches.

use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::limits::AKEYS_MAX;
use weir_proto::object::{
    AkeyUpdate, Conditions, Extent, PunchRequest, PunchScope, UpdateReply, UpdateRequest, Value,
};
use weir_proto::replica::ByLeader;
use weir_proto::{Der, Epoch, Key, codec, opcode};
use weir_runtime::join_all;

use super::{Object, ShardChoice, large};
use crate::Result;
use crate::error::Error;
use crate::operation::{Payload, RequestInfo, checksum::crc32c_of_runs, scatter};
use crate::session::{Context, NamedChange};

/// One akey of an update.
#[derive(Clone, Debug)]
pub struct AkeyWrite<'a> {
    /// The akey.
    pub akey: Key,
    /// What is written.
    pub value: Value,
    /// Conditions of this akey, with [`Conditions::PER_AKEY`].
    pub conditions: Conditions,
    /// The bytes, in order; exactly as many as `value` says.
    pub data: Vec<&'a [u8]>,
}

impl<'a> AkeyWrite<'a> {
    /// A single value.
    #[must_use]
    pub fn single(akey: Key, data: &'a [u8]) -> Self {
        let value = Value::Single { size: data.len() as u64 };
        Self { akey, value, conditions: Conditions::NONE, data: vec![data] }
    }

    /// Records of an array.
    #[must_use]
    pub fn array(akey: Key, record_size: u32, extents: Vec<Extent>, data: Vec<&'a [u8]>) -> Self {
        Self { akey, value: Value::Array { record_size, extents }, conditions: Conditions::NONE, data }
    }

    /// Removes a single value.
    #[must_use]
    pub fn remove(akey: Key) -> Self {
        Self { akey, value: Value::Single { size: 0 }, conditions: Conditions::NONE, data: Vec::new() }
    }

    /// The same with conditions of its own.
    #[must_use]
    pub fn when(self, conditions: Conditions) -> Self {
        Self { conditions, ..self }
    }

    /// The checksum of each chunk of the data.
    fn checksums(&self, grain: Grain) -> Vec<u32> {
        let lens = chunk::chunks(&self.value, grain)
            .flat_map(Chunks::ranges)
            .map(|range| usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
        crc32c_of_runs(&self.data, lens)
    }
}

pub(crate) const UPDATE_CONDITIONS: Conditions =
    Conditions(2 | 4 | 16 | 32 | 128 | Conditions::OBJECT_EXISTS.0);

impl Object {
    /// Updates akeys of one dkey, all or none, and returns when the change is on stable media. More data than
    /// [`PAYLOAD_MAX`](weir_proto::limits::PAYLOAD_MAX) goes in several requests, each of them all or none: after an error, the first
    /// of them may have been made. No condition can go with it (`REC2BIG`), and a single value can't be longer.
    ///
    /// After a lost answer it is sent again, and the target tells what became of it the first time: a condition that does not hold
    /// is another one's effect.
    ///
    /// # Errors
    /// `EXIST` or `NONEXIST` when a condition does not hold, `NOSPACE` when the pool or quota is full, `REC_SIZE`
    /// when the record size is not the akey's, `INVAL`/`REC2BIG` for malformed arguments, and
    /// [`Error::Unavailable`] when the target does not answer in time.
    pub async fn update(
        &self,
        context: &Context,
        dkey: &Key,
        conditions: Conditions,
        writes: &[AkeyWrite<'_>],
    ) -> Result<Epoch> {
        if large::is_large(writes.iter().map(|write| &write.value)) {
            // Boxed, since it is rare and part of every update's future.
            return Box::pin(self.update_in_parts(context, dkey, conditions, writes)).await;
        }
        self.update_once(context, dkey, conditions, writes).await
    }

    /// As [`Self::update`], by one request.
    pub(super) async fn update_once(
        &self,
        context: &Context,
        dkey: &Key,
        conditions: Conditions,
        writes: &[AkeyWrite<'_>],
    ) -> Result<Epoch> {
        let change = self.is_replicated().then(|| context.begin_change());
        let opcode = if change.is_some() { opcode::REPLICA_UPDATE } else { opcode::OBJECT_UPDATE };
        let info = RequestInfo::new("update", self, opcode);
        check_conditions(info.operation, conditions, UPDATE_CONDITIONS)?;
        let (akeys, expected) = described(info.operation, writes)?;
        let pieces: Vec<&[u8]> = writes.iter().flat_map(|write| write.data.iter().copied()).collect();
        let build = |map_version| {
            let update = UpdateRequest {
                capability: self.container.state.capability.clone(),
                object: self.oid,
                dkey: dkey.clone(),
                map_version,
                conditions,
                akeys: akeys.clone(),
            };
            encode_change(change.as_ref(), update)
        };
        let payload = Payload::Send { pieces: &pieces, len: expected };
        match self.exchange(context, &info, ShardChoice::Dkey(dkey), &payload, &build).await {
            Ok(exchange) => Ok(exchange.decode::<UpdateReply>(&info)?.epoch),
            Err(refusal) => Err(refusal.error),
        }
    }

    /// Removes what one shard holds of the object.
    ///
    /// # Errors
    /// When the target refuses or does not answer in time.
    pub(crate) async fn punch_shard(&self, context: &Context, shard: usize) -> Result<()> {
        self.punch_scope(context, ShardChoice::Shard(shard), PunchScope::Object, Conditions::NONE).await
    }

    /// Removes dkeys with everything under them. With [`Conditions::PUNCH`] each must exist; that is decided for
    /// the dkeys of one shard at a time.
    ///
    /// # Errors
    /// `NONEXIST` under the condition; or no answer in time.
    pub async fn punch_dkeys(&self, context: &Context, conditions: Conditions, dkeys: &[Key]) -> Result<()> {
        let map = context.map_of(self.container.pool());
        let layout = self.layout(context, &map)?;
        let mut by_shard: std::collections::BTreeMap<usize, Vec<Key>> = std::collections::BTreeMap::new();
        for dkey in dkeys {
            by_shard.entry(layout.group_index(dkey.hash())).or_default().push(dkey.clone());
        }
        let all = by_shard.into_iter().flat_map(|(shard, dkeys)| {
            punch_batches(dkeys).into_iter().map(move |batch| {
                self.punch_scope(context, ShardChoice::Shard(shard), PunchScope::Dkeys(batch), conditions)
            })
        });
        join_all(all).await.into_iter().collect()
    }

    /// Removes akeys of one dkey.
    ///
    /// # Errors
    /// `NONEXIST` with [`Conditions::PUNCH`] when one is missing; or no answer in time.
    pub async fn punch_akeys(
        &self,
        context: &Context,
        conditions: Conditions,
        dkey: &Key,
        akeys: &[Key],
    ) -> Result<()> {
        let scope = PunchScope::Akeys(dkey.clone(), akeys.to_vec());
        self.punch_scope(context, ShardChoice::Dkey(dkey), scope, conditions).await
    }

    /// Removes a whole dkey, provided that it has all of these akeys; decided and done in one step.
    ///
    /// # Errors
    /// `NONEXIST` when one is missing; or no answer in time.
    pub async fn punch_dkey_with(&self, context: &Context, dkey: &Key, akeys: &[Key]) -> Result<()> {
        let scope = PunchScope::DkeyWith(dkey.clone(), akeys.to_vec());
        self.punch_scope(context, ShardChoice::Dkey(dkey), scope, Conditions::NONE).await
    }

    async fn punch_scope(
        &self,
        context: &Context,
        place: ShardChoice<'_>,
        scope: PunchScope,
        conditions: Conditions,
    ) -> Result<()> {
        let change = self.is_replicated().then(|| context.begin_change());
        let opcode = if change.is_some() { opcode::REPLICA_PUNCH } else { opcode::OBJECT_PUNCH };
        let info = RequestInfo::new("punch", self, opcode);
        check_conditions(info.operation, conditions, Conditions::PUNCH)?;
        let build = |map_version| {
            let punch = PunchRequest {
                capability: self.container.state.capability.clone(),
                object: self.oid,
                map_version,
                conditions,
                scope: scope.clone(),
            };
            encode_change(change.as_ref(), punch)
        };
        match self.exchange(context, &info, place, &Payload::None, &build).await {
            Ok(exchange) => exchange.decode::<UpdateReply>(&info).map(|_| ()),
            Err(refusal) => Err(refusal.error),
        }
    }
}

/// Encodes a change, with its name if it goes to the leader of a group of replicas.
fn encode_change<T: serde::Serialize>(change: Option<&NamedChange>, wanted: T) -> Vec<u8> {
    match change {
        Some(change) => codec::encode(&ByLeader { id: change.id(), acked: change.acked(), wanted }),
        None => codec::encode(&wanted),
    }
}

/// Bytes of keys in one punch request, with two for the length of each: leaves half a message for the rest.
const PUNCH_BYTES_MAX: usize = weir_proto::limits::INLINE_MAX / 2;

/// Cuts keys into requests that each fit a message and the limit on keys.
fn punch_batches(keys: Vec<Key>) -> Vec<Vec<Key>> {
    let mut batches: Vec<Vec<Key>> = Vec::new();
    let mut bytes = 0;
    for key in keys {
        let len = key.as_bytes().len() + 2;
        match batches.last_mut() {
            Some(batch) if bytes + len <= PUNCH_BYTES_MAX && batch.len() < AKEYS_MAX => {
                bytes += len;
                batch.push(key);
            }
            _ => {
                bytes = len;
                batches.push(vec![key]);
            }
        }
    }
    batches
}

/// The akeys of an update as the engine gets them, with the checksums of their data, and its bytes of data.
pub(crate) fn described(operation: &'static str, writes: &[AkeyWrite<'_>]) -> Result<(Vec<AkeyUpdate>, u64)> {
    let expected = weir_proto::object::validate(writes.iter().map(|write| (&write.akey, &write.value)))
        .map_err(|error| Error::invalid(operation, error))?;
    for write in writes {
        let (have, need) = (scatter::total(&write.data) as u64, write.value.data_len().unwrap_or(u64::MAX));
        if have != need {
            let reason = format!("akey \"{}\" takes {need} bytes, the buffers hold {have}", write.akey);
            return Err(Error::Size { operation, reason, der: Der::REC2BIG });
        }
    }
    let grain = Grain::of(writes.iter().map(|write| &write.value));
    let akeys = writes.iter().map(|write| AkeyUpdate {
        akey: write.akey.clone(),
        value: write.value.clone(),
        conditions: write.conditions,
        checksums: write.checksums(grain),
    });
    Ok((akeys.collect(), expected))
}

/// Flags that mean nothing for an operation are refused, as the engine would (daos-api §1.4).
pub(crate) fn check_conditions(
    operation: &'static str,
    conditions: Conditions,
    allowed: Conditions,
) -> Result<()> {
    let akey_flags = Conditions(16 | 32 | 64);
    if conditions.0 & !allowed.0 != 0 {
        return Err(Error::invalid(operation, format!("condition flags {:#x} do not fit", conditions.0)));
    }
    if conditions.has(Conditions::PER_AKEY) && conditions.0 & akey_flags.0 != 0 {
        return Err(Error::invalid(operation, "per-akey conditions exclude akey conditions for all"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::limits::KEY_MAX;

    #[test]
    fn keys_are_cut_into_requests_that_fit() {
        for (len, count, expected) in [(8, 1000, 4), (KEY_MAX, 100, 15), (1, 0, 0)] {
            let keys: Vec<Key> = (0..count).map(|_| Key::new(&vec![7; len]).expect("a key")).collect();
            let batches = punch_batches(keys);
            assert_eq!(batches.len(), expected, "{count} keys of {len} bytes");
            assert_eq!(batches.concat().len(), count);
            let bytes = |batch: &Vec<Key>| batch.iter().map(|key| key.as_bytes().len() + 2).sum::<usize>();
            assert!(batches.iter().all(|batch| batch.len() <= AKEYS_MAX && bytes(batch) <= PUNCH_BYTES_MAX));
        }
    }
}
