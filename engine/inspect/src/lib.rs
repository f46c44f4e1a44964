//! Tools for a store that nobody has open: what is on its device, whether all of it is sound, and a copy of what can still be read.
//!
//! An [`Inspector`] opens a device and writes nothing to it. It reports, dumps, and copies to another device. It reads with
//! `weir-format` and with what `weir-store` has for this ([`weir_store::offline`]), so that it finds what an open would find, and
//! what an open would stop at.
//!
//! Rooms, each of which calls only those above it:
//!
//! | room | what it has |
//! |---|---|
//! | `inspect` | the device as it is found: report, check, dump |
//! | `copy` | the same store on another device |

mod copy;
mod inspect;

pub use copy::{Copied, CopyError, CopyEvents, CopyOptions, CopyProgress, CopyStage, Loss, LossKind, Survey};
pub use inspect::{
    BlockCount, CheckpointReport, ContainerReport, CopyReport, DataReport, Depth, Dumped, Field, Filter,
    Finding, IndexReport, InspectError, Inspector, Line, LogReport, Part, PoolReport, Region, Report,
    Severity,
};
