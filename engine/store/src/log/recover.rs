//! Opening a device: superblock, checkpoint, log.

use crate::format::bitmap::Bits;
use crate::format::codec::Malformed;
use crate::format::key;
use crate::format::owner::Owner;
use crate::format::ring::Ring;
use crate::format::{
    CHECKPOINT_BLOCKS, Checkpoint, FEATURES_KNOWN, Layout, Superblock, SuperblockFault, VERSION_NEWEST,
    VERSION_OLDEST, checkpoint_offset, decode_map, maps_checksum, read_superblock,
};
use crate::index::fault::Location;
use crate::index::fault::{Fault, Halt};
use crate::index::tree::{Body, Meter, Node, Packed, Tree};
use crate::space::map::Space;
use crate::state::catalog::Catalog;
use crate::state::checkpoints::Checkpoints;
use crate::state::config::StoreConfig;
use crate::state::core::{Core, Parts, reserve_blocks};
use crate::state::error::OpenError;
use crate::state::journal::Journal;
use crate::state::lost::scan_kind;
use crate::versions::intents::Transactions;
use core::ops::ControlFlow;
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_media::{BLOCK, Device, DmaBuf};
use weir_runtime::{Handle, join_all};

/// Groups whose bitmaps are read at once: 512 KiB.
const GROUPS_PER_READ: usize = 64;

/// Such reads in flight.
const READS_MAX: usize = 8;

/// What is wrong with the space map.
pub(crate) struct MapDamage {
    /// Groups, ascending, whose stored bits may not be those of the checkpoint.
    pub(crate) groups: Vec<usize>,
    /// First byte on the device of where that shows.
    pub(crate) offset: u64,
    pub(crate) reason: &'static str,
}

/// The space map as it was read.
struct Map {
    space: Space,
    /// Number and slot of the newest bitmap of each group.
    newest: Vec<(u64, u64)>,
    /// The highest number that any bitmap has.
    highest: u64,
    /// Groups without a bitmap that counts.
    lost: Vec<usize>,
    /// Groups of which something stands in the place of a bitmap that is none.
    spoilt: Vec<usize>,
}

/// A device being opened.
pub(crate) struct Opening<'a> {
    pub(crate) device: &'a Rc<dyn Device>,
    pub(crate) superblock: Superblock,
}

/// Reads a block.
async fn read_block(device: &Rc<dyn Device>, offset: u64) -> Result<DmaBuf, OpenError> {
    Ok(device.read(offset, DmaBuf::new(BLOCK)).await?)
}

/// What to do where nothing says how large the device was when it was formatted.
const GROWN: &str =
    "; if the device has grown since it was formatted, copy the last block that it had then to its start";

/// Where the copy of the superblock is when the first isn't intact, and what to add when none is found there. A device that was
/// enlarged has it where it was, which the checkpoint headers tell.
pub async fn find_copy(device: &Rc<dyn Device>) -> (u64, &'static str) {
    let mut newest = None;
    for copy in 0..CHECKPOINT_BLOCKS {
        if let Ok(block) = read_block(device, (1 + copy) * BLOCK as u64).await
            && let Ok((header, _)) = Checkpoint::decode_any(&block)
            && header.size > 0
        {
            newest = newest.max(Some((header.generation, header.size)));
        }
    }
    let sizes = BLOCK as u64..=device.size();
    match newest.filter(|(_, formatted)| sizes.contains(formatted)) {
        Some((_, formatted)) => (Layout::copy_offset(formatted), ""),
        None => (Layout::copy_offset(device.size().max(BLOCK as u64)), GROWN),
    }
}

