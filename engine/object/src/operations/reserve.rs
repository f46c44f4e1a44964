//! Reserving room for records that are written later, and giving it up.

use core::ops::Range;

use weir_pool::Operation;
use weir_proto::limits::RESERVED_DKEYS_MAX;
use weir_proto::object::{ReserveReply, ReserveRequest};
use weir_proto::{Rights, codec};
use weir_rpc::{Body, Request, Status};
use weir_store::RecordRange;

use super::Operations;
use super::quota::within_quota;
use crate::admission::refusal;

/// Part of the data, and bytes of each dkey, that are asked of the quota beside the data: more than what is kept for entries.
const BESIDE_DIVISOR: u64 = 8;
const BESIDE_DKEY: u64 = 16 * 1024;

impl Operations {
    pub(crate) async fn reserve(&self, request: &Request, wanted: ReserveRequest) -> Result<Body, Status> {
        let dkeys = reserved_dkeys(wanted.from.0, &wanted.dkeys)?;
        let admission = &self.admission;
        let access = admission.access(request, &wanted.capability, Rights::WRITE, wanted.map_version).await?;
        let counted = admission.counted(Operation::Update, &access, async |place| {
            let (shard, container) = (access.pool.shard(), access.container.id);
            let ReserveRequest { object, akey, record_size, records, from, below, .. } = &wanted;
            let range = RecordRange { object: *object, akey, from: *from, below: *below };
            if !wanted.keeps {
                let released = shard.release(container, &range, &dkeys).await;
                released.map_err(|error| refusal::update(&error, place))?;
                return Ok((codec::encode(&ReserveReply::default()), 0));
            }
            let attempt = async || shard.reserve(container, &range, (*record_size, *records), &dkeys).await;
            let each = records.saturating_mul(u64::from(*record_size));
            let (pool, bytes) = (&access.pool, bytes_of(each, &dkeys));
            let fresh = within_quota((pool, &access.container), bytes, place, attempt).await?;
            Ok((codec::encode(&ReserveReply { fresh: told_dkeys(from.0, fresh) }), 0))
        });
        counted.await
    }
}

/// The dkeys that a request names.
pub(crate) fn reserved_dkeys(from: u64, runs: &[(u32, u32)]) -> Result<Vec<Range<u64>>, Status> {
    dkeys_of(from, runs).ok_or_else(|| {
        refusal::invalid(format!("it names more than {RESERVED_DKEYS_MAX} dkeys, or not in their order"))
    })
}

/// Dkeys as a reply tells them.
pub(crate) fn told_dkeys(from: u64, dkeys: Vec<Range<u64>>) -> Vec<(u32, u32)> {
    let told = dkeys.into_iter().filter_map(|run| {
        let first = run.start.checked_sub(from)?;
        Some((u32::try_from(first).ok()?, u32::try_from(run.end - run.start).ok()?))
    });
    told.collect()
}

/// Runs of dkeys, each by how far its first is from another one; `None` where these are too many.
fn dkeys_of(from: u64, runs: &[(u32, u32)]) -> Option<Vec<Range<u64>>> {
    let (mut dkeys, mut count): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
    for (first, len) in runs {
        let start = from.checked_add(u64::from(*first))?;
        let run = start..start.checked_add(u64::from(*len))?;
        count += u64::from(*len);
        if count > RESERVED_DKEYS_MAX || dkeys.last().is_some_and(|last| last.end > run.start) {
            return None;
        }
        dkeys.push(run);
    }
    Some(dkeys)
}

/// Bytes of the quota that may be needed, at most, for dkeys with so many bytes each.
pub(crate) fn bytes_of(each: u64, dkeys: &[Range<u64>]) -> u64 {
    let count: u64 = dkeys.iter().map(|run| run.end - run.start).sum();
    count.saturating_mul(each.saturating_add(each / BESIDE_DIVISOR).saturating_add(BESIDE_DKEY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dkeys_are_few_and_in_their_order() {
        let most = u32::try_from(RESERVED_DKEYS_MAX).expect("small");
        assert_eq!(dkeys_of(5, &[(0, 2), (2, 1), (9, 0)]), Some(vec![5..7, 7..8, 14..14]));
        assert_eq!(
            dkeys_of(0, &[(1, most), (most + 1, 0)]).map(|runs| runs[0].end),
            Some(1 + RESERVED_DKEYS_MAX)
        );
        for dkeys in [[(0, most), (most, 1)], [(5, 2), (6, 1)], [(0, u32::MAX), (0, 0)]] {
            assert_eq!(dkeys_of(0, &dkeys), None, "{dkeys:?}");
        }
        assert_eq!(dkeys_of(u64::MAX - 3, &[(3, 1)]), None);
        assert_eq!(bytes_of(1 << 20, &[0..3, 7..8]), 4 * ((9 << 17) + BESIDE_DKEY));
        assert_eq!(bytes_of(u64::MAX, &[0..9, 9..10]), u64::MAX);
    }
}
