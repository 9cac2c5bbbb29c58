//! Tests well-formed, unusual and malformed lines in each format.

use super::*;

/// Returns every record as `key=value`, and every malformed line as its number.
fn read(text: &[u8], format: Format, keys: &[&str], operands: bool) -> (Vec<String>, Vec<u64>) {
    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    let mut source = open(text, format, &keys, operands).unwrap();
    let (mut records, mut malformed) = (Vec::new(), Vec::new());
    let mut record = Record::default();
    loop {
        match source.next(&mut record).unwrap() {
            Step::Record => records.push(format!("{}={}", kv::escaped(&record.key), kv::escaped(&record.value))),
            Step::Malformed { line, .. } => malformed.push(line),
            Step::End => return (records, malformed),
        }
    }
}

fn refused(text: &str, format: Format, keys: &[&str]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    match open(text.as_bytes(), format, &keys, false) {
        Ok(_) => panic!("accepted"),
        Err(failure) => {
            assert_eq!(failure.code(), 2);
            failure.to_string()
        }
    }
}

#[test]
fn kv_continues_after_malformed_lines() {
    let (records, malformed) = read(b"a\t1\nbad\n\nb\\x00\t2\r\n\t3\nc\t\\q\nd\t", Format::Kv, &[], false);
    assert_eq!(records, ["a=1", "b\\x00=2", "d="]);
    assert_eq!(malformed, [2, 5, 6]);
}

#[test]
fn csv_finds_keys_by_name_and_keeps_the_other_columns_in_order() {
    let table = b"\xef\xbb\xbfid,name,city\r\n1,\"Bo, \"\"the\"\"\",Ulm\r\n2,\"two\nlines\",Rom\n";
    let (records, malformed) = read(table, Format::Csv, &["city", "id"], false);
    assert_eq!(records, ["Ulm\\x001=Bo, \"the\"", "Rom\\x002=two\\nlines"]);
    assert!(malformed.is_empty());
    let (records, _) = read(table, Format::Csv, &[], false);
    assert_eq!(records, ["1=\"Bo, \"\"the\"\"\",Ulm", "2=\"two\\nlines\",Rom"]);
}

#[test]
fn a_stray_quote_makes_only_its_own_line_malformed() {
    let table = b"a,b\n1,x\n2,\"open\n3,y\n4,z\"z\n\"5\"x,y\n6,w\n7,\"never\n8,v";
    let (records, malformed) = read(table, Format::Csv, &["a"], false);
    assert_eq!(records, ["1=x", "3=y", "6=w", "8=v"]);
    assert_eq!(malformed, [3, 5, 6, 8]);
}

#[test]
fn a_quote_that_closes_too_late_makes_only_its_own_line_malformed() {
    let mut table = b"a,b\n0,\"open\n".to_vec();
    for i in 1..=MANY {
        table.extend_from_slice(format!("{i},x\n").as_bytes());
    }
    let (records, malformed) = read(&table, Format::Csv, &["a"], false);
    assert_eq!((records.len(), malformed.as_slice()), (MANY, &[2][..]));
}

const MANY: usize = 3 * delimited::MAX_RECORD_LINES;

#[test]
fn tsv_does_not_quote() {
    let (records, malformed) = read(b"a\tb\tc\n\"1\t2\"\t3\n1\t2\n", Format::Tsv, &["b"], false);
    assert_eq!(records, ["2\"=\"1\\t3"]);
    assert_eq!(malformed, [3]);
}

#[test]
fn ndjson_keeps_numbers_and_order() {
    let rows = b"{\"z\":1.10,\"id\":18446744073709551616,\"a\":[null]}\n[1]\n{\"id\":null}\n{\"x\":1}\n{\"id\":true}";
    let (records, malformed) = read(rows, Format::Ndjson, &["id"], false);
    assert_eq!(records, ["18446744073709551616={\"z\":1.10,\"a\":[null]}", "true="]);
    assert_eq!(malformed, [2, 3, 4]);
}

