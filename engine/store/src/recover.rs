//! Opening a device: superblock, checkpoint, log.

use crate::catalog::Catalog;
use crate::checkpoint::{Checkpoints, maps_checksum};
use crate::codec::Malformed;
use crate::config::{Owner, StoreConfig};
use crate::error::{Location, OpenError};
use crate::format::{
    CHECKPOINT_BLOCKS, Checkpoint, Layout, StoredNode, Superblock, SuperblockFault, VERSION_NEWEST,
    VERSION_OLDEST, checkpoint_offset, decode_map, decode_node, read_superblock,
};
use crate::journal::{Journal, Ring};
use crate::key;
use crate::space::{Run, Space};
use crate::state::{Core, Parts, reserve_blocks};
use crate::tree::{Body, Home, NODE_BYTES, Node, PageRef, Tree};
use core::cell::Cell;
use core::ops::ControlFlow;
use std::rc::Rc;
use weir_media::{BLOCK, Device, DmaBuf};
use weir_runtime::{Handle, join_all};

/// Features that this release knows: none so far.
pub(crate) const FEATURES_KNOWN: u64 = 0;

/// Reads in flight while the index is loaded.
const READS_MAX: usize = 64;

/// Most levels of an index: even nodes of three children would hold more entries than a device has blocks.
pub(crate) const LEVELS_MAX: usize = 40;

/// A device being opened.
pub(crate) struct Opening<'a> {
    pub(crate) device: &'a Rc<dyn Device>,
    pub(crate) superblock: Superblock,
}

/// Reads a block.
async fn read_block(device: &Rc<dyn Device>, offset: u64) -> Result<DmaBuf, OpenError> {
    Ok(device.read(offset, DmaBuf::new(BLOCK)).await?)
}

/// Reads both copies of the superblock and decides what the device is.
async fn find_superblock(device: &Rc<dyn Device>) -> Result<Superblock, OpenError> {
    let name = || device.name().to_owned();
    let copy_offset = Layout::copy_offset(device.size());
    let first = read_superblock(&read_block(device, 0).await?);
    let copy = if copy_offset == 0 {
        Err(SuperblockFault::Blank)
    } else {
        read_superblock(&read_block(device, copy_offset).await?)
    };
    match (first, copy) {
        (Ok(superblock), _) | (Err(SuperblockFault::Damaged(_)), Ok(superblock)) => Ok(superblock),
        (Err(SuperblockFault::Unfinished), _) => Err(OpenError::Unfinished { device: name() }),
        (Err(SuperblockFault::Blank), Ok(_)) => {
            Err(OpenError::Overwritten { device: name(), found: "zeros", copy: copy_offset })
        }
        (Err(SuperblockFault::Foreign(found)), Ok(_)) => {
            Err(OpenError::Overwritten { device: name(), found, copy: copy_offset })
        }
        (Err(SuperblockFault::Blank), Err(_)) => Err(OpenError::Blank { device: name() }),
        (Err(SuperblockFault::Foreign(found)), Err(_)) => Err(OpenError::Foreign { device: name(), found }),
        (Err(SuperblockFault::Damaged(reason)), Err(_)) => Err(OpenError::Corrupt {
            location: Location { device: name(), what: "the superblock", offset: 0 },
            reason: format!("{reason}, and its copy at byte {copy_offset} is unreadable too"),
        }),
    }
}

impl<'a> Opening<'a> {
    /// Checks that the device is a store of this owner that this release can read.
    pub(crate) async fn new(device: &'a Rc<dyn Device>, owner: &Owner) -> Result<Self, OpenError> {
        let superblock = find_superblock(device).await?;
        let name = || device.name().to_owned();
        if !(VERSION_OLDEST..=VERSION_NEWEST).contains(&superblock.version) {
            let (found, oldest, newest) = (superblock.version, VERSION_OLDEST, VERSION_NEWEST);
            return Err(OpenError::Version { device: name(), found, oldest, newest });
        }
        let unknown = superblock.features & !FEATURES_KNOWN;
        if unknown != 0 {
            return Err(OpenError::Features { device: name(), unknown });
        }
        let (size, formatted) = (device.size(), superblock.layout.size);
        if size < formatted {
            return Err(OpenError::Truncated { device: name(), size, formatted });
        }
        if superblock.owner != *owner {
            let (found, expected) = (Box::new(superblock.owner), Box::new(owner.clone()));
            return Err(OpenError::WrongOwner { device: name(), found, expected });
        }
        Ok(Self { device, superblock })
    }

