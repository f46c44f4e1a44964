//! Printing what is on a device, part by part, as lines of named fields.

use super::finding::Findings;
use super::log::{LogWalk, Overlay};
use super::walk::Walk;
use super::{InspectError, Inspector, read};
use crate::catalog::Catalog;
use crate::entry::{Entry, Item, TransactionPart, event_name};
use crate::format::{BatchKind, decode_map};
use crate::intents::Decision;
use crate::key;
use crate::record::Change;
use crate::space::GROUP_BLOCKS;
use crate::value::{Blocks, Payload};
use core::ops::ControlFlow;
use std::fmt::Write as _;
use weir_media::{BLOCK, MediaError};
use weir_proto::{ContainerId, ObjectId, PoolId};

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Entries of the index with the log's changes applied: what an open would find.
    Entries,
    /// Nodes of the index as the checkpoint has them.
    Nodes,
    /// Batches of the log behind the checkpoint, and their changes.
    Log,
    /// Runs of blocks that the space map marks as used.
    Map,
    /// Bytes of the device from an offset on.
    Bytes {
        /// First byte; rounded down to a whole line of 16.
        offset: u64,
    },
}

/// Which of the entries are printed, and how many lines.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this pool.
    pub pool: Option<PoolId>,
    /// Only this container.
    pub container: Option<ContainerId>,
    /// Only this object.
    pub object: Option<ObjectId>,
    /// Keys from this one on, as an earlier dump named it.
    pub from: Vec<u8>,
    /// Most lines.
    pub limit: usize,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// Yes or no.
    Flag(bool),
}

impl core::fmt::Display for Field {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
        }
    }
}

