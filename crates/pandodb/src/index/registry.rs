//! The registry of index types. Outside the folders of the types, only this file names the types.
//!
//! ```text
//!   keyspace options ──▶ IndexOptions { type, mode, values } ──create──▶ log record, catalogue: name, mode, values
//!                                                                                  │
//!   IndexType::open ◀── Settings { mode, every value } ◀── IndexOptions::decode  ◀─┘   opening, backup, salvage
//! ```
//!
//! 1. An index type has one line in [`TYPES`] with its [`IndexType`], which is a `static` next to the code of the type.
//! 2. The store refers to index types by [`IndexKind`] only. A name that is not in [`TYPES`] causes
//!    [`Error::UnknownIndex`] before anything is written.
//! 3. Once a catalogue holds a keyspace of a type, the superblock has the type's feature bit. A PandoDB version that
//!    lacks the type then refuses the store when it reads the superblock.
//!
//! Invariants (a test below checks them): names and feature bits are unique, and every default is a valid value.

use std::str::FromStr;

use super::options::IndexOptions;
#[cfg(test)]
use super::stub::{DIRECT, ORDERED, TYPE as STUB};
use super::types::{IndexKind, IndexType};
use crate::base::codec::Reader;
use crate::base::{Error, Result};

/// Every type of index. The first type is the default.
#[cfg(not(test))]
pub static TYPES: [&IndexType; 5] =
    [&super::stbe::TYPE, &super::cola::TYPE, &super::btree::TYPE, &super::betree::TYPE, &super::nbtree::TYPE];
/// Every type of index, and test indexes for the unit tests of the store.
#[cfg(test)]
pub static TYPES: [&IndexType; 8] = [
    &super::stbe::TYPE,
    &super::cola::TYPE,
    &super::btree::TYPE,
    &super::betree::TYPE,
    &super::nbtree::TYPE,
    &STUB,
    &DIRECT,
    &ORDERED,
];

impl IndexKind {
    /// All types of this build. The default comes first.
    pub fn all() -> impl ExactSizeIterator<Item = IndexKind> {
        TYPES.iter().map(|index_type| IndexKind::of(index_type))
    }

    /// The type with the name `name`.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] if this build has no type with this name.
    pub fn named(name: &str) -> Result<IndexKind> {
        let found = IndexKind::all().find(|kind| kind.name() == name);
        found.ok_or_else(|| Error::UnknownIndex {
            index: name.to_owned(),
            keyspace: None,
            known: IndexKind::all().map(IndexKind::name).collect::<Vec<_>>().join(", "),
        })
    }
}

/// The incompatible feature bits of all index types.
pub fn features() -> u64 {
    TYPES.iter().fold(0, |bits, index_type| bits | index_type.feature)
}

impl Default for IndexKind {
    fn default() -> IndexKind {
        IndexKind::of(TYPES[0])
    }
}

impl IndexOptions {
    /// Decodes the persisted form.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the bytes are damaged; [`Error::UnknownIndex`] if this version lacks the type;
    /// [`Error::Unsupported`] if it does not know one of the options or values.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<IndexOptions> {
        let name = std::str::from_utf8(reader.bytes()?).map(str::to_owned);
        let name = name.map_err(|_| reader.corrupt("the name of an index is not UTF-8"))?;
        let values = reader.bytes()?;
        IndexOptions::decode_values(IndexKind::named(&name)?, values)
    }
}

impl FromStr for IndexOptions {
    type Err = Error;

    /// Reads `type` or `type:name=value,name=value`.
    fn from_str(text: &str) -> Result<IndexOptions> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        let options = IndexOptions::from(IndexKind::named(kind)?);
        rest.into_iter().flat_map(|rest| rest.split(',')).try_fold(options, |options, part| {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                Error::invalid(format!(
                    "`{part}` is not an option of index `{kind}`; write name=value, as in `{kind}:mode=paper`"
                ))
            })?;
            options.with(name.trim(), value.trim())
        })
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
