//! Checksums from end to end: what the client computed is stored, survives aggregation, and is what a reader compares.

use crate::golden;
use crate::setup::*;
use core::cell::Cell;
use proptest::prelude::*;
use std::rc::Rc;
use weir_inspect::{Depth, Field, Filter, Inspector, Part};
use weir_media::memory::MemoryDevice;
use weir_media::{Device, DmaBuf, Slice};
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Value};
use weir_proto::{Epoch, Key};
use weir_runtime::Handle;
use weir_store::{Comparison, Data, Fetch, FetchError, Shard, Store, UpdateError};

const SIZE: u64 = 64 << 20;
const NONE: Conditions = Conditions::NONE;

async fn update(shard: &Shard, epoch: u64, update: AkeyUpdate, data: &[u8]) -> Result<Epoch, UpdateError> {
    shard
        .update(CONTAINER, ARRAY, &Key::from_u64(1), Epoch(epoch), NONE, &[update], Data::Borrowed(data))
        .await
}

async fn find(shard: &Shard, akeys: &[AkeyFetch]) -> Fetch {
    shard.fetch(CONTAINER, ARRAY, &Key::from_u64(1), Epoch::MAX, NONE, akeys).await.expect("found")
}

fn asked(akey: &str, record_size: u32, extents: &[(u64, u64)]) -> AkeyFetch {
    let AkeyUpdate { akey, value, conditions, .. } = array(akey, record_size, extents);
    AkeyFetch { akey, value, conditions }
}

fn whole(akey: &str) -> AkeyFetch {
    AkeyFetch { akey: key(akey), value: Value::Single { size: u64::MAX }, conditions: NONE }
}

/// The data that a fetch finds, and its checksums.
async fn take(shard: &Shard, akeys: &[AkeyFetch]) -> Result<(Vec<u8>, Vec<Vec<u32>>), FetchError> {
    let found = find(shard, akeys).await;
    let mut data = vec![0xee; found.data_len() as usize];
    let sums = found.read_summed(akeys, &mut data).await?;
    Ok((data, listed(sums)))
}

#[test]
fn whole_chunks_come_back_with_the_checksums_that_the_client_sent() {
    run(1, async |handle| {
        let (_store, shard) = start_on(&handle, &MemoryDevice::new(SIZE)).await;
        let small = pattern(1, 300);
        update(&shard, 1, summed(single("small", &small), &small), &small).await.expect("stored");
        let value = pattern(2, 20_000);
        let written = summed(array("odd", 1, &[(1000, 20_000)]), &value);
        // Up to the first record that is a multiple of a chunk's 4096, then five at a time of those.
        assert_eq!(written.checksums.len(), 6);
        update(&shard, 2, written.clone(), &value).await.expect("stored");
        let (_, sums) = take(&shard, &[whole("small")]).await.expect("read");
        assert_eq!(sums, [[crc(&small)]]);
        let chunks =
            [(1000, 3096), (4096, 4096), (8192, 4096), (12_288, 4096), (16_384, 4096), (20_480, 520)];
        let (data, sums) = take(&shard, &[asked("odd", 1, &chunks)]).await.expect("read");
        assert!(data == value && sums == [written.checksums]);
        let (_, sums) = take(&shard, &[asked("odd", 1, &[(1000, 20_000)])]).await.expect("read");
        assert_eq!(sums, [[crc(&value)]], "those of all chunks, put together");
        let (data, sums) =
            take(&shard, &[asked("odd", 1, &[(900, 200), (5000, 1), (20_999, 9)])]).await.expect("read");
        assert_eq!(sums, [[crc(&data[..200]), crc(&data[200..201]), crc(&data[201..])]]);
    });
}

#[test]
fn checksums_that_do_not_fit_the_chunks_are_refused() {
    run(2, async |handle| {
        let (_store, shard) = start_on(&handle, &MemoryDevice::new(SIZE)).await;
        let value = pattern(2, 9000);
        let good = summed(array("a", 1, &[(0, 9000)]), &value);
        for count in [1, 2, 4] {
            let mut bad = good.clone();
            bad.checksums.resize(count, 0);
            let refused = update(&shard, 1, bad, &value).await;
            assert!(matches!(refused, Err(UpdateError::Invalid(_))), "{refused:?}");
        }
        for number in 0..3 {
            let mut wrong = good.clone();
            wrong.checksums[number] ^= 1 << number;
            assert!(matches!(update(&shard, 1, wrong, &value).await, Err(UpdateError::Checksum { .. })));
        }
        update(&shard, 1, good, &value).await.expect("stored");
    });
}

