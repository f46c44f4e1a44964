//! Extended attributes.

use std::collections::BTreeMap;

use weir_client::Context;
use weir_dfs::{Error, XATTR_NAME_MAX, XATTR_VALUE_MAX, XattrMode};

use super::repeats::Turn;
use super::worker::{Fault, Served, Shared};

/// Attributes that would promise what is not kept: access control lists are not enforced.
const REFUSED_PREFIX: &[u8] = b"system.";

impl Shared {
    /// Sets an extended attribute.
    pub(crate) fn setxattr(
        &self,
        context: &Context,
        turn: &Turn<'_>,
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
        if let Some(xattrs) = &mut inode.lock().nameless {
            return set_nameless(xattrs, name, value, mode);
        }
        let node = inode.node();
        if mode == XattrMode::Create {
            let is_set =
                || context.block_on(self.dfs.get_xattr(context, &node, name)).is_ok_and(|held| held == value);
            if turn.before().is_some() && is_set() {
                return Ok(());
            }
            turn.note(node.oid(), None);
        }
        match context.block_on(self.dfs.set_xattr(context, &node, name, value, mode)) {
            Err(Error::Stale(_)) if context.block_on(self.lost_name(context, &inode))? => {
                set_nameless(inode.lock().nameless.get_or_insert_default(), name, value, mode)
            }
            set => {
                self.inodes.note_record(&mut inode.lock(), &set?);
                Ok(())
            }
        }
    }

    /// Reads an extended attribute. An inode that has none, as most, costs no request while its record is fresh; the
    /// kernel looks names up at least once a second.
    pub(crate) fn getxattr(&self, context: &Context, number: u64, name: &[u8]) -> Served<Vec<u8>> {
        if name.starts_with(REFUSED_PREFIX) {
            return Err(Fault::Errno(libc::EOPNOTSUPP));
        }
        if self.libraries.has(number) {
            return Err(Fault::Errno(libc::ENODATA));
        }
        let inode = self.inode(number)?;
        if let Some(xattrs) = &inode.lock().nameless {
            return xattrs.get(name).cloned().ok_or(Fault::Errno(libc::ENODATA));
        }
        let node = inode.node();
        if !node.record.xattrs {
            return Err(Fault::Errno(libc::ENODATA));
        }
        Ok(context.block_on(self.dfs.get_xattr(context, &node, name))?)
    }

    /// Names of extended attributes, each ended by a NUL.
    pub(crate) fn listxattr(&self, context: &Context, number: u64) -> Served<Vec<u8>> {
        if self.libraries.has(number) {
            return Ok(Vec::new());
        }
        let inode = self.inode(number)?;
        let nameless = inode.lock().nameless.as_ref().map(|xattrs| xattrs.keys().cloned().collect());
        let names: Vec<Vec<u8>> = match nameless {
            Some(names) => names,
            None => context.block_on(self.dfs.list_xattrs(context, &inode.node()))?,
        };
        Ok(names.iter().flat_map(|name| [&name[..], &[0]].concat()).collect())
    }

    /// Removes an extended attribute.
    pub(crate) fn removexattr(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        number: u64,
        name: &[u8],
    ) -> Served<()> {
        let inode = self.inode(number)?;
        self.settle(context, &inode);
        if let Some(xattrs) = &mut inode.lock().nameless {
            return xattrs.remove(name).map(drop).ok_or(Fault::Errno(libc::ENODATA));
        }
        let node = inode.node();
        turn.note(node.oid(), None);
        match context.block_on(self.dfs.remove_xattr(context, &node, name)) {
            Err(Error::NoAttribute(_)) if turn.before().is_some() => Ok(()),
            // What it had has gone with its name.
            Err(Error::Stale(_)) if context.block_on(self.lost_name(context, &inode))? => {
                Err(Fault::Errno(libc::ENODATA))
            }
            removed => {
                self.inodes.note_record(&mut inode.lock(), &removed?);
                Ok(())
            }
        }
    }
}

/// Sets an extended attribute of an inode without a name.
fn set_nameless(
    xattrs: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Served<()> {
    if name.len() > XATTR_NAME_MAX {
        return Err(Fault::Errno(libc::ERANGE));
    }
    if value.len() > XATTR_VALUE_MAX {
        return Err(Fault::Errno(libc::E2BIG));
    }
    match (mode, xattrs.contains_key(name)) {
        (XattrMode::Create, true) => return Err(Fault::Errno(libc::EEXIST)),
        (XattrMode::Replace, false) => return Err(Fault::Errno(libc::ENODATA)),
        _ => {}
    }
    xattrs.insert(name.to_vec(), value.to_vec());
    Ok(())
}
