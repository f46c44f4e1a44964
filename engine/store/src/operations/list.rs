//! Lists of objects, dkeys, akeys and extents, a page at a time.
//!
//! An anchor names the last key listed, or the record that a list of extents goes on at, so that it stays meaningful
//! whatever comes and goes between two pages. A page shows the index as it was at its begin, is put together in time slices, and
//! ends early when it takes many: most keys may be punched, most extents hidden. What an extent shows may be listed as two
//! entries where a page ended early.

use crate::format::admissible::check_keys;
use crate::format::key::{self, ContainerNumber, Path, PoolNumber};
use crate::format::size::in_memory;
use crate::format::value::Payload;
use crate::index::existence::{Existence, existence};
use crate::index::extents::{ALL_RECORDS, Gathering, is_hole, paint};
use crate::index::fault::Fault;
use crate::index::tree::Tree;
use crate::operations::fetch::{hold_blocks, newest_single};
use crate::operations::sliced_reader::{KEY_LOOKS, SLICE_LOOKS, SlicedReader};
use crate::state::error::FetchError;
use crate::state::read::load;
use crate::state::shard::Shard;
use crate::versions::timestamps::Scope;
use weir_proto::limits::{INLINE_MAX, LIST_KEYS_MAX};
use weir_proto::object::{Extent, ListScope, Listed};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// Most bytes of one page, so that it fits an inline reply with its header.
const PAGE_BYTES_MAX: usize = INLINE_MAX - 1024;

/// Bytes of an entry in a reply beside key and value: lengths, flags, an extent with its epoch.
const ENTRY_BYTES: usize = 40;

/// Extents of a window begin with so many entries of each class.
const WINDOW_LOOKS: usize = SLICE_LOOKS / 2;

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Entries in order.
    pub entries: Vec<Listed>,
    /// Where the next page starts; `None` at the end. It stays valid when keys are added or removed meanwhile. A page may be
    /// empty without being the last.
    pub next: Option<Vec<u8>>,
}

/// A page being filled.
struct Filling {
    entries: Vec<(Listed, Option<Payload>)>,
    bytes: usize,
    limit: usize,
    next: Option<Vec<u8>>,
}

impl Filling {
    fn new(limit: u32) -> Self {
        let limit = limit.clamp(1, LIST_KEYS_MAX) as usize;
        Self { entries: Vec::new(), bytes: 0, limit, next: None }
    }

    /// Adds an entry; `false` when the page is full without it.
    fn add(&mut self, listed: Listed, value: Option<Payload>) -> bool {
        let value = value.filter(|payload| payload.len() <= (PAGE_BYTES_MAX / 2) as u64);
        let value_len = value.as_ref().map_or(0, |payload| in_memory(payload.len()));
        let bytes = ENTRY_BYTES + listed.key.len() + value_len;
        if self.entries.len() >= self.limit
            || (self.bytes + bytes > PAGE_BYTES_MAX && !self.entries.is_empty())
        {
            return false;
        }
        self.bytes += bytes;
        self.entries.push((listed, value));
        true
    }
}

fn listed(key: Vec<u8>) -> Listed {
    Listed { key, value: None, extent: None }
}

impl Shard {
    /// Lists objects, dkeys, akeys or extents as of an epoch. `object` is ignored when objects are listed. A page
    /// fits an inline reply.
    ///
    /// # Errors
    /// See [`FetchError`].
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub async fn list(
        &self,
        container: ContainerId,
        object: ObjectId,
        scope: &ListScope,
        epoch: Epoch,
        anchor: &[u8],
        limit: u32,
        with_value: Option<&Key>,
    ) -> Result<ListPage, FetchError> {
        let number = self.locate(container)?;
        check_list(object, scope, anchor, with_value).map_err(FetchError::Invalid)?;
        let guard = hold_blocks(&self.core);
        let mut page = Filling::new(limit);
        self.begin_list(number, object, scope, epoch)?;
        // In one time slice: the list shows the state for which the read was noted.
        let reader = SlicedReader::new(self, (container, number));
        let path = Path::object(self.number, number, object);
        let asked = Asked { reader: &reader, object, path, epoch: epoch.0 };
        match scope {
            ListScope::Objects => asked.objects((self.number, number), anchor, &mut page).await?,
            ListScope::Dkeys => asked.dkeys(anchor, with_value, &mut page).await?,
            ListScope::Akeys(dkey) => asked.akeys(dkey, anchor, &mut page).await?,
            ListScope::Extents(dkey, akey) => asked.extents(dkey, akey, anchor, &mut page).await?,
        }
        drop(reader);
        match scope {
            ListScope::Objects => {
                self.core.make_durable(self.core.journal.last()).await.map_err(FetchError::Failed)?;
            }
            _ => self.see(number, object).await?,
        }
        let mut entries = Vec::with_capacity(page.entries.len());
        for (mut entry, payload) in page.entries {
            if let Some(payload) = payload {
                entry.value = Some(load(&self.core, &payload).await?.into());
            }
            entries.push(entry);
        }
        drop(guard);
        Ok(ListPage { entries, next: page.next })
    }

