//! The registry of index types: everything that the store has to know of an index before it makes or opens one.
//!
//! ```text
//!   keyspace options ──▶ IndexOptions { type, mode, values } ──create──▶ log record, catalogue: name, mode, values
//!                                                                                  │
//!   IndexType::open ◀── Settings { mode, every value } ◀── IndexOptions::restore ◀─┘   opening, backup, salvage
//! ```
//!
//! 1. An index joins by one line in [`TYPES`]: its [`IndexType`], a `static` beside its code.
//! 2. The store knows indexes by [`IndexKind`] only. A name that [`TYPES`] lacks is [`Error::UnknownIndex`], before anything is
//!    written.
//! 3. Once a catalogue holds a keyspace of a type, the superblock names the type's feature bit: a version that lacks the type
//!    refuses the store at its first block.
//!
//! Invariants, checked by a test below: names and feature bits are unique, and a default is a possible value.

use std::fmt;
use std::sync::Arc;

use super::options::{OptionSpec, Settings};
use super::{Core, Index, RootRecord};
use crate::base::{BlockAddr, Error, KeyCodec, Result, Seqno};
use crate::space::{BlockKind, Prefetch};

/// Every type of index; the first is the default.
pub static TYPES: [&IndexType; 2] = [&super::stbe::TYPE, &super::cola::TYPE];

/// In which order an index keeps its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Bytewise: it has ranges and scans.
    Sorted,
    /// By a hash: it has lookups, and a walk over all entries in no order that a caller could use.
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

/// Which variant of its structure an index uses. [`Mode::Product`] is for use; [`Mode::Paper`] is for experiments that compare with
/// the published design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The variant that is faster in our measurements.
    #[default]
    Product,
    /// The variant of the published design (see the [sources]). For `stbe`: tiered leaves, one compaction for each arrival in a
    /// node, a quotient filter for each run.
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

/// Makes an empty index that holds everything (that is, nothing) up to a seqno.
pub type Create = fn(&Core, &Settings, Seqno) -> Result<Arc<dyn Index>>;
/// Opens the index that a checkpoint described, and marks the pages that it reaches.
pub type Open = fn(&Core, &Settings, &RootRecord, &mut Prefetch) -> Result<Arc<dyn Index>>;

/// A type of index.
pub struct IndexType {
    /// The name in the catalogue, on the command line and in messages.
    pub name: &'static str,
    /// One sentence for people who choose an index.
    pub about: &'static str,
    /// The order of its keys.
    pub order: Order,
    /// The modes that it has.
    pub modes: &'static [Mode],
    /// The incompatible feature bit of stores that hold such an index; 0 for one that every version has.
    pub feature: u64,
    /// Its options.
    pub options: &'static [OptionSpec],
    /// Makes an empty index.
    pub create: Create,
    /// Opens an index that was written.
    pub open: Open,
    /// The blocks with which opening begins: a caller that opens many indexes reads those of all together.
    pub first_blocks: fn(&Core, &RootRecord) -> Vec<BlockAddr>,
    /// Describes a block of this structure, whose checksum was not checked, as lines of text. Whether it is one.
    pub describe_block: fn(BlockKind, &[u8], &mut String) -> bool,
}

/// Which structure holds a keyspace's data: a type of index.
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

    /// The type of that name.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] if this build has none of that name.
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

    /// What the structure is good for, in one sentence.
    pub fn about(self) -> &'static str {
        self.0.about
    }

    /// The modes that it has.
    pub fn modes(self) -> &'static [Mode] {
        self.0.modes
    }

    /// The options that it has.
    pub fn options(self) -> &'static [OptionSpec] {
        self.0.options
    }

    /// What the store has to know of it.
    pub(crate) fn index_type(self) -> &'static IndexType {
        self.0
    }

    /// The kind of an index type.
    pub(crate) const fn of(index_type: &'static IndexType) -> IndexKind {
        IndexKind(index_type)
    }
}

impl IndexType {
    /// The index of a root record: an empty one if the record says that nothing was ever written.
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
    fn names_and_feature_bits_are_unique_and_defaults_possible() {
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
