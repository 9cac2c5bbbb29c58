//! Tests the test harnesses: activates each seeded bug, and checks that the harness named in the bug's `Hunt` catches
//! it.
//!
//! The switch is global to the process, so this binary has no other test. A release build has no switch, so this test
//! does nothing there. With `BUGS=Range` in the environment, only bugs with `Range` in their names are tried. If no
//! name contains the word, the test fails and lists the names.
#![cfg(debug_assertions)]

use std::collections::HashSet;
use std::time::Instant;

use pandodb::base::seeded::{SeededBug, activate};
use pandodb_proof::Unit;
use pandodb_proof::seeded::{BY_SCHEDULES, HUNTS, Hunt};

#[test]
fn every_seeded_bug_is_caught() {
    let hunted: HashSet<SeededBug> = HUNTS.iter().map(|hunt| hunt.bug).chain(BY_SCHEDULES.iter().copied()).collect();
    assert!(SeededBug::ALL.iter().all(|bug| hunted.contains(bug)), "a bug has no hunt");
    assert_eq!(HUNTS.len() + BY_SCHEDULES.len(), SeededBug::ALL.len(), "a bug has two hunts");
    let chosen = std::env::var("BUGS").unwrap_or_default();
    let is_chosen = |hunt: &&Hunt| format!("{:?}", hunt.bug).contains(&chosen);
    let names: Vec<SeededBug> = HUNTS.iter().map(|hunt| hunt.bug).collect();
    assert!(HUNTS.iter().any(|hunt| is_chosen(&hunt)), "BUGS={chosen} is in no name of {names:?}");
    // Some bugs cause panics. Without this hook, their messages would make the printed table hard to find.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let mut survivors = Vec::new();
    println!("| bug | caught by | seed | runs | seconds | first words |\n| --- | --- | --- | --- | --- | --- |");
    for hunt in HUNTS.iter().filter(is_chosen) {
        let begun = Instant::now();
        activate(Some(hunt.bug));
        let caught = hunt.go();
        activate(None);
        let (bug, kind, seconds) = (hunt.bug, hunt.kind.name(), begun.elapsed().as_secs_f64());
        match caught {
            Some(caught) => {
                // The same unit must pass without the bug, which shows that the bug caused the failure.
                let calm = pandodb_proof::run(hunt.kind, &Unit::of(caught.seed));
                assert!(calm.failures.is_empty(), "{bug:?}: seed {} fails without the bug too", caught.seed);
                let words = last_words(&caught.what);
                println!("| {bug:?} | {kind} | {} | {} | {seconds:.1} | {words} |", caught.seed, caught.runs);
            }
            None => {
                println!("| {bug:?} | **survived {kind}** | | | {seconds:.1} | {} |", hunt.sign);
                survivors.push(bug);
            }
        }
    }
    std::panic::set_hook(hook);
    println!("{} bugs, {:.0} s", HUNTS.len(), started.elapsed().as_secs_f64());
    assert!(survivors.is_empty(), "{} bugs survived: {survivors:?}", survivors.len());
}

/// The end of a failure text, which describes the failure. The location at the beginning of the text is left out,
/// because it is long.
fn last_words(what: &str) -> String {
    let flat: Vec<char> = what.chars().map(|c| if c == '\n' || c == '|' { ' ' } else { c }).collect();
    let cut = flat.len().saturating_sub(110);
    flat[cut..].iter().collect()
}
