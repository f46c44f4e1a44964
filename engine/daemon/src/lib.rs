//! weir-engine: configuration, wiring, management and metrics.
