//! Formatting a device: what may be overwritten, the mark of one that isn't finished, and the superblocks that end it.

use crate::format::owner::{Owner, SYSTEM_NAME_MAX};
use crate::format::{Layout, Superblock, VERSION_NEWEST, describe, unfinished_format};
use crate::log::empty::Empty;
use crate::state::config::FormatOptions;
use crate::state::error::FormatError;
use std::rc::Rc;
use uuid::Uuid;
use weir_media::{BLOCK, Device, DmaBuf, MediaError};
use weir_runtime::Handle;

/// What a device holds that isn't empty and begins as one that is being formatted.
const BEHIND_MARK: &str = "data behind the mark of a format that was interrupted";

/// A device that is to be formatted.
pub(crate) struct Formatting<'a> {
    device: &'a Rc<dyn Device>,
    owner: Owner,
    layout: Layout,
}

impl<'a> Formatting<'a> {
    /// Lays out a device.
    pub(crate) fn plan(device: &'a Rc<dyn Device>, options: &FormatOptions) -> Result<Self, FormatError> {
        let owner = options.owner.clone();
        if owner.system.is_empty() || owner.system.len() > SYSTEM_NAME_MAX {
            return Err(FormatError::SystemName(owner.system));
        }
        let layout = Layout::plan(device.size(), options.log_bytes).map_err(|needed| {
            FormatError::TooSmall { device: device.name().to_owned(), size: device.size(), needed }
        })?;
        Ok(Self { device, owner, layout })
    }

    /// Fails when there is anything on the device but what an interrupted format has left.
    pub(crate) async fn check_empty(&self) -> Result<(), FormatError> {
        let device = self.device;
        let begin = device.read(0, DmaBuf::new(BLOCK)).await?;
        let resumes = begin[..] == unfinished_format(device.size())[..];
        // The device may have been given to somebody meanwhile who leaves the first block alone.
        let empty = Empty::new(&self.layout);
        let foreign = if resumes { empty.foreign_data(device).await? } else { device.first_data(0).await? };
        let Some(offset) = foreign else { return Ok(()) };
        let found = if resumes {
            BEHIND_MARK
        } else if begin.iter().any(|byte| *byte != 0) {
            describe(&begin)
        } else {
            "unknown data behind a start of zeros"
        };
        Err(FormatError::NotEmpty { device: device.name().to_owned(), offset, found })
    }

    /// Marks the device and writes all of an empty store but for its superblock, which is returned. From here on an interrupted
    /// format can be told from foreign data, and be done again; what is stored meanwhile is found by nobody.
    pub(crate) async fn begin(&self, rt: &Handle, mark: &[u8]) -> Result<Superblock, MediaError> {
        self.device.write(0, vec![DmaBuf::copy_of(mark).into()]).await?;
        self.device.flush().await?;
        let random = (u128::from(rt.random_u64()) << 64) | u128::from(rt.random_u64());
        let id: Uuid = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
        Empty::new(&self.layout).write(self.device, id).await?;
        let (owner, layout, formatted_ns) = (self.owner.clone(), self.layout, rt.wall_ns());
        Ok(Superblock { version: VERSION_NEWEST, features: 0, id, owner, formatted_ns, layout })
    }

    /// Makes what was written so far stable, and then a store of it.
    pub(crate) async fn finish(&self, superblock: &Superblock) -> Result<(), MediaError> {
        let (device, bytes) = (self.device, superblock.encode());
        device.flush().await?;
        let copy = Layout::copy_offset(superblock.layout.size);
        device.write(copy, vec![DmaBuf::copy_of(&bytes).into()]).await?;
        device.write(0, vec![DmaBuf::copy_of(&bytes).into()]).await?;
        device.flush().await
    }
}
