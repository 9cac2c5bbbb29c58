//! The one error type, grouped by what the caller can do about an error.
//!
//! Every message says what failed, where, and what to do next. A function either returns an error or handles it. No
//! function logs an error and also returns it. Invalid input from disk, network or user leads to an error; a mistake in
//! this code leads to an assertion failure.

use std::{fmt, io};

use super::cause::IoCause;
use super::range::KeyRange;

/// The result type of every operation that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error, grouped by what the caller can do.
///
/// | question | meaning | what to do |
/// | --- | --- | --- |
/// | [`Error::is_retryable`] | nothing was done, and the same call may succeed later | free space, or wait for the other opener; call again |
/// | [`Error::must_reopen`] | the store refuses writes after a failure, or was closed | close the store, open it again, read back indeterminate commits |
/// | [`Error::is_damage`] | stored bytes cannot be read | other keys stay readable; restore a backup, or [`salvage`](crate::check::salvage) |
/// | none of them | the call was wrong, or the store lacks something that the call needs | correct the program |
///
/// `Display` says what failed, where, and what to do next, in one line that includes the text of
/// [`source`](std::error::Error::source). Errors are equal if their fields are equal.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("s");
/// use pandodb::{Error, Store};
/// let store = Store::open(&path)?;
/// let error = Store::open(&path).unwrap_err();
/// assert!(matches!(error, Error::Locked { .. }) && error.is_retryable());
/// assert_eq!(store.drop_keyspace("none"), Err(Error::NoKeyspace { name: "none".into() }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The operating system refused an operation. If the operation was a write or a sync, the store is poisoned from
    /// then on. Reopen the store.
    Io {
        /// The operation: `read`, `write`, `sync`, `open`, …
        op: &'static str,
        /// The file's name inside the store.
        file: String,
        /// The byte offset, if the operation has one.
        offset: Option<u64>,
        /// The kind of the system's error.
        kind: io::ErrorKind,
        /// The system's error: its number and its text.
        source: IoCause,
    },
    /// Bytes on disk differ from the written bytes. Other ranges stay readable; restore from a backup or salvage.
    Corruption {
        /// The file's name inside the store; empty until a layer that knows the name adds it.
        file: String,
        /// The byte offset in that file; while `file` is empty, the byte offset in the structure named by `what`.
        offset: u64,
        /// The structure: `leaf block`, `superblock`, `log record`, …
        what: &'static str,
        /// The difference from the written bytes.
        detail: String,
    },
    /// An earlier write or sync failed. The store serves reads and refuses writes. Reopen the store to recover.
    Poisoned {
        /// The text of the first failure.
        first: String,
    },
    /// The log record of this commit, or the record of an earlier commit, could not be written or synced. This commit
    /// is not visible. After the store is reopened, the commit may or may not be present. The store is poisoned.
    Indeterminate {
        /// The text of the failure.
        first: String,
    },
    /// The disk is full. No part of the write was kept; deletes and reads work. Free space or delete keys, then retry.
    DiskFull {
        /// The operation that needed space.
        op: &'static str,
    },
    /// The disk has too little space for a new store with these options. Nothing was created. Use a smaller memory
    /// budget, memtable or log segment, or another disk.
    DiskTooSmall {
        /// The store's directory.
        path: String,
        /// Bytes that must be free.
        needed: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// A structure of the store would become so large that the store could not be opened again. No part of the
    /// structure was written, and the store continues to work. If the structure is the catalogue, drop keyspaces, or
    /// create the new ones in another store.
    TooLarge {
        /// The structure: `catalogue`, or the block of an index.
        what: &'static str,
        /// The bytes that the structure would occupy.
        bytes: u64,
        /// The largest size, in bytes, with which the store can be opened.
        limit: u64,
    },
    /// A transaction was not committed, because another commit has changed what the transaction depends on. Nothing was
    /// written. Run the transaction again from its beginning; [`Store::transact`](crate::Store::transact) does so.
    Conflict {
        /// The keyspace's name.
        keyspace: String,
        /// The first key of the range that was read, or the key.
        from: Vec<u8>,
        /// The end of the range, which is not part of it; empty if the range has no end.
        to: Vec<u8>,
        /// The number of times that the transaction was tried.
        attempts: u32,
    },
    /// The open transactions of the store would have more bytes of writes and read keys than
    /// [`StoreBuilder::transaction_bytes`](crate::StoreBuilder::transaction_bytes) allows, or one transaction would have
    /// more bytes of writes than [`MAX_BATCH`](crate::MAX_BATCH). A write was not added to its transaction. The
    /// transaction can still be committed.
    TransactionTooLarge {
        /// The bytes that all open transactions, or this one, would have.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The process or the system has too many open files, so a write could not create a file (usually the next segment
    /// of the log). No part of the write was kept, and the store continues to work. Close some files, or raise the
    /// limit, then retry.
    TooManyFiles {
        /// The operation.
        op: &'static str,
        /// The file's name inside the store, or the store's path.
        file: String,
        /// The owner of the limit: `the process` or `the system`.
        limit: &'static str,
    },
    /// Another process, or another handle of this process, has the store open.
    Locked {
        /// The store's directory.
        path: String,
    },
    /// The directory is not a store, or is a store that this version cannot open.
    NotAStore {
        /// The store's directory.
        path: String,
        /// The reason.
        detail: String,
    },
    /// An argument is out of bounds or makes no sense. The call did nothing.
    InvalidArgument {
        /// The argument, and its valid values.
        detail: String,
    },
    /// This build has no index of that name.
    UnknownIndex {
        /// The name.
        index: String,
        /// The keyspace that is stored in this index, if the index name was read from a store.
        keyspace: Option<String>,
        /// The names of the available indexes.
        known: String,
    },
    /// This index, keyspace or build does not support the operation.
    Unsupported {
        /// The operation, and the index, keyspace or build that lacks it.
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
        /// A description of the panic or of the broken contract.
        detail: String,
    },
    /// No keyspace with this name exists, or the keyspace was dropped.
    NoKeyspace {
        /// The keyspace's name.
        name: String,
    },
    /// The store was opened for reading only.
    ReadOnly,
    /// The handle belongs to a store that a parent process opened. A forked child cannot use the handle. Open the store
    /// in the child after the parent has closed it, or fork before the store is opened.
    Forked,
    /// A merge operator called into a store. A merge operator may use only its arguments
    /// ([`MergeOperator`](crate::MergeOperator)).
    Reentrant,
    /// The store was closed: every use of its handles, iterators and snapshots fails with this error. Open the store
    /// again.
    Closed,
}

impl Error {
    /// Wraps an error of the operating system as [`Error::DiskFull`], [`Error::TooManyFiles`] or, otherwise,
    /// [`Error::Io`].
    #[doc(hidden)]
    pub fn io(op: &'static str, file: &str, offset: Option<u64>, source: &io::Error) -> Error {
        if source.kind() == io::ErrorKind::StorageFull {
            return Error::DiskFull { op };
        }
        let limit = match rustix::io::Errno::from_io_error(source) {
            Some(rustix::io::Errno::MFILE) => Some("the process"),
            Some(rustix::io::Errno::NFILE) => Some("the system"),
            _ => None,
        };
        if let Some(limit) = limit {
            return Error::TooManyFiles { op, file: file.to_owned(), limit };
        }
        Error::final_io(op, file, offset, source)
    }

    /// Wraps an error of the operating system as [`Error::Io`], whatever its kind. Use this function for operations on
    /// data that was already accepted, because a full disk is not retryable for such data.
    pub(crate) fn final_io(op: &'static str, file: &str, offset: Option<u64>, source: &io::Error) -> Error {
        Error::Io { op, file: file.to_owned(), offset, kind: source.kind(), source: IoCause::of(source) }
    }

    /// An error for damage that was found at `offset` in a structure named `what`. Add the file with [`Error::in_file`]
    /// where its name is known.
    #[doc(hidden)]
    pub fn corruption(what: &'static str, offset: u64, detail: impl Into<String>) -> Error {
        Error::Corruption { file: String::new(), offset, what, detail: detail.into() }
    }

    /// An argument that cannot be accepted.
    #[doc(hidden)]
    pub fn invalid(detail: impl Into<String>) -> Error {
        Error::InvalidArgument { detail: detail.into() }
    }

    /// If this error is an [`Error::Corruption`] whose file is not known yet, sets the file to `name` and adds `base`
    /// to the offset. Other errors stay as they are.
    #[doc(hidden)]
    #[must_use]
    pub fn in_file(self, name: &str, base: u64) -> Error {
        match self {
            Error::Corruption { file, offset, what, detail } if file.is_empty() => {
                debug_assert!(!name.is_empty(), "an empty name means that no layer has named the file yet");
                Error::Corruption { file: name.to_owned(), offset: base + offset, what, detail }
            }
            other => other,
        }
    }

    /// Whether the system had no space or no file descriptor for a new file or new data. No part of this data was
    /// written, and the store continues to work.
    pub(crate) fn is_refusal(&self) -> bool {
        let refused = matches!(self, Error::DiskFull { .. } | Error::TooManyFiles { .. });
        debug_assert!(!refused || self.is_retryable(), "a refused write may be retried");
        refused
    }

    /// Whether the call did nothing and may succeed later. After a [`Conflict`](Error::Conflict), run the whole
    /// transaction again at once. After the other errors, an immediate retry does not help: free space or file
    /// descriptors, or wait until the other opener has closed the store.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::Conflict { .. } | Error::DiskFull { .. } | Error::TooManyFiles { .. } | Error::Locked { .. }
        )
    }

    /// Whether the store must be reopened, because it refuses writes after a failure, or because it was closed. `false`
    /// for the [`Error::Io`] of the failed write or sync itself; the next write returns [`Error::Poisoned`].
    pub fn must_reopen(&self) -> bool {
        matches!(self, Error::Poisoned { .. } | Error::Indeterminate { .. } | Error::Closed)
    }

    /// Whether stored bytes cannot be read: they are damaged, or the device refuses to read them.
    pub fn is_damage(&self) -> bool {
        let damage = self.is_corruption() || matches!(self, Error::Io { op: "read", .. });
        debug_assert!(!damage || !self.is_retryable() && !self.must_reopen(), "an error belongs to one group at most");
        damage
    }

    /// Whether stored bytes are damaged.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corruption { .. })
    }
}

