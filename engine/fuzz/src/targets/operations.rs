//! Requests to a store, as a client that knows no rule would make them.

use crate::image::{
    ARRAY_OBJECT, CONTAINER, POOL, TEXT_OBJECT, base, config, crc32c, owner, run as run_in_world, update_of,
};
use crate::source::Source;
use std::rc::Rc;
use uuid::Uuid;
use weir_inspect::{Depth, Inspector};
use weir_media::Device;
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, KeyQuery, ListScope, PunchScope, Value};
use weir_proto::{Epoch, Key, ObjectId};
use weir_runtime::Handle;
use weir_store::{Data, Operation, Shard, Store, StoreConfig, TransactionId};

/// Most bytes that one update really carries.
const DATA_MAX: u64 = 20_000;

/// Most extents of one record each that one akey of a request names; requests of more are refused.
const COMB_MAX: u64 = 1100;

/// Memory for a few index nodes only, so that they come and go.
const INDEX_BYTES: usize = 40 << 10;

/// A store in use.
struct Use {
    handle: Handle,
    device: Rc<dyn Device>,
    config: StoreConfig,
    store: Rc<Store>,
    shard: Shard,
}

impl Use {
    async fn begin(handle: Handle, device: Rc<dyn Device>, config: StoreConfig) -> Self {
        let opened = Store::open(&handle, Rc::clone(&device), &owner(), config.clone()).await;
        let store = opened.expect("a sound store");
        let shard = store.pool(POOL).expect("its pool");
        Self { handle, device, config, store, shard }
    }

    /// Closes the store and opens it again.
    async fn reopen(self) -> Self {
        self.end().await;
        let Self { handle, device, config, .. } = self;
        Self::begin(handle, device, config).await
    }

    async fn end(&self) {
        let problems = self.store.audit().await.problems;
        assert!(problems.is_empty(), "{problems:?}");
        self.store.close().await.expect("a healthy device");
    }
}

pub fn run(input: &[u8]) {
    let input = input.to_vec();
    let device: Rc<dyn Device> = Rc::new(base());
    run_in_world(async move |handle| {
        let mut source = Source::new(&input);
        let mut config = config();
        if source.chance(80) {
            config.index_bytes = INDEX_BYTES;
        }
        if source.chance(128) {
            config.fetch_looks = 1 + usize::from(source.byte() % 16);
            config.request_looks = 16 * config.fetch_looks;
        }
        let mut used = Use::begin(handle, Rc::clone(&device), config).await;
        while !source.is_empty() {
            used = step(used, &mut source).await;
        }
        used.end().await;
        let report = Inspector::open(device).await.expect("a store").report(Depth::Everything).await;
        assert_eq!(report.findings, []);
    });
}

fn object(source: &mut Source<'_>) -> ObjectId {
    let integer_akeys = ObjectId { hi: 3 << 56, lo: 1 };
    source.pick(&[TEXT_OBJECT, ARRAY_OBJECT, integer_akeys])
}

fn key(source: &mut Source<'_>) -> Key {
    let bytes = match source.byte() % 8 {
        0 => source.bytes(1024),
        1..5 => source.below(4).to_be_bytes().to_vec(),
        _ => vec![b'a' + source.byte() % 3],
    };
    Key::new(&bytes).unwrap_or_else(|_| Key::from_u64(0))
}

fn epoch(source: &mut Source<'_>) -> Epoch {
    Epoch(if source.chance(30) { source.number() } else { 1 + source.below(100) })
}

fn conditions(source: &mut Source<'_>) -> Conditions {
    Conditions(if source.chance(60) { source.number32() } else { 0 })
}

