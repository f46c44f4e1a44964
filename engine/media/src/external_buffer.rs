//! Memory of another owner that devices read data into.

use crate::buffer::DmaBuf;
use crate::device::BLOCK;
use core::ptr::NonNull;
use std::rc::Rc;
use weir_memory::Lasting;

/// Memory of another owner that devices read data into; the owner gets it back. Data that leaves over the fabric is read into the
/// memory that it leaves from, without a copy.
///
/// Its parts are buffers like all others while transfers have them. If a transfer is given up before its end, the memory stays with
/// it until it has ended, and is freed then.
pub struct ExternalBuffer<M> {
    memory: Rc<M>,
    start: NonNull<u8>,
    /// Whole blocks of it, in bytes.
    len: usize,
    /// Bytes that were given to transfers.
    taken: usize,
}

impl<M: Lasting> ExternalBuffer<M> {
    /// The whole blocks of this memory; the memory back when it isn't aligned to [`BLOCK`].
    ///
    /// # Errors
    /// The memory.
    pub fn new(mut memory: M) -> Result<Self, M> {
        let (start, len) = memory.place();
        if !start.addr().get().is_multiple_of(BLOCK) {
            return Err(memory);
        }
        Ok(Self { memory: Rc::new(memory), start, len: len - len % BLOCK, taken: 0 })
    }

    /// The next `len` bytes, whole blocks, for a transfer; `None` when they are not, or no more so many.
    pub fn take(&mut self, len: usize) -> Option<DmaBuf> {
        if len == 0 || !len.is_multiple_of(BLOCK) || len > self.room() {
            return None;
        }
        // SAFETY: `taken + len` is within the memory.
        let part = unsafe { self.start.add(self.taken) };
        self.taken += len;
        let owner = Rc::clone(&self.memory);
        // SAFETY: initialised and there while the owner is held, as `Lasting` promises. No code uses the owner before
        // all parts are gone (`into_memory`), and no byte is in two parts.
        Some(unsafe { DmaBuf::of_owner(part, len, owner) })
    }

    /// Bytes that are left for transfers.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.len - self.taken
    }

    /// The memory again; `None` when a transfer still has a part of it.
    #[must_use]
    pub fn into_memory(self) -> Option<M> {
        Rc::into_inner(self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// Blocks of the heap, and a flag that says that they are gone.
    type Owned = (DmaBuf, Told);

    struct Told(Rc<Cell<bool>>);

    impl Drop for Told {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }

    fn external(blocks: usize) -> (ExternalBuffer<Owned>, Rc<Cell<bool>>) {
        let is_gone = Rc::new(Cell::new(false));
        let memory = (DmaBuf::new(blocks * BLOCK), Told(Rc::clone(&is_gone)));
        (ExternalBuffer::new(memory).unwrap_or_else(|_| unreachable!("it is aligned")), is_gone)
    }

    #[test]
    fn parts_lie_one_behind_the_other_and_no_more_than_there_is_is_given() {
        let (mut external, _) = external(3);
        assert!(
            external.take(0).is_none()
                && external.take(BLOCK + 1).is_none()
                && external.take(4 * BLOCK).is_none()
        );
        let mut parts = [external.take(BLOCK), external.take(2 * BLOCK)].map(|part| part.expect("room"));
        assert!(external.take(BLOCK).is_none());
        parts[0].fill(1);
        parts[1].fill(2);
        drop(parts);
        let memory = external.into_memory().expect("no part is out");
        assert!(
            memory.0[..BLOCK].iter().all(|byte| *byte == 1)
                && memory.0[BLOCK..].iter().all(|byte| *byte == 2)
        );
    }

    #[test]
    fn memory_stays_with_a_part_that_is_out() {
        let (mut external, is_gone) = external(2);
        let mut part = external.take(BLOCK).expect("room");
        assert!(external.into_memory().is_none() && !is_gone.get());
        part.fill(3);
        drop(part);
        assert!(is_gone.get());
    }

    #[test]
    fn memory_off_a_block_is_given_back() {
        struct Odd(Owned);
        // SAFETY: all but the first byte of a buffer.
        unsafe impl Lasting for Odd {
            fn place(&mut self) -> (NonNull<u8>, usize) {
                let (start, len) = self.0.place();
                // SAFETY: within the block.
                (unsafe { start.add(1) }, len - 1)
            }
        }
        let is_gone = Rc::new(Cell::new(false));
        let odd = Odd((DmaBuf::new(BLOCK), Told(Rc::clone(&is_gone))));
        let odd = ExternalBuffer::new(odd).err().expect("it isn't aligned");
        assert!(!is_gone.get());
        drop(odd);
        assert!(is_gone.get());
    }
}
