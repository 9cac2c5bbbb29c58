//! The choices of users for a write and for a keyspace: [`Durability`], [`KeyspaceOptions`].

use std::sync::Arc;

#[cfg(doc)]
use crate::StoreBuilder;
use crate::base::{Error, MAX_INLINE_VALUE, Result};
use crate::index::IndexOptions;
use crate::resolve::{MergeOperator, builtin};

/// Which failures an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Logged lazily: a crash of the process may lose the last writes, never one before another.
    None,
    /// In the system's page cache before the acknowledgement: survives the death of the process (`kill -9`), not of the
    /// machine.
    #[default]
    Buffered,
    /// On stable storage before the acknowledgement: survives a power cut. Concurrent commits share a sync.
    Synced,
}

/// Options of a keyspace, stored in the catalogue when it is created.
///
/// ```
/// use pandodb::{AddI64, KeyspaceOptions};
/// let counters = KeyspaceOptions::new().merge(AddI64);
/// ```
#[derive(Clone, Default)]
pub struct KeyspaceOptions {
    /// `None`: the store's default for a new keyspace, and whatever an existing one has.
    pub(crate) index: Option<IndexOptions>,
    pub(crate) operator: Option<Arc<dyn MergeOperator>>,
    /// `None`: [`BLOB_THRESHOLD`] for a new keyspace, and whatever an existing one has.
    pub(crate) blob_threshold: Option<usize>,
}

/// The threshold of a keyspace that was created without naming one.
pub(crate) const BLOB_THRESHOLD: usize = 2 << 10;

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
    /// The defaults: the store's index ([`StoreBuilder::index`]), no merge operator, values over 2 KiB stored apart.
    pub fn new() -> KeyspaceOptions {
        KeyspaceOptions::default()
    }

    /// The structure that holds the data, with options of its own: a builder such as [`StbeOptions`](crate::StbeOptions), an
    /// [`IndexKind`](crate::IndexKind), or options that were read from text. What is left open takes the defaults of the store.
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

    /// The operator that merges fold with. One of your own must also be registered with [`StoreBuilder::operator`] when the
    /// store is opened again.
    pub fn merge(mut self, operator: impl MergeOperator) -> Self {
        self.operator = Some(Arc::new(operator));
        self
    }

    /// A built-in operator by its name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is none of that name.
    pub fn merge_named(mut self, name: &str) -> Result<Self> {
        let operator = builtin(name).ok_or_else(|| {
            Error::invalid(format!("no operator `{name}`; there are {}", crate::resolve::BUILTIN_NAMES.join(", ")))
        })?;
        self.operator = Some(operator);
        Ok(self)
    }

    /// Values longer than this are stored outside the tree: compactions do not copy them, and reading one takes one more read.
    /// The default is 2 KiB; at most 64 KiB, which a larger number means, too. A keyspace keeps the threshold that it was
    /// created with: opening it with another one is refused, and with none takes it as it is.
    pub fn blob_threshold(mut self, bytes: usize) -> Self {
        self.blob_threshold = Some(bytes.min(MAX_INLINE_VALUE));
        self
    }
}
