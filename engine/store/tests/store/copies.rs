//! An object's data goes from one store to another with the checksums that its writer computed: nobody on the way has to be
//! trusted, and what is damaged, on the device or on the way, doesn't arrive.

use crate::setup::*;
use weir_media::memory::MemoryDevice;
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, ListScope, Value};
use weir_proto::{Epoch, Key};
use weir_store::{Data, FetchError, Shard, UpdateError};

const SIZE: u64 = 64 << 20;
const NONE: Conditions = Conditions::NONE;
/// Epoch of single values, which lists don't tell.
const OF_SINGLES: u64 = 10;

/// What is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    dkey: Key,
    akey: Key,
    value: Value,
    epoch: Epoch,
}

/// Its data, and the checksum of each chunk.
type Read = (Vec<u8>, Vec<u32>);

/// The records of each chunk of an extent.
fn chunks(extent: Extent, record_size: u32) -> Vec<Extent> {
    let size = u64::from(record_size);
    let of_part = |part: Extent| {
        let ranges = Chunks::of_part(part, record_size, Grain::Fine).ranges();
        ranges.map(move |range| Extent {
            index: part.index + range.start / size,
            count: (range.end - range.start) / size,
        })
    };
    chunk::parts(extent, record_size).flat_map(of_part).collect()
}

/// Everything that the object has now.
async fn list(shard: &Shard) -> Vec<Piece> {
    let page = async |scope: ListScope| {
        let page = shard.list(CONTAINER, OBJECT, &scope, Epoch::MAX, b"", 100, None).await.expect("listed");
        assert_eq!(page.next, None, "it is all in one page");
        page.entries
    };
    let mut pieces = Vec::new();
    for dkey in page(ListScope::Dkeys).await {
        let dkey = Key::new(&dkey.key).expect("a key");
        for akey in page(ListScope::Akeys(dkey.clone())).await {
            let akey = Key::new(&akey.key).expect("a key");
            let extents = page(ListScope::Extents(dkey.clone(), akey.clone())).await;
            let mut add = |value, epoch| {
                pieces.push(Piece { dkey: dkey.clone(), akey: akey.clone(), value, epoch });
            };
            for listed in &extents {
                let (extent, record_size, epoch) = listed.extent.expect("an extent");
                add(Value::Array { record_size, extents: vec![extent] }, epoch);
            }
            if extents.is_empty() {
                add(Value::Single { size: u64::MAX }, Epoch(OF_SINGLES));
            }
        }
    }
    pieces
}

/// Reads a piece chunk by chunk, so that the stored checksums come as they are where chunks are whole.
async fn read(shard: &Shard, piece: &Piece) -> Result<Read, FetchError> {
    let value = match &piece.value {
        Value::Array { record_size, extents } => {
            Value::Array { record_size: *record_size, extents: chunks(extents[0], *record_size) }
        }
        single @ Value::Single { .. } => single.clone(),
    };
    let asked = [AkeyFetch { akey: piece.akey.clone(), value, conditions: NONE }];
    let found = shard.fetch(CONTAINER, OBJECT, &piece.dkey, Epoch::MAX, NONE, &asked).await?;
    let mut data = vec![0xee; found.data_len() as usize];
    let sums = found.read_summed(&asked, &mut data).await?;
    Ok((data, listed(sums).remove(0)))
}

/// Stores a piece with the checksums that came with it.
async fn store(shard: &Shard, piece: &Piece, (data, checksums): &Read) -> Result<Epoch, UpdateError> {
    let value = match &piece.value {
        Value::Single { .. } => Value::Single { size: data.len() as u64 },
        array @ Value::Array { .. } => array.clone(),
    };
    let (akey, checksums) = (piece.akey.clone(), checksums.clone());
    let update = [AkeyUpdate { akey, value, conditions: NONE, checksums }];
    let data = Data::Borrowed(data);
    shard.update(CONTAINER, OBJECT, &piece.dkey, piece.epoch, NONE, &update, data).await
}

/// Stores values of one chunk and arrays of many, whose writer gave them checksums.
async fn fill(shard: &Shard) {
    let values = [
        ("d", single("small", &[0; 100]), OF_SINGLES, 100),
        ("d", single("block", &[0; 4096]), OF_SINGLES, 4096),
        ("d", array("bytes", 1, &[(5, 300)]), 20, 300),
        ("e", array("bytes", 1, &[(1000, 70_000)]), 30, 70_000),
        ("e", array("bytes", 1, &[(20_000, 9000)]), 40, 9000),
        ("e", array("large", 100, &[(3, 20_000)]), 50, 2_000_000),
    ];
    for (dkey, update, epoch, len) in values {
        let data = pattern(epoch + len, len as usize);
        let update = [summed(update, &data)];
        let data = Data::Borrowed(&data);
        shard.update(CONTAINER, OBJECT, &key(dkey), Epoch(epoch), NONE, &update, data).await.expect("stored");
    }
}

#[test]
fn data_moves_between_stores_with_its_checksums_and_damage_stays_behind() {
    run(1, async |handle| {
        let (device, other) = (MemoryDevice::new(SIZE), MemoryDevice::new(SIZE));
        let (_source, from) = start_on(&handle, &device).await;
        let (_target, to) = start_on(&handle, &other).await;
        fill(&from).await;
        let pieces = list(&from).await;
        // An overwrite cuts one extent in two, and a long one is stored in two parts.
        assert_eq!(pieces.len(), 8, "{pieces:?}");
        let damaged = pieces.last().expect("some");
        // What rots at its source can't be read.
        let (sound, _) = read(&from, damaged).await.expect("read");
        let place = (0..SIZE).step_by(4096).find(|at| device.bytes(*at, 64) == sound[..64]);
        let middle = place.expect("it lies in blocks") + 500_000;
        device.flip_bit(middle, 3);
        for (number, piece) in pieces.iter().enumerate() {
            let taken = match read(&from, piece).await {
                Ok(taken) => taken,
                Err(error) => {
                    assert!(matches!(error, FetchError::Corrupt { .. }) && piece == damaged, "{error}");
                    continue;
                }
            };
            assert_ne!(piece, damaged);
            // A bit that flips on the way is met on arrival, wherever it is.
            let mut altered = taken.clone();
            let at = taken.0.len() * (number + 1) / (pieces.len() + 1);
            altered.0[at] ^= 1 << number;
            let refused = store(&to, piece, &altered).await;
            assert!(matches!(refused, Err(UpdateError::Checksum { .. })), "{piece:?}: {refused:?}");
            store(&to, piece, &taken).await.expect("it is as it was written");
        }
        let copied = list(&to).await;
        assert_eq!(copied, pieces[..pieces.len() - 1]);
        for piece in &copied {
            assert_eq!(read(&to, piece).await, read(&from, piece).await, "{piece:?}");
        }
        // Mended, it can go, too.
        device.flip_bit(middle, 3);
        store(&to, damaged, &read(&from, damaged).await.expect("sound again")).await.expect("stored");
        assert_eq!(read(&to, damaged).await.expect("read").0, sound);
        assert_eq!(list(&to).await, pieces);
    });
}
