//! Classifies a wrong look as an anomaly, and selects the transactions to report with the look. This code runs only
//! after a failure, so it may search the whole window.

use std::collections::HashMap;

use super::check::{Anomaly, Difference};
use super::log::{
    Action, BROKEN, Commit, LISTS, Log, Look, NAMES, Outcome, STRANGER, SUMS, Space, Write, mix, name_txn, txn_of,
};

/// Number of commits that are reported before and after the relevant one.
const BESIDE: usize = 4;

/// The name of a look in a report.
pub(super) fn look(look: &Look) -> String {
    name_txn(look.txn)
}

/// The name of a commit in a report.
pub(super) fn commit(commit: &Commit) -> String {
    name_txn(commit.txn)
}

/// Formats the items of a value.
pub(super) fn items(space: Space, items: &[u64]) -> String {
    if space == SUMS {
        return format!("the sum {:#x}", items.first().copied().unwrap_or(0));
    }
    let word = |item: &u64| match *item {
        BROKEN => "bytes that are not a value".to_owned(),
        version => format!("{}:{}", name_txn(txn_of(version)), version & 63),
    };
    format!("[{}]", items.iter().map(word).collect::<Vec<_>>().join(", "))
}

/// The writes of the window to one key: version ↦ last seqno of the commit, or `None` if the commit was refused.
fn writes_to(logs: &[Log], space: Space, key: u32) -> HashMap<u64, Option<u64>> {
    let mut found = HashMap::new();
    for log in logs {
        for commit in &log.commits {
            let at = match commit.outcome {
                Outcome::At(last) => Some(last),
                Outcome::Refused | Outcome::Conflict(_) => None,
            };
            let writes = log.writes_of(commit).iter().filter(|write| write.touches(space, key));
            found.extend(writes.map(|write| (write.version, at)));
        }
    }
    found
}

/// The anomaly that a difference shows.
pub(super) fn anomaly(logs: &[Log], log: &Log, look: &Look, difference: &Difference) -> Anomaly {
    let Difference { space, key, scanned, expected, seen } = difference;
    if *key == STRANGER || seen.as_ref().is_some_and(|seen| seen.contains(&BROKEN)) {
        return Anomaly::StrangeRead;
    }
    let writes = writes_to(logs, *space, *key);
    let (expected, seen) = (expected.as_deref().unwrap_or(&[]), seen.as_deref().unwrap_or(&[]));
    if *space == SUMS {
        return sum(&writes, look.hi, expected, seen).unwrap_or(presence(*scanned, expected, seen));
    }
    let at = |version: &u64| writes.get(version).copied();
    if seen.iter().any(|version| at(version) == Some(None)) {
        return Anomaly::AbortedRead;
    }
    if seen.iter().any(|version| at(version).flatten().is_some_and(|last| last > look.hi)) {
        return Anomaly::FutureRead;
    }
    if *space == LISTS && !expected.is_empty() && expected.first() == seen.first() && !expected.starts_with(seen) {
        return list(expected, seen);
    }
    // A version that the look should have seen is missing, and the look saw another part of the batch that wrote this
    // version.
    let missing = expected.iter().filter(|version| !seen.contains(version));
    let part_seen = |version: &u64| look_saw(log, look, txn_of(*version), *version);
    if missing.into_iter().any(part_seen) || deleted_by_half(logs, log, look, difference) {
        return Anomaly::HalfBatch;
    }
    presence(*scanned, expected, seen)
}

fn presence(scanned: bool, expected: &[u64], seen: &[u64]) -> Anomaly {
    if scanned && expected.is_empty() != seen.is_empty() { Anomaly::Phantom } else { Anomaly::StaleRead }
}

/// The anomaly that a list shows when its first item is right but a later item is wrong.
fn list(expected: &[u64], seen: &[u64]) -> Anomaly {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    seen.iter().for_each(|version| *counts.entry(*version).or_default() += 1);
    if counts.values().any(|count| *count > 1) {
        Anomaly::DoubledMerge
    } else if expected.iter().any(|version| !counts.contains_key(version)) {
        Anomaly::LostMerge
    } else {
        Anomaly::MixedMerges
    }
}

