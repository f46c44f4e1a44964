//! What the store says, beside what the model says.

use super::draw::OBJECTS;
use super::model::{Change, Expected, Held, Refusal, Search, State, Versions};
use crate::setup::*;
use std::rc::Rc;
use weir_media::DmaBuf;
use weir_proto::limits::EXTENTS_MAX;
use weir_proto::object::{AkeyFetch, Conditions, Extent, KeyQuery, ListScope, QueryKeyReply, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, ReaderId};
use weir_store::{Comparison, Data, Fetch, FetchError, ListPage, Operation, PoolError, Shard, UpdateError};

/// Records looked at in one fetch.
const LOOK_MAX: u64 = 1 << 20;

/// Who reads in views: each has an epoch of its own.
const READER: ReaderId = ReaderId(1);

/// A container, as requests name it.
#[derive(Clone)]
pub struct Container {
    pub shard: Shard,
    pub id: ContainerId,
    /// What is read is read as a transaction of its epoch does.
    pub in_view: bool,
}

impl Container {
    async fn fetch(
        &self,
        object: ObjectId,
        dkey: &Key,
        epoch: u64,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<Fetch, FetchError> {
        if self.in_view {
            let view = self.shard.view(self.id, Epoch(epoch), READER)?;
            return view.fetch(object, dkey, conditions, akeys).await;
        }
        self.shard.fetch(self.id, object, dkey, Epoch(epoch), conditions, akeys).await
    }

    async fn list(
        &self,
        object: ObjectId,
        scope: &ListScope,
        epoch: u64,
        anchor: &[u8],
        limit: u32,
    ) -> Result<ListPage, FetchError> {
        // A transaction can't list objects.
        if self.in_view && *scope != ListScope::Objects {
            let view = self.shard.view(self.id, Epoch(epoch), READER)?;
            return view.list(object, scope, anchor, limit, None).await;
        }
        self.shard.list(self.id, object, scope, Epoch(epoch), anchor, limit, None).await
    }

    /// All parts of a search by a transaction.
    async fn search_in_view(
        &self,
        object: ObjectId,
        epoch: u64,
        query: &KeyQuery,
        mut between: impl AsyncFnMut(),
    ) -> Result<QueryKeyReply, FetchError> {
        let (view, mut anchor) = (self.shard.view(self.id, Epoch(epoch), READER)?, Vec::new());
        loop {
            let part = view.query_key(object, query, &anchor).await?;
            let Some(next) = part.next else { return Ok(part.found) };
            anchor = next.into_vec();
            between().await;
        }
    }

    /// Destroys it and creates it again.
    pub async fn begin_anew(&self) -> Result<(), PoolError> {
        self.shard.destroy_container(self.id).await?;
        self.shard.create_container(self.id).await
    }
}

/// Why a request gave no answer that can be compared.
#[derive(Debug)]
pub enum Trouble {
    /// The answer is wrong.
    Wrong(String),
    /// There was none: the device or the store failed.
    Failed(FetchError),
}

impl From<FetchError> for Trouble {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

fn equal<T: PartialEq + core::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), Trouble> {
    if found == expected {
        return Ok(());
    }
    let (mut found, mut expected) = (format!("{found:?}"), format!("{expected:?}"));
    found.truncate(600);
    expected.truncate(600);
    Err(Trouble::Wrong(format!("{what}: {found} for {expected}")))
}

fn refusal_of_fetch(error: &FetchError) -> Option<Refusal> {
    match error {
        FetchError::Missing(_) => Some(Refusal::Missing),
        FetchError::Kind { .. } => Some(Refusal::Kind),
        FetchError::RecordSize { .. } => Some(Refusal::RecordSize),
        _ => None,
    }
}

pub fn refusal_of_update(error: &UpdateError) -> Option<Refusal> {
    match error {
        UpdateError::Exists { .. } => Some(Refusal::Exists),
        UpdateError::Missing(_) => Some(Refusal::Missing),
        UpdateError::Kind { .. } => Some(Refusal::Kind),
        UpdateError::RecordSize { .. } => Some(Refusal::RecordSize),
        _ => None,
    }
}

impl Change {
    pub async fn send(&self, Container { shard, id, .. }: &Container, epoch: u64) -> Result<(), UpdateError> {
        let sent = match self {
            Self::Update { object, dkey, conditions, akeys, data } => {
                let data = Data::Borrowed(data);
                shard.update(*id, *object, dkey, Epoch(epoch), *conditions, akeys, data).await
            }
            Self::Punch { object, scope, conditions } => {
                shard.punch(*id, *object, scope, Epoch(epoch), *conditions).await
            }
        };
        sent.map(drop)
    }