    fn begin_list(
        &self,
        number: ContainerNumber,
        object: ObjectId,
        scope: &ListScope,
        epoch: Epoch,
    ) -> Result<(), FetchError> {
        let place = (self.number, number, object);
        match scope {
            ListScope::Objects => {
                let met = self.core.transactions.borrow().meets_any(self.number, number, epoch.0);
                let refuse = |(transaction, epoch)| Err(FetchError::Undecided { transaction, epoch });
                met.map_or(Ok(()), refuse)
            }
            ListScope::Dkeys => self.begin_glance(&place, Scope::Object, epoch),
            ListScope::Akeys(dkey) | ListScope::Extents(dkey, _) => {
                self.begin_glance(&place, Scope::Dkey(dkey), epoch)
            }
        }
    }
}

/// The outcome of a look at a key: whether to continue, where the next key starts, and the anchor of this one.
type Look = Result<(bool, Vec<u8>, Vec<u8>), Fault>;

/// What is to be listed.
struct Asked<'a> {
    reader: &'a SlicedReader<'a>,
    object: ObjectId,
    path: Path,
    epoch: u64,
}

impl Asked<'_> {
    /// Visits the keys below `prefix` one by one: `look` gets what follows the prefix, and adds to the page last of all.
    /// What was looked at is kept when index nodes have to be read in between.
    async fn walk(
        &self,
        prefix: &[u8],
        mut from: Vec<u8>,
        page: &mut Filling,
        mut look: impl FnMut(&Tree, &[u8], &mut Filling) -> Look,
    ) -> Result<(), FetchError> {
        let mut anchor = None;
        loop {
            let keys = self.reader.left(KEY_LOOKS).await?.min(self.reader.rest()).max(KEY_LOOKS) / KEY_LOOKS;
            let turn = self.reader.ask(keys * KEY_LOOKS, |tree| {
                for _ in 0..keys {
                    let Some(rest) = tree.first_below(&from, prefix)? else { return Ok(true) };
                    let (added, after, name) = look(tree, &rest, page)?;
                    if !added {
                        page.next = anchor.take();
                        return Ok(true);
                    }
                    anchor = Some(name);
                    from = after;
                }
                Ok(false)
            });
            if turn.await? {
                return Ok(());
            }
            if self.reader.rest() == 0 {
                page.next = anchor;
                return Ok(());
            }
        }
    }

    async fn objects(
        &self,
        (pool, container): (PoolNumber, ContainerNumber),
        anchor: &[u8],
        page: &mut Filling,
    ) -> Result<(), FetchError> {
        let prefix = key::objects(pool, container);
        let path = |object: ObjectId| Path::object(pool, container, object);
        let from = match <[u8; 16]>::try_from(anchor) {
            Ok(bytes) => key::after(path(ObjectId::from_bytes(bytes)).as_bytes()),
            Err(_) => prefix.clone(),
        };
        let look = |tree: &Tree, rest: &[u8], page: &mut Filling| {
            let object = key::object_from(rest)?;
            let path = path(object);
            let exists = existence(tree, &path, Existence::ALWAYS, self.epoch)?.exists;
            let name = object.to_bytes().to_vec();
            let added = !exists || page.add(listed(name.clone()), None);
            Ok((added, key::after(path.as_bytes()), name))
        };
        self.walk(&prefix, from, page, look).await
    }

    /// The existence of a dkey, of the object, or of an akey of the dkey.
    async fn existence(&self, dkey: Option<&Path>, akey: Option<&Path>) -> Result<Existence, FetchError> {
        let places = [Some(&self.path), dkey, akey];
        let existence = self.reader.ask(KEY_LOOKS, |tree| {
            let mut places = places.iter().flatten();
            places.try_fold(Existence::ALWAYS, |above, path| existence(tree, path, above, self.epoch))
        });
        existence.await
    }

    async fn dkeys(
        &self,
        anchor: &[u8],
        with_value: Option<&Key>,
        page: &mut Filling,
    ) -> Result<(), FetchError> {
        let above = self.existence(None, None).await?;
        if !above.exists {
            return Ok(());
        }
        let prefix = self.path.below();
        let behind = |last: Key| key::after(self.path.dkey(&last).as_bytes());
        let from = Key::new(anchor).map_or_else(|_| prefix.to_vec(), behind);
        let look = |tree: &Tree, rest: &[u8], page: &mut Filling| {
            let dkey = key::dkey_from(self.object, rest)?;
            let path = self.path.dkey(&dkey);
            let found = existence(tree, &path, above, self.epoch)?;
            let name = dkey.as_bytes().to_vec();
            if !found.exists {
                return Ok((true, key::after(path.as_bytes()), name));
            }
            let value = match with_value {
                None => None,
                Some(akey) => {
                    let akey = path.akey(akey);
                    let found = existence(tree, &akey, found, self.epoch)?;
                    if found.exists { newest_single(tree, &akey, found, self.epoch)? } else { None }
                }
            };
            let value = value.map(|(_, payload)| payload).filter(|payload| *payload != Payload::Hole);
            Ok((page.add(listed(name.clone()), value), key::after(path.as_bytes()), name))
        };
        self.walk(&prefix, from, page, look).await
    }

    async fn akeys(&self, dkey: &Key, anchor: &[u8], page: &mut Filling) -> Result<(), FetchError> {
        let path = self.path.dkey(dkey);
        let above = self.existence(Some(&path), None).await?;
        if !above.exists {
            return Ok(());
        }
        let prefix = path.below();
        let behind = |last: Key| key::after(path.akey(&last).as_bytes());
        let from = Key::new(anchor).map_or_else(|_| prefix.to_vec(), behind);
        let look = |tree: &Tree, rest: &[u8], page: &mut Filling| {
            let akey = key::akey_from(self.object, rest)?;
            let path = path.akey(&akey);
            let name = akey.as_bytes().to_vec();
            let exists = existence(tree, &path, above, self.epoch)?.exists;
            Ok((!exists || page.add(listed(name.clone()), None), key::after(path.as_bytes()), name))
        };
        self.walk(&prefix, from, page, look).await
    }

    async fn extents(
        &self,
        dkey: &Key,
        akey: &Key,
        anchor: &[u8],
        page: &mut Filling,
    ) -> Result<(), FetchError> {
        let dkey = self.path.dkey(dkey);
        let akey = dkey.akey(akey);
        let existence = self.existence(Some(&dkey), Some(&akey)).await?;
        let Some((_, record_size, classes)) = existence.array_or_single() else { return Ok(()) };
        let mut first = <[u8; 8]>::try_from(anchor).map_or(0, u64::from_be_bytes).min(ALL_RECORDS.end() - 1);
        // The part that was found last, with the extent that it belongs to: the next window may show more of it.
        let mut last: Option<(Listed, Extent)> = None;
        loop {
            let rest = Extent { index: first, count: ALL_RECORDS.end() - first };
            let mut window = Gathering::new(rest, classes, self.reader.window(WINDOW_LOOKS));
            self.reader.gather(&mut window, &akey, existence, self.epoch).await?;
            first = window.end();
            for part in paint(&window.found, window.range()) {
                let version = &window.found[part.stored];
                if is_hole(&version.value) {
                    continue;
                }
                let new = (part.extent, record_size, Epoch(version.epoch));
                if let Some((Listed { extent: Some((known, _, epoch)), .. }, whole)) = &mut last
                    && (*whole, *epoch, known.end()) == (version.extent, new.2, part.extent.index)
                {
                    known.count += part.extent.count;
                    continue;
                }
                let new = (Listed { key: Vec::new(), value: None, extent: Some(new) }, version.extent);
                if !last.replace(new).is_none_or(|(listed, _)| add_extent(listed, page)) {
                    return Ok(());
                }
            }
            if first == ALL_RECORDS.end() || self.reader.rest() == 0 {
                break;
            }
        }
        if last.is_none_or(|(listed, _)| add_extent(listed, page)) && first < ALL_RECORDS.end() {
            page.next = Some(first.to_be_bytes().to_vec());
        }
        Ok(())
    }
}

