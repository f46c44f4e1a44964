//! How names lead to addresses: the system's resolver, addresses that servers publish at a TCP port, and files that stand for
//! ports. It calls rooms for addresses and errors. Endpoints of all transports resolve names by it, and announce themselves.

pub(crate) mod port_file;
pub mod published;
pub(crate) mod resolve;

pub use published::{Addressing, Found};

pub(crate) use published::{PublishedAddress, Publisher, Querier, query};
