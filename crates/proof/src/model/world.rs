//! A store and its model, and the writes that go to both.
//!
//! Invariant: the store and the model receive the same writes in the same order. A [`Sabotage`] breaks this invariant
//! once, on purpose. The sabotage is the canary: it shows that the comparisons detect a difference.

use std::fmt;

use pandodb::base::sync::stand_for_thread;
use pandodb::{Durability, Error, Keyspace, Range, Snapshot, Store, Value};

use super::config::{Config, Disk};
use super::tables::{Bytes, Model, SLOTS, Write, prefix_bounds};
use crate::script::{Rng, mix};

/// Why a history failed.
#[derive(Clone, Debug)]
pub struct Wrong(pub String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        Wrong(format!("an operation failed: {error}"))
    }
}

/// Fails the history if `right` does not hold.
pub fn check(right: bool, what: impl FnOnce() -> String) -> Result<(), Wrong> {
    if right { Ok(()) } else { Err(Wrong(what())) }
}

/// A mistake that the harness makes once, in place of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A put does not reach the engine.
    LostPut,
    /// A delete does not reach the engine.
    LostDelete,
    /// A merge does not reach the engine.
    LostMerge,
    /// A merge reaches the engine twice.
    DoubleMerge,
    /// A range delete does not reach the engine.
    LostRangeDelete,
    /// A sorted load does not reach the engine.
    LostLoad,
    /// The last operation of a batch does not reach the engine.
    TornBatch,
    /// A snapshot is taken after the next write.
    LateSnapshot,
}

/// The maximum number of commits with `Durability::None` for which the state before the commit is kept. When this
/// number is reached, the harness makes the store persist its log.
const LAZY_COMMITS: usize = 12;

/// A snapshot and its expected contents.
pub struct Held {
    pub snapshot: Snapshot,
    pub model: Model,
}

/// A scan that is kept open across other operations, and its expected items.
pub struct HeldRange {
    pub slot: usize,
    pub range: Range,
    pub all: Vec<(Vec<u8>, Bytes)>,
    /// The positions in `all` that neither end of the scan has passed.
    pub left: std::ops::Range<usize>,
}

impl HeldRange {
    /// The expected next item from the front end, or from the back end.
    pub fn pop(&mut self, backward: bool) -> Option<&(Vec<u8>, Bytes)> {
        if self.left.is_empty() {
            return None;
        }
        let at = if backward { self.left.end - 1 } else { self.left.start };
        if backward {
            self.left.end -= 1
        } else {
            self.left.start += 1
        }
        Some(&self.all[at])
    }

    /// Seeks with the front end, or with the back end.
    pub fn seek(&mut self, backward: bool, key: &[u8]) {
        if backward {
            self.range.seek_back(key);
            self.left.end = self.all.partition_point(|(each, _)| each.as_slice() <= key);
        } else {
            self.range.seek(key);
            self.left.start = self.all.partition_point(|(each, _)| each.as_slice() < key);
        }
    }
}

/// The handles of a store that was closed. Each handle must return [`Error::Closed`].
pub struct Orphans {
    pub store: Store,
    pub keyspaces: Vec<Keyspace>,
    pub snapshots: Vec<Snapshot>,
    pub ranges: Vec<Range>,
}

/// The store and the model of a history.
pub struct World {
    pub config: Config,
    pub store: Store,
    pub keyspaces: Vec<Option<Keyspace>>,
    pub model: Model,
    pub snapshots: Vec<Held>,
    pub ranges: Vec<HeldRange>,
    /// Handles of the previous opening, if it ended with a close.
    pub orphans: Option<Orphans>,
    /// Values that were read earlier, which must not change.
    pub values: Vec<(Value, Bytes)>,
    /// States that the store may have after a kill: for each commit that is only in the memory of the process, the
    /// model before this commit.
    pub lazy: Vec<Model>,
    sabotage: Option<(Sabotage, usize)>,
    /// Number of writes up to now. This number chooses the writer (log stream) of the next write.
    turns: u64,
    /// Whether the sabotage was applied.
    sabotaged: bool,
    /// The device. It stays in use when the store is closed and opened again.
    pub disk: Disk,
}