fn value(source: &mut Source<'_>) -> Value {
    if source.chance(100) {
        return Value::Single {
            size: if source.chance(20) { source.number() } else { source.below(DATA_MAX) },
        };
    }
    let record_size = match source.byte() {
        // That of the arrays in the image, so that most requests fit what is there.
        0..140 => 8,
        140..240 => u32::from(source.byte() % 9),
        _ => source.number32(),
    };
    if source.chance(30) {
        let (first, stride, teeth) = (source.below(5000), source.below(4).max(1), source.below(COMB_MAX));
        let comb = (0..teeth).map(|tooth| Extent { index: first + tooth * stride, count: 1 });
        return Value::Array { record_size, extents: comb.collect() };
    }
    let extent = |source: &mut Source<'_>| Extent {
        index: if source.chance(60) { source.number() } else { source.below(1000) },
        count: if source.chance(20) { source.number() } else { source.below(1000) },
    };
    let extents = (0..source.below(4)).map(|_| extent(source)).collect();
    Value::Array { record_size, extents }
}

async fn step(used: Use, source: &mut Source<'_>) -> Use {
    let object = object(source);
    let Use { store, shard, .. } = &used;
    match source.byte() % 16 {
        0..4 => update(shard, object, source).await,
        4 | 5 => fetch(shard, object, source).await,
        6 => {
            let (scope, epoch, conditions) = (punch_scope(source), epoch(source), conditions(source));
            let _ = shard.punch(CONTAINER, object, &scope, epoch, conditions).await;
        }
        7 => list(shard, object, source).await,
        8 => {
            let query = KeyQuery::Search {
                max: source.chance(128),
                dkey: source.chance(128).then(|| key(source)),
                akey: source.chance(128).then(|| key(source)),
                extent: source.chance(128),
            };
            let (epoch, anchor) = (epoch(source), source.bytes(20));
            let _ = shard.query_key(CONTAINER, object, epoch, &query, &anchor).await;
        }
        9 => {
            let epochs: Vec<Epoch> = (0..source.below(4)).map(|_| epoch(source)).collect();
            let _ = shard.set_snapshots(CONTAINER, &epochs).await;
        }
        10 => {
            let _ = shard.aggregate(CONTAINER, epoch(source)).await;
        }
        11 => {
            let _ = store.defragment().await;
        }
        12 => begin(&used, source).await,
        13 => {
            let id = transaction(source);
            if source.chance(128) {
                let _ = shard.commit_transaction(CONTAINER, id).await;
            } else {
                let _ = shard.abort_transaction(CONTAINER, id).await;
            }
        }
        14 => return used.reopen().await,
        _ => {
            let _ = store.checkpoint().await;
        }
    }
    used
}

fn punch_scope(source: &mut Source<'_>) -> PunchScope {
    let (dkey, akeys) = (key(source), (0..source.below(3)).map(|_| key(source)).collect());
    match source.byte() % 4 {
        0 => PunchScope::Object,
        1 => PunchScope::Dkeys(vec![dkey]),
        2 => PunchScope::Akeys(dkey, akeys),
        _ => PunchScope::DkeyWith(dkey, akeys),
    }
}

async fn list(shard: &Shard, object: ObjectId, source: &mut Source<'_>) {
    let scope = match source.byte() % 4 {
        0 => ListScope::Objects,
        1 => ListScope::Dkeys,
        2 => ListScope::Akeys(key(source)),
        _ => ListScope::Extents(key(source), key(source)),
    };
    let (epoch, anchor, limit) = (epoch(source), source.bytes(40), source.number32());
    let _ = shard.list(CONTAINER, object, &scope, epoch, &anchor, limit, None).await;
}

/// One of a few transactions, also those of the image, which are prepared and decided in any order.
fn transaction(source: &mut Source<'_>) -> TransactionId {
    TransactionId(Uuid::from_u128(source.below(4).into()))
}

/// Prepares a transaction, or does all of it at once.
async fn begin(used: &Use, source: &mut Source<'_>) {
    let id = transaction(source);
    // Mostly not too late for what was read and written before.
    let epoch =
        if source.chance(60) { epoch(source) } else { Epoch(used.handle.wall_ns() + source.below(1000)) };
    let mut parts = Vec::new();
    for _ in 0..=source.below(3) {
        let (object, conditions) = (object(source), conditions(source));
        if source.chance(80) {
            parts.push((object, conditions, Err(punch_scope(source))));
        } else {
            parts.push((object, conditions, Ok(drawn_update(source))));
        }
    }
    let operations = parts.iter().map(|(object, conditions, part)| match part {
        Ok((dkey, akeys, bytes)) => Operation::Update {
            object: *object,
            dkey: dkey.clone(),
            conditions: *conditions,
            akeys: akeys.clone(),
            data: Data::Borrowed(bytes),
        },
        Err(scope) => Operation::Punch { object: *object, scope: scope.clone(), conditions: *conditions },
    });
    let operations: Vec<Operation<'_>> = operations.collect();
    if source.chance(80) {
        let _ = used.shard.transact(CONTAINER, id, epoch, &operations).await;
    } else {
        let _ = used.shard.prepare(CONTAINER, id, epoch, &operations).await;
    }
}

