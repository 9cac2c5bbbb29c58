//! The white-box checker: replays the commits in the order of their seqnos and holds every read against what it finds there.
//!
//! 1. Commits are brought into the order of their seqnos, looks into the order of their points.
//! 2. The seqnos of all commits must not overlap and must leave no gap, since only the history writes. The creation of a keyspace
//!    takes one seqno too, so each creation explains one missing seqno.
//! 3. Nothing may stand before what was acknowledged, or shown, before it began (*real time*), and no point inside a batch.
//! 4. At its point, each look must see what the model holds, for every key of its domain: the newest version at or before it,
//!    all operands once and in order, no key too many and none too few.
//! 5. A look whose point is only known to lie in an interval must hold somewhere in it; while it does not, it is tried again
//!    after each commit. There are never more of these than threads.
//!
//! **Cost.** Linear in operations and in what they saw, but for the two sorts, which merge runs that are sorted already (one
//! for each thread): O(n log threads). Memory is that of a window and of the model: a run of any length passes, window by
//! window.
//!
//! **Rules.** A transaction today is an atomic batch after reads at a snapshot; nothing detects conflicts. So two writers of
//! the same key may overlap, and the last commit wins: [`Rules::first_committer_wins`] is off. It is here for the day on which
//! transactions detect conflicts; what serialisable ones must keep is for the black box, by the name of the model alone.

use std::fmt;

use super::log::{
    Action, Commit, Creation, Domain, LISTS, Log, Look, NAMES, Outcome, Read, SPACES, SUMS, Space, Write, mix,
};
use super::name;
use crate::report::ENOUGH;

/// What a history may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// A read saw an older version than the newest one at its point.
    StaleRead,
    /// A read saw what was committed after its point.
    FutureRead,
    /// A read saw what was never committed.
    AbortedRead,
    /// A read saw what nobody wrote.
    StrangeRead,
    /// A look saw one part of a batch and not another, or stands inside of one.
    HalfBatch,
    /// An operand is missing although later ones are there.
    LostMerge,
    /// An operand is there twice.
    DoubledMerge,
    /// Operands are there in another order than they were committed in.
    MixedMerges,
    /// A scan saw a key that is not there, or passed over one that is.
    Phantom,
    /// A snapshot stands before what was acknowledged, or shown, before it was taken.
    StaleSnapshot,
    /// A snapshot stands above everything that was committed.
    FutureSnapshot,
    /// A commit stands before what was acknowledged, or shown, before it was asked for.
    EarlyCommit,
    /// Two commits have the same seqno.
    SharedSeqno,
    /// Seqnos that no commit has.
    LostSeqno,
    /// Two overlapping transactions wrote the same key. Legal while the last commit wins.
    LostUpdate,
    /// A call failed although nothing was broken.
    Failed,
}

/// The rules that depend on what transactions promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Of two overlapping transactions that write the same key, only one may commit.
    pub first_committer_wins: bool,
}

/// An anomaly and what shows it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Which one.
    pub anomaly: Anomaly,
    /// Where, in a line.
    pub what: String,
    /// The transactions around it, one a line.
    pub history: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.anomaly, self.what)
    }
}

/// A key of the model.
#[derive(Clone, Debug, Default)]
struct Cell {
    present: bool,
    items: Vec<u64>,
    /// The seqno of the last commit that changed it.
    changed: u64,
}

impl Cell {
    fn seen(&self) -> Option<&[u64]> {
        self.present.then_some(&self.items)
    }
}

/// A key that was seen otherwise than it is.
pub(super) struct Difference {
    pub space: Space,
    pub key: u32,
    /// Whether a scan saw it.
    pub scanned: bool,
    pub expected: Option<Vec<u64>>,
    pub seen: Option<Vec<u64>>,
}

/// A look, in one of the logs.
type Place<'a> = (&'a Log, &'a Look);
/// One that does not hold yet, and a key that was wrong when it was last tried.
type Open<'a> = (Place<'a>, Difference);

