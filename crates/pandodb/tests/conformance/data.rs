//! Conformance tests of keys, values, ranges, snapshots, batches and operators.

use std::sync::Arc;

use pandodb::device::sim::{Fault, FaultKind, OpClass, SimDevice};
use pandodb::{Durability, Error, MergeOperator};

use crate::{each, keys};

#[test]
fn order_is_bytewise_from_both_ends() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        let mut want: Vec<Vec<u8>> =
            (0..600u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()).collect();
        want.extend([
            vec![0],
            vec![0, 0],
            vec![0xff],
            vec![0xff, 0xff],
            b"a".to_vec(),
            b"a\0".to_vec(),
            b"ab".to_vec(),
        ]);
        want.iter().for_each(|key| ks.put(key, key).unwrap());
        want.sort();
        for settled in [false, true] {
            assert_eq!(keys(ks.iter()), want, "settled: {settled}");
            let backward: Vec<_> = want.iter().rev().cloned().collect();
            assert_eq!(keys(ks.iter().rev()), backward, "settled: {settled}");
            let mut range = ks.iter();
            let mut ends = Vec::new();
            while let Some(low) = range.next() {
                ends.push(low.unwrap().0.to_vec());
                ends.extend(range.next_back().map(|high| high.unwrap().0.to_vec()));
            }
            assert_eq!(ends.len(), want.len());
            ends.sort();
            assert_eq!(ends, want);
            store.settle().unwrap();
        }
    });
}

#[test]
fn keys_and_values_work_up_to_the_size_limits() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        let long = vec![b'k'; 65_535];
        let sizes = [0, 1, 2047, 2048, 2049, 65_535, 65_536, (1 << 20) - 1, 1 << 20, (1 << 20) + 1];
        for (i, size) in sizes.into_iter().enumerate() {
            ks.put([i as u8], vec![i as u8; size]).unwrap();
        }
        ks.put(&long, "long").unwrap();
        ks.compact(..).unwrap();
        for (i, size) in sizes.into_iter().enumerate() {
            assert!(ks.get([i as u8]).unwrap().unwrap() == vec![i as u8; size], "{size} bytes");
        }
        assert!(ks.get(&long).unwrap().unwrap() == "long");
        for bad in [Vec::new(), vec![b'k'; 65_536]] {
            assert!(matches!(ks.put(&bad, ""), Err(Error::InvalidArgument { .. })));
            assert!(matches!(ks.get(&bad), Err(Error::InvalidArgument { .. })));
            assert!(matches!(ks.delete(&bad), Err(Error::InvalidArgument { .. })));
        }
        assert!(matches!(ks.put("big", vec![0; (64 << 20) + 1]), Err(Error::InvalidArgument { .. })));
        assert!(store.verify().unwrap().is_clean());
    });
}

#[test]
fn prefixes_and_range_deletes_work_at_extreme_keys() {
    each(|case| {
        let (_device, _store, ks) = case.fresh();
        let all: [&[u8]; 7] = [b"\0", b"a", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff\x01"];
        all.iter().for_each(|key| ks.put(key, "v").unwrap());
        assert_eq!(keys(ks.prefix(b"a\xff")), [b"a\xff".to_vec(), b"a\xff\xff".to_vec()]);
        assert_eq!(keys(ks.prefix(b"\xff")), [b"\xff".to_vec(), b"\xff\xff\x01".to_vec()]);
        assert_eq!(keys(ks.prefix(b"").rev()).len(), all.len());
        assert_eq!(keys(ks.range(&b"b"[..]..&b"a"[..])).len(), 0);
        ks.delete_range(&b"a"[..]..=&b"a\xff"[..]).unwrap();
        assert_eq!(keys(ks.prefix(b"a")), [b"a\xff\xff".to_vec()]);
        ks.delete_range(&b"b"[..]..).unwrap();
        ks.put(b"c", "after").unwrap();
        ks.compact(..).unwrap();
        assert_eq!(keys(ks.iter()), [b"\0".to_vec(), b"a\xff\xff".to_vec(), b"c".to_vec()]);
        assert_eq!(ks.approximate_len(), 3);
    });
}

#[test]
fn snapshots_do_not_change() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        (0..300u32).for_each(|i| ks.put(i.to_be_bytes(), "old").unwrap());
        let then = store.snapshot();
        assert_eq!(format!("{then:?}"), format!("Snapshot {{ seqno: {} }}", then.seqno()));
        (0..300u32).step_by(2).for_each(|i| ks.put(i.to_be_bytes(), "new").unwrap());
        ks.delete_range(100u32.to_be_bytes()..200u32.to_be_bytes()).unwrap();
        ks.compact(..).unwrap();
        assert_eq!(ks.iter().count(), 200);
        let at = ks.at(&then);
        assert!(at.iter().chain(at.iter().rev()).all(|entry| entry.unwrap().1 == "old"));
        assert_eq!((at.iter().count(), at.contains(150u32.to_be_bytes()).unwrap()), (300, true));
        assert!(at.multi_get(&[[0u8; 4], [9; 4]]).unwrap()[1].is_none());
        let (_other_device, other, _) = case.fresh();
        let strange = other.snapshot();
        assert!(matches!(ks.at(&strange).get("k"), Err(Error::InvalidArgument { .. })));
        assert!(matches!(ks.at(&strange).iter().next(), Some(Err(Error::InvalidArgument { .. }))));
    });
}