    /// The same as a part of a transaction.
    pub fn operation(&self) -> Operation<'_> {
        match self {
            Self::Update { object, dkey, conditions, akeys, data } => Operation::Update {
                object: *object,
                dkey: dkey.clone(),
                conditions: *conditions,
                akeys: akeys.clone(),
                data: Data::Borrowed(data),
            },
            Self::Punch { object, scope, conditions } => {
                Operation::Punch { object: *object, scope: scope.clone(), conditions: *conditions }
            }
        }
    }
}

/// Fetches and compares.
pub async fn check_fetch(
    container: &Container,
    state: &State,
    object: ObjectId,
    dkey: &Key,
    epoch: u64,
    conditions: Conditions,
    akeys: &[AkeyFetch],
) -> Result<(), Trouble> {
    let expected = state.fetch(dkey, conditions, akeys);
    let found = container.fetch(object, dkey, epoch, conditions, akeys).await;
    let fetch = match (found, &expected) {
        (Ok(fetch), Ok(_)) => fetch,
        (Err(error), _) => {
            return match refusal_of_fetch(&error) {
                Some(refusal) => equal("a refusal", &Err(refusal), &expected.map(drop)),
                None => Err(Trouble::Failed(error)),
            };
        }
        (Ok(_), Err(refusal)) => return Err(Trouble::Wrong(format!("a fetch isn't refused as {refusal:?}"))),
    };
    let mut data = vec![0xee; fetch.data_len() as usize];
    let sums = fetch.read_summed(akeys, &mut data).await?;
    // Twice the room, so that whole chunks fit around what is wanted of them.
    for comparison in [Comparison::Here, Comparison::ByReader] {
        let landed = fetch.read_to(akeys, comparison, DmaBuf::new(2 * data.len())).await?;
        let in_place = &landed.memory[landed.start..landed.start + data.len()];
        equal("what was read in place", &(in_place, &landed.sums), &(&data[..], &sums))?;
    }
    let mut rest = &data[..];
    for (at, expected) in expected.unwrap_or_default().iter().enumerate() {
        let found = fetch.akeys()[at].clone();
        let (own, behind) = rest.split_at(found.len as usize);
        rest = behind;
        equal("checksums", &sums[at].to_vec(), &sums_of(&akeys[at].value, found.fetched.size, own))?;
        let bytes = own.to_vec();
        let found = Expected { size: found.fetched.size, present: found.fetched.present, bytes };
        equal(&format!("{object} {dkey} {} at {epoch}", akeys[at].akey), &found, expected)?;
    }
    Ok(())
}

/// The checksums that a reply has for the data of an akey.
fn sums_of(asked: &Value, record_size: u64, data: &[u8]) -> Vec<u32> {
    match asked {
        _ if data.is_empty() => Vec::new(),
        Value::Single { .. } => vec![crc(data)],
        Value::Array { extents, .. } => {
            let mut rest = data;
            let mut sum = |extent: &Extent| {
                let (own, behind) = rest.split_at((extent.count * record_size) as usize);
                rest = behind;
                crc(own)
            };
            extents.iter().map(&mut sum).collect()
        }
    }
}

/// What a search finds: the dkey, the akey, and the outermost record.
pub type Place = (Key, Option<Key>, Option<u64>);

pub async fn find(
    container: &Container,
    object: ObjectId,
    epoch: u64,
    wanted: &Search,
    between: impl AsyncFnMut(),
) -> Result<Option<Place>, Trouble> {
    let Search { max, extent, .. } = *wanted;
    let query = KeyQuery::Search { max, dkey: wanted.dkey.clone(), akey: wanted.akey.clone(), extent };
    let found = if container.in_view {
        container.search_in_view(object, epoch, &query, between).await?
    } else {
        search(&container.shard, container.id, object, epoch, &query, between).await?.0
    };
    let outermost = found.extent.map(|(extent, _)| if max { extent.end() - 1 } else { extent.index });
    Ok(found.dkey.map(|dkey| (dkey, found.akey, outermost)))
}

pub async fn check_search(
    container: &Container,
    state: &State,
    object: ObjectId,
    epoch: u64,
    wanted: &Search,
) -> Result<(), Trouble> {
    let found = find(container, object, epoch, wanted, async || {}).await?;
    equal(&format!("{wanted:?} of {object} at {epoch}"), &found, &state.search(wanted))
}