impl World {
    /// Creates an empty store with all keyspaces. With `Some((sabotage, n))`, the sabotage is applied to the nth
    /// operation of its kind.
    pub fn new(config: Config, sabotage: Option<(Sabotage, usize)>) -> Result<World, Wrong> {
        let disk = config.device()?;
        let store = config.open(&disk)?;
        let mut world = World {
            config,
            disk,
            store,
            keyspaces: vec![None; SLOTS.len()],
            model: Model::new(),
            snapshots: Vec::new(),
            ranges: Vec::new(),
            orphans: None,
            values: Vec::new(),
            lazy: Vec::new(),
            sabotage,
            turns: 0,
            sabotaged: false,
        };
        for slot in 0..SLOTS.len() {
            world.open_keyspace(slot)?;
        }
        Ok(world)
    }

    /// Opens the keyspace in `slot`, and creates the keyspace if it does not exist.
    pub fn open_keyspace(&mut self, slot: usize) -> Result<(), Wrong> {
        self.keyspaces[slot] = Some(self.store.keyspace_with(SLOTS[slot].0, self.config.options(slot))?);
        Ok(())
    }

    /// The handle of the keyspace in `slot`.
    pub fn keyspace(&self, slot: usize) -> &Keyspace {
        self.keyspaces[slot].as_ref().expect("asked for a keyspace that is dropped")
    }

    /// Whether the sabotage is applied to this operation.
    pub fn strikes(&mut self, kind: Sabotage) -> bool {
        match &mut self.sabotage {
            Some((which, left)) if *which == kind && !self.sabotaged => {
                self.sabotaged = *left == 0;
                *left = left.saturating_sub(1);
                self.sabotaged
            }
            _ => false,
        }
    }

    /// How many times a write reaches the engine: once, unless the sabotage is applied.
    fn times(&mut self, write: &Write) -> usize {
        match write {
            Write::Put(..) if self.strikes(Sabotage::LostPut) => 0,
            Write::Delete(..) if self.strikes(Sabotage::LostDelete) => 0,
            Write::Merge(..) if self.strikes(Sabotage::LostMerge) => 0,
            Write::Merge(..) if self.strikes(Sabotage::DoubleMerge) => 2,
            Write::DeleteRange(..) if self.strikes(Sabotage::LostRangeDelete) => 0,
            Write::Load(..) if self.strikes(Sabotage::LostLoad) => 0,
            _ => 1,
        }
    }

    /// Makes this thread act as another writer, so that it uses another log stream.
    pub fn take_turn(&mut self) {
        self.turns += 1;
        stand_for_thread((mix(self.turns) % self.config.streams as u64) as usize);
    }

    /// Sends one write without a batch.
    pub fn write(&mut self, write: &Write) -> Result<(), Wrong> {
        self.take_turn();
        for _ in 0..self.times(write) {
            match write {
                Write::Put(slot, key, value) => self.keyspace(*slot).put(key, value)?,
                Write::Delete(slot, key) => self.keyspace(*slot).delete(key)?,
                Write::Merge(slot, key, operand) => self.keyspace(*slot).merge(key, operand)?,
                Write::DeleteRange(slot, bounds) => self.keyspace(*slot).delete_range(bounds.clone())?,
                Write::DeletePrefix(slot, prefix) => self.keyspace(*slot).delete_range(prefix_bounds(prefix))?,
                Write::Load(slot, rows) => {
                    let loaded = self.keyspace(*slot).load_sorted(rows.iter().map(|(key, value)| (key, value)))?;
                    check(loaded == rows.len() as u64, || format!("{loaded} rows of {} were loaded", rows.len()))?;
                }
            }
        }
        self.model.apply(write);
        if write.is_logged() {
            self.lazy.clear();
        }
        Ok(())
    }

