//! Lists of objects, dkeys, akeys and extents, a page at a time.
//!
//! An anchor names the last thing listed, so that it stays meaningful whatever comes and goes between two pages.

use crate::error::FetchError;
use crate::extents::{STEP_LOOKS, first_versions, is_hole, paint};
use crate::fetch::{hold_blocks, newest_single};
use crate::incarnation::{Life, life};
use crate::key::{self, ContainerNumber, Path};
use crate::paging::{Fault, Halt};
use crate::read::load;
use crate::shard::Shard;
use crate::state::Core;
use crate::timestamps::Scope;
use crate::tree::Tree;
use crate::update::check_keys;
use crate::value::Payload;
use weir_proto::limits::{INLINE_MAX, LIST_KEYS_MAX};
use weir_proto::object::{Extent, ListScope, Listed};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// Most bytes of one page, so that it fits an inline reply with its header.
const PAGE_BYTES_MAX: usize = INLINE_MAX - 1024;

/// Bytes of an entry in a reply beside key and value: lengths, flags, an extent with its epoch.
const ENTRY_BYTES: usize = 40;

/// Keys looked at in one page, existing or not: bounds its time when most are punched. The page then ends early.
const LOOKS_MAX: u32 = 16 * 1024;

/// Highest record index (exclusive): bit 63 is reserved.
const INDEX_END: u64 = 1 << 63;

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Entries in order.
    pub entries: Vec<Listed>,
    /// Where the next page starts; `None` at the end. Stays meaningful when keys come and go meanwhile. A page may be
    /// empty without being the last.
    pub next: Option<Vec<u8>>,
}

/// A page being filled.
struct Filling {
    entries: Vec<(Listed, Option<Payload>)>,
    bytes: usize,
    limit: usize,
    looks: u32,
    next: Option<Vec<u8>>,
}

impl Filling {
    fn new(limit: u32) -> Self {
        let limit = limit.clamp(1, LIST_KEYS_MAX) as usize;
        Self { entries: Vec::new(), bytes: 0, limit, looks: 0, next: None }
    }

