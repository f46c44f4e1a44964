//! The pool service: pool map, properties, handles, containers.
