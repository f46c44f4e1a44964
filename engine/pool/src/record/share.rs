//! What a tenant may use, as the keeper of the list of pools stores it, and a pool's share of that, as its service does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_proto::codec::DecodeError;
use weir_proto::quota::{ShareStamp, TenantLimits};
use weir_proto::{PoolId, codec};

use super::{Read, Stored, read_as, read_through};

/// What a tenant may use, and what each of its pools may hold of that.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TenantRecord {
    pub(crate) limits: TenantLimits,
    /// Bytes that each pool may hold, at most. One that isn't here has not been told yet that there is a limit.
    pub(crate) shares: BTreeMap<PoolId, u64>,
}

impl TenantRecord {
    /// Bytes of the limit that no pool may hold.
    pub(crate) fn unshared(&self) -> u64 {
        let shared = self.shares.values().fold(0_u64, |sum, share| sum.saturating_add(*share));
        self.limits.bytes.saturating_sub(shared)
    }
}

/// The form of version 1.
#[derive(Serialize, Deserialize)]
struct TenantForm {
    shares: BTreeMap<PoolId, u64>,
    /// An encoded [`LimitsTail`].
    #[serde(with = "serde_bytes")]
    limits: Vec<u8>,
}

/// The limits. Later ones are appended: the reader ignores what it doesn't know.
#[derive(Serialize, Deserialize)]
struct LimitsTail {
    bytes: u64,
    operations: u64,
    bandwidth: u64,
}

impl TryFrom<TenantForm> for TenantRecord {
    type Error = DecodeError;

    fn try_from(form: TenantForm) -> Result<Self, DecodeError> {
        let (LimitsTail { bytes, operations, bandwidth }, _later) = codec::decode_prefix(&form.limits)?;
        Ok(Self { limits: TenantLimits { bytes, operations, bandwidth }, shares: form.shares })
    }
}

impl Stored for TenantRecord {
    const WHAT: &'static str = "what a tenant may use";
    const VERSION: u8 = 1;

    fn body(&self) -> Vec<u8> {
        let TenantLimits { bytes, operations, bandwidth } = self.limits;
        let limits = codec::encode(&LimitsTail { bytes, operations, bandwidth });
        codec::encode(&TenantForm { shares: self.shares.clone(), limits })
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 => read_through::<TenantForm, _>(body),
            _ => Read::Unknown,
        }
    }
}

/// A pool's share of what its tenant may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ShareRecord {
    /// Bytes; none: there is no limit.
    pub(crate) limit: Option<u64>,
    /// What it was said with.
    pub(crate) stamp: ShareStamp,
}

/// The form of version 1.
#[derive(Serialize, Deserialize)]
struct ShareForm {
    limit: Option<u64>,
    term: u64,
    at: u64,
}

impl From<ShareForm> for ShareRecord {
    fn from(ShareForm { limit, term, at }: ShareForm) -> Self {
        Self { limit, stamp: ShareStamp { term, at } }
    }
}

impl Stored for ShareRecord {
    const WHAT: &'static str = "its share of its tenant's quota";
    const VERSION: u8 = 1;

    fn body(&self) -> Vec<u8> {
        let Self { limit, stamp: ShareStamp { term, at } } = *self;
        codec::encode(&ShareForm { limit, term, at })
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 => read_as::<ShareForm, _>(body),
            _ => Read::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{decode, encode};

    const POOL: PoolId = PoolId(uuid::Uuid::from_u128(7));

    #[test]
    fn records_are_read_as_they_were_written_and_what_is_cut_is_refused() {
        let share = ShareRecord { limit: Some(300), stamp: ShareStamp { term: 2, at: 5 } };
        assert_eq!(encode(&share), [1, 1, 0xac, 2, 2, 5]);
        assert_eq!(decode(POOL, &encode(&share)), Ok(share));
        let limits = TenantLimits { bytes: 300, operations: 4, bandwidth: 5 };
        let tenant = TenantRecord { limits, shares: BTreeMap::from([(POOL, 5)]) };
        let bytes = encode(&tenant);
        assert_eq!(bytes.len(), 1 + 1 + 17 + 1 + 1 + 4, "{bytes:?}");
        assert_eq!(decode(POOL, &bytes), Ok(tenant));
        for cut in 1..bytes.len() {
            assert!(decode::<TenantRecord>(POOL, &bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn what_is_unshared_is_what_no_pool_may_hold() {
        let of = |bytes, shares: &[u64]| TenantRecord {
            limits: TenantLimits { bytes, ..TenantLimits::default() },
            shares: (0..).map(|id| PoolId(uuid::Uuid::from_u128(id))).zip(shares.iter().copied()).collect(),
        };
        assert_eq!(of(100, &[30, 20]).unshared(), 50);
        assert_eq!(of(100, &[80, 90]).unshared(), 0);
        assert_eq!(of(100, &[u64::MAX, 1]).unshared(), 0);
    }
}