#[test]
fn ndjson_numbers_keep_their_digits() {
    for number in ["1e3", "2E5", "1.50", "-0", "-0.0", "1E+9", "1e-07", "0.10e00", "123456789012345678901234567890"] {
        let row = format!("{{\"id\": {number},\"v\": {number} ,\"deep\":[ {number},{{\"x\" : {number}}} ]}}");
        let (records, malformed) = read(row.as_bytes(), Format::Ndjson, &["id"], false);
        assert_eq!(records, [format!("{number}={{\"v\":{number},\"deep\":[{number},{{\"x\":{number}}}]}}")]);
        assert!(malformed.is_empty());
        let row = format!("{{\"id\":\"k\",\"v\":{number}}}");
        assert_eq!(read(row.as_bytes(), Format::Ndjson, &["id"], true).0, [format!("k={number}")]);
    }
    // Text that is not a JSON number makes the row malformed.
    for bad in ["01", "1.", ".5", "+1", "1e", "0x10", "NaN", "1_000", "-"] {
        let row = format!("{{\"id\":\"k\",\"v\":{bad}}}");
        assert_eq!(read(row.as_bytes(), Format::Ndjson, &["id"], false), (vec![], vec![1]), "{bad}");
    }
}

#[test]
fn ndjson_strings_and_spaces_are_written_in_shortest_form() {
    let row = br#"{ "id" : "k\u0041", "b\u0062": " a \u00e9\/\" \\ \n" , "c":{ "d\"" : [ true , null,"" ] } }"#;
    let (records, _) = read(row, Format::Ndjson, &["id"], false);
    assert_eq!(records, [r#"kA={"bb":" a \u{e9}/\\" \\\\ \\n","c":{"d\\"":[true,null,""]}}"#.replace("\\u{e9}", "é")]);
    // Half a surrogate pair is not a character, in any position.
    for bad in [r#"{"id":"\ud800"}"#, r#"{"id":"k","v":"\udc00"}"#, r#"{"id":"k","v":["\ud800x"]}"#] {
        assert_eq!(read(bad.as_bytes(), Format::Ndjson, &["id"], false), (vec![], vec![1]), "{bad}");
    }
    assert_eq!(read(b"{\"id\":\"k\",\"v\":\"\xff\"}", Format::Ndjson, &["id"], false).1, [1]);
}

#[test]
fn a_duplicate_field_makes_a_row_malformed() {
    let rows = b"{\"id\":1,\"id\":2}\n{\"id\":3,\"v\":1,\"\\u0076\":2}\n{\"id\":4,\"v\":{\"x\":1,\"x\":2}}\n";
    let (records, malformed) = read(rows, Format::Ndjson, &["id"], false);
    assert_eq!((records, malformed), (vec!["4={\"v\":{\"x\":1,\"x\":2}}".to_owned()], vec![1, 2]));
    let keys = ["id".to_owned()];
    let mut source = open(&rows[..], Format::Ndjson, &keys, false).unwrap();
    let Step::Malformed { why, .. } = source.next(&mut Record::default()).unwrap() else { panic!("accepted") };
    assert_eq!(why, "the field `id` occurs twice");
}

#[test]
fn an_ndjson_operand_is_the_only_other_field() {
    let rows = b"{\"k\":\"a\",\"n\":-3}\n{\"k\":\"b\",\"n\":\"4\"}\n{\"k\":\"c\"}\n{\"k\":\"d\",\"n\":1,\"m\":2}\n";
    let (records, malformed) = read(rows, Format::Ndjson, &["k"], true);
    assert_eq!(records, ["a=-3", "b=4"]);
    assert_eq!(malformed, [3, 4]);
}

#[test]
fn deeply_nested_json_is_malformed() {
    let rows = [b"{\"k\":".to_vec(), vec![b'['; 100_000], b"\n{\"k\":\"v\"}".to_vec()].concat();
    assert_eq!(read(&rows, Format::Ndjson, &["k"], false), (vec!["v=".to_owned()], vec![1]));
}

#[test]
fn a_joined_key_cannot_be_ambiguous() {
    let (records, malformed) = read(b"a\tb\tc\nx\0\ty\tz\nx\t\0y\tz\n", Format::Tsv, &["a", "b"], false);
    assert!(records.is_empty());
    assert_eq!(malformed, [2, 3]);
}

#[test]
fn invalid_key_fields_are_refused_before_any_record_is_read() {
    assert!(refused("a,b\n", Format::Csv, &["c"]).contains("a, b"));
    assert!(refused("a,a\n", Format::Csv, &["a"]).contains("twice"));
    assert!(refused("a,b\n", Format::Csv, &["a", "a"]).contains("twice"));
    assert!(refused("", Format::Csv, &[]).contains("header"));
    assert!(refused("a\t1\n", Format::Kv, &["a"]).contains("--key"));
    assert!(refused("{}\n", Format::Ndjson, &[]).contains("--key"));
}
