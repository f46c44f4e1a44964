//! Takes a mount over from a process that has ended.

use std::sync::Arc;

use super::handles::Handle;
use super::inodes::{Inode, ROOT};
use super::worker::{Fault, Served, Shared};
use crate::kept::{Inherited, KeptHandle};

/// Marks the number of a request that the kernel sends again, since the process that read it has not answered (linux/fuse.h).
const RESENT: u64 = 1 << 63;

/// The number of a request as the kernel sent it first, if it sends it again.
pub fn resent(unique: u64) -> Option<u64> {
    (unique & RESENT != 0).then_some(unique & !RESENT)
}

impl Shared {
    /// Enters what the kernel knows from the process before this one.
    ///
    /// # Errors
    /// `ESTALE` when it doesn't fit together.
    pub(crate) fn inherit(&self, inherited: Inherited) -> Served<()> {
        for (slot, inode) in inherited.inodes {
            self.inodes.inherit(slot, inode);
        }
        for (slot, kept) in inherited.handles {
            let KeptHandle { inode, flags, .. } = kept;
            let inode = self.inodes.get(inode).ok_or(Fault::Errno(libc::ESTALE))?;
            let handle = match flags {
                None => self.inherit_directory(inode)?,
                Some(flags) => {
                    inode.lock().opens += 1;
                    let node = inode.node();
                    self.open_content(&Arc::clone(&inode), &node, flags)?
                }
            };
            self.handles.inherit(slot, &kept, handle);
        }
        for (slot, request) in inherited.requests {
            self.repeats.inherit(slot, request);
        }
        for write in inherited.writes {
            // Who closed it last has waited for its writes.
            let inode = self.inodes.get(write.inode).ok_or(Fault::Errno(libc::ESTALE))?;
            self.gather_again(&inode, write)?;
        }
        for (slot, change) in inherited.changes {
            let inode = self.inodes.get(change.inode).ok_or(Fault::Errno(libc::ESTALE))?;
            self.gather_attributes_again(&inode, slot, change);
        }
        Ok(())
    }
}

impl Shared {
    /// A handle of a directory, from the process before this one. Whoever has the root open may find names by it.
    fn inherit_directory(&self, inode: Arc<Inode>) -> Served<Handle> {
        let is_root = inode.number == ROOT;
        let handle = self.open_listing(inode)?;
        if let Handle::Directory(directory) = &handle
            && is_root
        {
            self.begin_names(directory);
        }
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_sent_again_has_the_number_that_it_had() {
        assert_eq!(resent(RESENT | 6), Some(6));
        assert_eq!(resent(6), None);
    }
}
