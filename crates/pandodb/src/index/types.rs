//! The description of an index type: everything that the store needs to create or open an index without knowing its
//! type.
//!
//! The types themselves are listed in [`super::registry`].

use std::fmt;
use std::sync::Arc;

use super::spec::{OptionSpec, Settings};
use super::{Core, Index, RootRecord};
use crate::base::{BlockAddr, KeyCodec, Result, Seqno};
use crate::space::{BlockKind, Prefetch};

pub use super::spec::Mode;

/// The order of the keys in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The keys are in bytewise order. Ranges and scans are supported.
    Sorted,
    /// The keys are ordered by a hash. The index supports lookups, and a walk over all entries in an order that has no
    /// meaning for callers. The store refuses ranges of such a keyspace, except the range of all keys. The index must
    /// therefore apply a range tombstone that covers all keys.
    Hashed,
}

impl Order {
    /// The stored form of keys that has this order.
    pub fn codec(self) -> KeyCodec {
        match self {
            Order::Sorted => KeyCodec::Plain,
            Order::Hashed => KeyCodec::Hashed,
        }
    }
}

/// Creates an index without messages. The keyspace has no messages up to the given seqno, so the index counts as
/// containing every message up to this seqno.
pub type Create = fn(&Core, &Settings, Seqno) -> Result<Arc<dyn Index>>;
/// Opens the index that a checkpoint wrote; see [`Index::for_each_extent`].
pub type Open = fn(&Core, &Settings, &RootRecord, &mut Prefetch) -> Result<Arc<dyn Index>>;

/// A type of index.
pub struct IndexType {
    /// The name of the type in the catalogue, on the command line and in messages.
    pub name: &'static str,
    /// One sentence that helps to choose an index type.
    pub about: &'static str,
    /// The order of the keys in the index.
    pub order: Order,
    /// The modes that the type supports.
    pub modes: &'static [Mode],
    /// The incompatible feature bit that a store with such an index has. It is 0 for an index that every version
    /// supports.
    pub feature: u64,
    /// The options of the type.
    pub options: &'static [OptionSpec],
    /// Creates an empty index.
    pub create: Create,
    /// Opens an index from its root record.
    pub open: Open,
    /// The blocks that opening an index reads first. A caller that opens many indexes reads the first blocks of all
    /// indexes together.
    pub first_blocks: fn(&Core, &RootRecord) -> Vec<BlockAddr>,
    /// Describes a block of this structure as lines of text. The checksum of the block was not checked. Returns false
    /// if the block does not belong to this structure.
    pub describe_block: fn(BlockKind, &[u8], &mut String) -> bool,
}

/// The type of the index that holds a keyspace's data.
///
/// ```
/// use pandodb::IndexKind;
/// assert!(IndexKind::all().any(|kind| kind == IndexKind::default()));
/// assert_eq!(IndexKind::named("stbe")?, IndexKind::default());
/// let error = IndexKind::named("stbi").unwrap_err();
/// assert!(error.to_string().contains("`stbi`"), "{error}");
/// # Ok::<(), pandodb::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct IndexKind(&'static IndexType);

impl IndexKind {
    /// The name of the type in the catalogue and on the command line.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The purpose for which the structure is suited, in one sentence.
    pub fn about(self) -> &'static str {
        self.0.about
    }

    /// The modes that the type supports.
    pub fn modes(self) -> &'static [Mode] {
        self.0.modes
    }

    /// The options of the type.
    pub fn options(self) -> &'static [OptionSpec] {
        self.0.options
    }

    /// The entry of the type in the registry.
    pub(crate) fn index_type(self) -> &'static IndexType {
        self.0
    }

    /// The kind of an index type.
    pub(crate) const fn of(index_type: &'static IndexType) -> IndexKind {
        IndexKind(index_type)
    }
}

impl IndexType {
    /// Opens the index that a root record describes, or creates an empty one if the record is empty.
    pub(crate) fn build(
        &self,
        core: &Core,
        settings: &Settings,
        record: &RootRecord,
        prefetch: &mut Prefetch,
    ) -> Result<Arc<dyn Index>> {
        let index = match record.bytes.is_empty() {
            true => (self.create)(core, settings, record.through),
            false => (self.open)(core, settings, record, prefetch),
        }?;
        assert_eq!(index.index_type().name, self.name, "a type builds its own indexes");
        assert_eq!(index.stored_through(), record.through, "an index holds what its root record says");
        Ok(index)
    }
}

impl PartialEq for IndexKind {
    fn eq(&self, other: &IndexKind) -> bool {
        self.name() == other.name()
    }
}

impl Eq for IndexKind {}

impl fmt::Debug for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexKind({})", self.name())
    }
}

impl fmt::Display for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