impl Error {
    /// A fixed name for the kind of error, for logs, metrics and programs in other languages. No later version changes
    /// the name.
    ///
    /// ```
    /// assert_eq!(pandodb::Error::Closed.code(), "closed");
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Error::Io { .. } => "io",
            Error::Corruption { .. } => "corruption",
            Error::Poisoned { .. } => "poisoned",
            Error::Indeterminate { .. } => "indeterminate",
            Error::DiskFull { .. } => "disk_full",
            Error::DiskTooSmall { .. } => "disk_too_small",
            Error::TooLarge { .. } => "too_large",
            Error::Conflict { .. } => "conflict",
            Error::TransactionTooLarge { .. } => "transaction_too_large",
            Error::TooManyFiles { .. } => "too_many_files",
            Error::Locked { .. } => "locked",
            Error::NotAStore { .. } => "not_a_store",
            Error::InvalidArgument { .. } => "invalid_argument",
            Error::UnknownIndex { .. } => "unknown_index",
            Error::Unsupported { .. } => "unsupported",
            Error::OperatorMissing { .. } => "operator_missing",
            Error::OperatorFailed { .. } => "operator_failed",
            Error::NoKeyspace { .. } => "no_keyspace",
            Error::ReadOnly => "read_only",
            Error::Forked => "forked",
            Error::Reentrant => "reentrant",
            Error::Closed => "closed",
        }
    }

    /// The failure and its object, without advice. Use it for lists of errors that share the same advice.
    ///
    /// ```
    /// let error = pandodb::Error::Closed;
    /// assert_eq!(format!("{}; {}", error.what(), error.advice().unwrap()), error.to_string());
    /// ```
    pub fn what(&self) -> String {
        match self {
            Error::Io { op, file, offset, source, .. } => {
                let at = offset.map_or(String::new(), |offset| format!(" at byte {offset}"));
                format!("{op} of `{file}`{at} failed: {source}")
            }
            Error::Corruption { file, offset, what, detail } => {
                let file = if file.is_empty() { "memory" } else { file };
                format!("corruption: {what} in `{file}` at byte {offset}: {detail}")
            }
            Error::Poisoned { first } => format!("the store refuses writes since an earlier failure ({first})"),
            Error::Indeterminate { first } => format!("the commit may or may not survive a crash: {first}"),
            Error::DiskFull { op } => format!("the disk is full ({op}): nothing of this write was kept"),
            Error::Conflict { keyspace, from, to, attempts } => {
                let tries = if *attempts == 1 { String::new() } else { format!(" (tried {attempts} times)") };
                let keys = KeyRange::new(from.as_slice(), to.as_slice());
                let place = match (from.is_empty(), to.is_empty()) {
                    _ if keys == KeyRange::point(from) => format!("key `{}`", from.escape_ascii()),
                    (true, true) => "a key".to_owned(),
                    (false, true) => format!("a key from `{}` on", from.escape_ascii()),
                    (true, false) => format!("a key before `{}`", to.escape_ascii()),
                    (false, false) => format!("a key from `{}` to `{}`", from.escape_ascii(), to.escape_ascii()),
                };
                format!(
                    "another commit has changed {place} of keyspace `{keyspace}`, and the transaction depends on it{tries}"
                )
            }
            Error::TransactionTooLarge { bytes, limit } => {
                format!("transactions would have {bytes} bytes of writes and read keys; {limit} are allowed")
            }
            Error::TooManyFiles { op, file, limit } => {
                format!("{op} of `{file}` was refused: {limit} has too many open files; nothing was kept of this write")
            }
            Error::DiskTooSmall { path, needed, available } => format!(
                "the disk under `{path}` has {available} bytes free, a store with these options needs {needed}; \
                 nothing was created"
            ),
            Error::TooLarge { what, bytes, limit } => format!(
                "the {what} would take up to {bytes} bytes, and an opening accepts at most {limit}; nothing was written"
            ),
            Error::Locked { path } => format!("`{path}` is open elsewhere"),
            Error::NotAStore { path, detail } => format!("`{path}` is not a store that can be opened: {detail}"),
            Error::InvalidArgument { detail } => format!("invalid argument: {detail}"),
            Error::UnknownIndex { index, keyspace: Some(keyspace), known } => {
                format!("keyspace `{keyspace}` is stored in index `{index}`, which this version lacks: it has {known}")
            }
            Error::UnknownIndex { index, keyspace: None, known } => {
                format!("there is no index `{index}`; this version has {known}")
            }
            Error::Unsupported { detail } => format!("unsupported: {detail}"),
            Error::OperatorMissing { keyspace, operator } => {
                format!("keyspace `{keyspace}` merges with `{operator}`, which is not registered")
            }
            Error::OperatorFailed { operator, detail } => format!("merge operator `{operator}` failed: {detail}"),
            Error::NoKeyspace { name } => format!("there is no keyspace `{name}`"),
            Error::ReadOnly => "the store is open for reading only".into(),
            Error::Forked => "the store was opened by a process from which this one was forked".into(),
            Error::Reentrant => "a merge operator called into a store while it was folding a key".into(),
            Error::Closed => "the store was closed, and its handles, iterators and snapshots with it".into(),
        }
    }

    /// What the user can do; `None` if the text of [`Error::what`] includes the advice.
    pub fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Error::Io { op, kind, .. } => advice_on_io(op, *kind),
            Error::Corruption { .. } => {
                "restore from a backup, or salvage; keys that do not need this block stay readable"
            }
            Error::Poisoned { .. } => "reopen it to recover",
            Error::Indeterminate { .. } => "reopen the store and read it back",
            Error::DiskFull { .. } => {
                "delete keys or ranges, drop a keyspace, or make room outside the store, then retry"
            }
            Error::DiskTooSmall { .. } => "use a smaller memory budget, or another disk",
            Error::TooLarge { what: "catalogue", .. } => "drop keyspaces, or create them in another store",
            Error::TooLarge { .. } => "call `compact`, or open the store with a larger memory budget",
            Error::Conflict { .. } => "run the transaction again",
            Error::TransactionTooLarge { .. } => "split the transaction; if the limit is `transaction_bytes`, raise it",
            Error::TooManyFiles { .. } => "close some, or raise the limit (`ulimit -n`, `fs.file-max`), then retry",
            Error::Locked { .. } => "close the other opener first",
            Error::UnknownIndex { keyspace: Some(_), .. } => "open the store with the version that wrote it",
            Error::OperatorMissing { .. } => "register it when opening the store",
            Error::OperatorFailed { .. } => "fix the operator and retry",
            Error::NoKeyspace { .. } => "list them with `keyspaces`",
            Error::ReadOnly => "open it for writing",
            Error::Forked => "use it in the process that opened it, or close it there and open it here",
            Error::Reentrant => "an operator may use nothing but its arguments: take the call out of it",
            Error::Closed => "open it again",
            Error::NotAStore { .. }
            | Error::InvalidArgument { .. }
            | Error::UnknownIndex { .. }
            | Error::Unsupported { .. } => return None,
        })
    }
}

