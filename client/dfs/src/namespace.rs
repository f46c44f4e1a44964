//! Looking up, creating and removing entries.

use weir_client::{Conditions, Context, Epoch, ObjectClass, kind};
use weir_proto::{Der, Key, ObjectId};
use weir_runtime::join_all;

use crate::directory::PARENT_NAME;
use crate::entry::{Node, akey};
use crate::mount::{CHUNK_MAX, Dfs, wall_ns};
use crate::name::{LINK_TARGET_MAX, dkey, shown};
use crate::record::{Kind, Names, Record};
use crate::transaction::Tries;
use crate::xattr_move::MovedXattrs;
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
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// What it is.
    pub kind: Kind,
    /// Mode and owner.
    pub ownership: Ownership,
    /// How a file is stored.
    pub layout: FileLayout,
    /// Target of a symbolic link, or number of a device (4 bytes, little endian).
    pub target: &'a [u8],
    /// The object that it will be, by [`Dfs::new_inode_id`]; `None` for a new one. Who makes an inode again, not knowing whether it was
    /// made, tells by it.
    pub oid: Option<ObjectId>,
}

impl NewInode<'_> {
    /// An inode of a kind.
    #[must_use]
    pub fn of(kind: Kind, ownership: Ownership) -> Self {
        Self { kind, ownership, layout: FileLayout::default(), target: &[], oid: None }
    }
}

