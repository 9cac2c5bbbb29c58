//! Tests `pando sim`: repeatable seeds, resumable soaks, kills.

use serde_json::Value;

use crate::common::{Place, run};

fn sim(args: &[&str]) -> Value {
    let out = run(&[&["sim"], args, &["--json"]].concat(), b"").ok();
    assert_eq!(out.lines().count(), 1, "one line for each kind: {out}");
    serde_json::from_str(&out).expect("a line of JSON")
}

/// Returns the fields that do not depend on the clock.
fn timeless(line: &Value) -> Vec<&Value> {
    ["kind", "seed", "units", "runs", "counts", "digest", "failures"].iter().map(|name| &line[name]).collect()
}

#[test]
fn the_same_seed_gives_the_same_result() {
    for kind in ["crash", "corrupt", "faults"] {
        let (one, two) = (sim(&[kind, "--seed", "7"]), sim(&[kind, "--seed", "7"]));
        assert_eq!(timeless(&one), timeless(&two));
        assert!(one["runs"].as_u64() > Some(100) && one["failures"] == 0, "{one}");
        assert_ne!(sim(&[kind, "--seed", "15"])["counts"], one["counts"], "another seed gives other counts");
    }
}

#[test]
fn an_interrupted_soak_continues() {
    let place = Place::new();
    let state = place.path("state");
    let state = ["--state", state.to_str().expect("utf-8")];
    let first = sim(&[&["corrupt", "--units", "2"][..], &state].concat());
    let both = sim(&[&["corrupt", "--units", "4"][..], &state].concat());
    let whole = sim(&["corrupt", "--units", "4", "--threads", "1"]);
    assert_eq!((first["units"].as_u64(), both["units"].as_u64()), (Some(2), Some(4)));
    assert_eq!(timeless(&both), timeless(&whole), "two parts equal one complete soak");
}

#[test]
fn a_killed_process_loses_no_acknowledged_write() {
    let line = sim(&["kill", "--units", "2"]);
    assert_eq!((line["runs"].as_u64(), line["failures"].as_u64()), (Some(20), Some(0)), "{line}");
    assert!(line["counts"]["batches"].as_u64() > Some(0), "{line}");
}

#[test]
fn invalid_arguments_are_one_line_on_stderr() {
    assert!(run(&["sim", "crash", "--seconds=-1"], b"").fails(2).contains("--seconds"));
    assert!(run(&["sim", "weather"], b"").fails(2).contains("crash"));
    let place = Place::new();
    std::fs::write(place.path("crash.json"), "{").expect("written");
    let state = place.dir.path().to_str().expect("utf-8");
    assert!(run(&["sim", "crash", "--state", state], b"").fails(4).contains("crash.json"));
}
