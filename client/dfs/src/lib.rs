//! A POSIX namespace on objects.
