//! A store that an earlier build wrote opens with what it held; and a store has one opener.
//!
//! `tests/golden/store-v1.bin` is a whole directory, holes left out (integers u32, little-endian):
//!
//! ```text
//!  for each file: name length | name | file length | span count | (offset | length | bytes)…
//! ```
//!
//! It came from [`write`] with the script of seed 1: `PANDODB_GOLDEN_WRITE=1` writes it anew. Do so only with a new format
//! version, under a new name: old ones are kept for ever.

use std::path::PathBuf;

use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{Durability, Error};

use crate::drive::{Driver, Sizes, contents};
use crate::script::{Mix, Op, ROWS, Script, Step, key};

/// Zeros that end a span.
const GAP: usize = 16;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/store-v1.bin")
}

/// Ends with a large value, a settled tree and a few commits in the log alone.
fn script() -> Script {
    let mut script = Script::generate(1, Mix { steps: 40, blobs: 8, lazy: 20, buffered: 50, keys: 24 });
    let large = Op::Put(ROWS, key(999), vec![0xAB; 5_000]);
    let at = script.steps.len() - 3;
    script.steps.insert(at, Step::Commit(vec![large], Durability::Buffered));
    script.steps.insert(at + 1, Step::Settle);
    script
}

/// The store of the script, closed with a part of it in the log.
fn write() -> SimImage {
    let device = SimDevice::new(1);
    let mut driver = Driver::new(Sizes::TINY.open(device.clone()).expect("opens"));
    let script = script();
    for (step, state) in script.steps.iter().zip(script.states()) {
        driver.step(step, &state).expect("no fault");
    }
    driver.store.close().expect("closes");
    device.image()
}

fn put(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&u32::try_from(number).expect("a small store").to_le_bytes());
}

/// The spans of a file between long rows of zeros.
fn spans(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        match spans.last_mut() {
            Some((_, end)) if at < *end + GAP => *end = at + 1,
            _ => spans.push((at, at + 1)),
        }
    }
    spans
}

fn encode(image: &SimImage) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, len) in image.files() {
        let bytes = image.file(&name).expect("it was listed");
        put(&mut out, name.len());
        out.extend_from_slice(name.as_bytes());
        put(&mut out, len as usize);
        let spans = spans(&bytes);
        put(&mut out, spans.len());
        for (from, to) in spans {
            put(&mut out, from);
            put(&mut out, to - from);
            out.extend_from_slice(&bytes[from..to]);
        }
    }
    out
}

fn decode(bytes: &[u8]) -> SimImage {
    let mut rest = bytes;
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at_checked(n).expect("the golden file is whole");
        rest = tail;
        head
    };
    let mut image = SimImage::default();
    let mut left = bytes.len();
    while left > 0 {
        let mut number = || u32::from_le_bytes(take(4).try_into().expect("4 bytes")) as usize;
        let name_len = number();
        let name = String::from_utf8(take(name_len).to_vec()).expect("a file's name");
        let mut number = || u32::from_le_bytes(take(4).try_into().expect("4 bytes")) as usize;
        let (len, count) = (number(), number());
        left -= 12 + name_len;
        image.write(&name, 0, &[]);
        for _ in 0..count {
            let mut number = || u32::from_le_bytes(take(4).try_into().expect("4 bytes")) as usize;
            let (at, size) = (number(), number());
            image.write(&name, at as u64, take(size));
            left -= 8 + size;
        }
        image.truncate(&name, len as u64);
    }
    image
}

#[test]
fn the_golden_store_opens() {
    if std::env::var_os("PANDODB_GOLDEN_WRITE").is_some() {
        std::fs::create_dir_all(path().parent().expect("a folder")).expect("made");
        std::fs::write(path(), encode(&write())).expect("written");
    }
    let bytes = std::fs::read(path()).expect("the golden store is checked in");
    assert!(bytes.len() < 32 << 10, "{} bytes are too many to check in", bytes.len());
    let image = decode(&bytes);
    assert_eq!(encode(&image), bytes, "decoding and encoding lose nothing");
    let (_, store) = Sizes::TINY.open_image(&image, 1).expect("opens");
    let expected = script().states().pop().expect("not empty");
    assert_eq!(contents(&store).expect("reads"), expected);
    let report = store.verify().expect("looks");
    assert!(report.is_clean(), "{report:?}");
    assert!(report.nodes > 0 && report.runs > 0 && report.blobs > 0, "{report:?}");
}

#[test]
fn a_second_opener_is_refused_by_name() {
    let device = SimDevice::new(2);
    let store = Sizes::TINY.open(device.clone()).expect("opens");
    let ks = store.keyspace("rows").expect("made");
    ks.put("a", "b").expect("written");
    assert!(matches!(Sizes::TINY.open(device.clone()), Err(Error::Locked { .. })));
    let reader = pandodb::Store::builder("sim").device(device.clone()).read_only(true).open();
    assert!(matches!(reader, Err(Error::Locked { .. })));
    assert_eq!(ks.get("a").expect("reads").expect("there"), *b"b");
    drop(ks);
    store.close().expect("closes");
    let store = Sizes::TINY.open(device).expect("opens once the first is gone");
    assert!(store.open_keyspace("rows").expect("looks").is_some());
}
