//! The native client: handles, objects, key-value and array interfaces.