    /// Changes a key depending on its value: with `insert_new`, `take`, `compare_and_swap`, `fetch_update` or
    /// `update_fetch`. `value` is a value that the keyspace accepts.
    pub fn update(&mut self, slot: usize, key: &[u8], value: &[u8], rng: &mut Rng) -> Result<(), Wrong> {
        self.take_turn();
        let (keyspace, table) = (self.keyspace(slot), self.model.table(slot).expect("it is there"));
        let old = table.get(key).cloned();
        let (before, removes) = (old.as_deref(), rng.chance(20));
        let new = (!removes).then_some(value);
        let call = rng.index(5);
        let (is_right, after) = match call {
            0 => (keyspace.insert_new(key, value)? == before.is_none(), before.or(Some(value))),
            1 => (keyspace.take(key)?.as_deref() == before, None),
            2 => {
                let expected = if rng.chance(70) { before } else { Some(value) };
                let swapped = keyspace.compare_and_swap(key, expected, new)?;
                let is_right = match &swapped {
                    Ok(()) => before == expected,
                    Err(mismatch) => before != expected && mismatch.current.as_deref() == before,
                };
                (is_right, if swapped.is_ok() { new } else { before })
            }
            3 => (keyspace.fetch_update(key, |seen| new.filter(|_| seen == before))?.as_deref() == before, new),
            _ => (keyspace.update_fetch(key, |seen| new.filter(|_| seen == before))?.as_deref() == new, new),
        };
        check(is_right, || format!("update {call} of `{}` in `{}` is wrong", key.escape_ascii(), SLOTS[slot].0))?;
        if after != before {
            let write = match after {
                Some(value) => Write::Put(slot, key.to_vec(), value.into()),
                None => Write::Delete(slot, key.to_vec()),
            };
            self.model.apply(&write);
            self.lazy.clear();
        }
        Ok(())
    }

    /// Takes the first row of the keyspace in `slot`, or the last one.
    pub fn pop(&mut self, slot: usize, backward: bool) -> Result<(), Wrong> {
        self.take_turn();
        let keyspace = self.keyspace(slot);
        let row = if backward { keyspace.pop_last()? } else { keyspace.pop_first()? };
        let table = self.model.table(slot).expect("it is there");
        let expect = if backward { table.last_key_value() } else { table.first_key_value() };
        check(
            row.as_ref().map(|(key, value)| (&**key, &**value)) == expect.map(|(key, value)| (&**key, &**value)),
            || format!("a pop at the {} of `{}` is wrong", if backward { "end" } else { "start" }, SLOTS[slot].0),
        )?;
        if let Some((key, _)) = expect {
            let write = Write::Delete(slot, key.clone());
            self.model.apply(&write);
            self.lazy.clear();
        }
        Ok(())
    }

    /// Sends writes as one batch.
    pub fn commit(&mut self, writes: &[Write], durability: Durability) -> Result<(), Wrong> {
        self.bound_lazy()?;
        self.take_turn();
        let before = self.model.clone();
        let torn = writes.len() > 1 && self.strikes(Sabotage::TornBatch);
        let mut batch = self.store.batch();
        for write in &writes[..writes.len() - usize::from(torn)] {
            for _ in 0..self.times(write) {
                match write {
                    Write::Put(slot, key, value) => batch.put(self.keyspace(*slot), key, value),
                    Write::Delete(slot, key) => batch.delete(self.keyspace(*slot), key),
                    Write::Merge(slot, key, operand) => batch.merge(self.keyspace(*slot), key, operand),
                    Write::DeleteRange(slot, bounds) => batch.delete_range(self.keyspace(*slot), bounds.clone()),
                    Write::DeletePrefix(slot, prefix) => {
                        batch.delete_range(self.keyspace(*slot), prefix_bounds(prefix))
                    }
                    Write::Load(..) => unreachable!("a load is a write of its own"),
                }
            }
        }
        batch.commit(durability)?;
        writes.iter().for_each(|write| self.model.apply(write));
        self.note_commit(before, durability, writes.iter().any(Write::is_logged));
        Ok(())
    }

    /// Makes the store persist its log if too many commits are only in the memory of the process.
    pub fn bound_lazy(&mut self) -> Result<(), Wrong> {
        if self.lazy.len() >= LAZY_COMMITS {
            self.store.persist(Durability::Buffered)?;
            self.lazy.clear();
        }
        Ok(())
    }

    /// Records the durability of a commit. `before` is the model before the commit.
    pub fn note_commit(&mut self, before: Model, durability: Durability, is_logged: bool) {
        if durability != Durability::None && is_logged {
            self.lazy.clear();
        } else {
            self.lazy.push(before);
        }
    }

    /// Takes a snapshot and keeps its expected contents.
    pub fn take_snapshot(&mut self, between: Option<&Write>) -> Result<(), Wrong> {
        let model = self.model.clone();
        if let Some(write) = between
            && self.strikes(Sabotage::LateSnapshot)
        {
            self.write(write)?;
        }
        self.snapshots.push(Held { snapshot: self.store.snapshot(), model });
        Ok(())
    }

    /// Drops all scans, snapshots and handles that read from the store.
    pub fn let_go(&mut self) {
        self.snapshots.clear();
        self.ranges.clear();
        self.orphans = None;
        self.values.clear();
    }
}
