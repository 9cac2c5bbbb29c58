//! One error type, by what the caller can do about it.
//!
//! Every message says what failed, where, and what to do next. An error is returned or handled, never logged and
//! returned. What comes from disk, network or user is an error; our own mistakes are assertions.

use std::{fmt, io};

/// The result of everything that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, grouped by what the caller can do.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Error {
    /// The operating system refused an operation. Writes: the store is poisoned from then on; reopen it.
    Io {
        /// The operation: `read`, `write`, `sync`, `open`, …
        op: &'static str,
        /// The file's name inside the store.
        file: String,
        /// The byte offset, where the operation has one.
        offset: Option<u64>,
        /// The kind of the system's error.
        kind: io::ErrorKind,
        /// The system's own words.
        message: String,
    },
    /// Bytes on disk are not what was written. Other ranges stay readable; restore from a backup or salvage.
    Corruption {
        /// The file's name inside the store; empty until a layer that knows it adds it.
        file: String,
        /// The byte offset in that file (or in the structure named by `what` while `file` is empty).
        offset: u64,
        /// The structure: `leaf block`, `superblock`, `log record`, …
        what: &'static str,
        /// What was found.
        detail: String,
    },
    /// An earlier write or sync failed: the store answers reads and refuses writes. Reopen it to recover.
    Poisoned {
        /// The first failure, in words.
        first: String,
    },
    /// The write or the sync of this commit's part of the log failed, or that of a commit before it: this one is not visible,
    /// and may or may not be there after a reopening. The store is poisoned.
    Indeterminate {
        /// The failure, in words.
        first: String,
    },
    /// The disk is full. Nothing of the write was kept; deletes and reads work; free space or delete, then try again.
    DiskFull {
        /// What wanted space.
        op: &'static str,
    },
    /// Another process (or another handle of this one) has the store open.
    Locked {
        /// The store's directory.
        path: String,
    },
    /// The directory is not a store, or not one that this version can open.
    NotAStore {
        /// The store's directory.
        path: String,
        /// Why not.
        detail: String,
    },
    /// An argument is out of bounds or makes no sense. Nothing was done.
    InvalidArgument {
        /// Which argument, and what it must be.
        detail: String,
    },
    /// This index, keyspace or build does not offer the operation.
    Unsupported {
        /// The operation and who lacks it.
        detail: String,
    },
    /// The keyspace folds merges with an operator that was not registered when the store was opened.
    OperatorMissing {
        /// The keyspace's name.
        keyspace: String,
        /// The operator's name and version, as stored.
        operator: String,
    },
    /// A merge operator panicked or broke its contract while folding a key.
    OperatorFailed {
        /// The operator's name.
        operator: String,
        /// What happened.
        detail: String,
    },
    /// There is no such keyspace, or it was dropped.
    NoKeyspace {
        /// The keyspace's name.
        name: String,
    },
    /// The store was opened for reading only.
    ReadOnly,
}

impl Error {
    /// Wraps an error of the operating system.
    pub fn io(op: &'static str, file: &str, offset: Option<u64>, source: &io::Error) -> Error {
        if source.kind() == io::ErrorKind::StorageFull {
            return Error::DiskFull { op };
        }
        Error::Io { op, file: file.to_owned(), offset, kind: source.kind(), message: source.to_string() }
    }

    /// Damage found in a `what` at `offset`; add the file with [`Error::in_file`] where it is known.
    pub fn corruption(what: &'static str, offset: u64, detail: impl Into<String>) -> Error {
        Error::Corruption { file: String::new(), offset, what, detail: detail.into() }
    }

    /// An argument that cannot be accepted.
    pub fn invalid(detail: impl Into<String>) -> Error {
        Error::InvalidArgument { detail: detail.into() }
    }

    /// Names the file of a corruption that does not name one yet, and shifts its offset by `base`.
    #[must_use]
    pub fn in_file(self, name: &str, base: u64) -> Error {
        match self {
            Error::Corruption { file, offset, what, detail } if file.is_empty() => {
                Error::Corruption { file: name.to_owned(), offset: base + offset, what, detail }
            }
            other => other,
        }
    }

    /// Whether the error says that stored bytes cannot be had: they are damaged, or the device refuses to read them.
    pub fn is_damage(&self) -> bool {
        self.is_corruption() || matches!(self, Error::Io { op: "read", .. })
    }

    /// Whether the error says that stored bytes are damaged.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corruption { .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { op, file, offset, message, .. } => {
                write!(f, "{op} of `{file}`")?;
                if let Some(offset) = offset {
                    write!(f, " at byte {offset}")?;
                }
                write!(f, " failed: {message}; check the device, then reopen the store")
            }
            Error::Corruption { file, offset, what, detail } => {
                let file = if file.is_empty() { "memory" } else { file };
                write!(
                    f,
                    "corruption: {what} in `{file}` at byte {offset}: {detail}; restore from a backup, or salvage; what does not need this block stays readable"
                )
            }
            Error::Poisoned { first } => {
                write!(f, "the store refuses writes since an earlier failure ({first}); reopen it to recover")
            }
            Error::Indeterminate { first } => {
                write!(f, "the commit may or may not survive a crash: {first}; reopen the store and read it back")
            }
            Error::DiskFull { op } => {
                write!(f, "the disk is full ({op}); nothing was kept of this write: free space or delete, then retry")
            }
            Error::Locked { path } => write!(f, "`{path}` is open elsewhere; close the other opener first"),
            Error::NotAStore { path, detail } => {
                write!(f, "`{path}` is not a store that can be opened: {detail}")
            }
            Error::InvalidArgument { detail } => write!(f, "invalid argument: {detail}"),
            Error::Unsupported { detail } => write!(f, "unsupported: {detail}"),
            Error::OperatorMissing { keyspace, operator } => write!(
                f,
                "keyspace `{keyspace}` merges with `{operator}`, which is not registered; register it when opening the store"
            ),
            Error::OperatorFailed { operator, detail } => {
                write!(f, "merge operator `{operator}` failed: {detail}; fix the operator and retry")
            }
            Error::NoKeyspace { name } => write!(f, "there is no keyspace `{name}`; list them with `keyspaces`"),
            Error::ReadOnly => write!(f, "the store is open for reading only; open it for writing"),
        }
    }
}

impl std::error::Error for Error {}
