//! The DAOS C interface: `libdaos.so`.
//!
//! Every exported function checks its arguments, catches panics at the boundary, and either runs to its end at a station of the
//! process (`ev` NULL) or is launched there (`station`). What C callers promise is what
//! the headers in `include/` say: pointers are NULL or point to what their type says, and memory given to an
//! asynchronous call stays valid and untouched until its event is complete. Each `unsafe` block rests on that promise.

mod acl;
mod anchor;
mod array;
mod attributes;
mod boundary;
mod class;
mod container;
mod container_property;
mod dfs;
mod duns;
mod enumeration;
mod errno;
mod errors;
mod event;
mod gurt;
mod handle;
mod key_value;
mod library;
mod list;
mod object;
mod plain_names;
mod pool;
mod property;
mod property_value;
mod query;
mod queue;
mod rank;
mod sg;
mod station;
mod task;
mod transaction;
mod types;
