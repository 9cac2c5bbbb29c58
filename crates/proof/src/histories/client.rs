//! A client: a thread that runs seeded transactions and records them.
//!
//! Some transactions are real ones ([`super::transactor`]). The others take a snapshot, read some keys and ranges in some
//! keyspaces, and commit a batch. Some of these only read, some read without a snapshot, and some also read at an older
//! snapshot that the client kept. The client drops some batches without committing them, and the store refuses some.

use std::collections::{HashMap, VecDeque};

use pandodb::{Batch, Durability, Keyspace, KeyspaceAt, Range, Result, Snapshot, Transaction, Value};

use super::log::{
    Action, Domain, FAMILY, LISTS, Log, Outcome, Part, ROWS, SUMS, Space, TEMP, Write, decode, encode, key, number,
    operand, txn, version,
};
use super::world::World;
use crate::script::Rng;

/// The most snapshots that a client keeps.
const HELD: usize = 3;
/// Some canaries do not lie every time, but once in this number of cases.
pub(super) const SELDOM: u64 = 1000;

/// The lie of a client. The checker must detect each lie. The rates in the descriptions of the lies apply to a white
/// box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Takes the snapshot after the reads.
    LateSnapshot,
    /// Uses a kept snapshot and records it as a new one.
    OldSnapshot,
    /// For one of 1,000 values read, records the value that the previous read of the key returned.
    OldValue,
    /// Leaves out one operation in one of 1,000 batches.
    HalfBatch,
    /// Merges one operand twice in one of 1,000 batches.
    DoubledMerge,
    /// Commits a batch but records it as dropped, for about one of 100 batches.
    CommittedAnyway,
    /// Does not record one key of a scan, in one of 1,000 scans.
    BlindScan,
    /// Runs transactions under snapshot isolation and records them as serialisable.
    SkewedTransaction,
    /// Runs serialisable transactions and records them as transactions under snapshot isolation, although their writes
    /// are not compared with those of other commits.
    LastCommitterWins,
    /// Rolls back one of 1,000 transactions and records a conflict.
    FalseConflict,
}

impl Canary {
    /// All canaries.
    pub const ALL: [Canary; 10] = [
        Canary::LateSnapshot,
        Canary::OldSnapshot,
        Canary::OldValue,
        Canary::HalfBatch,
        Canary::DoubledMerge,
        Canary::CommittedAnyway,
        Canary::BlindScan,
        Canary::SkewedTransaction,
        Canary::LastCommitterWins,
        Canary::FalseConflict,
    ];
}

/// A keyspace at its newest state, at a snapshot, or in a transaction.
pub(super) enum View<'a> {
    Now(Keyspace),
    At(KeyspaceAt),
    In(&'a Transaction, Keyspace),
}

impl View<'_> {
    fn get(&self, key: [u8; 3]) -> Result<Option<Value>> {
        match self {
            View::Now(keyspace) => keyspace.get(key),
            View::At(keyspace) => keyspace.get(key),
            View::In(tx, keyspace) => tx.get(keyspace, key),
        }
    }

    fn multi_get(&self, keys: &[[u8; 3]]) -> Result<Vec<Option<Value>>> {
        match self {
            View::Now(keyspace) => keyspace.multi_get(keys),
            View::At(keyspace) => keyspace.multi_get(keys),
            View::In(tx, keyspace) => keys.iter().map(|key| tx.get(keyspace, key)).collect(),
        }
    }

    fn range(&self, from: u32, to: u32) -> Result<Range> {
        match self {
            View::Now(keyspace) => Ok(keyspace.range(key(from)..key(to))),
            View::At(keyspace) => Ok(keyspace.range(key(from)..key(to))),
            View::In(tx, keyspace) => tx.range(keyspace, key(from)..key(to)),
        }
    }

    /// The keys of a family.
    fn family(&self, family: u32) -> Result<Range> {
        let first = key(family * FAMILY);
        match self {
            View::Now(keyspace) => Ok(keyspace.prefix(&first[..2])),
            View::At(keyspace) => Ok(keyspace.prefix(&first[..2])),
            View::In(..) => self.range(family * FAMILY, (family + 1) * FAMILY),
        }
    }
}

