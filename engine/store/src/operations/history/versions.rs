//! Looking for single versions.

use super::export::{Onward, walk};
use crate::format::admissible::check_keys;
use crate::format::entry::{Entry, Item};
use crate::format::key::{KeyBytes, Path, after};
use crate::format::value::Payload;
use crate::operations::sliced_reader::SlicedReader;
use crate::state::error::FetchError;
use crate::state::shard::Shard;
use crate::state::subject::version_name;
use weir_proto::history::VersionName;
use weir_proto::{ContainerId, Key, ObjectId};

/// Versions that are listed at once.
const VERSIONS_MAX: usize = 64;

/// Some of the versions of a dkey, with their data as the index has it.
pub(crate) struct VersionPage {
    pub(crate) versions: Vec<(VersionName, Payload)>,
    /// Where the next page begins; `None`: nothing is left.
    pub(crate) next: Option<Vec<u8>>,
}

impl Shard {
    /// Where the index has a version, if it does.
    pub(crate) fn place_of(&self, name: &VersionName) -> Result<KeyBytes, FetchError> {
        let number = self.locate(name.container)?;
        check_keys(name.object, Some(&name.dkey), Some(&name.akey)).map_err(FetchError::Invalid)?;
        let akey = Path::object(self.number, number, name.object).dkey(&name.dkey).akey(&name.akey);
        Ok(match name.extent {
            None => akey.single(name.epoch.0),
            Some(extent) => akey.extent(extent, name.epoch.0),
        })
    }

    /// Versions of a dkey that have data, from a place on, which is empty at first.
    pub(crate) async fn versions_of(
        &self,
        container: ContainerId,
        (object, dkey): (ObjectId, &Key),
        from: &[u8],
    ) -> Result<VersionPage, FetchError> {
        let number = self.locate(container)?;
        check_keys(object, Some(dkey), None).map_err(FetchError::Invalid)?;
        let reader = SlicedReader::new(self, (container, number));
        let path = Path::object(self.number, number, object).dkey(dkey);
        let mut versions = Vec::new();
        let end = walk(&reader, (path.as_bytes(), from, &[]), |_, key, value| {
            if versions.len() == VERSIONS_MAX {
                return Ok(Onward::Full(0));
            }
            let Entry::Object { path, item } = Entry::decode(key, value)? else { return Ok(Onward::Next) };
            let payload = match &item {
                Item::Single { payload, .. } | Item::Extent { payload, .. } => payload.clone(),
                Item::Incarnation { .. } => return Ok(Onward::Next),
                Item::Reserved(_) => return Ok(Onward::Skip(after(key))),
            };
            if let Some(name) = version_name(container, path, &item).filter(|_| payload != Payload::Hole) {
                versions.push((name, payload));
            }
            Ok(Onward::Next)
        });
        let next = end.await?.map(|(next, _)| next);
        Ok(VersionPage { versions, next })
    }
}