#[test]
fn checksums_in_a_wrong_number_are_refused_before_anything_is_reserved() {
    run(8, async |handle| {
        let (store, shard) = start_on(&handle, &MemoryDevice::new(SIZE)).await;
        let value = pattern(2, 8 << 20);
        // The pool has no room for so much any more.
        for epoch in 1..4 {
            update(&shard, epoch, summed(single("filling", &value), &value), &value).await.expect("stored");
        }
        let good = summed(array("a", 1, &[(0, value.len() as u64)]), &value);
        assert!(matches!(update(&shard, 5, good.clone(), &value).await, Err(UpdateError::NoSpace { .. })));
        let free = store.space().free;
        for count in [1, good.checksums.len() - 1, good.checksums.len() + 1] {
            let mut bad = good.clone();
            bad.checksums.resize(count, 0);
            let refused = update(&shard, 5, bad, &value).await;
            assert!(matches!(refused, Err(UpdateError::Invalid(_))), "{refused:?}");
        }
        assert_eq!(store.space().free, free);
    });
}

/// The same for a reader who compares.
async fn take_to_compare(shard: &Shard, akeys: &[AkeyFetch]) -> Result<(Vec<u8>, Vec<Vec<u32>>), FetchError> {
    let found = find(shard, akeys).await;
    let len = found.data_len() as usize;
    let landed = found.read_to(akeys, Comparison::ByReader, DmaBuf::new(len)).await?;
    Ok((landed.memory[landed.start..landed.start + len].to_vec(), listed(landed.sums)))
}

#[test]
fn what_is_left_to_the_reader_comes_with_checksums_that_tell_and_what_a_cache_would_keep_is_not_left() {
    run(9, async |handle| {
        let device = MemoryDevice::new(SIZE);
        let (store, shard) = start_on(&handle, &device).await;
        for (epoch, len) in [(1u64, 4096usize), (2, 20_000), (3, 300_000)] {
            let value = pattern(epoch, len);
            let name = format!("{len}");
            update(&shard, epoch, summed(single(&name, &value), &value), &value).await.expect("stored");
            let akeys = [whole(&name)];
            let (data, sums) = take_to_compare(&shard, &akeys).await.expect("read");
            assert!(data == value && sums == [[crc(&value)]]);
            let all = device.bytes(0, SIZE as usize);
            let block = all.chunks(4096).position(|found| *found == value[..4096]).expect("on the device");
            let at = (block * 4096 + len / 2) as u64;
            device.flip_bit(at, 3);
            let before = store.stats().checksum_errors;
            // A value of one block would stay in the cache.
            match take_to_compare(&shard, &akeys).await {
                Err(FetchError::Corrupt { .. }) => assert_eq!(len, 4096),
                Err(error) => panic!("{error}"),
                Ok((data, sums)) => {
                    assert!(len > 4096 && data != value && sums == [[crc(&value)]], "{len}");
                    assert_eq!(store.stats().checksum_errors, before);
                }
            }
            assert!(matches!(take(&shard, &akeys).await, Err(FetchError::Corrupt { .. })), "{len}");
            device.flip_bit(at, 3);
            assert!(take(&shard, &akeys).await.is_ok());
        }
    });
}

#[test]
fn damage_in_chunks_of_any_length_is_met_by_who_reads_them_and_by_nobody_else() {
    run(6, async |handle| {
        let device = MemoryDevice::new(SIZE);
        let (_store, shard) = start_on(&handle, &device).await;
        for (epoch, len) in [(1u64, 20_000usize), (2, 300_000)] {
            let value = pattern(epoch, len);
            let written = summed(array("a", 1, &[(0, len as u64)]), &value);
            let chunk = len.div_ceil(written.checksums.len());
            update(&shard, epoch, written, &value).await.expect("stored");
            let all = device.bytes(0, SIZE as usize);
            let block = all.chunks(4096).position(|found| *found == value[..4096]).expect("on the device");
            let start = block * 4096;
            for at in [0, chunk - 1, chunk, len / 2, len - 1] {
                device.flip_bit((start + at) as u64, 3);
                let damaged = take(&shard, &[asked("a", 1, &[(0, len as u64)])]).await;
                assert!(
                    matches!(damaged, Err(FetchError::Corrupt { .. })),
                    "{len} bytes at {at}: {damaged:?}"
                );
                // What neighbours the damage has a checksum of its own from 4 KiB or 32 KiB on.
                let beyond = if at < len / 2 { (len as u64 - 3000, 3000) } else { (5, 3000) };
                let (data, _) = take(&shard, &[asked("a", 1, &[beyond])]).await.expect("it is sound");
                assert!(data == value[beyond.0 as usize..][..3000]);
                device.flip_bit((start + at) as u64, 3);
            }
            let (data, sums) = take(&shard, &[asked("a", 1, &[(0, len as u64)])]).await.expect("it is sound");
            assert!(data == value && sums == [[crc(&value)]]);
        }
    });
}

