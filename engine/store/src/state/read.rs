//! Reading of values: from the index, the cache or the device. Checksums are compared here or by the reader.

use crate::format::checksum::join;
use crate::format::codec::{Malformed, crc32c, crc32c_of_copy};
use crate::format::size::in_memory;
use crate::format::value::{Blocks, Inline, Lone, Payload, Summed};
use crate::state::core::{Core, add};
use crate::state::error::FetchError;
use weir_media::{BLOCK, DmaBuf};
use weir_proto::object::Extent;

/// Who compares what a fetch reads from the device with the checksums that are stored with it.
///
/// Data that was left to the reader is worth nothing before that: it never comes without its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The store: nothing that is damaged on the device is handed out, and damage is counted and told with its place.
    Here,
    /// Whoever gets the data, with the checksums that come with it. Those are made of the stored ones, so that the store's
    /// comparison of a whole chunk finds nothing that the reader's doesn't. **The data may be damaged**: who finds that it
    /// doesn't match has to fetch it once more with [`Comparison::Here`], which tells damage on the device from what happened on
    /// the way. Chunks of which a part is wanted, and values that go to the cache, are compared by the store all the same.
    ByReader,
}

/// Copies bytes of a value in the index. Returns their checksum, if it is wanted: the stored one as it is for the whole
/// value, which the reader compares. That of a part is computed before the value is compared with its own.
pub(crate) fn copy_inline(
    Summed { bytes, checksum }: Summed<'_>,
    from: u64,
    extent: Option<Extent>,
    into: &mut [u8],
    wants_sum: bool,
) -> Result<u32, FetchError> {
    let range = in_memory(from)..in_memory(from).saturating_add(into.len());
    let part = bytes.get(range).ok_or(Malformed("a value is shorter than its extent"))?;
    into.copy_from_slice(part);
    if !wants_sum {
        return Ok(0);
    }
    let Some(stored) = checksum else { return Ok(crc32c(into)) };
    if into.len() == bytes.len() {
        return Ok(stored);
    }
    let sum = crc32c(part);
    if crc32c(bytes) == stored { Ok(sum) } else { Err(FetchError::Altered { extent }) }
}

/// Whether a value of this length has these bytes: a damaged extent may be longer than its value.
pub(crate) fn is_within(value: u64, from: u64, len: usize) -> Result<(), Malformed> {
    let end = from.checked_add(len as u64);
    if len > 0 && end.is_some_and(|end| end <= value) {
        Ok(())
    } else {
        Err(Malformed("a value is shorter than its extent"))
    }
}

/// Reads bytes of a value in blocks, with whole checksummed pieces around them. Where the device is memory they are
/// compared and copied in place. Holds one buffer at a time, so that fetches never wait for each other's. Returns the
/// checksum of the bytes, if it is wanted, with who compares them; without one nobody else could.
pub(crate) async fn read_blocks(
    core: &Core,
    blocks: &Blocks,
    from: u64,
    extent: Option<Extent>,
    into: &mut [u8],
    sums: Option<Comparison>,
) -> Result<u32, FetchError> {
    if let Some(sum) = blocks.lone().and_then(|lone| read_cached(core, lone, from, into, sums.is_some())) {
        return Ok(sum);
    }
    read_device(core, blocks, from, extent, into, sums).await
}