/// For each key of each keyspace, the items that the last read of the key saw. [`Canary::OldValue`] uses them.
type Memory = HashMap<(Space, u32), Vec<u64>>;

/// A client.
pub(super) struct Client<'a> {
    pub world: &'a World,
    pub rng: Rng,
    pub log: Log,
    thread: u64,
    number: u64,
    held: VecDeque<Snapshot>,
    /// The keyspace that is dropped and created again, if this client owns it. The flag says that nothing was written
    /// to the keyspace since its creation.
    pub temp: Option<(Keyspace, bool)>,
    pub canary: Option<Canary>,
    memory: Memory,
    /// The keys that a read has seen, each with the range of its items in `items`.
    seen: Vec<(u32, usize, usize)>,
    items: Vec<u64>,
    pub value: Vec<u8>,
}

impl<'a> Client<'a> {
    /// The client of a thread. The number of its first transaction is `number + 1`.
    pub fn new(world: &'a World, thread: u64, number: u64, canary: Option<Canary>) -> Client<'a> {
        Client {
            world,
            rng: Rng(world.plan.seed.wrapping_mul(64).wrapping_add(thread) ^ number << 20),
            log: Log::default(),
            thread,
            number,
            held: VecDeque::new(),
            temp: None,
            canary,
            memory: Memory::new(),
            seen: Vec::new(),
            items: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Runs `count` transactions, or fewer if the store fails.
    pub fn run(&mut self, count: u64) {
        for _ in 0..count {
            self.transaction();
            if !self.log.errors.is_empty() {
                break;
            }
        }
    }

    /// Releases the kept snapshots.
    pub fn forget(&mut self) {
        self.held.clear();
    }

    /// The number of the next transaction.
    pub fn next_txn(&mut self) -> u64 {
        self.number += 1;
        txn(self.thread, self.number)
    }

    /// Runs one transaction.
    pub fn transaction(&mut self) {
        let txn = self.next_txn();
        if let Err(e) = self.attempt(txn) {
            self.log.errors.push(format!("{}: {e}", super::log::name_txn(txn)));
        }
    }

    fn attempt(&mut self, txn: u64) -> Result<()> {
        // The first write to a keyspace that was created again is a batch.
        let is_fresh = self.temp.as_ref().is_some_and(|(_, fresh)| *fresh);
        if !is_fresh && self.rng.below(100) < self.world.plan.validated {
            return self.transact(txn);
        }
        let roll = self.rng.below(100);
        if roll < 10 {
            return self.look_now(txn);
        }
        let mut begin = 0;
        if roll < 90 {
            begin = self.look_at_snapshot(txn)?;
        }
        if roll >= 20 { self.commit(txn, begin) } else { Ok(()) }
    }

    // ---- reading ----

    fn look_at_snapshot(&mut self, txn: u64) -> Result<u64> {
        if self.canary == Some(Canary::LateSnapshot) {
            return self.look_then_snapshot(txn);
        }
        if !self.held.is_empty() && self.rng.chance(5) {
            let at = self.rng.below(self.held.len() as u64) as usize;
            let snapshot = self.held[at].clone();
            self.look(txn, 0, &snapshot)?;
            if self.rng.chance(30) {
                self.held.remove(at);
            }
        }
        let floor = self.world.clock.now();
        let old = (self.canary == Some(Canary::OldSnapshot)).then(|| self.held.front().cloned()).flatten();
        let snapshot = old.unwrap_or_else(|| self.world.store.snapshot());
        self.world.clock.show(snapshot.seqno());
        self.look(txn, floor, &snapshot)?;
        let begin = snapshot.seqno();
        if self.held.len() < HELD && self.rng.chance(2) {
            self.held.push_back(snapshot);
        }
        Ok(begin)
    }

    fn look(&mut self, txn: u64, floor: u64, snapshot: &Snapshot) -> Result<()> {
        let from = self.log.reads.len();
        for _ in 0..1 + self.rng.below(3) {
            let (space, keyspace) = self.space();
            self.read(space, &View::At(keyspace.at(snapshot)))?;
        }
        self.log.look(txn, floor, (snapshot.seqno(), snapshot.seqno()), from);
        Ok(())
    }

    /// One read of the newest state. The point of the read is between the newest seqno before the read and the newest
    /// seqno after the read.
    fn look_now(&mut self, txn: u64) -> Result<()> {
        let from = self.log.reads.len();
        let floor = self.world.clock.now();
        let (space, keyspace) = self.space();
        self.read(space, &View::Now(keyspace))?;
        self.log.look(txn, 0, (floor, self.world.visible()), from);
        Ok(())
    }

    fn look_then_snapshot(&mut self, txn: u64) -> Result<u64> {
        let (from, floor) = (self.log.reads.len(), self.world.clock.now());
        for _ in 0..3 {
            let (space, keyspace) = self.space();
            self.read(space, &View::Now(keyspace))?;
        }
        let seqno = self.world.visible();
        self.log.look(txn, floor, (seqno, seqno), from);
        Ok(seqno)
    }

    /// Draws a keyspace. A client that owns the temporary keyspace draws this keyspace most of the time.
    pub(super) fn space(&mut self) -> (Space, Keyspace) {
        let own = self.rng.chance(60);
        match &self.temp {
            Some((temp, false)) if own => (TEMP, temp.clone()),
            _ => {
                let space = self.rng.below(3) as Space;
                (space, self.world.spaces[space as usize].clone())
            }
        }
    }

    /// Draws a key. In half of the cases, the key is in the first sixteenth of all keys.
    fn key(&mut self) -> u32 {
        let keys = u64::from(self.world.plan.keys);
        let few = if self.rng.chance(50) { keys / 16 } else { keys };
        self.rng.below(few) as u32
    }

    pub(super) fn read(&mut self, space: Space, view: &View<'_>) -> Result<()> {
        self.seen.clear();
        self.items.clear();
        let domain = match self.rng.below(20) {
            0..=8 => {
                let at = self.key();
                let value = view.get(key(at))?;
                self.note(space, at, value.as_deref());
                self.keys(&[at])
            }
            9..=12 => {
                let keys: Vec<u32> = (0..2 + self.rng.below(5)).map(|_| self.key()).collect();
                let bytes: Vec<[u8; 3]> = keys.iter().map(|number| key(*number)).collect();
                let values = view.multi_get(&bytes)?;
                keys.iter().zip(&values).for_each(|(key, value)| self.note(space, *key, value.as_deref()));
                self.keys(&keys)
            }
            13..=15 => self.scan(space, view, false)?,
            16..=17 => self.scan(space, view, true)?,
            18 => {
                let family = self.key() / FAMILY;
                self.both_ends(space, view.family(family)?)?;
                Domain::Span(family * FAMILY, (family + 1) * FAMILY)
            }
            _ => {
                let whole = self.rng.chance(2);
                let (from, to) = if whole { (0, self.world.plan.keys) } else { self.span(3 * FAMILY) };
                self.both_ends(space, view.range(from, to)?)?;
                Domain::Span(from, to)
            }
        };
        if self.canary == Some(Canary::BlindScan) && matches!(domain, Domain::Span(..)) && self.rng.below(SELDOM) == 0 {
            self.seen.pop();
        }
        let seen = self.seen.iter().map(|(key, from, to)| (*key, &self.items[*from..*to]));
        self.log.read(space, domain, seen);
        Ok(())
    }

    fn keys(&mut self, keys: &[u32]) -> Domain {
        let from = self.log.keys.len();
        self.log.keys.extend(keys);
        Domain::Keys(Part::new(from, self.log.keys.len()))
    }

    fn span(&mut self, longest: u32) -> (u32, u32) {
        let from = self.key();
        let to = from + 1 + self.rng.below(u64::from(longest)) as u32;
        (from, to.min(self.world.plan.keys))
    }

    /// Scans from one end and may stop early. The recorded domain ends where the scan stopped.
    fn scan(&mut self, space: Space, view: &View<'_>, reverse: bool) -> Result<Domain> {
        let (from, to) = self.span(2 * FAMILY);
        let limit = 1 + self.rng.below(24) as usize;
        let mut range = view.range(from, to)?;
        let mut last = None;
        while self.seen.len() < limit {
            let Some(entry) = (if reverse { range.next_back() } else { range.next() }) else { break };
            let (key, value) = entry?;
            last = Some(number(&key));
            self.note(space, number(&key), Some(&value));
        }
        let stopped = last.filter(|last| self.seen.len() == limit && (from..to).contains(last));
        if reverse {
            self.seen.reverse();
        }
        Ok(match stopped {
            Some(last) if reverse => Domain::Span(last, to),
            Some(last) => Domain::Span(from, last + 1),
            None => Domain::Span(from, to),
        })
    }

    /// A complete scan, which takes each item either from the front or from the back, at random.
    fn both_ends(&mut self, space: Space, mut range: Range) -> Result<()> {
        let bits = self.rng.next_u64();
        let mut back = Vec::new();
        for i in 0.. {
            let reverse = bits >> (i % 64) & 1 == 1;
            let Some(entry) = (if reverse { range.next_back() } else { range.next() }) else { break };
            let (key, value) = entry?;
            self.note(space, number(&key), Some(&value));
            if reverse {
                back.extend(self.seen.pop());
            }
        }
        self.seen.extend(back.into_iter().rev());
        Ok(())
    }

    fn note(&mut self, space: Space, key: u32, value: Option<&[u8]>) {
        let Some(value) = value else { return };
        let from = self.items.len();
        decode(space, value, &mut self.items);
        if self.canary == Some(Canary::OldValue) {
            let now = self.items[from..].to_vec();
            if let Some(before) = self.memory.insert((space, key), now)
                && self.rng.below(SELDOM) == 0
            {
                self.items.truncate(from);
                self.items.extend(before);
            }
        }
        self.seen.push((key, from, self.items.len()));
    }

    // ---- committing ----

    /// Commits a batch, or drops the batch without committing it, or makes the store refuse it.
    fn commit(&mut self, txn: u64, begin: u64) -> Result<()> {
        let from = self.log.writes.len();
        let mut batch = self.world.store.batch();
        if let Some((_, fresh)) = &mut self.temp
            && std::mem::take(fresh)
        {
            self.log.writes.push(Write { space: TEMP, action: Action::Recreate, key: 0, version: 0 });
        }
        for op in 0..1 + self.rng.below(6) {
            let write = self.write(version(txn, op as usize));
            self.add(&mut batch, write);
            self.log.writes.push(write);
        }
        self.lie(&mut batch);
        let floor = self.world.clock.now();
        let fate = self.rng.below(100);
        if fate < 3 && self.temp.is_none() {
            let anyway = self.canary == Some(Canary::CommittedAnyway) && fate == 0;
            if fate == 2 {
                // A keyspace without an operator refuses merges, so the whole batch is refused.
                batch.merge(&self.world.spaces[ROWS as usize], key(0), [0; 8]);
                assert!(batch.commit(Durability::Buffered).is_err(), "a merge without an operator was accepted");
            } else if anyway {
                batch.commit(Durability::Buffered)?;
            }
            self.log.commit(txn, floor, begin, Outcome::Refused, from);
            return Ok(());
        }
        let durability = self.durability();
        let last = batch.commit_numbered(durability)?.expect("a batch that writes");
        self.world.clock.acknowledge(last, durability);
        self.log.commit(txn, floor, begin, Outcome::At(last), from);
        Ok(())
    }

    pub(super) fn durability(&mut self) -> Durability {
        match self.rng.below(100) {
            roll if roll < self.world.plan.synced => Durability::Synced,
            roll if roll < 50 => Durability::None,
            _ => Durability::Buffered,
        }
    }

    /// Draws a write. Lists and counters are mostly merged; a put, a delete or a range delete is drawn sometimes, and
    /// keeps the lists short.
    pub(super) fn write(&mut self, version: u64) -> Write {
        let (space, _) = self.space_to_write();
        let key = self.key();
        let of_rows = [(80, Action::Put), (99, Action::Delete)];
        let of_merges = [(3, Action::Put), (5, Action::Delete), (99, Action::Merge)];
        let roll = self.rng.below(100);
        let table: &[(u64, Action)] = if matches!(space, LISTS | SUMS) { &of_merges } else { &of_rows };
        let found = table.iter().find(|(below, _)| roll < *below).map(|(_, action)| *action);
        let to = (key + 1 + self.rng.below(24) as u32).min(self.world.plan.keys);
        Write { space, action: found.unwrap_or(Action::DeleteRange(to)), key, version }
    }

    fn space_to_write(&mut self) -> (Space, Keyspace) {
        let own = self.rng.chance(60);
        match &self.temp {
            Some((temp, _)) if own => (TEMP, temp.clone()),
            _ => {
                let space = [ROWS, ROWS, LISTS, SUMS][self.rng.below(4) as usize];
                (space, self.world.spaces[space as usize].clone())
            }
        }
    }

    fn add(&mut self, batch: &mut Batch, write: Write) {
        let keyspace = match &self.temp {
            Some((temp, _)) if write.space == TEMP => temp,
            _ => &self.world.spaces[write.space as usize],
        };
        match write.action {
            Action::Put => {
                encode(write.space, write.version, &mut self.value);
                batch.put(keyspace, key(write.key), &self.value);
            }
            Action::Merge => batch.merge(keyspace, key(write.key), operand(write.space, write.version)),
            Action::Delete => batch.delete(keyspace, key(write.key)),
            Action::DeleteRange(to) => batch.delete_range(keyspace, key(write.key)..key(to)),
            Action::Recreate => unreachable!("not an operation of a batch"),
        }
    }

    /// For a canary that writes something other than it records: adds the unrecorded operation to the batch.
    fn lie(&mut self, batch: &mut Batch) {
        let seldom = |rng: &mut Rng| rng.below(SELDOM) == 0;
        let (space, key) = match self.canary {
            Some(Canary::HalfBatch) if seldom(&mut self.rng) => (ROWS, self.key()),
            Some(Canary::DoubledMerge) if seldom(&mut self.rng) => (LISTS, self.key()),
            _ => return,
        };
        let version = (1 << 62) + self.number;
        let (kept, lost) = match self.canary {
            // The batch gets a range delete that covers no key, instead of the recorded put.
            Some(Canary::HalfBatch) => (Action::DeleteRange(key), Action::Put),
            _ => (Action::Merge, Action::Merge),
        };
        let noted = Write { space, action: lost, key, version };
        let keyspace = &self.world.spaces[space as usize];
        match kept {
            Action::Merge => {
                self.add(batch, noted);
                self.add(batch, noted);
                self.log.writes.extend([noted, Write { action: Action::DeleteRange(key), ..noted }]);
            }
            _ => {
                let first = super::log::key(key);
                batch.delete_range(keyspace, [&first[..], &[0]].concat()..[&first[..], &[1]].concat());
                self.log.writes.push(noted);
            }
        }
    }
}
