//! Whose an entry is, in words.

use crate::format::entry::Entry;
use crate::state::catalog::Catalog;
use weir_proto::PoolId;

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
