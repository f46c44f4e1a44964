//! Values as people and scripts write them: names, sizes, bytes in base64. The room calls nothing of the crate. Every room with
//! arguments or output calls it.

mod base64;
mod name;
mod size;

pub use base64::base64;
pub use name::{name, raw_name};
pub use size::Size;