    /// Adds an entry; `false` when the page is full without it.
    fn add(&mut self, listed: Listed, value: Option<Payload>) -> bool {
        let value = value.filter(|payload| payload.len() <= (PAGE_BYTES_MAX / 2) as u64);
        let value_len = value.as_ref().map_or(0, |payload| usize::try_from(payload.len()).unwrap_or(0));
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
        let path = Path::object(self.number, number, object);
        let (core, at) = (&*self.core, epoch.0);
        self.begin_list(number, object, scope, epoch)?;
        match scope {
            ListScope::Objects => self.list_objects(number, at, anchor, &mut page).await?,
            ListScope::Dkeys => {
                list_dkeys(core, object, &path, at, anchor, with_value, &mut page).await?;
            }
            ListScope::Akeys(dkey) => {
                list_akeys(core, object, &path, dkey, at, anchor, &mut page).await?;
            }
            ListScope::Extents(dkey, akey) => {
                list_extents(core, &path, (dkey, akey), at, anchor, &mut page).await?;
            }
        }
        let seen = match scope {
            ListScope::Objects => self.core.journal.last(),
            _ => self.core.journal.touched(&(self.number, number, object)),
        };
        self.core.make_durable(seen).await.map_err(FetchError::Failed)?;
        let mut entries = Vec::with_capacity(page.entries.len());
        for (mut entry, payload) in page.entries {
            if let Some(payload) = payload {
                entry.value = load(&self.core, &payload, u64::MAX).await?.map(Into::into);
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

    async fn list_objects(
        &self,
        number: ContainerNumber,
        epoch: u64,
        anchor: &[u8],
        page: &mut Filling,
    ) -> Result<(), FetchError> {
        let prefix = key::objects(self.number, number);
        let path = |object: ObjectId| Path::object(self.number, number, object);
        let from = match <[u8; 16]>::try_from(anchor) {
            Ok(bytes) => key::after(path(ObjectId::from_bytes(bytes)).as_bytes()),
            Err(_) => prefix.clone(),
        };
        let look = |tree: &Tree, rest: &[u8], page: &mut Filling| {
            let object = key::object_from(rest)?;
            let path = path(object);
            let exists = life(tree, &path, Life::ALWAYS, epoch)?.exists;
            let name = object.to_bytes().to_vec();
            let added = !exists || page.add(listed(name.clone()), None);
            Ok((added, key::after(path.as_bytes()), name))
        };
        walk(&self.core, &prefix, from, page, look).await
    }
}

/// What a look at a key gives: whether to go on, where the next key starts, and the anchor of this one.
type Look = Result<(bool, Vec<u8>, Vec<u8>), Fault>;

/// Visits the keys below `prefix` one by one: `look` gets what follows the prefix, and adds to the page last of all.
/// What was looked at is kept when index nodes have to be read in between.
async fn walk(
    core: &Core,
    prefix: &[u8],
    mut from: Vec<u8>,
    page: &mut Filling,
    mut look: impl FnMut(&Tree, &[u8], &mut Filling) -> Look,
) -> Result<(), FetchError> {
    let mut anchor = None;
    core.ask(|tree| {
        loop {
            let Some(rest) = tree.first_below(&from, prefix)? else { return Ok(()) };
            if page.looks >= LOOKS_MAX {
                page.next = anchor.take();
                return Ok(());
            }
            let (added, after, name) = look(tree, &rest, page)?;
            page.looks += 1;
            if !added {
                page.next = anchor.take();
                return Ok(());
            }
            anchor = Some(name);
            from = after;
        }
    })
    .await
}

async fn list_dkeys(
    core: &Core,
    object: ObjectId,
    path: &Path,
    epoch: u64,
    anchor: &[u8],
    with_value: Option<&Key>,
    page: &mut Filling,
) -> Result<(), FetchError> {
    let above: Life =
        core.ask(|tree| Ok::<_, Halt<FetchError>>(life(tree, path, Life::ALWAYS, epoch)?)).await?;
    if !above.exists {
        return Ok(());
    }
    let prefix = path.below();
    let from =
        Key::new(anchor).map_or_else(|_| prefix.to_vec(), |last| key::after(path.dkey(&last).as_bytes()));
    let look = |tree: &Tree, rest: &[u8], page: &mut Filling| {
        let dkey = key::dkey_from(object, rest)?;
        let path = path.dkey(&dkey);
        let found = life(tree, &path, above, epoch)?;
        let name = dkey.as_bytes().to_vec();
        if !found.exists {
            return Ok((true, key::after(path.as_bytes()), name));
        }
        let value = match with_value {
            None => None,
            Some(akey) => {
                let akey = path.akey(akey);
                let found = life(tree, &akey, found, epoch)?;
                if found.exists { newest_single(tree, &akey, found, epoch)? } else { None }
            }
        };
        let value = value.map(|(_, payload)| payload).filter(|payload| *payload != Payload::Hole);
        Ok((page.add(listed(name.clone()), value), key::after(path.as_bytes()), name))
    };
    walk(core, &prefix, from, page, look).await
}

async fn list_akeys(
    core: &Core,
    object: ObjectId,
    path: &Path,
    dkey: &Key,
    epoch: u64,
    anchor: &[u8],
    page: &mut Filling,
) -> Result<(), FetchError> {
    let object_path = path;
    let path = path.dkey(dkey);
    let above = core.ask(|tree| {
        let above = life(tree, object_path, Life::ALWAYS, epoch)?;
        Ok::<_, Halt<FetchError>>(life(tree, &path, above, epoch)?)
    });
    let above = above.await?;
    if !above.exists {
        return Ok(());
    }
    let prefix = path.below();
    let from =
        Key::new(anchor).map_or_else(|_| prefix.to_vec(), |last| key::after(path.akey(&last).as_bytes()));
    let look = |tree: &Tree, rest: &[u8], page: &mut Filling| {
        let akey = key::akey_from(object, rest)?;
        let path = path.akey(&akey);
        let name = akey.as_bytes().to_vec();
        let exists = life(tree, &path, above, epoch)?.exists;
        Ok((!exists || page.add(listed(name.clone()), None), key::after(path.as_bytes()), name))
    };
    walk(core, &prefix, from, page, look).await
}

async fn list_extents(
    core: &Core,
    path: &Path,
    (dkey, akey): (&Key, &Key),
    epoch: u64,
    anchor: &[u8],
    page: &mut Filling,
) -> Result<(), FetchError> {
    let mut first = <[u8; 8]>::try_from(anchor).map_or(0, u64::from_be_bytes).min(INDEX_END - 1);
    // The part that was found last, with the extent that it belongs to: the next step may find more of it.
    let mut last: Option<(Listed, Extent)> = None;
    while first < INDEX_END {
        let range = Extent { index: first, count: INDEX_END - first };
        let found = core.ask(|tree| {
            let above = life(tree, path, Life::ALWAYS, epoch)?;
            let path = path.dkey(dkey);
            let above = life(tree, &path, above, epoch)?;
            let path = path.akey(akey);
            let found = life(tree, &path, above, epoch)?;
            let Some((_, record_size, classes)) = found.array_or_single() else { return Ok(None) };
            let (stored, end) = first_versions(tree, &path, found, epoch, range, classes, STEP_LOOKS)?;
            Ok::<_, Halt<FetchError>>(Some((record_size, stored, end)))
        });
        let Some((record_size, stored, end)) = found.await? else { break };
        for part in paint(&stored, Extent { index: first, count: end - first }) {
            let version = &stored[part.stored];
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
        first = end;
        core.turn().await;
    }
    last.map(|(listed, _)| add_extent(listed, page));
    Ok(())
}

/// Adds an extent to a page. When it is full, the next one begins there.
fn add_extent(listed: Listed, page: &mut Filling) -> bool {
    let index = listed.extent.map_or(0, |(extent, ..)| extent.index);
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
