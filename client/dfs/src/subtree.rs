//! Removing a directory with all that is in it.

use weir_client::{Anchor, Context};
use weir_proto::limits::LIST_KEYS_MAX;
use weir_runtime::join_all;

use crate::entry::Node;
use crate::lease::ClientId;
use crate::mount::Dfs;
use crate::namespace::Removed;
use crate::{Error, Result};

/// Entries of one directory that are removed at a time.
const TOGETHER: usize = 16;

/// A directory that is being emptied, and directories in it that have to go before.
struct Level {
    directory: Node,
    inside: Vec<Node>,
}

impl Dfs {
    /// Removes an entry of any kind, a directory with all that is in it, and frees what they held ([`Dfs::release`], with this
    /// client's lease). Returns the inode that had the name. What others add meanwhile is removed, too, or keeps its directory.
    ///
    /// After an error a part is removed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotEmpty`] for a directory to which others keep adding, [`Error::ReadOnly`]; or an object
    /// error.
    pub async fn remove_tree(
        &self,
        context: &Context,
        directory: &Node,
        name: &[u8],
        own: Option<ClientId>,
    ) -> Result<Node> {
        self.ensure_writable()?;
        let top = self.lookup(context, directory, name).await?;
        if !top.is_directory() {
            let removed = self.unlink(context, directory, name).await?;
            self.release(context, core::slice::from_ref(&removed), own).await?;
            return Ok(removed.node);
        }
        let mut levels = vec![Level { directory: top.clone(), inside: Vec::new() }];
        self.empty(context, &mut levels, own).await?;
        while let Some(level) = levels.last_mut() {
            if let Some(next) = level.inside.pop() {
                levels.push(Level { directory: next, inside: Vec::new() });
                self.empty(context, &mut levels, own).await?;
                continue;
            }
            let Some(done) = levels.pop() else { break };
            let above = levels.last().map_or(directory, |level| &level.directory);
            match self.rmdir(context, above, &done.directory.name).await {
                Ok(removed) => self.release(context, &[removed], own).await?,
                Err(Error::NotFound(_) | Error::NotDirectory(_)) if !levels.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(top)
    }

    /// Removes all but directories of the last level, and notes those.
    async fn empty(&self, context: &Context, levels: &mut [Level], own: Option<ClientId>) -> Result<()> {
        let Some(level) = levels.last_mut() else { return Ok(()) };
        let mut anchor = Anchor::START;
        while !anchor.is_end() {
            let (nodes, next) = self.list(context, &level.directory, &anchor, LIST_KEYS_MAX).await?;
            anchor = next;
            let (inside, others): (Vec<Node>, Vec<Node>) = nodes.into_iter().partition(Node::is_directory);
            level.inside.extend(inside);
            let at = &level.directory;
            let mut removed: Vec<Removed> = Vec::new();
            for batch in others.chunks(TOGETHER) {
                let removals = batch.iter().map(|node| async move {
                    match self.unlink(context, at, &node.name).await {
                        Ok(removed) => Ok(Some(removed)),
                        Err(Error::NotFound(_) | Error::Stale(_)) => Ok(None),
                        Err(error) => Err(error),
                    }
                });
                let done = join_all(removals).await.into_iter().collect::<Result<Vec<_>>>()?;
                removed.extend(done.into_iter().flatten());
            }
            self.release(context, &removed, own).await?;
        }
        Ok(())
    }
}
