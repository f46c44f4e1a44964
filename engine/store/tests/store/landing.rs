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
use weir_store::{Fetch, FetchError, Shard};

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

/// What is read to memory of so many bytes: the data, where it begins, and its checksum.
async fn land(
    shard: &Shard,
    dkey: u64,
    (index, count): (u64, u64),
    room: u64,
) -> Result<(Vec<u8>, usize, Vec<Vec<u32>>), FetchError> {
    let akeys = asked(index, count);
    let mut memory = DmaBuf::new(room as usize);
    memory.fill(0xee);
    let landed = find(shard, dkey, &akeys).await.read_to(&akeys, memory).await?;
    let data = landed.memory[landed.start..landed.start + count as usize].to_vec();
    Ok((data, landed.start, landed.sums))
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
                let (data, start, sums) = land(&shard, 1, (index, count), LEN).await.expect("read");
                assert!(data == value[index as usize..(index + count) as usize], "{count} from {index} on");
                assert_eq!(start as u64, index % CHUNK, "whole chunks are read, and nothing is copied");
                assert_eq!(sums, [[crc(&data)]], "{count} from {index} on");
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

#[test]
fn a_bit_that_has_rotted_anywhere_in_what_landed_is_met_and_nothing_is_handed_out() {
    let machine = Machine::new(4, DISK);
    let (whole, shard) = machine.start(quiet());
    let first = Rc::new(shard);
    let shard = Rc::clone(&first);
    let value = machine.run(async move { store(&shard, 1, 0, LEN, true).await });
    let place = (0..DISK / 4096).find(|at| machine.disk.bytes(at * 4096, 4096) == value[..4096]);
    let place = place.expect("the data") * 4096;
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
        let mut reading = pin!(found.read_to(&akeys, (DmaBuf::new(LEN as usize), Told(flag))));
        assert!(reading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    });
    assert!(!is_gone.get(), "the device still writes to it");
    machine.sleep(Duration::from_secs(1));
    assert!(is_gone.get());
}
