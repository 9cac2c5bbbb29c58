//! Tests commands on single keys and ranges: bytes in and out, JSON, counters, deletes.

use crate::common::{Place, output};

/// The output of `get --raw`.
fn raw(place: &Place, key: &str) -> Vec<u8> {
    let output = output(&["get", place.path("s").to_str().unwrap(), key, "--raw"], b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn values_from_stdin_or_a_file_keep_every_byte() {
    let place = Place::new();
    let value: Vec<u8> = (0..=255).rev().chain(*b"\n\t\\x41").collect();
    place.feed("put", &["a", "-"], &value).ok();
    assert_eq!(raw(&place, "a"), value);
    std::fs::write(place.path("value"), &value).unwrap();
    let file = place.path("value");
    place.pando("put", &["b", "--file", file.to_str().unwrap()]).ok();
    assert_eq!(raw(&place, "b"), value);
    place.feed("put", &["empty", "-"], b"").ok();
    assert_eq!(raw(&place, "empty"), b"");
    // This tests the value `-`, and values that start with `-`.
    place.pando("put", &["c", "\\x2d"]).ok();
    assert_eq!(raw(&place, "c"), b"-");
    place.pando("put", &["c", "-7"]).ok();
    assert_eq!(raw(&place, "c"), b"-7");

    assert!(place.pando("put", &["d"]).fails(2).contains("--file"));
    place.pando("put", &["d", "v", "--file", "x"]).fails(2);
    place.pando("put", &["d", "\\q"]).fails(2);
    assert!(place.pando("put", &["d", "--file", "/no/such/file"]).fails(1).contains("/no/such/file"));
    place.pando("get", &["a", "--raw", "--json"]).fails(2);
    place.pando("get", &["a", "--raw", "--as", "u64"]).fails(2);
    let long = vec![b'v'; (64 << 20) + 1];
    assert!(place.feed("put", &["d", "-"], &long).fails(2).contains("64.0 MiB"));
    place.pando("get", &["d"]).fails(1);
}

#[test]
fn records_as_json_keep_every_byte() {
    let place = Place::new();
    place.feed("load", &["-", "--format", "kv"], "a\tx\"é\\n\nb\\xff\t\\x80\\x00\nc\t\n".as_bytes()).ok();
    let lines =
        [r#"{"key":"a","value":"x\"é\n"}"#, r#"{"key_hex":"62ff","value_hex":"8000"}"#, r#"{"key":"c","value":""}"#];
    assert_eq!(place.pando("scan", &["--json"]).ok().lines().collect::<Vec<_>>(), lines);
    assert_eq!(place.pando("get", &["a", "--json"]).ok().trim_end(), lines[0]);
    assert_eq!(place.pando("scan", &["--json", "--keys", "--limit", "1"]).ok(), "{\"key\":\"a\"}\n");
    place.pando("merge", &["n", "-5", "--keyspace", "m", "--merge", "add_i64"]).ok();
    let number = "{\"key\":\"n\",\"value\":-5}\n";
    assert_eq!(place.pando("get", &["n", "--keyspace", "m", "--as", "i64", "--json"]).ok(), number);
    assert_eq!(place.pando("scan", &["--keyspace", "m", "--as", "i64", "--json"]).ok(), number);
}

#[test]
fn scans_print_keys_only_and_skip_records() {
    let place = Place::new();
    place.feed("load", &["-", "--format", "kv"], b"a\\t\t1\nb\t2\nc\t3\nd\t4\n").ok();
    let scan = |args: &[&str]| place.pando("scan", args).ok();
    assert_eq!(scan(&["--keys"]), "a\\t\nb\nc\nd\n");
    assert_eq!(scan(&["--keys", "--reverse", "--skip", "1", "--limit", "2"]), "c\nb\n");
    assert_eq!(scan(&["--skip", "3"]), "d\t4\n");
    assert_eq!(scan(&["--skip", "4"]), "");
    place.pando("scan", &["--keys", "--as", "u64"]).fails(2);
}

#[test]
fn counters_are_put_as_decimals() {
    let place = Place::new();
    for (operator, bad) in [("add_i64", "1.5"), ("add_u64", "-1")] {
        let on = |command: &str, args: &[&str]| place.pando(command, &[args, &["--keyspace", operator]].concat());
        on("merge", &["c", "7", "--merge", operator]).ok();
        on("put", &["c", "100"]).ok();
        on("merge", &["c", "1"]).ok();
        assert_eq!(on("get", &["c", "--as", &operator[4..]]).ok(), "101\n");
        let refused = on("put", &["c", bad]).fails(2);
        assert!(refused.contains(operator) && refused.contains("decimal"), "{refused}");
        place.feed("put", &["c", "-", "--keyspace", operator], b"200\n").ok();
        // `load` applies the same rule to its values: a line whose value is not a number is malformed.
        let text = b"d\t5\nbad\tfive\n";
        let load = place.feed("load", &["-", "--format", "kv", "--keyspace", operator], text);
        assert!(load.err.contains("line 2: malformed: `five`"), "{}", load.err);
        load.ok();
        on("merge", &["d", "2"]).ok();
        assert_eq!(on("scan", &["--as", &operator[4..]]).ok(), "c\t200\nd\t7\n");
    }
    // In a keyspace with another operator, or without an operator, values are bytes.
    place.pando("merge", &["c", "x", "--keyspace", "text", "--merge", "append"]).ok();
    place.pando("put", &["c", "100", "--keyspace", "text"]).ok();
    place.pando("merge", &["c", "1", "--keyspace", "text"]).ok();
    assert_eq!(place.pando("get", &["c", "--keyspace", "text"]).ok(), "1001\n");
}

#[test]
fn only_explicitly_named_ranges_are_deleted() {
    let place = Place::new();
    let keys = || place.pando("scan", &["--keys"]).ok().replace('\n', " ");
    let delete = |args: &[&str]| place.pando("delete", args);
    place.feed("load", &["-", "--format", "kv"], b"a1\t\na2\t\nb1\t\nb2\t\nc1\t\nc2\t\nd\t\n").ok();
    assert!(delete(&[]).fails(2).contains("--prefix"));
    // An empty option, which may come from an unset shell variable, must not delete every key.
    for empty in [&["--prefix", ""][..], &["--from", ""], &["--from", "", "--prefix", ""]] {
        assert!(delete(empty).fails(2).contains("--all"));
    }
    delete(&["--to", ""]).fails(2);
    delete(&["a1", "--prefix", "b"]).fails(2);
    delete(&["--all", "--prefix", "b"]).fails(2);
    assert_eq!(keys(), "a1 a2 b1 b2 c1 c2 d ");
    delete(&["--prefix", "b"]).ok();
    assert_eq!(keys(), "a1 a2 c1 c2 d ");
    delete(&["--from", "a2", "--to", "c2"]).ok();
    assert_eq!(keys(), "a1 c2 d ");
    delete(&["--from", "", "--to", "b"]).ok();
    assert_eq!(keys(), "c2 d ");
    delete(&["--from", "x", "--to", "b"]).ok();
    assert_eq!(keys(), "c2 d ");
    delete(&["--all"]).ok();
    assert_eq!(keys(), "");
    assert!(delete(&["--all", "--keyspace", "other"]).fails(1).contains("other"));
}
