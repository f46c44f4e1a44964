//! Printing what is on a device, part by part, as lines of named fields.

use super::entries::{Entries, Met};
use super::finding::{Finding, Findings, Severity};
use super::log::LogWalk;
use super::overlay::{Along, Overlay};
use super::walk::Walk;
use super::{InspectError, Inspector, read};
use core::ops::ControlFlow;
use std::fmt::Write as _;
use weir_format::bitmap::GROUP_BLOCKS;
use weir_format::codec::Malformed;
use weir_format::decision::Decision;
use weir_format::entry::{Entry, Item, TransactionPart, event_name};
use weir_format::key;
use weir_format::record::Change;
use weir_format::size::in_memory;
use weir_format::value::{Blocks, Payload};
use weir_format::{BatchKind, decode_map};
use weir_media::BLOCK;
use weir_proto::{ContainerId, ObjectId, PoolId};
use weir_store::offline::Catalog;

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

/// What is to be said behind the lines of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    /// Key of the first entry that found no room.
    pub next: Option<Vec<u8>>,
    /// Whether the limit left lines out.
    pub more: bool,
    /// Places met that can't be read or are damaged: what they held is missing, or printed as malformed.
    pub damages: u64,
    /// These places, one by one; not more than a report has.
    pub findings: Vec<Finding>,
}

/// What has been found but for the notes.
fn damaged(found: &Findings) -> Vec<Finding> {
    found.list.iter().filter(|one| one.severity == Severity::Damage).cloned().collect()
}

/// Where the lines go, and what else was met.
struct Lines<'a> {
    sink: &'a mut dyn FnMut(Line) -> ControlFlow<()>,
    /// Lines that may still come.
    left: usize,
    next: Option<Vec<u8>>,
    more: bool,
    found: Findings,
}

impl Lines<'_> {
    fn push(&mut self, line: Line) -> ControlFlow<()> {
        let Some(left) = self.left.checked_sub(1) else {
            self.more = true;
            return ControlFlow::Break(());
        };
        self.left = left;
        (self.sink)(line)
    }
}

impl Inspector {
    /// Gives the lines of a part to `sink` as they are found, up to the filter's limit or until it has enough. What is damaged is
    /// gone around and told of at the end. Takes memory for some of the log's changes, not for the lines.
    ///
    /// # Errors
    /// When bytes are asked for behind the device's end, or the pool or container isn't found whose entries are.
    pub async fn dump(
        &self,
        part: Part,
        filter: &Filter,
        sink: &mut dyn FnMut(Line) -> ControlFlow<()>,
    ) -> Result<Dumped, InspectError> {
        let found = self.findings_for(part);
        let mut lines = Lines { sink, left: filter.limit, next: None, more: false, found };
        match part {
            Part::Entries => self.dump_entries(filter, &mut lines).await?,
            Part::Nodes => self.dump_nodes(&mut lines).await,
            Part::Log => self.dump_log(&mut lines).await,
            Part::Map => self.dump_map(&mut lines).await,
            Part::Bytes { offset } => self.dump_bytes(offset, &mut lines).await?,
        }
        let Lines { next, more, found, .. } = lines;
        Ok(Dumped { next, more, damages: found.damages, findings: damaged(&found) })
    }

    /// What an open of the inspector has found that keeps a part from being printed: without a checkpoint there is neither index
    /// nor log.
    fn findings_for(&self, part: Part) -> Findings {
        let mut found = Findings::default();
        let needs_checkpoint = matches!(part, Part::Entries | Part::Nodes | Part::Log);
        if needs_checkpoint && self.checkpoint.is_none() {
            let headers = self.findings.list.iter().filter(|one| one.what == "checkpoint header");
            headers.for_each(|finding| found.add(finding.clone()));
        }
        found
    }

