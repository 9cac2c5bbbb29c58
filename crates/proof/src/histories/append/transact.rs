//! Transactions of the black box: reads of lists and appends to lists, one operation in each step of the client.
//!
//! An append is a merge, or a read and a put of the longer list. Under snapshot isolation merges of the same list do
//! not conflict, so a transaction that has read something appends only by puts there. Otherwise two transactions could
//! read a list and then both append to it, which `adya` takes for a lost update.

use adya::history::{Interner, Mop, OpType, ReadValue, Scalar};
use pandodb::{Error, Isolation, Result, Transaction, TransactionOptions};

use super::{Bench, Canary, Doing, list_key};

/// An operation of a transaction.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// Reads a list.
    Read(i64),
    /// Appends an element to a list with a merge.
    Merge(i64, i64),
    /// Reads a list, and puts the list with one more element.
    Put(i64, i64),
}

impl Part {
    /// The operations for `adya`. `seen` is the list that was read; `None` before the read.
    fn mops(self, names: &mut Interner, seen: Option<&[i64]>) -> Vec<Mop> {
        let (Part::Read(list) | Part::Merge(list, _) | Part::Put(list, _)) = self;
        let key = names.intern(Scalar::Int(list));
        let read = |names: &mut Interner| {
            let elements = seen.map(|seen| seen.iter().map(|element| names.intern(Scalar::Int(*element))).collect());
            Mop::Read { key, value: elements.map_or(ReadValue::Nil, ReadValue::List) }
        };
        let append = |names: &mut Interner, element| Mop::Append { key, value: names.intern(Scalar::Int(element)) };
        match self {
            Part::Read(_) => vec![read(names)],
            Part::Merge(_, element) => vec![append(names, element)],
            Part::Put(_, element) => vec![read(names), append(names, element)],
        }
    }
}

/// A transaction that a client runs.
pub(super) struct Running {
    tx: Transaction,
    /// The operations that are left, the next one last.
    left: Vec<Part>,
    /// The operations that are done, with what they have read.
    done: Vec<Mop>,
}

impl Running {
    /// All operations, of which the last ones were not done.
    fn mops(self, names: &mut Interner) -> Vec<Mop> {
        let left = self.left.iter().rev().flat_map(|part| part.mops(names, None));
        let left: Vec<Mop> = left.collect();
        self.done.into_iter().chain(left).collect()
    }
}

/// A read without its result. `adya` would believe that the appends that an unknown transaction has read from its own
/// writes were committed.
fn without_result(mop: Mop) -> Mop {
    match mop {
        Mop::Read { key, .. } => Mop::Read { key, value: ReadValue::Nil },
        other => other,
    }
}

impl Bench {
    /// Begins a transaction.
    pub(super) fn begin_transaction(&mut self, client: usize) -> Result<(), String> {
        let count = 2 + self.rng.below(4);
        let mut left = Vec::new();
        for _ in 0..count {
            let list = self.draw_list();
            self.appended += 1;
            left.push(match self.rng.below(10) {
                0..=4 => Part::Read(list),
                5..=7 if self.isolation == Isolation::Serializable => Part::Merge(list, self.appended - 1),
                _ => Part::Put(list, self.appended - 1),
            });
        }
        let durability = self.durability();
        let isolation =
            if self.canary == Some(Canary::SkewedTransaction) { Isolation::Snapshot } else { self.isolation };
        let asked: Vec<Mop> = left.iter().rev().flat_map(|part| part.mops(&mut self.names, None)).collect();
        match self.store().0.begin(TransactionOptions::new().isolation(isolation).durability(durability)) {
            Ok(tx) => {
                self.note(client, OpType::Invoke, asked);
                self.clients[client].doing = Doing::Transacting(Box::new(Running { tx, left, done: Vec::new() }));
                Ok(())
            }
            Err(e) => self.suffer(&e).map(|_| ()),
        }
    }

    /// Records that a transaction was not committed.
    pub(super) fn abandon(&mut self, client: usize, running: Running) {
        let value = running.mops(&mut self.names);
        self.note(client, OpType::Fail, value);
    }

    /// Does the next operation of a transaction, or commits the transaction.
    pub(super) fn go_on(&mut self, client: usize, mut running: Box<Running>) -> Result<(), String> {
        let Some(part) = running.left.pop() else { return self.end_transaction(client, *running) };
        match self.do_part(&running.tx, part) {
            Ok(seen) => {
                let mops = part.mops(&mut self.names, seen.as_deref());
                running.done.extend(mops);
                self.clients[client].doing = Doing::Transacting(running);
                Ok(())
            }
            Err(e) => {
                running.left.push(part);
                self.abandon(client, *running);
                self.suffer(&e).map(|_| ())
            }
        }
    }

    fn do_part(&self, tx: &Transaction, part: Part) -> Result<Option<Vec<i64>>> {
        let (Part::Read(list) | Part::Merge(list, _) | Part::Put(list, _)) = part;
        let (lists, key) = (self.store().1.of(list), list_key(list));
        if let Part::Merge(_, element) = part {
            return tx.merge(lists, key, element.to_le_bytes()).map(|()| None);
        }
        let value = tx.get(lists, &key)?;
        let mut bytes = value.as_deref().unwrap_or(&[]).to_vec();
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "list {list} has {} bytes", bytes.len());
        let seen = words.iter().map(|word| i64::from_le_bytes(*word)).collect();
        if let Part::Put(_, element) = part {
            bytes.extend(element.to_le_bytes());
            tx.put(lists, key, &bytes)?;
        }
        Ok(Some(seen))
    }

    fn end_transaction(&mut self, client: usize, running: Running) -> Result<(), String> {
        let Running { tx, done, .. } = running;
        let kind = if self.rng.chance(5) {
            tx.rollback();
            OpType::Fail
        } else {
            match tx.commit() {
                Ok(()) => {
                    self.tally.count("committed transactions", 1);
                    OpType::Ok
                }
                Err(Error::Conflict { .. }) => {
                    self.tally.count("conflicts", 1);
                    OpType::Fail
                }
                Err(e) if self.suffer(&e)? => OpType::Fail,
                Err(_) => OpType::Info,
            }
        };
        let done = if kind == OpType::Info { done.into_iter().map(without_result).collect() } else { done };
        self.note(client, kind, done);
        Ok(())
    }
}