/// An inode that has lost a name. When that was the last one, its content stays readable until it is reclaimed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the space of a removed inode comes back when it is reclaimed"]
pub struct Removed {
    /// The inode, with the name it had.
    pub node: Node,
    /// The extended attributes that it had, if it has no name any more: name and value of each.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Names that it has left.
    pub links: u32,
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
        let ownership = Ownership { mode: 0o777, ..ownership };
        let inode = NewInode { target, ..NewInode::of(Kind::Symlink, ownership) };
        self.make(context, directory, name, inode).await
    }

    /// Creates a named pipe, a socket, or an ordinary file.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a directory, link or device; or as [`Dfs::create`].
    pub async fn mknod(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        kind: Kind,
        ownership: Ownership,
    ) -> Result<Node> {
        if matches!(kind, Kind::Directory | Kind::Symlink) || kind.is_device() {
            return Err(Error::Invalid("directories, links and devices have calls of their own".into()));
        }
        self.make(context, directory, name, NewInode::of(kind, ownership)).await
    }

    /// Creates a block or character device with a number ([`Record::device`]). Who may is for the caller to know.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no device; or as [`Dfs::create`].
    pub async fn make_device(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        (kind, number): (Kind, u32),
        ownership: Ownership,
    ) -> Result<Node> {
        if !kind.is_device() {
            return Err(Error::Invalid("only devices have numbers".into()));
        }
        let target = &number.to_le_bytes();
        self.make(context, directory, name, NewInode { target, ..NewInode::of(kind, ownership) }).await
    }

    /// Creates a directory: its entry, and in it the reference to its parent, in one transaction.
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

    /// Makes an inode of any kind under a name that must not exist yet.
    ///
    /// # Errors
    /// As the calls for one kind.
    pub async fn make(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        NewInode { kind, ownership, layout, target, oid }: NewInode<'_>,
    ) -> Result<Node> {
        self.ensure_writable()?;
        directory.ensure_directory()?;
        dkey(name)?;
        if kind == Kind::Symlink && target.len() > LINK_TARGET_MAX {
            return Err(Error::NameTooLong { len: target.len(), max: LINK_TARGET_MAX });
        }
        if kind == Kind::Symlink && target.is_empty() {
            return Err(Error::NotFound(String::new()));
        }
        let oid = match oid {
            Some(oid) => oid,
            None => self.fresh_oid(context, kind, layout.class).await?,
        };
        let inherits = directory.record.mode & SET_GROUP_ID != 0;
        let sticky_group = if inherits && kind == Kind::Directory { SET_GROUP_ID } else { 0 };
        let now = wall_ns(context);
        let record = Record {
            kind,
            mode: (ownership.mode & 0o7777) | sticky_group,
            uid: ownership.uid,
            gid: if inherits { directory.record.gid } else { ownership.gid },
            oid,
            atime_ns: now,
            mtime_ns: now,
            mtime_epoch: Epoch::ZERO,
            ctime_ns: now,
            chunk_size: layout.chunk_size.unwrap_or(self.superblock().chunk_size),
            xattrs: false,
            target: target.to_vec(),
            names: Names::One,
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
        let made = Node { parent: directory.oid(), name: name.to_vec(), record: record.clone() };
        let mut tries = Tries::new(context);
        loop {
            match self.try_add_directory(context, &made).await {
                Ok(()) => return Ok(()),
                Err(error) => tries.again(context, error).await?,
            }
        }
    }

    async fn try_add_directory(&self, context: &Context, made: &Node) -> Result<()> {
        let (mut transaction, _) = self.begin(context);
        self.link_parent_within(&mut transaction, made.oid(), made.parent)?;
        self.insert_within(&mut transaction, made, &MovedXattrs::default())?;
        match transaction.commit(context).await {
            Ok(_) => Ok(()),
            Err(error) if error.is(Der::NONEXIST) => {
                Err(Error::Stale(format!("directory {:?}", made.parent)))
            }
            Err(error) if error.is(Der::EXIST) => Err(Error::Exists(made.shown())),
            Err(error) => Err(error.into()),
        }
    }

    /// An object that no inode has had, for one of that kind in the file system's class.
    ///
    /// # Errors
    /// An object error.
    pub async fn new_inode_id(&self, context: &Context, kind: Kind) -> Result<ObjectId> {
        self.fresh_oid(context, kind, None).await
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

    /// Removes the entry of anything but a directory. With the last name the content stays until [`Dfs::reclaim`], so that a
    /// process that has it open can go on reading.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::ReadOnly`]; or an object error.
    pub async fn unlink(&self, context: &Context, directory: &Node, name: &[u8]) -> Result<Removed> {
        self.unlink_noting(context, directory, name, |_| {}).await
    }

    /// As [`Dfs::unlink`]. `foretell` is told which inode is about to lose the name; that may come again, with another one.
    ///
    /// # Errors
    /// As [`Dfs::unlink`].
    pub async fn unlink_noting(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        foretell: impl Fn(&Node),
    ) -> Result<Removed> {
        self.ensure_writable()?;
        for _ in 0..RACES_MAX {
            let node = self.lookup(context, directory, name).await?;
            if node.is_directory() {
                return Err(Error::IsDirectory(shown(name)));
            }
            if node.record.is_linked() {
                return self.unlink_linked(context, directory, name, foretell).await;
            }
            foretell(&node);
            let xattrs = self.xattrs(context, &node).await?;
            match self.remove_entry(context, &node).await {
                Ok(()) => return Ok(Removed { node, xattrs, links: 0 }),
                // Replaced or removed since it was looked up, or linked: look again.
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
        self.rmdir_noting(context, directory, name, |_| {}).await
    }

    /// As [`Dfs::rmdir`]. `foretell` is told which directory is about to lose the name; that may come again, with another one.
    ///
    /// # Errors
    /// As [`Dfs::rmdir`].
    pub async fn rmdir_noting(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        foretell: impl Fn(&Node),
    ) -> Result<Removed> {
        self.ensure_writable()?;
        let mut tries = Tries::new(context);
        loop {
            match self.try_rmdir(context, directory, name, &foretell).await {
                Ok(removed) => return Ok(removed),
                Err(error) => tries.again(context, error).await?,
            }
        }
    }

    async fn try_rmdir(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        foretell: &impl Fn(&Node),
    ) -> Result<Removed> {
        let (mut transaction, view) = self.begin(context);
        let node = view.lookup(context, directory, name).await?;
        node.ensure_directory()?;
        view.ensure_empty(context, &node).await?;
        foretell(&node);
        let xattrs = view.xattrs(context, &node).await?;
        transaction.punch(&self.object(node.oid())?)?;
        self.remove_within(&mut transaction, &node)?;
        transaction.commit(context).await?;
        Ok(Removed { node, xattrs, links: 0 })
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

    /// Frees what a removed inode held, unless it has other names.
    ///
    /// # Errors
    /// An object error; then the space comes back only with the container.
    pub async fn reclaim(&self, context: &Context, removed: &Removed) -> Result<()> {
        let record = &removed.node.record;
        if removed.links > 0 {
            return Ok(());
        }
        match record.kind {
            Kind::File => self.file(&removed.node)?.discard(context).await,
            Kind::Directory => Ok(self.object(record.oid)?.punch(context).await?),
            _ => Ok(()),
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
