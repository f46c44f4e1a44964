//! What is asked of akeys, and what of it fits what there is.

use super::FetchedAkey;
use super::pieces::ReadPieces;
use crate::format::key::Path;
use crate::format::value::Kind;
use crate::index::existence::{Existence, existence};
use crate::index::fault::Halt;
use crate::index::tree::Tree;
use crate::state::error::FetchError;
use weir_proto::Key;
use weir_proto::object::{AkeyFetch, Conditions, Extent, Fetched, Value};

/// Which akeys are asked for.
pub(super) struct Asked<'a> {
    pub(super) name: &'a Key,
    pub(super) dkey: &'a Path,
    /// Existence of the object.
    pub(super) above: Existence,
    pub(super) epoch: u64,
    pub(super) conditions: Conditions,
}

impl Asked<'_> {
    /// The existence of the dkey.
    pub(super) fn dkey(&self, tree: &Tree) -> Result<Existence, Halt<FetchError>> {
        let found = existence(tree, self.dkey, self.above, self.epoch)?;
        if self.conditions.has(Conditions::DKEY_FETCH) && !found.exists {
            return Err(FetchError::Missing(format!("dkey \"{}\"", self.name)).into());
        }
        Ok(found)
    }

    /// Place and existence of an akey.
    pub(super) fn akey(
        &self,
        tree: &Tree,
        above: Existence,
        fetch: &AkeyFetch,
    ) -> Result<(Path, Existence), Halt<FetchError>> {
        let path = self.dkey.akey(&fetch.akey);
        let found = existence(tree, &path, above, self.epoch)?;
        let per_akey = self.conditions.has(Conditions::PER_AKEY);
        let conditions = if per_akey { fetch.conditions } else { self.conditions };
        if conditions.has(Conditions::AKEY_FETCH) && !found.exists {
            return Err(FetchError::Missing(format!("akey \"{}\"", fetch.akey)).into());
        }
        Ok((path, found))
    }
}

/// What is stored of an akey, as far as it fits the request.
pub(super) enum Shape<'a> {
    Nothing,
    Single(u64),
    /// Record size, the one of the request, what is asked for, and the classes of extents.
    Array(u32, u32, &'a [Extent], u32),
}

pub(super) fn shape(existence: Existence, fetch: &AkeyFetch) -> Result<Shape<'_>, FetchError> {
    let Some((kind, record_size, classes)) = existence.array_or_single() else { return Ok(Shape::Nothing) };
    match (&fetch.value, kind) {
        (Value::Single { size }, Kind::Single) => Ok(Shape::Single(*size)),
        // Only holes were stored: there is no record yet.
        (Value::Array { .. }, Kind::Array) if record_size == 0 => Ok(Shape::Nothing),
        (Value::Array { record_size: given, extents }, Kind::Array) => {
            if *given != 0 && *given != record_size {
                let akey = fetch.akey.clone();
                return Err(FetchError::RecordSize { akey, stored: record_size, given: *given });
            }
            Ok(Shape::Array(record_size, *given, extents, classes))
        }
        (value, stored) => {
            let given = if matches!(value, Value::Single { .. }) { Kind::Single } else { Kind::Array };
            Err(FetchError::Kind { akey: fetch.akey.clone(), stored: stored.name(), given: given.name() })
        }
    }
}

/// The answer for an akey of which nothing is stored.
pub(super) fn nothing() -> (FetchedAkey, ReadPieces) {
    let fetched = Fetched { size: 0, present: Vec::new(), checksums: Vec::new() };
    (FetchedAkey { fetched, len: 0 }, ReadPieces::new())
}
