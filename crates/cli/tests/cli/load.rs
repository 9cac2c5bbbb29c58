//! Tests `load`: compressed input, many malformed lines, Ctrl-C.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{Place, command, output, run_on};

/// Returns `text` compressed with gzip.
fn gzip(text: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(text).unwrap();
    packer.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn compressed_input_is_read_from_files_and_pipes() {
    let records: String = (0..5_000).fold(String::new(), |mut text, i| {
        writeln!(text, "key{i:05}\tvalue{}", i * 7919 % 10_007).unwrap();
        text
    });
    for (name, pack) in [("gz", gzip as fn(&[u8]) -> Vec<u8>), ("zst", zstd)] {
        let place = Place::new();
        let packed = pack(records.as_bytes());
        place.feed("load", &["-", "--format", "kv", "--keyspace", "pipe", "--batch", "100"], &packed).ok();
        let file = place.path(name);
        std::fs::write(&file, &packed).unwrap();
        place.pando("load", &[file.to_str().unwrap(), "--format", "kv", "--keyspace", "file", "--batch", "100"]).ok();
        for keyspace in ["pipe", "file"] {
            assert!(place.pando("scan", &["--keyspace", keyspace]).ok() == records, "{name}, {keyspace}");
        }
        // Truncated input is an error that gives the position. The records before this position are in the store.
        let lazily = ["-", "--format", "kv", "--keyspace", "cut", "--durability", "none"];
        let said = place.feed("load", &lazily, &packed[..packed.len() / 2]).fails(4);
        assert!(said.contains("reading the input"), "{said}");
        let loaded = said.split("after ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        // The zstd decoder may hold back its last output, up to the size of one window.
        assert!(name == "zst" || loaded.parse::<u64>().unwrap() > 500, "{said}");
        assert_eq!(place.pando("count", &["--keyspace", "cut"]).ok().trim(), loaded, "the store was closed");
        let dump = place.pando("dump", &[]).ok();
        let copy = place.path("copy");
        run_on(&copy, "restore", &[], &pack(dump.as_bytes())).ok();
        assert!(run_on(&copy, "dump", &[], b"").ok() == dump);
    }
}

#[test]
fn malformed_lines_are_listed_up_to_twenty() {
    let place = Place::new();
    let mut text = String::from("a\t1\n");
    (0..300).for_each(|_| text.push_str("bad\n"));
    text.push_str("b\t2\n");
    let run = place.feed("load", &["-", "--format", "kv", "--json"], text.as_bytes());
    let lines: Vec<&str> = run.err.lines().collect();
    assert_eq!(lines.len(), 21, "{}", run.err);
    assert_eq!(lines[19], "line 21: malformed: no TAB between key and value");
    assert_eq!(lines[20], "280 more malformed lines are not listed, 300 in all");
    let report = run.json();
    assert_eq!((report["records"].as_u64(), report["malformed"].as_u64()), (Some(2), Some(300)));
    let twenty = "bad\n".repeat(20) + "a\t1\n";
    let run = place.feed("load", &["-", "--format", "kv"], twenty.as_bytes());
    assert_eq!(run.err.lines().count(), 20, "{}", run.err);
}

#[test]
fn ndjson_numbers_keep_their_digits() {
    let place = Place::new();
    let rows =
        b"{\"id\":1e3,\"v\":2E5,\"w\":[1.50,-0]}\n{\"id\":7,\"id\":8}\n{\"id\":1,\"v\":1}\n{\"id\":\"1\",\"v\":2}\n";
    let load = place.feed("load", &["-", "--format", "ndjson", "--key", "id"], rows);
    assert_eq!(load.err, "line 2: malformed: the field `id` occurs twice\n");
    load.ok();
    // A number and a string with the same text give the same key, so the later row replaces the earlier row, as the
    // README says.
    assert_eq!(place.pando("scan", &[]).ok(), "1\t{\"v\":2}\n1e3\t{\"v\":2E5,\"w\":[1.50,-0]}\n");
    assert_eq!(place.pando("get", &["1e3"]).ok(), "{\"v\":2E5,\"w\":[1.50,-0]}\n");
}

/// Starts a load that acknowledges each record.
fn start(place: &Place, more: &[&str]) -> Child {
    let store = place.path("s");
    command()
        .args(["load", store.to_str().unwrap(), "-", "--format", "kv", "--ack-every", "1"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Sends a signal with the command `kill`.
fn signal(load: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &load.id().to_string()]).status().unwrap().success());
}

/// Waits for the end of an interrupted load. Returns the stderr of the load.
fn interrupted(mut load: Child) -> String {
    let mut said = String::new();
    load.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(load.wait().unwrap().code(), Some(130), "{said}");
    said
}

#[test]
fn an_interrupted_load_reports_what_is_in_the_store() {
    for name in ["-INT", "-TERM"] {
        let place = Place::new();
        let mut load = start(&place, &[]);
        let (mut stdin, acks) = (load.stdin.take().unwrap(), BufReader::new(load.stdout.take().unwrap()));
        let mut acks = acks.lines();
        for i in 0..100 {
            writeln!(stdin, "k{i:03}\tv\n").unwrap();
            assert_eq!(acks.next().unwrap().unwrap(), format!("acked {}", i + 1));
        }
        // The load waits for input, and must end although the pipe stays open.
        signal(&load, name);
        let asked = Instant::now();
        let said = interrupted(load);
        assert!(asked.elapsed() < Duration::from_secs(20), "it took {:?}", asked.elapsed());
        let words = "pando: interrupted: 100 records, up to line 199 of the input, are committed and in the store";
        assert!(said.starts_with(words), "{said}");
        assert_eq!(place.pando("count", &[]).ok(), "100\n");
    }
}

#[test]
fn an_interrupt_during_a_load_loses_no_acknowledged_record() {
    let place = Place::new();
    let mut load = start(&place, &["--durability", "none"]);
    let mut stdin = load.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        (0u64..).try_for_each(|i| writeln!(stdin, "k{i:09}\tv")).unwrap_err();
    });
    let mut acks = BufReader::new(load.stdout.take().unwrap()).lines();
    for _ in 0..2_000 {
        acks.next().unwrap().unwrap();
    }
    signal(&load, "-INT");
    let last = acks.map(|line| line.unwrap()).last().unwrap();
    let said = interrupted(load);
    feeder.join().unwrap();
    let acked: u64 = last.strip_prefix("acked ").unwrap().parse().unwrap();
    let records: u64 = said.split(' ').nth(2).unwrap().replace(',', "").parse().unwrap();
    let there: u64 = place.pando("count", &[]).ok().trim().parse().unwrap();
    assert!(acked == records && records == there, "acknowledged {acked}, reported {records}, in the store {there}");
    assert_eq!(place.pando("verify", &["--json"]).json()["sound"], true);
}

