//! The result of most fetches: one version has all data of the only akey that was asked for.
//!
//! Without it a fetch of 64 B takes 122 % more instructions (`weir-bench store --store-part counts`).

use super::{FetchedAkey, InBlocks};
use crate::format::size::in_memory;
use crate::format::value::{Blocks, Lone, Payload, Summed, Version};
use crate::index::tree::Node;
use crate::state::core::Core;
use crate::state::error::FetchError;
use crate::state::read::{Comparison, copy_inline, read_cached, read_device};
use crate::versions::walk::{Covering, Wanted};
use core::cell::OnceCell;
use std::borrow::Cow;
use std::rc::Rc;
use weir_proto::object::{Extent, Fetched};

/// The only akey of a request, and the version that has its data. Small, since it is passed on by value.
pub(super) struct SingleVersion {
    /// Size of the single value, or of a record.
    size: u64,
    /// Bytes of data, more than none.
    len: usize,
    source: Source,
    /// Position of the data within the version's.
    from: u64,
    /// The records, for an array.
    extent: Option<Extent>,
    /// For those who ask what was found.
    akeys: OnceCell<Box<[FetchedAkey; 1]>>,
}

/// Where the version's data is.
enum Source {
    Index(InlineData),
    /// In one block, as most values are that aren't in the index.
    Block(Lone),
    Blocks(Box<Blocks>),
}

/// Data in an entry of a leaf. It keeps the leaf in memory as it was at the fetch: a change before the data is read copies the
/// leaf, as it does for a checkpoint.
struct InlineData {
    leaf: Rc<Node>,
    position: usize,
    /// Bytes of the entry's value before the data.
    head: usize,
    checksum: Option<u32>,
}

impl InlineData {
    fn summed(&self) -> Summed<'_> {
        // The leaf is as it was found: a change would have copied it.
        let (_, value) =
            self.leaf.entries().entry_at(self.position).expect("invariant: an entry was found there");
        Summed { bytes: &value[self.head..], checksum: self.checksum }
    }
}

/// Where the data of a version is, and how many bytes it has; `None` where there is none.
fn source(core: &Core, found: &Covering<'_>) -> Option<(Source, u64)> {
    let value = found.value()?;
    if let Some((_, Summed { bytes, checksum })) = Version::inline(value).ok()? {
        let (leaf, head) = (Rc::clone(found.leaf), value.len() - bytes.len());
        let inline = InlineData { leaf, position: found.position, head, checksum };
        return Some((Source::Index(inline), bytes.len() as u64));
    }
    if let Some(lone) = Version::lone(value) {
        // The processor fetches it from memory meanwhile.
        core.cache.prefetch(lone.block, lone.checksum);
        return Some((Source::Block(lone), lone.len));
    }
    match Version::decode(value).ok()?.payload {
        Payload::Blocks(blocks) => {
            let len = blocks.len();
            Some((Source::Blocks(Box::new(blocks)), len))
        }
        Payload::Hole | Payload::Inline(_) => None,
    }
}

impl SingleVersion {
    /// What is wanted, from a version that covers it; `None` where that isn't such as it should be, or there is nothing.
    pub(super) fn of(core: &Core, wanted: Wanted, found: &Covering<'_>) -> Option<Self> {
        let (source, stored) = source(core, found)?;
        let (size, extent, from, len) = match (wanted, found.extent) {
            (Wanted::Records(range, size), Some(extent)) => {
                let size = u64::from(size);
                if extent.count.checked_mul(size) != Some(stored) {
                    return None;
                }
                (size, Some(range), (range.index - extent.index) * size, range.count * size)
            }
            (Wanted::Single(limit), None) => (stored, None, 0, stored.min(limit)),
            _ => return None,
        };
        let akeys = OnceCell::new();
        (len > 0).then(|| Self { size, len: in_memory(len), source, from, extent, akeys })
    }

    pub(super) const fn has_blocks(&self) -> bool {
        matches!(self.source, Source::Block(_) | Source::Blocks(_))
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn akeys(&self) -> &[FetchedAkey] {
        let akeys = self.akeys.get_or_init(|| {
            let present = self.extent.into_iter().collect();
            let fetched = Fetched { size: self.size, present, checksums: Vec::new() };
            Box::new([FetchedAkey { fetched, len: self.len as u64 }])
        });
        &akeys[..]
    }

    /// Copies the data, as long as it is, from memory. Returns its checksum, if it is wanted, or the blocks that it has to be
    /// read from.
    #[inline]
    pub(super) fn copy(
        &self,
        core: &Core,
        into: &mut [u8],
        wants: bool,
    ) -> Result<Result<u32, FetchError>, Cow<'_, Blocks>> {
        match &self.source {
            Source::Index(inline) => Ok(copy_inline(inline.summed(), self.from, self.extent, into, wants)),
            Source::Block(lone) => {
                let sum = read_cached(core, *lone, self.from, into, wants);
                sum.map(Ok).ok_or_else(|| Cow::Owned((*lone).into()))
            }
            Source::Blocks(blocks) => Err(Cow::Borrowed(blocks)),
        }
    }

    /// The blocks that the data is in, where in their value it begins, its length, and the records.
    pub(super) fn in_blocks(&self) -> Option<InBlocks<'_>> {
        let Source::Blocks(blocks) = &self.source else { return None };
        Some((blocks, self.from, self.len, self.extent))
    }

    /// Reads the data from its blocks. Returns its checksum, if it is wanted, with who compares.
    pub(super) async fn read(
        &self,
        core: &Core,
        blocks: Cow<'_, Blocks>,
        into: &mut [u8],
        wants: Option<Comparison>,
    ) -> Result<u32, FetchError> {
        read_device(core, &blocks, self.from, self.extent, into, wants).await
    }
}
