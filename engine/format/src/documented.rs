//! The table of kinds in `docs/reference/format.md` against the code: a tag is decoded exactly when the table has it.

use crate::batch::{Batch, BatchKind, batch_header, probe_batch};
use crate::codec::Malformed;
use crate::decision::Decision;
use crate::entry::Entry;
use crate::key::{self, Path};
use crate::node::{BRANCH, LEAF};
use crate::record::Records;
use crate::value::{Event, Version};
use crate::{VERSION_CHUNKS, VERSION_NEWEST, VERSION_OLDEST, VERSION_RESERVATIONS};
use std::collections::BTreeMap;
use uuid::Uuid;
use weir_proto::{Key, ObjectId};

const PAGE: &str = include_str!("../../../docs/reference/format.md");

/// The rows of the table: where a tag stands, the tag, and the version that it came with.
fn rows() -> BTreeMap<(&'static str, u8), u32> {
    let (_, section) = PAGE.split_once("\n## Versions\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("another section");
    let rows = section.lines().filter(|line| line.starts_with("| ") && line.contains('`')).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [place, tag, _, since] = cells[..] else { panic!("{line}") };
        let tag = u8::from_str_radix(tag.trim_matches('`'), 16).expect("a tag");
        ((place, tag), since.parse().expect("a version"))
    });
    rows.collect()
}

fn is_known<T>(decoded: Result<T, Malformed>) -> bool {
    decoded.err().is_none_or(|malformed| !malformed.0.contains("unknown kind"))
}

/// Whether a decoder takes a tag. What follows the tag may be malformed. `None`: it is decoded elsewhere.
fn is_taken(place: &str, tag: u8) -> Option<bool> {
    let path = Path::object(1, 1, ObjectId { hi: 13 << 56, lo: 1 });
    let below = path.dkey(&Key::from_u64(1)).akey(&Key::from_u64(1));
    let entry = |path: &[u8]| is_known(Entry::decode(&[path, &[tag]].concat(), &[]));
    Some(match place {
        "node, at 32" => [LEAF, BRANCH].contains(&tag),
        "batch, at 40" => {
            let (kind, store) = (BatchKind::Records, Uuid::nil());
            let batch = Batch { kind, sequence: 1, incarnation: 1, previous: 0, len: 64, crc: 0 };
            let mut header = batch_header(&batch, store);
            header[40] = tag;
            probe_batch(&header, store).is_some()
        }
        "change, first byte" => is_known(Records::decode(vec![4, 1, tag, 0, 0])),
        "key, first byte" => is_known(Entry::decode(&[tag, 0, 0, 0, 1], &[])),
        "key, behind an object" => entry(path.as_bytes()),
        "key, behind an akey" => entry(below.as_bytes()),
        "key, behind a transaction" => entry(&[&key::transactions(1, 1)[..], &[0; 16]].concat()),
        "incarnation, first byte" => is_known(Event::decode(&[tag])),
        "version, behind the record size" => is_known(Version::decode(&[0, tag])),
        "decision, first byte" => is_known(Decision::decode(&[&[tag][..], &[0; 16]].concat())),
        // The store has a test of these.
        "operation, first byte" => return None,
        _ => panic!("no decoder of \"{place}\" is known"),
    })
}

#[test]
fn the_page_has_the_tags_that_are_decoded() {
    let rows = rows();
    let mut places: Vec<&str> = rows.keys().map(|(place, _)| *place).collect();
    places.dedup();
    assert_eq!(places.len(), 11);
    for place in places {
        for tag in 0..=u8::MAX {
            let is_documented = rows.contains_key(&(place, tag));
            assert!(
                is_taken(place, tag).is_none_or(|is_taken| is_taken == is_documented),
                "{place}: {tag:#x}"
            );
        }
    }
}

#[test]
fn the_page_has_the_version_that_each_kind_came_with() {
    for ((place, tag), since) in rows() {
        let expected = match (place, tag) {
            ("version, behind the record size", 3 | 4) => VERSION_CHUNKS,
            ("key, behind an object", 2) => VERSION_RESERVATIONS,
            _ => VERSION_OLDEST,
        };
        assert_eq!(since, expected, "{place}: {tag:#x}");
    }
    const { assert!(VERSION_CHUNKS <= VERSION_NEWEST && VERSION_RESERVATIONS <= VERSION_NEWEST) }
}
