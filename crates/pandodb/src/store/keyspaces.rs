//! The table of a store's open keyspaces, by id and by name, and the memory of their active memtables.
//!
//! Locks: only the lock of the table. A write does not take this lock, because it already has its keyspace, and because
//! the debt of all keyspaces is kept as a sum ([`crate::index::owed`]). A thread that walks the table first clones the
//! `Arc`s and then releases the lock. Therefore a thread that walks the keyspaces never delays a creation. A waiting
//! creation would in turn delay the next reader of the table.
//!
//! Invariant: while no writer is active, `active_bytes` is the sum of the bytes that are charged for all keyspaces.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::state::KeyspaceState;
use super::watermark::CachePadded;
use crate::base::KeyspaceId;
use crate::base::sync::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
    RwLock,
};

/// The open keyspaces of a store.
#[derive(Default)]
pub(crate) struct Keyspaces {
    table: RwLock<Table>,
    /// The bytes in all active memtables. Commits add and subtract in any order, so read the value through
    /// [`Keyspaces::active`].
    active_bytes: CachePadded<AtomicU64>,
    /// The number of active memtables that are not empty. Commits change it in any order, too, so read it through
    /// [`Keyspaces::occupied`].
    occupied: CachePadded<AtomicU64>,
    /// The bytes of pages that keyspaces without memtables have not written yet. Read it through
    /// [`Keyspaces::unwritten`].
    unwritten: CachePadded<AtomicU64>,
}

/// The state that the lock guards.
#[derive(Default)]
pub(crate) struct Table {
    by_id: BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
    by_name: HashMap<String, KeyspaceId>,
}

