//! Isolation tests with every kind of history and with clients that lie. `pando sim histories` runs more histories.

use pandodb_proof::histories::{Canary, Place, Plan, run_black_box, run_plan};
use pandodb_proof::{Kind, run_until};

#[test]
fn threads_read_exactly_what_was_committed() {
    let tally = run_until(Kind::Histories, 0.., 250_000);
    println!("{} transactions: {}", tally.runs, tally.words());
    tally.none();
    let parts = ["copies", "reopenings", "checkpoints", "compactions", "flushes", "splits", "conflicts"];
    parts.into_iter().for_each(|part| assert!(tally.counted(part) > 0, "no {part}"));
}

#[test]
fn crashes_and_faults_preserve_isolation() {
    let tally = run_until(Kind::Histories, (0..16).map(|i| 8 * (i / 2) + 6 + i % 2), 25_000);
    println!("{} transactions: {}", tally.runs, tally.words());
    tally.none();
    let parts = ["crashes", "kills", "power cuts", "faults that struck", "unknown", "refused", "conflicts"];
    parts.into_iter().for_each(|part| assert!(tally.counted(part) > 0, "no {part}"));
}

/// Tries a few seeds and returns the first failure that a lie causes.
fn noticed(lie: impl Fn(u64) -> Vec<String>) -> Option<String> {
    (0..5).find_map(|seed| lie(seed).into_iter().next())
}

#[test]
fn clients_that_lie_are_detected() {
    for canary in Canary::ALL {
        let whats = |seed| {
            let plan = Plan { keys: 64, windows: 1, ..Plan::of(seed, Place::Memory) };
            run_plan(&plan, Some(canary)).failures.into_iter().map(|failure| failure.what).collect()
        };
        let what = noticed(whats).unwrap_or_else(|| panic!("{canary:?} was not detected"));
        println!("{canary:?}: {what}");
        let expected: &[&str] = match canary {
            Canary::OldSnapshot => &["StaleSnapshot"],
            Canary::DoubledMerge => &["DoubledMerge"],
            Canary::CommittedAnyway => &["LostSeqno", "AbortedRead", "HalfBatch", "FalseConflict"],
            Canary::BlindScan => &["Phantom", "HalfBatch"],
            Canary::HalfBatch => &["StaleRead", "HalfBatch", "Phantom"],
            Canary::OldValue => &["StaleRead", "HalfBatch", "FutureRead", "LostMerge"],
            Canary::LateSnapshot => &["StaleRead", "HalfBatch", "Phantom", "LostMerge"],
            Canary::SkewedTransaction => &["WriteSkew", "Phantom", "LostUpdate"],
            Canary::LastCommitterWins => &["LostUpdate"],
            Canary::FalseConflict => &["FalseConflict"],
        };
        assert!(expected.iter().any(|name| what.starts_with(name)), "{canary:?} was reported as {what}");
    }
}

#[test]
fn the_black_box_detects_clients_that_lie() {
    for canary in [Canary::LateSnapshot, Canary::CommittedAnyway, Canary::BlindScan, Canary::SkewedTransaction] {
        let whats = |seed| run_black_box(seed, canary).failures.into_iter().map(|failure| failure.what).collect();
        let what = noticed(whats).unwrap_or_else(|| panic!("{canary:?} was not detected"));
        println!("{canary:?}: {what}");
    }
}

#[test]
fn the_black_box_is_deterministic() {
    let units = [run_until(Kind::Histories, [15], u64::MAX), run_until(Kind::Histories, [15], u64::MAX)];
    assert_eq!(units[0], units[1]);
}
