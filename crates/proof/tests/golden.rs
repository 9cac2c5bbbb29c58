//! Tests that stores of an earlier build open with the same contents, and that a store can be opened only once at a
//! time.
//!
//! With `PANDODB_GOLDEN_WRITE=1`, the test writes the golden stores and fails, because the test program still contains
//! the old files. Run the test again without the variable.

use std::path::PathBuf;

use pandodb::Error;
use pandodb::device::sim::SimDevice;
use pandodb_proof::drive::{Sizes, contents};
use pandodb_proof::golden::{GOLDEN, REFUSED, decode, list, write};

#[test]
fn the_golden_stores_open() {
    if std::env::var_os("PANDODB_GOLDEN_WRITE").is_some() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
        GOLDEN.iter().for_each(|golden| write(golden, &folder).expect("written"));
        panic!("the golden stores were rewritten; run the test again without PANDODB_GOLDEN_WRITE");
    }
    for golden in GOLDEN {
        let name = golden.name;
        assert!(golden.is_faithful(), "{name}: decoding and encoding change the bytes");
        let (_, store) = Sizes::TINY.open_image(&golden.image(), 1).expect("opens");
        let found = list(&contents(&store).expect("reads"));
        assert!(!found.is_empty() && found == golden.listing(), "{name} holds\n{found}");
        let report = store.verify().expect("looks");
        assert!(report.is_clean(), "{name}: {report:?}");
        // Until the next checkpoint, the nodes of runs that recovery packed are only in memory.
        store.checkpoint().expect("written");
        let report = store.verify().expect("looks");
        assert!(report.is_clean(), "{name}: {report:?}");
        let has_data = report.runs > 0 || matches!(golden.kind().name(), "btree" | "betree");
        assert!(report.nodes > 0 && has_data && report.blobs > 0, "{name}: {report:?}");
    }
}

#[test]
fn a_store_of_another_format_version_is_refused_and_the_error_names_the_version() {
    let image = decode(REFUSED);
    let before = image.file("data").expect("it is there");
    let device = SimDevice::from_image(&image, 1);
    let error = Sizes::TINY.open(device.clone()).expect_err("it is refused");
    assert!(error.code() == "unsupported" && error.to_string().contains("version 2"), "{error}");
    assert_eq!(device.image().file("data").expect("it is there"), before, "nothing was written");
}

#[test]
fn a_second_opening_of_a_store_is_refused() {
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