/// The state of all keyspaces after the commits so far, and what was wrong on the way.
pub struct Checker {
    rules: Rules,
    model: Vec<Vec<Cell>>,
    /// Everything up to this seqno was replayed.
    at: u64,
    /// Keyspaces whose creation has not been met in the order of seqnos yet.
    creations: Vec<Creation>,
    /// What was wrong, at most [`ENOUGH`].
    pub findings: Vec<Finding>,
}

impl Checker {
    /// Empty keyspaces of `keys` keys each, whose creation took the seqnos up to `at`; nothing was committed yet.
    pub fn new(keys: u32, rules: Rules, at: u64) -> Checker {
        let model = vec![vec![Cell::default(); keys as usize]; SPACES];
        Checker { rules, model, at, creations: Vec::new(), findings: Vec::new() }
    }

    /// The last seqno that was replayed.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Goes on with a window: everything that happened between two moments at which nothing was under way.
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
                Outcome::Refused => None,
            }));
        }
        commits.sort_by_key(|(last, ..)| *last);
        looks.sort_by_key(|(_, look)| look.lo);
        let mut looks = looks.into_iter().peekable();
        let mut open: Vec<Open<'_>> = Vec::new();
        for (last, log, commit) in commits {
            while let Some((log, look)) = looks.next_if(|(_, look)| look.lo < last) {
                self.pass_creations(look.lo);
                if self.at < look.lo && look.lo == look.hi {
                    let what = format!("{} looked at {}, inside a batch", name::look(look), look.lo);
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
                let what = format!("{} looked at {}, {} is the last commit", name::look(look), look.lo, self.at);
                self.find(Anomaly::FutureSnapshot, what, Vec::new);
            }
            self.judge(logs, (log, look), u64::MAX, &mut open);
        }
        open.into_iter().for_each(|(place, _)| self.convict(logs, place));
        self.pass_creations(u64::MAX);
        for creation in std::mem::take(&mut self.creations) {
            let Creation { floor, shown } = creation;
            let what = format!("a keyspace was created after {floor}, shown at {shown}, and no seqno is left for it");
            self.find(Anomaly::SharedSeqno, what, Vec::new);
        }
    }

    /// Moves over the seqnos up to `to` that creations took.
    fn pass_creations(&mut self, to: u64) {
        while self.at < to {
            let next = self.at + 1;
            let Some(found) = self.creations.iter().position(|c| c.floor < next && next <= c.shown) else { return };
            self.creations.swap_remove(found);
            self.at = next;
        }
    }

    /// Applies a commit, after looking at where it stands.
    fn replay(&mut self, logs: &[Log], last: u64, log: &Log, commit: &Commit) {
        let writes = log.writes_of(commit);
        let count = writes.iter().filter(|write| write.counts()).count() as u64;
        let first = last + 1 - count;
        self.pass_creations(first - 1);
        if first != self.at + 1 {
            let anomaly = if first <= self.at { Anomaly::SharedSeqno } else { Anomaly::LostSeqno };
            let what = format!("{} has {first} to {last}, {} came before", name::commit(commit), self.at);
            self.find(anomaly, what, || name::around(logs, last));
        }
        if first <= commit.floor {
            let what = format!("{} has {first} to {last}, {} was there before", name::commit(commit), commit.floor);
            self.find(Anomaly::EarlyCommit, what, || name::around(logs, last));
        }
        for write in writes {
            if self.rules.first_committer_wins && write.counts() {
                let since = self.cells(write).map(|cell| cell.changed).max().unwrap_or(0);
                if since > commit.begin && since < first {
                    let what = format!(
                        "{} began at {} and wrote {}/{}, which {since} had changed",
                        name::commit(commit),
                        commit.begin,
                        NAMES[write.space as usize],
                        write.key
                    );
                    self.find(Anomaly::LostUpdate, what, || name::around(logs, last));
                }
            }
            self.apply(write, last);
        }
        self.at = self.at.max(last);
    }

    fn cells(&mut self, write: &Write) -> impl Iterator<Item = &mut Cell> {
        let to = match write.action {
            Action::DeleteRange(to) => to,
            Action::Recreate => u32::MAX,
            _ => write.key + 1,
        };
        let space = &mut self.model[write.space as usize];
        let to = (to as usize).min(space.len());
        space[(write.key as usize).min(to)..to].iter_mut()
    }

    fn apply(&mut self, write: &Write, last: u64) {
        for cell in self.cells(write) {
            let item = if write.space == SUMS { mix(write.version) } else { write.version };
            match (write.action, write.space) {
                (Action::Merge, SUMS) if cell.present => cell.items[0] = cell.items[0].wrapping_add(item),
                (Action::Merge, LISTS) if cell.present => cell.items.push(item),
                (Action::Put | Action::Merge, _) => {
                    cell.items.clear();
                    cell.items.push(item);
                    cell.present = true;
                }
                _ => {
                    cell.items.clear();
                    cell.present = false;
                }
            }
            cell.changed = last;
        }
    }

    /// Holds a look against the model as it is; `next` is where the next commit ends.
    fn judge<'a>(&mut self, logs: &[Log], place: Place<'a>, next: u64, open: &mut Vec<Open<'a>>) {
        let (log, look) = place;
        if look.lo < look.floor {
            let what = format!("{} looked at {}, {} was there before", name::look(look), look.lo, look.floor);
            self.find(Anomaly::StaleSnapshot, what, || name::around(logs, look.lo));
        }
        if let Some(difference) = self.difference(log, look) {
            if look.hi >= next && look.hi > look.lo {
                open.push((place, difference));
            } else {
                self.convict(logs, place);
            }
        }
    }

    /// An open look that does not hold yet. The key that was wrong is asked first: mostly it still is.
    fn retry<'a>(&self, (place, wrong): Open<'a>) -> Option<Open<'a>> {
        let cell = self.model[wrong.space as usize].get(wrong.key as usize);
        if cell.and_then(Cell::seen) != wrong.seen.as_deref() {
            return Some((place, wrong));
        }
        self.difference(place.0, place.1).map(|difference| (place, difference))
    }

    /// Names what a look that never held has seen.
    fn convict(&mut self, logs: &[Log], (log, look): Place<'_>) {
        let difference = self.difference(log, look).expect("a look that holds is not convicted");
        let anomaly = name::anomaly(logs, log, look, &difference);
        let show =
            |items: &Option<Vec<u64>>| items.as_deref().map_or("nothing".into(), |i| name::items(difference.space, i));
        let what = format!(
            "{} looked at {}{}: {}/{} was {}, it saw {}",
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

    /// The first key that a look saw otherwise than the model has it.
    fn difference(&self, log: &Log, look: &Look) -> Option<Difference> {
        log.reads[look.reads.range()].iter().find_map(|read| match read.domain {
            Domain::Keys(keys) => self.compare(log, read, log.keys[keys.range()].iter().copied(), false),
            Domain::Span(from, to) => self.compare(log, read, from..to, true),
        })
    }

    fn compare(&self, log: &Log, read: &Read, keys: impl Iterator<Item = u32>, scanned: bool) -> Option<Difference> {
        let mut entries = log.entries[read.entries.range()].iter().peekable();
        let space = &self.model[read.space as usize];
        let differs = |key: u32, expected: Option<&[u64]>, seen: Option<&[u64]>| {
            let (expected, seen) = (expected.map(<[u64]>::to_vec), seen.map(<[u64]>::to_vec));
            Some(Difference { space: read.space, key, scanned, expected, seen })
        };
        for key in keys {
            let expected = space.get(key as usize).and_then(Cell::seen);
            let seen = entries.next_if(|entry| entry.key == key).map(|entry| log.items_of(entry));
            if expected != seen {
                return differs(key, expected, seen);
            }
        }
        // Out of order, out of the domain, or no key of ours.
        entries.next().and_then(|entry| differs(entry.key, None, Some(log.items_of(entry))))
    }

    fn find(&mut self, anomaly: Anomaly, what: String, history: impl FnOnce() -> Vec<String>) {
        if self.findings.len() < ENOUGH {
            self.findings.push(Finding { anomaly, what, history: history() });
        }
    }
}
