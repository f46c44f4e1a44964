//! Benchmarks beside named references.
