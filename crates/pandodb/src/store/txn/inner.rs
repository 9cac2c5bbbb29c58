//! [`Inner`]: the state of a transaction, which its handles and iterators share.
//!
//! ```text
//!   begin ─▶ read point, registered ─▶ get, put … ─▶ commit ─▶ validation ─▶ one batch
//!                                        │   └ writes: a batch                  │ a change of what was read
//!                                        └ reads: a set of keys and ranges      ▼
//!                                                                            Conflict, nothing written
//! ```
//!
//! A transaction that runs a closure chooses its read point at its first read ([`ReadAsOf`]). If it only writes, it has
//! no read point and no validation, and costs little more than a batch.
//!
//! Large values are on the disk as soon as they are written, and belong to the batch. A discarded value is freed when
//! no iterator of the transaction exists that may read it.
//!
//! Invariants: commits leave footprints from the moment when a transaction has both writes and something to validate,
//! until its end. A transaction that has read has a read point. After the end, the state has no read point, no reads
//! and no own memtables, and every call of a handle fails.

use std::ops::Bound;
use std::sync::Arc;

use super::memory::Charge;
use super::options::{Isolation, TransactionOptions};
use super::own::{OWN, Own};
use crate::base::sync::{Mutex, MutexGuard, Ordering::Relaxed};
use crate::base::{BlobRef, Error, KeyRange, Kind, Result, SeededBug, seeded};
use crate::index::{Changes, IndexView};
use crate::memtable::Memtable;
use crate::store::batch::{Batch, BatchMark, MAX_BATCH};
use crate::store::engine::Engine;
use crate::store::keyspace::Keyspace;
use crate::store::queues::QueueNumber;
use crate::store::range::{Range, Report};
use crate::store::read::{self, ReadPoint};
use crate::store::scan::OwnWrites;
use crate::store::shared::Shared;
use crate::store::snapshot::Snapshot;
use crate::store::state::{KeyspaceState, check_key};
use crate::store::validation::{ReadFrom, ReadSet, Validation};
use crate::store::value::Value;
use crate::wal::Ops;

/// The most keys of a transaction for whose queues it waits.
const MOST_QUEUES: usize = 8;
/// The most bytes that an operation has in addition to its key and value.
const MOST_OVERHEAD: usize = 32;

/// Which reads a commit validates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracking {
    /// None.
    Never,
    /// Those of serializable transactions.
    ByIsolation,
    /// Those of all transactions.
    Always,
}

/// When a transaction chooses its read point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAsOf {
    /// At once.
    Beginning,
    /// At the first read. Under snapshot isolation it is chosen at once, because the commit must find changes of the
    /// written keys since the beginning, even if nothing was read.
    FirstRead,
}

/// A place in the writes of a transaction, see [`Transaction::savepoint`](super::Transaction::savepoint).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    /// The address of the transaction. Transactions of different stores may have savepoints of the same number.
    of: usize,
    number: u64,
}

pub(super) struct Inner {
    pub(super) engine: Arc<Shared>,
    pub(super) options: TransactionOptions,
    /// The queues in which the thread has the turn.
    turns: Vec<QueueNumber>,
    state: Mutex<State>,
}

/// What a transaction had written when a savepoint was made.
#[derive(Clone, Copy, Debug)]
struct Place {
    savepoint: Savepoint,
    mark: BatchMark,
    copies: usize,
}

pub(super) struct State {
    point: Option<ReadFrom>,
    reads: ReadSet,
    writes: Batch,
    own: Own,
    savepoints: Vec<Place>,
    /// Under snapshot isolation: the most bytes that the written keys will take in the read set at the commit.
    copies: usize,
    charge: Charge,
    /// The number of open iterators that may read large values of the batch.
    readers: usize,
    /// Large values of discarded writes that such an iterator may still read.
    discarded: Vec<BlobRef>,
    /// Whether the commit may have something to validate: always under snapshot isolation, otherwise after a tracked
    /// read.
    validates: bool,
    /// Whether commits of other threads leave footprints for this transaction.
    has_entered: bool,
    /// Whether the transaction accepts no more calls.
    has_ended: bool,
    /// Whether its memory is given back.
    is_cleared: bool,
    /// Views of the keyspaces at the commit, if iterators may still read large values of the batch. A view keeps the
    /// values that compactions drop later.
    pinned: Vec<Arc<dyn IndexView>>,
}

