//! [`KeyspaceAt`]: a read-only keyspace as of a snapshot.

use std::sync::Arc;

use super::range::Range;
use super::read::{self, ReadPoint};
use super::shared::Shared;
use super::snapshot::Snapshot;
use super::state::KeyspaceState;
use super::value::Value;
#[cfg(doc)]
use crate::Keyspace;
use crate::base::{IntoKeyRange, KeyRange, Result};

/// A read-only keyspace as of a snapshot, with the same read operations as [`Keyspace`]. Made by [`Keyspace::at`].
#[derive(Clone)]
pub struct KeyspaceAt {
    pub(super) engine: Arc<Shared>,
    pub(super) state: Arc<KeyspaceState>,
    pub(super) snapshot: Snapshot,
}

impl std::fmt::Debug for KeyspaceAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (keyspace, snapshot) = (&self.state.name, &self.snapshot);
        f.debug_struct("KeyspaceAt").field("keyspace", keyspace).field("snapshot", snapshot).finish()
    }
}

impl KeyspaceAt {
    fn point(&self) -> ReadPoint<'_> {
        ReadPoint::At(&self.snapshot)
    }

    /// Returns the value that a key had at the snapshot.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the snapshot belongs to
    /// another store.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        read::get(&self.engine, &self.state, key.as_ref(), self.point())
    }

    /// Returns the values that several keys had at the snapshot.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        let values = read::multi_get(&self.engine, &self.state, keys, self.point())?;
        assert_eq!(values.len(), keys.len(), "each key has an answer");
        Ok(values)
    }

    /// Returns whether a key had a value at the snapshot.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        read::contains(&self.engine, &self.state, key.as_ref(), self.point())
    }

    /// Returns the smallest key that had a value at the snapshot, with that value. Costs as much as
    /// [`Keyspace::first_key_value`].
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn first_key_value(&self) -> Result<Option<(Value, Value)>> {
        self.iter().next().transpose()
    }

    /// Returns the largest key that had a value at the snapshot, with that value. Costs as much as
    /// [`Keyspace::first_key_value`].
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn last_key_value(&self) -> Result<Option<(Value, Value)>> {
        self.iter().next_back().transpose()
    }

    /// Iterates over the keys of a range with their values, from both ends.
    pub fn range(&self, range: impl IntoKeyRange) -> Range {
        Range::new(&self.engine, &self.state, range.into_key_range(), Some(&self.snapshot))
    }

    /// Iterates over the keys that start with `prefix`, with their values, from both ends.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(&self.engine, &self.state, KeyRange::prefix(prefix.as_ref()), Some(&self.snapshot))
    }

    /// Iterates over all keys with their values, from both ends.
    pub fn iter(&self) -> Range {
        Range::new(&self.engine, &self.state, KeyRange::all(), Some(&self.snapshot))
    }
}
