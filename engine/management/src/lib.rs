//! Management protocol: generated types and mutual TLS.
