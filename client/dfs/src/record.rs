//! Inode records, which are stored under directory entries.

use serde::{Deserialize, Serialize};
use weir_proto::{Epoch, ObjectId};

use crate::name::LINK_TARGET_MAX;
use crate::{Error, Result};

/// Version byte in front of every record. A reader refuses versions it doesn't know.
const VERSION: u8 = 1;

/// Most bytes of an encoded record: its fields take at most 128.
pub(crate) const RECORD_MAX: usize = 128 + LINK_TARGET_MAX;

/// What an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A unix-domain socket.
    Socket,
}

impl Kind {
    /// The type bits of `st_mode`.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The kind that `st_mode` names; `None` for device nodes, which are not stored.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        match mode & 0o170_000 {
            0o100_000 | 0 => Some(Self::File),
            0o040_000 => Some(Self::Directory),
            0o120_000 => Some(Self::Symlink),
            0o010_000 => Some(Self::Fifo),
            0o140_000 => Some(Self::Socket),
            _ => None,
        }
    }
}

/// An inode record. Times are nanoseconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// What the entry is.
    pub kind: Kind,
    /// Permission bits, with set-user-id, set-group-id and sticky: the low 12 bits of `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The object that holds the content; identifies the inode whatever its name is.
    pub oid: ObjectId,
    /// Access time: set at creation and explicitly only.
    pub atime_ns: i64,
    /// Modification time as it was set explicitly, or the time of creation.
    pub mtime_ns: i64,
    /// Newest epoch of the content that `mtime_ns` covers: a later change of the content makes its own time the
    /// modification time.
    pub mtime_epoch: Epoch,
    /// Time of the last change to this record.
    pub ctime_ns: i64,
    /// Bytes of a file in one dkey.
    pub chunk_size: u64,
    /// Whether the entry may have extended attributes.
    pub xattrs: bool,
    /// Target of a symbolic link.
    #[serde(with = "serde_bytes")]
    pub target: Vec<u8>,
}

impl Record {
    /// `st_mode`.
    #[must_use]
    pub const fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | self.mode
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(weir_proto::codec::encode(self));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], object: &dyn Fn() -> String) -> Result<Self> {
        let corrupt = |reason: String| Error::Corrupt { object: object(), reason };
        match bytes.split_first() {
            Some((&VERSION, rest)) => {
                let record: Self =
                    weir_proto::codec::decode(rest).map_err(|error| corrupt(error.to_string()))?;
                if record.target.len() > LINK_TARGET_MAX || record.chunk_size == 0 {
                    return Err(corrupt("its inode record has impossible values".into()));
                }
                Ok(Self { mode: record.mode & 0o7777, ..record })
            }
            Some((version, _)) => Err(corrupt(format!("its inode record has version {version}"))),
            None => Err(corrupt("its inode record is empty".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(target: Vec<u8>) -> Record {
        Record {
            kind: Kind::Symlink,
            mode: 0o7777,
            uid: u32::MAX,
            gid: u32::MAX,
            oid: ObjectId { hi: u64::MAX, lo: u64::MAX },
            atime_ns: i64::MIN,
            mtime_ns: i64::MIN,
            mtime_epoch: Epoch::MAX,
            ctime_ns: i64::MIN,
            chunk_size: u64::MAX,
            xattrs: true,
            target,
        }
    }

    #[test]
    fn the_largest_record_fits_its_bound() {
        let record = sample(vec![b'x'; LINK_TARGET_MAX]);
        let bytes = record.encode();
        assert!(bytes.len() <= RECORD_MAX, "{}", bytes.len());
        assert_eq!(Record::decode(&bytes, &String::new).expect("decodes"), record);
    }

    #[test]
    fn other_versions_are_refused() {
        let mut bytes = sample(Vec::new()).encode();
        bytes[0] = 2;
        assert_eq!(Record::decode(&bytes, &String::new).expect_err("refused").errno(), 5);
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::decode(&bytes, &String::new);
        }
    }
}
