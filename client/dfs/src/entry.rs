//! Directory entries: one dkey each, with the inode record, or a reference to it, and a guard under two akeys.
//!
//! The guard is an akey whose name holds the inode's object id. Every change of an entry is conditional on the guard of
//! the inode that it means, or on a transaction that has read the record. So a change that was decided on an old state
//! of the entry can't hit an entry that was removed or replaced meanwhile, nor one whose inode has got hard links.

use weir_client::{AkeyRead, AkeyWrite, Conditions, Context, Object};
use weir_proto::{Der, Key, ObjectId};

use crate::mount::Dfs;
use crate::name::{dkey, shown};
use crate::record::{EntryValue, Kind, Names, RECORD_MAX, Record};
use crate::superblock::{ROOT_OID, SUPERBLOCK_NAME, SUPERBLOCK_OID};
use crate::{Error, Result};

/// The akey of the inode record.
const RECORD_KEY: &[u8] = b"i";

/// First byte of a guard's akey; the object id follows. It stands where the inode's record does.
const GUARD_PREFIX: u8 = b'g';

/// First byte of the guard's akey of an entry that refers to a record.
const REFERENCE_GUARD_PREFIX: u8 = b'l';

/// How often an entry is looked at again whose inode is gone when that is looked for.
const RACES_MAX: usize = 16;

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

    /// The inode after it has lost a name, with so many left.
    pub(crate) fn with_links(mut self, links: u32, now: i64) -> Self {
        if links > 0 {
            (self.record.names, self.record.ctime_ns) = (Names::Counted(links), now);
        }
        self
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

/// The guard of an inode, where its record is.
pub(crate) fn guard_key(oid: ObjectId) -> Result<Key> {
    key_of(GUARD_PREFIX, oid)
}

/// The guard of an entry. One that refers to a record has another one: who takes the inode's last name away because it has read
/// that there is no other doesn't hit an entry whose inode has got more.
pub(crate) fn entry_guard(record: &Record) -> Result<Key> {
    let prefix = match record.names {
        Names::One => GUARD_PREFIX,
        Names::Counted(_) => REFERENCE_GUARD_PREFIX,
    };
    key_of(prefix, record.oid)
}

fn key_of(prefix: u8, oid: ObjectId) -> Result<Key> {
    let mut bytes = vec![prefix];
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

/// What an entry holds with its keys, to borrow an update from.
pub(crate) struct Insertion {
    record: Vec<u8>,
    record_key: Key,
    guard_key: Key,
}

impl Insertion {
    pub(crate) fn of(record: &Record) -> Result<Self> {
        Ok(Self { record: record.encode_entry(), record_key: record_key()?, guard_key: entry_guard(record)? })
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

    /// Reads the record of an entry's inode; `None` when there is no entry. One fetch, or two for an inode with hard links.
    pub(crate) async fn fetch_entry(
        &self,
        context: &Context,
        parent: ObjectId,
        name: &[u8],
    ) -> Result<Option<Record>> {
        let shown_entry = || format!("entry \"{}\" of directory {parent:?}", shown(name));
        let (object, key) = (self.object(parent)?, entry_key(parent, name)?);
        for _ in 0..RACES_MAX {
            let Some(bytes) = fetch_record(context, (&object, &key), &shown_entry).await? else {
                return Ok(self.unstored(parent));
            };
            match EntryValue::decode(&bytes, &shown_entry)? {
                EntryValue::Record(record) => return Ok(Some(record)),
                EntryValue::Reference(reference) => {
                    // Otherwise its last name is gone by now, and this was it, or one before.
                    if let Some(record) = self.fetch_linked(context, reference.oid).await? {
                        return Ok(Some(record));
                    }
                }
            }
        }
        Err(Error::Stale(shown(name)))
    }

    /// An inode with its record as it is now. One fetch.
    ///
    /// # Errors
    /// [`Error::Stale`] when the entry is gone or names another inode; or an object error.
    pub async fn refresh(&self, context: &Context, node: &Node) -> Result<Node> {
        Ok(Node { record: self.refetch(context, node).await?, ..node.clone() })
    }

    /// Reads an inode's record again: where it was, or, if the entry doesn't mean the inode any more, where that of an inode
    /// with other names is.
    pub(crate) async fn refetch(&self, context: &Context, node: &Node) -> Result<Record> {
        if !node.record.is_linked() {
            match self.fetch_entry(context, node.parent, &node.name).await? {
                Some(record) if record.oid == node.oid() => return Ok(record),
                _ if node.is_directory() => return Err(Error::Stale(node.shown())),
                _ => {}
            }
        }
        self.fetch_linked(context, node.oid()).await?.ok_or_else(|| Error::Stale(node.shown()))
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

    /// Removes the entry of an inode with one name, with everything under it.
    pub(crate) async fn remove_entry(&self, context: &Context, node: &Node) -> Result<()> {
        let key = entry_key(node.parent, &node.name)?;
        let guard = entry_guard(&node.record)?;
        match self.object(node.parent)?.punch_dkey_with(context, &key, &[guard]).await {
            Ok(()) => Ok(()),
            Err(error) if error.is(Der::NONEXIST) => Err(Error::Stale(node.shown())),
            Err(error) => Err(error.into()),
        }
    }
}

/// The bytes of a record; `None` when there is none.
pub(crate) async fn fetch_record(
    context: &Context,
    (object, key): (&Object, &Key),
    shown: &dyn Fn() -> String,
) -> Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; RECORD_MAX];
    let mut reads = [AkeyRead::single(record_key()?, &mut bytes)];
    let found = object.fetch(context, key, Conditions::NONE, &mut reads).await?;
    let size = found[0].size;
    let Some(size) = usize::try_from(size).ok().filter(|size| *size <= bytes.len()) else {
        let reason = format!("its inode record has {size} bytes");
        return Err(Error::Corrupt { object: shown(), reason });
    };
    bytes.truncate(size);
    Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
}
