//! [`KeyspaceState`] is everything that an open store holds for one keyspace. It also has the checks of arguments that
//! need only this state.
//!
//! ```text
//!   containers (swapped as one):  active memtable | sealed memtables, newest first
//!                                        │ seal        │ packed: the index holds their messages
//!                                        └────────────▶└──────────────▶ index
//! ```
//!
//! A reader first loads the containers and then the index's view. Therefore the view includes a memtable that was
//! packed between the two loads. If the index is written directly, the active memtable stays empty. Locks: `options` and the lock in `dead_ranges`, each of which is taken after all other
//! locks; and `pops`, which is taken before all others.

use std::sync::Arc;

use super::catalog::{Identity, KeyspaceRecord};
use super::dead_ranges::DeadRanges;
use super::next_keys::Pops;
use super::options::KeyspaceOptions;
use super::watermark::CachePadded;
use crate::base::sync::{ArcSwap, AtomicBool, AtomicU64, Mutex, Ordering::Relaxed};
use crate::base::{
    Entry, Error, IntoKeyRange, KeyCodec, KeyRange, KeyspaceId, Kind, MAX_INLINE_VALUE, MAX_KEY, MAX_OPERAND,
    MAX_VALUE, RangeTombstone, Result, Seqno,
};
use crate::index::{Index, IndexOptions, RootRecord, SealedBatch};
use crate::memtable::{Inserted, Memtable};
use crate::resolve::Operator;
use crate::run::ScanHabits;
use crate::wal::Tag;

/// Values longer than this many times the threshold bypass the log and the memtable.
const AT_ONCE: usize = 8;

/// The state of one keyspace.
pub(crate) struct KeyspaceState {
    pub id: KeyspaceId,
    pub name: String,
    pub operator: Option<Operator>,
    /// The operator's name and version in the catalogue, regardless of whether the operator is registered.
    pub operator_name: Option<(String, u32)>,
    /// Values of at most this many bytes stay next to their keys.
    pub blob_threshold: usize,
    /// The index type, its mode and its options. They are changed under the lock of the durable root. The index uses
    /// the changed options from the next opening on.
    pub options: Mutex<IndexOptions>,
    pub index: Arc<dyn Index>,
    /// Whether writes go directly to the index. The memtables are then always empty, except in a salvage.
    pub is_direct: bool,
    /// Bytes of pages that the index has not written yet, as of the last direct write. They are counted in
    /// [`Keyspaces`](super::keyspaces::Keyspaces).
    pub unwritten: AtomicU64,
    /// The stored form of the keys in memtables and in the index.
    pub codec: KeyCodec,
    pub containers: ArcSwap<Containers>,
    /// Bytes of the active memtable that are counted in [`Keyspaces`](super::keyspaces::Keyspaces).
    pub charged: CachePadded<AtomicU64>,
    /// Ranges of keys without values. The keys are in their stored form.
    pub dead_ranges: Arc<DeadRanges>,
    /// The numbers of large values that scans returned.
    pub value_habits: Arc<ScanHabits>,
    /// The next keys for [`Keyspace::pop_first`](crate::Keyspace::pop_first) and its counterpart.
    pub pops: Mutex<Pops>,
    pub dropped: AtomicBool,
    /// At some checkpoint, the index held every message of the keyspace up to this seqno. The seqno may be above the
    /// index's own `through`.
    pub drained_through: AtomicU64,
}

/// The memtables of a keyspace, which are swapped together.
pub(crate) struct Containers {
    pub active: Arc<Memtable>,
    /// The sealed memtables, newest first.
    pub sealed: Vec<SealedBatch>,
}

/// What a commit learns from the application of an operation.
pub(crate) struct Applied {
    /// The leaf that the operation changed, if paper mode needs this leaf.
    pub tag: Option<Tag>,
    /// Whether the operation continues a long chain of operands of its key.
    pub is_long: bool,
}

impl KeyspaceState {
    /// Whether a value of this length is written to pages of its own before its commit. A shorter value that is above
    /// the threshold goes into the log and the memtable, and to pages of its own when the memtable is packed.
    pub(crate) fn writes_at_once(&self, len: usize) -> bool {
        len > self.blob_threshold.saturating_mul(AT_ONCE).min(MAX_INLINE_VALUE)
    }

    /// Bytes in the active memtable.
    pub(crate) fn active_bytes(&self) -> usize {
        self.containers.load().active.bytes()
    }

