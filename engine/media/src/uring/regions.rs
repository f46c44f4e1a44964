//! Memory that is registered with a ring, so that the kernel keeps its pages pinned.

use crate::pool::{CHUNK, DmaPool};
use io_uring::Submitter;
use std::io;

/// Entries of a ring's table of memory: a GiB in chunks of 8 MiB, sixteen times what a store uses at once.
pub(super) const REGIONS_MAX: u32 = 128;

/// The chunks of pools that a ring has registered.
#[derive(Default)]
pub(super) struct Regions {
    /// Pools, each with how many of its chunks were looked at. Holding them keeps their memory where it is.
    pools: Vec<(DmaPool, usize)>,
    /// Begin of each registered chunk, by its index in the table.
    starts: Vec<usize>,
    is_full: bool,
}

impl Regions {
    /// Registers the pool's chunks from now on.
    pub(super) fn add(&mut self, pool: &DmaPool) {
        self.pools.push((pool.clone(), 0));
    }

    /// Registers chunks that pools have taken meanwhile. Fails once, when the system refuses one, and leaves it and
    /// later ones out.
    pub(super) fn follow(&mut self, submitter: &Submitter<'_>) -> io::Result<()> {
        for (pool, known) in &mut self.pools {
            while !self.is_full && *known < pool.chunks() {
                let Some(memory) = pool.chunk(*known) else { break };
                *known += 1;
                let index = u32::try_from(self.starts.len()).unwrap_or(REGIONS_MAX);
                let vector = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: CHUNK };
                // SAFETY: the chunk is allocated and stays so while the pool lives, and `self.pools` keeps the pool
                // until the ring has been drained; afterwards nothing names the index any more.
                let updated = unsafe { submitter.register_buffers_update(index, &[vector], None) };
                self.is_full = updated.is_err() || index + 1 >= REGIONS_MAX;
                updated?;
                self.starts.push(memory.addr().get());
            }
        }
        Ok(())
    }

    /// The index of the chunk that this memory lies in.
    pub(super) fn of(&self, vector: &libc::iovec) -> Option<u16> {
        let start = vector.iov_base.addr();
        let index = self.starts.iter().position(|base| (*base..base + CHUNK).contains(&start))?;
        let is_inside = start + vector.iov_len <= self.starts[index] + CHUNK;
        u16::try_from(index).ok().filter(|_| is_inside)
    }
}
