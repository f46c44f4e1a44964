//! The greatest and smallest keys and records.
//!
//! A search goes on in time slices and ends early when it takes many, as lists do: most keys may be punched, most extents hidden.
//! Its anchor says how far it has come, so that another one goes on there, in the index as it is then.

mod anchor;

use crate::format::admissible::check_keys;
use crate::format::key::{self, Path};
use crate::index::existence::{Existence, existence};
use crate::index::extents::{ALL_RECORDS, Gathering, each_class, is_hole, last_window, paint};
use crate::operations::sliced_reader::{KEY_LOOKS, SLICE_LOOKS, SlicedReader};
use crate::state::error::FetchError;
use crate::state::shard::Shard;
use crate::versions::timestamps::Scope;
use anchor::Anchor;
use core::ops::ControlFlow;
use weir_proto::object::{Extent, KeyQuery, QueryKeyReply, SearchKeyReply};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// Entries of each class with which the extents of a window begin: most searches end at the first one.
const WINDOW_LOOKS: usize = SLICE_LOOKS / 8;

/// What was found below a dkey: the akey, and the record with its size.
type Below = (Option<Key>, Option<(Extent, u32)>);

/// Which dkeys of an object a question is about: a target may have parts of the object that others are asked about.
pub type WantedDkeys<'a> = &'a dyn Fn(&Key) -> bool;

/// Why a search stops without a result.
enum End {
    Failed(FetchError),
    /// Its budget of looks is used up. The anchor says where the next part continues.
    Spent,
}

impl<E: Into<FetchError>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A search for keys of one object, in the index as it was at its begin.
struct Search<'a> {
    reader: SlicedReader<'a>,
    object: ObjectId,
    epoch: u64,
    max: bool,
    /// The akey that is given.
    akey: Option<&'a Key>,
    extent: bool,
    /// The dkeys that are searched.
    wanted: WantedDkeys<'a>,
    /// How far it has come.
    at: Anchor,
}

impl Shard {
    /// The greatest or smallest key or record, and the object's newest epoch. With `extent`, dkeys and akeys without
    /// a record are passed over. After a bounded number of looks the reply says where to go on: `anchor` is empty at
    /// first, and then the `next` of the reply before.
    ///
    /// Each part shows the epoch as it is when the part begins. Of a search in several parts that holds: what it finds was
    /// there at some moment of it, and whatever is greater (or smaller) wasn't at some moment of it.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn query_key(
        &self,
        container: ContainerId,
        object: ObjectId,
        epoch: Epoch,
        query: &KeyQuery,
        anchor: &[u8],
    ) -> Result<SearchKeyReply, FetchError> {
        self.query_key_among(container, object, epoch, query, anchor, &|_| true).await
    }

    /// As [`Shard::query_key`], among some dkeys of the object.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn query_key_among(
        &self,
        container: ContainerId,
        object: ObjectId,
        epoch: Epoch,
        query: &KeyQuery,
        anchor: &[u8],
        wanted: WantedDkeys<'_>,
    ) -> Result<SearchKeyReply, FetchError> {
        let number = self.locate(container)?;
        let at = check_query(object, query, anchor).map_err(FetchError::Invalid)?;
        self.begin_glance(&(self.number, number, object), Scope::Object, epoch)?;
        // In one time slice: the query shows the state for which the read was noted.
        let reader = SlicedReader::new(self, (container, number));
        let path = Path::object(self.number, number, object);
        let reply = answer(reader, object, &path, epoch.0, (query, wanted), at).await;
        self.see(number, object).await?;
        reply
    }

    /// Epoch of the newest update or punch of an object; [`Epoch::ZERO`] when there is none.
    ///
    /// # Errors
    /// When the container is missing.
    pub async fn max_epoch(&self, container: ContainerId, object: ObjectId) -> Result<Epoch, FetchError> {
        let reply = self.query_key(container, object, Epoch::MAX, &KeyQuery::Epoch, &[]).await?;
        Ok(reply.found.max_epoch)
    }
}

