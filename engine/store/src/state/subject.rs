//! Whose an entry is, in words and in the names that targets use.

use crate::format::entry::{Entry, Item, ObjectPath};
use crate::state::catalog::Catalog;
use weir_proto::history::VersionName;
use weir_proto::{ContainerId, Epoch, PoolId};

/// The pool of an entry of an object, and the rest of what it belongs to in words.
pub(crate) fn subject_of(catalog: &Catalog, key: &[u8], value: &[u8]) -> (Option<PoolId>, Option<String>) {
    let Ok(Entry::Object { path, item }) = Entry::decode(key, value) else { return (None, None) };
    let pool = catalog.pools.get(&path.pool);
    let container = pool.and_then(|pool| pool.containers.get(&path.container));
    let container =
        container.map_or_else(|| path.container.to_string(), |container| container.id.to_string());
    let keys: String = [("dkey", &path.dkey), ("akey", &path.akey)]
        .into_iter()
        .filter_map(|(name, key)| Some(format!(" {name} \"{}\"", key.as_ref()?)))
        .collect();
    let subject = format!("container {container} object {}{keys} epoch {}", path.object, item.epoch());
    (pool.map(|pool| pool.id), Some(subject))
}

/// The version that an entry is, and its pool; `None`: it is something else, or its container isn't there any more.
pub(crate) fn version_of(catalog: &Catalog, key: &[u8], value: &[u8]) -> Option<(PoolId, VersionName)> {
    let Ok(Entry::Object { path, item }) = Entry::decode(key, value) else { return None };
    let pool = catalog.pools.get(&path.pool)?;
    let container = pool.containers.get(&path.container)?.id;
    Some((pool.id, version_name(container, path, &item)?))
}

/// The version that an item of an object is; `None`: it is none.
pub(crate) fn version_name(container: ContainerId, path: ObjectPath, item: &Item) -> Option<VersionName> {
    let (extent, epoch) = match item {
        Item::Single { epoch, .. } => (None, *epoch),
        Item::Extent { extent, epoch, .. } => (Some(*extent), *epoch),
        Item::Incarnation { .. } | Item::Reserved(_) => return None,
    };
    let ObjectPath { object, dkey, akey, .. } = path;
    Some(VersionName { container, object, dkey: dkey?, akey: akey?, extent, epoch: Epoch(epoch) })
}
