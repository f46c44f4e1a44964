//! Looking up, creating and removing entries.

use weir_client::{AkeyWrite, Conditions, Context, Epoch, ObjectClass, kind};
use weir_proto::{Key, ObjectId};
use weir_runtime::join_all;

use crate::directory::PARENT_NAME;
use crate::entry::{Node, akey};
use crate::mount::{CHUNK_MAX, Dfs, wall_ns};
use crate::name::{LINK_TARGET_MAX, dkey, shown};
use crate::record::{Kind, Record};
use crate::transaction::Tries;
use crate::{Error, Result};

/// The set-group-id bit of a mode.
const SET_GROUP_ID: u32 = 0o2000;

/// Mode and owner of a new inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ownership {
    /// Permission bits, after the umask.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group; in a directory with set-group-id its group is taken instead.
    pub gid: u32,
}

/// How a new file is stored. What is `None` is as the file system was made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileLayout {
    /// Object class.
    pub class: Option<ObjectClass>,
    /// Bytes in one dkey.
    pub chunk_size: Option<u64>,
}

/// What a new inode is made of.
#[derive(Clone, Copy)]
struct NewInode<'a> {
    kind: Kind,
    ownership: Ownership,
    layout: FileLayout,
    target: &'a [u8],
}

impl NewInode<'_> {
    fn of(kind: Kind, ownership: Ownership) -> Self {
        Self { kind, ownership, layout: FileLayout::default(), target: &[] }
    }
}

/// An inode whose last name is gone. Its content stays readable until it is reclaimed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the space of a removed inode comes back when it is reclaimed"]
pub struct Removed {
    /// The inode, with the name it had.
    pub node: Node,
    /// The extended attributes that it had: name and value of each.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Dfs {
    /// Finds an entry. One fetch.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`] when `directory` is none, [`Error::NameTooLong`]; or an object
    /// error.
    pub async fn lookup(&self, context: &Context, directory: &Node, name: &[u8]) -> Result<Node> {
        directory.ensure_directory()?;
        dkey(name)?;
        match self.fetch_entry(context, directory.oid(), name).await? {
            Some(record) => Ok(Node { parent: directory.oid(), name: name.to_vec(), record }),
            None => Err(Error::NotFound(shown(name))),
        }
    }

    /// Creates a file that must not exist yet (`O_CREAT` with `O_EXCL`). One conditional update.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::ReadOnly`], or as [`Dfs::lookup`].
    pub async fn create(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        ownership: Ownership,
    ) -> Result<Node> {
        self.make(context, directory, name, NewInode::of(Kind::File, ownership)).await
    }

