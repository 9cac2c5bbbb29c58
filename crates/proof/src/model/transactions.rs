//! Transactions in random histories: reads and writes in any order, with plain writes and background work in between.
//!
//! 1. Every read must see the state at the beginning and the transaction's own writes.
//! 2. At the end, the model runs the same operations again on its newest state. If a read of a serialisable transaction
//!    would see something else there, the commit must have a conflict.
//! 3. A conflict must have a cause: a plain write to a key or a range that the transaction has read, or has written
//!    under snapshot isolation.
//! 4. Under snapshot isolation, a plain write of a key that the transaction writes must be a conflict, unless both
//!    merge.
//! 5. After a conflict or a rollback nothing of the transaction may exist. The comparisons of later actions check this.
//! 6. A rollback to a savepoint discards writes. The reads in between saw these writes, and still count.

use std::ops::Bound;

use pandodb::{Durability, Error, Isolation, Savepoint, Transaction, TransactionOptions};

use super::tables::{Bounds, Bytes, Model, SLOTS, Write, prefix_bounds, within};
use super::world::{World, Wrong, check};
use crate::script::Rng;

/// Keys from the first one up to the second one (excluded); `None` is the end of the keyspace.
type Span = (Vec<u8>, Option<Vec<u8>>);

/// The call with which a transaction reads a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Get,
    Contains,
    MultiGet,
    ForUpdate,
    Untracked,
}

const WAYS: [Way; 5] = [Way::Get, Way::Contains, Way::MultiGet, Way::ForUpdate, Way::Untracked];

/// A read of a key.
struct Get {
    slot: usize,
    key: Vec<u8>,
    seen: Option<Bytes>,
    /// Whether only the transaction's own writes determine the value.
    is_own: bool,
    way: Way,
}

impl Get {
    /// Whether a change of the key is a conflict.
    fn is_tracked(&self, isolation: Isolation) -> bool {
        match self.way {
            Way::Untracked => false,
            Way::ForUpdate => true,
            _ => isolation == Isolation::Serializable && !self.is_own,
        }
    }
}

/// An operation of a transaction.
enum Act {
    Write(Write),
    Get(Get),
    /// A slot, a part of the keyspace, and the rows that were seen there.
    Scan(usize, Bounds, Vec<(Vec<u8>, Bytes)>),
    /// A savepoint with a number.
    Mark(usize),
    /// A rollback to the savepoint with this number.
    Return(usize),
}

/// The writes that were not rolled back.
fn writes(acts: &[Act]) -> Vec<&Write> {
    let (mut writes, mut marks) = (Vec::new(), Vec::new());
    for act in acts {
        match act {
            Act::Write(write) => writes.push(write),
            Act::Mark(number) => marks.push((*number, writes.len())),
            Act::Return(number) => {
                let (_, len) = marks.iter().find(|(mark, _)| mark == number).expect("a mark precedes its return");
                writes.truncate(*len);
            }
            Act::Get(_) | Act::Scan(..) => {}
        }
    }
    writes
}

fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn point(key: &[u8]) -> Span {
    (key.to_vec(), Some(after(key)))
}

fn span((from, to): &Bounds) -> Span {
    let from = match from {
        Bound::Included(key) => key.clone(),
        Bound::Excluded(key) => after(key),
        Bound::Unbounded => Vec::new(),
    };
    let to = match to {
        Bound::Included(key) => Some(after(key)),
        Bound::Excluded(key) => Some(key.clone()),
        Bound::Unbounded => None,
    };
    (from, to)
}

fn overlap(a: &Span, b: &Span) -> bool {
    let is_empty = |span: &Span| span.1.as_ref().is_some_and(|to| *to <= span.0);
    let below = |from: &Vec<u8>, to: &Option<Vec<u8>>| to.as_ref().is_none_or(|to| from < to);
    !is_empty(a) && !is_empty(b) && below(&a.0, &b.1) && below(&b.0, &a.1)
}

/// The keys that a write changes.
fn spans(write: &Write) -> (usize, Vec<Span>) {
    match write {
        Write::Put(slot, key, _) | Write::Delete(slot, key) | Write::Merge(slot, key, _) => (*slot, vec![point(key)]),
        Write::DeleteRange(slot, bounds) => (*slot, vec![span(bounds)]),
        Write::DeletePrefix(slot, prefix) => (*slot, vec![span(&prefix_bounds(prefix))]),
        Write::Load(slot, rows) => (*slot, rows.iter().map(|(key, _)| point(key)).collect()),
    }
}

/// Whether a plain write touches some keys.
fn touches(write: &Write, slot: usize, keys: &Span) -> bool {
    let (other, spans) = spans(write);
    other == slot && spans.iter().any(|span| overlap(span, keys))
}

