//! Which records of an akey are real, dkey by dkey: how many, and where.
//!
//! As a search does, this goes on in time slices and ends early when it takes many: an object may have any number of dkeys.

use crate::format::admissible::check_keys;
use crate::format::key::ContainerNumber;
use crate::format::key::{self, Path};
use crate::index::existence::{Existence, existence};
use crate::index::extents::{Gathering, is_hole, paint};
use crate::operations::query::WantedDkeys;
use crate::operations::reserve::RecordRange;
use crate::operations::sliced_reader::{KEY_LOOKS, SLICE_LOOKS, SlicedReader};
use crate::state::error::FetchError;
use crate::state::error::UpdateError;
use crate::state::shard::Shard;
use crate::versions::timestamps::Scope;
use core::ops::ControlFlow;
use weir_proto::limits::RUNS_MAX;
use weir_proto::object::{Extent, KeyQuery, MeasureReply, RunsReply};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// Extents of a window begin with so many entries of each class.
const WINDOW_LOOKS: usize = SLICE_LOOKS / 2;

/// Records of one akey, in the index as it was at one moment.
pub(crate) struct Walk<'a> {
    reader: SlicedReader<'a>,
    object: ObjectId,
    path: Path,
    akey: &'a Key,
    epoch: u64,
    /// The dkeys that are looked at.
    wanted: WantedDkeys<'a>,
    /// Records of a dkey that are looked at: those below this one.
    below: u64,
}

impl Shard {
    /// As [`Shard::query_key_among`], and with the last part how many records below `below` are real of the akey that the query
    /// names, in the dkey that it names or in all that are wanted.
    ///
    /// # Errors
    /// See [`FetchError`].
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub async fn measure(
        &self,
        container: ContainerId,
        object: ObjectId,
        epoch: Epoch,
        query: &KeyQuery,
        anchor: &[u8],
        below: u64,
        wanted: WantedDkeys<'_>,
    ) -> Result<MeasureReply, FetchError> {
        let KeyQuery::Search { dkey, akey: Some(akey), .. } = query else {
            return Err(FetchError::Invalid("records are counted of one akey".to_owned()));
        };
        check_records(object, dkey.as_ref(), akey)?;
        let search = self.query_key_among(container, object, epoch, query, anchor, wanted).await?;
        let mut reply = MeasureReply { search, ..MeasureReply::default() };
        if reply.search.next.is_some() || reply.search.found.extent.is_none() {
            return Ok(reply);
        }
        let walk = self.walk(container, (object, akey), epoch, (below, wanted))?;
        let only = dkey.as_ref().and_then(Key::to_u64);
        let count = |_, run: Extent| {
            reply.real += run.count;
            ControlFlow::Continue(())
        };
        let next = walk.run((only.unwrap_or(0), 0), only, count).await?;
        reply.stopped = next.map(|(dkey, _)| dkey);
        self.see(self.locate(container)?, object).await?;
        Ok(reply)
    }

    /// Which records below `below` are real of an akey, from dkey and record `from` on, of the dkeys that are wanted; at most
    /// `limit` runs.
    ///
    /// # Errors
    /// See [`FetchError`].
    #[expect(clippy::too_many_arguments, reason = "the parts of the request, as the protocol names them")]
    pub async fn runs(
        &self,
        container: ContainerId,
        object: ObjectId,
        epoch: Epoch,
        akey: &Key,
        from: (u64, u64),
        below: u64,
        limit: u32,
        wanted: WantedDkeys<'_>,
    ) -> Result<RunsReply, FetchError> {
        check_records(object, None, akey)?;
        let walk = self.walk(container, (object, akey), epoch, (below, wanted))?;
        let limit = limit.clamp(1, RUNS_MAX) as usize;
        let mut runs: Vec<(u64, Extent)> = Vec::new();
        let add = |dkey, run: Extent| {
            let is_full = runs.len() == limit;
            match runs.last_mut() {
                Some((last, known)) if *last == dkey && known.end() == run.index => known.count += run.count,
                _ if is_full => return ControlFlow::Break(()),
                _ => runs.push((dkey, run)),
            }
            ControlFlow::Continue(())
        };
        let next = walk.run(from, None, add).await?;
        self.see(self.locate(container)?, object).await?;
        Ok(RunsReply { runs, next })
    }

    fn walk<'a>(
        &'a self,
        container: ContainerId,
        (object, akey): (ObjectId, &'a Key),
        epoch: Epoch,
        (below, wanted): (u64, WantedDkeys<'a>),
    ) -> Result<Walk<'a>, FetchError> {
        let number = self.locate(container)?;
        self.begin_glance(&(self.number, number, object), Scope::Object, epoch)?;
        // In one time slice: what is found is the state for which the read was noted.
        Ok(self.walk_from((container, number), (object, akey), epoch, (below, wanted)))
    }