/// Memory in which a bit flips after it was looked at a number of times.
struct Fickle {
    good: DmaBuf,
    bad: DmaBuf,
    looks: Rc<Cell<u32>>,
}

impl AsRef<[u8]> for Fickle {
    fn as_ref(&self) -> &[u8] {
        let left = self.looks.get();
        self.looks.set(left.saturating_sub(1));
        if left > 0 { &self.good } else { &self.bad }
    }
}

/// Stores a value while its memory turns bad after so many looks. Returns whether it was refused, whether a reader was
/// told, and whether it was stored as it was.
async fn store_from_fickle_memory(shard: &Shard, epoch: u64, value: &[u8], looks: u32) -> (bool, bool, bool) {
    let mut bad = DmaBuf::copy_of(value);
    bad[value.len() / 2] ^= 0x10;
    let left = Rc::new(Cell::new(u32::MAX));
    let memory = Fickle { good: DmaBuf::copy_of(value), bad, looks: Rc::clone(&left) };
    let data = Slice::new(Rc::new(memory), 0..value.len()).expect("inside");
    left.set(looks);
    let name = format!("{epoch}");
    let written = [summed(single(&name, value), value)];
    let stored = shard
        .update(CONTAINER, ARRAY, &Key::from_u64(1), Epoch(epoch), NONE, &written, Data::Shared(data))
        .await;
    match stored {
        Err(UpdateError::Checksum { .. }) => return (true, false, false),
        other => drop(other.expect("stored")),
    }
    match take(shard, &[whole(&name)]).await {
        Err(FetchError::Corrupt { .. }) => (false, true, false),
        Err(error) => panic!("{error}"),
        Ok((data, sums)) => (false, sums != [[crc(&data)]], data == value),
    }
}

#[test]
fn a_bit_that_flips_at_any_moment_of_an_update_is_noticed_by_a_reader() {
    run(3, async |handle| {
        let (_store, shard) = start_on(&handle, &MemoryDevice::new(SIZE)).await;
        for len in [100, 4000, 4096, 20_000, 90_001] {
            let value = pattern(len, len as usize);
            let (mut refused, mut told, mut sound) = (0, 0, 0);
            for looks in 0..40 {
                let outcome =
                    store_from_fickle_memory(&shard, len * 100 + u64::from(looks), &value, looks).await;
                match outcome {
                    (true, ..) => refused += 1,
                    (_, true, false) => told += 1,
                    (_, false, true) => sound += 1,
                    other => panic!("{len} bytes after {looks} looks: {other:?}"),
                }
            }
            // A large value is compared when the device has it already: nothing is left to flip unnoticed in between.
            let is_late = len > 64 << 10;
            assert!(refused > 0 && sound > 0, "{len} bytes: {refused} {told} {sound}");
            assert_eq!(told == 0, is_late, "{len} bytes: {refused} {told} {sound}");
        }
    });
}

#[test]
fn a_store_of_the_first_version_goes_on_in_its_own_form() {
    let device = golden::load("1");
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(4, async move |handle| {
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("it opens");
        let shard = store.pool(POOL).expect("the pool");
        let (odd, even) = (pattern(1, 10_000), pattern(2, 8192));
        update(&shard, 60, summed(array("odd", 1, &[(77, 10_000)]), &odd), &odd).await.expect("stored");
        update(&shard, 61, summed(array("even", 1, &[(4096, 8192)]), &even), &even).await.expect("stored");
        update(&shard, 80, array("plain", 1, &[(77, 10_000)]), &odd).await.expect("stored");
        for (number, byte) in (0..5).zip(odd.chunks(100)) {
            let written = summed(array("merged", 1, &[(7 + number * 100, 100)]), byte);
            update(&shard, 62 + number, written, byte).await.expect("stored");
        }
        let bad = AkeyUpdate { checksums: vec![1], ..single("small", b"weir") };
        assert!(matches!(update(&shard, 70, bad, b"weir").await, Err(UpdateError::Checksum { .. })));
        shard.aggregate(CONTAINER, Epoch(90)).await.expect("aggregated");
        let akeys = [
            asked("odd", 1, &[(77, 10_000)]),
            asked("even", 1, &[(4096, 8192)]),
            asked("merged", 1, &[(7, 500)]),
        ];
        let (data, sums) = take(&shard, &akeys).await.expect("read");
        assert!(data == [&odd[..], &even, &odd[..500]].concat());
        assert_eq!(sums, [[crc(&odd)], [crc(&even)], [crc(&odd[..500])]]);
        store.close().await.expect("closed");
    });
    let report = golden::inspect(&device, Depth::Everything);
    assert_eq!((report.version, report.damages), (1, 0), "{:?}", report.findings);
    let disk: Rc<dyn Device> = Rc::new(device);
    let lines = run(5, async move |_| {
        let all = Filter { object: Some(ARRAY), limit: usize::MAX, ..Filter::default() };
        dumped_by(&Inspector::open(disk).await.expect("a store"), Part::Entries, &all)
            .await
            .expect("dumped")
            .0
    });
    let number = |line: &[(&str, Field)], name| {
        line.iter().find_map(|(found, field)| match field {
            Field::Number(number) if *found == name => Some(*number),
            _ => None,
        })
    };
    let mut merged = 0;
    for line in &lines {
        let is = |text: &str| line.iter().any(|(_, field)| *field == Field::Text(text.to_owned()));
        merged += u64::from(is("merged") && is("inline"));
        assert!(!is("inline") || line.iter().all(|(name, _)| *name != "checksums"), "{line:?}");
        if let Some(first) = number(line, "first_chunk_bytes") {
            let is_lone = number(line, "bytes") == Some(first);
            assert!(is_lone || (first == 4096 && number(line, "chunk_bytes") == Some(4096)), "{line:?}");
        }
    }
    assert_eq!(merged, 1);
}

