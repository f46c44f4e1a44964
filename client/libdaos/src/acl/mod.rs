//! Access control lists, as structures and as text.
//!
//! They are kept with a container as a property, and evaluated by programs (`daos_cont_get_perms`); engines decide by pools' and
//! containers' handles.

mod entry;
mod list;
mod principal;
mod text;

pub use entry::{Entry, principal};
pub use list::{allocated, bytes_of_list, check, from_bytes, list_bytes, put, read, take};
pub use principal::{is_valid_name, name_of_gid, name_of_uid};
pub use text::parse;

/// Who an entry is about (`enum daos_acl_principal_type`).
pub const OWNER: u8 = 0;
pub const USER: u8 = 1;
pub const OWNER_GROUP: u8 = 2;
pub const GROUP: u8 = 3;
pub const EVERYONE: u8 = 4;