/// Where to begin, if the query makes sense.
fn check_query(object: ObjectId, query: &KeyQuery, anchor: &[u8]) -> Result<Anchor, String> {
    if let KeyQuery::Search { dkey, akey, extent, .. } = query {
        if dkey.is_some() && akey.is_some() && !extent {
            return Err("nothing is searched for".to_owned());
        }
        if dkey.is_none() && !key::has_integer_dkeys(object) {
            return Err(format!(
                "dkeys of object {object} are not integers and have no greatest or smallest"
            ));
        }
        check_keys(object, dkey, akey)?;
    }
    Anchor::decode(anchor, object, query)
        .map_err(|malformed| format!("the anchor is none of this search: {malformed}"))
}

async fn answer(
    reader: SlicedReader<'_>,
    object: ObjectId,
    path: &Path,
    epoch: u64,
    (query, wanted): (&KeyQuery, WantedDkeys<'_>),
    at: Anchor,
) -> Result<SearchKeyReply, FetchError> {
    let above = reader.ask(KEY_LOOKS, |tree| existence(tree, path, Existence::ALWAYS, epoch)).await?;
    let mut reply = SearchKeyReply::default();
    reply.found.max_epoch = Epoch(above.newest());
    let KeyQuery::Search { max, dkey, akey, extent } = query else { return Ok(reply) };
    if !above.exists {
        return Ok(reply);
    }
    let (max, akey, extent) = (*max, akey.as_ref(), *extent);
    let mut search = Search { reader, object, epoch, max, akey, extent, wanted, at };
    let found = match dkey {
        Some(dkey) => {
            search.below_dkey(&path.dkey(dkey), above).await.map(|found| Some((dkey.clone(), found?)))
        }
        None => search.dkeys(path, above).await,
    };
    match found {
        Ok(Some((dkey, (akey, extent)))) => {
            reply.found = QueryKeyReply { dkey: Some(dkey), akey, extent, ..reply.found };
        }
        Ok(None) => {}
        Err(End::Spent) => reply.next = Some(search.at.encode().into()),
        Err(End::Failed(error)) => return Err(error),
    }
    Ok(reply)
}

impl Search<'_> {
    /// Ends the search here if it has taken enough.
    fn pause(&self) -> Result<(), End> {
        if self.reader.rest() == 0 { Err(End::Spent) } else { Ok(()) }
    }

    /// What follows `prefix` in the next key below it, from the greatest or smallest on, behind `last` if there is one.
    async fn next(&self, prefix: &[u8], last: Option<&Path>) -> Result<Option<Vec<u8>>, FetchError> {
        let bound = match last {
            Some(last) if self.max => last.as_bytes().to_vec(),
            Some(last) => key::after(last.as_bytes()),
            None if self.max => key::after(prefix),
            None => prefix.to_vec(),
        };
        let visit = |key: &[u8], _: &[u8]| ControlFlow::Break(key.strip_prefix(prefix).map(<[u8]>::to_vec));
        let next = self.reader.ask(KEY_LOOKS, |tree| {
            Ok(if self.max { tree.scan_back(&bound, visit)? } else { tree.scan(&bound, visit)? }.flatten())
        });
        next.await
    }

    async fn existence(&self, path: &Path, above: Existence) -> Result<Existence, FetchError> {
        self.reader.ask(KEY_LOOKS, |tree| existence(tree, path, above, self.epoch)).await
    }

    /// The first dkey with something that is wanted.
    async fn dkeys(&mut self, path: &Path, above: Existence) -> Result<Option<(Key, Below)>, End> {
        let prefix = path.below();
        loop {
            let dkey = match &self.at.dkey {
                Some(dkey) if self.at.is_below_dkey() => dkey.clone(),
                last => {
                    let last = last.as_ref().map(|last| path.dkey(last));
                    let Some(rest) = self.next(&prefix, last.as_ref()).await? else { return Ok(None) };
                    key::dkey_from(self.object, &rest)?
                }
            };
            self.at.dkey = Some(dkey.clone());
            if (self.wanted)(&dkey)
                && let Some(found) = self.below_dkey(&path.dkey(&dkey), above).await?
            {
                return Ok(Some((dkey, found)));
            }
            self.at = Anchor { dkey: Some(dkey), ..Anchor::default() };
            self.pause()?;
        }
    }

    /// What is wanted of a dkey: an akey, searched or given, and a record if one is wanted.
    async fn below_dkey(&mut self, path: &Path, above: Existence) -> Result<Option<Below>, End> {
        let above = self.existence(path, above).await?;
        if !above.exists {
            return Ok(None);
        }
        match self.akey {
            Some(akey) => self.record(&path.akey(akey), above, akey).await,
            None if key::has_integer_akeys(self.object) => self.akeys(path, above).await,
            // Keys that aren't integers have no order to search by: if records are wanted, the first akey with a record counts.
            None if self.extent => self.akeys(path, above).await,
            None => Ok(Some((None, None))),
        }
    }

    /// The first akey with something that is wanted.
    async fn akeys(&mut self, dkey: &Path, above: Existence) -> Result<Option<Below>, End> {
        let prefix = dkey.below();
        loop {
            let akey = match &self.at.akey {
                Some(akey) if self.at.record.is_some() => akey.clone(),
                last => {
                    let last = last.as_ref().map(|last| dkey.akey(last));
                    let Some(rest) = self.next(&prefix, last.as_ref()).await? else { return Ok(None) };
                    key::akey_from(self.object, &rest)?
                }
            };
            self.at.akey = Some(akey.clone());
            if let Some(found) = self.record(&dkey.akey(&akey), above, &akey).await? {
                return Ok(Some(found));
            }
            self.at.record = None;
            self.pause()?;
        }
    }

    /// The greatest or smallest record of an akey, if one is wanted.
    async fn record(&mut self, path: &Path, above: Existence, akey: &Key) -> Result<Option<Below>, End> {
        let found = self.existence(path, above).await?;
        if !found.exists {
            return Ok(None);
        }
        if !self.extent {
            return Ok(Some((Some(akey.clone()), None)));
        }
        let Some((_, record_size, classes)) = found.array_or_single() else { return Ok(None) };
        let extent = self.outermost(path, found, classes).await?;
        Ok(extent.map(|extent| (Some(akey.clone()), Some((extent, record_size)))))
    }

    /// The visible part of an extent with the greatest or smallest record, found window by window from there on.
    async fn outermost(
        &mut self,
        path: &Path,
        found: Existence,
        classes: u32,
    ) -> Result<Option<Extent>, End> {
        let max = self.max;
        let rest = |bound| {
            let (index, end) = if max { (0, bound) } else { (bound, ALL_RECORDS.end()) };
            Extent { index, count: end - index }
        };
        let mut left = self.at.record.map_or(ALL_RECORDS, rest);
        while left.count > 0 {
            let mut window = if self.max {
                Gathering::of_end(self.last_window(path, left.end(), classes).await?, classes)
            } else {
                Gathering::new(left, classes, self.reader.window(WINDOW_LOOKS))
            };
            self.reader.gather(&mut window, path, found, self.epoch).await?;
            let range = window.range();
            let bound = if self.max { range.index } else { range.end() };
            left = rest(bound);
            let parts = paint(&window.found, range);
            let mut real = parts.iter().filter(|part| !is_hole(&window.found[part.stored].value));
            if let Some(part) = if self.max { real.next_back() } else { real.next() } {
                return Ok(Some(part.extent));
            }
            if left.count > 0 {
                self.at.record = Some(bound);
                self.pause()?;
            }
        }
        Ok(None)
    }

    /// A range up to a record in which few extents begin.
    async fn last_window(&self, path: &Path, end: u64, classes: u32) -> Result<Extent, FetchError> {
        let (mut start, looks) = (0, self.reader.window(WINDOW_LOOKS));
        for class in each_class(classes) {
            let of_class = self.reader.ask(looks, |tree| last_window(tree, path, end, class, looks));
            start = start.max(of_class.await?);
        }
        Ok(Extent { index: start, count: end - start })
    }
}