    /// Pools and containers by number, the log's changes included.
    async fn catalog(&self, overlay: &mut Overlay<'_>, findings: &mut Findings) -> Catalog {
        let (mut catalog, below) = (Catalog::default(), [key::USAGE]);
        if let Some(checkpoint) = self.checkpoint {
            let mut walk = Walk::new(self, checkpoint.root, &[], Some(&below)).await;
            while let Some(leaf) = walk.next_leaf(findings).await {
                for at in 0..leaf.entries.len() {
                    if let Err(malformed) =
                        catalog.follow(&leaf.entries.key(at), Some(leaf.entries.value(at)))
                    {
                        let offset = self.layout().data(leaf.place.block);
                        findings.damage("index entry", offset, leaf.place.len.into(), malformed.0.to_owned());
                    }
                }
            }
        }
        let mut changed = Along::new(overlay, &[], Some(&below));
        while let Some((key, value)) = changed.next_if(|_| true).await {
            let followed = catalog.follow(&key, value.as_deref());
            let is_entry = value.as_ref().is_some_and(|value| Entry::decode(&key, value).is_ok());
            // One that isn't even an entry is told of with its batch.
            if let (Err(malformed), true) = (followed, is_entry) {
                findings.damage("log record", self.layout().log_offset, 0, malformed.0.to_owned());
            }
        }
        catalog
    }

    /// Fails when what a filter names isn't there, or isn't found where some of what could hold it is damaged.
    fn check_named(&self, filter: &Filter, catalog: &Catalog, found: &Findings) -> Result<(), InspectError> {
        let is_wanted = |id| filter.pool.is_none_or(|wanted| wanted == id);
        let mut pools = catalog.pools.values().filter(|pool| is_wanted(pool.id)).peekable();
        let missing = match (filter.pool, filter.container) {
            (Some(pool), _) if pools.peek().is_none() => format!("pool {pool}"),
            (_, Some(id)) if !pools.flat_map(|pool| pool.containers.values()).any(|found| found.id == id) => {
                format!("container {id}")
            }
            _ => return Ok(()),
        };
        let device = self.device.name().to_owned();
        if found.damages == 0 {
            return Err(InspectError::NotThere { device, missing });
        }
        Err(InspectError::NotLeft { device, missing, damages: found.damages, findings: damaged(found) })
    }

