//! The management protocol: generated types, and how both ends agree on mutual TLS.

/// Generated from `engine/proto/management/v1/management.proto`.
#[expect(missing_docs, reason = "documented in the protocol definition")]
#[allow(clippy::all, clippy::pedantic, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("weir.management.v1");
}
