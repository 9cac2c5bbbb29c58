//! A first test of the main operations: load, reopen, scan, verify.

use pandodb::{AddU64, Durability, KeyspaceOptions, Store};

fn key(i: u64) -> Vec<u8> {
    format!("user{:020}", i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes()
}

#[test]
fn load_reopen_scan_verify() -> pandodb::Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let n = 60_000u64;
    {
        let store = Store::builder(&path).memory_budget(8 << 20).memtable_bytes(128 << 10).open()?;
        let ks = store.keyspace("events")?;
        let counters = store.keyspace_with("counts", KeyspaceOptions::new().merge(AddU64))?;
        for i in 0..n {
            let mut batch = store.batch();
            batch.put(&ks, key(i), format!("value {i}"));
            batch.merge(&counters, (i % 1000).to_be_bytes(), 1u64.to_le_bytes());
            batch.commit(Durability::Buffered)?;
        }
        store.settle()?;
        for i in (0..n).step_by(7) {
            assert_eq!(ks.get(key(i))?.expect("there"), format!("value {i}"), "{i}");
        }
        assert_eq!(ks.iter().count() as u64, n);
        assert_eq!(ks.iter().rev().count() as u64, n);
        let report = store.verify()?;
        assert!(report.is_clean(), "{report:?}");
        store.close()?;
    }
    let store = Store::open(&path)?;
    let ks = store.keyspace("events")?;
    for i in (0..n).step_by(13) {
        assert_eq!(ks.get(key(i))?.expect("there"), format!("value {i}"));
    }
    let counters = store.open_keyspace("counts")?.unwrap();
    for i in 0..1000u64 {
        assert_eq!(counters.get(i.to_be_bytes())?.unwrap(), (n / 1000).to_le_bytes());
    }
    assert!(store.verify()?.is_clean());
    Ok(())
}
