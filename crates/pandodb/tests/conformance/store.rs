//! Conformance tests of keyspaces, opening and closing, locks and errors.

use pandodb::base::random::mix;
use pandodb::{AddU64, Durability, Error, IndexOptions, KeyspaceOptions, Store};

use crate::{each, keys};

#[test]
fn keyspaces_remember_their_options() {
    each(|case| {
        let (device, store, _) = case.fresh();
        let ks = store.keyspace_with("counts", case.options().merge(AddU64)).unwrap();
        ks.merge("k", 7u64.to_le_bytes()).unwrap();
        assert!(matches!(store.keyspace_with("counts", KeyspaceOptions::new()), Err(Error::InvalidArgument { .. })));
        assert!(matches!(store.keyspace(""), Err(Error::InvalidArgument { .. })));
        let large = || case.options().blob_threshold(100);
        store.keyspace_with("large", large()).unwrap();
        drop(ks);
        store.close().unwrap();
        let store = case.builder(&device).open().unwrap();
        let info = store.keyspaces().into_iter().find(|info| info.name == "counts").unwrap();
        let wanted: IndexOptions = case.index.parse().unwrap();
        assert_eq!((info.index.kind(), info.operator.as_deref()), (wanted.kind(), Some("add_u64")));
        assert_eq!(info.index.mode(), Some(case.mode));
        for (option, value) in wanted.chosen() {
            assert_eq!(info.index.value(option).unwrap(), value, "{option}");
        }
        let ks = store.keyspace("counts").unwrap();
        ks.merge("k", 1u64.to_le_bytes()).unwrap();
        assert!(ks.get("k").unwrap().unwrap() == 8u64.to_le_bytes());
        assert!(store.open_keyspace("nobody").unwrap().is_none());
        let info = store.keyspaces().into_iter().find(|info| info.name == "large").unwrap();
        assert_eq!(info.blob_threshold, 100);
        store.keyspace_with("large", large()).unwrap();
        store.keyspace_with("large", case.options()).expect("no threshold was given");
        let refused = store.keyspace_with("large", case.options().blob_threshold(101)).unwrap_err();
        assert!(matches!(&refused, Error::InvalidArgument { detail } if detail.contains("100 bytes")), "{refused}");
    });
}

#[test]
fn dropping_a_keyspace_frees_its_space() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        let before = store.stats().unwrap().disk_bytes;
        // The values are incompressible.
        let value = |i: u32| (0..375u64).flat_map(move |at| mix(u64::from(i) << 32 | at).to_le_bytes());
        (0..500u32).for_each(|i| ks.put(i.to_be_bytes(), value(i).collect::<Vec<u8>>()).unwrap());
        store.settle().unwrap();
        let full = store.stats().unwrap().disk_bytes;
        store.drop_keyspace("k").unwrap();
        assert!(matches!(ks.put("k", "v"), Err(Error::NoKeyspace { .. })));
        assert!(matches!(ks.get("k"), Err(Error::NoKeyspace { .. })));
        assert!(matches!(ks.iter().next(), Some(Err(Error::NoKeyspace { .. }))));
        assert!(matches!(store.drop_keyspace("k"), Err(Error::NoKeyspace { .. })));
        store.settle().unwrap();
        let after = store.stats().unwrap().disk_bytes;
        let (most, least) = (full - before, after.saturating_sub(before));
        // The handle `ks` is still open.
        assert!(most > 1 << 20 && least < most / 4, "{most} bytes before the drop, {least} after it");
        let again = store.keyspace_with("k", case.options()).unwrap();
        assert_eq!(keys(again.iter()).len(), 0);
        assert!(again.id() != ks.id() && store.verify().unwrap().is_clean());
    });
}

#[test]
fn a_store_has_one_writer_or_many_readers() {
    each(|case| {
        let (device, store, ks) = case.fresh();
        ks.put("k", "v").unwrap();
        assert!(matches!(case.builder(&device).open(), Err(Error::Locked { .. })));
        assert!(matches!(case.builder(&device).read_only(true).open(), Err(Error::Locked { .. })));
        store.persist(Durability::Synced).unwrap();
        store.checkpoint().unwrap();
        store.clone().close().unwrap();
        assert!(ks.put("k", "late").is_err(), "a closed store takes no writes");
        drop((store, ks));
        let one = case.builder(&device).read_only(true).open().unwrap();
        let two = case.builder(&device).read_only(true).open().unwrap();
        for store in [&one, &two] {
            let ks = store.open_keyspace("k").unwrap().unwrap();
            assert!(ks.get("k").unwrap().unwrap() == "v");
            assert!(matches!(ks.put("k", "w"), Err(Error::ReadOnly)));
            assert!(matches!(store.checkpoint(), Err(Error::ReadOnly)));
        }
        assert!(matches!(case.builder(&device).open(), Err(Error::Locked { .. })));
        drop((one, two));
        assert!(case.builder(&device).open().is_ok());
    });
}

#[test]
fn invalid_arguments_are_refused() {
    each(|case| {
        let (device, store, ks) = case.fresh();
        assert!(matches!(case.builder(&device).log_streams(99).open(), Err(Error::InvalidArgument { .. })));
        assert!(matches!(case.builder(&device).memory_budget(1).open(), Err(Error::InvalidArgument { .. })));
        let (_other_device, other, _) = case.fresh();
        let mut batch = other.batch();
        batch.put(&ks, "k", "v");
        assert!(matches!(batch.commit(Durability::Buffered), Err(Error::InvalidArgument { .. })));
        assert!(store.batch().commit(Durability::Synced).is_ok(), "an empty batch is committed");
        assert!(!ks.contains("k").unwrap());
    });
    let dir = tempfile::tempdir().unwrap();
    let missing = Store::builder(dir.path().join("none")).create(false).open();
    assert!(matches!(missing, Err(Error::NotAStore { .. })));
}
