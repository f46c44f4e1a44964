//! Mounting a container as a file system.

use weir_client::{
    AkeyRead, Conditions, Container, ContainerType, Context, Epoch, Object, ObjectClass, PoolSpace, Rights,
    Transaction, kind,
};
use weir_proto::{Der, ObjectId, ReaderId};

use crate::entry::{Insertion, Node, akey, record_key};
use crate::record::{Kind, Names, RECORD_MAX, Record};
use crate::superblock::{ROOT_OID, SUPERBLOCK_KEY, SUPERBLOCK_NAME, SUPERBLOCK_OID, Superblock};
use crate::{Error, Result};

/// Room for an encoded superblock: magic, layout, chunk size and two classes, each at most 10 bytes.
const SUPERBLOCK_MAX: usize = 64;

/// Largest chunk of a file: what pool services let containers have. A request carries a part of it.
pub(crate) const CHUNK_MAX: u64 = 1 << 30;

/// A mounted file system. Plain data: cheap to clone, shared by any number of threads.
#[derive(Clone, Debug)]
pub struct Dfs {
    container: Container,
    superblock: Superblock,
    root: Node,
    epoch: Epoch,
    /// The transaction whose epoch that is.
    reader: Option<ReaderId>,
    /// Whether the container had no file system when it was mounted, and this mount may not make one.
    is_blank: bool,
}

/// Space of a file system, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Most it may hold: the container's quota, or the pool.
    pub total: u64,
    /// Not used.
    pub free: u64,
    /// What it holds.
    pub used: u64,
    /// Preferred size of a read or write.
    pub block_size: u32,
}

impl Dfs {
    /// Makes the container a file system, with the chunk size, class, and root owner of its properties. Does nothing
    /// when it is one already.
    ///
    /// # Errors
    /// [`Error::NotPosix`] when the container has another type; or an object error.
    pub async fn format(context: &Context, container: &Container) -> Result<()> {
        let (superblock, root) = blank(context, container)?;
        let insertion = Insertion::of(&root)?;
        let block = superblock.encode();
        let mut writes = insertion.writes();
        writes.push(weir_client::AkeyWrite::single(akey(SUPERBLOCK_KEY)?, &block));
        let object = Object::open(container, directory_id(container, SUPERBLOCK_OID)?)?;
        match object.update(context, &akey(SUPERBLOCK_NAME)?, Conditions::AKEY_INSERT, &writes).await {
            Ok(_) => Ok(()),
            // Formatted already, perhaps by another client at the same time.
            Err(error) if error.is(Der::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Mounts a POSIX container. One that was never mounted before is formatted, if the handle allows writing. Otherwise it
    /// is shown as formatting would make it, which the container's properties say: an empty root, in which appears what
    /// others write.
    ///
    /// # Errors
    /// [`Error::NotPosix`] when the container has another type, [`Error::Corrupt`] when its superblock can't be
    /// understood; or an object error.
    pub async fn mount(context: &Context, container: &Container) -> Result<Self> {
        ensure_posix(container)?;
        if let Some(mounted) = Self::read(context, container, Epoch::MAX).await? {
            return Ok(mounted);
        }
        if !container.rights().allows(Rights::WRITE) {
            let (superblock, root) = blank(context, container)?;
            return Ok(Self { is_blank: true, ..Self::of(container, superblock, root, Epoch::MAX)? });
        }
        Self::format(context, container).await?;
        Self::read(context, container, Epoch::MAX).await?.ok_or_else(|| Error::Corrupt {
            object: format!("container {}", container.properties().label),
            reason: "its superblock is gone right after it was written".into(),
        })
    }

    /// Mounts the state of a snapshot, read-only.
    ///
    /// # Errors
    /// As [`Dfs::mount`]; [`Error::Invalid`] when there was no file system at that epoch.
    pub async fn mount_snapshot(context: &Context, container: &Container, epoch: Epoch) -> Result<Self> {
        Self::read(context, container, epoch)
            .await?
            .ok_or_else(|| Error::Invalid(format!("there was no file system at epoch {epoch}")))
    }

    async fn read(context: &Context, container: &Container, epoch: Epoch) -> Result<Option<Self>> {
        let label = &container.properties().label;
        let (mut block, mut record) = (vec![0; SUPERBLOCK_MAX], vec![0; RECORD_MAX]);
        let mut reads = [
            AkeyRead::single(akey(SUPERBLOCK_KEY)?, &mut block),
            AkeyRead::single(record_key()?, &mut record),
        ];
        let object = Object::open(container, directory_id(container, SUPERBLOCK_OID)?)?.at(epoch);
        let found = object.fetch(context, &akey(SUPERBLOCK_NAME)?, Conditions::NONE, &mut reads).await?;
        let sizes: Vec<usize> =
            found.iter().map(|found| usize::try_from(found.size).unwrap_or(usize::MAX)).collect();
        let (block_len, record_len) = match sizes[..] {
            [0, _] => return Ok(None),
            [block, record] => (block.min(SUPERBLOCK_MAX), record.min(RECORD_MAX)),
            _ => return Ok(None),
        };
        let superblock = Superblock::decode(&block[..block_len], label)?;
        let root = Record::decode(&record[..record_len], &|| format!("root directory of container {label}"))?;
        Self::of(container, superblock, root, epoch).map(Some)
    }

    /// The mounted file system as bytes, for another process of the same user that has the container open, too.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (block, root) = (self.superblock.encode(), self.root.record.encode());
        weir_proto::codec::encode(&(block, root, self.epoch, self.is_blank))
    }

    /// The inverse of [`Dfs::to_bytes`]. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the bytes are no mounted file system, [`Error::NotPosix`] for another type of container.
    pub fn from_bytes(container: &Container, bytes: &[u8]) -> Result<Self> {
        ensure_posix(container)?;
        let label = &container.properties().label;
        let decoded: core::result::Result<(Vec<u8>, Vec<u8>, Epoch, bool), _> =
            weir_proto::codec::decode(bytes);
        let (block, root, epoch, is_blank) =
            decoded.map_err(|error| Error::Invalid(format!("no mounted file system: {error}")))?;
        let superblock = Superblock::decode(&block, label)?;
        let root = Record::decode(&root, &|| format!("root directory of container {label}"))?;
        Ok(Self { is_blank, ..Self::of(container, superblock, root, epoch)? })
    }

    fn of(container: &Container, superblock: Superblock, root: Record, epoch: Epoch) -> Result<Self> {
        let parent = directory_id(container, SUPERBLOCK_OID)?;
        let root = Node { parent, name: SUPERBLOCK_NAME.to_vec(), record: root };
        Ok(Self { container: container.clone(), superblock, root, epoch, reader: None, is_blank: false })
    }

    /// The root directory, as it was when the file system was mounted.
    #[must_use]
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// The container.
    #[must_use]
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// What the file system was made with.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether this mount refuses changes: the handle or a snapshot allows none.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.epoch != Epoch::MAX || !self.container.rights().allows(Rights::WRITE)
    }

    /// Space of the file system: that of the container's quota, bounded by what the pool has left.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn statfs(&self, context: &Context) -> Result<StatFs> {
        let info = self.container.query(context).await?;
        let space = PoolSpace::of(&self.container.pool().query(context).await?);
        let quota = info.properties.quota;
        let (total, free) = match quota {
            0 => (space.total, space.free),
            quota => (quota, quota.saturating_sub(info.used).min(space.free)),
        };
        let block_size = u32::try_from(self.superblock.chunk_size).unwrap_or(u32::MAX);
        Ok(StatFs { total, free, used: info.used, block_size })
    }

