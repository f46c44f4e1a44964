//! File content.

use std::sync::Arc;

use weir_client::array::{Measure, Range, ReadOutcome};
use weir_client::{Array, Context, Epoch};
use weir_proto::limits::PAYLOAD_MAX;
use weir_proto::{Der, ObjectId};

use crate::entry::Node;
use crate::mount::Dfs;
use crate::record::Kind;
use crate::{Error, Result};

/// Where the largest file ends: offsets are signed (`loff_t`).
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// The content of a file. Plain data: cheap to clone, shared by any number of threads. It stays valid when the file
/// is renamed, and until its content is reclaimed when it is unlinked.
#[derive(Clone, Debug)]
pub struct File {
    array: Array,
    read_only: bool,
    oid: Arc<ObjectId>,
}

impl Dfs {
    /// The content of a file. Sends nothing.
    ///
    /// # Errors
    /// [`Error::IsDirectory`], or [`Error::Invalid`] for what is neither file nor directory.
    pub fn file(&self, node: &Node) -> Result<File> {
        match node.record.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::IsDirectory(node.shown())),
            _ => return Err(Error::Invalid(format!("\"{}\" is not a regular file", node.shown()))),
        }
        let array = Array::compact_bytes(self.container(), node.oid(), node.record.chunk_size)?;
        let array = if self.epoch() == Epoch::MAX { array } else { array.at(self.epoch()) };
        Ok(self.content_in(array, node.oid()))
    }

    pub(crate) fn content_in(&self, array: Array, oid: ObjectId) -> File {
        File { array, read_only: self.is_read_only(), oid: Arc::new(oid) }
    }
}

impl File {
    /// The object that holds the content.
    #[must_use]
    pub fn oid(&self) -> ObjectId {
        *self.oid
    }

    /// The same content as it was at an epoch. Engines keep what was replaced or removed for some seconds, and longer only for
    /// snapshots; what they have given up by then is missing from the end, or a hole.
    #[must_use]
    pub fn at(&self, epoch: Epoch) -> Self {
        Self { array: self.array.at(epoch), read_only: true, oid: Arc::clone(&self.oid) }
    }

    /// Bytes of a chunk: what is in one is written by one request, which happens as a whole.
    #[must_use]
    pub fn chunk_size(&self) -> u64 {
        self.array.attributes().chunk_cells
    }

    /// Reads from `offset` on and returns how many bytes there were before the end of the file. Holes read as zeros.
    ///
    /// `size` is the file's size if the caller knows it, for instance from an attribute cache: then a read that ends
    /// in a hole or behind the end needs no request of its own for it.
    ///
    /// # Errors
    /// An object error.
    pub async fn read(
        &self,
        context: &Context,
        offset: u64,
        into: &mut [u8],
        size: Option<u64>,
    ) -> Result<usize> {
        let wanted = into.len() as u64;
        let known = size.map_or(wanted, |size| size.saturating_sub(offset).min(wanted));
        // What lies behind a known end is not asked for; if the file has grown since, the caller will ask again.
        let into = &mut into[..usize::try_from(known).unwrap_or(usize::MAX)];
        if into.is_empty() {
            return Ok(0);
        }
        let range = Range { index: offset, count: known };
        let ReadOutcome { cells, .. } = self.array.read(context, &[range], vec![into], size).await?;
        Ok(usize::try_from(cells).unwrap_or(usize::MAX))
    }

    /// Writes all of `data` at `offset`; it is on stable media when this returns.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::TooLarge`]; ENOSPC or EDQUOT when pool or quota is full; or another object error. Then a part may
    /// have been written.
    pub async fn write(&self, context: &Context, offset: u64, data: &[u8]) -> Result<Epoch> {
        self.ensure_writable()?;
        ensure_fits(offset.saturating_add(data.len() as u64))?;
        let range = Range { index: offset, count: data.len() as u64 };
        Ok(self.array.write(context, &[range], &[data]).await?)
    }

    /// As [`File::write`] where the file ends at `end` or behind it: what lengthens it is written chunk by chunk, so
    /// that a concurrent reader finds a beginning, and so does a reader after a failure.
    ///
    /// # Errors
    /// As [`File::write`].
    pub async fn write_in_order(
        &self,
        context: &Context,
        mut offset: u64,
        data: &[u8],
        end: u64,
    ) -> Result<Epoch> {
        let (mut left, mut epoch) = (data, Epoch::ZERO);
        while !left.is_empty() {
            let behind = offset.saturating_add(left.len() as u64);
            // What is below the known end needs no order; the chunk in which that is goes as a whole.
            let part =
                if behind <= end { behind } else { end.max(offset) / self.chunk_size() * self.chunk_size() };
            let part = if part > offset { part } else { self.end_of_block(offset).min(behind) };
            let (now, rest) = left.split_at(in_memory(part - offset));
            epoch = self.write(context, offset, now).await?.max(epoch);
            (left, offset) = (rest, part);
        }
        Ok(epoch)
    }

    /// Where what one request carries ends that begins at a byte.
    fn end_of_block(&self, offset: u64) -> u64 {
        let chunk = self.chunk_size();
        (offset / chunk * chunk).saturating_add(chunk).min(offset.saturating_add(PAYLOAD_MAX))
    }

    /// Writes all of `data` behind the end, in one piece, while other clients may append. Returns where, and its epoch;
    /// it is on stable media when this returns.
    ///
    /// # Errors
    /// As [`File::write`].
    pub async fn append(&self, context: &Context, data: &[u8]) -> Result<(u64, Epoch)> {
        self.ensure_writable()?;
        self.array.append(context, data, SIZE_MAX).await.map_err(|error| match error {
            weir_client::Error::Size { der: Der::OVERFLOW, .. } => Error::TooLarge,
            error => error.into(),
        })
    }