/// Whether a plain write is a cause for a conflict.
fn is_cause(acts: &[Act], isolation: Isolation, write: &Write) -> bool {
    let by_reads = acts.iter().any(|act| match act {
        Act::Get(get) => get.is_tracked(isolation) && touches(write, get.slot, &point(&get.key)),
        Act::Scan(slot, bounds, _) => isolation == Isolation::Serializable && touches(write, *slot, &span(bounds)),
        _ => false,
    });
    by_reads
        || isolation == Isolation::Snapshot
            && writes(acts).into_iter().any(|mine| {
                let (slot, spans) = spans(mine);
                let merges = matches!((mine, write), (Write::Merge(..), Write::Merge(..)));
                !merges && spans.iter().any(|keys| touches(write, slot, keys))
            })
}

/// Whether a plain write certainly conflicts with a write of a transaction under snapshot isolation. `model` is the
/// state now. A change of a key that has no value now is left out, because it may leave no trace in the store.
fn must_conflict(acts: &[Act], others: &[Write], model: &Model) -> bool {
    let has_value = |slot: usize, key: &Vec<u8>| model.table(slot).is_some_and(|table| table.contains_key(key));
    others.iter().any(|other| match other {
        Write::Put(slot, key, _) | Write::Merge(slot, key, _) if has_value(*slot, key) => {
            is_cause(acts, Isolation::Snapshot, other)
        }
        _ => false,
    })
}

/// Whether every read that the commit checks would see the same if the transaction ran as a whole on this state.
fn holds(acts: &[Act], isolation: Isolation, mut model: Model) -> bool {
    let mut marks: Vec<(usize, Model)> = Vec::new();
    acts.iter().all(|act| match act {
        Act::Write(write) => {
            model.apply(write);
            true
        }
        Act::Get(get) => {
            let found = model.table(get.slot).and_then(|table| table.get(&get.key));
            let is_same = if get.way == Way::Contains {
                found.is_some() == get.seen.is_some()
            } else {
                found == get.seen.as_ref()
            };
            is_same || !get.is_tracked(isolation)
        }
        Act::Scan(slot, bounds, seen) => {
            isolation == Isolation::Snapshot || model.table(*slot).is_some_and(|table| within(table, bounds) == *seen)
        }
        Act::Mark(number) => {
            marks.push((*number, model.clone()));
            true
        }
        Act::Return(number) => {
            let mark = marks.iter().find(|(mark, _)| mark == number);
            model = mark.expect("a mark precedes its return").1.clone();
            true
        }
    })
}

impl World {
    /// Runs one transaction.
    pub fn transact(&mut self, there: &[usize], rng: &mut Rng) -> Result<(), Wrong> {
        self.bound_lazy()?;
        let isolation = if rng.chance(60) { Isolation::Serializable } else { Isolation::Snapshot };
        let durability = [Durability::None, Durability::Buffered, Durability::Synced][rng.index(3)];
        let tx = self.store.begin(TransactionOptions::new().isolation(isolation).durability(durability))?;
        let (mut acts, mut others, mut state) = (Vec::new(), Vec::new(), self.model.clone());
        let mut savepoints: Vec<(Savepoint, usize, Model)> = Vec::new();
        let hot = [(); 2].map(|()| {
            let slot = there[rng.index(there.len())];
            let (key, table) = (self.config.key(rng), self.model.table(slot).expect("it is there"));
            let existing = if rng.chance(75) { table.range(key.clone()..).next() } else { None };
            (slot, existing.map_or(key, |(found, _)| found.clone()))
        });
        for _ in 0..1 + rng.index(16) {
            let slot = there[rng.index(there.len())];
            match rng.index(24) {
                0..7 => {
                    let write = self.draw_write(slot, &hot, rng);
                    self.write_in(&tx, &write)?;
                    state.apply(&write);
                    acts.push(Act::Write(write));
                }
                7..11 => {
                    let (slot, key) = hot[rng.index(hot.len())].clone();
                    let key = if rng.chance(70) { key } else { self.config.key(rng) };
                    self.get_in(&tx, (slot, key), WAYS[rng.index(WAYS.len())], &state, &mut acts)?;
                }
                11..14 => {
                    let bounds = match (hot[rng.index(hot.len())].clone(), rng.index(4)) {
                        ((slot, key), 0) => (slot, (Bound::Included(key), self.bounds(rng).1)),
                        ((slot, key), 1) => (slot, (self.bounds(rng).0, Bound::Included(key))),
                        _ => (slot, self.bounds(rng)),
                    };
                    self.scan_in(&tx, bounds, &state, &mut acts, rng)?;
                }
                14..16 => Self::mark_in(&tx, &mut savepoints, &mut state, &mut acts, rng)?,
                16 => self.delete_scanned(&acts, &mut others)?,
                17..22 => {
                    let write =
                        if rng.chance(10) { self.draw_load(slot, rng) } else { self.draw_write(slot, &hot, rng) };
                    self.write(&write)?;
                    others.push(write);
                }
                _ => match rng.index(3) {
                    0 => self.keyspace(slot).compact(..)?,
                    1 => self.store.settle()?,
                    _ => {
                        self.store.checkpoint()?;
                        self.lazy.clear();
                    }
                },
            }
        }
        if rng.chance(30) {
            let (slot, _) = hot[rng.index(hot.len())];
            self.keyspace(slot).compact(..)?;
        }
        if rng.chance(15) {
            tx.rollback();
            return Ok(());
        }
        self.end(tx, (isolation, durability), &acts, &others)
    }

