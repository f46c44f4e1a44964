//! Requests, replies, bulk transfers, deadlines and retries.
//!
//! One [`Rpc`] serves one context, as client and as server. Bodies up to [`INLINE_MAX`] travel in the message;
//! larger payloads are moved by the server, which reads and writes the client's exposed memory. The message format
//! is documented byte by byte in `docs/reference/wire.md`.

mod admission;
mod call;
mod clients;
mod config;
mod contact;
mod context;
mod error;
mod maps;
pub mod membership;
mod metrics;
mod receive;
mod reply;
mod request;
mod rpc;
mod server;
mod transfer;
pub mod wire;

pub use call::Bulk;
pub use config::{CallOptions, Priority, Retry, RpcConfig};
pub use contact::Peer;
pub use error::{RpcError, Status};
pub use metrics::RpcMetrics;
pub use reply::Reply;
pub use request::{Payload, PayloadShare, Request};
pub use rpc::Rpc;
pub use server::{Body, Handler, PATIENCE_MAX, WorkQueue};
pub use weir_fabric::{Buffer, FabricError};
pub use weir_proto::limits::INLINE_MAX;
pub use wire::seal::{self, Keys};
pub use wire::{Caller, ClientId};
