//! The white-box checker: replays the commits in the order of their seqnos, and compares every read with the model at
//! the point of the read.
//!
//! 1. Sort the commits by seqno and the looks (groups of reads) by their points.
//! 2. The seqnos of all commits must not overlap and must leave no gap, because no other thread writes to the store.
//!    The creation of a keyspace uses one seqno too, so each creation explains one missing seqno.
//! 3. No operation may have a point or a seqno below a seqno that was acknowledged or seen before the operation began
//!    (*real time*). No point may lie inside a batch.
//! 4. Each look must have seen the state of the model at its point, for every key that it requested: the newest version
//!    of the value, every operand exactly once and in order, and no extra or missing key.
//! 5. For some looks only an interval is known that contains their point. Such a look must agree with the model at some
//!    point of the interval. The look is compared again after each commit until it agrees. At any time, at most as many
//!    looks as there are threads still have to agree.
//!
//! **Cost.** The time is linear in the number of operations and in the number of items that these operations saw,
//! except for the two sorts. The record of each thread is sorted already, so the sorts only merge one sequence per
//! thread, in O(n log threads). The memory is proportional to the size of one window plus the size of the model, so a
//! history can have any number of windows.
//!
//! **Transactions.** The reads of every transaction, also of one that was not committed, are a look at its read point. A
//! committed transaction must also satisfy the rules of its isolation, and a conflict must have a cause
//! (module `serial`). A batch is not compared with other commits: the last commit of a key wins.

use std::fmt;

use super::log::{
    Action, Commit, Creation, Domain, LISTS, Log, Look, NAMES, Outcome, Part, Read, SPACES, SUMS, Space, Write, mix,
};
use super::{name, serial};
use crate::report::ENOUGH;

/// A violation of isolation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// A read saw an older version than the newest one at its point.
    StaleRead,
    /// A read saw a version that was committed after its point.
    FutureRead,
    /// A read saw a version that was never committed.
    AbortedRead,
    /// A read saw a key or a value that no write used.
    StrangeRead,
    /// A look saw one part of a batch and not another part, or the point of the look is between two operations of a
    /// batch.
    HalfBatch,
    /// An operand is missing although later operands are present.
    LostMerge,
    /// An operand is present twice.
    DoubledMerge,
    /// Operands are not in the order of their commits.
    MixedMerges,
    /// A scan saw a key that did not exist, or missed a key that did exist.
    Phantom,
    /// The seqno of a snapshot is below a seqno that was acknowledged or seen before the snapshot was taken.
    StaleSnapshot,
    /// The seqno of a snapshot is above the seqnos of all commits.
    FutureSnapshot,
    /// The seqno of a commit is not above every seqno that was acknowledged or seen before the commit was submitted.
    EarlyCommit,
    /// Two commits have the same seqno.
    SharedSeqno,
    /// A seqno belongs to no commit.
    LostSeqno,
    /// A transaction wrote a key that another commit had changed after the transaction's read point. The transaction
    /// had read the key, or it ran under snapshot isolation.
    LostUpdate,
    /// A serialisable transaction read a key that another commit had changed when the transaction was committed.
    WriteSkew,
    /// A transaction was refused because of a conflict, but no commit had changed what it depends on.
    FalseConflict,
    /// A call failed although there was no fault.
    Failed,
}

/// An anomaly and its evidence.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The kind of anomaly.
    pub anomaly: Anomaly,
    /// One line that describes where the anomaly occurred.
    pub what: String,
    /// The transactions around the anomaly, one per line.
    pub history: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.anomaly, self.what)
    }
}

/// A key of the model.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub present: bool,
    items: Vec<u64>,
    /// The seqno of the last commit that changed the key.
    pub changed: u64,
    /// The seqno of the last commit that changed the key by another operation than a merge.
    pub replaced: u64,
    /// The seqnos of the commits of this window that gave the key a value, or removed its value.
    toggled: Vec<u64>,
}

impl Cell {
    fn seen(&self) -> Option<&[u64]> {
        self.present.then_some(&self.items)
    }

    /// Whether the key had a value after the commits up to `seqno`, which is not below the beginning of the window.
    pub fn was_present(&self, seqno: u64) -> bool {
        let later = self.toggled.iter().rev().take_while(|&&at| at > seqno).count();
        self.present ^ (later % 2 == 1)
    }

    /// Applies a write of a commit whose last seqno is `last`.
    fn apply(&mut self, write: &Write, last: u64) {
        let item = if write.space == SUMS { mix(write.version) } else { write.version };
        let before = self.present;
        match (write.action, write.space) {
            (Action::Merge, SUMS) if self.present => self.items[0] = self.items[0].wrapping_add(item),
            (Action::Merge, LISTS) if self.present => self.items.push(item),
            (Action::Put | Action::Merge, _) => {
                self.items.clear();
                self.items.push(item);
                self.present = true;
            }
            _ => {
                self.items.clear();
                self.present = false;
            }
        }
        self.changed = last;
        if write.action != Action::Merge {
            self.replaced = last;
        }
        if self.present != before {
            self.toggled.push(last);
        }
    }
}

