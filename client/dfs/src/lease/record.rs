//! Stored records of leases, and of content that waits to be freed.

use serde::{Deserialize, Serialize};
use weir_proto::{Epoch, ObjectId, codec};

/// Version byte in front of every record. A record of another version is a client's that nothing is known of but that it is
/// there.
const VERSION: u8 = 1;

/// Most objects that a lease names. Their ids take 2 KiB, so that a lease fits a value of the index.
const PINS_MAX: usize = 128;

/// Most orphans of one batch, for the same reason.
pub(crate) const BATCH_MAX: usize = 128;

/// Most bytes of a record: those of a value of the index.
pub(crate) const BYTES_MAX: usize = 4096;

/// Length of the keys of leases and batches: random, so that no two are the same.
pub(crate) const KEY_LEN: usize = 16;

/// A client, for the time of one mount.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ClientId(pub(crate) [u8; KEY_LEN]);

impl ClientId {
    /// The bytes that it is kept as.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; KEY_LEN] {
        self.0
    }

    /// A client from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    pub(crate) fn from_key(key: &[u8]) -> Option<Self> {
        Some(Self(key.try_into().ok()?))
    }
}

/// Orphans that a client needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Pins {
    /// These.
    Some(Vec<ObjectId>),
    /// More than fit: any may be among them.
    All,
}

impl Pins {
    pub(crate) fn of(open: Vec<ObjectId>) -> Self {
        if open.len() > PINS_MAX { Self::All } else { Self::Some(open) }
    }

    pub(crate) fn has(&self, oid: ObjectId) -> bool {
        match self {
            Self::Some(pins) => pins.contains(&oid),
            Self::All => true,
        }
    }
}

/// A client's lease.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ClientRecord {
    /// How often it was renewed.
    pub(crate) turn: u64,
    /// Epoch of the renewal before this one, by the clock of the target that has the leases.
    pub(crate) before: Epoch,
    /// What tells clients of the same machine whether this one's process still runs.
    #[serde(with = "serde_bytes")]
    pub(crate) origin: Vec<u8>,
    /// What it has open of the orphans that it had seen when it renewed.
    pub(crate) pins: Pins,
}

/// Content whose last name is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Orphan {
    pub(crate) oid: ObjectId,
    pub(crate) chunk_size: u64,
}

/// Orphans of one client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    /// The client that frees them; `None`: any client.
    pub(crate) owner: Option<ClientId>,
    pub(crate) orphans: Vec<Orphan>,
}

pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(codec::encode(record));
    bytes
}

/// A record of this version; `None` when it is another's, or damaged.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match bytes.split_first() {
        Some((&VERSION, record)) => codec::decode(record).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_a_record_of_this_version_is_read_and_the_largest_fits_a_value_of_the_index() {
        let oid = ObjectId { hi: u64::MAX, lo: u64::MAX };
        let client = ClientRecord {
            turn: u64::MAX,
            before: Epoch::MAX,
            origin: vec![7; 64],
            pins: Pins::of(vec![oid; PINS_MAX]),
        };
        let bytes = encode(&client);
        assert!(bytes.len() <= BYTES_MAX, "{}", bytes.len());
        assert_eq!(decode(&bytes), Some(client));
        let batch = BatchRecord {
            owner: Some(ClientId([255; KEY_LEN])),
            orphans: vec![Orphan { oid, chunk_size: 1 << 30 }; BATCH_MAX],
        };
        let mut bytes = encode(&batch);
        assert!(bytes.len() <= BYTES_MAX, "{}", bytes.len());
        assert_eq!(decode(&bytes), Some(batch));
        bytes[0] += 1;
        assert_eq!(decode::<BatchRecord>(&bytes), None);
        assert_eq!(Pins::of(vec![oid; PINS_MAX + 1]), Pins::All);
    }

    proptest! {
        #[test]
        fn bytes_of_others_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [&[VERSION], &bytes[..]].concat();
            let _ = (decode::<ClientRecord>(&bytes), decode::<BatchRecord>(&bytes));
        }
    }
}