    /// Deletes the rows that the transaction has scanned last, by a plain write, and lets scans pass them, which learn
    /// that their range is dead.
    fn delete_scanned(&mut self, acts: &[Act], others: &mut Vec<Write>) -> Result<(), Wrong> {
        let scanned = acts.iter().rev().find_map(|act| match act {
            Act::Scan(slot, _, rows) if !rows.is_empty() => Some((*slot, rows)),
            _ => None,
        });
        let Some((slot, rows)) = scanned else { return Ok(()) };
        let bound = |row: Option<&(Vec<u8>, Bytes)>| Bound::Included(row.expect("there are rows").0.clone());
        let write = Write::DeleteRange(slot, (bound(rows.first()), bound(rows.last())));
        self.write(&write)?;
        others.push(write);
        for _ in 0..3 {
            let keyspace = self.keyspace(slot);
            let scans: pandodb::Result<Vec<_>> = keyspace.iter().keys().chain(keyspace.iter().keys().rev()).collect();
            scans?;
        }
        Ok(())
    }

    /// Draws a write, mostly of one of the keys in `hot`.
    fn draw_write(&self, slot: usize, hot: &[(usize, Vec<u8>)], rng: &mut Rng) -> Write {
        if !rng.chance(70) {
            return if rng.chance(10) { self.range_delete(slot, rng) } else { self.point_write(slot, rng) };
        }
        let (slot, hot) = hot[rng.index(hot.len())].clone();
        if rng.chance(20) {
            let end = [&hot[..], &[0xff]].concat();
            return Write::DeleteRange(slot, (Bound::Included(hot), Bound::Excluded(end)));
        }
        let mut write = if rng.chance(25) { Write::Delete(slot, Vec::new()) } else { self.point_write(slot, rng) };
        if let Write::Put(_, key, _) | Write::Merge(_, key, _) | Write::Delete(_, key) = &mut write {
            *key = hot;
        }
        write
    }

    fn draw_load(&self, slot: usize, rng: &mut Rng) -> Write {
        let rows = (0..rng.index(20)).map(|_| (self.config.key(rng), self.value_of(slot, rng)));
        let rows: std::collections::BTreeMap<_, _> = rows.collect();
        Write::Load(slot, rows.into_iter().collect())
    }

    /// Commits a transaction and checks the result.
    fn end(
        &mut self,
        tx: Transaction,
        (isolation, durability): (Isolation, Durability),
        acts: &[Act],
        others: &[Write],
    ) -> Result<(), Wrong> {
        let writes = writes(acts);
        let may_commit = writes.is_empty()
            || holds(acts, isolation, self.model.clone())
                && !(isolation == Isolation::Snapshot && must_conflict(acts, others, &self.model));
        self.take_turn();
        match tx.commit() {
            Ok(()) => {
                check(may_commit, || {
                    format!("a transaction was committed under {isolation:?} in spite of a conflict")
                })?;
                let before = self.model.clone();
                writes.iter().for_each(|write| self.model.apply(write));
                if !writes.is_empty() {
                    self.note_commit(before, durability, writes.iter().any(|write| write.is_logged()));
                }
                Ok(())
            }
            Err(Error::Conflict { keyspace, from, .. }) => {
                check(others.iter().any(|write| is_cause(acts, isolation, write)), || {
                    format!("a conflict in `{keyspace}` at `{}` has no cause", from.escape_ascii())
                })
            }
            Err(other) => Err(other.into()),
        }
    }

    fn write_in(&self, tx: &Transaction, write: &Write) -> Result<(), Wrong> {
        match write {
            Write::Put(slot, key, value) => tx.put(self.keyspace(*slot), key, value),
            Write::Delete(slot, key) => tx.delete(self.keyspace(*slot), key),
            Write::Merge(slot, key, operand) => tx.merge(self.keyspace(*slot), key, operand),
            Write::DeleteRange(slot, bounds) => tx.delete_range(self.keyspace(*slot), bounds.clone()),
            Write::DeletePrefix(slot, prefix) => tx.delete_range(self.keyspace(*slot), prefix_bounds(prefix)),
            Write::Load(..) => unreachable!("a load is a write of its own"),
        }
        .map_err(Wrong::from)
    }