/// A key whose value in a look differs from the model.
pub(super) struct Difference {
    pub space: Space,
    pub key: u32,
    /// Whether a scan saw the key.
    pub scanned: bool,
    pub expected: Option<Vec<u64>>,
    pub seen: Option<Vec<u64>>,
}

/// A look, with the log that contains it.
type Place<'a> = (&'a Log, &'a Look);
/// A look that does not agree with the model yet, and a key that differed at the last comparison.
type Open<'a> = (Place<'a>, Difference);

/// The state of all keyspaces after the commits that were replayed, and the anomalies that were found.
pub struct Checker {
    model: Vec<Vec<Cell>>,
    /// All commits up to this seqno were replayed.
    at: u64,
    /// Creations to which no missing seqno has been assigned yet.
    creations: Vec<Creation>,
    /// The anomalies that were found, at most [`ENOUGH`].
    pub findings: Vec<Finding>,
}

impl Checker {
    /// A checker for keyspaces that are still empty. Each keyspace can hold `keys` keys. The creation of the keyspaces
    /// used the seqnos up to `at`.
    pub fn new(keys: u32, at: u64) -> Checker {
        let model = vec![vec![Cell::default(); keys as usize]; SPACES];
        Checker { model, at, creations: Vec::new(), findings: Vec::new() }
    }

    /// The last seqno that was replayed.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Checks the next window: all operations between two moments at which no operation was in progress.
    pub fn window(&mut self, logs: &[Log]) {
        for log in logs {
            log.errors.iter().for_each(|error| self.find(Anomaly::Failed, error.clone(), Vec::new));
            self.creations.extend_from_slice(&log.creations);
        }
        let mut commits: Vec<(u64, &Log, &Commit)> = Vec::new();
        let mut looks: Vec<Place<'_>> = Vec::new();
        for log in logs {
            looks.extend(log.looks.iter().map(|look| (log, look)));
            commits.extend(log.commits.iter().filter_map(|commit| match commit.outcome {
                Outcome::At(last) => Some((last, log, commit)),
                Outcome::Refused | Outcome::Conflict(_) => None,
            }));
        }
        commits.sort_by_key(|(last, ..)| *last);
        self.model.iter_mut().flatten().for_each(|cell| cell.toggled.clear());
        serial::check_conflicts(self, logs, &commits);
        looks.sort_by_key(|(_, look)| look.lo);
        let mut looks = looks.into_iter().peekable();
        let mut open: Vec<Open<'_>> = Vec::new();
        for (last, log, commit) in commits {
            while let Some((log, look)) = looks.next_if(|(_, look)| look.lo < last) {
                self.pass_creations(look.lo);
                if self.at < look.lo && look.lo == look.hi {
                    let what = format!("{} read at {}, inside a batch", name::look(look), look.lo);
                    self.find(Anomaly::HalfBatch, what, || name::around(logs, look.lo));
                }
                self.judge(logs, (log, look), last, &mut open);
            }
            let (later, never): (Vec<_>, Vec<_>) = open.into_iter().partition(|(place, _)| place.1.hi >= last);
            never.into_iter().for_each(|(place, _)| self.convict(logs, place));
            self.replay(logs, last, log, commit);
            open = later.into_iter().filter_map(|open| self.retry(open)).collect();
        }
        for (log, look) in looks {
            self.pass_creations(look.lo);
            if look.lo > self.at {
                let what = format!("{} read at {}, but the last commit is {}", name::look(look), look.lo, self.at);
                self.find(Anomaly::FutureSnapshot, what, Vec::new);
            }
            self.judge(logs, (log, look), u64::MAX, &mut open);
        }
        open.into_iter().for_each(|(place, _)| self.convict(logs, place));
        self.pass_creations(u64::MAX);
        for creation in std::mem::take(&mut self.creations) {
            let Creation { floor, shown } = creation;
            let what = format!(
                "a keyspace was created after {floor} and seen at {shown}, but no seqno is left for its creation"
            );
            self.find(Anomaly::SharedSeqno, what, Vec::new);
        }
    }

    /// Skips the seqnos up to `to` that creations used.
    fn pass_creations(&mut self, to: u64) {
        while self.at < to {
            let next = self.at + 1;
            let Some(found) = self.creations.iter().position(|c| c.floor < next && next <= c.shown) else { return };
            self.creations.swap_remove(found);
            self.at = next;
        }
    }

    /// Checks the seqnos of a commit, then applies it.
    fn replay(&mut self, logs: &[Log], last: u64, log: &Log, commit: &Commit) {
        let writes = log.writes_of(commit);
        let count = writes.iter().filter(|write| write.counts()).count() as u64;
        let first = last + 1 - count;
        self.pass_creations(first - 1);
        if first != self.at + 1 {
            let anomaly = if first <= self.at { Anomaly::SharedSeqno } else { Anomaly::LostSeqno };
            let what =
                format!("{} has {first} to {last}, the commit before it ends at {}", name::commit(commit), self.at);
            self.find(anomaly, what, || name::around(logs, last));
        }
        if first <= commit.floor {
            let what =
                format!("{} has {first} to {last}, but {} was visible before", name::commit(commit), commit.floor);
            self.find(Anomaly::EarlyCommit, what, || name::around(logs, last));
        }
        serial::check_commit(self, logs, log, commit, first);
        for write in writes {
            self.cells(write).for_each(|cell| cell.apply(write, last));
        }
        self.at = self.at.max(last);
    }