#[test]
fn an_interrupt_before_the_first_record_is_reported() {
    let place = Place::new();
    let mut load = start(&place, &[]);
    let mut stdin = load.stdin.take().unwrap();
    stdin.write_all(b"\n").unwrap();
    // The signal handler is installed a moment after the data file exists.
    let begun = Instant::now();
    while !place.path("s").join("data").exists() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    signal(&load, "-INT");
    assert!(interrupted(load).contains("before the first record"));
    drop(stdin);
    let help = output(&["--help"], b"");
    assert!(String::from_utf8_lossy(&help.stdout).contains("130 interrupted"));
}

#[test]
fn sorted_input_is_loaded_as_one_write_or_not_at_all() {
    let place = Place::new();
    let sorted: String = (0..3_000).fold(String::new(), |mut text, i| {
        writeln!(text, "key{i:05}\tvalue{i}").unwrap();
        text
    });
    let run = place.feed("load", &["-", "--format", "kv", "--sorted", "--json"], sorted.as_bytes());
    assert_eq!(run.json()["records"], 3_000);
    assert!(place.pando("scan", &[]).ok() == sorted);
    for (bad, why) in [("key00007\tv\n", "key00007"), ("no tab\n", "malformed: no TAB")] {
        let text = sorted.replace("value", "other") + bad;
        let said = place.feed("load", &["-", "--format", "kv", "--sorted"], text.as_bytes()).fails(2);
        assert!(said.contains("line 3001") && said.contains(why) && said.contains("nothing was loaded"), "{said}");
        assert!(place.pando("scan", &[]).ok() == sorted, "a refused load changes nothing");
    }
    let clash = place.feed("load", &["-", "--format", "kv", "--sorted", "--batch", "7"], b"").fails(2);
    assert!(clash.contains("--batch"), "{clash}");
    assert_eq!(place.pando("verify", &["--json"]).json()["sound"], true);
}
