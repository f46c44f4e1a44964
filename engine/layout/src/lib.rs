//! Pool map, fault domains, object classes and placement as pure functions.
//!
//! Placement is computed, never looked up: an object id (which holds the object's class) and the pool map give the
//! same [`Layout`] on client and engine. Whoever needs one for each request keeps a [`LayoutCache`].

mod cache;
mod choice;
mod class;
mod domains;
mod groups;
mod placement;
mod receivers;

pub use cache::LayoutCache;
pub use choice::Hints;
pub use class::{
    ClassError, ObjectClass, PREDEFINED_GROUPS, REPLICAS_SERVED, serve_replicas_here, served_factors,
    serves_all_replicas,
};
pub use domains::domains_with;
pub use placement::{Layout, LayoutError};
pub use receivers::Receivers;
pub use weir_proto::pool::{PoolEngine, PoolMap, PoolTarget, TargetState};

#[cfg(test)]
mod evenness;
#[cfg(test)]
mod tests;
