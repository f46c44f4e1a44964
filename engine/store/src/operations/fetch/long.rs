//! Fetches that look at more of the index than fits one turn.
//!
//! They ask a [`Still`], which is the index as it was when they began, a window of records at a time, so that others run
//! in between and no more than a window's pieces are held. What is present is found first, because the reply begins with
//! it; the data is found again when it is read.

use super::asked::{Asked, Shape, nothing, shape};
use super::pieces::{ReadPieces, Summing, Sums, fill, finish};
use super::placing::Placing;
use super::{AkeySums, AkeyView, FetchedAkey, Found};
use crate::format::checksum::Checksums;
use crate::format::key::Path;
use crate::format::size::in_memory;
use crate::index::existence::{Existence, existence};
use crate::index::extents::{Gathering, STEP_LOOKS, Stored};
use crate::index::fault::Halt;
use crate::state::core::Core;
use crate::state::error::FetchError;
use crate::state::paging::Still;
use crate::state::read::Comparison;
use core::cell::Cell;
use smallvec::SmallVec;
use weir_proto::Key;
use weir_proto::limits::INLINE_MAX;
use weir_proto::object::{AkeyFetch, Conditions, Extent, Fetched};

/// Extents beyond which a reply certainly doesn't fit a message: each takes two bytes at least.
pub(super) const PRESENT_MAX: usize = INLINE_MAX / 2;

/// A fetch that takes several time slices. It keeps the request and a snapshot of the index.
pub(super) struct Long {
    still: Still,
    /// For each akey, what is to be read of an array.
    arrays: Vec<Option<Array>>,
    epoch: u64,
    /// Looks that are left in this time slice.
    left: Cell<usize>,
}

/// What is asked of an array.
struct Array {
    path: Path,
    existence: Existence,
    record_size: u32,
    classes: u32,
    extents: Vec<Extent>,
    /// Only what is present is wanted.
    without_data: bool,
}

/// The versions that are visible in a window, in the order of length classes.
type Window = (Extent, SmallVec<[Stored; 1]>);

impl Long {
    /// Finds out what is there. `place`: paths of object and dkey, and the dkey.
    pub(super) async fn plan(
        core: &Core,
        still: Still,
        place: (&Path, &Path, &Key),
        epoch: u64,
        conditions: Conditions,
        akeys: &[AkeyFetch],
    ) -> Result<(Found, Option<Box<Self>>), FetchError> {
        let (object, dkey, name) = place;
        let shapes = still.ask(|tree| {
            let above = existence(tree, object, Existence::ALWAYS, epoch)?;
            let asked = Asked { name, dkey, above, epoch, conditions };
            let above = asked.dkey(tree)?;
            let mut shapes = Vec::with_capacity(akeys.len());
            for fetch in akeys {
                let (path, existence) = asked.akey(tree, above, fetch)?;
                let view = AkeyView { tree, path: &path, existence, epoch };
                shapes.push(match shape(existence, fetch)? {
                    Shape::Nothing => (nothing(), None),
                    Shape::Single(size) => (view.fetch_single(size)?, None),
                    Shape::Array(record_size, given, extents, classes) => {
                        let (extents, without_data) = (extents.to_vec(), given == 0);
                        (
                            nothing(),
                            Some(Array { path, existence, record_size, classes, extents, without_data }),
                        )
                    }
                });
            }
            Ok::<_, Halt<FetchError>>(shapes)
        });
        let shapes = shapes.await?;
        let mut long = Self { still, arrays: Vec::with_capacity(shapes.len()), epoch, left: Cell::new(0) };
        let (mut found, mut named) = (Found::default(), 0);
        for ((mut akey, pieces), array) in shapes {
            if let Some(array) = &array {
                akey = long.describe(core, array, &mut named).await?;
            }
            found.akeys.push(akey);
            found.pieces.push(pieces);
            long.arrays.push(array);
        }
        Ok((found, Some(Box::new(long))))
    }

