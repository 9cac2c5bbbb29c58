//! Tests the test harnesses: activates each seeded bug, and checks that the harness named in the bug's `Hunt` catches
//! it.
//!
//! The switch is global to the process. So the test starts itself again, as a process of its own for each bug, and has
//! as many of these processes at the same time as there are cores. The name of the bug is in the environment variable
//! `HUNT` of the process. A release build has no switch, so this test does nothing there. With `BUGS=Range` in the
//! environment, only bugs with `Range` in their names are tried. If no name contains the word, the test fails and lists
//! the names.
#![cfg(debug_assertions)]

use std::collections::HashSet;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use pandodb::base::seeded::{SeededBug, activate};
use pandodb_proof::Unit;
use pandodb_proof::seeded::{BY_SCHEDULES, HUNTS, Hunt};

/// The environment variable with the name of the bug that a process must catch.
const HUNT: &str = "HUNT";

#[test]
fn every_seeded_bug_is_caught() {
    if let Ok(name) = std::env::var(HUNT) {
        let hunt = HUNTS.iter().find(|hunt| format!("{:?}", hunt.bug) == name).expect("a bug with this name");
        return try_one(hunt);
    }
    let hunted: HashSet<SeededBug> = HUNTS.iter().map(|hunt| hunt.bug).chain(BY_SCHEDULES.iter().copied()).collect();
    assert!(SeededBug::ALL.iter().all(|bug| hunted.contains(bug)), "a bug has no hunt");
    assert_eq!(HUNTS.len() + BY_SCHEDULES.len(), SeededBug::ALL.len(), "a bug has two hunts");
    let word = std::env::var("BUGS").unwrap_or_default();
    let names: Vec<String> = HUNTS.iter().map(|hunt| format!("{:?}", hunt.bug)).collect();
    let chosen: Vec<&String> = names.iter().filter(|name| name.contains(&word)).collect();
    assert!(!chosen.is_empty(), "BUGS={word} is in no name of {names:?}");
    let started = Instant::now();
    println!("| bug | caught by | seed | runs | seconds | first words |\n| --- | --- | --- | --- | --- | --- |");
    let survivors = try_all(&chosen);
    println!("{} bugs, {:.0} s", chosen.len(), started.elapsed().as_secs_f64());
    assert!(survivors.is_empty(), "{} bugs survived: {survivors:?}", survivors.len());
}

/// Runs all hunts, and returns the names of the bugs that were not caught.
fn try_all<'a>(chosen: &[&'a String]) -> Vec<&'a String> {
    let next = Mutex::new(chosen.iter());
    let survivors = Mutex::new(Vec::new());
    let work = || {
        loop {
            let taken = next.lock().unwrap().next();
            let Some(name) = taken else { return };
            if !is_caught(name) {
                survivors.lock().unwrap().push(*name);
            }
        }
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)))
    });
    survivors.into_inner().unwrap()
}

/// Runs the hunt of one bug in a process of its own, and prints its row of the table.
fn is_caught(name: &str) -> bool {
    let exe = std::env::current_exe().expect("the path of this test");
    let arguments = ["every_seeded_bug_is_caught", "--exact", "--nocapture", "--test-threads=1"];
    let output = Command::new(exe).args(arguments).env(HUNT, name).output().expect("this test starts again");
    let text = String::from_utf8_lossy(&output.stdout);
    // The test harness prints the name of the test before the row, in the same line.
    let row = text.find("| ").map(|at| text[at..].lines().next().unwrap_or_default());
    let is_caught = output.status.success() && row.is_some();
    println!("{}", row.unwrap_or(&text));
    if !is_caught {
        println!("{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    is_caught
}

/// Runs one hunt, and prints its row of the table.
fn try_one(hunt: &Hunt) {
    // Some bugs cause panics. Without this hook, their messages would fill the output.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    activate(Some(hunt.bug));
    let caught = hunt.go();
    activate(None);
    let (bug, kind, seconds) = (hunt.bug, hunt.kind.name(), begun.elapsed().as_secs_f64());
    // The same unit must pass without the bug, which shows that the bug caused the failure.
    let calm = caught.as_ref().map(|caught| pandodb_proof::run(hunt.kind, &Unit::of(caught.seed)));
    std::panic::set_hook(hook);
    let Some((caught, calm)) = caught.zip(calm) else {
        println!("| {bug:?} | **survived {kind}** | | | {seconds:.1} | {} |", hunt.sign);
        panic!("{bug:?} survived");
    };
    let words = last_words(&caught.what);
    println!("| {bug:?} | {kind} | {} | {} | {seconds:.1} | {words} |", caught.seed, caught.runs);
    assert!(calm.failures.is_empty(), "{bug:?}: seed {} fails without the bug too", caught.seed);
}

/// The end of a failure text, which describes the failure. The location at the beginning of the text is left out,
/// because it is long.
fn last_words(what: &str) -> String {
    let flat: Vec<char> = what.chars().map(|c| if c == '\n' || c == '|' { ' ' } else { c }).collect();
    let cut = flat.len().saturating_sub(110);
    flat[cut..].iter().collect()
}
