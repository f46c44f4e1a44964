//! The weir command line, also as daos and dmg.