/// Reads the superblock, or else its copy, and decides what the device is.
async fn find_superblock(device: &Rc<dyn Device>) -> Result<Superblock, OpenError> {
    let name = || device.name().to_owned();
    let first = match read_block(device, 0).await.map(|block| read_superblock(&block)) {
        Ok(Ok(superblock)) => return Ok(superblock),
        Ok(Err(fault)) => Ok(fault),
        Err(error) => Err(error),
    };
    let (copy_offset, remedy) = find_copy(device).await;
    let copy = if copy_offset == 0 {
        Ok(Err(SuperblockFault::Blank))
    } else {
        read_block(device, copy_offset).await.map(|block| read_superblock(&block))
    };
    // One that the device can't read is as good as damaged.
    let (first, copy) = match (first, copy) {
        (Err(_), Ok(Ok(superblock))) => return Ok(superblock),
        (first, copy) => (first?, copy?),
    };
    match (first, copy) {
        (SuperblockFault::Damaged(_), Ok(superblock)) => Ok(superblock),
        (SuperblockFault::Unfinished, _) => Err(OpenError::Unfinished { device: name() }),
        (SuperblockFault::UnfinishedCopy(from), _) => Err(OpenError::UnfinishedCopy { device: name(), from }),
        (SuperblockFault::Blank, Ok(_)) => {
            Err(OpenError::Overwritten { device: name(), found: "zeros", copy: copy_offset })
        }
        (SuperblockFault::Foreign(found), Ok(_)) => {
            Err(OpenError::Overwritten { device: name(), found, copy: copy_offset })
        }
        (SuperblockFault::Blank, Err(_)) => Err(OpenError::Blank { device: name() }),
        (SuperblockFault::Foreign(found), Err(_)) => Err(OpenError::Foreign { device: name(), found }),
        (SuperblockFault::Damaged(reason), Err(_)) => Err(OpenError::Corrupt {
            location: Location { device: name(), what: "the superblock", offset: 0 },
            reason: format!("{reason}, and its copy at byte {copy_offset} is unreadable too{remedy}"),
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
        let (mut reason, mut unread) = ("", None);
        for copy in 0..CHECKPOINT_BLOCKS {
            let block = match read_block(self.device, (1 + copy) * BLOCK as u64).await {
                Ok(block) => block,
                // As good as damaged.
                Err(error) => {
                    unread = Some(error);
                    continue;
                }
            };
            match Checkpoint::decode(&block, self.superblock.id) {
                Ok(found) if newest.is_none_or(|newest| newest.generation < found.generation) => {
                    newest = Some(found);
                }
                Ok(_) => {}
                Err(malformed) => reason = malformed.0,
            }
        }
        let corrupt = || self.corrupt("the checkpoint header", checkpoint_offset(0, 0), reason);
        newest.ok_or_else(|| unread.unwrap_or_else(corrupt))
    }

    /// Reads the bitmaps as of the checkpoint. What is damaged of them is left to the index to say.
    async fn load_space(&self, checkpoint: &Checkpoint) -> Result<(Map, Option<MapDamage>), OpenError> {
        let blocks = self.layout().data_blocks;
        let space = Space::new(blocks, reserve_blocks(blocks));
        let mut map = Map { space, newest: Vec::new(), highest: 0, lost: Vec::new(), spoilt: Vec::new() };
        let groups: Vec<usize> = (0..map.space.groups()).collect();
        let parts: Vec<&[usize]> = groups.chunks(GROUPS_PER_READ).collect();
        for parts in parts.chunks(READS_MAX) {
            let read = join_all(parts.iter().map(|part| self.read_maps(part))).await;
            for (part, pages) in parts.iter().zip(read) {
                let pages = pages?;
                for (group, pages) in part.iter().zip(pages.chunks(2 * BLOCK)) {
                    self.load_group(checkpoint, *group, pages, &mut map);
                }
            }
        }
        let damage = self.judge_map(&map, checkpoint);
        Ok((map, damage))
    }

    /// Whether these are the bitmaps that the checkpoint has, and of which groups they may not be.
    fn judge_map(&self, map: &Map, checkpoint: &Checkpoint) -> Option<MapDamage> {
        let place = |groups: &[usize]| self.layout().map(groups.first().map_or(0, |group| *group as u64), 0);
        if !map.lost.is_empty() {
            // Others may be older than the checkpoint says: without the numbers of these nothing tells.
            let groups: Vec<usize> =
                map.lost.iter().chain(&map.spoilt).copied().collect::<BTreeSet<_>>().into_iter().collect();
            let reason = "both bitmaps of a group are unreadable";
            return Some(MapDamage { offset: place(&map.lost), groups, reason });
        }
        if maps_checksum(&map.newest) == checkpoint.maps {
            return None;
        }
        let reason = "a bitmap is older than the checkpoint says: its newest version is unreadable or was never written";
        // The one that is missing was damaged, or else it is any that the checkpoint hasn't written.
        let is_older = |group: &usize| map.newest[*group].0 != checkpoint.number;
        let mut groups: Vec<usize> = map.spoilt.iter().copied().filter(is_older).collect();
        if groups.is_empty() {
            groups = (0..map.newest.len()).filter(is_older).collect();
        }
        Some(MapDamage { offset: place(&groups), groups, reason })
    }

    /// Reads both pages of each of these groups, which lie one behind the other. What the device can't read is zeros, which are
    /// no bitmap: the other page of the group may be the one that counts. Fails where it can read none of them.
    async fn read_maps(&self, groups: &[usize]) -> Result<DmaBuf, OpenError> {
        let len = groups.len() * 2 * BLOCK;
        let offset = self.layout().map(groups.first().map_or(0, |group| *group as u64), 0);
        let error = match self.device.read(offset, DmaBuf::new(len)).await {
            Ok(pages) => return Ok(pages),
            Err(error) => error,
        };
        let (mut pages, mut is_dead) = (DmaBuf::new(len), true);
        for (at, page) in pages.chunks_mut(BLOCK).enumerate() {
            match read_block(self.device, offset + (at * BLOCK) as u64).await {
                Ok(read) => {
                    page.copy_from_slice(&read);
                    is_dead = false;
                }
                Err(_) => page.fill(0),
            }
        }
        if is_dead { Err(error.into()) } else { Ok(pages) }
    }

    /// Takes in the newest bitmap of a group from both its pages.
    fn load_group(&self, checkpoint: &Checkpoint, index: usize, pages: &[u8], map: &mut Map) {
        let (mut newest, mut is_torn): (Option<(u64, u64, Bits)>, _) = (None, false);
        for (slot, page) in (0..).zip(pages.chunks(BLOCK)) {
            match decode_map(page, index as u64, self.superblock.id) {
                Ok((number, bits)) if number <= checkpoint.number => {
                    if newest.as_ref().is_none_or(|(known, ..)| *known <= number) {
                        newest = Some((number, slot, bits));
                    }
                }
                Ok((number, _)) => {
                    // Left by a checkpoint that failed. The next one's number is higher, so it has to be overwritten.
                    map.highest = map.highest.max(number);
                    map.space.mark_dirty(index);
                }
                Err(_) => is_torn |= page.iter().any(|byte| *byte != 0),
            }
        }
        if is_torn {
            map.spoilt.push(index);
        }
        if let Some((number, slot, bits)) = newest {
            map.space.load(index, bits);
            map.newest.push((number, slot));
        } else {
            map.lost.push(index);
            // The next one goes to the first place.
            map.newest.push((0, 1));
        }
    }

    /// Reads the root of the index, the nodes that stay in memory, and the catalog.
    async fn load_index(&self, core: &Core, checkpoint: &Checkpoint) -> Result<(), OpenError> {
        let body = core.read_node(checkpoint.root).await?;
        let meter = Meter::default();
        let root = Node::loaded(checkpoint.root, body, &meter);
        *core.tree.borrow_mut() = Tree::new(root, checkpoint.entries, meter);
        core.load_pinned().await?;
        core.load_behind_objects().await?;
        let damaged = |malformed: Malformed| {
            self.corrupt("the index", self.layout().data(checkpoint.root.block), malformed.0)
        };
        let catalog = core
            .ask(|tree| load_catalog(core, tree).map_err(|fault| -> Halt<OpenError> { fault.map(damaged) }));
        *core.catalog.borrow_mut() = catalog.await?;
        core.shut_containers()?;
        let transactions = core.ask(|tree| {
            load_transactions(core, tree).map_err(|fault| -> Halt<OpenError> { fault.map(damaged) })
        });
        let mut transactions = transactions.await?;
        transactions.set_forgotten(checkpoint.forgotten);
        *core.transactions.borrow_mut() = transactions;
        Ok(())
    }

    /// Opens the store as of its checkpoint and replays the log.
    pub(crate) async fn recover(self, rt: &Handle, config: StoreConfig) -> Result<Rc<Core>, OpenError> {
        let checkpoint = self.find_checkpoint().await?;
        if let Some(mark) = &config.mark {
            crate::log::mark::check(&self, mark, checkpoint.generation, checkpoint.newest)?;
        }
        let layout = *self.layout();
        let ring = Ring::of(&checkpoint, &layout).ok_or_else(|| {
            let offset = checkpoint_offset(checkpoint.generation, 0);
            self.corrupt("the checkpoint header", offset, "its log position is outside the log")
        })?;
        let (map, damage) = self.load_space(&checkpoint).await?;
        let core = Core::new(Parts {
            rt: rt.clone(),
            device: Rc::clone(self.device),
            config,
            id: self.superblock.id,
            version: self.superblock.version,
            layout,
            tree: empty_tree(),
            space: map.space,
            catalog: Catalog::default(),
            journal: Journal::new(ring, checkpoint.incarnation),
            checkpoints: Checkpoints::new(checkpoint, map.highest, map.newest),
        });
        core.scrub.set_position(checkpoint.scrub);
        self.load_index(&core, &checkpoint).await?;
        if let Some(damage) = damage {
            crate::log::derive::space(&core, checkpoint.root, &damage).await?;
        }
        let known = crate::log::replay::replay(&self, &core).await?;
        core.tell_dropped();
        // A process that was killed may have left what was found in the drive's cache.
        self.device.flush().await?;
        core.journal.set_stable();
        core.space.borrow_mut().finish_recovery();
        core.timestamps.set_floor(core.newest_epoch().max(rt.wall_ns()));
        core.journal.incarnation.set(checkpoint.incarnation + 1);
        crate::log::checkpoint::renew_header(&core, known).await?;
        Ok(core)
    }
}

/// A tree that stands in until the root is read.
fn empty_tree() -> Tree {
    let meter = Meter::default();
    Tree::new(Node::new(Body::Leaf(Packed::default()), &meter), 0, meter)
}

/// Builds the table of transactions from the index. Of containers that are shut it has none: not all of them are known.
fn load_transactions(core: &Core, tree: &Tree) -> Result<Transactions, Fault> {
    let mut transactions = Transactions::without(core.catalog.borrow().all_shut());
    let fault =
        scan_kind(core, tree, key::TRANSACTION, |key, value| match transactions.follow(key, Some(value)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(malformed) => ControlFlow::Break(malformed),
        })?;
    fault.map_or(Ok(transactions), |malformed| Err(malformed.into()))
}

/// Builds the catalog from the index.
fn load_catalog(core: &Core, tree: &Tree) -> Result<Catalog, Fault> {
    let mut catalog = Catalog::default();
    // Usage sorts behind the containers it belongs to, snapshots behind everything.
    for kind in [key::POOL, key::CONTAINER, key::USAGE, key::SNAPSHOT] {
        let fault = scan_kind(core, tree, kind, |key, value| {
            let loaded = if kind == key::USAGE {
                catalog.load_usage(key, value)
            } else {
                catalog.follow(key, Some(value))
            };
            match loaded {
                Ok(()) => ControlFlow::Continue(()),
                Err(malformed) => ControlFlow::Break(malformed),
            }
        })?;
        if let Some(malformed) = fault {
            return Err(malformed.into());
        }
    }
    Ok(catalog)
}
