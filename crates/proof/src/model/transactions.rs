//! Transactions in random histories: reads and writes in any order, with plain writes and background work in between.
//!
//! 1. Every read must see the state at the beginning and the transaction's own writes.
//! 2. At the end, the model runs the same operations again on its newest state. If a read of a serialisable transaction
//!    would see something else there, the commit must have a conflict.
//! 3. A conflict must have a cause: a plain write to a key or a range that the transaction has read, or has written
//!    under snapshot isolation.
//! 4. Under snapshot isolation, a plain write of a key that the transaction writes must be a conflict, unless both merge.
//! 5. After a conflict or a rollback nothing of the transaction may exist. The comparisons of later actions check this.

use std::ops::Bound;

use pandodb::{Durability, Error, Isolation, Transaction, TransactionOptions};

use super::tables::{Bounds, Bytes, Model, SLOTS, Write, prefix_bounds, within};
use super::world::{World, Wrong, check};
use crate::script::Rng;

/// Keys from the first one up to the second one (excluded); `None` is the end of the keyspace.
type Span = (Vec<u8>, Option<Vec<u8>>);

/// An operation of a transaction.
enum Act {
    Write(Write),
    /// A slot, a key and the value that was seen. The flag says that only the transaction's own writes determine it.
    Get(usize, Vec<u8>, Option<Bytes>, bool),
    /// A slot, a part of the keyspace, and the rows that were seen there.
    Scan(usize, Bounds, Vec<(Vec<u8>, Bytes)>),
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
    acts.iter().any(|act| match (act, isolation) {
        (Act::Get(slot, key, _, own), Isolation::Serializable) => !own && touches(write, *slot, &point(key)),
        (Act::Scan(slot, bounds, _), Isolation::Serializable) => touches(write, *slot, &span(bounds)),
        (Act::Write(mine), Isolation::Snapshot) => {
            let (slot, spans) = spans(mine);
            let merges = matches!((mine, write), (Write::Merge(..), Write::Merge(..)));
            !merges && spans.iter().any(|keys| touches(write, slot, keys))
        }
        _ => false,
    })
}

/// Whether a plain write certainly conflicts with a write of a transaction under snapshot isolation. `model` is the state
/// now. A change of a key that has no value now is left out, because it may leave no trace in the store.
fn must_conflict(acts: &[Act], others: &[Write], model: &Model) -> bool {
    let has_value = |slot: usize, key: &Vec<u8>| model.table(slot).is_some_and(|table| table.contains_key(key));
    others.iter().any(|other| match other {
        Write::Put(slot, key, _) | Write::Merge(slot, key, _) if has_value(*slot, key) => {
            is_cause(acts, Isolation::Snapshot, other)
        }
        _ => false,
    })
}

/// Whether every read would see the same if the transaction ran as a whole on this state.
fn holds(acts: &[Act], mut model: Model) -> bool {
    acts.iter().all(|act| match act {
        Act::Write(write) => {
            model.apply(write);
            true
        }
        Act::Get(slot, key, seen, _) => model.table(*slot).and_then(|table| table.get(key)) == seen.as_ref(),
        Act::Scan(slot, bounds, seen) => model.table(*slot).is_some_and(|table| within(table, bounds) == *seen),
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
        let hot = [(); 3].map(|()| {
            let slot = there[rng.index(there.len())];
            let (key, table) = (self.config.key(rng), self.model.table(slot).expect("it is there"));
            let existing = if rng.chance(75) { table.range(key.clone()..).next() } else { None };
            (slot, existing.map_or(key, |(found, _)| found.clone()))
        });
        for _ in 0..1 + rng.index(12) {
            let slot = there[rng.index(there.len())];
            match rng.index(20) {
                0..7 => {
                    let write = self.draw_write(slot, &hot, rng);
                    self.write_in(&tx, &write)?;
                    state.apply(&write);
                    acts.push(Act::Write(write));
                }
                7..11 => {
                    let (slot, key) = hot[rng.index(hot.len())].clone();
                    let key = if rng.chance(70) { key } else { self.config.key(rng) };
                    self.get_in(&tx, (slot, key), &state, &mut acts)?;
                }
                11..14 => {
                    let bounds = match (hot[rng.index(hot.len())].clone(), rng.index(4)) {
                        ((slot, key), 0) => (slot, (Bound::Included(key), self.bounds(rng).1)),
                        ((slot, key), 1) => (slot, (self.bounds(rng).0, Bound::Included(key))),
                        _ => (slot, self.bounds(rng)),
                    };
                    self.scan_in(&tx, bounds, &state, &mut acts, rng)?;
                }
                14..18 => {
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
        let writes = || acts.iter().filter_map(|act| if let Act::Write(write) = act { Some(write) } else { None });
        let may_commit = match isolation {
            _ if writes().next().is_none() => true,
            Isolation::Serializable => holds(acts, self.model.clone()),
            Isolation::Snapshot => !must_conflict(acts, others, &self.model),
        };
        self.take_turn();
        match tx.commit() {
            Ok(()) => {
                check(may_commit, || {
                    format!("a transaction was committed under {isolation:?} in spite of a conflict")
                })?;
                let before = self.model.clone();
                writes().for_each(|write| self.model.apply(write));
                if writes().next().is_some() {
                    self.note_commit(before, durability, writes().any(Write::is_logged));
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
        state: &Model,
        acts: &mut Vec<Act>,
    ) -> Result<(), Wrong> {
        let table = state.table(slot).expect("it is there");
        let (found, want) = (tx.get(self.keyspace(slot), &key)?, table.get(&key).cloned());
        check(found.as_deref() == want.as_deref(), || {
            format!("a transaction reads `{}` of `{}` wrongly", key.escape_ascii(), SLOTS[slot].0)
        })?;
        let replaces = |act: &Act| match act {
            Act::Write(Write::Merge(..)) => false,
            Act::Write(write) => touches(write, slot, &point(&key)),
            _ => false,
        };
        let own = acts.iter().any(replaces);
        acts.push(Act::Get(slot, key, want, own));
        Ok(())
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
