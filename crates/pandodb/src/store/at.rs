//! A keyspace as of a snapshot: reads alone.

use super::keyspace::Keyspace;
use super::range::Range;
use super::read::{self, ReadPoint};
use super::snapshot::Snapshot;
use super::value::Value;
use crate::base::{IntoKeyRange, KeyRange, Result};

/// A keyspace as it was at a snapshot: the same reads, no writes. Made by [`Keyspace::at`].
#[derive(Clone, Debug)]
pub struct KeyspaceAt {
    pub(super) keyspace: Keyspace,
    pub(super) snapshot: Snapshot,
}

impl KeyspaceAt {
    fn point(&self) -> ReadPoint<'_> {
        ReadPoint::At(&self.snapshot)
    }

    /// The value of a key at the snapshot.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the snapshot is another store's.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        read::get(&self.keyspace.engine, &self.keyspace.state, key.as_ref(), self.point())
    }

    /// The values of many keys at the snapshot.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        read::multi_get(&self.keyspace.engine, &self.keyspace.state, keys, self.point())
    }

    /// Whether a key had a value at the snapshot.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        read::contains(&self.keyspace.engine, &self.keyspace.state, key.as_ref(), self.point())
    }

    /// The smallest key that had a value at the snapshot, with that value. Costs what [`Keyspace::first_key_value`] costs.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn first_key_value(&self) -> Result<Option<(Value, Value)>> {
        self.iter().next().transpose()
    }

    /// The largest key that had a value at the snapshot, with that value. Costs what [`Keyspace::first_key_value`] costs.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn last_key_value(&self) -> Result<Option<(Value, Value)>> {
        self.iter().next_back().transpose()
    }

    /// The keys of a range with their values, from both ends.
    pub fn range(&self, range: impl IntoKeyRange) -> Range {
        Range::new(&self.keyspace, range.into_key_range(), Some(&self.snapshot))
    }

    /// The keys that start with `prefix`, with their values, from both ends.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(&self.keyspace, KeyRange::prefix(prefix.as_ref()), Some(&self.snapshot))
    }

    /// All keys with their values, from both ends.
    pub fn iter(&self) -> Range {
        Range::new(&self.keyspace, KeyRange::all(), Some(&self.snapshot))
    }
}
