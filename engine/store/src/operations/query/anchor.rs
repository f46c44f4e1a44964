//! How far a search has come, as bytes that the client keeps.

use crate::format::admissible::check_keys;
use crate::format::codec::{Decoder, Encode, Malformed};
use crate::format::key;
use crate::index::extents::ALL_RECORDS;
use weir_proto::limits::KEY_MAX;
use weir_proto::object::KeyQuery;
use weir_proto::{Key, ObjectId};

const HAS_DKEY: u8 = 1;
const HAS_AKEY: u8 = 2;
const HAS_RECORD: u8 = 4;

/// The position of a search. The keys that it names are done, but for what is below them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Anchor {
    /// The dkey, when dkeys are searched.
    pub(super) dkey: Option<Key>,
    /// The akey, when akeys are searched.
    pub(super) akey: Option<Key>,
    /// Records of the akey from here on were passed, or all before when the smallest is searched for.
    pub(super) record: Option<u64>,
}

impl Anchor {
    /// Whether the dkey isn't passed yet.
    pub(super) fn is_below_dkey(&self) -> bool {
        self.akey.is_some() || self.record.is_some()
    }

    /// What the client sends back: which parts there are, and these.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0];
        for (flag, key) in [(HAS_DKEY, &self.dkey), (HAS_AKEY, &self.akey)] {
            if let Some(key) = key {
                bytes[0] |= flag;
                bytes.put_varint(key.as_bytes().len() as u64);
                bytes.extend_from_slice(key.as_bytes());
            }
        }
        if let Some(record) = self.record {
            bytes[0] |= HAS_RECORD;
            bytes.put_u64(record);
        }
        bytes
    }

    /// The position that a client has sent: empty at first, later any bytes.
    pub(super) fn decode(bytes: &[u8], object: ObjectId, query: &KeyQuery) -> Result<Self, Malformed> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut decoder = Decoder::new(bytes);
        let flags = decoder.u8()?;
        let mut key = |flag| {
            if flags & flag == 0 {
                return Ok(None);
            }
            let len = decoder.count(KEY_MAX)?;
            Key::new(decoder.bytes(len)?).map(Some).map_err(|_| Malformed("a key has no bytes"))
        };
        let (dkey, akey) = (key(HAS_DKEY)?, key(HAS_AKEY)?);
        let record = if flags & HAS_RECORD == 0 { None } else { Some(decoder.u64()?) };
        if flags & !(HAS_DKEY | HAS_AKEY | HAS_RECORD) != 0 || !decoder.is_empty() {
            return Err(Malformed("it has unknown parts"));
        }
        check_keys(object, &dkey, &akey).map_err(|_| Malformed("a key is no integer"))?;
        let anchor = Self { dkey, akey, record };
        if anchor.fits(object, query) { Ok(anchor) } else { Err(Malformed("it is one of another query")) }
    }

    /// Whether a search for this comes to such a place.
    fn fits(&self, object: ObjectId, query: &KeyQuery) -> bool {
        let KeyQuery::Search { dkey, akey, extent, .. } = query else { return false };
        let searches_akeys = akey.is_none() && (*extent || key::has_integer_akeys(object));
        let record_fits = |record| {
            *extent && self.akey.is_some() == akey.is_none() && 0 < record && record < ALL_RECORDS.end()
        };
        self.dkey.is_some() == dkey.is_none()
            && (self.akey.is_none() || searches_akeys)
            && self.record.is_none_or(record_fits)
            && (self.dkey.is_some() || self.is_below_dkey())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Objects with text keys, integer dkeys, integer akeys, and both.
    const OBJECTS: [u64; 4] = [0, 13 << 56, 3 << 56, 4 << 56];

    fn an_object() -> impl Strategy<Value = ObjectId> {
        (0..OBJECTS.len()).prop_map(|at| ObjectId { hi: OBJECTS[at], lo: 1 })
    }

    fn a_key(length: core::ops::Range<usize>) -> impl Strategy<Value = Key> {
        prop::collection::vec(any::<u8>(), length).prop_map(|bytes| Key::new(&bytes).expect("a key"))
    }

    fn a_query() -> impl Strategy<Value = KeyQuery> {
        let a_name = || prop::option::of(a_key(8..9));
        let a_search = (any::<bool>(), a_name(), a_name(), any::<bool>())
            .prop_map(|(max, dkey, akey, extent)| KeyQuery::Search { max, dkey, akey, extent });
        prop_oneof![1 => Just(KeyQuery::Epoch), 9 => a_search]
    }

    fn an_anchor() -> impl Strategy<Value = Anchor> {
        let a_name = || prop::option::of(prop_oneof![a_key(8..9), a_key(1..KEY_MAX)]);
        (a_name(), a_name(), prop::option::of(prop_oneof![any::<u64>(), 0..3_u64]))
            .prop_map(|(dkey, akey, record)| Anchor { dkey, akey, record })
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded_where_it_fits(
            anchor in an_anchor(),
            object in an_object(),
            query in a_query(),
        ) {
            let decoded = Anchor::decode(&anchor.encode(), object, &query);
            let fits = anchor.fits(object, &query) && check_keys(object, &anchor.dkey, &anchor.akey).is_ok();
            prop_assert_eq!(decoded.ok(), fits.then_some(anchor));
        }

        #[test]
        fn only_what_was_encoded_is_decoded(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            flags in 0..8_u8,
            object in an_object(),
            query in a_query(),
        ) {
            let bytes = [&[flags], &bytes[..]].concat();
            if let Ok(anchor) = Anchor::decode(&bytes, object, &query) {
                prop_assert!(anchor.fits(object, &query));
                prop_assert_eq!(Anchor::decode(&anchor.encode(), object, &query), Ok(anchor));
            }
        }
    }

    #[test]
    fn an_anchor_names_what_its_search_passes_and_nothing_else() {
        let (integers, name) = (ObjectId { hi: OBJECTS[3], lo: 1 }, || Some(Key::from_u64(7)));
        let places = |dkey: Option<Key>, akey: Option<Key>, extent| {
            let query = KeyQuery::Search { max: true, dkey, akey, extent };
            let all = (0..8_u8).filter(|flags| {
                let part = |flag| flags & flag != 0;
                let anchor = Anchor {
                    dkey: name().filter(|_| part(HAS_DKEY)),
                    akey: name().filter(|_| part(HAS_AKEY)),
                    record: Some(1).filter(|_| part(HAS_RECORD)),
                };
                anchor.fits(integers, &query)
            });
            all.collect::<Vec<u8>>()
        };
        assert_eq!(places(None, None, false), [1, 3]);
        assert_eq!(places(None, None, true), [1, 3, 7]);
        assert_eq!(places(None, name(), false), [1]);
        assert_eq!(places(None, name(), true), [1, 5]);
        assert_eq!(places(name(), None, false), [2]);
        assert_eq!(places(name(), None, true), [2, 6]);
        assert_eq!(places(name(), name(), true), [4]);
        let query = KeyQuery::Search { max: true, dkey: name(), akey: name(), extent: true };
        for record in [0, ALL_RECORDS.end(), u64::MAX] {
            let anchor = Anchor { record: Some(record), ..Anchor::default() };
            assert!(!anchor.fits(integers, &query), "no search stands at record {record}");
        }
    }
}