    /// The prefixes of the keys that a filter lets through.
    fn prefixes(filter: &Filter, catalog: &Catalog) -> Vec<Vec<u8>> {
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

    async fn dump_entries(&self, filter: &Filter, lines: &mut Lines<'_>) -> Result<(), InspectError> {
        let mut findings = Findings::default();
        let mut overlay = self.read_log(&mut findings).await.1;
        let is_named = filter.pool.is_some() || filter.container.is_some() || filter.object.is_some();
        let prefixes = if is_named {
            let catalog = self.catalog(&mut overlay, &mut findings).await;
            lines.found.take_in(findings);
            self.check_named(filter, &catalog, &lines.found)?;
            Self::prefixes(filter, &catalog)
        } else {
            lines.found.take_in(findings);
            vec![Vec::new()]
        };
        for prefix in prefixes {
            let from = prefix.clone().max(filter.from.clone());
            let below = if prefix.is_empty() { None } else { Some(key::after(&prefix)) };
            if below.as_ref().is_some_and(|below| *below <= from) {
                continue;
            }
            let mut findings = Findings::default();
            let flow = self.dump_range(&from, below.as_deref(), &mut overlay, lines, &mut findings).await;
            lines.found.take_in(findings);
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Entries of a range of keys, of checkpoint and log together.
    async fn dump_range<'a>(
        &'a self,
        from: &[u8],
        below: Option<&[u8]>,
        overlay: &mut Overlay<'a>,
        lines: &mut Lines<'_>,
        findings: &mut Findings,
    ) -> ControlFlow<()> {
        let mut entries = Entries::new(self, overlay, from, below).await;
        while let Some(met) = entries.next(findings).await {
            let Met::Entry { key, value, node } = met else { continue };
            let node = node.map(|place| (self.layout().data(place.block), u64::from(place.len)));
            self.entry_line(&key, &value, node, lines)?;
        }
        ControlFlow::Continue(())
    }

    /// An entry, from a node with this offset and length or from the log.
    fn entry_line(
        &self,
        key: &[u8],
        value: &[u8],
        node: Option<(u64, u64)>,
        lines: &mut Lines<'_>,
    ) -> ControlFlow<()> {
        let place = node.map_or_else(|| "log".to_owned(), |(offset, _)| format!("node at byte {offset}"));
        let mut line: Line = vec![("in", text(place))];
        let malformed = self.describe(key, value, &mut line).err();
        let pushed = lines.push(line);
        if lines.more {
            lines.next = Some(key.to_vec());
        } else if let (Some(malformed), Some((offset, len))) = (malformed, node) {
            // One of the log is told of with its batch. The catalog may have met this one.
            let mut found = Findings::default();
            found.damage("index entry", offset, len, malformed.0.to_owned());
            lines.found.take_in(found);
        }
        pushed
    }

    /// Appends what an entry says, also if it is malformed.
    fn describe(&self, key: &[u8], value: &[u8], line: &mut Line) -> Result<(), Malformed> {
        match Entry::decode(key, value) {
            Ok(entry) => self.describe_entry(&entry, line),
            Err(malformed) => {
                line.push(("entry", text("malformed")));
                line.push(("reason", text(malformed.0)));
                line.push(("key", text(hex(key))));
                line.push(("value", text(hex(value))));
                return Err(malformed);
            }
        }
        Ok(())
    }

    fn describe_entry(&self, entry: &Entry, line: &mut Line) {
        let number = |value: &u32| Field::Number((*value).into());
        match entry {
            Entry::Pool { pool, id, size, destroyed } => line.extend([
                ("entry", text("pool")),
                ("pool", number(pool)),
                ("id", text(id.to_string())),
                ("size", Field::Number(*size)),
                ("destroyed", Field::Flag(*destroyed)),
            ]),
            Entry::Container { pool, container, id, quota, destroyed } => line.extend([
                ("entry", text("container")),
                ("pool", number(pool)),
                ("container", number(container)),
                ("id", text(id.to_string())),
                ("quota", Field::Number(*quota)),
                ("destroyed", Field::Flag(*destroyed)),
            ]),
            Entry::Usage { pool, container, usage } => line.extend([
                ("entry", text("usage")),
                ("pool", number(pool)),
                ("container", number(container)),
                ("blocks", Field::Number(usage.blocks)),
                ("bytes", Field::Number(usage.entries)),
                ("reserved", Field::Number(usage.reserved)),
            ]),
            Entry::Attribute { pool, scope, name, piece, len } => line.extend([
                ("entry", text("attribute")),
                ("pool", number(pool)),
                ("scope", text(scope.escape_ascii().to_string())),
                ("name", text(name.escape_ascii().to_string())),
                ("piece", Field::Number((*piece).into())),
                ("bytes", Field::Number(*len as u64)),
            ]),
            Entry::Snapshot { pool, container, epoch } => line.extend([
                ("entry", text("snapshot")),
                ("pool", number(pool)),
                ("container", number(container)),
                ("epoch", Field::Number(*epoch)),
            ]),
            Entry::Transaction { pool, container, id, part } => {
                line.push(("entry", text("transaction")));
                line.push(("pool", number(pool)));
                line.push(("container", number(container)));
                line.push(("id", text(id.to_string())));
                describe_part(part, line);
            }
            Entry::Object { path, item } => {
                line.push(("entry", text(item_name(item))));
                line.push(("pool", number(&path.pool)));
                line.push(("container", number(&path.container)));
                line.push(("object", text(path.object.to_string())));
                line.extend(path.dkey.as_ref().map(|key| ("dkey", text(key.to_string()))));
                line.extend(path.akey.as_ref().map(|key| ("akey", text(key.to_string()))));
                line.push(("epoch", Field::Number(item.epoch())));
                self.describe_item(item, line);
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
            Item::Reserved(reserved) => {
                let runs = reserved.runs.iter().map(|run| format!("{}+{}", run.start, run.end - run.start));
                line.extend([
                    ("runs", text(runs.collect::<Vec<_>>().join(" "))),
                    ("record_size", Field::Number(reserved.record_size.into())),
                    ("bytes", Field::Number(reserved.bytes)),
                ]);
            }
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

    async fn dump_nodes(&self, lines: &mut Lines<'_>) {
        let Some(checkpoint) = self.checkpoint else { return };
        let mut walk = Walk::new(self, checkpoint.root, &[], None).await;
        while let Some(node) = walk.next(&mut lines.found).await {
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

    async fn dump_log(&self, lines: &mut Lines<'_>) {
        let Some(checkpoint) = self.checkpoint else { return };
        let Some(mut walk) = LogWalk::new(self, &checkpoint, &mut lines.found) else { return };
        while let Some(found) = walk.next(&mut lines.found).await {
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
                        if let Err(malformed) = self.describe(&key, &value, &mut line) {
                            let (offset, len) = (found.offset, found.batch.len.into());
                            lines.found.damage("log batch", offset, len, malformed.0.to_owned());
                        }
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

    async fn dump_map(&self, lines: &mut Lines<'_>) {
        let layout = self.layout();
        let groups = layout.data_blocks.div_ceil(GROUP_BLOCKS);
        let len = 2 * BLOCK as u64;
        for group in 0..groups {
            let offset = layout.map(group, 0);
            if offset + len > self.device.size() {
                let reason = "the device ends before this part of it".to_owned();
                return lines.found.damage("space map", offset, (groups - group) * len, reason);
            }
            match self.newest_map(group).await {
                Err(reason) => lines.found.damage("space map", offset, len, reason),
                Ok((number, bytes)) => {
                    if self.group_lines(group, number, &bytes, lines).is_break() {
                        return;
                    }
                }
            }
        }
    }

    /// Number and bytes of the bitmap of a group that counts.
    async fn newest_map(&self, group: u64) -> Result<(u64, Vec<u8>), String> {
        let newest = self.checkpoint.map_or(u64::MAX, |checkpoint| checkpoint.number);
        let pages = read(&self.device, self.layout().map(group, 0), 2 * BLOCK).await?;
        let decoded = pages.chunks(BLOCK).filter_map(|page| decode_map(page, group, self.superblock.id).ok());
        let valid = decoded.filter(|(number, _)| *number <= newest).max_by_key(|(number, _)| *number);
        let (number, bits) = valid.ok_or_else(|| {
            "both bitmaps of the group are unreadable or belong to no checkpoint".to_owned()
        })?;
        Ok((number, bits.to_bytes()))
    }

    fn group_lines(&self, group: u64, number: u64, bytes: &[u8], lines: &mut Lines<'_>) -> ControlFlow<()> {
        let is_set = |bit: usize| bytes.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
        let mut at = 0;
        while at < bytes.len() * 8 {
            let start = at;
            while is_set(at) {
                at += 1;
            }
            if at > start {
                let block = group * GROUP_BLOCKS + start as u64;
                lines.push(vec![
                    ("group", Field::Number(group)),
                    ("number", Field::Number(number)),
                    ("block", Field::Number(block)),
                    ("blocks", Field::Number((at - start) as u64)),
                    ("offset", Field::Number(self.layout().data(block))),
                ])?;
            }
            at += 1;
        }
        ControlFlow::Continue(())
    }

    async fn dump_bytes(&self, offset: u64, lines: &mut Lines<'_>) -> Result<(), InspectError> {
        /// Bytes of a line.
        const LINE: u64 = 16;
        let (mut at, size) = (offset / LINE * LINE, self.device.size());
        if at >= size {
            return Err(InspectError::Beyond { device: self.device.name().to_owned(), offset, size });
        }
        while at < size {
            let start = at / BLOCK as u64 * BLOCK as u64;
            let block = match read(&self.device, start, BLOCK).await {
                Ok(block) => block,
                Err(reason) => {
                    let end = size.min(start + BLOCK as u64);
                    let line: Line = vec![
                        ("offset", Field::Number(at)),
                        ("unreadable", Field::Number(end - at)),
                        ("reason", text(reason.clone())),
                    ];
                    let pushed = lines.push(line);
                    if !lines.more {
                        lines.found.damage("block", start, end - start, reason);
                    }
                    if pushed.is_break() {
                        return Ok(());
                    }
                    at = end;
                    continue;
                }
            };
            let skip = in_memory(at - start);
            for bytes in block[skip..].chunks(in_memory(LINE)) {
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
        Item::Reserved(_) => "reservation",
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
