//! Reserved room for a range of a file (fallocate).

use weir_client::Context;
use weir_client::array::Range;

use crate::file::{File, ensure_fits};
use crate::mount::Dfs;
use crate::{Error, Result};

impl Dfs {
    /// Has the targets keep room for the holes of a part of a file, so that the first write of each succeeds however full the
    /// file system is by then, and lengthens the file up to its end unless it `keeps_size` (fallocate). Returns how long the file
    /// is then, if it doesn't.
    ///
    /// Where an engine, or a target, of an earlier release can't keep room, what is free is compared with what the holes need.
    ///
    /// # Errors
    /// [`Error::NoRoom`], or ENOSPC as an object error; [`Error::ReadOnly`]; [`Error::TooLarge`]; or another object error. The file
    /// is as before then.
    pub async fn allocate(
        &self,
        context: &Context,
        file: &File,
        (offset, len): (u64, u64),
        keeps_size: bool,
    ) -> Result<Option<u64>> {
        file.ensure_writable()?;
        let end = offset.saturating_add(len);
        ensure_fits(end)?;
        let space = self.statfs(context).await?;
        // Chunk by chunk it would take long to find that out.
        if len > space.total {
            return Err(Error::NoRoom { needed: len, free: space.free });
        }
        let reserved = file.array().reserve(context, Range { index: offset, count: len }).await?;
        if reserved.is_none() {
            check_room(context, file, (offset, end), space.free).await?;
        }
        if keeps_size {
            return Ok(None);
        }
        let lengthened = file.lengthen(context, end).await;
        if let (Err(_), Some(reserved)) = (&lengthened, reserved) {
            file.array().give_up(context, reserved).await;
        }
        lengthened.map(Some)
    }
}

/// Refuses a range whose holes are more than what is free.
async fn check_room(context: &Context, file: &File, (offset, end): (u64, u64), free: u64) -> Result<()> {
    let (mut needed, mut at) = (end - offset, offset);
    while needed > free {
        let Some(data) = file.next_data(context, at).await?.filter(|at| *at < end) else {
            return Err(Error::NoRoom { needed, free });
        };
        // Cut off meanwhile, it ends with the data.
        let hole = file.next_hole(context, data).await?.unwrap_or(end).min(end);
        (needed, at) = (needed - (hole - data), hole);
    }
    Ok(())
}
