//! Errors of file-system operations, and their errno.

/// A failed file-system operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Nothing of that name (ENOENT).
    #[error("\"{0}\": no such file or directory")]
    NotFound(String),
    /// The name is taken (EEXIST).
    #[error("\"{0}\" exists")]
    Exists(String),
    /// A directory was needed (ENOTDIR).
    #[error("\"{0}\" is not a directory")]
    NotDirectory(String),
    /// A directory was not wanted (EISDIR).
    #[error("\"{0}\" is a directory")]
    IsDirectory(String),
    /// The directory has entries (ENOTEMPTY).
    #[error("directory \"{0}\" is not empty")]
    NotEmpty(String),
    /// A name longer than [`crate::NAME_MAX`], or a link target longer than [`crate::LINK_TARGET_MAX`]
    /// (ENAMETOOLONG).
    #[error("a name of {len} bytes is longer than the limit of {max}")]
    NameTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Arguments that make no sense (EINVAL).
    #[error("{0}")]
    Invalid(String),
    /// The entry was removed, or names another file now (ESTALE).
    #[error("\"{0}\" was removed or replaced; look it up again")]
    Stale(String),
    /// No extended attribute of that name (ENODATA).
    #[error("there is no extended attribute \"{0}\"")]
    NoAttribute(String),
    /// An extended attribute's name or value is too long (ERANGE, E2BIG).
    #[error("an extended attribute's {what} of {len} bytes is longer than the limit of {max}")]
    AttributeTooLong {
        /// Name or value.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A file would end behind [`crate::SIZE_MAX`] (EFBIG).
    #[error("no file can have more than {max} bytes", max = crate::SIZE_MAX)]
    TooLarge,
    /// More is asked for than there is room for (ENOSPC).
    #[error("{needed} bytes are asked for, and {free} are free")]
    NoRoom {
        /// Bytes that holes need.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// What nobody may do, or not this caller (EPERM).
    #[error("{0}")]
    NotPermitted(String),
    /// An inode has as many names as can be counted (EMLINK).
    #[error("no inode can have more than {max} names", max = u32::MAX)]
    TooManyNames,
    /// The mount does not allow changes (EROFS).
    #[error("the file system is mounted read-only")]
    ReadOnly,
    /// Too many symbolic links on the way (ELOOP).
    #[error("\"{0}\" leads through more than {max} symbolic links", max = crate::path::LINKS_MAX)]
    TooManyLinks(String),
    /// The container has another type (EINVAL).
    #[error("container {0} is not a POSIX one; create it with type POSIX")]
    NotPosix(String),
    /// What is stored can't be understood (EIO).
    #[error("{object}: {reason}; was it written by a newer version?")]
    Corrupt {
        /// What it is about.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An object operation failed.
    #[error(transparent)]
    Client(#[from] weir_client::Error),
}

impl Error {
    /// The errno that stands for the error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotPermitted(_) => 1,
            Self::NotFound(_) => 2,
            Self::Exists(_) => 17,
            Self::NotDirectory(_) => 20,
            Self::IsDirectory(_) => 21,
            Self::NotEmpty(_) => 39,
            Self::NameTooLong { .. } => 36,
            Self::Invalid(_) | Self::NotPosix(_) => 22,
            Self::Stale(_) => 116,
            Self::NoAttribute(_) => 61,
            Self::AttributeTooLong { what: "name", .. } => 34,
            Self::AttributeTooLong { .. } => 7,
            Self::TooLarge => 27,
            Self::NoRoom { .. } => 28,
            Self::ReadOnly => 30,
            Self::TooManyNames => 31,
            Self::TooManyLinks(_) => 40,
            Self::Corrupt { .. } => 5,
            Self::Client(error) => error.errno(),
        }
    }
}
