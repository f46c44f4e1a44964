//! Directory entries: one dkey each, with the inode record and a guard under two akeys.
//!
//! The guard is an akey whose name holds the inode's object id. Every change of an entry is conditional on the guard of
//! the inode that it means, or on a transaction that has read the record. So a change that was decided on an old state
//! of the entry can't hit an entry that was removed or replaced meanwhile.

use weir_client::{AkeyRead, AkeyWrite, Conditions, Context, Object};
use weir_proto::{Der, Key, ObjectId};

use crate::mount::Dfs;
use crate::name::{dkey, shown};
use crate::record::{Kind, RECORD_MAX, Record};
use crate::superblock::{ROOT_OID, SUPERBLOCK_NAME, SUPERBLOCK_OID};
use crate::{Error, Result};

/// The akey of the inode record.
const RECORD_KEY: &[u8] = b"i";

/// First byte of a guard's akey; the object id follows.
const GUARD_PREFIX: u8 = b'g';

/// What stands under a guard's akey.
pub(crate) const GUARD: &[u8] = &[1];

/// An inode as it was found under an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Directory object that has the entry.
    pub parent: ObjectId,
    /// Name of the entry.
    pub name: Vec<u8>,
    /// The inode record when it was looked at.
    pub record: Record,
}

impl Node {
    /// The object that holds the content; identifies the inode whatever its name is.
    #[must_use]
    pub fn oid(&self) -> ObjectId {
        self.record.oid
    }

    /// The inode's number: 1 for the root, else greater than 15 and unique in the container.
    #[must_use]
    pub fn inode_number(&self) -> u64 {
        inode_number(self.record.oid)
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.record.kind == Kind::Directory
    }

    pub(crate) fn ensure_directory(&self) -> Result<()> {
        if self.is_directory() { Ok(()) } else { Err(Error::NotDirectory(self.shown())) }
    }

    /// Its name for messages. The root has none of its own: it is stored under a name that no user has given.
    pub(crate) fn shown(&self) -> String {
        if self.inode_number() == 1 { "/".to_owned() } else { shown(&self.name) }
    }
}

/// Numbers below this are left to the file-system interface; 1 is the root there.
const INODE_BASE: u64 = 16;

/// The number of the inode whose content stands in an object.
#[must_use]
pub fn inode_number(oid: ObjectId) -> u64 {
    if oid.lo == ROOT_OID.lo && oid.hi & 0xffff_ffff == ROOT_OID.hi {
        1
    } else {
        oid.lo.wrapping_add(INODE_BASE)
    }
}

pub(crate) fn record_key() -> Result<Key> {
    akey(RECORD_KEY)
}

pub(crate) fn akey(bytes: &[u8]) -> Result<Key> {
    Key::new(bytes).map_err(|error| Error::Invalid(error.to_string()))
}

/// The guard of an inode.
pub(crate) fn guard_key(oid: ObjectId) -> Result<Key> {
    let mut bytes = vec![GUARD_PREFIX];
    bytes.extend(oid.to_bytes());
    akey(&bytes)
}

/// The dkey of an entry; the root's stands beside the superblock.
pub(crate) fn entry_key(parent: ObjectId, name: &[u8]) -> Result<Key> {
    if parent.lo == SUPERBLOCK_OID.lo && parent.hi & 0xffff_ffff == SUPERBLOCK_OID.hi {
        return akey(SUPERBLOCK_NAME);
    }
    dkey(name)
}

/// Encoded records with their keys, to borrow an update from.
pub(crate) struct Insertion {
    record: Vec<u8>,
    record_key: Key,
    guard_key: Key,
}

impl Insertion {
    pub(crate) fn of(record: &Record) -> Result<Self> {
        Ok(Self { record: record.encode(), record_key: record_key()?, guard_key: guard_key(record.oid)? })
    }

    /// The two akeys of the entry.
    pub(crate) fn writes(&self) -> Vec<AkeyWrite<'_>> {
        vec![
            AkeyWrite::single(self.record_key.clone(), &self.record),
            AkeyWrite::single(self.guard_key.clone(), GUARD),
        ]
    }
}

impl Dfs {
    pub(crate) fn object(&self, oid: ObjectId) -> Result<Object> {
        Ok(self.read_view(Object::open(self.container(), oid)?))
    }

    /// Reads an entry's record; `None` when there is no entry.
    pub(crate) async fn fetch_entry(
        &self,
        context: &Context,
        parent: ObjectId,
        name: &[u8],
    ) -> Result<Option<Record>> {
        let mut bytes = vec![0; RECORD_MAX];
        let mut reads = [AkeyRead::single(record_key()?, &mut bytes)];
        let key = entry_key(parent, name)?;
        let found = self.object(parent)?.fetch(context, &key, Conditions::NONE, &mut reads).await?;
        let size = found.first().map_or(0, |found| usize::try_from(found.size).unwrap_or(usize::MAX));
        if size == 0 {
            return Ok(self.unstored(parent));
        }
        let object = || format!("entry \"{}\" of directory {parent:?}", shown(name));
        let bytes = bytes.get(..size).ok_or_else(|| Error::Corrupt {
            object: object(),
            reason: format!("its inode record has {size} bytes"),
        })?;
        Record::decode(bytes, &object).map(Some)
    }

    /// An inode with its record as it is now. One fetch.
    ///
    /// # Errors
    /// [`Error::Stale`] when the entry is gone or names another inode; or an object error.
    pub async fn refresh(&self, context: &Context, node: &Node) -> Result<Node> {
        Ok(Node { record: self.refetch(context, node).await?, ..node.clone() })
    }

    /// Reads the entry again and checks that it still means the same inode.
    pub(crate) async fn refetch(&self, context: &Context, node: &Node) -> Result<Record> {
        match self.fetch_entry(context, node.parent, &node.name).await? {
            Some(record) if record.oid == node.oid() => Ok(record),
            _ => Err(Error::Stale(node.shown())),
        }
    }

    /// What has to hold of a directory to which an entry is added: it is there. The root always is, also before it has any.
    pub(crate) fn of_directory(&self, parent: ObjectId) -> Conditions {
        if parent == self.root().oid() { Conditions::NONE } else { Conditions::OBJECT_EXISTS }
    }

    /// Adds an entry where there is none, to a directory that wasn't removed.
    pub(crate) async fn insert_entry(
        &self,
        context: &Context,
        parent: ObjectId,
        name: &[u8],
        record: &Record,
    ) -> Result<()> {
        let insertion = Insertion::of(record)?;
        let key = entry_key(parent, name)?;
        let conditions = Conditions::AKEY_INSERT.union(self.of_directory(parent));
        match self.object(parent)?.update(context, &key, conditions, &insertion.writes()).await {
            Ok(_) => Ok(()),
            Err(error) if error.is(Der::NONEXIST) => Err(Error::Stale(format!("directory {parent:?}"))),
            Err(error) if error.is(Der::EXIST) => Err(Error::Exists(shown(name))),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an inode's entry with everything under it.
    pub(crate) async fn remove_entry(&self, context: &Context, node: &Node) -> Result<()> {
        let key = entry_key(node.parent, &node.name)?;
        let guard = guard_key(node.oid())?;
        match self.object(node.parent)?.punch_dkey_with(context, &key, &[guard]).await {
            Ok(()) => Ok(()),
            Err(error) if error.is(Der::NONEXIST) => Err(Error::Stale(node.shown())),
            Err(error) => Err(error.into()),
        }
    }
}