    /// The last seqno of the newest sealed memtable; 0 if there is none.
    pub(crate) fn last_sealed(&self) -> Seqno {
        self.containers.load().sealed.first().map_or(Seqno(0), |batch| batch.through)
    }

    /// Adds a sealed memtable and replaces the active memtable. REQUIRES: the sequencer is quiesced.
    pub(crate) fn push_sealed(&self, batch: SealedBatch, active: Arc<Memtable>) {
        assert!(active.is_empty() && Seqno(active.id()) == batch.through, "a memtable begins where the last one ends");
        self.containers.rcu(|old| {
            assert!(
                old.sealed.first().is_none_or(|newest| newest.through < batch.through),
                "memtables are sealed in order"
            );
            let mut sealed = Vec::with_capacity(old.sealed.len() + 1);
            sealed.push(batch.clone());
            sealed.extend(old.sealed.iter().cloned());
            Containers { active: active.clone(), sealed }
        });
    }

    /// Replaces the empty active memtable by `active`, for the messages above `at`. Called for a write at `at` that goes
    /// directly to the index. REQUIRES: the sequencer is quiesced, and the index holds all messages below `at`.
    pub(crate) fn begin_after(&self, at: Seqno, active: Arc<Memtable>) {
        assert!(active.is_empty() && Seqno(active.id()) == at, "a memtable begins where the index ends");
        self.containers.rcu(|old| {
            assert!(old.active.is_empty() && old.sealed.is_empty(), "the memtables were packed");
            Containers { active: active.clone(), sealed: Vec::new() }
        });
    }

    /// Called when keys in `range` were changed by a write at `at` that did not pass the memtables: after the index has
    /// published the change, and before readers see it. **Everything that the store has learned about keys of the
    /// keyspace, and that writes keep up to date through the memtables, must be invalidated here.** The index itself
    /// has already updated its filters and the row cache.
    pub(crate) fn changed_in_index(&self, range: &KeyRange, at: Seqno) {
        assert!(!range.is_empty(), "a change has keys");
        debug_assert!(self.is_direct || self.index.view().through() >= at, "the index has published the change");
        debug_assert!(self.containers.load().active.id() >= at.0, "memtables hold only later messages");
        self.dead_ranges.revive_range(range);
    }

    /// Removes and returns the memtables whose messages the index already holds. Lookups may still use them.
    pub(crate) fn retire_sealed(&self) -> Vec<Arc<Memtable>> {
        let through = self.index.view().through();
        let old = self.containers.rcu(|old| Containers {
            active: old.active.clone(),
            sealed: old.sealed.iter().filter(|batch| batch.through > through).cloned().collect(),
        });
        let retired = old.sealed.iter().filter(|batch| batch.through <= through).map(|batch| batch.memtable.clone());
        retired.collect()
    }

    /// Whether the index holds all messages of the keyspace. `through` is the seqno up to which the index holds them,
    /// and no memtable has a message that the index lacks. If so, the keyspace needs no log.
    ///
    /// Load the containers first, because a memtable leaves them only after the index has advanced past `through`.
    pub(crate) fn is_drained(&self, through: Seqno) -> bool {
        debug_assert!(!self.is_direct, "a keyspace without memtables has nothing to drain");
        let containers = self.containers.load();
        let empty = containers.active.is_empty() && containers.sealed.iter().all(|batch| batch.through <= through);
        empty && self.index.view().through() == through
    }
}

/// Checks the length of a key.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(Error::invalid(format!("a key must have 1 to {MAX_KEY} bytes, not {}", key.len())));
    }
    Ok(())
}

