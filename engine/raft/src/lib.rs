//! A state that several engines keep together, by Raft.
//!
//! The state is attributes of a pool's shard on target 0 of each member of the group; a command is a batch of changes of them. One
//! member leads: it judges requests and proposes commands ([`Replica::propose`]). A command takes effect when most members have it
//! in their logs, in the same order on all. A leader makes sure that it still leads before it answers a read
//! ([`Replica::confirm`]).
//!
//! The algorithm is that of the crate `raft`, which does nothing by itself: this crate drives it with ticks and randomness of the
//! runtime, keeps what must last in the shard, and sends its messages as sealed requests between engines.

mod command;
mod driver;
mod error;
mod log;
mod replica;
mod replicas;
mod snapshot;
mod stored;
mod wire;

pub use command::{COMMAND_MAX, Command, CommandId};
pub use error::{Lost, Unreadable};
pub use log::{is_prepared, prepare, prepare_again, prepare_with_state};
pub use replica::{Leadership, Outcome, Replica, Scopes};
pub use replicas::Replicas;
pub use stored::{change, load_scope};
