//! Comparing everything with everything: nodes with their parents, entries with what they mean, blocks with the space
//! map, usage with the counters, data with its checksums.

use super::blocks::BlockSet;
use super::data::{are_inside, compare};
use super::finding::{Finding, Findings, Severity};
use super::log::Found;
use super::overlay::{Along, Overlay};
use super::report::{
    BlockCount, CheckpointReport, ContainerReport, DataReport, Depth, IndexReport, PoolReport, Region, Report,
};
use super::together::Together;
use super::walk::Walk;
use super::{Inspector, read};
use std::collections::BTreeMap;
use weir_format::bitmap::GROUP_BLOCKS;
use weir_format::blocks::Run;
use weir_format::codec::crc32c;
use weir_format::entry::{Entry, TransactionPart};
use weir_format::key::{self, ContainerNumber, PoolNumber};
use weir_format::node::PageRef;
use weir_format::record::Change;
use weir_format::size::in_memory;
use weir_format::usage::Usage;
use weir_format::value::{Blocks, Inline, Payload, Version};
use weir_format::{CHECKPOINT_BLOCKS, Checkpoint, decode_map, maps_checksum};
use weir_media::BLOCK;
use weir_proto::TransactionId;
use weir_store::offline::{Catalog, Pool};

/// First key behind those of pools, containers and their usage.
const CATALOG_END: [u8; 1] = [key::ATTRIBUTE];

/// The space map: the words of each group's newest bitmap; `None` for groups without a readable one.
struct Map {
    groups: Vec<Option<Vec<u8>>>,
    count: BlockCount,
}

/// A check under way.
struct Check<'a> {
    inspector: &'a Inspector,
    depth: Depth,
    findings: Findings,
    catalog: Catalog,
    /// What the entries of each transaction mean together.
    transactions: Together,
    /// Usage by container as found in the entries.
    usage: BTreeMap<(PoolNumber, ContainerNumber), Usage>,
    /// Blocks of data extents that the checkpoint refers to.
    used: BlockSet,
    /// Blocks of those of them whose entries the log changes.
    overlaid: Vec<Run>,
    /// Who has entries, and where one of them is.
    owners: BTreeMap<(PoolNumber, Option<ContainerNumber>), (&'static str, u64)>,
    index: IndexReport,
    data: DataReport,
}

impl Inspector {
    /// Looks at the store as deeply as asked for. Takes time in proportion to what is looked at.
    pub async fn report(&self, depth: Depth) -> Report {
        let mut findings = self.findings.clone();
        let (log, mut overlay) = self.read_log(&mut findings).await;
        let mut check = Check {
            inspector: self,
            depth,
            findings,
            catalog: Catalog::default(),
            transactions: Together::new(self.overlay_bytes),
            usage: BTreeMap::new(),
            used: BlockSet::new(self.data_blocks()),
            overlaid: Vec::new(),
            owners: BTreeMap::new(),
            index: IndexReport::default(),
            data: DataReport::default(),
        };
        let mut blocks = BlockCount { total: self.layout().data_blocks, ..BlockCount::default() };
        if let Some(checkpoint) = self.checkpoint {
            let map = check.read_map(&checkpoint).await;
            blocks = map.count;
            if depth == Depth::Outline {
                check.read_catalog(checkpoint.root).await;
            } else {
                check.walk(&checkpoint, &map, &mut overlay).await;
                check.follow_transactions(overlay.has_transactions).await;
            }
            check.apply_log(overlay).await;
            if depth > Depth::Outline {
                check.judge_transactions();
            }
            if depth > Depth::Outline && check.index.lost_nodes == 0 {
                check.check_owners();
            }
        }
        let walked = depth > Depth::Outline && self.checkpoint.is_some();
        let superblock = &self.superblock;
        Report {
            device: self.device.name().to_owned(),
            size: self.device.size(),
            version: superblock.version,
            features: superblock.features,
            id: superblock.id,
            owner: superblock.owner.clone(),
            formatted_ns: superblock.formatted_ns,
            depth,
            regions: self.regions(),
            copies: [self.copies.clone(), self.headers.clone()].concat(),
            checkpoint: self.checkpoint.as_ref().map(|header| self.describe_checkpoint(header)),
            log,
            blocks,
            pools: describe_pools(&check.catalog),
            index: walked.then_some(check.index),
            data: walked.then_some(check.data),
            findings: check.findings.list,
            damages: check.findings.damages,
            notes: check.findings.notes,
        }
    }

