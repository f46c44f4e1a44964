//! Pool map, fault domains, object classes and placement as pure functions.
