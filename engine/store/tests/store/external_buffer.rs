//! Large values that the device reads to the memory where they are wanted.

use crate::setup::*;
use core::cell::Cell;
use core::pin::pin;
use core::task::{Context, Waker};
use std::rc::Rc;
use std::time::Duration;
use weir_media::{BLOCK, DmaBuf};
use weir_proto::object::{AkeyFetch, Conditions};
use weir_proto::{Epoch, Key};
use weir_store::{Comparison, Fetch, FetchError, Shard};

const DISK: u64 = 64 << 20;
/// The chunk that values of half a mebibyte and more are cut into.
const CHUNK: u64 = 32 << 10;
const LEN: u64 = 1 << 20;

fn asked(index: u64, count: u64) -> [AkeyFetch; 1] {
    let update = array("data", 1, &[(index, count)]);
    [AkeyFetch { akey: update.akey, value: update.value, conditions: Conditions::NONE }]
}

async fn find(shard: &Shard, dkey: u64, akeys: &[AkeyFetch]) -> Fetch {
    let dkey = Key::from_u64(dkey);
    shard.fetch(CONTAINER, ARRAY, &dkey, Epoch::MAX, Conditions::NONE, akeys).await.expect("found")
}

/// Data, where in its memory it begins, and its checksum.
type Found = (Vec<u8>, usize, Vec<Vec<u32>>);

/// What is read to memory of so many bytes.
async fn land(shard: &Shard, dkey: u64, range: (u64, u64), room: u64) -> Result<Found, FetchError> {
    land_as(Comparison::Here, shard, dkey, range, room).await
}

/// The same, compared by the store or not.
async fn land_as(
    comparison: Comparison,
    shard: &Shard,
    dkey: u64,
    (index, count): (u64, u64),
    room: u64,
) -> Result<Found, FetchError> {
    let akeys = asked(index, count);
    let mut memory = DmaBuf::new(room as usize);
    memory.fill(0xee);
    let landed = find(shard, dkey, &akeys).await.read_to(&akeys, comparison, memory).await?;
    let data = landed.memory[landed.start..landed.start + count as usize].to_vec();
    Ok((data, landed.start, listed(landed.sums)))
}

/// A value of `len` bytes at a record, with its checksums. It is the last of the index, which takes another way to it than
/// if anything followed: `behind` says that something does.
async fn store(shard: &Shard, dkey: u64, index: u64, len: u64, behind: bool) -> Vec<u8> {
    let value = pattern(dkey, len as usize);
    // Those of even epochs have the client's checksums.
    write(shard, dkey, 2 * dkey, index, &value).await.expect("stored");
    if behind {
        write(shard, dkey + 1, 1, 0, b"behind").await.expect("stored");
    }
    value
}

#[test]
fn any_part_of_a_large_value_lands_with_the_blocks_around_it() {
    let parts = [
        (0, LEN),
        (0, LEN - 1),
        (1, LEN - 1),
        (CHUNK, LEN - CHUNK),
        (5 * CHUNK, 2 * CHUNK),
        (CHUNK - 1, CHUNK + 2),
        (3 * CHUNK + 100, 9 * CHUNK),
        (LEN - CHUNK - 7, CHUNK + 7),
    ];
    for behind in [false, true] {
        let machine = Machine::new(1, DISK);
        let (_store, shard) = machine.start(quiet());
        machine.run(async move {
            let value = store(&shard, 1, 0, LEN, behind).await;
            for (index, count) in parts {
                for comparison in [Comparison::Here, Comparison::ByReader] {
                    let found = land_as(comparison, &shard, 1, (index, count), LEN).await;
                    let (data, start, sums) = found.expect("read");
                    assert!(
                        data == value[index as usize..(index + count) as usize],
                        "{count} from {index} on"
                    );
                    assert_eq!(start as u64, index % CHUNK, "whole chunks are read, and nothing is copied");
                    assert_eq!(sums, [[crc(&data)]], "{count} from {index} on");
                }
            }
        });
    }
}

