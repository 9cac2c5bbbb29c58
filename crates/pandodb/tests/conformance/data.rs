//! Keys, values, ranges, snapshots, batches, operators.

use std::sync::Arc;

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
fn sizes_up_to_the_limits() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        let long = vec![b'k'; 65_535];
        let sizes = [0, 1, 2047, 2048, 2049, 65_535, 65_536, (1 << 20) - 1, 1 << 20, (1 << 20) + 1];
        for (i, size) in sizes.into_iter().enumerate() {
            ks.put([i as u8], vec![i as u8; size]).unwrap();
        }
        ks.put(&long, "long").unwrap();
        ks.compact::<&[u8]>(..).unwrap();
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
fn prefixes_and_range_deletes_at_the_edges() {
    each(|case| {
        let (_device, _store, ks) = case.fresh();
        let all: [&[u8]; 7] = [b"\0", b"a", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff\x01"];
        all.iter().for_each(|key| ks.put(key, "v").unwrap());
        assert_eq!(keys(ks.prefix(b"a\xff")), [b"a\xff".to_vec(), b"a\xff\xff".to_vec()]);
        assert_eq!(keys(ks.prefix(b"\xff")), [b"\xff".to_vec(), b"\xff\xff\x01".to_vec()]);
        assert_eq!(keys(ks.prefix(b"").rev()).len(), all.len());
        assert_eq!(keys(ks.range::<&[u8]>(&b"b"[..]..&b"a"[..])).len(), 0);
        ks.delete_range(&b"a"[..]..=&b"a\xff"[..]).unwrap();
        assert_eq!(keys(ks.prefix(b"a")), [b"a\xff\xff".to_vec()]);
        ks.delete_range(&b"b"[..]..).unwrap();
        ks.put(b"c", "after").unwrap();
        ks.compact::<&[u8]>(..).unwrap();
        assert_eq!(keys(ks.iter()), [b"\0".to_vec(), b"a\xff\xff".to_vec(), b"c".to_vec()]);
        assert_eq!(ks.approximate_len(), 3);
    });
}

#[test]
fn snapshots_stand_still() {
    each(|case| {
        let (_device, store, ks) = case.fresh();
        (0..300u32).for_each(|i| ks.put(i.to_be_bytes(), "old").unwrap());
        let then = store.snapshot();
        (0..300u32).step_by(2).for_each(|i| ks.put(i.to_be_bytes(), "new").unwrap());
        ks.delete_range(100u32.to_be_bytes()..200u32.to_be_bytes()).unwrap();
        ks.compact::<&[u8]>(..).unwrap();
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
fn batches_are_whole_and_in_order() {
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
    });
}

#[test]
fn operators_fold_before_and_after_compactions() {
    /// An operator, its operands in order, and what they come to.
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
            ks.compact::<&[u8]>(..).unwrap();
            assert!(ks.get("k").unwrap().unwrap() == want, "{name}, compacted");
        }
        let adder = store.open_keyspace("add_u64").unwrap().unwrap();
        assert!(matches!(adder.merge("k", "short"), Err(Error::InvalidArgument { .. })));
        assert!(case.options().merge_named("nonsense").is_err());
    });
}

/// Joins with a comma; panics on `boom`.
pub struct Joiner;

impl MergeOperator for Joiner {
    fn name(&self) -> &str {
        "joiner"
    }
    fn validate(&self, operand: &[u8]) -> Result<(), String> {
        if operand.is_empty() { Err("an operand has bytes".into()) } else { Ok(()) }
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        assert!(!operands.contains(&&b"boom"[..]), "asked for it");
        Some(base.into_iter().chain(operands.iter().copied()).collect::<Vec<_>>().join(&b','))
    }
}

#[test]
fn a_users_operator_is_contained_and_remembered() {
    each(|case| {
        let (device, store, _) = case.fresh();
        let ks = store.keyspace_with("j", case.options().merge(Joiner)).unwrap();
        ["a", "b"].iter().for_each(|operand| ks.merge("k", operand).unwrap());
        assert!(matches!(ks.merge("k", ""), Err(Error::InvalidArgument { .. })));
        assert!(ks.get("k").unwrap().unwrap() == "a,b");
        ks.merge("bad", "boom").unwrap();
        assert!(matches!(ks.get("bad"), Err(Error::OperatorFailed { .. })));
        ks.compact::<&[u8]>(..).unwrap();
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
