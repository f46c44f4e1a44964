//! What tools need that work on a store which nobody has open: the parts by which an open reads a device, for a look at all
//! that is there, and a store that is written entry by entry. `weir-inspect` is made of it. It calls all other rooms; nothing of the
//! store calls it.

mod filling;

pub use crate::index::stored::{StoredNode, decode_node};
pub use crate::index::tree::{LEVELS_MAX, Packed};
pub use crate::log::recover::find_copy;
pub use crate::log::tail::{READS_MAX, UNREADABLE_MAX};
pub use crate::state::catalog::{Catalog, Container, Pool};
pub use crate::state::core::reserve_blocks;
pub use crate::versions::intents::Transactions;
pub use filling::{FillError, FillOptions, Filling, Places, Written};
