//! Rules on the sites of seeded bugs.
//!
//! * *Sites*: each bug of the list occurs at exactly one site, as `seeded!(Bug: wrong, right)` or as
//!   `SeededBug::Bug.is_on()`.
//! * *No control flow*: no condition of an `if`, `while` or `match` begins with a bug, and no expression in a `seeded!`
//!   leaves its function or loop.
//! * *Releases*: only tests enable the cargo feature that contains the switch for seeded bugs.

use std::path::Path;

use super::{CODE, assert_none, code_only, ident, is_word, line_of, read, root, words};

/// The tokens with which an expression can leave its function or loop.
const EXITS: [&str; 4] = ["return", "break", "continue", "?"];

/// The arguments of each `seeded!(…)` in the code: (position, text).
fn arguments(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let opened = code.match_indices("seeded!(").map(|(at, call)| at + call.len());
    opened.map(|from| {
        let mut depth = 1;
        let end = code[from..].find(|c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        (from, &code[from..end.map_or(code.len(), |end| from + end)])
    })
}

/// How many sites `bug` has in the code.
fn sites(code: &str, bug: &str) -> usize {
    let replaced = arguments(code).filter(|(_, text)| ident(text) == bug).count();
    replaced + code.matches(&format!("SeededBug::{bug}.is_on()")).count()
}

/// Uses of seeded bugs as control flow: (line, complaint).
fn control_flow(code: &str) -> Vec<(usize, String)> {
    let heads = words(code, "SeededBug::").filter(|&at| {
        let before = code[..at].trim_end_matches(|c: char| c.is_whitespace() || c == '!' || c == '(');
        let word = before.rfind(|c: char| !is_word(c as u8)).map_or(before, |end| &before[end + 1..]);
        ["if", "while", "match"].contains(&word)
    });
    let heads = heads.map(|at| (at, "a seeded bug is the head of a condition".to_owned()));
    let exits = arguments(code).flat_map(|(from, text)| {
        let found = EXITS.into_iter().flat_map(move |exit| words(text, exit).map(move |at| (from + at, exit)));
        found.map(|(at, exit)| (at, format!("`{exit}` in `seeded!`")))
    });
    heads.chain(exits).map(|(at, complaint)| (line_of(code, at), complaint)).collect()
}

#[test]
fn every_seeded_bug_has_one_site_that_is_no_control_flow_and_no_release_has_the_switch() {
    let mut files = read(CODE[0], "rs");
    // The buffer pools that the lab has for comparison also contain seeded bugs.
    files.extend(read("crates/lab/src/pool", "rs"));
    let list = files.remove(Path::new("base/seeded.rs")).expect("the list of bugs");
    let list = list.split("bugs! {").nth(1).and_then(|rest| rest.split("\n}").next()).expect("the list of bugs");
    let bugs: Vec<&str> =
        list.lines().filter_map(|line| line.trim().strip_suffix(',')).filter(|bug| bug.bytes().all(is_word)).collect();
    assert!(bugs.len() >= 24, "a list that the rule cannot read");
    files.values_mut().for_each(|text| *text = code_only(text));
    let mut complaints = Vec::new();
    for bug in bugs {
        let count: usize = files.values().map(|code| sites(code, bug)).sum();
        complaints.extend((count != 1).then(|| format!("`{bug}` has {count} sites")));
    }
    for (path, code) in &files {
        let found = control_flow(code).into_iter();
        complaints.extend(found.map(|(line, complaint)| format!("{}:{line}: {complaint}", path.display())));
    }
    assert_none(complaints);
    for krate in ["cli", "pandodb", "proof"] {
        let manifest = std::fs::read_to_string(root().join(format!("crates/{krate}/Cargo.toml"))).expect("a manifest");
        let everyone = manifest.split("[dev-dependencies]").next().expect("the part before");
        assert!(!everyone.contains("\"seeded-bugs\""), "{krate} asks for seeded bugs outside of its tests");
    }
}

// ---- the checks, checked ----

#[test]
fn both_forms_of_a_site_are_counted() {
    let code =
        "f(seeded!(A: g(1), 2)); seeded!(\n    AB: 1,\n    2\n); a && !SeededBug::B.is_on() || SeededBug::A.is_on()";
    assert_eq!(["A", "AB", "B", "C"].map(|bug| sites(code, bug)), [2, 1, 1, 0]);
}

#[test]
fn control_flow_by_a_seeded_bug_is_found() {
    let count = |code: &str| control_flow(code).len();
    assert_eq!(count("if a && !SeededBug::A.is_on() {}"), 0);
    assert_eq!(count("let n = usize::from(SeededBug::A.is_on());"), 0);
    assert_eq!(count("let t = (!SeededBug::A.is_on()).then(f);"), 0);
    assert_eq!(count("if SeededBug::A.is_on() { f() }"), 1);
    assert_eq!(count("} else if !SeededBug::A.is_on() {"), 1);
    assert_eq!(count("if !(SeededBug::A.is_on() && a) {"), 1);
    assert_eq!(count("match SeededBug::A.is_on() {"), 1);
    assert_eq!(count("None if SeededBug::A.is_on() => {}"), 1);
    assert_eq!(count("seeded!(A: Ok(()), f(g()))?; return break_even;"), 0);
    assert_eq!(count("let a = seeded!(A: break_even, returned);"), 0);
    assert_eq!(control_flow("f();\nseeded!(A: return, ());"), [(2, "`return` in `seeded!`".to_owned())]);
    assert_eq!(count("seeded!(\n    A: { break 'out },\n    continue\n);"), 2);
    assert_eq!(count("seeded!(A: Err(e)?, f());"), 1);
}
