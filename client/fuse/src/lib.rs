//! The mount daemon.