#[test]
fn chunks_that_begin_within_blocks_land_too() {
    let machine = Machine::new(2, DISK);
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        // The first chunk ends at the first multiple of its length among the records.
        let (index, len) = (1000, 300_000);
        let value = store(&shard, 1, index, len, true).await;
        for (at, count) in [(0, len), (1, len - 1), (40_000, 200_000), (len - 100_000, 100_000)] {
            let (data, start, sums) = land(&shard, 1, (index + at, count), 2 * len).await.expect("read");
            assert!(data == value[at as usize..(at + count) as usize], "{count} from {at} on");
            assert_eq!((start > 0, sums), (at > 0, vec![vec![crc(&data)]]), "{count} from {at} on");
        }
    });
}

#[test]
fn memory_without_room_for_the_blocks_around_gets_a_copy() {
    let machine = Machine::new(3, DISK);
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        let value = store(&shard, 1, 0, LEN, true).await;
        let (index, count) = (CHUNK + 5000, 4 * CHUNK);
        let expected = &value[index as usize..(index + count) as usize];
        let (data, start, sums) = land(&shard, 1, (index, count), count).await.expect("read");
        assert!(data == expected && start == 0 && sums == [[crc(&data)]]);
        let (data, start, sums) = land(&shard, 1, (index, count), count + CHUNK).await.expect("read");
        assert!(data == expected && start == 5000 && sums == [[crc(&data)]]);
        // The rest of what was asked for isn't there.
        let (data, start, _) = land(&shard, 1, (LEN - CHUNK, 2 * CHUNK), LEN).await.expect("read");
        assert!(data[..CHUNK as usize] == value[(LEN - CHUNK) as usize..] && start == 0);
        assert!(data[CHUNK as usize..].iter().all(|byte| *byte == 0));
        let small = land(&shard, 1, (0, LEN), LEN - 1 - BLOCK as u64).await;
        assert!(matches!(small, Err(FetchError::Buffer { .. })), "{small:?}");
    });
}

/// Stores a value of [`LEN`] bytes. Returns where it begins on the device.
fn stored_at(machine: &Machine, shard: &Rc<Shard>) -> u64 {
    let shard = Rc::clone(shard);
    let value = machine.run(async move { store(&shard, 1, 0, LEN, true).await });
    let place = (0..DISK / 4096).find(|at| machine.disk.bytes(at * 4096, 4096) == value[..4096]);
    place.expect("the data") * 4096
}

#[test]
fn a_bit_that_has_rotted_anywhere_in_what_landed_is_met_and_nothing_is_handed_out() {
    let machine = Machine::new(4, DISK);
    let (whole, shard) = machine.start(quiet());
    let first = Rc::new(shard);
    let place = stored_at(&machine, &first);
    for (number, at) in [0, CHUNK - 1, 9 * CHUNK, 8 * CHUNK + 77, LEN - 1].into_iter().enumerate() {
        machine.disk.rot(place + at, 5);
        let shard = Rc::clone(&first);
        let (damaged, rest) = machine.run(async move {
            let chunk = at / CHUNK;
            // Behind the damage, or before it.
            let others = if chunk < 16 { (chunk + 1) * CHUNK } else { 0 };
            (land(&shard, 1, (0, LEN), LEN).await, land(&shard, 1, (others, 8 * CHUNK), LEN).await)
        });
        let Err(FetchError::Corrupt { location, .. }) = damaged else { panic!("at {at}: {damaged:?}") };
        assert_eq!(location.offset, place + at / CHUNK * CHUNK);
        assert!(rest.is_ok(), "{rest:?}");
        assert_eq!(whole.stats().checksum_errors, number as u64 + 1);
        machine.disk.rot(place + at, 5);
    }
}