#[test]
fn batches_are_atomic_and_applied_in_order() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        let counters = store.keyspace_with("c", case.options().merge(pandodb::AddI64)).unwrap();
        let mut batch = store.batch();
        batch.put(&ks, "a", "1");
        batch.delete_range(&ks, "a".."b");
        batch.put(&ks, "a", "2");
        batch.put(&ks, "b", "1");
        batch.delete(&ks, "b");
        batch.merge(&counters, "n", 5i64.to_le_bytes());
        batch.merge(&counters, "n", (-7i64).to_le_bytes());
        batch.commit(Durability::Synced).unwrap();
        assert!(ks.get("a").unwrap().unwrap() == "2" && !ks.contains("b").unwrap());
        assert!(counters.get("n").unwrap().unwrap() == (-2i64).to_le_bytes());
        let mut batch = store.batch();
        batch.put(&ks, "c", "1");
        batch.put(&ks, "", "refused");
        assert!(matches!(batch.commit(Durability::Buffered), Err(Error::InvalidArgument { .. })));
        assert!(!ks.contains("c").unwrap(), "nothing of a refused batch is applied");
        assert!(batch.commit(Durability::Buffered).is_err(), "nor later");
        batch.clear();
        assert!(batch.is_empty() && batch.bytes() == 0);
        batch.put(&ks, "c", "2");
        batch.commit(Durability::Buffered).unwrap();
        assert!(ks.get("c").unwrap().unwrap() == "2");
    });
}

#[test]
fn a_batch_can_be_reused_after_a_commit() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        let other = store.keyspace_with("other", case.options()).unwrap();
        let mut batch = store.batch();
        for round in 0..50u32 {
            let into = if round % 2 == 0 { &ks } else { &other };
            batch.put(into, round.to_be_bytes(), vec![round as u8; 5000]);
            batch.put(into, "same", round.to_be_bytes());
            assert_eq!(batch.len(), 2);
            batch.commit(Durability::None).unwrap();
            assert!(batch.is_empty());
        }
        batch.put(&ks, "dropped", vec![0; 5000]);
        drop(batch);
        assert_eq!((ks.iter().count(), other.iter().count()), (26, 26));
        assert!(ks.get("same").unwrap().unwrap() == 48u32.to_be_bytes());
        assert!(!ks.contains("dropped").unwrap());
        store.settle().unwrap();
        assert!(store.verify().unwrap().is_clean(), "pages of large values belong to a commit or are free");
    });
}