/// A dkey, what its akeys get, and the data of that.
fn drawn_update(source: &mut Source<'_>) -> (Key, Vec<AkeyUpdate>, Vec<u8>) {
    let dkey = key(source);
    let mut updates = Vec::new();
    for _ in 0..=source.below(3) {
        let mut update = update_of(&key(source), value(source));
        update.conditions = conditions(source);
        if source.chance(20) {
            update.checksums = vec![source.number32()];
        }
        updates.push(update);
    }
    let needed = updates.iter().try_fold(0u64, |sum, update| sum.checked_add(update.value.data_len()?));
    let len = if source.chance(10) { source.below(100) } else { needed.unwrap_or(0).min(DATA_MAX * 8) };
    let bytes = vec![source.byte(); usize::try_from(len).unwrap_or(0)];
    if source.chance(100) {
        put_checksums(&mut updates, &bytes);
    }
    (dkey, updates, bytes)
}

async fn update(shard: &Shard, object: ObjectId, source: &mut Source<'_>) {
    let (dkey, updates, bytes) = drawn_update(source);
    let (epoch, conditions) = (epoch(source), conditions(source));
    let _ = shard.update(CONTAINER, object, &dkey, epoch, conditions, &updates, Data::Borrowed(&bytes)).await;
}

/// Gives updates the checksums of their data, as far as there is data.
fn put_checksums(updates: &mut [AkeyUpdate], bytes: &[u8]) {
    let grain = Grain::of(updates.iter().map(|update| &update.value));
    let mut rest = bytes;
    for update in updates {
        let chunks = chunk::chunks(&update.value, grain).flat_map(Chunks::ranges);
        let lens = chunks.map_while(|range| {
            let (own, behind) = rest.split_at_checked(usize::try_from(range.end - range.start).ok()?)?;
            rest = behind;
            Some(crc32c(own))
        });
        update.checksums = lens.collect();
    }
}

async fn fetch(shard: &Shard, object: ObjectId, source: &mut Source<'_>) {
    let dkey = key(source);
    let mut akeys = Vec::new();
    for _ in 0..=source.below(3) {
        let (akey, value, conditions) = (key(source), value(source), conditions(source));
        akeys.push(AkeyFetch { akey, value, conditions });
    }
    let (epoch, conditions) = (epoch(source), conditions(source));
    if let Ok(fetch) = shard.fetch(CONTAINER, object, &dkey, epoch, conditions, &akeys).await {
        let mut into = vec![0xee; usize::try_from(fetch.data_len()).unwrap_or(0)];
        // Nothing on this device is damaged, so that what was promised must be there.
        let sums = fetch.read_summed(&akeys, &mut into).await.expect("sound data");
        let mut rest = &into[..];
        for ((asked, found), sums) in akeys.iter().zip(fetch.akeys()).zip(&sums) {
            let (data, behind) = rest.split_at(usize::try_from(found.len).unwrap_or(0));
            rest = behind;
            let lens: Vec<u64> = match &asked.value {
                _ if data.is_empty() => Vec::new(),
                Value::Single { .. } => vec![found.len],
                Value::Array { extents, .. } => {
                    extents.iter().map(|extent| extent.count * found.fetched.size).collect()
                }
            };
            let mut data = data;
            let expected = lens.into_iter().map(|len| {
                let (own, behind) = data.split_at(usize::try_from(len).unwrap_or(0));
                data = behind;
                crc32c(own)
            });
            assert_eq!(sums[..], expected.collect::<Vec<_>>());
        }
    }
}
