//! [`IoCause`]: the operating system's error that caused an [`Error::Io`](super::Error::Io), in a form that can be
//! cloned.

use std::sync::Arc;
use std::{fmt, io, ops::Deref};

/// The operating system's error that caused an [`Error::Io`](crate::Error::Io): an [`io::Error`] that can be cloned,
/// with its kind and its OS error number. Two causes are equal if their kind, number and text are equal.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("missing").join("s");
/// use std::error::Error;
/// let error = pandodb::Store::open(path).unwrap_err();
/// if let pandodb::Error::Io { source, .. } = &error {
///     println!("{:?} {:?}", source.kind(), source.raw_os_error());
/// }
/// # let _ = error.source();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct IoCause(Arc<io::Error>);

impl IoCause {
    /// Copies `error`. The copy of an OS error is made from its number; the copy of any other error is made from its
    /// kind and text.
    pub(crate) fn of(error: &io::Error) -> IoCause {
        let copy = match error.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None if error.get_ref().is_none() => error.kind().into(),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        debug_assert_eq!(copy.kind(), error.kind(), "callers decide by the kind of the original error");
        IoCause(Arc::new(copy))
    }
}

impl From<io::Error> for IoCause {
    fn from(error: io::Error) -> IoCause {
        IoCause(Arc::new(error))
    }
}

impl Deref for IoCause {
    type Target = io::Error;

    fn deref(&self) -> &io::Error {
        &self.0
    }
}

impl PartialEq for IoCause {
    fn eq(&self, other: &IoCause) -> bool {
        let alike = (self.kind(), self.raw_os_error()) == (other.kind(), other.raw_os_error());
        alike && self.to_string() == other.to_string()
    }
}

impl Eq for IoCause {}

impl fmt::Display for IoCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for IoCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
