//! Hard links.

use weir_client::{AkeyWrite, Conditions, Context, Transaction};
use weir_proto::Key;

use crate::entry::{Insertion, Node, entry_guard, entry_key};
use crate::mount::{Dfs, wall_ns};
use crate::name::{dkey, shown};
use crate::namespace::{Removed, side_by_side};
use crate::record::Names;
use crate::transaction::Tries;
use crate::xattr_move::{MovedXattrs, TransactionBudget};
use crate::{Error, Result};

impl Dfs {
    /// Gives an inode another name (`link`). Returns it under that name.
    ///
    /// All of it happens at once, or nothing, whatever other clients do meanwhile and whichever of them crash.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory; [`Error::Exists`]; [`Error::Stale`] when the inode has no name any more;
    /// [`Error::TooManyNames`]; [`Error::ReadOnly`]; or as [`Dfs::lookup`].
    pub async fn link(&self, context: &Context, node: &Node, directory: &Node, name: &[u8]) -> Result<Node> {
        self.ensure_writable()?;
        directory.ensure_directory()?;
        dkey(name)?;
        if node.is_directory() {
            return Err(Error::NotPermitted(format!("\"{}\" is a directory: it has one name", node.shown())));
        }
        let mut tries = Tries::new(context);
        loop {
            match self.try_link_inode(context, node, directory, name).await {
                Ok(Some(linked)) => return Ok(linked),
                Ok(None) => tries.go_on(context, "link", shown(name))?,
                Err(error) => tries.again(context, error).await?,
            }
        }
    }

    /// One try; `None` when something had to be done first.
    async fn try_link_inode(
        &self,
        context: &Context,
        node: &Node,
        directory: &Node,
        name: &[u8],
    ) -> Result<Option<Node>> {
        let (mut transaction, view) = self.begin(context);
        let (record, there) =
            side_by_side(view.refetch(context, node), view.fetch_entry(context, directory.oid(), name)).await;
        let source = Node { record: record?, ..node.clone() };
        if there?.is_some() {
            return Err(Error::Exists(shown(name)));
        }
        let links = source.record.links().checked_add(1).ok_or(Error::TooManyNames)?;
        let mut linked = Node { parent: directory.oid(), name: name.to_vec(), record: source.record.clone() };
        (linked.record.names, linked.record.ctime_ns) = (Names::Counted(links), wall_ns(context));
        let mut is_clean = true;
        if source.record.is_linked() {
            self.note_linked_within(&mut transaction, &linked)?;
        } else {
            let mut room = TransactionBudget::beside(&[&linked]);
            let inodes = (&source, &linked, None);
            let Some(carried) = self.move_xattrs(context, &view, inodes, &mut room).await? else {
                return Ok(None);
            };
            let removed = view.removable_xattrs(context, &source, &mut room).await?;
            is_clean = removed.is_some();
            self.make_home_within(&mut transaction, &linked, &carried)?;
            self.refer_within(&mut transaction, (&source, &removed.unwrap_or_default()), &linked)?;
        }
        self.insert_within(&mut transaction, &linked, &MovedXattrs::default())?;
        self.commit_into(context, transaction, directory).await?;
        if !is_clean {
            // They are invisible, and take space until the entry is removed.
            drop(self.leave_xattrs(context, &source).await);
        }
        Ok(Some(linked))
    }

    /// Has an entry refer to its inode's record instead of holding it, and removes some of the attributes that stood there.
    fn refer_within(
        &self,
        transaction: &mut Transaction,
        (source, removed): (&Node, &[Key]),
        linked: &Node,
    ) -> Result<()> {
        let insertion = Insertion::of(&linked.record)?;
        let mut writes: Vec<AkeyWrite<'_>> = insertion.writes();
        writes[0].conditions = Conditions::AKEY_UPDATE;
        writes[1].conditions = Conditions::AKEY_INSERT;
        let (object, key) = (self.object(source.parent)?, entry_key(source.parent, &source.name)?);
        transaction.update(&object, &key, Conditions::PER_AKEY, &writes)?;
        let goes = [&[entry_guard(&source.record)?], removed].concat();
        Ok(transaction.punch_akeys(&object, Conditions::PUNCH, &key, &goes)?)
    }

    /// Removes a name of an inode with hard links.
    pub(crate) async fn unlink_linked(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        foretell: impl Fn(&Node),
    ) -> Result<Removed> {
        let mut tries = Tries::new(context);
        loop {
            match self.try_unlink(context, directory, name, &foretell).await {
                Ok(removed) => return Ok(removed),
                Err(error) => tries.again(context, error).await?,
            }
        }
    }

    async fn try_unlink(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        foretell: &impl Fn(&Node),
    ) -> Result<Removed> {
        let (mut transaction, view) = self.begin(context);
        let node = view.lookup(context, directory, name).await?;
        if node.is_directory() {
            return Err(Error::IsDirectory(shown(name)));
        }
        foretell(&node);
        let xattrs = if node.record.links() > 1 { Vec::new() } else { view.xattrs(context, &node).await? };
        self.remove_within(&mut transaction, &node)?;
        let now = wall_ns(context);
        let links = self.count_down_within(&mut transaction, &node, now)?;
        transaction.commit(context).await?;
        Ok(Removed { node: node.with_links(links, now), xattrs, links })
    }
}
