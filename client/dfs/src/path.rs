//! Paths.

use weir_client::{Anchor, Context};
use weir_proto::limits::LIST_KEYS_MAX;

use crate::entry::Node;
use crate::mount::Dfs;
use crate::name::shown;
use crate::record::{EntryValue, Kind};
use crate::{Error, Result};

/// Symbolic links that are followed on one way (daos-api §1.4).
pub(crate) const LINKS_MAX: usize = 40;

impl Dfs {
    /// Walks a path from the root, one fetch a component. Symbolic links on the way are followed, and the last
    /// component's too when `follow` says so. `..` is followed on the path walked, not by name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::TooManyLinks`], [`Error::NameTooLong`]; or an object
    /// error.
    pub async fn resolve(&self, context: &Context, path: &[u8], follow: bool) -> Result<Node> {
        self.resolve_from(context, self.root(), path, follow).await
    }

    /// As [`Dfs::resolve`], from a directory; an absolute path leads from the root all the same.
    ///
    /// # Errors
    /// As [`Dfs::resolve`]; [`Error::Stale`] when `..` leads from a directory that is gone.
    pub async fn resolve_from(
        &self,
        context: &Context,
        directory: &Node,
        path: &[u8],
        follow: bool,
    ) -> Result<Node> {
        let start = if path.first() == Some(&b'/') { self.root() } else { directory };
        let mut walked = vec![start.clone()];
        let mut ahead: Vec<Vec<u8>> = components(path);
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            let here = walked.last().unwrap_or(self.root());
            here.ensure_directory()?;
            if name == b".." {
                if walked.len() > 1 {
                    walked.pop();
                } else {
                    walked = vec![self.node_above(context, here).await?];
                }
                continue;
            }
            let node = self.lookup(context, here, &name).await?;
            if node.record.kind == Kind::Symlink && (follow || !ahead.is_empty()) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Error::TooManyLinks(shown(path)));
                }
                if node.record.target.first() == Some(&b'/') {
                    walked = vec![self.root().clone()];
                }
                ahead.extend(components(&node.record.target));
                continue;
            }
            walked.push(node);
        }
        Ok(walked.pop().unwrap_or_else(|| self.root().clone()))
    }

    /// The directory that a directory is in; of the root, the root. Its entry is looked for in the directory above.
    async fn node_above(&self, context: &Context, directory: &Node) -> Result<Node> {
        let Some(parent) = self.parent_of(context, directory.oid()).await? else {
            return Ok(self.root().clone());
        };
        let Some(above) = self.parent_of(context, parent).await? else { return Ok(self.root().clone()) };
        let mut anchor = Anchor::START;
        while !anchor.is_end() {
            let (entries, next) = self.list_entries(context, above, &anchor, LIST_KEYS_MAX).await?;
            for (name, value) in entries {
                // No directory has hard links.
                if let EntryValue::Record(record) = value
                    && record.oid == parent
                {
                    return Ok(Node { parent: above, name, record });
                }
            }
            anchor = next;
        }
        Err(Error::Stale(directory.shown()))
    }
}

/// The components of a path, last one first; empty ones and `.` are left out.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let mut parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    parts.reverse();
    parts
}