#[test]
fn a_batch_keeps_its_operations_if_nothing_was_applied_and_only_then() {
    let sim = SimDevice::new(3);
    let builder = pandodb::Store::builder("b").device(sim.clone()).memory_budget(1 << 20).background_threads(0);
    let store = builder.open().unwrap();
    let ks = store.keyspace("k").unwrap();
    let (mut batch, mut committed) = (store.batch(), 0u32);
    let full = loop {
        batch.put(&ks, [b"large".as_slice(), &committed.to_be_bytes()].concat(), [1; 5000]);
        sim.set_fault(Some(Fault::sticky(FaultKind::StorageFull, 0)));
        batch.put(&ks, committed.to_be_bytes(), [2; 1000]);
        match batch.commit(Durability::Buffered) {
            Ok(()) => committed += 1,
            Err(e) => break e,
        }
        sim.set_fault(None);
        assert!(committed < 10_000, "the disk never filled up");
    };
    assert!(full.is_retryable() && batch.len() == 2, "{full}");
    assert!(!ks.contains(committed.to_be_bytes()).unwrap());
    sim.set_fault(None);
    batch.commit(Durability::Buffered).unwrap();
    assert!(batch.is_empty());
    committed += 1;
    assert_eq!(ks.iter().count(), 2 * committed as usize);
    assert!(ks.get([b"large".as_slice(), &(committed - 1).to_be_bytes()].concat()).unwrap().unwrap() == [1; 5000]);
    store.settle().unwrap();
    assert!(store.verify().unwrap().is_clean());
    batch.put(&ks, "unsure", "v");
    sim.set_fault(Some(Fault::sticky(FaultKind::IoError(OpClass::Any), 0)));
    assert!(batch.commit(Durability::Synced).is_err());
    assert!(batch.is_empty(), "it may have been applied");
}

#[test]
fn a_batch_over_the_limit_is_refused_with_the_limit() {
    let (_device, store, ks) = crate::CASES[1].fresh();
    let mut batch = store.batch();
    let value = vec![0; 64 << 10];
    let small = store.keyspace_with("small", pandodb::KeyspaceOptions::new().blob_threshold(64 << 10)).unwrap();
    let mut fits = 0u32;
    while batch.bytes() + value.len() + 100 <= pandodb::MAX_BATCH {
        batch.put(&small, fits.to_be_bytes(), &value);
        fits += 1;
    }
    let before = (batch.len(), batch.bytes());
    batch.put(&small, "one more", &value);
    batch.put(&ks, "and", "another");
    assert_eq!((batch.len(), batch.bytes()), before, "a refused operation is not in the batch");
    let error = batch.commit(Durability::Buffered).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument { detail } if detail.contains("134217728 bytes")), "{error}");
    assert!(!small.contains(0u32.to_be_bytes()).unwrap());
}

#[test]
fn every_write_has_a_form_with_a_durability() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        let counts = store.keyspace_with("c", case.options().merge(pandodb::AddU64)).unwrap();
        for durability in [Durability::None, Durability::Buffered, Durability::Synced] {
            ["a", "b", "c"].iter().for_each(|key| ks.put_with(key, key, durability).unwrap());
            counts.merge_with("n", 1u64.to_le_bytes(), durability).unwrap();
            ks.delete_with("b", durability).unwrap();
            assert_eq!(keys(ks.iter()), [b"a", b"c"]);
            ks.delete_range_with("b".., durability).unwrap();
            assert_eq!(keys(ks.iter()), [b"a"]);
        }
        assert!(counts.get("n").unwrap().unwrap() == 3u64.to_le_bytes());
    });
}