    /// Writes runs that don't overlap: offset and bytes of each. Runs of one chunk share a request; those of several reach the
    /// engines in any order.
    ///
    /// # Errors
    /// As [`File::write`].
    pub async fn write_runs(&self, context: &Context, runs: &[(u64, Vec<u8>)]) -> Result<Epoch> {
        self.ensure_writable()?;
        let range = |(offset, bytes): &(u64, Vec<u8>)| Range { index: *offset, count: bytes.len() as u64 };
        let ranges: Vec<Range> = runs.iter().map(range).collect();
        let data: Vec<&[u8]> = runs.iter().map(|(_, bytes)| bytes.as_slice()).collect();
        Ok(self.array.write(context, &ranges, &data).await?)
    }

    /// Reads ranges to the slices, which together hold exactly their bytes, and returns how many bytes there were before the end
    /// of the file. Holes, and what lies behind the end, read as zeros.
    ///
    /// # Errors
    /// An object error; one for ranges that overflow or slices of another length.
    pub async fn read_ranges(
        &self,
        context: &Context,
        ranges: &[Range],
        into: Vec<&mut [u8]>,
    ) -> Result<u64> {
        Ok(self.array.read(context, ranges, into, None).await?.cells)
    }

    /// Writes ranges, of which none overlaps another, from the slices, which together hold exactly their bytes. Ranges of one
    /// chunk share a request; those of several reach the engines in any order.
    ///
    /// # Errors
    /// As [`File::write`].
    pub async fn write_ranges(&self, context: &Context, ranges: &[Range], data: &[&[u8]]) -> Result<Epoch> {
        self.ensure_writable()?;
        for range in ranges {
            ensure_fits(range.index.saturating_add(range.count))?;
        }
        Ok(self.array.write(context, ranges, data).await?)
    }

    /// Size in bytes, and the epoch of the newest change of the content.
    ///
    /// # Errors
    /// An object error.
    pub async fn size_and_epoch(&self, context: &Context) -> Result<(u64, Epoch)> {
        Ok(self.array.size_and_epoch(context).await?)
    }

    /// Size, newest change, and how many bytes are stored. As many requests as [`File::size_and_epoch`].
    ///
    /// # Errors
    /// An object error.
    pub async fn measure(&self, context: &Context) -> Result<Measure> {
        Ok(self.array.measure(context).await?)
    }

    /// The first byte from `offset` on that is stored (lseek with `SEEK_DATA`). `None`: there is none before the end of the
    /// file. With engines of an older release all bytes count as stored.
    ///
    /// # Errors
    /// An object error.
    pub async fn next_data(&self, context: &Context, offset: u64) -> Result<Option<u64>> {
        let found = self.array.next_real(context, offset).await?;
        if found == Some(offset) && offset >= self.size_and_epoch(context).await?.0 {
            return Ok(None);
        }
        Ok(found)
    }

    /// The first byte from `offset` on that isn't stored, which may be that behind the last one (lseek with `SEEK_HOLE`).
    /// `None`: `offset` isn't in the file.
    ///
    /// # Errors
    /// An object error.
    pub async fn next_hole(&self, context: &Context, offset: u64) -> Result<Option<u64>> {
        let (size, _) = self.size_and_epoch(context).await?;
        if offset >= size {
            return Ok(None);
        }
        let hole = self.array.next_hole(context, offset).await?;
        Ok(Some(hole.unwrap_or(size)))
    }

    /// Cuts the file off or lengthens it with a hole.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::TooLarge`]; or an object error.
    pub async fn truncate(&self, context: &Context, size: u64) -> Result<()> {
        self.ensure_writable()?;
        ensure_fits(size)?;
        Ok(self.array.set_size(context, size).await?)
    }

    /// Lengthens the file with a hole, unless it is as long already. Returns how long it is then.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::TooLarge`]; or an object error.
    pub async fn lengthen(&self, context: &Context, size: u64) -> Result<u64> {
        self.ensure_writable()?;
        ensure_fits(size)?;
        Ok(self.array.lengthen(context, size).await?)
    }

    /// Makes a hole and keeps the size (fallocate with `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_KEEP_SIZE`).
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; or an object error.
    pub async fn punch_hole(&self, context: &Context, offset: u64, len: u64) -> Result<()> {
        self.ensure_writable()?;
        let (size, _) = self.size_and_epoch(context).await?;
        let end = offset.saturating_add(len).min(size);
        if offset >= end {
            return Ok(());
        }
        // The last byte of the file stays a byte: with a hole in its place the file would be shorter, and to make it longer again
        // could cut off what others have appended meanwhile.
        let hole_end = if end == size { end - 1 } else { end };
        if hole_end < end {
            self.array.write(context, &[Range { index: hole_end, count: 1 }], &[&[0]]).await?;
        }
        Ok(self.array.punch(context, &[Range { index: offset, count: hole_end - offset }]).await?)
    }

    /// The array that holds the content.
    #[must_use]
    pub fn array(&self) -> &Array {
        &self.array
    }

    /// Frees the content of a file that has no name any more.
    pub(crate) async fn discard(&self, context: &Context) -> Result<()> {
        Ok(self.array.discard(context).await?)
    }

    pub(crate) fn ensure_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}

/// Bytes of a part of a buffer, which memory holds.
fn in_memory(len: u64) -> usize {
    usize::try_from(len).expect("no longer than the buffer")
}

pub(crate) fn ensure_fits(end: u64) -> Result<()> {
    if end > SIZE_MAX { Err(Error::TooLarge) } else { Ok(()) }
}
