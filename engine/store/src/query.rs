//! The greatest and smallest keys and records.

use crate::error::FetchError;
use crate::extents::{ALL_RECORDS, Gathering, each_class, is_hole, last_window, paint};
use crate::incarnation::{Life, life};
use crate::key::{self, Path};
use crate::shard::Shard;
use crate::timestamps::Scope;
use crate::turns::{KEY_LOOKS, TURN_LOOKS, Turns};
use crate::update::check_keys;
use core::ops::ControlFlow;
use weir_proto::object::{Extent, KeyQuery, QueryKeyReply};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// Extents of a window begin with so many entries of each class: mostly the first one that is looked at shows a record.
const WINDOW_LOOKS: usize = TURN_LOOKS / 8;

/// What was found below a dkey: the akey, and the record with its size.
type Below = (Option<Key>, Option<(Extent, u32)>);

/// A search for keys of one object, in the index as it was at its begin.
struct Search<'a> {
    turns: Turns<'a>,
    object: ObjectId,
    epoch: u64,
    max: bool,
    /// The akey that is given.
    akey: Option<&'a Key>,
    extent: bool,
}

impl Shard {
    /// The greatest or smallest key or record, and the object's newest epoch. With `extent`, dkeys and akeys without
    /// a record are passed over.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn query_key(
        &self,
        container: ContainerId,
        object: ObjectId,
        epoch: Epoch,
        query: &KeyQuery,
    ) -> Result<QueryKeyReply, FetchError> {
        let number = self.locate(container)?;
        check_query(object, query).map_err(FetchError::Invalid)?;
        self.begin_glance(&(self.number, number, object), Scope::Object, epoch)?;
        // Nothing runs in between: what is found is what the query has announced to see.
        let turns = Turns::new(self, (container, number));
        let path = Path::object(self.number, number, object);
        let reply = answer(turns, object, &path, epoch.0, query).await;
        self.see(number, object).await?;
        reply
    }

    /// Epoch of the newest update or punch of an object; [`Epoch::ZERO`] when there is none.
    ///
    /// # Errors
    /// When the container is missing.
    pub async fn max_epoch(&self, container: ContainerId, object: ObjectId) -> Result<Epoch, FetchError> {
        Ok(self.query_key(container, object, Epoch::MAX, &KeyQuery::Epoch).await?.max_epoch)
    }
}

fn check_query(object: ObjectId, query: &KeyQuery) -> Result<(), String> {
    let KeyQuery::Search { dkey, akey, extent, .. } = query else { return Ok(()) };
    if dkey.is_some() && akey.is_some() && !extent {
        return Err("nothing is searched for".to_owned());
    }
    if dkey.is_none() && !key::has_integer_dkeys(object) {
        return Err(format!("dkeys of object {object} are not integers and have no greatest or smallest"));
    }
    check_keys(object, dkey, akey)
}

async fn answer(
    turns: Turns<'_>,
    object: ObjectId,
    path: &Path,
    epoch: u64,
    query: &KeyQuery,
) -> Result<QueryKeyReply, FetchError> {
    let above = turns.ask(KEY_LOOKS, |tree| life(tree, path, Life::ALWAYS, epoch)).await?;
    let mut reply = QueryKeyReply { max_epoch: Epoch(above.newest()), ..QueryKeyReply::default() };
    let KeyQuery::Search { max, dkey, akey, extent } = query else { return Ok(reply) };
    if !above.exists {
        return Ok(reply);
    }
    let search = Search { turns, object, epoch, max: *max, akey: akey.as_ref(), extent: *extent };
    let found = match dkey {
        Some(dkey) => search.below_dkey(&path.dkey(dkey), above).await?.map(|found| (dkey.clone(), found)),
        None => search.dkeys(path, above).await?,
    };
    if let Some((found_dkey, (found_akey, found_extent))) = found {
        reply.dkey = Some(found_dkey);
        reply.akey = found_akey;
        reply.extent = found_extent;
    }
    Ok(reply)
}

