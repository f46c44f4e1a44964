//! Why a question to the index has no answer.

use crate::format::codec::Malformed;
use crate::index::tree::Missing;
use weir_media::MediaError;

/// Where on the device something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Name of the device.
    pub device: String,
    /// What should be there.
    pub what: &'static str,
    /// Byte offset.
    pub offset: u64,
}

impl core::fmt::Display for Location {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} at byte {} of {}", self.what, self.offset, self.device)
    }
}

/// Why a query has no answer.
#[derive(Debug)]
pub(crate) enum Halt<E> {
    /// Nodes have to be read first.
    Missing(Missing),
    /// It has failed.
    Failed(E),
}

/// Halt of a query that fails only when the index is damaged.
pub(crate) type Fault = Halt<Malformed>;

impl<E> From<Missing> for Halt<E> {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl From<Malformed> for Fault {
    fn from(malformed: Malformed) -> Self {
        Self::Failed(malformed)
    }
}

impl<E> Halt<E> {
    /// Converts the failure.
    pub(crate) fn map<T>(self, convert: impl FnOnce(E) -> T) -> Halt<T> {
        match self {
            Self::Missing(missing) => Halt::Missing(missing),
            Self::Failed(error) => Halt::Failed(convert(error)),
        }
    }
}

/// An index node can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PageError {
    #[error("{location} is damaged: {reason}")]
    Corrupt { location: Location, reason: &'static str },
    #[error(transparent)]
    Media(#[from] MediaError),
}

impl From<PageError> for String {
    fn from(error: PageError) -> Self {
        error.to_string()
    }
}
