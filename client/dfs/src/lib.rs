//! A POSIX namespace on objects.
//!
//! A directory is an object with one dkey per entry; the entry's inode record stands under one akey of that dkey.
//! A file is a byte-array object, whose size and modification time come from its data. `docs/reference/client.md`
//! describes the layout and what concurrent clients see.
//!
//! A [`Dfs`] and the [`Node`]s and [`File`]s it gives are plain data, `Send + Sync + Clone`; every operation runs
//! on a [`weir_client::Context`], which belongs to one thread.

mod allocate;
mod attributes;
pub mod direct;
mod directory;
mod entry;
mod error;
mod exchange;
mod file;
mod inode_object;
mod lease;
mod link;
mod mount;
mod name;
mod namespace;
mod path;
mod record;
mod record_update;
mod rename;
mod subtree;
mod superblock;
mod transaction;
mod writeback;
mod xattr;
mod xattr_move;

pub use attributes::{Change, SetAttributes, Stat};
pub use directory::{DirEntry, DirStream};
pub use entry::{Node, inode_number};
pub use error::Error;
pub use file::{File, SIZE_MAX};
pub use lease::{ClientId, Lease, RenewalOutcome, TURN};
pub use mount::{Dfs, StatFs};
pub use name::{LINK_TARGET_MAX, NAME_MAX};
pub use namespace::{FileLayout, NewInode, Ownership, Removed};
pub use record::{Kind, Names, Record};
pub use rename::Replace;
pub use superblock::Superblock;
pub use writeback::UnsentData;
pub use xattr::{XATTR_NAME_MAX, XATTR_VALUE_MAX, XattrMode};

/// Result of a file-system operation.
pub type Result<T> = core::result::Result<T, Error>;