/// One line: names and values in their order.
pub type Line = Vec<(&'static str, Field)>;

fn text(text: impl Into<String>) -> Field {
    Field::Text(text.into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The lines so far, and whether there is room for more.
struct Lines {
    done: Vec<Line>,
    limit: usize,
    /// Key of the first entry that found no room.
    next: Option<Vec<u8>>,
}

impl Lines {
    fn push(&mut self, line: Line) -> ControlFlow<()> {
        if self.done.len() >= self.limit {
            return ControlFlow::Break(());
        }
        self.done.push(line);
        ControlFlow::Continue(())
    }
}

impl Inspector {
    /// Lines of a part up to the filter's limit, and, for entries, the key that the next dump starts from.
    ///
    /// # Errors
    /// When bytes that were asked for can't be read, or the pool or container isn't found whose entries are. Other parts leave
    /// out what is damaged: a check names it.
    pub async fn dump(
        &self,
        part: Part,
        filter: &Filter,
    ) -> Result<(Vec<Line>, Option<Vec<u8>>), InspectError> {
        let mut lines = Lines { done: Vec::new(), limit: filter.limit, next: None };
        match part {
            Part::Entries => self.dump_entries(filter, &mut lines).await?,
            Part::Nodes => self.dump_nodes(&mut lines).await,
            Part::Log => self.dump_log(&mut lines).await,
            Part::Map => self.dump_map(&mut lines).await,
            Part::Bytes { offset } => self.dump_bytes(offset, &mut lines).await?,
        }
        Ok((lines.done, lines.next))
    }

    /// Pools and containers by number, the log's changes included.
    async fn catalog(&self, overlay: &Overlay) -> Catalog {
        let (mut catalog, mut findings) = (Catalog::default(), Findings::default());
        if let Some(checkpoint) = self.checkpoint {
            let below = [key::USAGE];
            let mut walk = Walk::new(self, checkpoint.root, &[], Some(&below), &mut findings).await;
            while let Some(leaf) = walk.next_leaf(&mut findings).await {
                for at in 0..leaf.entries.len() {
                    // A malformed one is left out here and named by a check.
                    let _ = catalog.follow(&leaf.entries.key(at), Some(leaf.entries.value(at)));
                }
            }
        }
        for (key, value) in overlay {
            let _ = catalog.follow(key, value.as_deref());
        }
        catalog
    }

    /// Fails when what a filter names isn't there.
    fn check_named(&self, filter: &Filter, catalog: &Catalog) -> Result<(), InspectError> {
        let is_wanted = |id| filter.pool.is_none_or(|wanted| wanted == id);
        let mut pools = catalog.pools.values().filter(|pool| is_wanted(pool.id)).peekable();
        let missing = match (filter.pool, filter.container) {
            (Some(pool), _) if pools.peek().is_none() => format!("pool {pool}"),
            (_, Some(id)) if !pools.flat_map(|pool| pool.containers.values()).any(|found| found.id == id) => {
                format!("container {id}")
            }
            _ => return Ok(()),
        };
        Err(InspectError::NotThere { device: self.device.name().to_owned(), missing })
    }

    /// The prefixes of the keys that a filter lets through.
    fn prefixes(filter: &Filter, catalog: &Catalog) -> Vec<Vec<u8>> {
        if filter.pool.is_none() && filter.container.is_none() && filter.object.is_none() {
            return vec![Vec::new()];
        }
        let mut prefixes = Vec::new();
        for (number, pool) in
            catalog.pools.iter().filter(|(_, pool)| filter.pool.is_none_or(|id| id == pool.id))
        {
            if filter.container.is_none() && filter.object.is_none() {
                for kind in [
                    key::POOL,
                    key::CONTAINER,
                    key::USAGE,
                    key::ATTRIBUTE,
                    key::OBJECT,
                    key::SNAPSHOT,
                    key::TRANSACTION,
                ] {
                    prefixes.push([&[kind][..], &number.to_be_bytes()].concat());
                }
                continue;
            }
            let wanted = |id| filter.container.is_none_or(|wanted| wanted == id);
            for (container, _) in pool.containers.iter().filter(|(_, container)| wanted(container.id)) {
                let object = filter.object.map(ObjectId::to_bytes);
                let kinds: &[u8] = if object.is_some() {
                    &[key::OBJECT]
                } else {
                    &[key::CONTAINER, key::USAGE, key::OBJECT, key::SNAPSHOT, key::TRANSACTION]
                };
                for kind in kinds {
                    let mut prefix = key::container(*kind, *number, *container);
                    prefix.extend(object.iter().flatten());
                    prefixes.push(prefix);
                }
            }
        }
        prefixes.sort();
        prefixes
    }

    async fn dump_entries(&self, filter: &Filter, lines: &mut Lines) -> Result<(), InspectError> {
        let mut findings = Findings::default();
        let overlay = self.read_log(&mut findings).await.1.overlay;
        let catalog = self.catalog(&overlay).await;
        self.check_named(filter, &catalog)?;
        for prefix in Self::prefixes(filter, &catalog) {
            let from = prefix.clone().max(filter.from.clone());
            let below = if prefix.is_empty() { None } else { Some(key::after(&prefix)) };
            if below.as_ref().is_some_and(|below| *below <= from) {
                continue;
            }
            if self.dump_range(&from, below.as_deref(), &overlay, lines).await.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Entries of a range of keys, of checkpoint and log together.
    async fn dump_range(
        &self,
        from: &[u8],
        below: Option<&[u8]>,
        overlay: &Overlay,
        lines: &mut Lines,
    ) -> ControlFlow<()> {
        let mut findings = Findings::default();
        let is_inside = |key: &[u8]| key >= from && below.is_none_or(|below| key < below);
        let mut changed = overlay.range(from.to_vec()..).take_while(|(key, _)| is_inside(key)).peekable();
        if let Some(checkpoint) = self.checkpoint {
            let mut walk = Walk::new(self, checkpoint.root, from, below, &mut findings).await;
            while let Some(leaf) = walk.next_leaf(&mut findings).await {
                let offset = self.layout().data(leaf.place.block);
                for at in 0..leaf.entries.len() {
                    let key = leaf.entries.key(at);
                    if !is_inside(&key) {
                        continue;
                    }
                    while let Some((earlier, value)) = changed.next_if(|(changed, _)| **changed < key) {
                        self.entry_line(earlier, value.as_deref(), None, lines)?;
                    }
                    match changed.next_if(|(changed, _)| **changed == key) {
                        Some((_, value)) => self.entry_line(&key, value.as_deref(), None, lines)?,
                        None => self.entry_line(&key, Some(leaf.entries.value(at)), Some(offset), lines)?,
                    }
                }
            }
        }
        for (key, value) in changed {
            self.entry_line(key, value.as_deref(), None, lines)?;
        }
        ControlFlow::Continue(())
    }

    /// An entry, from the node at `offset` or from the log; nothing for one that the log removes.
    fn entry_line(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        offset: Option<u64>,
        lines: &mut Lines,
    ) -> ControlFlow<()> {
        let Some(value) = value else { return ControlFlow::Continue(()) };
        let mut line: Line =
            vec![("in", offset.map_or_else(|| text("log"), |offset| text(format!("node at byte {offset}"))))];
        self.describe(key, value, &mut line);
        let pushed = lines.push(line);
        if pushed.is_break() {
            lines.next = Some(key.to_vec());
        }
        pushed
    }

    /// Appends what an entry says.
    fn describe(&self, key: &[u8], value: &[u8], line: &mut Line) {
        let number = |value: u32| Field::Number(value.into());
        match Entry::decode(key, value) {
            Err(malformed) => {
                line.push(("entry", text("malformed")));
                line.push(("reason", text(malformed.0)));
                line.push(("key", text(hex(key))));
                line.push(("value", text(hex(value))));
            }
            Ok(Entry::Pool { pool, id, size, destroyed }) => line.extend([
                ("entry", text("pool")),
                ("pool", number(pool)),
                ("id", text(id.to_string())),
                ("size", Field::Number(size)),
                ("destroyed", Field::Flag(destroyed)),
            ]),
            Ok(Entry::Container { pool, container, id, quota, destroyed }) => line.extend([
                ("entry", text("container")),
                ("pool", number(pool)),
                ("container", number(container)),
                ("id", text(id.to_string())),
                ("quota", Field::Number(quota)),
                ("destroyed", Field::Flag(destroyed)),
            ]),
            Ok(Entry::Usage { pool, container, blocks, bytes }) => line.extend([
                ("entry", text("usage")),
                ("pool", number(pool)),
                ("container", number(container)),
                ("blocks", Field::Number(blocks)),
                ("bytes", Field::Number(bytes)),
            ]),
            Ok(Entry::Attribute { pool, scope, name, piece, len }) => line.extend([
                ("entry", text("attribute")),
                ("pool", number(pool)),
                ("scope", text(scope.escape_ascii().to_string())),
                ("name", text(name.escape_ascii().to_string())),
                ("piece", Field::Number(piece.into())),
                ("bytes", Field::Number(len as u64)),
            ]),
            Ok(Entry::Snapshot { pool, container, epoch }) => line.extend([
                ("entry", text("snapshot")),
                ("pool", number(pool)),
                ("container", number(container)),
                ("epoch", Field::Number(epoch)),
            ]),
            Ok(Entry::Transaction { pool, container, id, part }) => {
                line.push(("entry", text("transaction")));
                line.push(("pool", number(pool)));
                line.push(("container", number(container)));
                line.push(("id", text(id.to_string())));
                describe_part(&part, line);
            }
            Ok(Entry::Object { path, item }) => {
                line.push(("entry", text(item_name(&item))));
                line.push(("pool", number(path.pool)));
                line.push(("container", number(path.container)));
                line.push(("object", text(path.object.to_string())));
                line.extend(path.dkey.map(|key| ("dkey", text(key.to_string()))));
                line.extend(path.akey.map(|key| ("akey", text(key.to_string()))));
                line.push(("epoch", Field::Number(item.epoch())));
                self.describe_item(&item, line);
            }
        }
    }

    fn describe_item(&self, item: &Item, line: &mut Line) {
        match item {
            Item::Incarnation { event, .. } => line.push(("is", text(event_name(*event)))),
            Item::Single { .. } => {}
            Item::Extent { extent, record_size, .. } => line.extend([
                ("first", Field::Number(extent.index)),
                ("records", Field::Number(extent.count)),
                ("record_size", Field::Number((*record_size).into())),
            ]),
        }
        match item.payload() {
            None => {}
            Some(Payload::Hole) => line.push(("data", text("hole"))),
            Some(Payload::Inline(inline)) => {
                line.push(("data", text("inline")));
                line.push(("bytes", Field::Number(inline.bytes.len() as u64)));
                line.extend(inline.checksum.map(|checksum| ("checksums", text(format!("{checksum:08x}")))));
            }
            Some(Payload::Blocks(blocks)) => {
                line.push(("data", text("blocks")));
                let sums: Vec<String> = blocks.checksums.iter().map(|sum| format!("{sum:08x}")).collect();
                line.push(("bytes", Field::Number(blocks.len())));
                line.push(("at", text(self.places(blocks))));
                line.push(("first_chunk_bytes", Field::Number(blocks.chunks.first())));
                line.push(("chunk_bytes", Field::Number(blocks.chunks.step())));
                line.push(("checksums", text(sums.join(","))));
            }
        }
    }

    /// Where the runs of a value are, as `offset+length` in bytes.
    fn places(&self, blocks: &Blocks) -> String {
        let place = |block: u64| self.layout().data(block);
        let runs: Vec<String> =
            blocks.runs.iter().map(|run| format!("{}+{}", place(run.block), run.bytes())).collect();
        runs.join(",")
    }

    async fn dump_nodes(&self, lines: &mut Lines) {
        let mut findings = Findings::default();
        let Some(checkpoint) = self.checkpoint else { return };
        let mut walk = Walk::new(self, checkpoint.root, &[], None, &mut findings).await;
        while let Some(node) = walk.next(&mut findings).await {
            let entries = &node.entries;
            let key = |at: usize| text(hex(&entries.key(at)));
            let mut line: Line = vec![
                ("offset", Field::Number(self.layout().data(node.place.block))),
                ("bytes", Field::Number(node.place.len.into())),
                ("level", Field::Number(node.depth as u64)),
                ("kind", text(if node.is_leaf { "leaf" } else { "branch" })),
                ("checksum", text(format!("{:08x}", node.place.crc))),
                ("entries", Field::Number(entries.len() as u64)),
            ];
            if !entries.is_empty() {
                line.push(("first", key(0)));
                line.push(("last", key(entries.len() - 1)));
            }
            if lines.push(line).is_break() {
                return;
            }
        }
    }

    async fn dump_log(&self, lines: &mut Lines) {
        let mut findings = Findings::default();
        let Some(checkpoint) = self.checkpoint else { return };
        let Some(mut walk) = LogWalk::new(self, &checkpoint, &mut findings) else { return };
        while let Some(found) = walk.next(&mut findings).await {
            let batch: Line = vec![
                ("offset", Field::Number(found.offset)),
                ("batch", Field::Number(found.batch.sequence)),
                ("incarnation", Field::Number(found.batch.incarnation)),
                ("kind", text(if found.batch.kind == BatchKind::Wrap { "wrap" } else { "records" })),
                ("bytes", Field::Number(found.batch.len.into())),
                ("checksum", text(format!("{:08x}", found.batch.crc))),
                ("records", Field::Number(found.records.len() as u64)),
            ];
            if lines.push(batch).is_break() {
                return;
            }
            for (record, change) in found.records.numbered() {
                let mut line: Line = vec![
                    ("batch", Field::Number(found.batch.sequence)),
                    ("record", Field::Number(record as u64)),
                ];
                match change {
                    Change::Put { key, value } => {
                        line.push(("change", text("set")));
                        self.describe(&key, &value, &mut line);
                    }
                    Change::Remove { key } => {
                        line.push(("change", text("remove")));
                        line.push(("key", text(hex(&key))));
                    }
                }
                if lines.push(line).is_break() {
                    return;
                }
            }
        }
    }

    async fn dump_map(&self, lines: &mut Lines) {
        let layout = self.layout();
        let newest = self.checkpoint.map_or(u64::MAX, |checkpoint| checkpoint.number);
        for group in 0..layout.data_blocks.div_ceil(GROUP_BLOCKS) {
            let Ok(pages) = read(&self.device, layout.map(group, 0), 2 * BLOCK).await else { return };
            let decoded =
                pages.chunks(BLOCK).filter_map(|page| decode_map(page, group, self.superblock.id).ok());
            let Some((number, bits)) =
                decoded.filter(|(number, _)| *number <= newest).max_by_key(|(number, _)| *number)
            else {
                continue;
            };
            let bytes = bits.to_bytes();
            let is_set = |bit: usize| bytes.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
            let mut at = 0;
            while at < bytes.len() * 8 {
                let start = at;
                while is_set(at) {
                    at += 1;
                }
                if at > start {
                    let block = group * GROUP_BLOCKS + start as u64;
                    let line: Line = vec![
                        ("group", Field::Number(group)),
                        ("number", Field::Number(number)),
                        ("block", Field::Number(block)),
                        ("blocks", Field::Number((at - start) as u64)),
                        ("offset", Field::Number(layout.data(block))),
                    ];
                    if lines.push(line).is_break() {
                        return;
                    }
                }
                at += 1;
            }
        }
    }

    async fn dump_bytes(&self, offset: u64, lines: &mut Lines) -> Result<(), InspectError> {
        /// Bytes of a line.
        const LINE: u64 = 16;
        let (mut at, size) = (offset / LINE * LINE, self.device.size());
        if at >= size {
            let device = self.device.name().to_owned();
            return Err(MediaError::Range { device, offset, len: LINE, size }.into());
        }
        while at < size {
            let start = at / BLOCK as u64 * BLOCK as u64;
            let block = self.device.read(start, weir_media::DmaBuf::new(BLOCK)).await?;
            let skip = usize::try_from(at - start).unwrap_or(0);
            for bytes in block[skip..].chunks(usize::try_from(LINE).unwrap_or(BLOCK)) {
                let readable: String = bytes
                    .iter()
                    .map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' })
                    .collect();
                let line: Line =
                    vec![("offset", Field::Number(at)), ("hex", text(hex(bytes))), ("text", text(readable))];
                if lines.push(line).is_break() {
                    return Ok(());
                }
                at += LINE;
            }
        }
        Ok(())
    }
}

const fn item_name(item: &Item) -> &'static str {
    match item {
        Item::Incarnation { .. } => "incarnation",
        Item::Single { .. } => "value",
        Item::Extent { .. } => "extent",
    }
}

/// Appends what an entry of a transaction says.
fn describe_part(part: &TransactionPart, line: &mut Line) {
    match part {
        TransactionPart::Operations { piece, len } => line.extend([
            ("is", text("operations")),
            ("piece", Field::Number((*piece).into())),
            ("bytes", Field::Number(*len as u64)),
        ]),
        TransactionPart::Version { number, payload } => line.extend([
            ("is", text("version")),
            ("number", Field::Number((*number).into())),
            ("bytes", Field::Number(payload.len())),
        ]),
        TransactionPart::Decision { decision, .. } => match decision {
            Decision::Aborted => line.push(("is", text("aborted"))),
            Decision::Committed(epoch) => {
                line.extend([("is", text("committed")), ("epoch", Field::Number(epoch.0))]);
            }
        },
    }
}