/// As [`read_blocks`], where the cache doesn't have the value.
pub(crate) async fn read_device(
    core: &Core,
    blocks: &Blocks,
    from: u64,
    extent: Option<Extent>,
    into: &mut [u8],
    sums: Option<Comparison>,
) -> Result<u32, FetchError> {
    is_within(blocks.len(), from, into.len())?;
    let lone = blocks.lone();
    // The cache is to have nothing that is damaged.
    let sums = sums.map(|who| if lone.is_some() { Comparison::Here } else { who });
    let end = from + into.len() as u64;
    let chunks = blocks.chunks;
    let wanted = chunks.range(chunks.at(from)).start..chunks.range(chunks.at(end - 1)).end;
    let is_boundary = |at: u64| at == blocks.len() || chunks.range(chunks.at(at)).start == at;
    let (mut run_start, mut sum) = (0, 0);
    for run in &blocks.runs {
        let (start, stop) = (run_start, (run_start + run.bytes()).min(blocks.len()));
        run_start += run.bytes();
        let (low, high) = (wanted.start.max(start), wanted.end.min(stop));
        if low >= high {
            continue;
        }
        // A run ends on a block; a chunk may go on in the next run.
        if !is_boundary(low) || !is_boundary(high) {
            return read_scattered(core, blocks, (from, into, extent), sums).await;
        }
        let before = (low - start) % BLOCK as u64;
        let offset = core.layout.data(run.block) + (low - start - before);
        let len = in_memory((before + high - low).next_multiple_of(BLOCK as u64));
        let (lent, read);
        let bytes: &[u8] = if let Some(in_place) = core.device.lend(offset, len) {
            lent = in_place;
            &lent
        } else {
            read = core.device.read(offset, core.dma.take(len).await).await?;
            &read
        };
        let data = &bytes[in_memory(before)..in_memory(before + high - low)];
        let place = (from, end, extent);
        let checked = check(core, blocks, (low, data), offset + before, place, sums, Some(&mut *into))?;
        sum = join(sum, checked, end.min(high) - from.max(low));
        if let Some(Lone { block, checksum, .. }) = lone {
            core.cache.insert(block, checksum, data);
        }
    }
    Ok(sum)
}

/// Copies bytes of a value from the cache. Returns their checksum as [`copy_inline`] does; `None` when they aren't there.
/// What memory has altered since is found by who compares the checksum of a whole value, and here for a part of one whose
/// checksum is wanted, which gives `None`.
pub(crate) fn read_cached(
    core: &Core,
    Lone { len, block, checksum }: Lone,
    from: u64,
    into: &mut [u8],
    wants_sum: bool,
) -> Option<u32> {
    // Else nothing would be what the cache gives beyond the value's end, and who asks piece by piece would never end.
    is_within(len, from, into.len()).ok()?;
    core.cache.read(block, checksum, |bytes| {
        copy_inline(Summed { bytes, checksum: Some(checksum) }, from, None, into, wants_sum).ok()
    })
}

/// Reads a value whose checksummed chunks straddle runs: all of it, into memory of its own.
async fn read_scattered(
    core: &Core,
    blocks: &Blocks,
    (from, into, extent): (u64, &mut [u8], Option<Extent>),
    sums: Option<Comparison>,
) -> Result<u32, FetchError> {
    let mut all = DmaBuf::new(in_memory(blocks.len()));
    let mut at = 0;
    for run in &blocks.runs {
        let buffer = core.dma.take(in_memory(run.bytes())).await;
        let buffer = core.device.read(core.layout.data(run.block), buffer).await?;
        let len = buffer.len().min(all.len() - at);
        all[at..at + len].copy_from_slice(&buffer[..len]);
        at += len;
    }
    let offset = core.layout.data(blocks.runs.first().map_or(0, |run| run.block));
    let data = &all[..in_memory(blocks.len())];
    let place = (from, from + into.len() as u64, extent);
    check(core, blocks, (0, data), offset, place, sums, Some(into))
}

