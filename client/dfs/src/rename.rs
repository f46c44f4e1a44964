//! Renaming.

use weir_client::{Context, Transaction};
use weir_proto::{Der, ObjectId};

use crate::entry::Node;
use crate::mount::{Dfs, wall_ns};
use crate::name::{dkey, shown};
use crate::namespace::{Removed, side_by_side};
use crate::record::Kind;
use crate::transaction::Tries;
use crate::xattr_move::TransactionBudget;
use crate::{Error, Result};

/// What a rename does with an entry that has the new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replace {
    /// Puts the renamed inode in its place.
    Allow,
    /// Fails (`RENAME_NOREPLACE`).
    Refuse,
}

/// Where an inode goes.
#[derive(Clone, Copy)]
struct Destination<'a> {
    directory: &'a Node,
    name: &'a [u8],
    replace: Replace,
}

/// An inode under its new name, and the one that was replaced.
type Renamed = (Node, Option<Removed>);

impl Dfs {
    /// Renames an entry, within a directory or to another one. Returns the inode under its new name, and the one
    /// that was replaced.
    ///
    /// All of it happens at once, or nothing, whatever other clients do meanwhile and whichever of them crash.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Exists`] under [`Replace::Refuse`]; [`Error::IsDirectory`],
    /// [`Error::NotDirectory`] and [`Error::NotEmpty`] for what may not replace what; [`Error::Invalid`] for a
    /// directory into its own subtree; [`Error::ReadOnly`]; or an object error.
    pub async fn rename(
        &self,
        context: &Context,
        from: &Node,
        name: &[u8],
        to: &Node,
        new_name: &[u8],
        replace: Replace,
    ) -> Result<Renamed> {
        self.rename_noting(context, (from, name), (to, new_name), replace, |_, _| {}).await
    }

    /// As [`Dfs::rename`], from an entry to another one. `foretell` is told which inode is about to be renamed, and which one it replaces;
    /// that may come again, with others.
    ///
    /// # Errors
    /// As [`Dfs::rename`].
    pub async fn rename_noting(
        &self,
        context: &Context,
        (from, name): (&Node, &[u8]),
        (to, new_name): (&Node, &[u8]),
        replace: Replace,
        foretell: impl Fn(&Node, Option<&Node>),
    ) -> Result<Renamed> {
        self.ensure_writable()?;
        to.ensure_directory()?;
        dkey(new_name)?;
        let to = Destination { directory: to, name: new_name, replace };
        let mut tries = Tries::new(context);
        loop {
            match self.try_rename(context, (from, name), to, &foretell).await {
                Ok(Some(renamed)) => return Ok(renamed),
                Ok(None) => tries.go_on(context, "rename", shown(name))?,
                Err(error) => tries.again(context, error).await?,
            }
        }
    }

    /// One try; `None` when something had to be done first.
    async fn try_rename(
        &self,
        context: &Context,
        (from, name): (&Node, &[u8]),
        to: Destination<'_>,
        foretell: &impl Fn(&Node, Option<&Node>),
    ) -> Result<Option<Renamed>> {
        let (mut transaction, view) = self.begin(context);
        let (source, target) = side_by_side(
            view.lookup(context, from, name),
            view.fetch_entry(context, to.directory.oid(), to.name),
        )
        .await;
        let source = source?;
        let moves = from.oid() != to.directory.oid();
        if moves && source.is_directory() {
            self.ensure_may_enter(context, &view, source.oid(), to.directory).await?;
        }
        let target = target?.map(|record| Node { record, ..to.node(&source) });
        if let Some(target) = &target {
            if !moves && name == to.name {
                return Ok(Some((source, None)));
            }
            if to.replace == Replace::Refuse {
                return Err(Error::Exists(shown(to.name)));
            }
            if target.oid() == source.oid() {
                foretell(&source, None);
                return Ok(Some((self.rename_to_itself(context, transaction, source, target).await?, None)));
            }
            view.ensure_replaceable(context, &source, target).await?;
        }
        foretell(&source, target.as_ref());
        let mut renamed = to.node(&source);
        let now = wall_ns(context);
        renamed.record.ctime_ns = now;
        self.note_linked_within(&mut transaction, &renamed)?;
        let (mut room, inodes) =
            (TransactionBudget::beside(&[&renamed]), (&source, &renamed, target.as_ref()));
        let carried = match self.move_xattrs(context, &view, inodes, &mut room).await {
            Ok(Some(carried)) => carried,
            Ok(None) => return Ok(None),
            Err(Error::Stale(gone)) => {
                self.ensure_alive(context, to.directory).await?;
                return Err(Error::Stale(gone));
            }
            Err(error) => return Err(error),
        };
        let (mut is_clean, mut xattrs, mut links) = (true, Vec::new(), 0);
        if let Some(target) = &target {
            links = self.count_down_within(&mut transaction, target, now)?;
            if links == 0 {
                xattrs = view.xattrs(context, target).await?;
            }
            let removed = view.removable_xattrs(context, target, &mut room).await?;
            is_clean = removed.is_some();
            let old = (target, &removed.unwrap_or_default()[..]);
            self.replace_within(&mut transaction, old, &renamed.record, &carried)?;
        } else {
            self.insert_within(&mut transaction, &renamed, &carried)?;
        }
        if source.is_directory() && moves {
            self.link_parent_within(&mut transaction, source.oid(), to.directory.oid())?;
        }
        if let Some(target) = target.as_ref().filter(|target| target.is_directory()) {
            // A client that adds an entry to it meets this.
            transaction.punch(&self.object(target.oid())?)?;
        }
        self.remove_within(&mut transaction, &source)?;
        self.commit_into(context, transaction, to.directory).await?;
        if let Some(target) = target.as_ref().filter(|_| !is_clean) {
            drop(self.leave_xattrs(context, target).await);
        }
        Ok(Some((renamed, target.map(|node| Removed { node: node.with_links(links, now), xattrs, links }))))
    }