#[test]
fn operators_fold_before_and_after_compactions() {
    /// An operator, its operands in order, and their result.
    type Case = (&'static str, &'static [&'static [u8]], &'static [u8]);
    let table: [Case; 7] = [
        ("add_u64", &[&[1, 0, 0, 0, 0, 0, 0, 0], &[255, 1, 0, 0, 0, 0, 0, 0]], &[0, 2, 0, 0, 0, 0, 0, 0]),
        ("add_i64", &[&[255; 8], &[255; 8]], &[254, 255, 255, 255, 255, 255, 255, 255]),
        ("min", &[b"b", b"a", b"c"], b"a"),
        ("max", &[b"b", b"c", b"a"], b"c"),
        ("append", &[b"x", b"", b"yz"], b"xyz"),
        ("bit_or", &[&[1], &[2, 4]], &[3, 4]),
        ("put_if_absent", &[b"first", b"second"], b"first"),
    ];
    each(|case| {
        let (_device, store, ks) = case.fresh();
        assert!(matches!(ks.merge("k", "x"), Err(Error::Unsupported { .. })));
        for (name, operands, want) in table {
            let ks = store.keyspace_with(name, case.options().merge_named(name).unwrap()).unwrap();
            operands.iter().for_each(|operand| ks.merge("k", operand).unwrap());
            assert!(ks.get("k").unwrap().unwrap() == want, "{name}");
            ks.compact(..).unwrap();
            assert!(ks.get("k").unwrap().unwrap() == want, "{name}, compacted");
        }
        let adder = store.open_keyspace("add_u64").unwrap().unwrap();
        assert!(matches!(adder.merge("k", "short"), Err(Error::InvalidArgument { .. })));
        // A value that is not a number would count as 0, so the counter would silently restart.
        for name in ["add_u64", "add_i64"] {
            let ks = store.open_keyspace(name).unwrap().unwrap();
            let refused = ks.put("k", "100").unwrap_err();
            assert!(matches!(&refused, Error::InvalidArgument { detail } if detail.contains("8 bytes")), "{refused}");
            let mut batch = store.batch();
            batch.put(&ks, "k", vec![0; 5000]);
            assert!(matches!(batch.commit(Durability::Buffered), Err(Error::InvalidArgument { .. })));
            ks.put("k", 100u64.to_le_bytes()).unwrap();
            ks.merge("k", 1u64.to_le_bytes()).unwrap();
            assert!(ks.get("k").unwrap().unwrap() == 101u64.to_le_bytes());
        }
        store.open_keyspace("min").unwrap().unwrap().put("k", "any string").unwrap();
        assert!(case.options().merge_named("nonsense").is_err());
    });
}

/// Joins operands with a comma. It panics on the operand `boom`.
pub struct Joiner;

impl MergeOperator for Joiner {
    fn name(&self) -> &str {
        "joiner"
    }
    fn validate(&self, operand: &[u8]) -> Result<(), String> {
        if operand.is_empty() { Err("an operand has bytes".into()) } else { Ok(()) }
    }
    fn validate_value(&self, value: &[u8]) -> Result<(), String> {
        assert!(value != b"boom", "a panic that the test provokes");
        if value.ends_with(b",") { Err("a list does not end with a comma".into()) } else { Ok(()) }
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        assert!(!operands.contains(&&b"boom"[..]), "a panic that the test provokes");
        Some(base.into_iter().chain(operands.iter().copied()).collect::<Vec<_>>().join(&b','))
    }
}

#[test]
fn failures_of_a_users_operator_are_contained_and_its_name_is_stored() {
    each(|case| {
        let (device, store, _) = case.fresh();
        let ks = store.keyspace_with("j", case.options().merge(Joiner)).unwrap();
        ["a", "b"].iter().for_each(|operand| ks.merge("k", operand).unwrap());
        assert!(matches!(ks.merge("k", ""), Err(Error::InvalidArgument { .. })));
        assert!(ks.get("k").unwrap().unwrap() == "a,b");
        assert!(matches!(ks.put("k", "a,"), Err(Error::InvalidArgument { detail }) if detail.contains("comma")));
        assert!(matches!(ks.put("k", "boom"), Err(Error::OperatorFailed { .. })));
        ks.merge("bad", "boom").unwrap();
        assert!(matches!(ks.get("bad"), Err(Error::OperatorFailed { .. })));
        ks.compact(..).unwrap();
        assert!(matches!(ks.get("bad"), Err(Error::OperatorFailed { .. })));
        assert!(ks.get("k").unwrap().unwrap() == "a,b");
        drop(ks);
        store.close().unwrap();
        let raw = case.builder(&device).open().unwrap();
        let ks = raw.open_keyspace("j").unwrap().unwrap();
        assert!(
            matches!(ks.merge("k", "c"), Err(Error::OperatorMissing { operator, .. }) if operator.contains("joiner"))
        );
        assert!(raw.verify().unwrap().is_clean());
        drop(ks);
        raw.close().unwrap();
        let store = case.builder(&device).operator(Arc::new(Joiner)).open().unwrap();
        let ks = store.open_keyspace("j").unwrap().unwrap();
        ks.merge("k", "c").unwrap();
        assert!(ks.get("k").unwrap().unwrap() == "a,b,c");
    });
}
