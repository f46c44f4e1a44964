//! Inode records, which are stored under directory entries.

use serde::{Deserialize, Serialize};
use weir_proto::{Epoch, ObjectId};

use crate::name::LINK_TARGET_MAX;
use crate::{Error, Result};

/// Version byte in front of a record that its entry holds. A reader refuses versions it doesn't know.
const VERSION: u8 = 1;

/// Version byte in front of what is stored for an inode with hard links ([`Linked`]).
const LINKED_VERSION: u8 = 2;

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
    /// A block device. Clients before this kind refuse its record.
    BlockDevice,
    /// A character device, likewise.
    CharacterDevice,
}

impl Kind {
    /// Whether it is a device.
    #[must_use]
    pub const fn is_device(self) -> bool {
        matches!(self, Self::BlockDevice | Self::CharacterDevice)
    }

    /// The type bits of `st_mode`.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::BlockDevice => 0o060_000,
            Self::CharacterDevice => 0o020_000,
        }
    }

    /// The kind that `st_mode` names; `None` for what is none.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        match mode & 0o170_000 {
            0o100_000 | 0 => Some(Self::File),
            0o040_000 => Some(Self::Directory),
            0o120_000 => Some(Self::Symlink),
            0o010_000 => Some(Self::Fifo),
            0o140_000 => Some(Self::Socket),
            0o060_000 => Some(Self::BlockDevice),
            0o020_000 => Some(Self::CharacterDevice),
            _ => None,
        }
    }
}

/// How many names an inode has, and where its record is for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Names {
    /// One: its entry holds the record.
    #[default]
    One,
    /// As many as this. An object of the inode's own holds the record, and each entry refers to it. So it stays when all names
    /// but one are removed.
    Counted(u32),
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
    /// Target of a symbolic link; of a device its number, four bytes, little endian.
    #[serde(with = "serde_bytes")]
    pub target: Vec<u8>,
    /// Its names. Where the record is stored tells it.
    #[serde(skip)]
    pub names: Names,
}

/// What an entry says of its inode if it doesn't hold the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) kind: Kind,
    pub(crate) oid: ObjectId,
}

/// What is stored for an inode with hard links.
#[derive(Serialize, Deserialize)]
enum Linked {
    /// In each of its entries.
    Reference(Reference),
    /// In the inode's own object.
    Record { links: u32, record: Record },
}

/// What an entry holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum EntryValue {
    /// The record of an inode with one name.
    Record(Record),
    /// A reference to the record of an inode with hard links.
    Reference(Reference),
}

impl EntryValue {
    pub(crate) fn decode(bytes: &[u8], object: &dyn Fn() -> String) -> Result<Self> {
        let corrupt = |reason: String| Error::Corrupt { object: object(), reason };
        match bytes.split_first() {
            Some((&LINKED_VERSION, rest)) => match weir_proto::codec::decode(rest) {
                Ok(Linked::Reference(reference)) if reference.kind != Kind::Directory => {
                    Ok(Self::Reference(reference))
                }
                Ok(_) => Err(corrupt("it has what no entry can have".into())),
                Err(error) => Err(corrupt(error.to_string())),
            },
            _ => Record::decode(bytes, object).map(Self::Record),
        }
    }
}

impl Record {
    /// How many names it has (`st_nlink`).
    #[must_use]
    pub const fn links(&self) -> u32 {
        match self.names {
            Names::One => 1,
            Names::Counted(links) => links,
        }
    }

    /// Whether it has, or has had, several names: the record is found without any of them.
    #[must_use]
    pub const fn is_linked(&self) -> bool {
        matches!(self.names, Names::Counted(_))
    }

    /// Number of a device as Linux encodes it in 32 bits: minor number in bits 0 to 7 and 20 to 31, major number between. 0 for
    /// anything else.
    #[must_use]
    pub fn device(&self) -> u32 {
        match (self.kind.is_device(), <[u8; 4]>::try_from(&self.target[..])) {
            (true, Ok(number)) => u32::from_le_bytes(number),
            _ => 0,
        }
    }