impl Keyspaces {
    /// Locks the table for reading.
    pub(crate) fn read(&self) -> impl Deref<Target = Table> + '_ {
        #[cfg(test)]
        tests::READS.set(tests::READS.get() + 1);
        self.table.read()
    }

    /// Locks the table for writing. REQUIRES: the caller holds the durable root. If the opening of the store is
    /// complete, the caller also holds the sequencer.
    pub(crate) fn write(&self) -> impl DerefMut<Target = Table> + '_ {
        self.table.write()
    }

    /// All keyspaces in the order of their ids.
    pub(crate) fn all(&self) -> Vec<Arc<KeyspaceState>> {
        self.read().by_id.values().cloned().collect()
    }

    /// Counts the call if the table is locked, although a thread that walks the keyspaces must have released the lock.
    #[cfg(test)]
    pub(crate) fn note_if_held(&self) {
        tests::HELD.set(tests::HELD.get() + u64::from(self.table.try_write().is_none()));
    }

    /// The keyspace with the id `id`.
    pub(crate) fn get(&self, id: KeyspaceId) -> Option<Arc<KeyspaceState>> {
        self.read().by_id.get(&id).cloned()
    }

    /// The keyspace with the name `name`.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<KeyspaceState>> {
        let table = self.read();
        table.by_name.get(name).and_then(|id| table.by_id.get(id)).cloned()
    }

    // ---- memory ----

    /// Bytes in all active memtables.
    #[inline]
    pub(crate) fn active(&self) -> u64 {
        // The sum may be negative for a moment: if range tombstones made a memtable smaller, this thread may see the
        // subtraction of bytes before their addition.
        self.active_bytes.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// The number of active memtables that are not empty.
    #[inline]
    pub(crate) fn occupied(&self) -> u64 {
        self.occupied.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Charges the growth of a keyspace's active memtable. Other threads may do the same concurrently.
    #[inline]
    pub(crate) fn charge_growth(&self, keyspace: &KeyspaceState) {
        loop {
            // Load this value before the size of the memtable. If the exchange succeeds, the size is newer than the
            // value that it replaces.
            let before = keyspace.charged.load(Acquire);
            let bytes = keyspace.active_bytes() as u64;
            if bytes == before {
                return;
            }
            if keyspace.charged.compare_exchange(before, bytes, AcqRel, Relaxed).is_ok() {
                return self.change_active(before, bytes);
            }
        }
    }

    /// Sets the bytes that are charged for a keyspace's active memtable. REQUIRES: the sequencer is quiesced, or no
    /// other thread uses the store.
    pub(crate) fn charge(&self, keyspace: &KeyspaceState, bytes: u64) {
        self.change_active(keyspace.charged.swap(bytes, AcqRel), bytes);
    }

    fn change_active(&self, before: u64, after: u64) {
        if after >= before {
            self.active_bytes.fetch_add(after - before, Relaxed);
        } else {
            self.active_bytes.fetch_sub(before - after, Relaxed);
        }
        match (before, after) {
            (0, 1..) => self.occupied.fetch_add(1, Relaxed),
            (1.., 0) => self.occupied.fetch_sub(1, Relaxed),
            _ => 0,
        };
    }

    /// The bytes of pages that keyspaces without memtables have not written yet, as of their last writes.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Sets the bytes of pages that a keyspace has not written yet. Has no effect if the keyspace was dropped.
    pub(crate) fn note_unwritten(&self, keyspace: &KeyspaceState, bytes: u64) {
        let set = |bytes: u64| {
            let before = keyspace.unwritten.swap(bytes, AcqRel);
            self.unwritten.fetch_add(bytes.wrapping_sub(before), Relaxed);
        };
        set(bytes);
        // The drop sets the flag before it sets the bytes to 0.
        if bytes > 0 && keyspace.dropped.load(Relaxed) {
            set(0);
        }
    }

    /// Asserts that the sums equal the sums that a walk over all keyspaces computes. REQUIRES: the sequencer is
    /// quiesced.
    pub(crate) fn check_sums(&self) {
        if cfg!(debug_assertions) {
            let charged: Vec<u64> = self.all().iter().map(|keyspace| keyspace.charged.load(Acquire)).collect();
            assert_eq!(self.active(), charged.iter().sum::<u64>(), "bytes of active memtables");
            assert_eq!(self.occupied(), charged.iter().filter(|&&bytes| bytes > 0).count() as u64, "active memtables");
        }
    }
}

impl Table {
    /// Adds a keyspace. REQUIRES: no other keyspace has its id or name.
    pub(crate) fn insert(&mut self, state: Arc<KeyspaceState>) {
        let named = self.by_name.insert(state.name.clone(), state.id);
        assert!(named.is_none(), "keyspace `{}` exists", state.name);
        let numbered = self.by_id.insert(state.id, state);
        assert!(numbered.is_none(), "an id is given out once");
    }

    /// Removes a keyspace.
    pub(crate) fn remove(&mut self, id: KeyspaceId) {
        if let Some(state) = self.by_id.remove(&id) {
            let named = self.by_name.remove(&state.name);
            assert_eq!(named, Some(id), "both maps name the same keyspaces");
        }
    }
}

impl Deref for Table {
    type Target = BTreeMap<KeyspaceId, Arc<KeyspaceState>>;

    fn deref(&self) -> &Self::Target {
        &self.by_id
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::super::Store;
    use super::super::writer::tests::QUIESCED;
    use crate::base::KeyRange;
    use crate::device::MemDevice;
    use crate::index::Debt;

    thread_local! {
        /// The number of times that this thread has read the table.
        pub(in super::super) static READS: Cell<u64> = const { Cell::new(0) };
        /// The number of keyspaces that walks of this thread visited while the table was locked.
        pub(super) static HELD: Cell<u64> = const { Cell::new(0) };
    }

    fn store(keyspaces: usize, memory_budget: usize) -> Store {
        let builder = Store::builder("many").device(MemDevice::new());
        let store = builder.background_threads(0).memory_budget(memory_budget).open().expect("a new store");
        (0..keyspaces).for_each(|i| drop(store.keyspace(&format!("keyspace {i}")).expect("a new keyspace")));
        store
    }

    /// Returns how often the table is read during `puts` puts into the first of `keyspaces` keyspaces.
    fn reads_of(keyspaces: usize, puts: u32) -> u64 {
        let store = store(keyspaces, 64 << 20);
        let keyspace = store.keyspace("keyspace 0").expect("it is there");
        let before = READS.get();
        (0..puts).for_each(|i| keyspace.put(i.to_be_bytes(), "value").expect("written"));
        READS.get() - before
    }

    #[test]
    fn a_put_reads_no_table_however_many_keyspaces_there_are() {
        assert_eq!((reads_of(1, 200), reads_of(500, 200)), (0, 0));
    }

    #[test]
    fn statistics_are_gathered_without_the_table() {
        let store = store(3, 64 << 20);
        let before = HELD.get();
        assert_eq!(store.engine.stats().expect("told").keyspaces.len(), 3);
        assert_eq!(HELD.get(), before);
        let held = store.engine.keyspaces.read();
        store.engine.keyspaces.note_if_held();
        drop(held);
        assert_eq!(HELD.get(), before + 1, "a held table is noticed");
    }

    #[test]
    fn a_checkpoint_holds_writers_back_as_often_whatever_the_number_of_keyspaces() {
        let settled = |keyspaces| {
            let store = store(keyspaces, 64 << 20);
            let before = QUIESCED.get();
            store.engine.checkpoint().expect("taken");
            QUIESCED.get() - before
        };
        assert_eq!((settled(1), settled(100)), (1, 1));
    }

    #[test]
    fn writers_do_not_pay_for_a_compaction_that_was_asked_for() {
        let store = store(1, 1 << 20);
        let keyspace = store.keyspace("keyspace 0").expect("it is there");
        (0..16_000u32).for_each(|i| keyspace.put(i.to_be_bytes(), [7; 300]).expect("written"));
        (0..160u32).for_each(|i| keyspace.delete((i * 100).to_be_bytes()).expect("deleted"));
        store.settle().expect("settled");
        assert_eq!(store.engine.debt(), Debt::default());
        keyspace.state.index.compact(&KeyRange::all()).expect("asked for");
        let debt = store.engine.debt();
        assert!(debt.requested_bytes > 1 << 20 && debt.work_bytes == 0, "{debt:?}");
        assert_eq!(debt.total(), debt.requested_bytes);
        for _ in 0..4 {
            store.engine.turn_alone(16 << 10);
            let debt = store.engine.debt();
            assert!(debt.requested_bytes > 0 && debt.work_bytes == 0, "a compaction in progress: {debt:?}");
        }
        store.settle().expect("settled");
        assert_eq!(store.engine.debt(), Debt::default());
    }

    #[test]
    fn a_large_value_pays_for_the_bytes_of_its_reference() {
        let store = store(1, 1 << 20);
        let keyspace = store.keyspace("keyspace 0").expect("it is there");
        let mut i = 0u32;
        while store.engine.debt().work_bytes < 1 << 20 {
            i += 1;
            keyspace.put(i.wrapping_mul(0x9e37_79b9).to_be_bytes(), [7; 300]).expect("written");
        }
        let before = store.engine.debt().total();
        keyspace.put("large", vec![7; 4 << 20]).expect("written");
        let done = before.saturating_sub(store.engine.debt().total());
        assert!(done < 64 << 10, "the writer has done {done} bytes of {before} that were owed");
    }

    #[test]
    fn the_sum_of_what_is_owed_equals_a_walk() {
        let store = store(40, 1 << 20);
        let walk = || {
            store.engine.keyspaces.all().iter().fold(Debt::default(), |sum, keyspace| {
                let debt = keyspace.index.debt();
                Debt {
                    memory_bytes: sum.memory_bytes + debt.memory_bytes,
                    work_bytes: sum.work_bytes + debt.work_bytes,
                    requested_bytes: sum.requested_bytes + debt.requested_bytes,
                    optional_bytes: sum.optional_bytes + debt.optional_bytes,
                    deadline: None,
                }
            })
        };
        let mut owed = 0;
        for round in 0..4_000u32 {
            let name = format!("keyspace {}", round % 40);
            let keyspace = store.keyspace(&name).expect("it is there");
            keyspace.put(round.to_be_bytes(), [7; 300]).expect("written");
            assert_eq!(store.engine.debt(), walk(), "round {round}");
            owed += u64::from(walk().total() > 0);
            if round % 1_000 == 999 {
                store.drop_keyspace(&name).expect("dropped");
                drop(store.keyspace(&name).expect("created again"));
                assert_eq!(store.engine.debt(), walk(), "after the drop of {name}");
            }
        }
        assert!(owed > 100, "a test that owes nothing shows nothing: {owed}");
    }
}
