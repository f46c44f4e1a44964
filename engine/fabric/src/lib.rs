//! Safe Rust over libfabric, and a simulated fabric behind the same trait.