impl Search<'_> {
    /// What follows `prefix` in the next key below it, from the greatest or smallest on, behind `last` if there is one.
    async fn next(&self, prefix: &[u8], last: Option<&Path>) -> Result<Option<Vec<u8>>, FetchError> {
        let bound = match last {
            Some(last) if self.max => last.as_bytes().to_vec(),
            Some(last) => key::after(last.as_bytes()),
            None if self.max => key::after(prefix),
            None => prefix.to_vec(),
        };
        let visit = |key: &[u8], _: &[u8]| ControlFlow::Break(key.strip_prefix(prefix).map(<[u8]>::to_vec));
        let next = self.turns.ask(KEY_LOOKS, |tree| {
            Ok(if self.max { tree.scan_back(&bound, visit)? } else { tree.scan(&bound, visit)? }.flatten())
        });
        next.await
    }

    async fn life(&self, path: &Path, above: Life) -> Result<Life, FetchError> {
        self.turns.ask(KEY_LOOKS, |tree| life(tree, path, above, self.epoch)).await
    }

    /// The first dkey with something that is wanted.
    async fn dkeys(&self, path: &Path, above: Life) -> Result<Option<(Key, Below)>, FetchError> {
        let (prefix, mut last) = (path.below(), None);
        while let Some(rest) = self.next(&prefix, last.as_ref()).await? {
            let dkey = key::dkey_from(self.object, &rest)?;
            let path = path.dkey(&dkey);
            if let Some(found) = self.below_dkey(&path, above).await? {
                return Ok(Some((dkey, found)));
            }
            last = Some(path);
        }
        Ok(None)
    }

    /// What is wanted of a dkey: an akey, searched or given, and a record if one is wanted.
    async fn below_dkey(&self, path: &Path, above: Life) -> Result<Option<Below>, FetchError> {
        let above = self.life(path, above).await?;
        if !above.exists {
            return Ok(None);
        }
        match self.akey {
            Some(akey) => self.record(&path.akey(akey), above, akey).await,
            None if key::has_integer_akeys(self.object) => self.akeys(path, above).await,
            // Keys that aren't integers have no greatest: with records wanted, any akey will do, in their order.
            None if self.extent => self.akeys(path, above).await,
            None => Ok(Some((None, None))),
        }
    }

    /// The first akey with something that is wanted.
    async fn akeys(&self, dkey: &Path, above: Life) -> Result<Option<Below>, FetchError> {
        let (prefix, mut last) = (dkey.below(), None);
        while let Some(rest) = self.next(&prefix, last.as_ref()).await? {
            let akey = key::akey_from(self.object, &rest)?;
            let path = dkey.akey(&akey);
            if let Some(found) = self.record(&path, above, &akey).await? {
                return Ok(Some(found));
            }
            last = Some(path);
        }
        Ok(None)
    }

    /// The greatest or smallest record of an akey, if one is wanted.
    async fn record(&self, path: &Path, above: Life, akey: &Key) -> Result<Option<Below>, FetchError> {
        let found = self.life(path, above).await?;
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
    async fn outermost(&self, path: &Path, found: Life, classes: u32) -> Result<Option<Extent>, FetchError> {
        let mut left = ALL_RECORDS;
        while left.count > 0 {
            let mut window = if self.max {
                Gathering::of_end(self.last_window(path, left.end(), classes).await?, classes)
            } else {
                Gathering::new(left, classes, WINDOW_LOOKS)
            };
            self.turns.gather(&mut window, path, found, self.epoch).await?;
            let range = window.range();
            left = if self.max {
                Extent { index: 0, count: range.index }
            } else {
                Extent { index: range.end(), count: left.end() - range.end() }
            };
            let parts = paint(&window.found, range);
            let mut real = parts.iter().filter(|part| !is_hole(&window.found[part.stored].value));
            if let Some(part) = if self.max { real.next_back() } else { real.next() } {
                return Ok(Some(part.extent));
            }
        }
        Ok(None)
    }

    /// A range up to a record in which few extents begin.
    async fn last_window(&self, path: &Path, end: u64, classes: u32) -> Result<Extent, FetchError> {
        let mut start = 0;
        for class in each_class(classes) {
            let of_class =
                self.turns.ask(WINDOW_LOOKS, |tree| last_window(tree, path, end, class, WINDOW_LOOKS));
            start = start.max(of_class.await?);
        }
        Ok(Extent { index: start, count: end - start })
    }
}
