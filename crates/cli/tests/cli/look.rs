//! Tests `stats`, `keyspaces` and `inspect`, without and with another process that has the store open for writing.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Stdio},
};

use serde_json::Value;

use crate::common::{Place, command};

/// A process that has loaded `records` records and keeps the store open until its stdin is closed.
fn writer(place: &Place, records: u64) -> Child {
    let store = place.path("s");
    let mut load = command()
        .args(["load", store.to_str().unwrap(), "-", "--format", "kv", "--memory-budget", "2MiB"])
        .args(["--batch", "1", "--ack-every", &records.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = load.stdin.as_mut().unwrap();
    let text: String = (0..records).map(|i| format!("key{i:09}\t{}\n", "v".repeat(100))).collect();
    stdin.write_all(text.as_bytes()).unwrap();
    stdin.flush().unwrap();
    let ack = BufReader::new(load.stdout.as_mut().unwrap()).lines().next().unwrap().unwrap();
    assert_eq!(ack, format!("acked {records}"));
    load
}

#[test]
fn stats_keyspaces_and_inspect_work_while_another_process_writes() {
    let place = Place::new();
    let mut load = writer(&place, 60_000);
    let text = place.pando("stats", &[]).ok();
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("as of          the last checkpoint, "), "{text}");
    assert!(first.contains(" s ago (another process has the store open)"), "{text}");
    assert!(!text.contains("memtables") && text.contains("default"), "{text}");
    let stats = place.pando("stats", &["--json"]).json();
    assert!(stats["as_of"]["checkpoint_seconds_ago"].as_u64() < Some(600), "{stats}");
    assert!((1_000..=120_000).contains(&stats["records"].as_u64().unwrap()), "{stats}");
    assert!(stats["memory"] == Value::Null && stats["disk_bytes"].as_u64() > Some(1 << 20), "{stats}");
    let list = place.pando("keyspaces", &[]);
    assert!(list.err.starts_with("pando: as of the last checkpoint, "), "{}", list.err);
    assert!(list.ok().contains("default"));
    for what in ["superblock", "catalog", "trunk"] {
        assert!(!place.pando("inspect", &[what]).ok().is_empty(), "{what}");
    }
    // The commands that read must not affect the writer.
    load.stdin.as_mut().unwrap().write_all(b"more\tv\n").unwrap();
    drop(load.stdin.take());
    assert!(load.wait_with_output().unwrap().status.success());
    assert_eq!(place.pando("count", &[]).ok(), "60001\n");
    let stats = place.pando("stats", &["--json"]).json();
    assert!(stats["as_of"] == Value::Null && stats["memory"]["budget_bytes"].as_u64() > Some(0), "{stats}");
}

#[test]
fn amplification_of_a_small_store_is_not_shown() {
    let place = Place::new();
    place.pando("put", &["k", "v"]).ok();
    let row = |text: &str| text.lines().find(|line| line.starts_with("amplification")).unwrap().to_owned();
    let stats = place.pando("stats", &[]).ok();
    assert_eq!(row(&stats), "amplification  write - up to the last checkpoint, space -");
    assert!(!stats.contains("user 0 B") && !stats.contains("none in this process"), "{stats}");
    let records: String = (0..30_000).map(|i| format!("key{i:09}\t{}\n", "v".repeat(100))).collect();
    let loaded = place.feed("load", &["-", "--format", "kv", "--batch", "1000"], records.as_bytes()).ok();
    for text in [loaded, place.pando("stats", &[]).ok()] {
        let figure = row(&text).split(' ').nth(3).unwrap().parse::<f64>();
        assert!(figure.is_ok_and(|ratio| (1.0..10.0).contains(&ratio)), "{text}");
    }
}

#[test]
fn inspect_describes_both_superblocks() {
    let place = Place::new();
    place.pando("put", &["k", "v"]).ok();
    let text = place.pando("inspect", &["superblock"]).ok();
    assert_eq!(text.matches("slot ").count(), 2, "{text}");
    assert_eq!(text.matches(", the current one").count(), 1, "{text}");
    let ids: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("store id")).map(str::trim).collect();
    assert_eq!(ids.len(), 2, "{text}");
    assert!(ids[0] == ids[1] && ids[0].len() == 32 && ids[0].bytes().all(|b| b.is_ascii_hexdigit()), "{text}");
    assert!(text.contains("closed cleanly") && text.contains(" UTC"), "{text}");
    assert!(text.lines().count() < 30 && !text.contains("StoreId"), "{text}");
}
