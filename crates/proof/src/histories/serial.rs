//! The rules for transactions, which the white-box checker applies to each commit while it replays the history.
//!
//! ```text
//!   read point            first seqno
//!   ──┼────── others ──────────┼────── serialisable: run here as a whole, the reads see the same
//!     │                        │       snapshot: no other commit in between has written the same keys
//! ```
//!
//! 1. A *serialisable* transaction takes effect at its own seqnos. Every read, through the transaction's own earlier
//!    writes, must see what the model has directly before the first of these seqnos.
//! 2. Under *snapshot isolation* the first committer of a key wins: no other commit between the read point and the first
//!    seqno has changed a key that the transaction writes. Two merges of the same key are allowed. One change may be
//!    overlooked, because it may leave no trace in the store: the key had no value at the read point and has none now.
//! 3. A transaction that was refused because of a conflict must have a cause: another commit after the read point has
//!    written to a key or a range that the first two rules protect. What a transaction has read from its own writes
//!    alone is not protected.

use pandodb::Isolation;

use super::check::{Anomaly, Cell, Checker, Difference};
use super::log::{Action, Commit, Domain, Log, NAMES, Outcome, Read, Write};
use super::name;

/// Checks a commit whose first seqno is `first`. The model has the state directly before this seqno.
pub(super) fn check_commit(checker: &mut Checker, logs: &[Log], log: &Log, commit: &Commit, first: u64) {
    match commit.isolation {
        None => {}
        Some(Isolation::Serializable) => check_reads(checker, logs, log, commit, first),
        Some(Isolation::Snapshot) => check_writes(checker, logs, log, commit, first),
    }
}

fn check_reads(checker: &mut Checker, logs: &[Log], log: &Log, commit: &Commit, first: u64) {
    let Some(difference) = checker.difference(log, commit.reads, commit.writes) else { return };
    let Difference { space, key, scanned, expected, seen } = &difference;
    let writes_it = log.writes_of(commit).iter().any(|write| write.touches(*space, *key));
    let anomaly = match () {
        () if *scanned && expected.is_some() != seen.is_some() => Anomaly::Phantom,
        () if writes_it => Anomaly::LostUpdate,
        () => Anomaly::WriteSkew,
    };
    let show = |items: &Option<Vec<u64>>| items.as_deref().map_or("nothing".into(), |i| name::items(*space, i));
    let what = format!(
        "{} read at {} and was committed at {first}: then {}/{key} was {}, it had seen {}",
        name::commit(commit),
        commit.begin,
        NAMES[*space as usize],
        show(expected),
        show(seen)
    );
    checker.find(anomaly, what, || name::around(logs, first));
}

fn check_writes(checker: &mut Checker, logs: &[Log], log: &Log, commit: &Commit, first: u64) {
    for write in log.writes_of(commit) {
        let conflict = |cell: &Cell| {
            let at = if write.action == Action::Merge { cell.replaced } else { cell.changed };
            (at > commit.begin && (cell.present || cell.was_present(commit.begin))).then_some(at)
        };
        let changed = checker.cells(write).find_map(|cell| conflict(cell));
        if let Some(at) = changed {
            let what = format!(
                "{} read at {} and was committed at {first}; its {:?} of {}/{} conflicts with the change at {at}",
                name::commit(commit),
                commit.begin,
                write.action,
                NAMES[write.space as usize],
                write.key
            );
            checker.find(Anomaly::LostUpdate, what, || name::around(logs, first));
            return;
        }
    }
}

/// Checks that each conflict has a cause. `commits` are in ascending order, each with its last seqno.
pub(super) fn check_conflicts(checker: &mut Checker, logs: &[Log], commits: &[(u64, &Log, &Commit)]) {
    for log in logs {
        for commit in &log.commits {
            let Outcome::Conflict(shown) = commit.outcome else { continue };
            let later = &commits[commits.partition_point(|(last, ..)| *last <= commit.begin)..];
            let submitted = later.iter().filter(|(.., other)| other.floor <= shown);
            let mut writes = submitted.flat_map(|(_, log, other)| log.writes_of(other));
            if !writes.any(|write| is_protected(log, commit, write)) {
                let what = format!(
                    "{} read at {} and had a conflict, but no other commit before {shown} is a cause",
                    name::commit(commit),
                    commit.begin
                );
                checker.find(Anomaly::FalseConflict, what, || name::around(logs, shown));
            }
        }
    }
}

/// Whether a write of another commit is a conflict with the transaction.
fn is_protected(log: &Log, commit: &Commit, write: &Write) -> bool {
    let own = log.writes_of(commit);
    match commit.isolation {
        Some(Isolation::Serializable) => {
            let mut reads = log.reads[commit.reads.range()].iter();
            reads.any(|read| read.space == write.space && depends_on(log, read, own, write))
        }
        _ => own.iter().any(|mine| {
            let (ours, theirs) = (mine.keys(), write.keys());
            mine.space == write.space
                && (mine.action, write.action) != (Action::Merge, Action::Merge)
                && ours.start < theirs.end
                && theirs.start < ours.end
        }),
    }
}

/// Whether the result of a read depends on another commit's write to the same keyspace.
fn depends_on(log: &Log, read: &Read, own: &[Write], write: &Write) -> bool {
    let keys = write.keys();
    match read.domain {
        Domain::Span(from, to) => keys.start < to && from < keys.end,
        Domain::Keys(asked) => {
            let own = &own[..read.own as usize];
            let replaced = |key| own.iter().any(|mine| mine.action != Action::Merge && mine.touches(read.space, key));
            log.keys[asked.range()].iter().any(|&key| keys.contains(&key) && !replaced(key))
        }
    }
}