    fn regions(&self) -> Vec<Region> {
        let (layout, block) = (self.layout(), BLOCK as u64);
        let region = |name, offset, len| Region { name, offset, len };
        vec![
            region("superblock", 0, block),
            region("checkpoint headers", block, CHECKPOINT_BLOCKS * block),
            region("space map", layout.map_offset, layout.groups.saturating_mul(2 * block)),
            region("log ring", layout.log_offset, layout.log_len),
            region("data region", layout.data_offset, layout.data_blocks.saturating_mul(block)),
            region("copy of the superblock", layout.size - block, block),
        ]
    }

    fn describe_checkpoint(&self, header: &Checkpoint) -> CheckpointReport {
        CheckpointReport {
            generation: header.generation,
            number: header.number,
            incarnation: header.incarnation,
            root: self.layout().data(header.root.block),
            entries: header.entries,
            newest_epoch: header.newest,
        }
    }
}

fn describe_pools(catalog: &Catalog) -> Vec<PoolReport> {
    let pool = |(number, pool): (&PoolNumber, &Pool)| PoolReport {
        number: *number,
        id: pool.id,
        size: pool.size,
        destroyed: pool.destroying,
        containers: pool
            .containers
            .iter()
            .map(|(number, container)| ContainerReport {
                number: *number,
                id: container.id,
                quota: container.quota,
                destroyed: container.destroying,
                snapshots: container.snapshots.len() as u64,
                data_bytes: container.usage.blocks.saturating_mul(BLOCK as u64),
                entry_bytes: container.usage.entries,
            })
            .collect(),
    };
    catalog.pools.iter().map(pool).collect()
}

