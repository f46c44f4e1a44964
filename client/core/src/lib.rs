//! The native client: handles, objects, key-value and array interfaces.
//!
//! A [`Context`] belongs to one thread: it owns the executor, the endpoint and the RPC state through which that
//! thread reaches the engines. Handles ([`Pool`], [`Container`], [`Object`], [`Kv`], [`Array`]) are plain data,
//! `Send + Sync + Clone`, and work with any context of the same system:
//!
//! ```no_run
//! # fn main() -> Result<(), weir_client::Error> {
//! use weir_client::{Attach, Container, Context, Kv, Pool, Rights};
//! let context = Context::real(&Attach::load(None)?)?;
//! context.block_on(async {
//!     let pool = Pool::connect(&context, "tank", Rights::READ.union(Rights::WRITE)).await?;
//!     let container = Container::open(&context, &pool, "home", Rights::READ.union(Rights::WRITE)).await?;
//!     let oid = container.new_object_id(&context, weir_client::kind::KV_HASHED, None).await?;
//!     let kv = Kv::open(&container, oid)?;
//!     kv.put(&context, b"greeting", b"hello", weir_client::Conditions::NONE).await
//! })
//! # }
//! ```
//!
//! Placement is computed here ([`weir_layout`]), checksums are computed here and verified here, and an operation is
//! tried again until its deadline while an engine is away.

pub mod array;
mod attach;
mod error;
mod handles;
pub mod kind;
mod kv;
mod object;
mod operation;
mod session;
mod transaction;

pub use array::{Array, ArrayAttributes, Range, ReadOutcome};
pub use attach::{Attach, AttachError, AttachText, EngineAddress};
pub use error::{Error, Result};
pub use handles::{Container, KEEP_EVERY, Pool, PoolSpace};
pub use kv::Kv;
pub use object::{
    AkeyRead, AkeyWrite, Anchor, ExtremeKey, Mismatch, MismatchKind, Object, Page, PlacedTarget, Placement,
    Verified,
};
pub use session::{Context, ContextOptions, Lender, NODE_VARIABLE, OPERATION_DEADLINE, Traffic};
pub use transaction::{Restarts, Transaction};

pub use weir_fabric::Buffer;
#[doc(hidden)]
pub use weir_layout::serve_replicas_here;
pub use weir_layout::{Hints, ObjectClass, served_factors};
pub use weir_proto::object::{Conditions, Extent, Fetched, Listed, Value};
pub use weir_proto::pool::{ContainerInfo, ContainerProperties, ContainerType, PoolQueryReply, TargetState};
pub use weir_proto::{ContainerId, Der, Epoch, Key, ObjectId, PoolId, Rank, Rights};
