//! Copying between files of a mount (`copy_file_range`): the data passes this process, and not the kernel.

use fuser::WriteFlags;
use weir_client::Context;

use super::worker::{Served, Shared};

/// Bytes that are read and written at a time: those of a request of the kernel.
const STEP: usize = 1 << 20;

/// Most bytes that one request copies. A program goes on behind them; its signals are heeded in between.
const COPY_MAX: u64 = 8 << 20;

impl Shared {
    /// Copies up to `len` bytes from one open file to another one, or within a file between ranges that don't overlap, as reads
    /// and writes of the handles do. Returns how many: fewer at the end of the file, and 0 behind it. After an error what was
    /// copied before counts.
    pub(crate) fn copy_range(
        &self,
        context: &Context,
        (from, offset): (u64, u64),
        (to, at): (u64, u64),
        len: u64,
        keeps_privilege: bool,
    ) -> Served<u32> {
        let flags = if keeps_privilege { WriteFlags::empty() } else { WriteFlags::FUSE_WRITE_KILL_SUIDGID };
        let wanted = len.min(COPY_MAX);
        let mut buffer = vec![0; usize::try_from(wanted).map_or(STEP, |wanted| wanted.min(STEP))];
        let mut copied = 0_u64;
        while copied < wanted {
            let part = usize::try_from(wanted - copied).map_or(STEP, |left| left.min(buffer.len()));
            let step = self
                .read(context, from, offset.saturating_add(copied), &mut buffer[..part], None)
                .and_then(|read| {
                    let data = &buffer[..read];
                    if !data.is_empty() {
                        self.write(context, to, at.saturating_add(copied), data, (flags, 0))?;
                    }
                    Ok(read)
                });
            match step {
                Ok(0) => break,
                Ok(read) => copied += read as u64,
                Err(_) if copied > 0 => break,
                Err(fault) => return Err(fault),
            }
        }
        Ok(u32::try_from(copied).expect("at most COPY_MAX"))
    }
}
