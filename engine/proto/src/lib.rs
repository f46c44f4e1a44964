//! What crosses the wire or is shared by client and engine.
