//! Renaming.

use weir_client::Context;
use weir_proto::ObjectId;

use crate::entry::Node;
use crate::mount::{Dfs, wall_ns};
use crate::name::{dkey, shown};
use crate::namespace::{RACES_MAX, Removed};
use crate::record::{Kind, Record};
use crate::{Error, Result};

/// What a rename does with an entry that has the new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replace {
    /// Puts the renamed inode in its place.
    Allow,
    /// Fails (`RENAME_NOREPLACE`).
    Refuse,
}

impl Dfs {
    /// Renames an entry, within a directory or to another one. Returns the inode under its new name, and the one
    /// that was replaced.
    ///
    /// The new entry appears before the old one goes: who looks between the two, or a client that dies there, leaves
    /// the inode with two names. Nothing is ever without a name.
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
    ) -> Result<(Node, Option<Removed>)> {
        self.ensure_writable()?;
        to.ensure_directory()?;
        dkey(new_name)?;
        let moves = from.oid() != to.oid();
        for _ in 0..RACES_MAX {
            let source = self.lookup(context, from, name).await?;
            if moves && source.is_directory() {
                self.ensure_outside(context, source.oid(), to.oid()).await?;
            }
            let target = self.fetch_entry(context, to.oid(), new_name).await?;
            let target = target.map(|record| Node { parent: to.oid(), name: new_name.to_vec(), record });
            if let Some(target) = &target {
                if target.oid() == source.oid() && !moves && name == new_name {
                    return Ok((source, None));
                }
                if replace == Replace::Refuse {
                    return Err(Error::Exists(shown(new_name)));
                }
                if target.oid() == source.oid() {
                    // An earlier rename of this kind was cut short: finish it.
                    self.remove_entry(context, &source).await?;
                    return Ok((target.clone(), None));
                }
                self.ensure_replaceable(context, &source, target).await?;
            }
            match self.move_entry(context, &source, to.oid(), new_name, target.as_ref()).await {
                Ok(node) => return Ok((node, target.map(|node| Removed { node }))),
                // The target appeared, went or changed since it was looked at: look again.
                Err(Error::Stale(_) | Error::Exists(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Stale(shown(name)))
    }

    async fn move_entry(
        &self,
        context: &Context,
        source: &Node,
        to: ObjectId,
        new_name: &[u8],
        target: Option<&Node>,
    ) -> Result<Node> {
        let record = Record { ctime_ns: wall_ns(context), ..source.record.clone() };
        let moved = Node { parent: to, name: new_name.to_vec(), record };
        match target {
            Some(target) => self.replace_entry(context, target, &moved.record).await?,
            None => self.insert_entry(context, to, new_name, &moved.record).await?,
        }
        if source.record.xattrs {
            self.copy_xattrs(context, source, &moved).await?;
        }
        if source.is_directory() && source.parent != to {
            self.link_parent(context, source.oid(), to).await?;
        }
        match self.remove_entry(context, source).await {
            // Somebody else moved or removed the old name meanwhile: the new one stands.
            Ok(()) | Err(Error::Stale(_)) => Ok(moved),
            Err(error) => Err(error),
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

/// Deepest nesting that is followed upwards: as deep as a path of `PATH_MAX` bytes can name.
const DEPTH_MAX: usize = 2048;

impl Kind {
    /// Whether the content of this kind stands in objects of its own that are to be reclaimed.
    #[must_use]
    pub const fn has_content(self) -> bool {
        matches!(self, Self::File | Self::Directory)
    }
}