    /// Finds which records of an array are present. `named` counts extents of other akeys.
    async fn describe(
        &self,
        core: &Core,
        array: &Array,
        named: &mut usize,
    ) -> Result<FetchedAkey, FetchError> {
        let (size, mut present, mut len) = (u64::from(array.record_size), Vec::new(), 0);
        for requested in &array.extents {
            let mut left = *requested;
            while let Some((window, mut stored)) = self.next(core, array, &mut left).await? {
                let place = Placing { requested: *requested, window, size, at: 0 };
                place.take(&mut stored, Some(&mut present), None)?;
                if *named + present.len() > PRESENT_MAX {
                    return Err(FetchError::Scattered { max: PRESENT_MAX });
                }
            }
            // Where no data is wanted, nothing bounds what is asked for.
            len += if array.without_data { 0 } else { requested.count * size };
        }
        *named += present.len();
        Ok(FetchedAkey { fetched: Fetched { size, present, checksums: Vec::new() }, len })
    }

    /// Takes the next window off a range, with what it shows. `None`: there is nothing left.
    async fn next(
        &self,
        core: &Core,
        array: &Array,
        left: &mut Extent,
    ) -> Result<Option<Window>, FetchError> {
        if left.count == 0 {
            return Ok(None);
        }
        let most = core.config.fetch_looks.clamp(1, STEP_LOOKS);
        let mut gathering = Gathering::new(*left, array.classes, most);
        let mut has_ended = false;
        while !has_ended {
            if self.left.get() == 0 {
                core.yield_to_io().await;
                self.left.set(most);
            }
            let step = self.still.ask(|tree| {
                let mut looks = self.left.get();
                let step = gathering.step(tree, &array.path, array.existence, self.epoch, &mut looks)?;
                Ok::<_, Halt<FetchError>>((step, looks))
            });
            let (step, left) = step.await?;
            has_ended = step;
            self.left.set(left);
        }
        let window = Extent { index: left.index, count: gathering.end() - left.index };
        *left = Extent { index: window.end(), count: left.count - window.count };
        Ok(Some((window, gathering.found)))
    }

    /// As [`super::Fetch::read_summed`]; without checksums when they aren't wanted.
    pub(super) async fn read(
        &self,
        core: &Core,
        found: &Found,
        into: &mut [u8],
        wants: Option<Comparison>,
    ) -> Result<AkeySums, FetchError> {
        let (mut rest, mut sums) = (into, AkeySums::with_capacity(found.akeys.len()));
        for (number, (akey, pieces)) in found.akeys.iter().zip(&found.pieces).enumerate() {
            let (part, after) = rest.split_at_mut(in_memory(akey.len));
            sums.push(self.read_akey(core, number, pieces, part, wants).await?);
            rest = after;
        }
        Ok(sums)
    }

    /// Reads the data of one akey, which is as long as was found.
    async fn read_akey(
        &self,
        core: &Core,
        akey: usize,
        pieces: &ReadPieces,
        into: &mut [u8],
        wants: Option<Comparison>,
    ) -> Result<Checksums, FetchError> {
        if into.is_empty() {
            return Ok(Checksums::new());
        }
        let Some(array) = self.arrays.get(akey).and_then(Option::as_ref) else {
            let sums = read_pieces(core, pieces, into, wants).await?;
            return Ok(sums.into_iter().map(|(_, _, sum)| sum).collect());
        };
        let (size, mut rest, mut sums) = (u64::from(array.record_size), into, Checksums::new());
        for requested in &array.extents {
            let (mut left, mut summing, mut at) = (*requested, Summing::new(0), 0);
            while let Some((window, mut stored)) = self.next(core, array, &mut left).await? {
                let mut pieces = ReadPieces::new();
                let place = Placing { requested: *requested, window, size, at: 0 };
                place.take(&mut stored, None, Some(&mut pieces))?;
                let (part, after) = rest.split_at_mut(in_memory(window.count * size));
                for (from, len, sum) in read_pieces(core, &pieces, part, wants).await? {
                    summing.add(at + from, len, sum);
                }
                at += window.count * size;
                rest = after;
            }
            if wants.is_some() {
                sums.push(summing.end(at));
            }
        }
        Ok(sums)
    }
}

/// Reads pieces to their places. Returns where each begins, its length and its checksum, if they are wanted.
async fn read_pieces(
    core: &Core,
    pieces: &ReadPieces,
    into: &mut [u8],
    wants: Option<Comparison>,
) -> Result<Vec<(u64, u64, u32)>, FetchError> {
    let (mut reads, mut sums) = (Vec::new(), Sums::wanted(wants));
    fill(pieces, into, &mut reads, &mut sums)?;
    finish(core, reads, &mut sums).await?;
    Ok(pieces
        .iter()
        .zip(sums.into_all())
        .map(|(piece, sum)| (piece.at as u64, piece.len as u64, sum))
        .collect())
}