/// Whether the reader of what was found meets a bit that has rotted at `at`, which the checksums tell then; `None`: the store has
/// met it.
fn is_told(
    found: Result<Found, FetchError>,
    (index, count): (u64, u64),
    at: u64,
    place: u64,
) -> Option<bool> {
    match found {
        Ok((data, _, sums)) => {
            let has_it = index <= at && at < index + count;
            assert_eq!(sums != [[crc(&data)]], has_it, "{count} from {index} on, damage at {at}");
            Some(has_it)
        }
        Err(FetchError::Corrupt { location, .. }) => {
            assert_eq!(location.offset, place + at / CHUNK * CHUNK);
            None
        }
        Err(other) => panic!("{count} from {index} on, damage at {at}: {other}"),
    }
}

#[test]
fn a_reader_who_compares_meets_what_has_rotted_in_whole_chunks_and_the_store_what_has_in_parts() {
    let machine = Machine::new(6, DISK);
    let (whole, shard) = machine.start(quiet());
    let first = Rc::new(shard);
    let place = stored_at(&machine, &first);
    let ranges = [
        (0, LEN),
        (CHUNK, 3 * CHUNK),
        (CHUNK - 1, 2 * CHUNK),
        (CHUNK + 100, 5 * CHUNK),
        (LEN - 2 * CHUNK - 7, CHUNK + 7),
    ];
    let (mut by_reader, mut by_store, mut nowhere) = (0, 0, 0);
    for at in
        [0, CHUNK - 1, CHUNK, 2 * CHUNK + 99, 6 * CHUNK + 50, LEN - 2 * CHUNK - 8, LEN - CHUNK - 1, LEN - 1]
    {
        machine.disk.rot(place + at, (at % 8) as u8);
        for (index, count) in ranges {
            let met = (index / CHUNK..(index + count).div_ceil(CHUNK)).contains(&(at / CHUNK));
            let chunk = at / CHUNK * CHUNK..(at / CHUNK + 1) * CHUNK;
            let is_whole = index <= chunk.start && chunk.end <= index + count;
            // With room to land, and with room for a copy only.
            for room in [LEN, count] {
                let counted = whole.stats().checksum_errors;
                let shard = Rc::clone(&first);
                let (found, compared) = machine.run(async move {
                    let found = land_as(Comparison::ByReader, &shard, 1, (index, count), room).await;
                    (found, land(&shard, 1, (index, count), room).await)
                });
                assert_eq!(compared.is_err(), met, "{count} from {index} on, damage at {at}");
                let told = is_told(found, (index, count), at, place);
                let expected = if met { is_whole.then_some(true) } else { Some(false) };
                assert_eq!(told, expected, "{count} from {index} on, damage at {at}");
                match told {
                    Some(true) => by_reader += 1,
                    Some(false) => nowhere += 1,
                    None => by_store += 1,
                }
                let errors = u64::from(met) + u64::from(told.is_none());
                assert_eq!(
                    whole.stats().checksum_errors - counted,
                    errors,
                    "what is left to the reader isn't counted"
                );
            }
        }
        machine.disk.rot(place + at, (at % 8) as u8);
    }
    assert!(by_reader > 10 && by_store > 4 && nowhere > 10, "{by_reader} {by_store} {nowhere}");
}

/// Says when it goes.
struct Told(Rc<Cell<bool>>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn the_memory_of_a_read_that_is_given_up_stays_until_the_device_is_done_with_it() {
    let machine = Machine::new(5, DISK);
    let (_store, shard) = machine.start(quiet());
    let is_gone = Rc::new(Cell::new(false));
    let flag = Rc::clone(&is_gone);
    machine.run(async move {
        store(&shard, 1, 0, LEN, true).await;
        let akeys = asked(0, LEN);
        let found = find(&shard, 1, &akeys).await;
        let mut reading =
            pin!(found.read_to(&akeys, Comparison::Here, (DmaBuf::new(LEN as usize), Told(flag))));
        assert!(reading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    });
    assert!(!is_gone.get(), "the device still writes to it");
    machine.sleep(Duration::from_secs(1));
    assert!(is_gone.get());
}
