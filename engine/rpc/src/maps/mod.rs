//! Maps for what each message looks up: numbers from the network, request numbers, and the client of the last
//! look-up. They call nothing of this crate. The records of clients, servers and requests are kept in them.

mod cached;
mod id_map;
mod sequence;

pub(crate) use cached::CachedMap;
pub(crate) use id_map::{IdMap, SPREAD};
pub(crate) use sequence::SequenceMap;