impl Check<'_> {
    /// Reads the bitmaps that belong to a checkpoint.
    async fn read_map(&mut self, checkpoint: &Checkpoint) -> Map {
        let layout = *self.inspector.layout();
        let mut count = BlockCount { total: layout.data_blocks, ..BlockCount::default() };
        let (mut groups, mut numbers) = (Vec::new(), Vec::new());
        for group in 0..layout.data_blocks.div_ceil(GROUP_BLOCKS) {
            let offset = layout.map(group, 0);
            if offset + 2 * BLOCK as u64 > self.inspector.device.size() {
                break;
            }
            let pages = match read(&self.inspector.device, offset, 2 * BLOCK).await {
                Ok(pages) => pages,
                Err(reason) => {
                    self.findings.damage("space map", offset, 2 * BLOCK as u64, reason);
                    count.unreadable_groups += 1;
                    groups.push(None);
                    continue;
                }
            };
            let decoded: Vec<_> = pages
                .chunks(BLOCK)
                .map(|page| decode_map(page, group, self.inspector.superblock.id))
                .collect();
            let valid = decoded.iter().flatten().filter(|(number, _)| *number <= checkpoint.number);
            let Some((number, bits)) = valid.max_by_key(|(number, _)| *number) else {
                let reason = "both bitmaps of the group are unreadable or belong to no checkpoint".to_owned();
                self.findings.damage("space map", offset, 2 * BLOCK as u64, reason);
                count.unreadable_groups += 1;
                groups.push(None);
                continue;
            };
            numbers.push((*number, 0));
            let bytes = bits.to_bytes();
            count.marked += bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
            for (slot, page) in decoded.iter().enumerate() {
                let is_blank = pages[slot * BLOCK..(slot + 1) * BLOCK].iter().all(|byte| *byte == 0);
                if let Err(malformed) = page
                    && !is_blank
                {
                    let reason = format!("{}: the older one of two, or one that a crash tore", malformed.0);
                    self.findings.note("space map", offset + (slot * BLOCK) as u64, BLOCK as u64, reason);
                }
            }
            groups.push(Some(bytes));
        }
        if count.unreadable_groups == 0 && maps_checksum(&numbers) != checkpoint.maps {
            let reason = "a bitmap is older than the checkpoint says: its newest version is unreadable or was never written".to_owned();
            self.findings.damage(
                "space map",
                layout.map_offset,
                layout.groups.saturating_mul(2 * BLOCK as u64),
                reason,
            );
        }
        Map { groups, count }
    }

    /// Takes in an entry of a pool, container, usage or snapshot.
    fn catalogue(&mut self, key: &[u8], value: &[u8], place: PageRef) {
        let taken = if key.first() == Some(&key::USAGE) {
            self.catalog.load_usage(key, value)
        } else {
            self.catalog.follow(key, Some(value))
        };
        if let Err(malformed) = taken {
            self.entry_fault(place, None, malformed.0);
        }
    }

    fn entry_fault(&mut self, place: PageRef, subject: Option<String>, reason: &str) {
        let (offset, len) = (self.inspector.layout().data(place.block), u64::from(place.len));
        let (severity, reason) = (Severity::Damage, reason.to_owned());
        self.findings.add(Finding { severity, what: "index entry", offset, len, subject, reason });
    }

    /// Reads pools, containers and snapshots without the rest of the index.
    async fn read_catalog(&mut self, root: PageRef) {
        for (from, below) in [(&[][..], Some(&CATALOG_END[..])), (&[key::SNAPSHOT][..], None)] {
            let mut findings = Findings::default();
            let mut walk = Walk::new(self.inspector, root, from, below).await;
            let mut leaves = Vec::new();
            while let Some(leaf) = walk.next_leaf(&mut findings).await {
                leaves.push((leaf.place, leaf.entries));
            }
            self.findings.take_in(findings);
            for (place, entries) in leaves {
                for at in 0..entries.len() {
                    let key = entries.key(at);
                    if key.as_slice() >= from && below.is_none_or(|below| key.as_slice() < below) {
                        self.catalogue(&key, entries.value(at), place);
                    }
                }
            }
        }
    }

    /// Walks the whole index.
    async fn walk(&mut self, checkpoint: &Checkpoint, map: &Map, overlay: &mut Overlay<'_>) {
        let inspector = self.inspector;
        let mut findings = core::mem::take(&mut self.findings);
        let mut walk = Walk::new(inspector, checkpoint.root, &[], None).await;
        while let Some(leaf) = walk.next_leaf(&mut findings).await {
            self.findings = findings;
            for at in 0..leaf.entries.len() {
                self.entry(&leaf.entries.key(at), leaf.entries.value(at), leaf.place, overlay).await;
            }
            findings = core::mem::take(&mut self.findings);
        }
        self.findings = findings;
        self.index.levels = walk.levels as u64;
        self.index.nodes = walk.nodes;
        self.index.bytes = walk.bytes;
        self.index.lost_nodes = walk.lost;
        let root = inspector.layout().data_offset;
        if walk.lost == 0 && self.index.entries != checkpoint.entries {
            let reason = format!(
                "{} entries are there, the checkpoint counts {}",
                self.index.entries, checkpoint.entries
            );
            self.findings.damage("index", root, walk.bytes, reason);
        }
        self.compare_map(map, &walk.seen, walk.lost);
        if walk.lost == 0 {
            self.compare_usage(root);
        }
    }

    /// Looks at an entry of the checkpoint.
    async fn entry(&mut self, key: &[u8], value: &[u8], place: PageRef, overlay: &mut Overlay<'_>) {
        self.index.entries += 1;
        let entry = match Entry::decode(key, value) {
            Ok(entry) => entry,
            Err(malformed) => {
                let subject =
                    key::owner(key).map(|(pool, container)| format!("pool {pool} container {container}"));
                return self.entry_fault(place, subject, malformed.0);
            }
        };
        if let Some(owner) = key::owner(key) {
            // What it is was just decoded.
            *self.usage.entry(owner).or_default() += Usage::of_entry(key, value, 0).unwrap_or_default();
        }
        if let Some(owner) = key::belongs_to(key)
            && !overlay.has(key).await
        {
            let offset = self.inspector.layout().data(place.block);
            self.owners.entry(owner).or_insert(("index entry", offset));
        }
        let (owner, payload, subject) = match entry {
            Entry::Object { path, item } => {
                let owner = (path.pool, path.container);
                (owner, item.payload().cloned(), format!("{path} epoch {}", item.epoch()))
            }
            Entry::Transaction { pool, container, id, part } => {
                let subject = transaction_subject(pool, container, id);
                if let Err(malformed) = self.transactions.follow(key, Some(value)) {
                    return self.entry_fault(place, Some(subject), malformed.0);
                }
                let TransactionPart::Version { payload, .. } = part else { return };
                ((pool, container), Some(payload), subject)
            }
            Entry::Attribute { .. } => return,
            _ => return self.catalogue(key, value, place),
        };
        let in_log = overlay.has(key).await;
        if in_log {
            let runs = Version::runs(value).unwrap_or_default();
            self.overlaid.extend(runs.into_iter().filter(|run| self.used.has_room_for(*run)));
        }
        let offset = self.inspector.layout().data(place.block);
        let blocks = match &payload {
            Some(Payload::Blocks(blocks)) => blocks,
            Some(Payload::Inline(inline)) if !in_log => {
                return self.inline(inline, (offset, place.len.into()), &subject);
            }
            _ => return,
        };
        if self.claim(blocks, &subject, ("index entry", offset)) {
            let usage = self.usage.entry(owner).or_default();
            usage.blocks += blocks.runs.iter().map(|run| run.count).sum::<u64>();
            // What the log has changed may have been overwritten since.
            if !in_log {
                self.extent(blocks, &subject).await;
            }
        }
    }

    /// Entries whose pool or container is gone belong to nobody. Which ones are there is known when the log's changes
    /// are, too: destroyed containers lose their entries first and themselves at last.
    fn check_owners(&mut self) {
        for (owner, (what, offset)) in core::mem::take(&mut self.owners) {
            if !self.catalog.has(owner) {
                let (pool, container) = owner;
                let container =
                    container.map_or_else(String::new, |container| format!(" container {container}"));
                let subject = Some(format!("pool {pool}{container}"));
                let reason = "its pool or container does not exist".to_owned();
                let (severity, len) = (Severity::Damage, BLOCK as u64);
                self.findings.add(Finding { severity, what, offset, len, subject, reason });
            }
        }
    }

    /// Marks the blocks of a value as used. `false`: they aren't there, or another value has them too.
    fn claim(
        &mut self,
        blocks: &Blocks,
        subject: &dyn core::fmt::Display,
        (what, offset): (&'static str, u64),
    ) -> bool {
        let mut fault = None;
        if are_inside(self.inspector, &blocks.runs) {
            let shared: u64 = blocks.runs.iter().map(|run| self.used.add(*run)).sum();
            if shared > 0 {
                fault = Some(format!("{shared} of its blocks belong to another value too"));
            }
        } else {
            fault = Some("its blocks lie outside the data region".to_owned());
        }
        let Some(reason) = fault else { return true };
        let subject = Some(subject.to_string());
        self.findings.add(Finding {
            severity: Severity::Damage,
            what,
            offset,
            len: BLOCK as u64,
            subject,
            reason,
        });
        false
    }

    /// Counts a data extent and compares it with its checksums.
    async fn extent(&mut self, blocks: &Blocks, subject: &dyn core::fmt::Display) {
        self.data.extents += 1;
        self.data.bytes += blocks.len();
        if self.depth < Depth::Everything {
            return;
        }
        let compared = compare(self.inspector, blocks).await;
        self.data.checked += compared.pieces;
        self.data.damaged += compared.bad.len() as u64;
        let subject = || Some(subject.to_string());
        for piece in compared.bad {
            let (severity, subject) = (Severity::Damage, subject());
            let (offset, len, reason) = (piece.offset, piece.len, piece.reason);
            self.findings.add(Finding { severity, what: "data", offset, len, subject, reason });
        }
        if let Some(offset) = compared.tail {
            let (severity, len, subject) = (Severity::Note, BLOCK as u64, subject());
            let reason = "behind the value's end its last block is not zero".to_owned();
            self.findings.add(Finding { severity, what: "data", offset, len, subject, reason });
        }
    }

    /// Compares data that stands in the index or the log, at this place, with its checksum.
    fn inline(&mut self, inline: &Inline, (offset, len): (u64, u64), subject: &dyn core::fmt::Display) {
        let Some(checksum) = inline.checksum.filter(|_| self.depth == Depth::Everything) else { return };
        self.data.checked += 1;
        if checksum != crc32c(&inline.bytes) {
            self.data.damaged += 1;
            let (severity, subject) = (Severity::Damage, Some(subject.to_string()));
            let reason = "it does not match its checksum".to_owned();
            self.findings.add(Finding { severity, what: "data", offset, len, subject, reason });
        }
    }

    /// Compares the blocks that nodes and values have with those that the space map marks.
    fn compare_map(&mut self, map: &Map, nodes: &BlockSet, lost: u64) {
        let (layout, blocks) = (self.inspector.layout(), self.inspector.data_blocks());
        let (mut unmarked, mut leaked, mut shared) = ((0u64, 0), (0u64, 0), (0u64, 0));
        let count = |(number, first): &mut (u64, u64), word: u64, bits: u64| {
            if bits != 0 {
                if *number == 0 {
                    *first = word * 64 + u64::from(bits.trailing_zeros());
                }
                *number += u64::from(bits.count_ones());
            }
        };
        // A group has a whole number of words.
        for word in 0..blocks.div_ceil(64) {
            let (group, within) = (word * 64 / GROUP_BLOCKS, word * 64 % GROUP_BLOCKS / 8);
            let (data, index) = (self.used.word(word), nodes.word(word));
            count(&mut shared, word, data & index);
            let bytes = usize::try_from(group).ok().and_then(|group| map.groups.get(group)?.as_ref());
            let within = in_memory(within);
            let Some(marked) = bytes.and_then(|bytes| bytes.get(within..within + 8)?.try_into().ok()) else {
                continue;
            };
            let marked = u64::from_le_bytes(marked);
            count(&mut unmarked, word, (data | index) & !marked);
            count(&mut leaked, word, marked & !(data | index));
        }
        let place = |block: u64| layout.data(block);
        if shared.0 > 0 {
            let reason = format!("{} blocks from here on belong to index nodes and to values", shared.0);
            self.findings.damage("data region", place(shared.1), shared.0 * BLOCK as u64, reason);
        }
        if unmarked.0 > 0 {
            let reason = format!(
                "{} blocks from here on are in use but not marked so: they may be given out again",
                unmarked.0
            );
            self.findings.damage("space map", place(unmarked.1), unmarked.0 * BLOCK as u64, reason);
        }
        if leaked.0 > 0 && lost == 0 {
            let reason =
                format!("{} blocks from here on are marked as used, but nothing refers to them", leaked.0);
            self.findings.note("space map", place(leaked.1), leaked.0 * BLOCK as u64, reason);
        }
    }

    fn compare_usage(&mut self, offset: u64) {
        let catalog = core::mem::take(&mut self.catalog);
        for (number, pool) in &catalog.pools {
            for (container_number, container) in &pool.containers {
                let found = self.usage.get(&(*number, *container_number)).copied().unwrap_or_default();
                if container.usage != found {
                    let reason = format!("{:?} is counted, {found:?} is there", container.usage);
                    let subject = Some(format!("pool {number} container {container_number}"));
                    let (severity, what) = (Severity::Note, "usage");
                    self.findings.add(Finding { severity, what, offset, len: 0, subject, reason });
                }
            }
        }
        self.catalog = catalog;
    }

    /// Looks at a version that the log stores.
    async fn log_version(&mut self, payload: Option<&Payload>, subject: &str) {
        let (offset, len) = (self.inspector.layout().log_offset, self.inspector.layout().log_len);
        match payload {
            Some(Payload::Blocks(blocks))
                if self.depth > Depth::Outline && self.claim(blocks, &subject, ("log record", offset)) =>
            {
                self.extent(blocks, &subject).await;
            }
            Some(Payload::Inline(inline)) => self.inline(inline, (offset, len), &subject),
            _ => {}
        }
    }

    /// Whether an open makes sense of transactions at each of the log's changes; it ends with the first of which it can't. What a
    /// transaction's entries mean together is found out at each of them, so the log is read once more where it has such.
    async fn follow_transactions(&mut self, log_has_some: bool) {
        let (transactions, mut malformed) = (&mut self.transactions, None);
        let mut follow = |_: &Inspector, found: &Found, change: Change, _: &mut Findings| {
            let (key, value) = match &change {
                Change::Put { key, value } => (key, Some(value.as_slice())),
                Change::Remove { key } => (key, None),
            };
            if malformed.is_none()
                && let Err(fault) = transactions.follow(key, value)
            {
                malformed = Some((found.offset, u64::from(found.batch.len), fault.0.to_owned()));
            }
        };
        // What the reading itself finds is told of already.
        if log_has_some {
            self.inspector.read_changes(&mut Findings::default(), &mut follow).await;
        }
        if let Some((offset, len, reason)) = malformed {
            self.findings.damage("log batch", offset, len, reason);
        }
    }

    /// Looks whether what there is of each prepared transaction is all of it. Which containers are being destroyed, and lose such one by
    /// one, is known when the log's changes are.
    fn judge_transactions(&mut self) {
        let data = self.inspector.layout().data_offset;
        let Some(misfits) = self.transactions.misfits() else {
            let reason = format!(
                "all transactions take more than {} bytes of memory: the check is incomplete, what the entries of each mean together was not looked at",
                self.transactions.limit()
            );
            return self.findings.note("index", data, 0, reason);
        };
        for ((pool, container, id), misfit) in misfits {
            if self.catalog.is_going(pool, container) {
                continue;
            }
            let reason = format!("{}: {misfit}", transaction_subject(pool, container, id));
            self.findings.damage("index", data, 0, reason);
        }
    }

    /// What the log's changes mean for blocks, data and catalog.
    async fn apply_log(&mut self, mut overlay: Overlay<'_>) {
        let log_offset = self.inspector.layout().log_offset;
        for run in core::mem::take(&mut self.overlaid) {
            self.used.remove(run);
        }
        let mut changed = Along::new(&mut overlay, &[], None);
        while let Some((key, value)) = changed.next_if(|_| true).await {
            if let Some(owner) = key::belongs_to(&key).filter(|_| value.is_some()) {
                self.owners.entry(owner).or_insert(("log record", log_offset));
            }
            let decoded = match &value {
                Some(value) => Entry::decode(&key, value).map(Some),
                None => Ok(None),
            };
            match decoded {
                Ok(Some(Entry::Object { path, item })) => {
                    let subject = format!("{path} epoch {}", item.epoch());
                    self.log_version(item.payload(), &subject).await;
                }
                Ok(Some(Entry::Transaction { pool, container, id, part })) => {
                    let payload = match &part {
                        TransactionPart::Version { payload, .. } => Some(payload),
                        TransactionPart::Operations { .. } | TransactionPart::Decision { .. } => None,
                    };
                    let subject = transaction_subject(pool, container, id);
                    self.log_version(payload, &subject).await;
                }
                Ok(_) => {
                    if let Err(malformed) = self.catalog.follow(&key, value.as_deref()) {
                        self.findings.damage("log record", log_offset, 0, malformed.0.to_owned());
                    }
                }
                // Named with its batch already.
                Err(_) => {}
            }
        }
    }
}

/// Whom a version of a prepared transaction belongs to, in words.
fn transaction_subject(pool: PoolNumber, container: ContainerNumber, id: TransactionId) -> String {
    format!("pool {pool} container {container} transaction {id}")
}