    pub(crate) fn corrupt(&self, what: &'static str, offset: u64, reason: impl Into<String>) -> OpenError {
        let location = Location { device: self.device.name().to_owned(), what, offset };
        OpenError::Corrupt { location, reason: reason.into() }
    }

    fn layout(&self) -> &Layout {
        &self.superblock.layout
    }

    /// The newest intact checkpoint header.
    async fn find_checkpoint(&self) -> Result<Checkpoint, OpenError> {
        let mut newest: Option<Checkpoint> = None;
        let mut reason = "";
        for copy in 0..CHECKPOINT_BLOCKS {
            let block = read_block(self.device, (1 + copy) * BLOCK as u64).await?;
            match Checkpoint::decode(&block, self.superblock.id) {
                Ok(found) if newest.is_none_or(|newest| newest.generation < found.generation) => {
                    newest = Some(found);
                }
                Ok(_) => {}
                Err(malformed) => reason = malformed.0,
            }
        }
        newest.ok_or_else(|| self.corrupt("the checkpoint header", checkpoint_offset(0, 0), reason))
    }

    /// Reads the bitmaps as of the checkpoint, where the newest of each group is, and the highest number that any has.
    async fn load_space(&self, checkpoint: &Checkpoint) -> Result<(Space, Vec<(u64, u64)>, u64), OpenError> {
        let mut space = Space::new(self.layout().data_blocks, reserve_blocks(self.layout().data_blocks));
        let (mut maps, mut highest) = (Vec::new(), 0);
        for group in 0..space.groups() as u64 {
            let pages = self.device.read(self.layout().map(group, 0), DmaBuf::new(2 * BLOCK)).await?;
            let read = |slot: u64, page: &[u8]| {
                let (number, bits) = decode_map(page, group, self.superblock.id).ok()?;
                Some((number, slot, bits))
            };
            let found = read(0, &pages[..BLOCK]).into_iter().chain(read(1, &pages[BLOCK..]));
            let (valid, stale): (Vec<_>, Vec<_>) =
                found.partition(|(number, ..)| *number <= checkpoint.number);
            let newest = valid.into_iter().max_by_key(|(number, ..)| *number);
            let (number, slot, bits) = newest.ok_or_else(|| {
                self.corrupt("the space map", self.layout().map(group, 0), "both copies are unreadable")
            })?;
            let index = usize::try_from(group).unwrap_or(usize::MAX);
            space.load(index, bits);
            maps.push((number, slot));
            for (number, ..) in stale {
                // Left by a checkpoint that failed. The next one's number is higher, so it has to be overwritten.
                highest = number.max(highest);
                space.mark_dirty(index);
            }
        }
        if maps_checksum(&maps) != checkpoint.maps {
            let reason = "a bitmap is older than the checkpoint says: its newest version is unreadable or was never written";
            return Err(self.corrupt("the space map", self.layout().map_offset, reason));
        }
        Ok((space, maps, highest))
    }

    async fn load_node(&self, place: PageRef, space: &Space) -> Result<StoredNode, OpenError> {
        let offset = self.layout().data(place.block);
        let run = Run::from(place);
        if !space.contains(run)
            || place.len as usize > NODE_BYTES
            || !(place.len as usize).is_multiple_of(BLOCK)
        {
            return Err(self.corrupt("an index node", offset, "its parent gives it an impossible place"));
        }
        let page = self.device.read(offset, DmaBuf::new(place.len as usize)).await?;
        decode_node(&page, place, self.superblock.id)
            .map_err(|malformed| self.corrupt("an index node", offset, malformed.0))
    }