/// A write or a hole, with or without the client's checksums.
#[derive(Clone, Debug)]
struct Step {
    index: u64,
    count: u64,
    kind: u8,
}

fn step() -> impl Strategy<Value = Step> {
    let count = prop_oneof![1u64..20, 1u64..3000, 1u64..9000];
    (0u64..9000, count, 0u8..8).prop_map(|(index, count, kind)| Step { index, count, kind })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_readers_get_always_matches_its_checksums(
        steps in proptest::collection::vec(step(), 1..40), size in prop_oneof![Just(1u32), Just(3), Just(16), Just(40)],
        ranges in proptest::collection::vec((0u64..20_000, 1u64..6000), 1..6), aggregate_at in 0usize..40, reopens in any::<bool>(),
    ) {
        let outcome = run(6, async move |handle| follow(&handle, &steps, size, &ranges, aggregate_at, reopens).await);
        prop_assert!(outcome.is_ok(), "{:?}", outcome);
    }
}

/// Does the steps to an array and to a model of it, and compares them, and all checksums, afterwards.
async fn follow(
    handle: &Handle,
    steps: &[Step],
    size: u32,
    ranges: &[(u64, u64)],
    aggregate_at: usize,
    reopens: bool,
) -> Result<(), String> {
    let device = MemoryDevice::new(SIZE);
    let (mut store, mut shard) = start_on(handle, &device).await;
    let record = size as usize;
    let mut model = vec![0u8; 30_000 * record];
    for (number, Step { index, count, kind }) in steps.iter().enumerate() {
        let epoch = 10 + number as u64;
        let range = *index as usize * record..(*index + *count) as usize * record;
        let data = if *kind == 0 { Vec::new() } else { pattern(epoch, range.len()) };
        let written = array("a", if *kind == 0 { 0 } else { size }, &[(*index, *count)]);
        let written = if *kind < 3 { written } else { summed(written, &data) };
        update(&shard, epoch, written, &data).await.map_err(|error| error.to_string())?;
        match *kind {
            0 => model[range].fill(0),
            _ => model[range].copy_from_slice(&data),
        }
        if number == aggregate_at {
            shard.aggregate(CONTAINER, Epoch(epoch)).await.map_err(|error| error.to_string())?;
        }
    }
    if reopens {
        store.close().await.map_err(|error| error.to_string())?;
        store = Store::open(handle, Rc::new(device.clone()), &owner(), quiet()).await.expect("it opens");
        shard = store.pool(POOL).expect("the pool");
    }
    for round in 0..2 {
        for range in ranges {
            let akeys = [asked("a", size, &[*range])];
            let (data, sums) = take(&shard, &akeys).await.map_err(|error| error.to_string())?;
            if data.is_empty() {
                // Nothing but holes so far.
                continue;
            }
            let expected = &model[range.0 as usize * record..(range.0 + range.1) as usize * record];
            if data != expected || sums != [[crc(&data)]] {
                return Err(format!(
                    "{range:?} in round {round}: {} as the model, sums {sums:x?} for {:x}",
                    data == expected,
                    crc(&data)
                ));
            }
        }
        shard.aggregate(CONTAINER, Epoch(1000)).await.map_err(|error| error.to_string())?;
    }
    let problems = store.audit().await.problems;
    if problems.is_empty() { Ok(()) } else { Err(format!("{problems:?}")) }
}