    /// `st_mode`.
    #[must_use]
    pub const fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | self.mode
    }

    /// The record as its entry holds it, or the inode's own object.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self.names {
            Names::One => versioned(VERSION, self),
            Names::Counted(links) => {
                versioned(LINKED_VERSION, &Linked::Record { links, record: self.clone() })
            }
        }
    }

    /// What an entry of the inode holds.
    pub(crate) fn encode_entry(&self) -> Vec<u8> {
        match self.names {
            Names::One => self.encode(),
            Names::Counted(_) => {
                let reference = Reference { kind: self.kind, oid: self.oid };
                versioned(LINKED_VERSION, &Linked::Reference(reference))
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8], object: &dyn Fn() -> String) -> Result<Self> {
        let corrupt = |reason: String| Error::Corrupt { object: object(), reason };
        match bytes.split_first() {
            Some((&VERSION, rest)) => {
                let record: Self =
                    weir_proto::codec::decode(rest).map_err(|error| corrupt(error.to_string()))?;
                record.checked().ok_or_else(|| corrupt(IMPOSSIBLE.into()))
            }
            Some((version, _)) => Err(corrupt(format!("its inode record has version {version}"))),
            None => Err(corrupt("its inode record is empty".into())),
        }
    }

    /// The inverse of [`Record::encode`] of an inode with hard links.
    pub(crate) fn decode_linked(bytes: &[u8], object: &dyn Fn() -> String) -> Result<Self> {
        let corrupt = |reason: String| Error::Corrupt { object: object(), reason };
        let Some((&LINKED_VERSION, rest)) = bytes.split_first() else {
            return Err(corrupt(format!("its inode record has version {:?}", bytes.first())));
        };
        match weir_proto::codec::decode(rest) {
            Ok(Linked::Record { links, record }) if links > 0 && record.kind != Kind::Directory => {
                let record = record.checked().ok_or_else(|| corrupt(IMPOSSIBLE.into()))?;
                Ok(Self { names: Names::Counted(links), ..record })
            }
            Ok(_) => Err(corrupt(IMPOSSIBLE.into())),
            Err(error) => Err(corrupt(error.to_string())),
        }
    }

    /// The record, if it has values that one can have.
    fn checked(self) -> Option<Self> {
        let has_number = !self.kind.is_device() || self.target.len() == size_of::<u32>();
        let is_possible = self.target.len() <= LINK_TARGET_MAX && self.chunk_size > 0 && has_number;
        is_possible.then_some(Self { mode: self.mode & 0o7777, ..self })
    }
}

/// What is said of a record with values that no record has.
const IMPOSSIBLE: &str = "its inode record has impossible values";

fn versioned<T: Serialize>(version: u8, value: &T) -> Vec<u8> {
    let mut bytes = vec![version];
    bytes.extend(weir_proto::codec::encode(value));
    bytes
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
            names: Names::One,
        }
    }

    #[test]
    fn the_largest_record_fits_its_bound() {
        let record = sample(vec![b'x'; LINK_TARGET_MAX]);
        let bytes = record.encode();
        assert!(bytes.len() <= RECORD_MAX, "{}", bytes.len());
        assert_eq!(Record::decode(&bytes, &String::new).expect("decodes"), record);
        let linked = Record { names: Names::Counted(u32::MAX), ..record };
        let bytes = linked.encode();
        assert!(bytes.len() <= RECORD_MAX, "{}", bytes.len());
        assert_eq!(Record::decode_linked(&bytes, &String::new).expect("decodes"), linked);
    }

    #[test]
    fn an_entry_refers_to_an_inode_with_links_and_holds_the_record_of_any_other() {
        let record = sample(b"t".to_vec());
        let held = EntryValue::decode(&record.encode_entry(), &String::new).expect("decodes");
        assert_eq!(held, EntryValue::Record(record.clone()));
        let linked = Record { names: Names::Counted(2), ..record.clone() };
        let refers = EntryValue::decode(&linked.encode_entry(), &String::new).expect("decodes");
        assert_eq!(refers, EntryValue::Reference(Reference { kind: Kind::Symlink, oid: record.oid }));
        // Neither stands in the place of the other, and no inode that is stored has no name.
        assert!(EntryValue::decode(&linked.encode(), &String::new).is_err());
        assert!(Record::decode_linked(&linked.encode_entry(), &String::new).is_err());
        assert!(Record::decode_linked(&record.encode(), &String::new).is_err());
        let nameless = Record { names: Names::Counted(0), ..record };
        assert!(Record::decode_linked(&nameless.encode(), &String::new).is_err());
    }

    #[test]
    fn other_versions_are_refused() {
        let mut bytes = sample(Vec::new()).encode();
        bytes[0] = 3;
        assert_eq!(Record::decode(&bytes, &String::new).expect_err("refused").errno(), 5);
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = EntryValue::decode(&bytes, &String::new);
            let linked = [&[LINKED_VERSION], &bytes[..]].concat();
            let _ = (EntryValue::decode(&linked, &String::new), Record::decode_linked(&linked, &String::new));
        }
    }
}
