//! Tests the binary as a process: exit codes, round trips, malformed input.

use std::{
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

use crate::common::{Place, command, run, run_on};

#[test]
fn a_missing_key_keyspace_store_or_file_is_exit_code_1() {
    let place = Place::new();
    assert!(place.pando("get", &["k"]).fails(1).contains("pando load"));
    assert!(place.pando("stats", &[]).fails(1).contains("there is no store"));
    assert!(place.pando("delete", &["k"]).fails(1).contains("there is no store"));
    assert!(!place.path("s").exists());
    place.pando("put", &["k", "v"]).ok();
    assert_eq!(place.pando("get", &["k"]).ok(), "v\n");
    assert!(place.pando("get", &["k2"]).fails(1).contains("k2"));
    assert!(place.pando("get", &["k", "--keyspace", "other"]).fails(1).contains("other"));
    assert!(place.pando("load", &["/no/such/file", "--format", "kv"]).fails(1).contains("/no/such/file"));
    place.pando("delete", &["k"]).ok();
    place.pando("get", &["k"]).fails(1);
    place.pando("delete", &["never there"]).ok();
}

#[test]
fn misuse_is_exit_code_2_with_one_line() {
    let place = Place::new();
    run(&[], b"").fails(2);
    run(&["fly"], b"").fails(2);
    run(&["get"], b"").fails(2);
    place.pando("put", &["k", "v"]).ok();
    place.pando("get", &["k\\q"]).fails(2);
    place.pando("get", &["k", "--as", "f32"]).fails(2);
    place.pando("get", &["k", "--as", "u64"]).fails(2);
    place.pando("put", &["", "v"]).fails(2);
    place.pando("scan", &["--to", ""]).fails(2);
    place.pando("inspect", &["run"]).fails(2);
    place.pando("inspect", &["run", "x"]).fails(2);
    place.pando("inspect", &["log", "1"]).fails(2);
    place.pando("count", &["--estimate", "--from", "a"]).fails(2);
    assert!(place.pando("merge", &["k", "1"]).fails(2).contains("operator"));
    place.pando("merge", &["k", "1", "--keyspace", "m", "--merge", "no_such"]).fails(2);
    place.pando("load", &["-", "--format", "xml"]).fails(2);
    place.pando("load", &["-", "--format", "kv", "--key", "a"]).fails(2);
    place.pando("load", &["-", "--format", "kv", "--index", "heap"]).fails(2);
    place.pando("load", &["-", "--format", "kv", "--memory-budget", "much"]).fails(2);
    place.pando("load", &[place.dir.path().to_str().unwrap(), "--format", "kv"]).fails(2);
    place.feed("restore", &[], b"not a dump\n").fails(2);
}

/// A regression test: with a memory budget larger than the memory of any machine, a signal once ended the process.
#[test]
fn a_budget_beyond_any_machine_is_misuse() {
    let place = Place::new();
    for budget in ["1048576GiB", "1024GiB"] {
        let said = place.pando("put", &["a", "b", "--memory-budget", budget]).fails(2);
        assert!(said.contains("`memory_budget` is") && said.contains("it must be"), "{said}");
    }
    assert!(!place.path("s").exists(), "nothing is created");
}

#[test]
fn help_lists_the_exit_codes() {
    let help = run(&["--help"], b"").ok();
    for words in ["Exit codes:", "0 done", "1 not found", "2 misuse", "3 corruption", "4 input/output", "5 salvaged"] {
        assert!(help.contains(words), "{help}");
    }
    assert!(run(&["load", "--help"], b"").ok().contains("ndjson"));
    assert!(run(&["--version"], b"").ok().starts_with("pando "));
}

#[test]
fn a_store_in_use_is_exit_code_4() {
    let place = Place::new();
    let store = place.path("s");
    let mut load = command()
        .args(["load", store.to_str().unwrap(), "-", "--format", "kv", "--ack-every", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = load.stdin.take().unwrap();
    stdin.write_all(b"k\tv\n").unwrap();
    let mut acks = BufReader::new(load.stdout.take().unwrap()).lines();
    assert_eq!(acks.next().unwrap().unwrap(), "acked 1");
    assert!(place.pando("put", &["k", "w"]).fails(4).contains("open elsewhere"));
    assert!(place.pando("get", &["k"]).fails(4).contains("`pando stats`"));
    drop(stdin);
    assert!(acks.all(|line| line.is_ok()) && load.wait().unwrap().success());
    assert_eq!(place.pando("get", &["k"]).ok(), "v\n");
}

/// Returns records in the kv form, in key order. Every byte occurs as a key and as a value.
fn all_bytes() -> String {
    let mut place = Vec::new();
    for byte in 0..=255u8 {
        let text = match byte {
            b'\t' => "\\t".to_owned(),
            b'\n' => "\\n".to_owned(),
            b'\r' => "\\r".to_owned(),
            b'\\' => "\\\\".to_owned(),
            0x20..=0x7e => char::from(byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        };
        place.push(format!("{text}\t{text}{text}\n"));
    }
    place.concat()
}

#[test]
fn any_bytes_survive_load_scan_dump_and_restore() {
    let place = Place::new();
    let text = all_bytes();
    place.feed("load", &["-", "--format", "kv"], text.as_bytes()).ok();
    assert_eq!(place.pando("scan", &[]).ok(), text);
    let reversed: Vec<&str> = text.lines().rev().collect();
    assert_eq!(place.pando("scan", &["--reverse"]).ok().lines().collect::<Vec<_>>(), reversed);
    assert_eq!(place.pando("get", &["\\xff"]).ok(), "\\xff\\xff\n");
    assert_eq!(place.pando("count", &[]).ok(), "256\n");

    place.pando("merge", &["n", "-17", "--keyspace", "é \\!", "--merge", "add_i64"]).ok();
    place.pando("merge", &["n", "-25", "--keyspace", "é \\!"]).ok();
    let dump = place.pando("dump", &[]).ok();
    assert!(
        dump.contains("\\!keyspace\té \\\\!\tindex=stbe:mode=product\tlarge_values_over=2048\toperator=add_i64\n"),
        "{dump}"
    );
    let copy = place.path("copy");
    run_on(&copy, "restore", &[], dump.as_bytes()).ok();
    assert_eq!(run_on(&copy, "dump", &[], b"").ok(), dump);
    assert_eq!(run_on(&copy, "get", &["n", "--keyspace", "é \\!", "--as", "i64"], b"").ok(), "-42\n");
    run_on(&copy, "merge", &["n", "2", "--keyspace", "é \\!"], b"").ok();
    assert_eq!(run_on(&copy, "get", &["n", "--keyspace", "é \\!", "--as", "i64"], b"").ok(), "-40\n");
    assert!(run_on(&copy, "restore", &[], dump.as_bytes()).fails(2).contains("exists already"));
}

#[test]
fn a_damaged_dump_is_exit_code_3_with_its_line() {
    let place = Place::new();
    place.feed("load", &["-", "--format", "kv"], b"a\t1\nb\t2\nc\t3\n").ok();
    let dump = place.pando("dump", &[]).ok();
    let lines: Vec<&str> = dump.lines().collect();
    for cut in 1..lines.len() {
        let short = lines[..cut].join("\n");
        run_on(&place.path(&format!("cut{cut}")), "restore", &[], short.as_bytes()).fails(3);
    }
    let missing = dump.replace("b\t2\n", "");
    assert!(run_on(&place.path("missing"), "restore", &[], missing.as_bytes()).fails(3).contains("line 5"));
    let broken = dump.replace("b\t2", "b2");
    assert!(run_on(&place.path("broken"), "restore", &[], broken.as_bytes()).fails(3).contains("line 4"));
}

#[test]
fn malformed_lines_are_reported_and_all_others_are_loaded() {
    let place = Place::new();
    let long_key = "k".repeat(70_000);
    let input = format!("a\t1\nbad\nb\t2\n{long_key}\tv\nc\t3\n\td\n");
    for batch in ["1", "2", "100"] {
        let run = place.feed("load", &["-", "--format", "kv", "--json", "--batch", batch], input.as_bytes());
        let lines: Vec<&str> = run.err.lines().map(|line| &line[..line.find(": malformed").unwrap()]).collect();
        assert_eq!(lines, ["line 2", "line 4", "line 6"], "{}", run.err);
        let report = run.json();
        assert_eq!((report["records"].as_u64(), report["malformed"].as_u64()), (Some(3), Some(3)));
        assert_eq!(place.pando("scan", &[]).ok(), "a\t1\nb\t2\nc\t3\n");
    }
    let run = place.feed("load", &["-", "--format", "kv"], b"nothing\nhere\n");
    assert_eq!(run.code, 2);
}

#[test]
fn tables_and_objects_are_loaded_by_their_fields() {
    let place = Place::new();
    let load = |args: &[&str], input: &str| {
        let all: Vec<&str> = ["-"].iter().chain(args).copied().collect();
        place.feed("load", &all, input.as_bytes()).ok();
    };
    load(&["--format", "csv", "--key", "city,id", "--keyspace", "csv"], "id,city,n\n1,\"Ulm, Donau\",5\n2,Rom,6\n");
    assert_eq!(place.pando("scan", &["--keyspace", "csv"]).ok(), "Rom\\x002\t6\nUlm, Donau\\x001\t5\n");
    load(&["--format", "tsv", "--keyspace", "tsv"], "id\ta\tb\n1\tx\ty\n");
    assert_eq!(place.pando("scan", &["--keyspace", "tsv"]).ok(), "1\tx\\ty\n");
    load(&["--format", "ndjson", "--key", "id", "--keyspace", "json"], "{\"b\":1.50,\"id\":7,\"a\":\"é\"}\n");
    assert_eq!(place.pando("scan", &["--keyspace", "json"]).ok(), "7\t{\"b\":1.50,\"a\":\"é\"}\n");
    place.feed("load", &["-", "--format", "csv", "--key", "no"], b"id,n\n1,2\n").fails(2);
}

#[test]
fn operands_are_decimal_and_acknowledgements_count_records() {
    let place = Place::new();
    let input = "a\t1\nb\t2\na\t40\na\tx\na\t-1\nb\t3\n";
    let args = ["-", "--format", "kv", "--merge", "add_u64", "--ack-every", "2", "--durability", "synced", "--json"];
    let run = place.feed("load", &args, input.as_bytes());
    assert!(run.err.contains("line 4") && run.err.contains("line 5"), "{}", run.err);
    let out = run.ok();
    assert!(out.starts_with("acked 2\nacked 4\n{"), "{out}");
    assert_eq!(place.pando("scan", &["--as", "u64"]).ok(), "a\t41\nb\t5\n");
    assert_eq!(place.pando("get", &["a"]).ok(), ")\\x00\\x00\\x00\\x00\\x00\\x00\\x00\n");
    assert!(place.pando("keyspaces", &[]).ok().contains("add_u64"));
    place.feed("load", &["-", "--format", "kv", "--merge", "add_i64"], b"a\t1\n").fails(2);
}

#[test]
fn scans_respect_both_bounds_prefix_and_limit() {
    let place = Place::new();
    place.feed("load", &["-", "--format", "kv"], b"a1\t\na2\t\nb1\t\nb2\t\nc\t\n").ok();
    let keys = |args: &[&str]| place.pando("scan", args).ok().replace("\t\n", " ");
    assert_eq!(keys(&["--from", "a2", "--to", "b2"]), "a2 b1 ");
    assert_eq!(keys(&["--prefix", "b", "--reverse"]), "b2 b1 ");
    assert_eq!(keys(&["--prefix", "b", "--from", "b2"]), "b2 ");
    assert_eq!(keys(&["--limit", "2", "--reverse"]), "c b2 ");
    assert_eq!(keys(&["--limit", "0"]), "");
    assert_eq!(keys(&["--from", "x", "--to", "a"]), "");
    assert_eq!(place.pando("count", &["--prefix", "a", "--json"]).json()["records"], 2);
}

#[test]
fn maintenance_commands_print_text_and_json() {
    let place = Place::new();
    let records: String = (0..2000).map(|i| format!("key{i:05}\t{}\n", "v".repeat(50))).collect();
    place.feed("load", &["-", "--format", "kv"], records.as_bytes()).ok();
    for json in [&[][..], &["--json"][..]] {
        for command in ["checkpoint", "compact", "stats", "keyspaces", "count", "verify"] {
            assert!(!place.pando(command, json).ok().is_empty());
        }
    }
    assert_eq!(place.pando("verify", &["--json"]).json()["sound"], true);
    let stats = place.pando("stats", &["--json"]).json();
    for figure in [
        "records",
        "logical_bytes",
        "disk_bytes",
        "write_amplification",
        "read_amplification",
        "space_amplification",
        "debt_bytes",
        "memory",
        "latency",
        "keyspaces",
    ] {
        assert!(!stats[figure].is_null(), "{figure} is missing: {stats}");
    }
    assert_eq!(stats["keyspaces"][0]["figures"]["levels"], 1, "{stats}");
    assert!(place.pando("stats", &[]).ok().contains("\nindex of "));
    let copy = place.path("copy");
    place.pando("backup", &[copy.to_str().unwrap()]).ok();
    assert_eq!(run_on(&copy, "scan", &[], b"").ok(), records);
    for structure in ["superblock", "catalog", "trunk", "log"] {
        assert!(!place.pando("inspect", &[structure]).ok().is_empty(), "{structure}");
    }
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let place = Place::new();
    let records: String = (0..50_000).map(|i| format!("key{i:05}\tvalue\n")).collect();
    place.feed("load", &["-", "--format", "kv", "--batch", "1000"], records.as_bytes()).ok();
    let store = place.path("s");
    let mut scan = command();
    scan.args(["scan", store.to_str().unwrap()]).stdout(Stdio::piped());
    let mut child = scan.stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn generated_records_are_loaded() {
    let place = Place::new();
    let records = run(&["gen", "--records", "3000"], b"").ok();
    let report = place.feed("load", &["-", "--format", "kv", "--memory-budget", "16MiB", "--json"], records.as_bytes());
    let report = report.json();
    assert_eq!(report["records"], 3000);
    assert!(report["peak_rss_bytes"].as_u64() > Some(0) && report["commits"]["count"] == 3000);
    assert_eq!(place.pando("count", &[]).ok(), "3000\n");
}

/// Returns positions of nonzero bytes, spread over the files of the store. At such positions, a flipped bit is likely
/// to have an effect.
fn victims(store: &std::path::Path) -> Vec<(std::path::PathBuf, usize)> {
    let mut victims = Vec::new();
    for entry in std::fs::read_dir(store).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
        victims.extend(used.iter().step_by(used.len() / 12 + 1).map(|&at| (path.clone(), at)));
    }
    victims
}

#[test]
fn a_flipped_bit_is_harmless_or_exit_code_3() {
    let place = Place::new();
    let records: String = (0..3000).map(|i| format!("key{i:05}\tvalue{}\n", i * 7)).collect();
    place.feed("load", &["-", "--format", "kv"], records.as_bytes()).ok();
    place.pando("checkpoint", &[]).ok();
    let mut caught = 0;
    for (path, at) in victims(&place.path("s")) {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        let scan = place.pando("scan", &[]);
        match scan.code {
            0 => assert_eq!(scan.out, records, "a wrong answer after a flip in {path:?} at {at}"),
            _ => assert!(!scan.fails(3).contains("panicked")),
        }
        let verify = place.pando("verify", &[]);
        assert!(matches!(verify.code, 0 | 3), "{path:?} at {at}: {}", verify.err);
        caught += u32::from(verify.code == 3);
        bytes[at] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
    }
    assert!(caught > 0, "no flip was detected");
    assert_eq!(place.pando("scan", &[]).ok(), records);
}

#[test]
fn salvage_copies_readable_keys_and_reports_the_others() {
    let place = Place::new();
    let records: Vec<String> = (0..3000).map(|i| format!("key{i:05}\tvalue{}\n", i * 7)).collect();
    place.feed("load", &["-", "--format", "kv"], records.concat().as_bytes()).ok();
    place.pando("compact", &[]).ok();
    let to = |name: &str| place.path(name).to_str().unwrap().to_owned();
    assert!(place.pando("salvage", &[&to("whole")]).ok().contains("everything copied"));
    assert_eq!(run_on(&place.path("whole"), "scan", &[], b"").ok(), records.concat());
    assert!(place.pando("salvage", &[&to("whole")]).fails(2).contains("not empty"));
    // This is the second page after the first leaf of one page in the data file.
    let path = place.path("s").join("data");
    let mut bytes = std::fs::read(&path).unwrap();
    let leaf = bytes.chunks(4096).position(|page| page[4] == 1 && page[8..12] == [1, 0, 0, 0]).unwrap() + 2;
    bytes[leaf * 4096 + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let run = place.pando("salvage", &[&to("part"), "--json"]);
    assert_eq!(run.code, 5, "{} {}", run.out, run.err);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let loss = &report["keyspaces"][0]["losses"][0];
    let (from, end) = (loss["from"].as_str().unwrap(), loss["to"].as_str().unwrap());
    assert!(loss["reason"].as_str().unwrap().contains(&format!("at byte {}", leaf * 4096)), "{loss}");
    let left: String =
        records.iter().filter(|record| record.as_str() < from || record.as_str() >= end).cloned().collect();
    let copied = run_on(&place.path("part"), "scan", &[], b"").ok();
    assert!(copied == left && copied.len() > records.concat().len() / 2, "all keys but the reported ones");
    let run = place.pando("salvage", &[&to("again")]);
    assert!(run.out.contains("  lost: from `key") && run.err.lines().count() == 1, "{} {}", run.out, run.err);
    // `salvage` prints losses without the advice to salvage. `verify` prints its advice once, for all problems.
    assert!(!run.out.contains("salvage") && !run.out.contains("backup"), "{}", run.out);
    let verified = place.pando("verify", &[]);
    assert!(verified.out.contains("checksum mismatch") && !verified.out.contains("backup"), "{}", verified.out);
    assert!(verified.err.contains("restore from a backup, or `pando salvage`"), "{}", verified.err);
    assert_eq!(place.pando("salvage", &[&to("stale"), "--include-stale"]).code, 5);
}
