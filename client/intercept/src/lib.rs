//! `libweir_direct.so`, which moves the data of files on a mount to and from the engines itself, past kernel and mount.
//!
//! Programs are started with `libweir_intercept.so` (`preload/preload.c`), by `LD_PRELOAD`: it has the names of functions of the C library, needs
//! nothing, and loads this library at the first call on a file of a mount. So a program that uses no such file starts as fast as
//! without it.
//!
//! The kernel keeps all else. Each file stays open in the kernel, which checks permissions when it is opened, and holds the
//! offset that descriptors share after `dup`, `fork` and `exec`: a read or write moves that offset by `lseek`, which the mount
//! isn't asked for, and gets its place by it. While a file is accessed directly, the mount gathers none of its writes and keeps
//! none of its attributes ([`weir_dfs::direct`]); so what isn't intercepted, such as `stat`, `ftruncate`, `fsync` or the
//! C library's own calls for `FILE`, goes to the kernel and finds the same file.
//!
//! Nothing is told by a descriptor's number alone. A program may close one in ways that no library sees, so each call
//! compares device and inode, and the access mode, with what the kernel says of the number now.
//!
//! Programs that are started with `libpil4dfs.so` have names and attributes found here, too (`preload/names.c`). A call on a path asks
//! the engines for each of its components, and judges permissions as the kernel does; where that doesn't say yes, and whatever isn't
//! looking at names or adding one, the kernel does it (`walk.rs`). Every open file has a descriptor of the kernel, for which that asks the
//! mount: so it is one for `dup`, `fork`, `exec`, `mmap`, `sendfile` and `poll`, and keeps a file whose name is gone. A directory that is
//! only listed has none until the program asks for it.
//!
//! Exported functions run on the program's threads, perhaps in a signal handler, or in a child that shares memory with its
//! parent. They take no lock that a signal handler could wait for, and leave all else to threads of the library,
//! which have descriptors of their own.

mod ask;
mod beginning;
mod caller;
mod descriptors;
mod directories;
mod engines;
mod exports;
mod identify;
mod names;
mod original;
mod question;
mod report;
mod service;
mod submission;
mod tally;
mod transfer;
mod walk;