/// Names of what is listed, and for extents the extents.
pub async fn list(
    container: &Container,
    object: ObjectId,
    scope: &ListScope,
    epoch: u64,
    limit: u32,
    mut between: impl AsyncFnMut(),
) -> Result<(Vec<Vec<u8>>, Vec<Extent>), Trouble> {
    let (mut names, mut extents, mut anchor) = (Vec::new(), Vec::<Extent>::new(), Vec::new());
    loop {
        let page = container.list(object, scope, epoch, &anchor, limit).await?;
        for entry in page.entries {
            match (entry.extent, extents.last_mut()) {
                (None, _) => names.push(entry.key),
                (Some((new, ..)), Some(last)) if last.end() == new.index => last.count += new.count,
                (Some((new, ..)), _) => extents.push(new),
            }
        }
        match page.next {
            Some(next) => anchor = next,
            None => return Ok((names, extents)),
        }
        between().await;
    }
}

/// What a list of this kind gives at an epoch.
pub fn listed(
    versions: &Versions,
    object: ObjectId,
    scope: &ListScope,
    epoch: u64,
) -> (Vec<Vec<u8>>, Vec<Extent>) {
    if *scope != ListScope::Objects {
        return names_and_extents(&versions.at(object, epoch), scope);
    }
    let there = OBJECTS.iter().filter(|object| versions.at(**object, epoch).exists);
    let mut names: Vec<Vec<u8>> = there.map(|object| object.to_bytes().to_vec()).collect();
    names.sort();
    (names, Vec::new())
}

/// What a list within an object gives.
pub fn names_and_extents(state: &State, scope: &ListScope) -> (Vec<Vec<u8>>, Vec<Extent>) {
    let bytes = |key: &Key| key.as_bytes().to_vec();
    match scope {
        ListScope::Objects => unreachable!("an object holds none"),
        ListScope::Dkeys => (state.dkeys.keys().map(bytes).collect(), Vec::new()),
        ListScope::Akeys(dkey) => {
            let akeys = state.dkeys.get(dkey);
            (akeys.into_iter().flat_map(|akeys| akeys.keys()).map(bytes).collect(), Vec::new())
        }
        ListScope::Extents(dkey, akey) => {
            (Vec::new(), state.held(dkey, akey).map(|held| held.extents()).unwrap_or_default())
        }
    }
}

pub async fn check_list(
    container: &Container,
    versions: &Versions,
    object: ObjectId,
    scope: &ListScope,
    epoch: u64,
    limit: u32,
) -> Result<(), Trouble> {
    let expected = listed(versions, object, scope, epoch);
    let found = list(container, object, scope, epoch, limit, async || {}).await?;
    equal(&format!("{scope:?} of {object} at {epoch}"), &found, &expected)
}

/// What fetches ask for to see all of an akey.
fn whole(held: &Held) -> Vec<Value> {
    let Held::Array(size, _) = held else { return vec![Value::Single { size: u64::MAX }] };
    let mut extents: Vec<Extent> = vec![Extent { index: 0, count: 10 }];
    for extent in held.extents() {
        let extent = Extent { count: extent.count.min(LOOK_MAX), ..extent };
        match extents.last_mut() {
            Some(last) if extent.index < last.end() => {
                last.count = last.count.max(extent.end() - last.index);
            }
            _ => extents.push(extent),
        }
    }
    let fetches = extents.chunks(EXTENTS_MAX);
    fetches.map(|extents| Value::Array { record_size: *size, extents: extents.to_vec() }).collect()
}

/// Compares everything of an object at an epoch.
pub async fn check_object(
    container: &Container,
    versions: &Versions,
    object: ObjectId,
    epoch: u64,
) -> Result<(), Trouble> {
    let state: Rc<State> = versions.at(object, epoch);
    check_list(container, versions, object, &ListScope::Dkeys, epoch, 4).await?;
    for (dkey, akeys) in &state.dkeys {
        check_list(container, versions, object, &ListScope::Akeys(dkey.clone()), epoch, 3).await?;
        let none = Conditions::NONE;
        for (akey, held) in akeys.iter() {
            if let Held::Array(..) = held.as_ref() {
                // Fetches ask for what should be there; this shows what shouldn't.
                let extents = ListScope::Extents(dkey.clone(), akey.clone());
                check_list(container, versions, object, &extents, epoch, 5).await?;
            }
            for value in whole(held) {
                let wanted = [AkeyFetch { akey: akey.clone(), value, conditions: none }];
                check_fetch(container, &state, object, dkey, epoch, none, &wanted).await?;
            }
        }
    }
    if epoch == u64::MAX && state.exists {
        let newest = container.shard.max_epoch(container.id, object).await?;
        equal(&format!("the newest epoch of {object}"), &newest, &Epoch(state.newest))?;
    }
    Ok(())
}
