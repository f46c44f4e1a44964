//! Paths.

use weir_client::Context;

use crate::entry::Node;
use crate::mount::Dfs;
use crate::name::shown;
use crate::record::Kind;
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
        let mut walked = vec![self.root().clone()];
        let mut ahead: Vec<Vec<u8>> = components(path);
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            let here = walked.last().unwrap_or(self.root());
            here.ensure_directory()?;
            if name == b".." {
                if walked.len() > 1 {
                    walked.pop();
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
                    walked.truncate(1);
                }
                ahead.extend(components(&node.record.target));
                continue;
            }
            walked.push(node);
        }
        Ok(walked.pop().unwrap_or_else(|| self.root().clone()))
    }
}

/// The components of a path, last one first; empty ones and `.` are left out.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let mut parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    parts.reverse();
    parts
}
