//! The DAOS C interface: libdaos.