/// Adds an extent to a page. When it is full, the next one begins there.
fn add_extent(listed: Listed, page: &mut Filling) -> bool {
    let (Extent { index, .. }, ..) = listed.extent.expect("invariant: it lists an extent");
    let is_added = page.add(listed, None);
    if !is_added {
        page.next = Some(index.to_be_bytes().to_vec());
    }
    is_added
}

fn check_list(
    object: ObjectId,
    scope: &ListScope,
    anchor: &[u8],
    with_value: Option<&Key>,
) -> Result<(), String> {
    let anchored = |len: usize| anchor.is_empty() || anchor.len() == len;
    let sound = match scope {
        ListScope::Objects => anchored(16),
        ListScope::Extents(..) => anchored(8),
        ListScope::Dkeys => {
            Key::new(anchor).map_or(anchor.is_empty(), |key| check_keys(object, [&key], []).is_ok())
        }
        ListScope::Akeys(_) => {
            Key::new(anchor).map_or(anchor.is_empty(), |key| check_keys(object, [], [&key]).is_ok())
        }
    };
    if !sound {
        return Err("the anchor does not belong to a list of this kind".to_owned());
    }
    match scope {
        ListScope::Objects => Ok(()),
        ListScope::Dkeys => check_keys(object, [], with_value),
        ListScope::Akeys(dkey) => check_keys(object, [dkey], []),
        ListScope::Extents(dkey, akey) => check_keys(object, [dkey], [akey]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::codec::crc32c;
    use crate::operations::update::Data;
    use crate::upkeep::merge::tests::{CONTAINER, alter, on_a_shard};
    use std::rc::Rc;
    use weir_proto::object::{AkeyUpdate, Conditions, Value};

    const OBJECT: ObjectId = ObjectId { hi: 0, lo: 1 };

    fn key(name: &[u8]) -> Key {
        Key::new(name).expect("a key")
    }

    /// Stores the only value.
    async fn store(shard: &Shard, data: &[u8]) {
        let (value, checksums) = (Value::Single { size: data.len() as u64 }, vec![crc32c(data)]);
        let update = [AkeyUpdate { akey: key(b"a"), value, conditions: Conditions::NONE, checksums }];
        let (dkey, data) = (key(b"d"), Data::Borrowed(data));
        let stored = shard.update(CONTAINER, OBJECT, &dkey, Epoch(1), Conditions::NONE, &update, data);
        stored.await.expect("stored");
    }

    /// The value as a list of dkeys shows it.
    async fn listed_value(shard: &Shard) -> Result<Option<Vec<u8>>, FetchError> {
        let akey = key(b"a");
        let page = shard.list(CONTAINER, OBJECT, &ListScope::Dkeys, Epoch::MAX, &[], 9, Some(&akey)).await?;
        Ok(page.entries[0].value.as_ref().map(|value| value.to_vec()))
    }

    #[test]
    fn a_listed_value_that_was_altered_in_memory_is_met() {
        on_a_shard(async |shard| {
            store(&shard, b"weir").await;
            assert_eq!(listed_value(&shard).await.expect("listed").as_deref(), Some(&b"weir"[..]));
            alter(&shard, b"weir");
            assert!(matches!(listed_value(&shard).await, Err(FetchError::Altered { .. })));
            assert_eq!(shard.core.counters.checksum_errors.get(), 1);
        });
    }

    #[test]
    fn a_listed_value_that_was_altered_in_the_cache_is_read_again() {
        on_a_shard(async |shard| {
            let (core, data) = (Rc::clone(&shard.core), [7; 4096]);
            store(&shard, &data).await;
            for (hits, errors) in [(1, 0), (2, 1), (3, 1)] {
                if hits == 2 {
                    core.cache.alter();
                }
                assert_eq!(listed_value(&shard).await.expect("listed").as_deref(), Some(&data[..]));
                assert_eq!((core.cache.hits.get(), core.counters.checksum_errors.get()), (hits, errors));
            }
        });
    }
}