/// Checks the chunks in `data`, which starts at `low` of the value and stands at `offset` of the device, and copies
/// what is wanted of them, unless it is wanted where it is. Returns the checksum of that, if it is wanted: made of the
/// chunks' own, and for a part of a chunk computed before the chunk is compared with its own, so that no byte is without one
/// at any time. Whole chunks are not looked at where the reader compares.
pub(crate) fn check(
    core: &Core,
    blocks: &Blocks,
    (low, data): (u64, &[u8]),
    offset: u64,
    (from, end, extent): (u64, u64, Option<Extent>),
    sums: Option<Comparison>,
    mut into: Option<&mut [u8]>,
) -> Result<u32, FetchError> {
    let (chunks, high) = (blocks.chunks, low + data.len() as u64);
    let (begin, end) = (from.max(low), end.min(high));
    let within = |range: core::ops::Range<u64>| in_memory(range.start - low)..in_memory(range.end - low);
    let mut sum = 0;
    for number in chunks.at(low)..=chunks.at(high - 1) {
        let range = chunks.range(number);
        let stored = blocks.checksums.get(in_memory(number)).copied();
        let wanted = range.start.max(begin)..range.end.min(end);
        let place = || in_memory(wanted.start - from)..in_memory(wanted.end - from);
        let is_whole = wanted == range;
        if sums.is_some() && !wanted.is_empty() {
            let own = stored.filter(|_| is_whole).unwrap_or_else(|| crc32c(&data[within(wanted.clone())]));
            sum = join(sum, own, wanted.end - wanted.start);
        }
        // A chunk without a checksum is damage of the index, which the reader could not tell.
        if is_whole && stored.is_some() && sums == Some(Comparison::ByReader) {
            if let Some(into) = &mut into {
                into[place()].copy_from_slice(&data[within(range)]);
            }
            continue;
        }
        let found = match &mut into {
            Some(into) if is_whole => crc32c_of_copy(data, within(range.clone()), &mut into[place()]),
            Some(into) => {
                let found = crc32c(&data[within(range.clone())]);
                if !wanted.is_empty() {
                    into[place()].copy_from_slice(&data[within(wanted)]);
                }
                found
            }
            None => crc32c(&data[within(range.clone())]),
        };
        if stored != Some(found) {
            add(&core.counters.checksum_errors, 1);
            let location = core.location("data", offset + (range.start - low));
            return Err(FetchError::Corrupt { location, extent });
        }
    }
    Ok(sum)
}

/// A value read into memory, for lists. They carry no checksums, so what the index or the cache has is compared with its
/// own here.
pub(crate) async fn load(core: &Core, payload: &Payload) -> Result<Vec<u8>, FetchError> {
    match payload {
        Payload::Hole => Ok(Vec::new()),
        Payload::Inline(Inline { bytes, checksum }) => {
            if checksum.is_some_and(|checksum| crc32c(bytes) != checksum) {
                add(&core.counters.checksum_errors, 1);
                return Err(FetchError::Altered { extent: None });
            }
            Ok(bytes.clone())
        }
        Payload::Blocks(blocks) => {
            let mut bytes = vec![0; in_memory(blocks.len())];
            let cached =
                blocks.lone().filter(|lone| read_cached(core, *lone, 0, &mut bytes, false).is_some());
            let is_altered = cached.is_some_and(|lone| crc32c(&bytes) != lone.checksum);
            add(&core.counters.checksum_errors, u64::from(is_altered));
            if is_altered || cached.is_none() {
                read_device(core, blocks, 0, None, &mut bytes, None).await?;
            }
            Ok(bytes)
        }
    }
}

/// As [`load`], of a value that is damaged: zeros stand for the chunks that don't match their checksums.
pub(crate) async fn load_sound(core: &Core, payload: &Payload) -> Result<Vec<u8>, FetchError> {
    let mut bytes = vec![0; in_memory(payload.len())];
    if let Payload::Blocks(blocks) = payload {
        for number in 0..blocks.chunks.count() {
            let range = blocks.chunks.range(number);
            let chunk = &mut bytes[in_memory(range.start)..in_memory(range.end)];
            if let Err(error) = read_device(core, blocks, range.start, None, &mut *chunk, None).await {
                if !error.is_of_data() {
                    return Err(error);
                }
                chunk.fill(0);
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_bytes_up_to_its_end_and_no_others() {
        for (from, len) in [(0, 4096), (4095, 1)] {
            assert!(is_within(4096, from, len).is_ok(), "{len} bytes from {from} on");
        }
        // A damaged extent names more.
        for (from, len) in [(0, 4097), (4096, 3904), (4096, 0), (0, 0), (u64::MAX, 2)] {
            assert!(is_within(4096, from, len).is_err(), "{len} bytes from {from} on");
        }
    }
}
