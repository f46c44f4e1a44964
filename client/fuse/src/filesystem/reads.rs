//! Reads of a file under way, and the order of their answers when another client has truncated the file.
//!
//! The kernel learns the new end from a read that comes out short. It sends several reads side by side, and of those it
//! heeds the first short answer only: pages of a read at a lower offset that comes out short after that stay in the file,
//! as zeros. So a short answer at an offset waits for all reads at lower ones.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::inodes::Inode;

/// Reads of a file that fill the page cache and aren't answered.
#[derive(Debug, Default)]
pub struct Reads {
    /// Their offsets. No more than the kernel may have under way and those of waiting programs.
    offsets: Mutex<Vec<u64>>,
    answered: Condvar,
}

/// A read under way. It is dropped after it was answered.
#[derive(Debug)]
pub struct Reading {
    inode: Arc<Inode>,
    offset: u64,
}

impl Reads {
    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    /// Notes that a read has come. The kernel sends reads of one program by offset, so this comes before the request is
    /// given to another thread or waits.
    pub fn begin(inode: Arc<Inode>, offset: u64) -> Self {
        inode.reads.lock().push(offset);
        Self { inode, offset }
    }

    /// Waits until no read at a lower offset is under way. Each has a deadline, that of its requests to engines or of those that
    /// it waits for, which are lower still; and the kernel keeps what it has read, so they come to an end.
    pub fn wait_for_lower(&self) {
        let reads = &self.inode.reads;
        let has_lower = |offsets: &mut Vec<u64>| offsets.iter().any(|other| *other < self.offset);
        drop(reads.answered.wait_while(reads.lock(), has_lower).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let reads = &self.inode.reads;
        let mut offsets = reads.lock();
        if let Some(index) = offsets.iter().position(|offset| *offset == self.offset) {
            offsets.swap_remove(index);
        }
        if !offsets.is_empty() {
            reads.answered.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filesystem::inodes::Inodes;
    use crate::filesystem::inodes::tests::node;

    #[test]
    fn a_read_waits_for_those_at_lower_offsets_only() {
        let table = Inodes::new(node(1), None);
        let inode = table.found(&node(100), None, table.moment());
        let begin = |offset| Reading::begin(Arc::clone(&inode), offset);
        let (lowest, low, high) = (begin(0), begin(4096), begin(8192));
        lowest.wait_for_lower();
        drop(lowest);
        let same = begin(4096);
        low.wait_for_lower();
        let answered = Mutex::new(Vec::<u64>::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                high.wait_for_lower();
                answered.lock().expect("no panic").push(8192);
                drop(high);
            });
            for read in [low, same] {
                std::thread::yield_now();
                answered.lock().expect("no panic").push(4096);
                drop(read);
            }
        });
        assert_eq!(answered.into_inner().expect("no panic"), [4096, 4096, 8192]);
        assert!(inode.reads.lock().is_empty());
    }
}
