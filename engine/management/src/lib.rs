//! The management protocol: generated types, errors that carry DER codes, mutual TLS of both ends and the roles of callers. Also the
//! listeners of daemons: for management, and for pages for probes and scrapers.

mod caller;
mod connections;
mod error;
mod incoming;
mod origin;
mod pages;
mod tls;

pub use caller::{Caller, Role};
pub use error::{Failure, failure_of};
pub use incoming::{Connection, Incoming, incoming};
pub use origin::Origin;
pub use pages::{Page, serve_pages};
pub use tls::{ConnectError, RotatingServer, TlsError, TlsFiles};

/// Generated from `engine/proto/management/v1/management.proto`.
#[expect(missing_docs, reason = "documented in the protocol definition")]
#[allow(clippy::all, clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("weir.management.v1");
}
