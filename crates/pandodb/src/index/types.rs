//! The registry of index types: the information that the store needs to create or open an index.
//!
//! ```text
//!   keyspace options ──▶ IndexOptions { type, mode, values } ──create──▶ log record, catalogue: name, mode, values
//!                                                                                  │
//!   IndexType::open ◀── Settings { mode, every value } ◀── IndexOptions::restore ◀─┘   opening, backup, salvage
//! ```
//!
//! 1. An index type has one line in [`TYPES`]: its [`IndexType`], a `static` next to its code.
//! 2. The store refers to indexes by [`IndexKind`] only. A name that is not in [`TYPES`] is [`Error::UnknownIndex`],
//!    before anything is written.
//! 3. Once a catalogue holds a keyspace of a type, the superblock has the type's feature bit: a version without the
//!    type refuses the store at its first block.
//!
//! Invariants, checked by a test below: names and feature bits are unique, and every default is a valid value.

use std::fmt;
use std::sync::Arc;

use super::options::{OptionSpec, Settings};
use super::{Core, Index, RootRecord};
use crate::base::{BlockAddr, Error, KeyCodec, Result, Seqno};
use crate::space::{BlockKind, Prefetch};

/// Every type of index; the first is the default.
#[cfg(not(test))]
pub static TYPES: [&IndexType; 2] = [&super::stbe::TYPE, &super::cola::TYPE];
/// As above, and an index in hash order for the unit tests of the store.
#[cfg(test)]
pub static TYPES: [&IndexType; 3] = [&super::stbe::TYPE, &super::cola::TYPE, &super::stub::TYPE];

/// The order of the keys in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Bytewise: supports ranges and scans.
    Sorted,
    /// By a hash: supports lookups, and a walk over all entries in an order that is useless to callers.
    Hashed,
}

impl Order {
    /// The stored form of keys that gives this order.
    pub fn codec(self) -> KeyCodec {
        match self {
            Order::Sorted => KeyCodec::Plain,
            Order::Hashed => KeyCodec::Hashed,
        }
    }
}

/// The variant of the structure. [`Mode::Product`] is for use; [`Mode::Paper`] is for experiments that compare with the
/// published design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The variant that is faster in our measurements.
    #[default]
    Product,
    /// The variant of the published design (see the [sources]). For `stbe`: tiered leaves, one compaction for each
    /// arrival in a node, a quotient filter for each run.
    ///
    /// [sources]: https://github.com/pandodb/pandodb/blob/main/docs/GLOSSARY.md
    Paper,
}

impl Mode {
    /// The name on the command line and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Product => "product",
            Mode::Paper => "paper",
        }
    }

    /// The mode of that name.
    pub fn from_name(name: &str) -> Option<Mode> {
        [Mode::Product, Mode::Paper].into_iter().find(|mode| mode.name() == name)
    }
}

/// Creates an empty index that contains every message up to a seqno (there is none).
pub type Create = fn(&Core, &Settings, Seqno) -> Result<Arc<dyn Index>>;
/// Opens the index that a checkpoint wrote, and marks the pages that it reaches.
pub type Open = fn(&Core, &Settings, &RootRecord, &mut Prefetch) -> Result<Arc<dyn Index>>;

/// A type of index.
pub struct IndexType {
    /// The name in the catalogue, on the command line and in messages.
    pub name: &'static str,
    /// One sentence that helps to choose an index.
    pub about: &'static str,
    /// The order of its keys.
    pub order: Order,
    /// The modes that it supports.
    pub modes: &'static [Mode],
    /// The incompatible feature bit of stores with such an index; 0 for an index that every version supports.
    pub feature: u64,
    /// Its options.
    pub options: &'static [OptionSpec],
    /// Creates an empty index.
    pub create: Create,
    /// Opens an index from its root record.
    pub open: Open,
    /// The blocks that opening reads first: a caller that opens many indexes reads those of all indexes together.
    pub first_blocks: fn(&Core, &RootRecord) -> Vec<BlockAddr>,
    /// Describes a block of this structure, whose checksum was not checked, as lines of text. Returns false if it is
    /// not one.
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
    /// All types of this build, the default first.
    pub fn all() -> impl ExactSizeIterator<Item = IndexKind> {
        TYPES.iter().map(|index_type| IndexKind(index_type))
    }

    /// The type with that name.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] if this build has no type with that name.
    pub fn named(name: &str) -> Result<IndexKind> {
        let found = IndexKind::all().find(|kind| kind.name() == name);
        found.ok_or_else(|| Error::UnknownIndex {
            index: name.to_owned(),
            keyspace: None,
            known: IndexKind::all().map(IndexKind::name).collect::<Vec<_>>().join(", "),
        })
    }

    /// The name in the catalogue and on the command line.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// What the structure is suited for, in one sentence.
    pub fn about(self) -> &'static str {
        self.0.about
    }

    /// The modes that it supports.
    pub fn modes(self) -> &'static [Mode] {
        self.0.modes
    }

    /// Its options.
    pub fn options(self) -> &'static [OptionSpec] {
        self.0.options
    }

    /// Its entry in the registry.
    pub(crate) fn index_type(self) -> &'static IndexType {
        self.0
    }

    /// The kind of an index type.
    pub(crate) const fn of(index_type: &'static IndexType) -> IndexKind {
        IndexKind(index_type)
    }
}

impl IndexType {
    /// Opens the index of a root record, or creates an empty one if the record is empty.
    pub(crate) fn build(
        &self,
        core: &Core,
        settings: &Settings,
        record: &RootRecord,
        prefetch: &mut Prefetch,
    ) -> Result<Arc<dyn Index>> {
        match record.bytes.is_empty() {
            true => (self.create)(core, settings, record.through),
            false => (self.open)(core, settings, record, prefetch),
        }
    }
}

/// The incompatible feature bits of all index types.
pub fn features() -> u64 {
    TYPES.iter().fold(0, |bits, index_type| bits | index_type.feature)
}

impl Default for IndexKind {
    fn default() -> IndexKind {
        IndexKind(TYPES[0])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::superblock::CORE_FEATURES;

    #[test]
    fn names_and_feature_bits_are_unique_and_defaults_are_valid() {
        let mut bits = CORE_FEATURES;
        for (i, index_type) in TYPES.iter().enumerate() {
            let plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(plain(index_type.name) && !index_type.modes.is_empty() && !index_type.about.is_empty());
            assert!(TYPES[..i].iter().all(|other| other.name != index_type.name), "{}", index_type.name);
            assert!(index_type.feature.count_ones() <= 1 && bits & index_type.feature == 0, "{}", index_type.name);
            bits |= index_type.feature;
            for (j, option) in index_type.options.iter().enumerate() {
                assert!(plain(option.name) && option.name != "mode", "{}", option.name);
                assert!(index_type.options[..j].iter().all(|other| other.name != option.name), "{}", option.name);
                assert!(option.check(option.default).is_ok(), "{}: {}", index_type.name, option.name);
            }
        }
    }
}
