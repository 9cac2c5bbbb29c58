//! [`Part`]: the messages in memory for the keys of one child of the root.
//!
//! ```text
//!   active    [ seqnos above 9 ]                    commits insert here
//!   sealed    [ seqnos 5 to 9 ]  [ up to 4 ]        bounds 9 and 4; a late commit with seqno 8 inserts into the first
//! ```
//!
//! Invariant: the bounds of sealed memtables that share a key decrease from the newest to the oldest one.

use std::sync::Arc;

use crate::base::range::subtract;
use crate::base::sync::{AtomicUsize, Ordering::Relaxed, RwLock};
use crate::base::{Entry, Fragments, KeyRange, RangeTombstone, Result, Seqno, seeded};
use crate::index::{Base, Changes, Lookup};
use crate::memtable::{ChunkPool, Memtable};

/// The memory that a message takes beside its key and value, approximately.
const OVERHEAD: usize = 40;

/// The bytes for which a message counts in memory.
pub fn weight(entry: &Entry<'_>) -> usize {
    entry.key.len() + entry.value.len() + OVERHEAD
}

/// The memtable of a part into which commits insert.
pub struct Active {
    pub memtable: Arc<Memtable>,
    pub weight: AtomicUsize,
}

impl Active {
    pub fn new(chunks: &Arc<ChunkPool>) -> Arc<Active> {
        Arc::new(Active { memtable: Arc::new(Memtable::new(0, chunks.clone())), weight: AtomicUsize::new(0) })
    }
}

/// A memtable of a part, or some keys of one, that waits to be written.
pub struct Sealed {
    /// The keys that belong to the part.
    pub keys: KeyRange,
    /// The newest seqno that the memtable had when it was sealed.
    pub bound: Seqno,
    pub memtable: Arc<Memtable>,
    pub weight: AtomicUsize,
}

impl Sealed {
    /// Some keys of the memtable, which count for `weight` bytes.
    pub fn clip(&self, keys: KeyRange, weight: usize) -> Arc<Sealed> {
        debug_assert!(self.keys.covers(&keys), "a clip has some of the keys");
        let (bound, memtable) = (self.bound, self.memtable.clone());
        Arc::new(Sealed { keys, bound, memtable, weight: AtomicUsize::new(weight) })
    }
}

/// The memtables of a part.
#[derive(Clone)]
pub struct Stack {
    pub active: Arc<Active>,
    /// The newest first.
    pub sealed: Vec<Arc<Sealed>>,
    /// Whether a newer state lacks the part. Then it takes no more messages.
    pub is_replaced: bool,
}

impl Stack {
    /// The memtables that may have messages of `key`, newest first.
    fn with_key<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = &'a Arc<Memtable>> {
        let sealed = self.sealed.iter().filter(move |sealed| sealed.keys.contains(key)).map(|sealed| &sealed.memtable);
        std::iter::once(&self.active.memtable).chain(sealed)
    }

    /// The memtables with messages for some of `keys`, newest first, each with the keys that belong to the part.
    pub fn in_keys(&self, keys: &KeyRange) -> Vec<(KeyRange, Arc<Memtable>)> {
        let is_used = self.active.weight.load(Relaxed) > 0;
        let active = is_used.then(|| (keys.clone(), self.active.memtable.clone()));
        let sealed = self.sealed.iter().map(|sealed| (sealed.keys.intersect(keys), sealed.memtable.clone()));
        active.into_iter().chain(sealed).filter(|(keys, _)| !keys.is_empty()).collect()
    }

    /// The weights of all memtables.
    pub fn weight(&self) -> usize {
        let sealed: usize = self.sealed.iter().map(|sealed| sealed.weight.load(Relaxed)).sum();
        self.active.weight.load(Relaxed) + sealed
    }

    /// Seals the active memtable, unless it is empty. `keys` are those of the part. With `chunks`, an empty memtable takes
    /// its place; without, the part is not used any more. REQUIRES: no commit inserts into the memtable.
    pub fn seal(&mut self, keys: &KeyRange, chunks: Option<&Arc<ChunkPool>>) {
        let Some((_, newest)) = self.active.memtable.seqno_range() else { return };
        let active = self.active.clone();
        if let Some(chunks) = chunks {
            self.active = Active::new(chunks);
        }
        let weight = AtomicUsize::new(active.weight.load(Relaxed));
        let sealed = Sealed { keys: keys.clone(), bound: newest, memtable: active.memtable.clone(), weight };
        let is_older = |older: &Arc<Sealed>| older.keys != *keys || older.bound < sealed.bound;
        debug_assert!(self.sealed.iter().all(is_older), "bounds decrease");
        self.sealed.insert(0, Arc::new(sealed));
    }

    /// The oldest sealed memtable to which a message of `key` with the seqno belongs; `None` if it belongs to the
    /// active one.
    fn late(&self, key: &[u8], seqno: Seqno) -> Option<&Arc<Sealed>> {
        if self.sealed.is_empty() || seeded!(PartLateMessageActive: true, false) {
            return None;
        }
        self.sealed.iter().rev().find(|sealed| sealed.bound >= seqno && sealed.keys.contains(key))
    }
}

