//! The management protocol: generated types, errors that carry DER codes, and how both ends agree on mutual TLS.

mod error;
mod incoming;
mod tls;

pub use error::{Failure, failure_of};
pub use incoming::{Incoming, incoming};
pub use tls::{ConnectError, RotatingServer, TlsError, TlsFiles};

/// Generated from `engine/proto/management/v1/management.proto`.
#[expect(missing_docs, reason = "documented in the protocol definition")]
#[allow(clippy::all, clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("weir.management.v1");
}
