//! Extended attributes.

use weir_client::Context;
use weir_dfs::XattrMode;

use super::worker::{Fault, Served, Shared};

/// Attributes that would promise what is not kept: access control lists are not enforced.
const REFUSED_PREFIX: &[u8] = b"system.";

impl Shared {
    /// Sets an extended attribute.
    pub(crate) fn setxattr(
        &self,
        context: &Context,
        number: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Served<()> {
        if name.starts_with(REFUSED_PREFIX) {
            return Err(Fault::Errno(libc::EOPNOTSUPP));
        }
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Fault::Errno(libc::EINVAL)),
        };
        let inode = self.inode(number)?;
        self.settle(context, &inode);
        let node = inode.node();
        let node = context.block_on(self.dfs.set_xattr(context, &node, name, value, mode))?;
        self.inodes.note_record(&mut inode.lock(), &node);
        Ok(())
    }

    /// Reads an extended attribute. An inode that has none, as most, costs no request while its record is fresh; the
    /// kernel looks names up at least once a second.
    pub(crate) fn getxattr(&self, context: &Context, number: u64, name: &[u8]) -> Served<Vec<u8>> {
        if name.starts_with(REFUSED_PREFIX) {
            return Err(Fault::Errno(libc::EOPNOTSUPP));
        }
        let node = self.inode(number)?.node();
        if !node.record.xattrs {
            return Err(Fault::Errno(libc::ENODATA));
        }
        Ok(context.block_on(self.dfs.get_xattr(context, &node, name))?)
    }

    /// Names of extended attributes, each ended by a NUL.
    pub(crate) fn listxattr(&self, context: &Context, number: u64) -> Served<Vec<u8>> {
        let node = self.inode(number)?.node();
        let mut list = Vec::new();
        for name in context.block_on(self.dfs.list_xattrs(context, &node))? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    /// Removes an extended attribute.
    pub(crate) fn removexattr(&self, context: &Context, number: u64, name: &[u8]) -> Served<()> {
        let inode = self.inode(number)?;
        self.settle(context, &inode);
        let node = inode.node();
        let node = context.block_on(self.dfs.remove_xattr(context, &node, name))?;
        self.inodes.note_record(&mut inode.lock(), &node);
        Ok(())
    }
}