    /// As [`Dfs::create`], with a class and a chunk size of the file's own.
    ///
    /// # Errors
    /// As [`Dfs::create`]; [`Error::Invalid`] for a chunk size that no file can have.
    pub async fn create_with(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        ownership: Ownership,
        layout: FileLayout,
    ) -> Result<Node> {
        if let Some(size) = layout.chunk_size.filter(|size| *size == 0 || *size > CHUNK_MAX) {
            return Err(Error::Invalid(format!(
                "a chunk size of {size} bytes is not between 1 and {CHUNK_MAX}"
            )));
        }
        let inode = NewInode { layout, ..NewInode::of(Kind::File, ownership) };
        self.make(context, directory, name, inode).await
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty target, [`Error::NameTooLong`] for a long one, or as [`Dfs::create`].
    pub async fn symlink(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        target: &[u8],
        ownership: Ownership,
    ) -> Result<Node> {
        if target.len() > LINK_TARGET_MAX {
            return Err(Error::NameTooLong { len: target.len(), max: LINK_TARGET_MAX });
        }
        if target.is_empty() {
            return Err(Error::NotFound(String::new()));
        }
        let ownership = Ownership { mode: 0o777, ..ownership };
        let inode = NewInode { target, ..NewInode::of(Kind::Symlink, ownership) };
        self.make(context, directory, name, inode).await
    }

    /// Creates a named pipe, a socket, or an ordinary file.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a directory or link; or as [`Dfs::create`].
    pub async fn mknod(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        kind: Kind,
        ownership: Ownership,
    ) -> Result<Node> {
        if matches!(kind, Kind::Directory | Kind::Symlink) {
            return Err(Error::Invalid("directories and links have calls of their own".into()));
        }
        self.make(context, directory, name, NewInode::of(kind, ownership)).await
    }

    /// Creates a directory: its entry, and in it the reference to its parent.
    ///
    /// # Errors
    /// As [`Dfs::create`].
    pub async fn mkdir(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        ownership: Ownership,
    ) -> Result<Node> {
        self.make(context, directory, name, NewInode::of(Kind::Directory, ownership)).await
    }

    async fn make(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        NewInode { kind, ownership, layout, target }: NewInode<'_>,
    ) -> Result<Node> {
        self.ensure_writable()?;
        directory.ensure_directory()?;
        dkey(name)?;
        let inherits = directory.record.mode & SET_GROUP_ID != 0;
        let sticky_group = if inherits && kind == Kind::Directory { SET_GROUP_ID } else { 0 };
        let now = wall_ns(context);
        let record = Record {
            kind,
            mode: (ownership.mode & 0o7777) | sticky_group,
            uid: ownership.uid,
            gid: if inherits { directory.record.gid } else { ownership.gid },
            oid: self.fresh_oid(context, kind, layout.class).await?,
            atime_ns: now,
            mtime_ns: now,
            mtime_epoch: Epoch::ZERO,
            ctime_ns: now,
            chunk_size: layout.chunk_size.unwrap_or(self.superblock().chunk_size),
            xattrs: false,
            target: target.to_vec(),
        };
        match self.add(context, directory, name, &record).await {
            // The client that made the directory may have died before all of it was there.
            Err(Error::Stale(_)) => {
                self.ensure_alive(context, directory).await?;
                self.add(context, directory, name, &record).await?;
            }
            added => added?,
        }
        Ok(Node { parent: directory.oid(), name: name.to_vec(), record })
    }

    /// Adds a new inode to a directory.
    async fn add(&self, context: &Context, directory: &Node, name: &[u8], record: &Record) -> Result<()> {
        if record.kind != Kind::Directory {
            return self.insert_entry(context, directory.oid(), name, record).await;
        }
        // First, though both could go at once: a client that sees the entry may move or remove the directory, and what
        // comes after that would undo it.
        self.link_parent(context, record.oid, directory.oid()).await?;
        let inserted = self.insert_entry(context, directory.oid(), name, record).await;
        // What is left behind otherwise is one reference.
        if matches!(inserted, Err(Error::Exists(_) | Error::Stale(_))) {
            let made = Node { parent: directory.oid(), name: name.to_vec(), record: record.clone() };
            drop(self.discard_made(context, &made).await);
        }
        inserted
    }

    /// Frees a directory that has not got its entry. It may have had it all the same, when the first answer was lost, and have
    /// been moved since: then what is in it has to stay, and one without anything is mended as if its maker had died.
    async fn discard_made(&self, context: &Context, directory: &Node) -> Result<()> {
        let (mut transaction, view) = self.begin(context);
        view.ensure_empty(context, directory).await?;
        transaction.punch(&self.object(directory.oid())?)?;
        transaction.commit(context).await?;
        Ok(())
    }

    async fn fresh_oid(&self, context: &Context, kind: Kind, class: Option<ObjectClass>) -> Result<ObjectId> {
        let (object_kind, default) = match kind {
            Kind::File => (kind::ARRAY_BYTE, self.superblock().file_class),
            _ => (kind::MULTI_HASHED, self.superblock().directory_class),
        };
        let class = class.map_or_else(|| ObjectClass::from_id(default), ObjectClass::ensure_supported);
        let class = class.map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(self.container().new_object_id(context, object_kind, Some(class)).await?)
    }

    /// Writes a directory's reference to its parent.
    pub(crate) async fn link_parent(
        &self,
        context: &Context,
        directory: ObjectId,
        parent: ObjectId,
    ) -> Result<()> {
        let bytes = parent.to_bytes();
        let writes = [AkeyWrite::single(akey(PARENT_NAME)?, &bytes)];
        self.object(directory)?.update(context, &parent_key()?, Conditions::NONE, &writes).await?;
        Ok(())
    }

    /// The directory that a directory is in; `None` for the root.
    ///
    /// # Errors
    /// [`Error::Stale`] when the directory is gone; or an object error.
    pub async fn parent_of(&self, context: &Context, directory: ObjectId) -> Result<Option<ObjectId>> {
        if directory == self.root().oid() {
            return Ok(None);
        }
        let mut bytes = [0; 16];
        let mut reads = [weir_client::AkeyRead::single(akey(PARENT_NAME)?, &mut bytes)];
        let object = self.object(directory)?;
        let found = object.fetch(context, &parent_key()?, Conditions::NONE, &mut reads).await?;
        match found.first() {
            Some(found) if found.size == 16 => Ok(Some(ObjectId::from_bytes(bytes))),
            _ => Err(Error::Stale(format!("directory {directory:?}"))),
        }
    }

    /// Removes the entry of anything but a directory. The content stays until [`Dfs::reclaim`], so that a process that
    /// has it open can go on reading.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::ReadOnly`]; or an object error.
    pub async fn unlink(&self, context: &Context, directory: &Node, name: &[u8]) -> Result<Removed> {
        self.ensure_writable()?;
        for _ in 0..RACES_MAX {
            let node = self.lookup(context, directory, name).await?;
            if node.is_directory() {
                return Err(Error::IsDirectory(shown(name)));
            }
            let xattrs = self.xattrs(context, &node).await?;
            match self.remove_entry(context, &node).await {
                Ok(()) => return Ok(Removed { node, xattrs }),
                // Replaced or removed since it was looked up: look again.
                Err(Error::Stale(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Stale(shown(name)))
    }

    /// Removes an empty directory.
    ///
    /// That it is empty is read by the transaction that removes it: an entry that another client adds is seen, or finds no
    /// directory to be in.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`], [`Error::ReadOnly`]; or an object error.
    pub async fn rmdir(&self, context: &Context, directory: &Node, name: &[u8]) -> Result<Removed> {
        self.ensure_writable()?;
        let mut tries = Tries::new(context);
        loop {
            match self.try_rmdir(context, directory, name).await {
                Ok(removed) => return Ok(removed),
                Err(error) => tries.again(context, error).await?,
            }
        }
    }

    async fn try_rmdir(&self, context: &Context, directory: &Node, name: &[u8]) -> Result<Removed> {
        let (mut transaction, view) = self.begin(context);
        let node = view.lookup(context, directory, name).await?;
        node.ensure_directory()?;
        view.ensure_empty(context, &node).await?;
        let xattrs = view.xattrs(context, &node).await?;
        transaction.punch(&self.object(node.oid())?)?;
        self.remove_within(&mut transaction, &node)?;
        transaction.commit(context).await?;
        Ok(Removed { node, xattrs })
    }

    /// Checks that a directory wasn't removed.
    pub(crate) async fn ensure_alive(&self, context: &Context, directory: &Node) -> Result<()> {
        match self.parent_of(context, directory.oid()).await {
            Err(Error::Stale(_)) => {}
            known => return known.map(|_| ()),
        }
        let mut tries = Tries::new(context);
        loop {
            match self.try_link(context, directory).await {
                Ok(()) => return Ok(()),
                Err(error) => tries.again(context, error).await?,
            }
        }
    }

    /// Writes a directory's reference to its parent, which is missing when its creator died too early. It is written
    /// only if the directory has its entry: both go together.
    async fn try_link(&self, context: &Context, directory: &Node) -> Result<()> {
        let (mut transaction, view) = self.begin(context);
        match view.refetch(context, directory).await {
            Err(Error::Stale(_)) => return Err(Error::NotFound(directory.shown())),
            known => known?,
        };
        self.link_parent_within(&mut transaction, directory.oid(), directory.parent)?;
        transaction.commit(context).await?;
        Ok(())
    }

    /// Frees what a removed inode held.
    ///
    /// # Errors
    /// An object error; then the space comes back only with the container.
    pub async fn reclaim(&self, context: &Context, removed: &Removed) -> Result<()> {
        let record = &removed.node.record;
        match record.kind {
            Kind::File => self.file(&removed.node)?.discard(context).await,
            Kind::Directory => Ok(self.object(record.oid)?.punch(context).await?),
            Kind::Symlink | Kind::Fifo | Kind::Socket => Ok(()),
        }
    }
}

/// How often a removal looks again when another client changes the entry at the same time.
const RACES_MAX: usize = 16;

/// The dkey of a directory's reference to its parent; no entry can have this name.
pub(crate) fn parent_key() -> Result<Key> {
    akey(PARENT_NAME)
}

/// Runs two futures of different types side by side.
pub(crate) async fn side_by_side<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (None, None);
    let one: core::pin::Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(async { first = Some(a.await) });
    let two: core::pin::Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(async { second = Some(b.await) });
    join_all([one, two]).await;
    match (first, second) {
        (Some(first), Some(second)) => (first, second),
        _ => unreachable!("join_all returns when both have finished"),
    }
}
