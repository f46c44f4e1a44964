//! Return codes of libdfs and libduns: 0 or a positive errno, which the events of their calls end with, too.

use core::ffi::c_int;

use weir_client::Context;
use weir_proto::Der;

use crate::boundary::{Failure, Start, guarded_as, operation_as, run_as};
use crate::types::daos_event_t;
use crate::{errors, library};

/// Why a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

/// Outcome of a call.
pub type Checked<T> = Result<T, Errno>;

impl Failure for Errno {
    fn code(self) -> c_int {
        self.0
    }
}

impl From<Der> for Errno {
    fn from(der: Der) -> Self {
        Self(errors::errno_of(der))
    }
}

impl From<weir_client::Error> for Errno {
    fn from(error: weir_client::Error) -> Self {
        Self::from(error.der())
    }
}

impl From<weir_dfs::Error> for Errno {
    fn from(error: weir_dfs::Error) -> Self {
        match error {
            // As DAOS says it.
            weir_dfs::Error::ReadOnly => Self(libc::EPERM),
            weir_dfs::Error::Stale(_) => Self(libc::ENOENT),
            weir_dfs::Error::Client(error) => Self::from(error),
            other => Self(other.errno()),
        }
    }
}

/// Runs the body of an exported function.
pub fn checked(body: impl FnOnce() -> Checked<()>) -> c_int {
    guarded_as(body)
}

/// Runs an operation to its end.
pub fn wait<T>(body: impl AsyncFnOnce(&Context) -> Checked<T>) -> Checked<T> {
    library::wait(body)?
}

/// As [`crate::boundary::run`].
pub fn run(ev: *mut daos_event_t, check: impl FnOnce() -> Checked<Start>) -> c_int {
    run_as(ev, check)
}

/// As [`crate::boundary::operation`].
pub fn operation<F, Fut>(body: F) -> Start
where
    F: FnOnce(Context) -> Fut + 'static,
    Fut: Future<Output = Checked<()>> + 'static,
{
    operation_as(body)
}
