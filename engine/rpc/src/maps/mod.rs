//! Maps for what each message looks up: by numbers from the network, by the number of a request, and by the client that was looked
//! up last. They call nothing of this crate. All records of clients, servers and requests are in such maps.

mod cached;
mod id_map;
mod sequence;

pub(crate) use cached::CachedMap;
pub(crate) use id_map::{IdMap, SPREAD};
pub(crate) use sequence::SequenceMap;