/// The advice after the system refused an operation. Some kinds of errors have advice of their own; the advice for all
/// other kinds is to check the device.
fn advice_on_io(op: &str, kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied => {
            "grant this process's user access to the file, or run as the file's owner; then reopen the store"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is mounted read-only: mount it for writing, or open the store with `read_only`"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space on the device, then reopen the store",
        io::ErrorKind::FileTooLarge => "raise the limit on the size of files (`ulimit -f`), then reopen the store",
        // These operations have written nothing yet, so the cause is the name, or a feature that the file system lacks.
        _ if matches!(op, "open" | "lock" | "list") && is_about_names(kind) => "name another path",
        _ => "check the device, then reopen the store",
    }
}

/// Whether the system refuses the name of a file, or the type of the file with that name.
fn is_about_names(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, Unsupported};
    matches!(kind, InvalidFilename | InvalidInput | IsADirectory | NotADirectory | NotFound | Unsupported)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        self.advice().map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_io_error_keeps_the_systems_error_as_its_source() {
        let denied = io::Error::from_raw_os_error(13);
        let error = Error::io("open", "data", None, &denied);
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>()).expect("there is a cause");
        assert_eq!((source.kind(), source.raw_os_error()), (io::ErrorKind::PermissionDenied, Some(13)));
        assert!(error.to_string().contains(&denied.to_string()));
        let ours = io::Error::other("by the simulator");
        for (cause, same) in [(&denied, true), (&ours, false), (&io::Error::from_raw_os_error(5), false)] {
            assert_eq!(Error::io("open", "data", None, cause) == error, same, "{cause}");
        }
        let again = Error::io("open", "data", None, &ours);
        assert_eq!(again.source().expect("there is a cause").to_string(), "by the simulator");
        assert_eq!(
            Error::io("open", "data", None, &io::ErrorKind::NotFound.into()).source().unwrap().to_string(),
            "entity not found"
        );
        assert!(Error::ReadOnly.source().is_none());
    }

    #[test]
    fn each_error_belongs_to_at_most_one_group() {
        let all = [
            (Error::DiskFull { op: "write" }, [true, false, false]),
            (Error::Locked { path: "s".into() }, [true, false, false]),
            (Error::Poisoned { first: "f".into() }, [false, true, false]),
            (Error::Indeterminate { first: "f".into() }, [false, true, false]),
            (Error::Closed, [false, true, false]),
            (Error::corruption("leaf block", 0, "d"), [false, false, true]),
            (Error::io("read", "data", Some(0), &io::Error::other("o")), [false, false, true]),
            (Error::io("write", "data", Some(0), &io::Error::from(io::ErrorKind::StorageFull)), [true, false, false]),
            (Error::io("write", "data", Some(0), &io::Error::other("o")), [false; 3]),
            (Error::invalid("i"), [false; 3]),
            (Error::ReadOnly, [false; 3]),
        ];
        for (error, want) in all {
            assert_eq!([error.is_retryable(), error.must_reopen(), error.is_damage()], want, "{error}");
        }
    }
}