impl State {
    fn new(engine: &Arc<Shared>, isolation: Isolation) -> State {
        State {
            point: None,
            reads: ReadSet::default(),
            writes: Batch::new(engine.clone()),
            own: Own::default(),
            savepoints: Vec::new(),
            copies: 0,
            charge: Charge::default(),
            readers: 0,
            discarded: Vec::new(),
            validates: isolation == Isolation::Snapshot,
            has_entered: false,
            has_ended: false,
            is_cleared: false,
            pinned: Vec::new(),
        }
    }

    /// The read point, for a read that the commit validates if it is tracked.
    fn read_point(&mut self, engine: &Engine, is_tracked: bool) -> Snapshot {
        self.validates |= is_tracked;
        // Before the read point is chosen, so that commits after it leave footprints.
        self.enter(engine);
        self.point.get_or_insert_with(|| ReadFrom::newest(engine)).snapshot.clone()
    }

    /// Lets commits of other threads leave footprints, if there are both writes and something to validate.
    fn enter(&mut self, engine: &Engine) {
        if self.validates && !self.writes.is_empty() && !self.has_entered {
            engine.writer.footprints.enter();
            self.has_entered = true;
        }
    }

    /// Charges the memory of the transaction, with `more` bytes.
    fn charge(&mut self, engine: &Shared, more: usize) -> Result<()> {
        let bytes = self.bytes();
        self.charge.raise_to(engine, bytes + more)
    }

    /// The bytes of the writes, of the read set, of the copies of keys at the commit and of the savepoints.
    fn bytes(&self) -> usize {
        self.reads.bytes() + self.writes.bytes() + self.copies + size_of_val(&*self.savepoints)
    }
}

impl Inner {
    pub(super) fn begin(
        engine: &Arc<Shared>,
        options: TransactionOptions,
        as_of: ReadAsOf,
        turns: Vec<QueueNumber>,
    ) -> Result<Inner> {
        engine.access.check()?;
        let mut state = State::new(engine, options.isolation);
        if as_of == ReadAsOf::Beginning || options.isolation == Isolation::Snapshot {
            state.read_point(engine, false);
        }
        engine.figures.transactions.by_thread.mine().begun.fetch_add(1, Relaxed);
        Ok(Inner { engine: engine.clone(), options, turns, state: Mutex::new(state) })
    }

