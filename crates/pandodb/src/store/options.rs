//! [`Durability`] of a write, and [`KeyspaceOptions`] of a keyspace.

use std::sync::Arc;

#[cfg(doc)]
use crate::StoreBuilder;
use crate::base::{Error, MAX_INLINE_VALUE, Result};
use crate::index::IndexOptions;
use crate::resolve::{MergeOperator, builtin};

/// The kinds of failures that an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The write is buffered in memory and written later. If the process crashes, the last writes may be lost. The lost
    /// writes are always the newest ones.
    None,
    /// The write is in the system's page cache before it is acknowledged. The write survives a crash or kill of the
    /// process (`kill -9`), but not a crash of the machine.
    #[default]
    Buffered,
    /// The write is on stable storage before it is acknowledged. The write survives a power failure. Concurrent commits
    /// share one sync.
    Synced,
}

/// Options of a keyspace. They are stored in the catalogue when the keyspace is created.
///
/// ```
/// use pandodb::{AddI64, KeyspaceOptions};
/// let counters = KeyspaceOptions::new().merge(AddI64);
/// ```
#[derive(Clone, Default)]
pub struct KeyspaceOptions {
    /// If this is `None`, a new keyspace gets the default of the store, and an existing keyspace keeps its own index.
    pub(crate) index: Option<IndexOptions>,
    pub(crate) operator: Option<Arc<dyn MergeOperator>>,
    /// If this is `None`, a new keyspace gets [`BLOB_THRESHOLD`], and an existing keyspace keeps its own threshold.
    pub(crate) blob_threshold: Option<usize>,
}

/// The default threshold, in bytes, above which values are stored in extents of their own.
pub(crate) const BLOB_THRESHOLD: usize = 2 << 10;
const _: () = assert!(BLOB_THRESHOLD <= MAX_INLINE_VALUE, "values up to the threshold are stored inline");

impl std::fmt::Debug for KeyspaceOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyspaceOptions")
            .field("index", &self.index)
            .field("operator", &self.operator.as_ref().map(|operator| operator.name()))
            .field("blob_threshold", &self.blob_threshold)
            .finish()
    }
}

impl KeyspaceOptions {
    /// Returns the defaults: the store's index ([`StoreBuilder::index`]), no merge operator, values over 2 KiB stored
    /// separately.
    pub fn new() -> KeyspaceOptions {
        KeyspaceOptions::default()
    }

    /// Sets the index and its options: a builder such as [`StbeOptions`](crate::StbeOptions), an
    /// [`IndexKind`](crate::IndexKind), or parsed [`IndexOptions`]. Options that are not set get the defaults of the
    /// store.
    ///
    /// ```
    /// use pandodb::{IndexOptions, KeyspaceOptions};
    /// let options = KeyspaceOptions::new().index("stbe:fanout=16".parse::<IndexOptions>()?);
    /// # Ok::<(), pandodb::Error>(())
    /// ```
    pub fn index(mut self, index: impl Into<IndexOptions>) -> Self {
        self.index = Some(index.into());
        self
    }

    /// Sets the merge operator of the keyspace. An operator of the application must also be registered with
    /// [`StoreBuilder::operator`] at each later opening of the store.
    pub fn merge(mut self, operator: impl MergeOperator) -> Self {
        self.operator = Some(Arc::new(operator));
        self
    }

    /// Sets a built-in merge operator by its name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no built-in operator with this name.
    pub fn merge_named(mut self, name: &str) -> Result<Self> {
        let operator = builtin(name).ok_or_else(|| {
            Error::invalid(format!(
                "no built-in operator `{name}`; use one of {}",
                crate::resolve::BUILTIN_NAMES.join(", ")
            ))
        })?;
        assert_eq!(operator.name(), name, "a built-in operator is found by its name");
        self.operator = Some(operator);
        Ok(self)
    }

    /// Sets the size in bytes above which values are stored outside the index. Compactions do not copy such values, but
    /// reading one that is not cached takes an additional read. The default is 2 KiB; values above 64 KiB are always
    /// stored outside. Values up to eight times the threshold pass through the log and the memtable, and are written to
    /// pages of their own in the background; longer values are written to disk before their commit. A value stays inside
    /// the index if more than a quarter of its pages would be padding, for example a value of 4,100 bytes. A
    /// keyspace keeps the threshold with which it was created. Opening it with another threshold fails, and opening it
    /// without a threshold uses the stored one.
    pub fn blob_threshold(mut self, bytes: usize) -> Self {
        self.blob_threshold = Some(bytes.min(MAX_INLINE_VALUE));
        self
    }
}
