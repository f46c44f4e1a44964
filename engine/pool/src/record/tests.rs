//! Records as they were written by earlier releases and are written by this one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use weir_proto::pool::{ContainerProperties, ContainerType, PoolEngine, PoolMap, PoolTarget, TargetState};
use weir_proto::{Epoch, PoolId, PoolSecret, Rank, TargetIndex, TenantId};

use super::{
    ContainerRecord, DirectoryEntry, EntryState, PoolRecord, PoolSettings, Remnant, Stored, decode, encode,
};
use crate::error::Failed;

const POOL: PoolId = PoolId(uuid::Uuid::from_u128(7));

/// What stands behind the version byte, in hexadecimal.
const EARLY_MAP: &str = "04020002000001ac020101";
const FIRST_POOL: &str = concat!(
    "10000000000000000000000000000000070474616e6b0303030303030303030303030303030303030303030303030303",
    "03030303030380808080040204020002000001ac020101025358",
);
const SECOND_POOL: &str = concat!(
    "10000000000000000000000000000000070474616e6b0303030303030303030303030303030303030303030303030303",
    "03030303030380808080040204020002000001ac02010102535809",
);
const FIRST_ENTRY: &str = concat!(
    "10000000000000000000000000000000070474616e6b0303030303030303030303030303030303030303030303030303",
    "03030303030380808080040204020002000001ac020101025358808080800c0202ac0202",
);
const SECOND_ENTRY: &str = concat!(
    "10000000000000000000000000000000070474616e6b0303030303030303030303030303030303030303030303030303",
    "03030303030380808080040204020002000001ac02010102535809808080800c0202ac0202",
);
const MAP: &str = "04020002000001ac0201050c02010003030102020172016e";
const POOL_RECORD: &str = concat!(
    "10000000000000000000000000000000070474616e6b0303030303030303030303030303030303030303030303030303",
    "03030303030380808080040204020002000001ac0201050c02010003030102020172016e025358090102",
);
const ENTRY: &str = concat!(
    "10000000000000000000000000000000070474616e6b0303030303030303030303030303030303030303030303030303",
    "03030303030380808080040204020002000001ac0201050c02010003030102020172016e025358090102808080800c02",
    "02ac0202",
);
const CONTAINER: &str = "03626f7801808040025331808040e80764ed030080e2cfaa060205ac0280080200018020030001";
const REMNANT: &str = "0474616e6b0202ac02";
const SETTINGS: &str = "ac02";

/// A map as versions 1 and 2 have it.
fn early_map() -> PoolMap {
    let target = |id, rank, index, state| PoolTarget {
        state,
        since: 0,
        ..PoolTarget::serving(id, Rank(rank), TargetIndex(index))
    };
    let targets = vec![target(0, 2, 0, TargetState::UpIn), target(1, 300, 1, TargetState::Down)];
    PoolMap::new(4, targets)
}

fn map() -> PoolMap {
    let target = |id, rank, index| PoolTarget::serving(id, Rank(rank), TargetIndex(index));
    let mut map = PoolMap::new(4, vec![target(0, 2, 0), target(1, 300, 1)]);
    map.targets[1].enter(TargetState::DownOut, 3);
    map.engines = vec![PoolEngine { rank: Rank(2), path: vec!["r".to_owned(), "n".to_owned()] }];
    map
}

/// A pool as versions 1 and 2 have it.
fn early_pool(tenant: u64) -> PoolRecord {
    PoolRecord {
        pool: POOL,
        label: "tank".to_owned(),
        secret: PoolSecret([3; 32]),
        size: 1 << 30,
        service: Rank(2),
        map: early_map(),
        object_class: "SX".to_owned(),
        tenant: TenantId(tenant),
        redundancy: 0,
    }
}

fn pool() -> PoolRecord {
    PoolRecord { map: map(), redundancy: 2, ..early_pool(9) }
}

fn entry(pool: PoolRecord) -> DirectoryEntry {
    let ranks = vec![Rank(2), Rank(300)];
    DirectoryEntry { pool, size: 3 << 30, ranks, state: EntryState::Destroying }
}

fn container() -> ContainerRecord {
    ContainerRecord {
        properties: ContainerProperties {
            label: "box".to_owned(),
            kind: ContainerType::Object,
            quota: 1 << 20,
            object_class: "S1".to_owned(),
            chunk_size: 1 << 20,
            uid: 1000,
            gid: 100,
            mode: 0o755,
            attributes: BTreeMap::new(),
        },
        created: 1_700_000_000,
        snapshots: vec![Epoch(5), Epoch(300)],
        next_oid: 1024,
        grants: BTreeMap::from([(0, Some(4096)), (3, None)]),
        doomed: true,
    }
}

fn remnant() -> Remnant {
    Remnant { label: "tank".to_owned(), ranks: vec![Rank(2), Rank(300)] }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn read<T: Stored>(version: u8, body: &str) -> Result<T, Failed> {
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("digits")
    };
    decode(POOL, &[vec![version], body.as_bytes().chunks(2).map(byte).collect()].concat())
}

#[test]
fn records_are_written_in_the_form_that_is_recorded() {
    assert_eq!(hex(&encode(&map())), format!("03{MAP}"));
    assert_eq!(hex(&encode(&pool())), format!("03{POOL_RECORD}"));
    assert_eq!(hex(&encode(&entry(pool()))), format!("03{ENTRY}"));
    assert_eq!(hex(&encode(&container())), format!("02{CONTAINER}"));
    assert_eq!(hex(&encode(&remnant())), format!("02{REMNANT}"));
    assert_eq!(hex(&encode(&PoolSettings { rebuild_delay: 300 })), format!("01{SETTINGS}"));
    assert_eq!(read(1, SETTINGS), Ok(PoolSettings { rebuild_delay: 300 }));
}

#[test]
fn every_version_that_was_ever_written_is_read() {
    assert_eq!(read(1, FIRST_POOL), Ok(early_pool(0)), "without a tenant it is the system's");
    assert_eq!(read(2, SECOND_POOL), Ok(early_pool(9)));
    assert_eq!(read(3, POOL_RECORD), Ok(pool()));
    assert_eq!(read(1, FIRST_ENTRY), Ok(entry(early_pool(0))));
    assert_eq!(read(2, SECOND_ENTRY), Ok(entry(early_pool(9))));
    assert_eq!(read(3, ENTRY), Ok(entry(pool())));
    assert_eq!(read(3, MAP), Ok(map()));
    for version in [1, 2] {
        assert_eq!(read(version, EARLY_MAP), Ok(early_map()));
        assert_eq!(read(version, CONTAINER), Ok(container()));
        assert_eq!(read(version, REMNANT), Ok(remnant()));
    }
}

#[test]
fn what_is_damaged_or_of_a_later_version_is_refused_with_its_name() {
    let refused = |outcome: Result<PoolRecord, Failed>| outcome.expect_err("it is none").to_string();
    assert!(refused(read(4, POOL_RECORD)).contains("format version 4, this release reads 1 to 3"));
    assert!(refused(read(0, POOL_RECORD)).contains("format version 0"));
    assert!(refused(decode(POOL, &[])).contains("it is empty"));
    assert!(refused(read(2, FIRST_POOL)).contains("the record of pool"), "it lacks the tenant");
    assert!(refused(read(3, SECOND_POOL)).contains("the record of pool"), "it lacks the end");
    assert!(read::<ContainerRecord>(2, REMNANT).is_err());
}