    /// The keys of the model that a write changes.
    pub(super) fn cells(&mut self, write: &Write) -> impl Iterator<Item = &mut Cell> {
        let space = &mut self.model[write.space as usize];
        let (keys, end) = (write.keys(), space.len());
        let to = (keys.end as usize).min(end);
        space[(keys.start as usize).min(to)..to].iter_mut()
    }

    /// Compares a look with the current model. `next`: the last seqno of the next commit.
    fn judge<'a>(&mut self, logs: &[Log], place: Place<'a>, next: u64, open: &mut Vec<Open<'a>>) {
        let (log, look) = place;
        if look.lo < look.floor {
            let what = format!("{} read at {}, but {} was visible before", name::look(look), look.lo, look.floor);
            self.find(Anomaly::StaleSnapshot, what, || name::around(logs, look.lo));
        }
        if let Some(difference) = self.difference(log, look.reads, look.writes) {
            if look.hi >= next && look.hi > look.lo {
                open.push((place, difference));
            } else {
                self.convict(logs, place);
            }
        }
    }

    /// Compares an open look with the model again. Returns the look if it still does not agree. The first key that is
    /// checked is the key that differed last time, because this key usually still differs.
    fn retry<'a>(&self, (place, wrong): Open<'a>) -> Option<Open<'a>> {
        let cell = self.model[wrong.space as usize].get(wrong.key as usize);
        if cell.and_then(Cell::seen) != wrong.seen.as_deref() {
            return Some((place, wrong));
        }
        self.difference(place.0, place.1.reads, place.1.writes).map(|difference| (place, difference))
    }

    /// Reports a look that agrees with the model at no possible point.
    fn convict(&mut self, logs: &[Log], (log, look): Place<'_>) {
        let difference = self.difference(log, look.reads, look.writes).expect("a look that holds is not reported");
        let anomaly = name::anomaly(logs, log, look, &difference);
        let show =
            |items: &Option<Vec<u64>>| items.as_deref().map_or("nothing".into(), |i| name::items(difference.space, i));
        let what = format!(
            "{} read at {}{}: {}/{} was {}, it saw {}",
            name::look(look),
            look.lo,
            if look.hi > look.lo { format!(" to {}", look.hi) } else { String::new() },
            NAMES[difference.space as usize],
            difference.key,
            show(&difference.expected),
            show(&difference.seen)
        );
        self.find(anomaly, what, || name::about(logs, look, &difference));
    }

    /// The first key that some reads saw with a value that differs from the model. `writes` are those of the transaction
    /// that made the reads; each read sees the ones that precede it.
    pub(super) fn difference(&self, log: &Log, reads: Part, writes: Part) -> Option<Difference> {
        let writes = &log.writes[writes.range()];
        log.reads[reads.range()].iter().find_map(|read| {
            let own = &writes[..(read.own as usize).min(writes.len())];
            match read.domain {
                Domain::Keys(keys) => self.compare(log, (read, own), log.keys[keys.range()].iter().copied(), false),
                Domain::Span(from, to) => self.compare(log, (read, own), from..to, true),
            }
        })
    }

    fn compare(
        &self,
        log: &Log,
        (read, own): (&Read, &[Write]),
        keys: impl Iterator<Item = u32>,
        scanned: bool,
    ) -> Option<Difference> {
        let mut entries = log.entries[read.entries.range()].iter().peekable();
        let space = &self.model[read.space as usize];
        let differs = |key: u32, expected: Option<&[u64]>, seen: Option<&[u64]>| {
            let (expected, seen) = (expected.map(<[u64]>::to_vec), seen.map(<[u64]>::to_vec));
            Some(Difference { space: read.space, key, scanned, expected, seen })
        };
        for key in keys {
            let mut cell = space.get(key as usize);
            let mut after = Cell::default();
            if own.iter().any(|write| write.touches(read.space, key)) {
                after.clone_from(cell.unwrap_or(&after.clone()));
                let touching = own.iter().filter(|write| write.touches(read.space, key));
                touching.for_each(|write| after.apply(write, self.at));
                cell = Some(&after);
            }
            let expected = cell.and_then(Cell::seen);
            let seen = entries.next_if(|entry| entry.key == key).map(|entry| log.items_of(entry));
            if expected != seen {
                return differs(key, expected, seen);
            }
        }
        // If an entry remains, it is out of order, outside the domain, or has an unknown key.
        entries.next().and_then(|entry| differs(entry.key, None, Some(log.items_of(entry))))
    }

    pub(super) fn find(&mut self, anomaly: Anomaly, what: String, history: impl FnOnce() -> Vec<String>) {
        if self.findings.len() < ENOUGH {
            self.findings.push(Finding { anomaly, what, history: history() });
        }
    }
}