    fn get_in(
        &self,
        tx: &Transaction,
        (slot, key): (usize, Vec<u8>),
        way: Way,
        state: &Model,
        acts: &mut Vec<Act>,
    ) -> Result<(), Wrong> {
        let table = state.table(slot).expect("it is there");
        let (keyspace, want) = (self.keyspace(slot), |key: &[u8]| table.get(key).cloned());
        let mut keys = vec![key];
        let is_right = match way {
            Way::Contains => tx.contains(keyspace, &keys[0])? == want(&keys[0]).is_some(),
            Way::Get => tx.get(keyspace, &keys[0])?.as_deref() == want(&keys[0]).as_deref(),
            Way::MultiGet => {
                // A key with a value after it, and one that has none.
                let next = table.range(after(&keys[0])..).next().map(|(key, _)| key.clone());
                keys.extend(next.clone().into_iter().chain(next.map(|key| after(&key))));
                let values = tx.multi_get(keyspace, &keys)?;
                values.len() == keys.len()
                    && keys.iter().zip(&values).all(|(key, value)| value.as_deref() == want(key).as_deref())
            }
            Way::ForUpdate => tx.get_for_update(keyspace, &keys[0])?.as_deref() == want(&keys[0]).as_deref(),
            Way::Untracked => tx.untracked().get(keyspace, &keys[0])?.as_deref() == want(&keys[0]).as_deref(),
        };
        check(is_right, || {
            format!("a transaction reads `{}` of `{}` wrongly by {way:?}", keys[0].escape_ascii(), SLOTS[slot].0)
        })?;
        for key in keys {
            let replaces = |write: &&Write| !matches!(write, Write::Merge(..)) && touches(write, slot, &point(&key));
            let is_own = writes(acts).iter().any(replaces);
            let seen = want(&key);
            acts.push(Act::Get(Get { slot, key, seen, is_own, way }));
        }
        Ok(())
    }

    /// Makes a savepoint, returns to one, or releases one.
    fn mark_in(
        tx: &Transaction,
        savepoints: &mut Vec<(Savepoint, usize, Model)>,
        state: &mut Model,
        acts: &mut Vec<Act>,
        rng: &mut Rng,
    ) -> Result<(), Wrong> {
        if savepoints.is_empty() || rng.chance(40) {
            // The position of the act is its number.
            acts.push(Act::Mark(acts.len()));
            savepoints.push((tx.savepoint()?, acts.len() - 1, state.clone()));
            return Ok(());
        }
        let at = rng.index(savepoints.len());
        let (savepoint, number, before) = savepoints[at].clone();
        if rng.chance(20) {
            savepoints.truncate(at);
            return Ok(tx.release(savepoint)?);
        }
        savepoints.truncate(at + 1);
        *state = before;
        acts.push(Act::Return(number));
        Ok(tx.rollback_to(savepoint)?)
    }

    /// Scans a range from both ends, and perhaps stops before the ends meet.
    fn scan_in(
        &self,
        tx: &Transaction,
        (slot, bounds): (usize, Bounds),
        state: &Model,
        acts: &mut Vec<Act>,
        rng: &mut Rng,
    ) -> Result<(), Wrong> {
        let backward = [0, 50, 100][rng.index(3)];
        let rows = within(state.table(slot).expect("it is there"), &bounds);
        let limit = if rng.chance(40) { usize::MAX } else { rng.index(20) };
        let mut range = tx.range(self.keyspace(slot), bounds.clone())?;
        let (mut front, mut back) = (0, rows.len());
        let mut is_complete = false;
        for _ in 0..limit {
            let backward = rng.chance(backward);
            let row = (if backward { range.next_back() } else { range.next() }).transpose()?;
            let want = match front == back {
                true => None,
                false => Some(&rows[if backward { back - 1 } else { front }]),
            };
            check(row.as_ref().map(|(key, value)| (&**key, &**value)) == want.map(|(k, v)| (&**k, &**v)), || {
                format!("a scan of `{}` in a transaction is wrong at row {front} of {back}", SLOTS[slot].0)
            })?;
            if row.is_none() {
                is_complete = true;
                break;
            }
            if backward { back -= 1 } else { front += 1 }
        }
        if is_complete {
            acts.push(Act::Scan(slot, bounds, rows));
            return Ok(());
        }
        if front > 0 {
            let part = (bounds.0.clone(), Bound::Included(rows[front - 1].0.clone()));
            acts.push(Act::Scan(slot, part, rows[..front].to_vec()));
        }
        if back < rows.len() {
            let part = (Bound::Included(rows[back].0.clone()), bounds.1);
            acts.push(Act::Scan(slot, part, rows[back..].to_vec()));
        }
        Ok(())
    }
}