/// The anomaly that a sum shows when it is wrong by exactly one operand.
fn sum(writes: &HashMap<u64, Option<u64>>, hi: u64, expected: &[u64], seen: &[u64]) -> Option<Anomaly> {
    let (expected, seen) = (expected.first()?, seen.first()?);
    let of = |delta: u64| writes.iter().find(|(version, _)| mix(**version) == delta).map(|(_, at)| *at);
    match (of(seen.wrapping_sub(*expected)), of(expected.wrapping_sub(*seen))) {
        (Some(None), _) => Some(Anomaly::AbortedRead),
        (Some(Some(at)), _) if at > hi => Some(Anomaly::FutureRead),
        (Some(_), _) => Some(Anomaly::DoubledMerge),
        (_, Some(_)) => Some(Anomaly::LostMerge),
        _ => None,
    }
}

/// Whether a look saw a version of transaction `txn` other than `but`.
fn look_saw(log: &Log, look: &Look, txn: u64, but: u64) -> bool {
    let reads = log.reads[look.reads.range()].iter().filter(|read| read.space != SUMS);
    let mut items = reads.flat_map(|read| &log.entries[read.entries.range()]).flat_map(|entry| log.items_of(entry));
    items.any(|version| *version != but && txn_of(*version) == txn)
}

/// Whether a batch deleted the key of a difference, and the look saw another part of this batch.
fn deleted_by_half(logs: &[Log], log: &Log, look: &Look, difference: &Difference) -> bool {
    let Difference { space, key, expected: None, .. } = difference else { return false };
    let newest = placed(logs).into_iter().filter(|(at, ..)| *at <= look.hi);
    let newest = newest.filter(|(.., writes)| writes.iter().any(|write| write.touches(*space, *key)));
    newest.max_by_key(|(at, ..)| *at).is_some_and(|(_, commit, writes)| {
        let last = writes.iter().rfind(|write| write.touches(*space, *key));
        let deletes = last.is_some_and(|write| !matches!(write.action, Action::Put | Action::Merge));
        deletes && look_saw(log, look, commit.txn, BROKEN)
    })
}

/// All commits with their seqnos and writes, in order.
fn placed(logs: &[Log]) -> Vec<(u64, &Commit, &[Write])> {
    let of = |log| -> Vec<(u64, &Commit, &[Write])> {
        let log: &Log = log;
        let place = |commit| match commit {
            commit @ &Commit { outcome: Outcome::At(last), .. } => Some((last, commit, log.writes_of(commit))),
            _ => None,
        };
        log.commits.iter().filter_map(place).collect()
    };
    let mut all: Vec<_> = logs.iter().flat_map(of).collect();
    all.sort_by_key(|(last, ..)| *last);
    all
}

fn line((last, commit, writes): &(u64, &Commit, &[Write])) -> String {
    let words = writes.iter().map(|write| {
        let (action, name) = (write.action, NAMES[write.space as usize]);
        format!("{action:?} {name}/{} as {}", write.key, write.version & 63)
    });
    let words: Vec<String> = words.collect();
    format!("..={last} {} (after {}): {}", self::commit(commit), commit.floor, words.join("; "))
}

/// The commits around a seqno.
pub(super) fn around(logs: &[Log], seqno: u64) -> Vec<String> {
    let all = placed(logs);
    let at = all.partition_point(|(last, ..)| *last <= seqno);
    all[at.saturating_sub(BESIDE)..(at + BESIDE).min(all.len())].iter().map(line).collect()
}

/// The commits that wrote to the key of a difference, as far as they are near the point of the look or wrote a version
/// that the look saw.
pub(super) fn about(logs: &[Log], look: &Look, difference: &Difference) -> Vec<String> {
    let mut all = placed(logs);
    let seen = difference.seen.as_deref().unwrap_or(&[]);
    all.retain(|(.., writes)| writes.iter().any(|write| write.touches(difference.space, difference.key)));
    let at = all.partition_point(|(last, ..)| *last <= look.lo);
    let near = at.saturating_sub(BESIDE)..(at + BESIDE).min(all.len());
    let shown = all.iter().enumerate().filter(|(i, (.., writes))| {
        let of_seen = || writes.iter().any(|write| difference.space != SUMS && seen.contains(&write.version));
        near.contains(i) || of_seen()
    });
    shown.map(|(_, commit)| line(commit)).collect()
}