    /// The file system as a transaction reads it.
    pub(crate) fn within(&self, transaction: &Transaction) -> Self {
        let (epoch, reader) = transaction.reader();
        Self { epoch, reader: Some(reader), ..self.clone() }
    }

    pub(crate) fn ensure_writable(&self) -> Result<()> {
        if self.is_read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// The object in the state that this mount shows.
    pub(crate) fn read_view(&self, object: Object) -> Object {
        match (self.epoch, self.reader) {
            (epoch, Some(reader)) => object.in_transaction((epoch, reader)),
            (Epoch::MAX, None) => object,
            (epoch, None) => object.at(epoch),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Stands for an entry that isn't stored: the root of a blank container has no record until a client formats it.
    pub(crate) fn unstored(&self, parent: ObjectId) -> Option<Record> {
        (self.is_blank && parent == self.root.parent).then(|| self.root.record.clone())
    }
}

fn ensure_posix(container: &Container) -> Result<()> {
    let properties = container.properties();
    match properties.kind {
        ContainerType::Posix => Ok(()),
        ContainerType::Object => Err(Error::NotPosix(properties.label.clone())),
    }
}

/// What formatting the container writes: all of it follows from its properties, but the times.
fn blank(context: &Context, container: &Container) -> Result<(Superblock, Record)> {
    ensure_posix(container)?;
    let properties = container.properties();
    if properties.chunk_size == 0 || properties.chunk_size > CHUNK_MAX {
        return Err(Error::Invalid(format!(
            "container {}: a chunk size of {} bytes is not between 1 and {CHUNK_MAX}",
            properties.label, properties.chunk_size
        )));
    }
    let files = container.default_class()?;
    let superblock = Superblock::new(properties.chunk_size, files.id(), directory_class(container)?.id());
    let now = wall_ns(context);
    let root = Record {
        kind: Kind::Directory,
        mode: properties.mode & 0o7777,
        uid: properties.uid,
        gid: properties.gid,
        oid: directory_id(container, ROOT_OID)?,
        atime_ns: now,
        mtime_ns: now,
        mtime_epoch: Epoch::ZERO,
        ctime_ns: now,
        chunk_size: properties.chunk_size,
        xattrs: false,
        target: Vec::new(),
        names: Names::One,
    };
    Ok((superblock, root))
}

/// The class of directories, and of what is beside them: protected as files are, in one group.
fn directory_class(container: &Container) -> Result<ObjectClass> {
    Ok(container.default_class()?.narrow())
}

/// A reserved object's id with the class of directories.
pub(crate) fn directory_id(container: &Container, oid: ObjectId) -> Result<ObjectId> {
    Ok(directory_class(container)?.encode(oid, kind::MULTI_HASHED))
}

/// The context's wall time in nanoseconds since 1970.
pub(crate) fn wall_ns(context: &Context) -> i64 {
    i64::try_from(context.runtime().wall_ns()).unwrap_or(i64::MAX)
}