impl KeyspaceState {
    /// Returns an error if the keyspace was dropped.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.dropped.load(Relaxed) {
            return Err(Error::NoKeyspace { name: self.name.clone() });
        }
        Ok(())
    }

    /// The merge operator of the keyspace.
    ///
    /// # Errors
    /// [`Error::OperatorMissing`] if the operator is not registered, [`Error::Unsupported`] if the keyspace has no
    /// operator.
    pub(crate) fn operator(&self) -> Result<&Operator> {
        match (&self.operator, &self.operator_name) {
            (Some(operator), _) => Ok(operator),
            (None, Some((name, version))) => Err(Error::OperatorMissing {
                keyspace: self.name.clone(),
                operator: format!("{name} (version {version})"),
            }),
            (None, None) => Err(Error::Unsupported {
                detail: format!("keyspace `{}` was created without a merge operator", self.name),
            }),
        }
    }

    /// Checks the arguments of a put.
    pub(crate) fn check_put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(key)?;
        if value.len() > MAX_VALUE {
            return Err(Error::invalid(format!("a value may have at most {MAX_VALUE} bytes, not {}", value.len())));
        }
        self.check_alive()
    }

    /// Returns an error if the merge operator rejects a value. If the operator is not registered, all values are
    /// accepted.
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        self.operator.as_ref().map_or(Ok(()), |operator| operator.validate_value(value))
    }

    /// The index type, with its mode and all options that differ from the defaults.
    pub(crate) fn options(&self) -> IndexOptions {
        self.options.lock().clone()
    }

    /// Returns an error if `options` differ from the options with which the keyspace was created.
    pub(crate) fn check_options(&self, options: &KeyspaceOptions) -> Result<()> {
        let refuse = |stored: String, wanted: String| {
            let name = &self.name;
            Err(Error::invalid(format!("keyspace `{name}` exists with {stored}, not with {wanted}; open it as it is")))
        };
        let wanted = options.operator.as_ref().map(|operator| (operator.name(), operator.version()));
        let stored = self.operator_name.as_ref().map(|(name, version)| (name.as_str(), *version));
        if wanted != stored {
            let words = |operator: Option<(&str, u32)>| match operator {
                Some((name, version)) => format!("operator {name} (version {version})"),
                None => "no operator".to_owned(),
            };
            return refuse(words(stored), words(wanted));
        }
        if let Some(index) = &options.index {
            let stored = self.options();
            if index.kind() != stored.kind() {
                return refuse(format!("index {}", stored.kind()), format!("index {}", index.kind()));
            }
            if let Some((option, stored, wanted)) = index.conflict(&stored) {
                return refuse(format!("{option}={stored}"), format!("{option}={wanted}"));
            }
        }
        match options.blob_threshold {
            Some(wanted) if wanted != self.blob_threshold => {
                refuse(format!("a blob threshold of {} bytes", self.blob_threshold), format!("one of {wanted}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the arguments of a merge.
    pub(crate) fn check_merge(&self, key: &[u8], operand: &[u8]) -> Result<()> {
        check_key(key)?;
        if operand.len() > MAX_OPERAND {
            return Err(Error::invalid(format!("an operand may have at most {MAX_OPERAND} bytes")));
        }
        self.check_alive()?;
        self.operator()?.validate(operand)
    }

    /// Returns an error for a range of keys if the index does not keep the keys in bytewise order.
    pub(crate) fn check_sorted(&self, range: &KeyRange) -> Result<()> {
        if self.codec == KeyCodec::Plain || *range == KeyRange::all() {
            return Ok(());
        }
        let (name, index) = (&self.name, self.options().kind());
        let detail = format!("keyspace `{name}` has no ranges: its index `{index}` keeps keys in the order of a hash");
        Err(Error::Unsupported { detail })
    }

    /// Converts a range to delete to its half-open form.
    pub(crate) fn check_range(&self, range: impl IntoKeyRange) -> Result<KeyRange> {
        self.check_alive()?;
        let range = range.into_key_range();
        self.check_sorted(&range)?;
        if range.from.len() > MAX_KEY + 1 || range.to.len() > MAX_KEY + 1 {
            return Err(Error::invalid(format!("the bounds of a range must be keys of at most {MAX_KEY} bytes")));
        }
        Ok(range)
    }

    /// The record of the keyspace in the catalogue.
    pub(crate) fn record(&self, root: RootRecord) -> KeyspaceRecord {
        let identity = Identity {
            id: self.id,
            name: self.name.clone(),
            index: self.options(),
            operator: self.operator_name.clone(),
            blob_threshold: self.blob_threshold as u64,
        };
        KeyspaceRecord { identity, root }
    }

    /// Applies one operation to the active memtable.
    #[inline]
    pub(crate) fn apply(&self, kind: Kind, key: &[u8], value: &[u8], seqno: Seqno) -> Applied {
        let memtable = &self.containers.load().active;
        debug_assert!(seqno.0 > memtable.id(), "a memtable holds what was written after it began");
        if kind == Kind::RangeDelete {
            memtable.insert_range(&RangeTombstone { range: KeyRange::new(key, value), seqno });
            return Applied { tag: None, is_long: false };
        }
        let mut buf = Vec::new();
        let key = self.codec.stored(key, &mut buf);
        let Inserted { generation, is_long } = memtable.insert(Entry { key, seqno, kind, value });
        if kind != Kind::Delete {
            self.dead_ranges.revive(key);
        }
        let tag = generation.map(|generation| Tag { memtable: Seqno(memtable.id()), generation });
        Applied { tag, is_long }
    }
}