    /// Of the newest state, for callers that don't reveal what they find.
    pub(crate) fn walk_now<'a>(
        &'a self,
        container: ContainerId,
        records: &RecordRange<'a>,
        below: u64,
    ) -> Result<Walk<'a>, UpdateError> {
        let number = self.locate(container)?;
        Ok(self.walk_from(
            (container, number),
            (records.object, records.akey),
            Epoch::MAX,
            (below, &|_| true),
        ))
    }

    fn walk_from<'a>(
        &'a self,
        (container, number): (ContainerId, ContainerNumber),
        (object, akey): (ObjectId, &'a Key),
        epoch: Epoch,
        (below, wanted): (u64, WantedDkeys<'a>),
    ) -> Walk<'a> {
        let reader = SlicedReader::new(self, (container, number));
        let path = Path::object(self.number, number, object);
        Walk { reader, object, path, akey, epoch: epoch.0, wanted, below }
    }
}

fn check_records(object: ObjectId, dkey: Option<&Key>, akey: &Key) -> Result<(), FetchError> {
    if !key::has_integer_dkeys(object) {
        let reason = format!("dkeys of object {object} are not integers and have no order");
        return Err(FetchError::Invalid(reason));
    }
    check_keys(object, dkey, [akey]).map_err(FetchError::Invalid)
}

impl Walk<'_> {
    /// Hands over real records from dkey and record `at` on, of all dkeys or of one only, in order, until `take` wants no
    /// more or the request has taken enough looks. Returns dkey and record to go on at, if it isn't the end.
    pub(crate) async fn run(
        &self,
        mut at: (u64, u64),
        only: Option<u64>,
        mut take: impl FnMut(u64, Extent) -> ControlFlow<()>,
    ) -> Result<Option<(u64, u64)>, FetchError> {
        let question = |tree: &_| existence(tree, &self.path, Existence::ALWAYS, self.epoch);
        let above = self.reader.ask(KEY_LOOKS, question).await?;
        if !above.exists {
            return Ok(None);
        }
        let prefix = self.path.below();
        loop {
            let next = self.reader.ask(KEY_LOOKS, |tree| {
                let from = self.path.dkey(&Key::from_u64(at.0));
                let Some(rest) = tree.first_below(from.as_bytes(), &prefix)? else { return Ok(None) };
                let dkey = key::dkey_from(self.object, &rest)?;
                let path = self.path.dkey(&dkey);
                let of_dkey = existence(tree, &path, above, self.epoch)?;
                Ok(Some((dkey, existence(tree, &path.akey(self.akey), of_dkey, self.epoch)?)))
            });
            let Some((dkey, existence)) = next.await? else { return Ok(None) };
            let Some(number) = dkey.to_u64().filter(|number| only.is_none_or(|only| only == *number)) else {
                return Ok(None);
            };
            let record = if number == at.0 { at.1 } else { 0 };
            if (self.wanted)(&dkey)
                && let Some(next) = self.records((&dkey, number), existence, record, &mut take).await?
            {
                return Ok(Some((number, next)));
            }
            let Some(behind) = number.checked_add(1).filter(|_| only.is_none()) else { return Ok(None) };
            at = (behind, 0);
            if self.reader.rest() == 0 {
                return Ok(Some(at));
            }
        }
    }

    /// Hands over real records of one dkey, from one on. Returns where to go on, if it isn't the end.
    async fn records(
        &self,
        (dkey, number): (&Key, u64),
        existence: Existence,
        mut first: u64,
        take: &mut impl FnMut(u64, Extent) -> ControlFlow<()>,
    ) -> Result<Option<u64>, FetchError> {
        let Some((_, _, classes)) = existence.array_or_single() else { return Ok(None) };
        let akey = self.path.dkey(dkey).akey(self.akey);
        while first < self.below {
            let rest = Extent { index: first, count: self.below - first };
            let mut window = Gathering::new(rest, classes, self.reader.window(WINDOW_LOOKS));
            self.reader.gather(&mut window, &akey, existence, self.epoch).await?;
            for part in paint(&window.found, window.range()) {
                if !is_hole(&window.found[part.stored].value) && take(number, part.extent).is_break() {
                    return Ok(Some(part.extent.index));
                }
            }
            first = window.end();
            if first < self.below && self.reader.rest() == 0 {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }
}
