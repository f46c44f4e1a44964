//! The greatest and smallest keys and records.

use crate::error::FetchError;
use crate::extents::{STEP_LOOKS, first_versions, is_hole, last_window, newest_versions, paint};
use crate::incarnation::{Life, life};
use crate::key::{self, Path};
use crate::paging::{Fault, Halt};
use crate::shard::Shard;
use crate::timestamps::Scope;
use crate::tree::Tree;
use crate::update::check_keys;
use core::cell::RefCell;
use core::ops::ControlFlow;
use weir_proto::object::{Extent, KeyQuery, QueryKeyReply};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// All records that can be named: bit 63 of an index is reserved.
const ALL_RECORDS: Extent = Extent { index: 0, count: 1 << 63 };

/// What was found below a dkey: the akey, and the record with its size.
type Below = (Option<Key>, Option<(Extent, u32)>);

/// A search for keys of one object.
struct Search<'a> {
    tree: &'a Tree,
    object: ObjectId,
    epoch: u64,
    max: bool,
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
        let path = Path::object(self.number, number, object);
        let resume = RefCell::new(None);
        let place = (self.number, number, object);
        let reply = self.core.ask(|tree| {
            self.begin_glance(&place, Scope::Object, epoch)?;
            Ok::<_, Halt<FetchError>>(search(tree, object, &path, epoch.0, query, &resume)?)
        });
        let reply = reply.await;
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

fn search(
    tree: &Tree,
    object: ObjectId,
    path: &Path,
    epoch: u64,
    query: &KeyQuery,
    resume: &RefCell<Option<Vec<u8>>>,
) -> Result<QueryKeyReply, Fault> {
    let newest = life(tree, path, Life::ALWAYS, epoch)?.newest();
    let mut reply = QueryKeyReply { max_epoch: Epoch(newest), ..QueryKeyReply::default() };
    let KeyQuery::Search { max, dkey, akey, extent } = query else { return Ok(reply) };
    let search = Search { tree, object, epoch, max: *max, extent: *extent };
    let above = life(tree, path, Life::ALWAYS, epoch)?;
    if !above.exists {
        return Ok(reply);
    }
    // Below the dkey: an akey, searched or given, and a record if one is wanted.
    let look = |dkey_path: &Path| -> Result<Option<Below>, Fault> {
        let above = life(tree, dkey_path, above, epoch)?;
        if !above.exists {
            return Ok(None);
        }
        match akey {
            Some(akey) => search.record(&dkey_path.akey(akey), above, akey),
            None if key::has_integer_akeys(object) => search.akeys(dkey_path, above),
            // Keys that aren't integers have no greatest: with records wanted, any akey will do, in their order.
            None if search.extent => search.akeys(dkey_path, above),
            None => Ok(Some((None, None))),
        }
    };
    let found = match dkey {
        Some(dkey) => look(&path.dkey(dkey))?.map(|found| (dkey.clone(), found)),
        None => search.each(&path.below(), Some(resume), |rest| {
            let dkey = key::dkey_from(object, rest)?;
            let path = path.dkey(&dkey);
            Ok((look(&path)?.map(|found| (dkey, found)), path))
        })?,
    };
    if let Some((found_dkey, (found_akey, found_extent))) = found {
        reply.dkey = Some(found_dkey);
        reply.akey = found_akey;
        reply.extent = found_extent;
    }
    Ok(reply)
}

impl Search<'_> {
    /// Looks at the keys below `prefix` from the greatest or smallest on, until `look` finds something. `resume` keeps
    /// where to go on when index nodes have to be read in between.
    fn each<T>(
        &self,
        prefix: &[u8],
        resume: Option<&RefCell<Option<Vec<u8>>>>,
        mut look: impl FnMut(&[u8]) -> Result<(Option<T>, Path), Fault>,
    ) -> Result<Option<T>, Fault> {
        let begun = resume.and_then(|resume| resume.borrow().clone());
        let mut bound = begun.unwrap_or_else(|| if self.max { key::after(prefix) } else { prefix.to_vec() });
        loop {
            let visit =
                |key: &[u8], _: &[u8]| ControlFlow::Break(key.strip_prefix(prefix).map(<[u8]>::to_vec));
            let next =
                if self.max { self.tree.scan_back(&bound, visit)? } else { self.tree.scan(&bound, visit)? };
            let Some(Some(rest)) = next else { return Ok(None) };
            let (found, path) = look(&rest)?;
            if found.is_some() {
                return Ok(found);
            }
            bound = if self.max { path.as_bytes().to_vec() } else { key::after(path.as_bytes()) };
            if let Some(resume) = resume {
                *resume.borrow_mut() = Some(bound.clone());
            }
        }
    }

    fn akeys(&self, dkey: &Path, above: Life) -> Result<Option<Below>, Fault> {
        self.each(&dkey.below(), None, |rest| {
            let akey = key::akey_from(self.object, rest)?;
            let path = dkey.akey(&akey);
            Ok((self.record(&path, above, &akey)?, path))
        })
    }

    /// The greatest or smallest record of an akey, if one is wanted.
    fn record(&self, path: &Path, above: Life, akey: &Key) -> Result<Option<Below>, Fault> {
        let found = life(self.tree, path, above, self.epoch)?;
        if !found.exists {
            return Ok(None);
        }
        if !self.extent {
            return Ok(Some((Some(akey.clone()), None)));
        }
        let Some((_, record_size, classes)) = found.array_or_single() else { return Ok(None) };
        let extent = self.outermost(path, found, classes)?;
        Ok(extent.map(|extent| (Some(akey.clone()), Some((extent, record_size)))))
    }

    /// The visible part of an extent with the greatest or smallest record, found step by step from there on.
    fn outermost(&self, path: &Path, found: Life, classes: u32) -> Result<Option<Extent>, Fault> {
        let mut left = ALL_RECORDS;
        while left.count > 0 {
            let (stored, range) = if self.max {
                let start = last_window(self.tree, path, left.end(), classes, STEP_LOOKS)?;
                let range = Extent { index: start, count: left.end() - start };
                left.count = start;
                (newest_versions(self.tree, path, found, self.epoch, range, classes)?, range)
            } else {
                let (stored, end) =
                    first_versions(self.tree, path, found, self.epoch, left, classes, STEP_LOOKS)?;
                let range = Extent { index: left.index, count: end - left.index };
                left = Extent { index: end, count: left.end() - end };
                (stored, range)
            };
            let parts = paint(&stored, range);
            let mut real = parts.iter().filter(|part| !is_hole(&stored[part.stored].value));
            if let Some(part) = if self.max { real.next_back() } else { real.next() } {
                return Ok(Some(part.extent));
            }
        }
        Ok(None)
    }
}
