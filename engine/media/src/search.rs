//! Whether a device holds any data. A format asks this before it takes a device.

use crate::buffer::DmaBuf;
use crate::device::MediaError;

/// Bytes read at once: large enough for full bandwidth.
const CHUNK: usize = 1 << 20;

/// A device up to this size is read as a whole, which takes seconds.
const WHOLE: u64 = 8 << 30;

/// Bytes read at either end of a larger device. Partition tables, file systems, volume managers and RAID keep what they are
/// known by within a MiB of an end; btrfs has a copy at 64 MiB.
const END: u64 = 256 << 20;

/// Most samples read between the ends.
const SAMPLES: u64 = 8192;

/// Bytes of a sample.
const SAMPLE: u64 = 32 << 10;

/// Offset of the first byte found on a device of `size` bytes, from the block at `from` on, that isn't zero. A device above [`WHOLE`] is read at its
/// ends, and between them at multiples of a power of two, where file systems begin their groups: whatever fills a
/// four-thousandth of the device in one piece is met, and 8 TB are looked at as fast as 1 GB.
pub(crate) async fn search_device(
    size: u64,
    from: u64,
    read: impl AsyncFn(u64, DmaBuf) -> Result<DmaBuf, MediaError>,
) -> Result<Option<u64>, MediaError> {
    for (start, end) in ranges(size) {
        let found = search(start.max(from), end, &read).await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The ranges of a device of `size` bytes that are read, ascending and apart.
fn ranges(size: u64) -> impl Iterator<Item = (u64, u64)> {
    let (first, last) = if size <= WHOLE { (size, size) } else { (END, size - END) };
    let stride = (size / SAMPLES).next_power_of_two();
    let samples = (1..)
        .map(move |number| number * stride)
        .skip_while(move |start| *start < first)
        .take_while(move |start| start + SAMPLE <= last)
        .map(|start| (start, start + SAMPLE));
    core::iter::once((0, first)).chain(samples).chain((last < size).then_some((last, size)))
}

/// Offset of the first byte of a range that isn't zero, reading it piece by piece.
pub(crate) async fn search(
    start: u64,
    end: u64,
    read: impl AsyncFn(u64, DmaBuf) -> Result<DmaBuf, MediaError>,
) -> Result<Option<u64>, MediaError> {
    let mut at = start;
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
        let buffer = read(at, DmaBuf::new(len)).await?;
        if let Some(found) = buffer.iter().position(|byte| *byte != 0) {
            return Ok(Some(at + found as u64));
        }
        at += buffer.len() as u64;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use weir_runtime::real::Executor;

    const TIB: u64 = 1 << 40;

    /// What is found on a device that holds zeros but for `data`, and how many bytes were read.
    fn look(size: u64, data: core::ops::Range<u64>) -> (Option<u64>, u64) {
        look_from(0, size, data)
    }

    /// As [`look`], from a block on.
    fn look_from(from: u64, size: u64, data: core::ops::Range<u64>) -> (Option<u64>, u64) {
        let read = Cell::new(0);
        let executor = Executor::new().expect("an executor");
        let found = executor.block_on(search_device(size, from, async |at, mut buffer| {
            let end = at + buffer.len() as u64;
            assert!(from <= at && end <= size, "a read before the start, or behind the end");
            read.set(read.get() + buffer.len() as u64);
            if data.start < end && data.end > at {
                let first = usize::try_from(data.start.max(at) - at).expect("within the buffer");
                buffer[first] = 1;
            }
            Ok(buffer)
        }));
        (found.expect("no error"), read.get())
    }

    #[test]
    fn a_small_device_is_read_as_a_whole() {
        assert_eq!(look(5 << 20, 0..0), (None, 5 << 20));
        for at in [0, 4095, (3 << 20) + 1, (5 << 20) - 1] {
            assert_eq!(look(5 << 20, at..at + 1).0, Some(at));
        }
    }

    #[test]
    fn what_lies_before_the_start_of_a_search_is_not_read() {
        for size in [5 << 20, 64 << 30] {
            for from in [4096, size / 2, size - 4096, size] {
                assert_eq!(look_from(from, size, from - 1..from).0, None);
                assert_eq!(look_from(from, size, size - 1..size).0, (from < size).then_some(size - 1));
            }
        }
    }

    #[test]
    fn of_a_large_device_the_ends_are_read_and_samples_between() {
        for size in [WHOLE + 4096, 100 << 30, 7_681_501_126_656, 30 * TIB] {
            let ranges: Vec<_> = ranges(size).collect();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{size}: they ascend");
            assert_eq!((ranges[0].0, ranges.last().map(|range| range.1)), (0, Some(size)));
            let read: u64 = ranges.iter().map(|(start, end)| end - start).sum();
            assert!(read <= 2 * END + SAMPLES * SAMPLE, "{size}: {read} bytes");
            let gap = ranges.windows(2).map(|pair| pair[1].0 - pair[0].1).max().expect("samples");
            assert!(gap < size / 4096, "{size}: {gap} bytes not looked at");
        }
        let size = 64 << 30;
        assert_eq!(look(size, 0..0), (None, 2 * END + (ranges(size).count() as u64 - 2) * SAMPLE));
        // A boot sector, a copy of a btrfs superblock, a GPT's backup, and a partition's content alone.
        for at in [510, (64 << 20) + 64, size - 512] {
            assert_eq!(look(size, at..at + 1).0, Some(at));
        }
        let partition = (20 << 30) + 4096..(20 << 30) + (64 << 20);
        let found = look(size, partition.clone()).0.expect("found");
        assert!(partition.contains(&found));
    }
}