    /// The read point; `None` if it is not chosen, or if the transaction has ended.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        self.state.lock().point.as_ref().map(|point| point.snapshot.clone())
    }

    /// As [`Inner::snapshot`], but never waits for a thread that uses the transaction.
    pub(super) fn snapshot_if_idle(&self) -> Option<Snapshot> {
        self.state.try_lock()?.point.as_ref().map(|point| point.snapshot.clone())
    }

    /// Locks the state for an operation on a keyspace.
    fn lock(&self, keyspace: &Keyspace) -> Result<MutexGuard<'_, State>> {
        if !Arc::ptr_eq(&keyspace.engine, &self.engine) {
            return Err(Error::invalid(format!(
                "keyspace `{}` and the transaction belong to different stores; begin the transaction in the keyspace's \
                 store",
                keyspace.name()
            )));
        }
        self.lock_open()
    }

    fn lock_open(&self) -> Result<MutexGuard<'_, State>> {
        self.engine.access.check()?;
        let state = self.state.lock();
        if state.has_ended {
            return Err(Error::invalid("the transaction has ended; begin another one"));
        }
        Ok(state)
    }

    fn is_tracked(&self, tracking: Tracking) -> bool {
        match tracking {
            Tracking::Never => SeededBug::UntrackedReadsCount.is_on(),
            // Without writes nothing is validated.
            _ if self.options.read_only => false,
            Tracking::ByIsolation => self.options.isolation == Isolation::Serializable,
            Tracking::Always => !SeededBug::ForUpdateUntracked.is_on(),
        }
    }

    // ---- reads ----

    pub(super) fn get(&self, keyspace: &Keyspace, key: &[u8], tracking: Tracking) -> Result<Option<Value>> {
        self.find(keyspace, key, tracking, |key, own, snapshot| {
            read::get_after(&self.engine, &keyspace.state, key, own, snapshot)
        })
    }

    pub(super) fn contains(&self, keyspace: &Keyspace, key: &[u8], tracking: Tracking) -> Result<bool> {
        self.find(keyspace, key, tracking, |key, own, snapshot| {
            let found = read::contains_after(&self.engine, &keyspace.state, key, own, snapshot);
            found.map(|(exists, depends)| (exists.then_some(()), depends))
        })
        .map(|found| found.is_some())
    }

    /// Runs a lookup of a stored key after the own writes, and tracks the key if the result depends on the snapshot.
    fn find<T>(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        tracking: Tracking,
        look_up: impl FnOnce(&[u8], Option<&Memtable>, &Snapshot) -> Result<(Option<T>, bool)>,
    ) -> Result<Option<T>> {
        check_key(key)?;
        let (state, mut buf) = (&keyspace.state, Vec::new());
        let key = state.codec.stored(key, &mut buf);
        let mut inner = self.lock(keyspace)?;
        let is_tracked = self.is_tracked(tracking);
        let snapshot = inner.read_point(&self.engine, is_tracked);
        let State { writes, own, .. } = &mut *inner;
        let own = if own.may_have(state, key, writes)? { own.of(state, writes, &self.engine.chunks)? } else { None };
        let (found, depends) = match own {
            // The lock keeps the large values of the own writes.
            Some(own) => look_up(key, Some(own), &snapshot)?,
            None => {
                drop(inner);
                let found = look_up(key, None, &snapshot)?;
                inner = self.lock(keyspace)?;
                found
            }
        };
        let counts = found.is_some() || !SeededBug::AbsenceUntracked.is_on();
        if (depends || tracking == Tracking::Always) && counts && is_tracked {
            inner.reads.add_key(state, state.codec.hashed(key), Changes::All);
            inner.charge(&self.engine, 0)?;
        }
        Ok(found)
    }

    pub(super) fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: &[K],
        tracking: Tracking,
    ) -> Result<Vec<Option<Value>>> {
        let mut inner = self.lock(keyspace)?;
        let State { writes, own, .. } = &mut *inner;
        let (mut has_own, mut buf) = (false, Vec::new());
        for key in keys {
            has_own = has_own
                || own.may_have(&keyspace.state, keyspace.state.codec.stored(key.as_ref(), &mut buf), writes)?;
        }
        let is_tracked = self.is_tracked(tracking);
        let snapshot = inner.read_point(&self.engine, is_tracked);
        drop(inner);
        if has_own {
            return keys.iter().map(|key| self.get(keyspace, key.as_ref(), tracking)).collect();
        }
        let values = read::multi_get(&self.engine, &keyspace.state, keys, ReadPoint::At(&snapshot))?;
        if is_tracked {
            let (mut inner, state, mut buf) = (self.lock(keyspace)?, &keyspace.state, Vec::new());
            for key in keys {
                let key = state.codec.stored(key.as_ref(), &mut buf);
                inner.reads.add_key(state, state.codec.hashed(key), Changes::All);
            }
            inner.charge(&self.engine, 0)?;
        }
        Ok(values)
    }

    pub(super) fn range(self: &Arc<Self>, keyspace: &Keyspace, range: KeyRange, tracking: Tracking) -> Result<Range> {
        let state = &keyspace.state;
        let mut inner = self.lock(keyspace)?;
        let is_tracked = self.is_tracked(tracking);
        let snapshot = inner.read_point(&self.engine, is_tracked);
        let State { reads, writes, own, .. } = &mut *inner;
        let memtable = own.of(state, writes, &self.engine.chunks)?.cloned();
        let visible = seeded!(OwnWritesHiddenInRange: OWN, own.visible());
        let own = memtable.map(|memtable| OwnWrites { memtable, visible });
        let number = is_tracked.then(|| reads.add_range(state, range.clone()));
        inner.charge(&self.engine, 0)?;
        inner.readers += 1;
        let this = self.clone();
        let report: Report = Box::new(move |parts| this.end_reader(number, parts));
        drop(inner);
        let range = Range::new(&self.engine, state, range, Some(&snapshot));
        Ok(range.of_transaction(own, Some(report)))
    }

    /// Called when an iterator is dropped: notes which parts of its range it has passed, if it is tracked.
    fn end_reader(&self, number: Option<usize>, parts: Vec<KeyRange>) {
        let mut inner = self.state.lock();
        if let Some(number) = number
            && !inner.has_ended
        {
            inner.reads.replace(number, parts);
            // If this exceeds the limit, the next write or tracked read fails.
            let _ = inner.charge(&self.engine, 0);
        }
        inner.readers -= 1;
        self.free_discarded(&mut inner);
    }

    /// Frees the large values of discarded writes, unless an iterator may read them.
    fn free_discarded(&self, inner: &mut State) {
        if inner.readers == 0 {
            self.engine.give_back_blobs(&std::mem::take(&mut inner.discarded));
            if inner.has_ended {
                inner.writes.clear();
                inner.pinned.clear();
                inner.charge.lower_to(&self.engine, 0);
            }
        }
    }

    /// Tracks a range without reading it.
    pub(super) fn track(&self, keyspace: &Keyspace, range: KeyRange) -> Result<()> {
        keyspace.state.check_sorted(&range)?;
        let mut inner = self.lock(keyspace)?;
        inner.read_point(&self.engine, true);
        inner.reads.add_range(&keyspace.state, range);
        inner.charge(&self.engine, 0)
    }

    // ---- writes ----

    /// Adds a write of about `bytes` bytes to the batch. Under snapshot isolation it will have up to `copy` bytes in
    /// the read set at the commit.
    pub(super) fn write(
        &self,
        keyspace: &Keyspace,
        bytes: usize,
        copy: usize,
        add: impl FnOnce(&mut Batch),
    ) -> Result<()> {
        let mut inner = self.lock(keyspace)?;
        if self.options.read_only {
            return Err(Error::invalid("the transaction was begun as read-only; begin it without `read_only`"));
        }
        if inner.writes.is_empty() {
            self.engine.check_writable()?;
        }
        let copy = if self.options.isolation == Isolation::Snapshot { copy } else { 0 };
        let before = inner.writes.bytes();
        let would_be = before + bytes + MOST_OVERHEAD;
        if would_be > MAX_BATCH {
            return Err(Error::TransactionTooLarge { bytes: would_be as u64, limit: MAX_BATCH as u64 });
        }
        inner.charge(&self.engine, bytes + copy)?;
        add(&mut inner.writes);
        if inner.writes.bytes() > before {
            inner.copies += copy;
        }
        inner.enter(&self.engine);
        inner.writes.take_error()
    }

    pub(super) fn savepoint(&self) -> Result<Savepoint> {
        let mut inner = self.lock_open()?;
        inner.charge(&self.engine, size_of::<Place>())?;
        let number = self.engine.figures.transactions.savepoints.fetch_add(1, Relaxed);
        let savepoint = Savepoint { of: std::ptr::from_ref(self).addr(), number };
        let place = Place { savepoint, mark: inner.writes.mark(), copies: inner.copies };
        inner.savepoints.push(place);
        Ok(savepoint)
    }

    /// Removes a savepoint and all later ones. Returns its place.
    fn take_savepoint(inner: &mut State, savepoint: Savepoint) -> Result<Place> {
        let at = inner.savepoints.iter().rposition(|place| place.savepoint == savepoint);
        let at = at.ok_or_else(|| {
            Error::invalid("the savepoint does not exist: it was released, or belongs to another transaction")
        })?;
        let place = inner.savepoints[at];
        inner.savepoints.truncate(at);
        Ok(place)
    }

    pub(super) fn release(&self, savepoint: Savepoint) -> Result<()> {
        Self::take_savepoint(&mut *self.lock_open()?, savepoint).map(|_| ())
    }

    pub(super) fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        let mut inner = self.lock_open()?;
        let place = Self::take_savepoint(&mut inner, savepoint)?;
        inner.savepoints.push(place);
        let blobs = inner.writes.rewind(place.mark);
        inner.copies = place.copies;
        inner.discarded.extend(blobs);
        self.free_discarded(&mut inner);
        let bytes = inner.writes.bytes();
        inner.own.rewind(seeded!(SavepointKeepsOwnWrites: usize::MAX, bytes));
        Ok(())
    }

    // ---- the end ----

    pub(super) fn commit(&self) -> Result<Option<u64>> {
        let mut inner = self.lock_open()?;
        inner.has_ended = true;
        let committed = self.validate_and_write(&mut inner);
        self.engine.figures.transactions.count(&committed);
        self.end(&mut inner);
        committed
    }

    fn validate_and_write(&self, inner: &mut State) -> Result<Option<u64>> {
        if inner.readers > 0 {
            inner.pinned = inner.writes.keyspaces().iter().map(|keyspace| keyspace.index.view()).collect();
        }
        if inner.writes.is_empty() {
            // All reads were of one snapshot, so the transaction takes its place in the order there.
            return Ok(None);
        }
        if self.options.isolation == Isolation::Snapshot {
            inner.copies = 0;
            add_written_keys(&mut inner.reads, &inner.writes)?;
        }
        let State { point, reads, writes, has_entered, .. } = inner;
        let durability = self.options.durability.unwrap_or(self.engine.config.durability);
        if reads.is_empty() {
            return writes.commit_validated(durability, None);
        }
        debug_assert!(*has_entered, "what is validated was announced");
        self.let_others_pass(reads);
        reads.sort();
        let validation = Validation::new(reads, point.as_ref().expect("a transaction that has read has a read point"));
        writes.commit_validated(durability, Some(&validation))
    }

    /// Lets threads commit first that have waited for their turn to change what this transaction has read.
    fn let_others_pass(&self, reads: &ReadSet) {
        let queues = &self.engine.queues;
        if queues.are_in_use() {
            for (keyspace, key) in reads.first_keys(MOST_QUEUES) {
                let number = QueueNumber::of(keyspace, key);
                if !self.turns.contains(&number) {
                    queues.let_pass(number);
                }
            }
        }
    }

    /// Ends the transaction without writing anything, unless it has ended.
    pub(super) fn rollback(&self) {
        let mut inner = self.state.lock();
        inner.has_ended = true;
        // A commit that panicked has not done this.
        if !inner.is_cleared {
            self.end(&mut inner);
        }
    }

    fn end(&self, inner: &mut State) {
        inner.is_cleared = true;
        if std::mem::take(&mut inner.has_entered) {
            self.engine.writer.footprints.leave();
        }
        inner.savepoints = Vec::new();
        (inner.point, inner.reads, inner.own) = (None, ReadSet::default(), Own::default());
        // An open iterator keeps the writes, because it may read their large values.
        inner.charge.lower_to(&self.engine, inner.writes.bytes());
        self.free_discarded(inner);
        self.engine.figures.transactions.by_thread.mine().ended.fetch_add(1, Relaxed);
    }
}

/// Adds the keys and ranges of all writes to those that must not have changed.
fn add_written_keys(reads: &mut ReadSet, writes: &Batch) -> Result<()> {
    let mut buf = Vec::new();
    for op in Ops::new(writes.payload()) {
        let op = op?;
        let keyspace: &Arc<KeyspaceState> = writes.keyspace(op.keyspace);
        let changes = match op.kind {
            Kind::RangeDelete => {
                let range = KeyRange::new(op.key, op.value);
                reads.add_range(keyspace, seeded!(OwnRangeUnprotected: KeyRange::none(), range));
                continue;
            }
            // Concurrent merges do not conflict with each other.
            Kind::Merge => Changes::Replacements,
            _ => seeded!(PutOverlooksMerge: Changes::Replacements, Changes::All),
        };
        let key = keyspace.codec.stored(op.key, &mut buf);
        reads.add_key(keyspace, keyspace.codec.hashed(key), changes);
    }
    Ok(())
}

/// The bounds of a range of keys.
pub(super) fn bounds(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let to = if range.to.is_empty() { Bound::Unbounded } else { Bound::Excluded(range.to.as_slice()) };
    (Bound::Included(range.from.as_slice()), to)
}
