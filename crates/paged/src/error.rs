//! The errors of this crate.

use std::fmt;

/// The result of an operation on a page buffer or a tree.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed.
#[derive(Debug)]
pub enum Error {
    /// The file could not be created, read or written. A tree that has returned this error must be dropped: an upsert
    /// may be half done.
    Io {
        /// What was attempted, with the number of the block.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// An earlier read or write of the file failed, so the pages in memory are not reliable any more.
    Failed,
    /// The sizes that were asked for do not make a working tree.
    Layout(String),
    /// A check of [`verify`](crate::Tree::verify) failed; the text names the page and the rule.
    Broken(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { what, source } => write!(f, "cannot {what}: {source}; drop the tree and build it again"),
            Error::Failed => {
                f.write_str("an earlier read or write of the file failed; drop the tree and build it again")
            }
            Error::Layout(text) => write!(f, "these sizes do not make a tree: {text}"),
            Error::Broken(text) => write!(f, "the tree breaks a rule of its structure: {text}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl Error {
    /// An I/O error with a description.
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Error {
        Error::Io { what: what.into(), source }
    }
}