    /// Ends the renaming of an inode to a name that it has already.
    async fn rename_to_itself(
        &self,
        context: &Context,
        mut transaction: Transaction,
        source: Node,
        target: &Node,
    ) -> Result<Node> {
        if source.record.is_linked() {
            // Two names of one file: nothing happens (rename(2)).
            return Ok(source);
        }
        // Left by a client that died between the two steps that a rename may have had.
        if source.parent != target.parent && source.is_directory() {
            self.link_parent_within(&mut transaction, source.oid(), target.parent)?;
        }
        self.remove_within(&mut transaction, &source)?;
        transaction.commit(context).await?;
        Ok(target.clone())
    }

    /// Commits what adds an entry to a directory.
    pub(crate) async fn commit_into(
        &self,
        context: &Context,
        transaction: Transaction,
        directory: &Node,
    ) -> Result<()> {
        match transaction.commit(context).await {
            Ok(_) => Ok(()),
            // It has read all other conditions: the directory is gone, or not whole.
            Err(error) if error.is(Der::NONEXIST) => {
                self.ensure_alive(context, directory).await?;
                Err(Error::Stale(directory.shown()))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn ensure_replaceable(&self, context: &Context, source: &Node, target: &Node) -> Result<()> {
        match (source.is_directory(), target.is_directory()) {
            (false, true) => Err(Error::IsDirectory(target.shown())),
            (true, false) => Err(Error::NotDirectory(target.shown())),
            (true, true) => self.ensure_empty(context, target).await,
            (false, false) => Ok(()),
        }
    }

    /// Checks for a transaction, of which `view` is the view, that a directory may be moved into another one.
    pub(crate) async fn ensure_may_enter(
        &self,
        context: &Context,
        view: &Self,
        moved: ObjectId,
        directory: &Node,
    ) -> Result<()> {
        match view.ensure_outside(context, moved, directory.oid()).await {
            // The client that made the directory may have died before all of it was there.
            Err(Error::Stale(gone)) => {
                self.ensure_alive(context, directory).await?;
                Err(Error::Stale(gone))
            }
            outside => outside,
        }
    }

    /// Checks that `directory` is not `ancestor` and not below it.
    async fn ensure_outside(&self, context: &Context, ancestor: ObjectId, directory: ObjectId) -> Result<()> {
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == ancestor {
                return Err(Error::Invalid(
                    "a directory can't be moved into itself or its own subtree".into(),
                ));
            }
            match self.parent_of(context, at).await? {
                Some(parent) => at = parent,
                None => return Ok(()),
            }
        }
        Err(Error::Invalid(format!("directories nest deeper than {DEPTH_MAX}")))
    }
}

impl Destination<'_> {
    /// An inode at the new name.
    fn node(self, inode: &Node) -> Node {
        Node { parent: self.directory.oid(), name: self.name.to_vec(), record: inode.record.clone() }
    }
}

/// Deepest nesting that is followed upwards: as deep as a path of `PATH_MAX` bytes can name.
const DEPTH_MAX: usize = 2048;

impl Kind {
    /// Whether the content of this kind stands in objects of its own that are to be reclaimed.
    #[must_use]
    pub const fn has_content(self) -> bool {
        matches!(self, Self::File | Self::Directory)
    }
}