/// The messages in memory for a range of keys.
pub struct Part {
    pub keys: KeyRange,
    /// Commits insert while they hold the lock for reading. A thread that holds it for writing changes the list of
    /// memtables.
    pub stack: RwLock<Stack>,
}

impl Part {
    /// A part without messages.
    pub fn new(keys: KeyRange, chunks: &Arc<ChunkPool>) -> Arc<Part> {
        Part::with(keys, Active::new(chunks), Vec::new())
    }

    pub fn with(keys: KeyRange, active: Arc<Active>, sealed: Vec<Arc<Sealed>>) -> Arc<Part> {
        debug_assert!(sealed.iter().all(|sealed| keys.covers(&sealed.keys)), "a part has only messages of its keys");
        Arc::new(Part { keys, stack: RwLock::new(Stack { active, sealed, is_replaced: false }) })
    }

    /// Inserts a message, and adds its weight to `bytes`. Returns false if the part was replaced.
    pub fn insert(&self, entry: Entry<'_>, bytes: &AtomicUsize) -> bool {
        debug_assert!(self.keys.contains(entry.key), "a part has only messages of its keys");
        let stack = self.stack.read();
        if stack.is_replaced {
            return false;
        }
        let (memtable, counter) = match stack.late(entry.key, entry.seqno) {
            Some(sealed) => (&sealed.memtable, &sealed.weight),
            None => (&stack.active.memtable, &stack.active.weight),
        };
        // Before the insertion: a reader passes a memtable of weight 0.
        counter.fetch_add(weight(&entry), Relaxed);
        bytes.fetch_add(weight(&entry), Relaxed);
        memtable.insert(entry);
        true
    }

    /// Inserts the piece of a range tombstone that has keys of the part. Returns false if the part was replaced.
    pub fn insert_range(&self, tombstone: &RangeTombstone, bytes: &AtomicUsize) -> bool {
        let stack = self.stack.read();
        if stack.is_replaced {
            return false;
        }
        let seqno = tombstone.seqno;
        let mut rest = vec![tombstone.range.intersect(&self.keys)];
        let insert = |range: KeyRange, memtable: &Memtable, counter: &AtomicUsize| {
            let weight = range.from.len() + range.to.len() + OVERHEAD;
            counter.fetch_add(weight, Relaxed);
            bytes.fetch_add(weight, Relaxed);
            memtable.insert_range(&RangeTombstone { range, seqno });
        };
        for sealed in stack.sealed.iter().rev().filter(|sealed| sealed.bound >= seqno) {
            for range in &rest {
                let late = range.intersect(&sealed.keys);
                if !late.is_empty() {
                    insert(late, &sealed.memtable, &sealed.weight);
                }
            }
            rest = rest.iter().flat_map(|range| subtract(range, std::slice::from_ref(&sealed.keys))).collect();
        }
        rest.into_iter().for_each(|range| insert(range, &stack.active.memtable, &stack.active.weight));
        true
    }

    /// Searches the memtables for the messages of a lookup.
    ///
    /// # Errors
    /// If a message is malformed.
    pub fn search(&self, lookup: &mut Lookup<'_>) -> Result<()> {
        let (stack, key, at) = (self.stack.read(), lookup.key, lookup.at);
        for memtable in stack.with_key(key) {
            let mut result = Ok(());
            lookup.enter(memtable.covering(key, at));
            memtable.get(key, at, &mut |entry| match lookup.take(&entry, || Base::Owned(entry.value.into())) {
                Ok(flow) => flow.is_continue(),
                Err(e) => {
                    result = Err(e);
                    false
                }
            });
            result?;
            lookup.leave();
            if lookup.is_done() {
                break;
            }
        }
        Ok(())
    }

    /// Whether a memtable has a change of `key` above `since`.
    pub fn has_changed(&self, key: &[u8], since: Seqno, changes: Changes) -> bool {
        let stack = self.stack.read();
        stack.with_key(key).any(|memtable| {
            let mut found = memtable.covering(key, Seqno::MAX) > since;
            memtable.get(key, Seqno::MAX, &mut |entry| {
                found |= entry.seqno > since && changes.include(entry.kind);
                !found && entry.seqno > since
            });
            found
        })
    }

    /// Calls `visit` with the range tombstones of each memtable, and the keys for which they count.
    pub fn tombstones(&self, keys: &KeyRange, mut visit: impl FnMut(&Fragments, &KeyRange)) {
        let memtables = self.stack.read().in_keys(&self.keys.intersect(keys));
        let mut sets = Vec::new();
        for (keys, memtable) in memtables {
            sets.clear();
            memtable.tombstones(&mut sets);
            sets.iter().for_each(|set| visit(set, &keys));
        }
    }
}
