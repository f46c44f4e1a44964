//! Reserved room for records that aren't written yet.

use weir_proto::object::{ReserveReply, ReserveRequest};
use weir_proto::{Der, Key, codec, opcode};

use super::{Object, ShardChoice};
use crate::Result;
use crate::operation::{Payload, RequestInfo};
use crate::session::Context;

/// Records of an akey in dkeys that are integers.
#[derive(Clone, Debug)]
pub(crate) struct Reserved<'a> {
    /// The akey.
    pub(crate) akey: &'a Key,
    /// Bytes of a record, and records of a dkey.
    pub(crate) size: (u32, u64),
    /// Dkey and record of the first one.
    pub(crate) from: (u64, u64),
    /// Dkey and record behind the last one.
    pub(crate) below: (u64, u64),
}

/// Runs of dkeys of one shard: how far the first is from the dkey of [`Reserved::from`], and how many.
pub(crate) type DkeyRuns = Vec<(u32, u32)>;

impl Object {
    /// Has a shard keep room for those of the records that are in some of its dkeys: for all or none. Returns the dkeys of
    /// which none was kept before. `None`: the engine can't.
    ///
    /// # Errors
    /// `NOSPACE` when there is less room; or when the shard refuses or does not answer in time.
    pub(crate) async fn reserve(
        &self,
        context: &Context,
        shard: usize,
        records: &Reserved<'_>,
        dkeys: &DkeyRuns,
    ) -> Result<Option<DkeyRuns>> {
        self.change_reserved(context, shard, records, (true, dkeys)).await
    }

    /// Has a shard give up the room that it keeps for records, of these dkeys or, without any, of all. Does nothing where
    /// the engine keeps none.
    ///
    /// # Errors
    /// When the shard refuses or does not answer in time.
    pub(crate) async fn release(
        &self,
        context: &Context,
        shard: usize,
        records: &Reserved<'_>,
        dkeys: &DkeyRuns,
    ) -> Result<()> {
        self.change_reserved(context, shard, records, (false, dkeys)).await.map(drop)
    }

    async fn change_reserved(
        &self,
        context: &Context,
        shard: usize,
        records: &Reserved<'_>,
        (keeps, dkeys): (bool, &DkeyRuns),
    ) -> Result<Option<DkeyRuns>> {
        let operation = if keeps { "reserve room for" } else { "release room of" };
        let info = RequestInfo::new(operation, self, opcode::OBJECT_RESERVE);
        let build = |map_version| {
            codec::encode(&ReserveRequest {
                capability: self.container.state.capability.clone(),
                object: self.oid,
                map_version,
                akey: records.akey.clone(),
                record_size: records.size.0,
                records: records.size.1,
                from: records.from,
                below: records.below,
                keeps,
                dkeys: dkeys.clone(),
            })
        };
        match self.exchange(context, &info, ShardChoice::Shard(shard), &Payload::None, &build).await {
            // An engine of an earlier release, or a target whose store is to be read by one.
            Err(refusal) if refusal.error.is(Der::NOSYS) => Ok(None),
            answer => {
                let reply: ReserveReply = answer.map_err(|refusal| refusal.error)?.decode(&info)?;
                Ok(Some(reply.fresh))
            }
        }
    }
}
