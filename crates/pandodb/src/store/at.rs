//! [`KeyspaceAt`]: a keyspace as of a snapshot, for reading only.

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

/// A keyspace as it was at a snapshot: the same reads, no writes. Made by [`Keyspace::at`].
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

    /// The value of a key at the snapshot.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the snapshot is another store's.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        read::get(&self.engine, &self.state, key.as_ref(), self.point())
    }

    /// The values of many keys at the snapshot.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        read::multi_get(&self.engine, &self.state, keys, self.point())
    }

    /// Whether a key had a value at the snapshot.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        read::contains(&self.engine, &self.state, key.as_ref(), self.point())
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
        Range::new(&self.engine, &self.state, range.into_key_range(), Some(&self.snapshot))
    }

    /// The keys that start with `prefix`, with their values, from both ends.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(&self.engine, &self.state, KeyRange::prefix(prefix.as_ref()), Some(&self.snapshot))
    }

    /// All keys with their values, from both ends.
    pub fn iter(&self) -> Range {
        Range::new(&self.engine, &self.state, KeyRange::all(), Some(&self.snapshot))
    }
}