    /// Loads the whole index, level by level.
    async fn load_tree(&self, checkpoint: &Checkpoint, space: &Space) -> Result<Tree, OpenError> {
        let mut levels: Vec<Vec<(PageRef, StoredNode)>> = Vec::new();
        let mut places = vec![checkpoint.root];
        while !places.is_empty() {
            let mut level = Vec::with_capacity(places.len());
            for part in places.chunks(READS_MAX) {
                let nodes = join_all(part.iter().map(|place| self.load_node(*place, space))).await;
                for (place, node) in part.iter().zip(nodes) {
                    level.push((*place, node?));
                }
            }
            let children = |(_, node): &(PageRef, StoredNode)| match node {
                StoredNode::Branch(_, children) => children.clone(),
                StoredNode::Leaf(_) => Vec::new(),
            };
            let next: Vec<PageRef> = level.iter().flat_map(children).collect();
            let leaves = level.iter().filter(|(_, node)| matches!(node, StoredNode::Leaf(_))).count();
            let too_many = next.len() as u64 > self.layout().data_blocks || levels.len() >= LEVELS_MAX;
            if too_many || (leaves > 0 && leaves < level.len()) {
                let offset = self.layout().data(checkpoint.root.block);
                return Err(self.corrupt(
                    "the index",
                    offset,
                    "its leaves are at different depths, or it has a loop",
                ));
            }
            levels.push(level);
            places = next;
        }
        let mut below: std::vec::IntoIter<Rc<Node>> = Vec::new().into_iter();
        while let Some(level) = levels.pop() {
            let mut nodes = Vec::with_capacity(level.len());
            for (place, stored) in level {
                let body = match stored {
                    StoredNode::Leaf(entries) => Body::Leaf(entries),
                    StoredNode::Branch(keys, children) => {
                        Body::Branch(keys, below.by_ref().take(children.len()).collect())
                    }
                };
                nodes.push(Rc::new(Node { home: Rc::new(Home { page: Cell::new(Some(place)) }), body }));
            }
            below = nodes.into_iter();
        }
        let root = below.next().ok_or_else(|| self.corrupt("the index", 0, "it has no root"))?;
        Ok(Tree::new(root, checkpoint.entries))
    }

    /// Opens the store as of its checkpoint and replays the log.
    pub(crate) async fn recover(self, rt: &Handle, config: StoreConfig) -> Result<Rc<Core>, OpenError> {
        let checkpoint = self.find_checkpoint().await?;
        let layout = *self.layout();
        if checkpoint.log_position >= layout.log_len || !checkpoint.log_position.is_multiple_of(BLOCK as u64)
        {
            let offset = checkpoint_offset(checkpoint.generation, 0);
            return Err(self.corrupt("the checkpoint header", offset, "its log position is outside the log"));
        }
        let (space, maps, highest) = self.load_space(&checkpoint).await?;
        let tree = self.load_tree(&checkpoint, &space).await?;
        let catalog = load_catalog(&tree).map_err(|malformed| {
            self.corrupt("the index", layout.data(checkpoint.root.block), malformed.0)
        })?;
        let ring = Ring {
            len: layout.log_len,
            position: checkpoint.log_position,
            sequence: checkpoint.log_sequence,
            previous: checkpoint.log_previous,
            written: 0,
            trimmed: 0,
        };
        let core = Core::new(Parts {
            rt: rt.clone(),
            device: Rc::clone(self.device),
            config,
            id: self.superblock.id,
            layout,
            tree,
            space,
            catalog,
            journal: Journal::new(ring, checkpoint.incarnation),
            checkpoints: Checkpoints::new(checkpoint, highest, maps),
        });
        crate::replay::replay(&self, &core).await?;
        core.space.borrow_mut().finish_recovery();
        core.journal.incarnation.set(checkpoint.incarnation + 1);
        crate::checkpoint::renew_header(&core).await?;
        Ok(core)
    }
}

/// Builds the catalog from the index.
fn load_catalog(tree: &Tree) -> Result<Catalog, Malformed> {
    let mut catalog = Catalog::default();
    // Usage sorts behind the containers it belongs to, snapshots behind everything.
    for kind in [key::POOL, key::CONTAINER, key::USAGE, key::SNAPSHOT] {
        let fault = tree.scan(&[kind], |key, value| {
            if key.first() != Some(&kind) {
                return ControlFlow::Break(None);
            }
            let loaded = if kind == key::USAGE {
                catalog.load_usage(key, value)
            } else {
                catalog.follow(key, Some(value))
            };
            match loaded {
                Ok(()) => ControlFlow::Continue(()),
                Err(malformed) => ControlFlow::Break(Some(malformed)),
            }
        });
        if let Some(Some(malformed)) = fault {
            return Err(malformed);
        }
    }
    Ok(catalog)
}
