//! Tests commands on keyspaces: create, drop, alter; dump, restore and backup of some keyspaces; also shell
//! completions.

use crate::common::{Place, run, run_on};

/// Returns a store with three keyspaces of one record each: `a`, `b` (a counter) and `c, d`.
fn three() -> Place {
    let place = Place::new();
    place.pando("put", &["k", "1", "--keyspace", "a"]).ok();
    place.pando("merge", &["k", "2", "--keyspace", "b", "--merge", "add_u64"]).ok();
    place.pando("put", &["k", "3", "--keyspace", "c, d"]).ok();
    place
}

fn names(store: &std::path::Path) -> Vec<String> {
    let list = run_on(store, "keyspaces", &["--json"], b"").json();
    list.as_array().unwrap().iter().map(|info| info["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn keyspaces_are_created_and_dropped() {
    let place = Place::new();
    let store = place.path("s");
    let keyspace = |verb: &str, args: &[&str]| run(&[&["keyspace", verb, store.to_str().unwrap()], args].concat(), b"");
    assert!(keyspace("drop", &["x"]).fails(1).contains("there is no store"));
    keyspace("create", &["counts", "--merge", "add_u64", "--index", "stbe"]).ok();
    keyspace("create", &["plain"]).ok();
    assert_eq!(names(&store), ["counts", "plain"]);
    place.pando("put", &["k", "41", "--keyspace", "counts"]).ok();
    place.pando("merge", &["k", "1", "--keyspace", "counts"]).ok();
    assert_eq!(place.pando("get", &["k", "--keyspace", "counts", "--as", "u64"]).ok(), "42\n");

    let again = keyspace("create", &["counts", "--merge", "add_u64"]).fails(2);
    assert!(again.contains("`counts` exists already, with operator add_u64"), "{again}");
    assert!(keyspace("create", &["x", "--merge", "no_such"]).fails(2).contains("append"));
    keyspace("create", &["x", "--index", "heap"]).fails(2);
    keyspace("create", &[""]).fails(2);
    assert_eq!(names(&store), ["counts", "plain"], "a refused command creates nothing");
    assert!(keyspace("drop", &["coumts"]).fails(1).contains("coumts"));
    keyspace("drop", &["counts"]).ok();
    assert_eq!(names(&store), ["plain"]);
    keyspace("create", &["counts"]).ok();
    place.pando("get", &["k", "--keyspace", "counts"]).fails(1);
    run(&["keyspace"], b"").fails(2);
}

#[test]
fn dropping_a_keyspace_frees_its_space() {
    let place = Place::new();
    let records: String = (0..40_000).map(|i| format!("key{i:06}\t{}\n", "v".repeat(100))).collect();
    place.feed("load", &["-", "--format", "kv", "--keyspace", "big", "--batch", "1000"], records.as_bytes()).ok();
    place.pando("compact", &["--keyspace", "big"]).ok();
    let disk = || place.pando("stats", &["--json"]).json()["disk_bytes"].as_u64().unwrap();
    let before = disk();
    run(&["keyspace", "drop", place.path("s").to_str().unwrap(), "big"], b"").ok();
    let after = disk();
    assert!(before > 4_000_000 && after < before / 4, "{before} bytes before, {after} after");
}

#[test]
fn a_dump_has_only_the_named_keyspaces() {
    let place = three();
    let dump = place.pando("dump", &["--keyspace", "c, d", "--keyspace", "b"]).ok();
    assert!(
        dump.contains("keyspace\tb\t") && dump.contains("keyspace\tc, d\t") && !dump.contains("keyspace\ta"),
        "{dump}"
    );
    assert!(dump.ends_with("done\t2\n"), "{dump}");
    run_on(&place.path("part"), "restore", &[], dump.as_bytes()).ok();
    assert_eq!(names(&place.path("part")), ["b", "c, d"]);
    let missing = place.pando("dump", &["--keyspace", "a", "--keyspace", "x"]);
    assert_eq!(missing.out, "", "nothing is dumped if one is missing");
    assert!(missing.fails(1).contains("no keyspace `x` in the store; its keyspaces: `a`, `b`, `c, d`"));
}

#[test]
fn a_restore_creates_only_the_named_keyspaces() {
    let place = three();
    let dump = place.pando("dump", &[]).ok();
    let (part, empty, damaged) = (place.path("part"), place.path("empty"), place.path("damaged"));
    run_on(&part, "restore", &["--keyspace", "b"], dump.as_bytes()).ok();
    assert_eq!(names(&part), ["b"]);
    // Another keyspace can be restored into the same store later.
    run_on(&part, "restore", &["-", "--keyspace", "a"], dump.as_bytes()).ok();
    assert_eq!(names(&part), ["b", "a"]);
    assert_eq!(run_on(&part, "get", &["k", "--keyspace", "b", "--as", "u64"], b"").ok(), "2\n");
    assert!(run_on(&part, "restore", &["--keyspace", "b"], dump.as_bytes()).fails(2).contains("exists already"));
    assert!(run_on(&empty, "restore", &["--keyspace", "x"], dump.as_bytes()).fails(1).contains("in the dump"));
    // `restore` also checks the keyspaces that it skips.
    let short = dump.replacen("k\t1\n", "", 1);
    run_on(&damaged, "restore", &["--keyspace", "b"], short.as_bytes()).fails(3);
    // Input that is empty or is not a dump creates no store.
    run_on(&place.path("text"), "restore", &[], b"root:x:0:0\n").fails(2);
    run_on(&place.path("text"), "restore", &[], b"").fails(3);
    assert!(!place.path("text").exists());
    // A dump can also be restored from a file.
    std::fs::write(place.path("dump"), &dump).unwrap();
    run_on(&place.path("whole"), "restore", &[place.path("dump").to_str().unwrap()], b"").ok();
    assert_eq!(names(&place.path("whole")), ["a", "b", "c, d"]);
}

#[test]
fn a_backup_has_only_the_named_keyspaces() {
    let place = three();
    let (copy, none) = (place.path("copy"), place.path("none"));
    place.pando("backup", &[copy.to_str().unwrap(), "--keyspace", "b", "--keyspace", "a"]).ok();
    assert_eq!(names(&copy), ["a", "b"]);
    run_on(&copy, "merge", &["k", "5", "--keyspace", "b"], b"").ok();
    assert_eq!(run_on(&copy, "get", &["k", "--keyspace", "b", "--as", "u64"], b"").ok(), "7\n");
    assert!(place.pando("backup", &[none.to_str().unwrap(), "--keyspace", "x"]).fails(1).contains("`x`"));
    assert!(!none.exists(), "a backup with a wrong argument creates nothing");
}

#[test]
fn completions_are_printed_for_each_shell() {
    for (shell, words) in [("bash", "complete -F _pando"), ("zsh", "#compdef pando"), ("fish", "complete -c pando")] {
        let script = run(&["completions", shell], b"").ok();
        assert!(script.contains(words) && script.contains("keyspaces"), "{shell}: {}", &script[..200]);
    }
    assert!(run(&["completions", "csh"], b"").fails(2).contains("bash"));
}

#[test]
fn options_of_an_index_are_set_shown_altered_and_survive_dump_restore_and_backup() {
    let place = Place::new();
    let store = place.path("s");
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let keyspace = |verb: &str, args: &[&str]| run(&[&["keyspace", verb, &text(&store)], args].concat(), b"");
    keyspace("create", &["events", "--index", "stbe:fanout=4,mode=paper"]).ok();
    assert!(keyspace("create", &["x", "--index", "stbe:fanout=99"]).fails(2).contains("2 to 64"));
    assert!(keyspace("create", &["x", "--index", "stbe:width=9"]).fails(2).contains("maplet_width"));
    keyspace("alter", &["events", "compression=lz4", "fanout=8"]).ok();
    assert!(keyspace("alter", &["events", "compression"]).fails(2).contains("name=value"));
    assert!(keyspace("alter", &["event", "fanout=8"]).fails(1).contains("event"));
    place.pando("put", &["k", "v", "--keyspace", "events"]).ok();

    let shown = |store: &std::path::Path| run_on(store, "keyspaces", &["--json"], b"").json()[0].clone();
    let info = shown(&store);
    assert_eq!((info["index"].as_str(), info["mode"].as_str()), (Some("stbe"), Some("paper")), "{info}");
    assert_eq!(
        info["options"],
        serde_json::json!({ "compression": "lz4" }),
        "a value that is the default is not stored"
    );
    assert!(place.pando("keyspaces", &[]).ok().contains("compression=lz4"));

    let (restored, copied) = (place.path("restored"), place.path("copied"));
    let dump = place.pando("dump", &[]).ok();
    run_on(&restored, "restore", &[], dump.as_bytes()).ok();
    place.pando("backup", &[&text(&copied)]).ok();
    for other in [restored, copied] {
        let there = shown(&other);
        assert!(there["options"] == info["options"] && there["mode"] == info["mode"], "{there}");
    }
}
